"""The page of claims: a chart, a table for each paper and a row for each claim; and the same as CSV."""

from __future__ import annotations

import csv
import io
import math
import textwrap
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from os.path import normpath
from pathlib import Path

from edgesim.studies.claims.claim import NumberRule, OrderRule, RatioRule
from edgesim.studies.claims.judge import Chapter, ClaimEffect, ClaimVerdict, Judged, Judgement

_MOST_SHOWN = 4  # effects of a claim. Of more effects only the smallest and the largest are shown
_HEADINGS = ("where", "claim", "verdict", "scale", "effect")
_OPEN_HEADINGS = ("where", "claim", "status", "study")
_COLUMNS = ("paper", "id", "where", "claim", "verdict", "scale", "status", "effect", "command", "what explains it")
_NOT_RUN, _NO_TEST = "not run", "no test here"
_OUTCOMES = (*ClaimVerdict, _NOT_RUN, _NO_TEST)
_WITHOUT_RUNS = "without runs"  # both of these
_PAPERS, _ONE_READING, _SMALLER = "paper's", "one reading", "smaller"  # scales of the runs that claims are judged by
_COLOURS: Mapping[str, tuple[str, str]] = {  # of a bar, and of the number on it
    ClaimVerdict.REPRODUCED: ("#0072b2", "#fff"),
    ClaimVerdict.WITHIN: ("#009e73", "#fff"),
    ClaimVerdict.ORDER: ("#56b4e9", "#000"),
    ClaimVerdict.UNDECIDED: ("#c9c9c9", "#000"),
    ClaimVerdict.REFUTED: ("#e69f00", "#000"),
    _WITHOUT_RUNS: ("none", "currentColor"),
}
HEAD = """# Claims

{chart}
The {total} claims of {papers}, each with the verdict of edgesim's runs:

{counts}
A command writes this page from run folders, and from a file of results for runs whose folders are gone. No verdict was
written by hand:

<!-- not run: it takes minutes, and runs that take days -->
```sh
{command}
```

Each number and each pair of a claim has a mean over seeds and its 95 % interval (Student's t, of ratios BCa). The
verdict of a claim is the least favourable one among its numbers or pairs.

- *reproduced*: The whole interval lies within the tolerance that the row names, or on the claimed side.
- *within on the mean*: The mean lies within the tolerance. The interval reaches beyond it, or there is none.
- *same order*: The mean lies on the claimed side. The interval reaches the other side, or there is none.
- *undecided*: The mean misses the tolerance or lies on the other side, and the interval allows both. Or runs ended
  before they reached the target, so that the size of a difference or ratio is not known.
- *refuted*: The whole interval lies outside the tolerance or on the other side. A claim about several numbers is also
  refuted if their mean, as a share of the published numbers, is. Intervals are not corrected for multiple comparisons.

*One seed* gives no interval, so that nothing learned from one seed is reproduced or refuted. *One run without training*
counts or times something, and another seed would hardly change it. *Mean of seeds alone*: the numbers of single seeds
were not kept.

*Under reading X of N*: the paper leaves N readings open, and this one was chosen after its result was known. The row
has the verdicts of the others, and the table above counts it under *one reading*. *So far (3 of 13)*: three of the
claim's thirteen pairs or numbers were run. A *smaller* scale is a study with less data, fewer devices, rounds or seeds
than the paper's, which says little. Hours of missing runs are for two processes of one host.

An *effect* is a mean over seeds, [its 95 % interval], the published number if there is one, and the number of seeds.
Of many pairs or numbers the two ends are shown. The name of the study file and its size follow.{csv}
"""


def page(chapters: Sequence[Chapter], command: str, csv_file: str = "") -> str:
    """Return the page as Markdown.

    `command`: the command line that writes the page. `csv_file`: path from the page to its rows as CSV.
    """
    about_csv = (
        f"\n[The CSV file]({csv_file}) also has the whole command of each row and the revision of recorded results."
        if csv_file
        else ""
    )
    lines = textwrap.wrap(command, 72, break_long_words=False, break_on_hyphens=False)
    head = HEAD.format(
        papers=f"{len(chapters)} paper{'s'[: len(chapters) != 1]}",
        command=" \\\n    ".join(lines),
        csv=about_csv,
        chart=_chart(chapters),
        total=outcomes(chapters).total(),
        counts=_counts(chapters),
    )
    by_paper = sorted(chapters, key=lambda each: each.file.paper.casefold())
    return "\n".join([head, *(_section(each, csv_file) for each in by_paper)])


def outcomes(chapters: Sequence[Chapter]) -> Counter[str]:
    """Return the number of claims by verdict, from the most to the least favourable, and of those without one."""
    found = Counter(_outcome(each) for chapter in chapters for each in chapter.claims)
    return Counter({name: found[name] for name in _OUTCOMES if found[name]})


def as_csv(chapters: Sequence[Chapter]) -> str:
    """Return a row for each claim as CSV, with its whole status, command and effects."""
    text = io.StringIO()
    rows = csv.writer(text, lineterminator="\n")
    rows.writerow(_COLUMNS)
    for chapter in chapters:
        for each in chapter.claims:
            claim = each.claim
            rows.writerow(
                (chapter.file.paper, claim.id, claim.where, claim.says, _verdict(each), _scale(each), status(each))
                + (effects(each.found.effects, "; "), _command(each, chapter), claim.why)
            )
    return text.getvalue()


def _section(chapter: Chapter, csv_file: str) -> str:
    """Return the section of a paper: a table of judged claims, and a folded one of the others."""
    where = {each.claim.id: f"{each.claim.where} <a id='{each.claim.id}'></a>" for each in chapter.claims}
    judged = [
        (
            where[each.claim.id],
            "<br>".join(filter(None, [each.claim.says, _small(each.claim.why)])),
            *(_verdict(each), _scale(each)),
            "<br>".join(filter(None, [_details(each), effects(each.found.effects), _small(_study(each))])),
        )
        for each in chapter.claims
        if each.found.verdict is not None
    ]
    others = [
        (where[each.claim.id], each.claim.says, status(each), _study(each))
        for each in chapter.claims
        if each.found.verdict is None
    ]
    link = f' data-csv="{csv_file}"' if csv_file else ""
    parts = [f"## {chapter.file.paper}\n\n{chapter.file.source}\n"]
    if judged:
        parts.append(
            f'<div class="filtered" markdown data-select="3,4"{link}>\n\n{_table(_HEADINGS, judged)}\n</div>\n'
        )
    if others:
        summary = f"{len(others)} claim{'s'[: len(others) != 1]} {_WITHOUT_RUNS}"
        table = _table(_OPEN_HEADINGS, others)
        parts.append(f"<details markdown>\n<summary>{summary}</summary>\n\n{table}\n</details>\n")
    return "\n".join(parts)


def _counts(chapters: Sequence[Chapter]) -> str:
    """Return a table of the number of claims by verdict and by the scale of their runs."""
    by_scale = Counter(
        (_outcome(each), _ONE_READING if each.place else _scale(each))
        for chapter in chapters
        for each in chapter.claims
    )
    rows = [
        (name, str(count), *(str(by_scale[name, scale] or "") for scale in (_PAPERS, _ONE_READING, _SMALLER)))
        for name, count in outcomes(chapters).items()
    ]
    return _table(("verdict", "claims", "paper's scale", "one reading", "smaller scale"), rows)


def _outcome(judged: Judged) -> str:
    """Return the verdict of a claim, or why it has none."""
    if judged.found.verdict is None:
        return _NOT_RUN if judged.claim.study else _NO_TEST
    return str(judged.found.verdict)


def _small(text: str) -> str:
    return f"<small>{text}</small>" if text else ""


def _table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [headings, ["---"] * len(headings), *rows]
    cells = (" | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in line) for line in lines)
    return "\n".join(f"| {line} |" for line in cells) + "\n"


def _chart(chapters: Sequence[Chapter]) -> str:
    """Return the number of claims by paper and verdict as a drawing, and its legend."""
    by_paper = sorted(chapters, key=lambda each: each.file.paper.casefold())
    rows = {
        each.file.paper: Counter(str(one.found.verdict or _WITHOUT_RUNS) for one in each.claims) for each in by_paper
    }
    scale = 480 / max((counts.total() for counts in rows.values()), default=1)
    height = 30 * len(rows) + 34
    said = "; ".join(
        f"{paper}: {', '.join(f'{n} {name}' for name, n in counts.items())}" for paper, counts in rows.items()
    )
    drawn = [f'<svg viewBox="0 0 680 {height}" role="img" aria-label="{said}" font-size="13">']
    for place, (paper, counts) in enumerate(rows.items()):
        drawn.append(
            f'<text x="150" y="{30 * place + 18}" text-anchor="end" fill="currentColor">{escape(paper)}</text>'
        )
        drawn += _bar(counts, 30 * place, scale)
    for place, (name, (ground, _)) in enumerate(_COLOURS.items()):
        x, y = (5, 110, 255, 355, 455, 545)[place], height - 22
        drawn.append(f'<rect x="{x}" y="{y}" width="12" height="12" fill="{ground}" stroke="currentColor"/>')
        drawn.append(f'<text x="{x + 18}" y="{y + 11}" fill="currentColor">{name}</text>')
    return "<figure class='chart'>\n" + "\n".join(drawn) + "\n</svg>\n</figure>\n"


def _bar(counts: Mapping[str, int], top: float, scale: float) -> Iterator[str]:
    left = 160.0
    for name, (ground, ink) in _COLOURS.items():
        wide = counts.get(name, 0) * scale
        if wide:
            box = f'x="{left:.1f}" y="{top}" width="{wide:.1f}" height="24"'
            yield f'<rect {box} fill="{ground}" stroke="currentColor"/>'
        if wide > 18:
            middle = left + wide / 2
            yield f'<text x="{middle:.1f}" y="{top + 17}" text-anchor="middle" fill="{ink}">{counts[name]}</text>'
        left += wide


def _verdict(judged: Judged) -> str:
    """Return the verdict with its limits: the reading, pairs that were not run, and runs without an interval."""
    if judged.found.verdict is None:
        return _NOT_RUN
    found = judged.found
    under = f" under reading {judged.place} of {len(judged.claim.readings)}" if judged.place else ""
    none = "" if found.as_claimed or found.of == 1 else f"none of {len(found.effects)} agrees"
    return ", ".join(filter(None, [f"{found.verdict}{under}{_so_far(found)}", none, found.few]))


def _scale(judged: Judged) -> str:
    """Return the scale of the runs that a claim was judged by."""
    if judged.found.verdict is None:
        return ""
    return _SMALLER if judged.smaller else _PAPERS


def _command(judged: Judged, chapter: Chapter) -> str:
    """Return the command that makes the runs of a claim, "" if it has no study."""
    claim = judged.claim
    test = judged.test or next(iter(claim.tests), None)
    if test is None:
        return ""
    file = normpath(chapter.folder / test.study)
    labels = test.cell if claim.rule is None or test != claim.tests[0] else claim.rule.cell
    only = ",".join(f"{axis}={label}" for axis, label in labels.items())
    return f"edgesim study run {file} --size {test.size}{f' --only {only}' if only else ''}"


def _study(judged: Judged) -> str:
    """Return the name of a claim's study and its size, in short."""
    test = judged.test or next(iter(judged.claim.tests), None)
    return "" if test is None else f"`{Path(test.study).stem}`, {test.size}"


def status(judged: Judged) -> str:
    """Return the status of a claim for the page."""
    claim, found = judged.claim, judged.found
    if found.verdict is None:
        if claim.cannot:
            return f"cannot be run here: {claim.cannot}"
        if claim.elsewhere:
            return f"elsewhere: `{claim.elsewhere}`"
        if claim.needs:
            return f"not run: needs {claim.needs}"
        hours = judged.hours
        return "not run" if hours is None else f"not run: needs about {float(f'{hours / 2:.2g}'):,g} hours on 2 cores"
    words = [f"**{_verdict(judged)}**{_tolerance(judged)}", *_shares(judged)]
    words += _readings(judged)
    if judged.smaller:
        words.append("smaller scale" + (f", by `{judged.test.column}`" if judged.test and judged.test.column else ""))
    if judged.made:
        words.append(f"runs of {'; '.join(judged.made)}")
    if judged.recorded:
        words.append(f"recorded: {'; '.join(judged.recorded)}")
    return "; ".join(words)


def _details(judged: Judged) -> str:
    """Return the tolerance of a verdict, the shares of pairs, another column that it is by, and a line per reading."""
    by = [f"by `{judged.test.column}`"] if judged.smaller and judged.test and judged.test.column else []
    words = "; ".join(filter(None, [_tolerance(judged).strip(), *_shares(judged), *by]))
    return "<br>".join([*([f"*{words}*"] if words else []), *_readings(judged)])


def _readings(judged: Judged) -> Iterator[str]:
    """Yield the chosen reading, and each other one with its verdict."""
    if judged.place:
        others = iter(judged.others)
        for place, reading in enumerate(judged.claim.readings, 1):
            says = f"reading {place}: {reading.says}"
            if not reading.is_chosen:
                found = next(others)
                says += ": " + ", ".join(filter(None, [f"{found.verdict or _NOT_RUN}{_so_far(found)}", found.few]))
            yield says


def _so_far(found: Judgement) -> str:
    """Return the counts of pairs or numbers that were run and that the claim has, if some were not run."""
    partly = found.verdict is not None and len(found.effects) < found.of
    return f" so far ({len(found.effects)} of {found.of})" if partly else ""


def _tolerance(judged: Judged) -> str:
    rule = judged.claim.rule
    within = None if rule is None or isinstance(rule, OrderRule) else rule.within
    if within is None or judged.found.verdict == ClaimVerdict.ORDER:
        return ""
    shown = f"{100 * within:.2g} %" if isinstance(rule, NumberRule | RatioRule) else f"{within:.2g}"
    return f" within {shown}" if within > 1e-6 else " exactly"


def _shares(judged: Judged) -> Iterator[str]:
    """Yield the number of pairs that agree, and the mean of all numbers if it refutes the claim."""
    found = judged.found
    if found.of > 1:
        yield f"{found.as_claimed} of {len(found.effects)} as claimed"
    if found.together is not None and found.together.verdict == ClaimVerdict.REFUTED:
        mean = found.together
        yield f"mean of all {mean.value:.2f} [{mean.low:.2f}, {mean.high:.2f}] of the published"


def effects(found: Sequence[ClaimEffect], between: str = "<br>") -> str:
    """Return all effects in words, or the smallest and the largest of many."""
    if len(found) <= _MOST_SHOWN:
        return between.join(map(_effect, found))
    ends = sorted(
        found, key=lambda each: each.value / (each.claimed if math.isfinite(each.claimed) and each.claimed != 0 else 1)
    )
    return f"from {_effect(ends[0])}{between}to {_effect(ends[-1])}"


def _effect(effect: ClaimEffect) -> str:
    interval = (
        f" [{effect.low:.4g}, {effect.high:.4g}]" if math.isfinite(effect.low) and math.isfinite(effect.high) else ""
    )
    claimed = f", claimed {effect.claimed:.4g}" if math.isfinite(effect.claimed) else ""
    seeds = f"{len(effect.seeds)} seeds"
    if effect.seeds == ("",):  # of a program without seeds
        seeds = "1 run"
    elif len(effect.seeds) == 1:  # a range stands for seeds of which only the mean is known
        seeds = f"mean of seeds {effect.seeds[0]}" if "-" in effect.seeds[0] else "1 seed"
    number = " ".join(filter(None, [effect.bound, f"{effect.value:.4g}{interval}"]))
    return f"{f'{effect.about}: ' if effect.about else ''}{number}{claimed} ({seeds})"
