"""Measure the sentences of README and documentation: `python -m tests.conventions.prose [PAGE ...]`.

It prints the faults of each page, the worst page first; of a page that is named, each sentence that fails. Sentences
stand in paragraphs and list items. Headings, tables, code, titles of admonitions, comments and HTML are left out. A
code span is one word, and a link is its text.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
MOST_WORDS = 30
# Pages that a program writes: their words stand in the package, the benchmarks and the tests.
WRITTEN = (
    "docs/explanation/claims.md",
    "docs/explanation/device_times.md",
    "docs/explanation/methods_compared.md",
    "docs/explanation/performance.md",
    "docs/explanation/validation.md",
    "docs/reference/flower_apps.md",
    "docs/reference/foreign_code.md",
)

_HEADLESS = re.compile(r"(?:what|whether|who|whom|whoever|whose|whatever|of)\b(?!.*\?$)", re.IGNORECASE | re.DOTALL)
_QUESTION = re.compile(r"(?:how|which|why|when|where)\b(?!.*\?$)", re.IGNORECASE | re.DOTALL)
_ABBREVIATION = re.compile(
    r"(?:^|[\s(])(?:e\.g|i\.e|et al|cf|vs|etc|resp|approx|Fig|Figs|Eq|Eqs|Sec|Tab|No|pp|p|Dr|T|[A-Z])\.$"
)
_END = re.compile(r"[.!?][\"')\]*_”]*(?=\s|$)")
_CODE = "code"  # stands for a code span
_ITEM = re.compile(r"^\s*(?:[-*+]|\d+[.)])\s+")
_LABEL = re.compile(r"^\*\*[^*]+[.:?]\*\*")
_WORD = re.compile(r"[A-Za-z0-9][\w'’.,+/%-]*")


@dataclass(frozen=True)
class Sentence:
    """A sentence with its page and the line of its paragraph; in some places it may be a label, which needs no verb."""

    page: str
    line: int
    text: str
    may_be_label: bool

    @property
    def words(self) -> int:
        """Number of words, numbers and code spans; a sign of arithmetic is none."""
        return len(_WORD.findall(self.text))

    @property
    def has_semicolon(self) -> bool:
        """Whether it joins clauses by a semicolon; one at its end only separates list items."""
        return ";" in self.text.rstrip(";")

    @property
    def is_headless(self) -> bool:
        """Whether a clause or a preposition is its subject, or it has no verb."""
        opening = self.text.lstrip("*_\"'(")
        if _HEADLESS.match(opening):
            return True
        return not self.may_be_label and not has_verb(opening)


@cache
def verbs() -> frozenset[str]:
    """Return the verbs of `verbs.txt`: stems, with their form in -s, and after a blank line other forms."""
    stems, forms = (Path(__file__).parent / "verbs.txt").read_text(encoding="utf-8").split("\n\n")
    made = {form for stem in stems.split() for form in (stem, f"{stem}s", f"{stem}es", f"{stem.removesuffix('y')}ies")}
    return frozenset(made | set(forms.split()))


def has_verb(text: str) -> bool:
    """Return whether a word can be a verb: one of `verbs`, or a word that ends in -ed."""
    words = [word.strip(".,'’").lower() for word in _WORD.findall(text)]
    return any(word in verbs() or word.endswith("ed") for word in words)


def sentences(page: str, text: str) -> list[Sentence]:
    """Return the sentences of a page of Markdown."""
    found = []
    for line, block, is_item in _blocks(text):
        label = _LABEL.match(block)
        is_caption = block.startswith("*") and block.endswith("*") and label is None
        body = block[label.end() :].strip() if label else block
        for index, sentence in enumerate(_split(body)):
            may_be_label = is_caption or (index == 0 and (is_item or label is not None or _is_lead(body)))
            found.append(Sentence(page, line, sentence, may_be_label))
    return found


def _is_lead(text: str) -> bool:
    """Return whether a few words announce the block below, as "In a clone of the repository:" does."""
    return text.endswith(":") and len(_WORD.findall(text)) <= 6


def _split(text: str) -> list[str]:
    """Return the sentences of a paragraph. A point after an abbreviation, an initial or inside a number ends none."""
    found, start = [], 0
    for end in _END.finditer(text):
        head = text[start : end.start() + 1]
        if text[end.start()] == "." and (_ABBREVIATION.search(head) or head.endswith("..")):
            continue
        found.append(text[start : end.end()].strip())
        start = end.end()
    found.append(text[start:].strip())
    return [sentence for sentence in found if _WORD.search(sentence)]


def _blocks(text: str) -> Iterator[tuple[int, str, bool]]:
    """Yield paragraphs and list items: line, text without marks, and whether it is a list item."""
    start, lines, is_item, is_in_list = 0, list[str](), False, False
    for number, line in enumerate([*_plain(text).splitlines(), ""], 1):
        bare = line.strip().removeprefix(">").strip()
        begins_item = _ITEM.match(line) is not None
        is_apart = not bare or bare.startswith(("#", "|", "!!!", "???", "---", "![", "*[", ":::"))
        if lines and (is_apart or begins_item):
            if set(lines) != {_CODE}:
                yield start, " ".join(lines), is_item
            lines = []
        is_in_list = begins_item or (is_in_list and (not bare or line.startswith(" ") or bool(lines)))
        is_code = line.startswith("    ") and not is_in_list and not lines
        if is_apart or is_code:
            continue
        if not lines:
            start, is_item = number, begins_item
        lines.append(_ITEM.sub("", line).strip() if begins_item else bare)


def _plain(text: str) -> str:
    """Return a page without front matter, code, formulas, comments, HTML, pictures and targets of links; lines stay."""
    text = re.sub(r"\A---\n.*?\n---$", _only_lines, text, flags=re.DOTALL | re.MULTILINE)
    text = re.sub(r"^( *)(```+|~~~+).*?^\1\2 *$", _only_lines, text, flags=re.DOTALL | re.MULTILINE)
    text = re.sub(r"<!--.*?-->", _only_lines, text, flags=re.DOTALL)
    text = re.sub(r"`[^`]+`", lambda match: _CODE + "\n" * match[0].count("\n"), text)
    text = re.sub(r"\$\$.*?\$\$|\\\[.*?\\\]", _only_lines, text, flags=re.DOTALL)
    text = re.sub(r"</?[a-zA-Z][^>]*>", _only_lines, text)
    text = re.sub(r"!\[[^\]]*\]\([^)]*\)(?:\{[^}]*\})?", "![", text)
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", text)
    return re.sub(r"&\w+;|&#\d+;", " ", text)


def _only_lines(match: re.Match[str]) -> str:
    return "\n" * match[0].count("\n")


@cache
def all_sentences() -> tuple[Sentence, ...]:
    """Return the sentences of README and of each page of docs that people write."""
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    names = [page.relative_to(ROOT).as_posix() for page in pages]
    return tuple(
        sentence
        for name in names
        if name not in WRITTEN
        for sentence in sentences(name, (ROOT / name).read_text(encoding="utf-8"))
    )


def faults(sentence: Sentence) -> list[str]:
    """Return the rules that a sentence breaks."""
    rules = {
        "semicolon": sentence.has_semicolon,
        "long": sentence.words > MOST_WORDS,
        "headless": sentence.is_headless,
    }
    return [name for name, is_broken in rules.items() if is_broken]


def worst_pages(most: int = 100) -> list[str]:
    """Return a line a page with the faults of its sentences, the page with the most of them first."""
    counts: dict[str, list[int]] = {}
    for sentence in all_sentences():
        row = counts.setdefault(sentence.page, [0, 0, 0, 0])
        found = faults(sentence)
        for column, is_so in enumerate((True, *(name in found for name in ("semicolon", "long", "headless")))):
            row[column] += is_so
    rows = sorted(counts.items(), key=lambda item: -sum(item[1][1:]))
    return [
        f"{page:45} {total:5} sentences, {semicolons:3} with a semicolon, {long:3} long, {headless:3} headless"
        for page, (total, semicolons, long, headless) in rows[:most]
    ]


def main() -> None:
    """Print the faults of a page, or of all pages."""
    if len(sys.argv) == 1:
        print("\n".join(worst_pages()))
    for sentence in all_sentences():
        if sentence.page in sys.argv[1:] and faults(sentence):
            print(f"{sentence.page}:{sentence.line} {', '.join(faults(sentence))} ({sentence.words}): {sentence.text}")


if __name__ == "__main__":
    main()
