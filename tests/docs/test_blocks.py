"""What the documentation tells a reader to write and to type works, and prints what it shows."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path

import pytest

from edgesim.core.errors import ConfigError
from tests.docs.pages import ROOT, Block, Reader, blocks_of
from tests.sizes import thinned

SHORT = ("docs/howto/sessions.md",)
# Pages whose commands train for minutes, ten seeds or large networks: for `make test-all`.
LONG = (
    *("docs/explanation/decisions.md", "docs/explanation/time.md", "docs/explanation/time_and_energy.md"),
    *("docs/howto/finetune.md", "docs/howto/objectives.md", "docs/howto/resources.md"),
)
# Blocks that a page marks as not run: each one more is to be noticed.
LEFT_OUT = {
    "README.md": 1,
    "docs/explanation/claims.md": 1,
    "docs/explanation/open_questions.md": 3,
    "docs/explanation/performance.md": 1,
    "docs/explanation/protocols.md": 2,
    "docs/explanation/reproductions.md": 24,
    "docs/explanation/simulators.md": 1,
    "docs/explanation/statistics.md": 1,
    "docs/howto/calibrate.md": 4,
    "docs/howto/choose.md": 2,
    "docs/howto/ci.md": 1,
    "docs/howto/data.md": 1,
    "docs/howto/device.md": 1,
    "docs/howto/diloco.md": 1,
    "docs/howto/finetune.md": 1,
    "docs/howto/edges.md": 1,
    "docs/howto/golden_tables.md": 1,
    "docs/howto/install.md": 4,
    "docs/howto/look.md": 2,
    "docs/howto/networks.md": 1,
    "docs/howto/objectives.md": 1,
    "docs/howto/own_loop.md": 2,
    "docs/howto/python.md": 1,
    "docs/howto/speed.md": 7,
    "docs/howto/traces.md": 4,
    "docs/tutorial/first_decision.md": 1,
    "docs/tutorial/flower_app.md": 1,
}
WIDTH = 78  # of code that needs no scrolling beside the navigation of the site
# Lines that are wider: drawings, lines of others' files, and values that cannot be broken. At most so many.
WIDE = {
    "README.md": 4,
    "docs/explanation/architecture.md": 10,
    "docs/explanation/reproductions.md": 2,
    "docs/howto/calibrate.md": 1,
    "docs/howto/compress.md": 2,
    "docs/howto/data.md": 1,
    "docs/howto/networks.md": 1,
    "docs/howto/own_loop.md": 1,
    "docs/howto/plugin.md": 2,
    "docs/howto/traces.md": 2,
}
PAGES = sorted(path.relative_to(ROOT).as_posix() for path in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])
WITH_BLOCKS = [page for page in PAGES if blocks_of(ROOT / page)]
CASES = thinned(WITH_BLOCKS, SHORT, [page for page in WITH_BLOCKS if page not in LONG])


@pytest.mark.parametrize("page", CASES)
def test_a_reader_can_do_what_the_page_says(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("EDGESIM_DATA", raising=False)  # a reader may have no data sets
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    known = set(sys.modules)
    reader = Reader(tmp_path)
    try:
        for block in blocks_of(ROOT / page):
            try:
                reader.do(block)
            except BaseException as fault:
                fault.add_note(f"{page}:{block.line}")
                raise
    finally:
        for name in set(sys.modules) - known:  # what the page wrote is no module of the next page
            if (getattr(sys.modules[name], "__file__", None) or "").startswith(str(tmp_path)):
                del sys.modules[name]


def test_what_is_not_run_is_counted() -> None:
    found = {page: sum(block.is_left_out for block in blocks_of(ROOT / page)) for page in PAGES}
    assert {page: count for page, count in found.items() if count} == LEFT_OUT


def test_code_is_narrow() -> None:
    """Output of commands is as wide as it is printed."""
    lines = [
        (page, line)
        for page in PAGES
        for block in blocks_of(ROOT / page)
        if not block.comment.startswith("output")
        for line in block.text.splitlines()
    ]
    wide = Counter(page for page, line in lines if len(line) > WIDTH)
    assert {page: count for page, count in wide.items() if count > WIDE.get(page, 0)} == {}


@pytest.mark.parametrize("page", PAGES)
def test_every_block_says_what_it_is(page: str) -> None:
    """A fence for each, with a language; a comment that is no known one would be passed over in silence."""
    for block in blocks_of(ROOT / page):
        assert block.language in {"sh", "python", "toml", "text", "csv"}, block.line
        assert not block.comment or block.comment.startswith(("not run: ", "output", "insert: ", "tested: ")), block
    lines = (ROOT / page).read_text(encoding="utf-8").splitlines()
    assert [line for line in lines if line.startswith("    edgesim ")] == []


# --- the reader itself --------------------------------------------------------------------------------------


def _block(language: str, text: str, comment: str = "", title: str = "") -> Block:
    return Block(1, language, text, comment, title)


def test_a_wrong_page_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    reader = Reader(tmp_path)
    reader.do(_block("python", "left = 1"))
    with pytest.raises(AssertionError, match="nothing"):
        reader.do(_block("sh", "edgesim run nothing.toml"))
    with pytest.raises(AssertionError, match="false"):
        reader.do(_block("sh", "false && true"))
    with pytest.raises(ZeroDivisionError):
        reader.do(_block("python", "left / 0"))
    with pytest.raises(ConfigError):
        reader.do(_block("toml", "method = 'no_such_method'"))
    reader.do(_block("sh", "echo 'took 10 s'"))
    reader.do(_block("text", "took 10 s\n", "output"))
    reader.do(_block("text", "took 11 s\n", "output, numbers within 10 %"))
    with pytest.raises(AssertionError):
        reader.do(_block("text", "took 11 s\n", "output"))
    with pytest.raises(AssertionError):
        reader.do(_block("text", "took 12 s\n", "output, numbers within 10 %"))
    with pytest.raises(AssertionError):
        reader.do(_block("text", "lost 10 s\n", "output, numbers within 10 %"))
