"""Tables in a terminal: every number and name is whole, at any width."""

from __future__ import annotations

import io
import re
from contextlib import redirect_stdout

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgesim.cli.printing import GridColumn, print_grid, print_prose, print_table
from tests.sizes import examples, full

NUMBERS = st.one_of(st.integers(0, 10**15).map(str), st.floats(0, 1).map("{:.4f}".format), st.just("-"))
NAMES = st.from_regex(r"[a-z][a-z0-9_:=,.]{0,30}", fullmatch=True)


def printed(columns: list[GridColumn], width: int | None, keys: int = 1) -> list[str]:
    out = io.StringIO()
    with redirect_stdout(out):
        print_grid(columns, keys, width)
    return out.getvalue().splitlines()


@st.composite
def tables(draw: st.DrawFn) -> list[GridColumn]:
    rows = draw(st.integers(1, 4))
    cells = st.one_of(st.lists(NUMBERS, min_size=rows, max_size=rows), st.lists(NAMES, min_size=rows, max_size=rows))
    headings = st.lists(NAMES, min_size=1, max_size=3).map(" ".join)
    return [GridColumn(draw(headings), draw(cells)) for _ in range(draw(st.integers(1, 12)))]


@full
@settings(max_examples=examples(60), deadline=None)
@given(columns=tables(), width=st.integers(20, 200))
def test_nothing_is_cut_and_lines_fit_if_they_can(columns: list[GridColumn], width: int) -> None:
    lines = printed(columns, width)
    shown = [word for line in lines for word in line.split()]
    for column in columns:
        for text in (*column.heading.split(), *column.cells):
            assert text in shown
    # a key and one column beside it are the least that a line can hold
    least = max(columns[0].narrowest + 2 + column.narrowest for column in columns)
    assert max(map(len, lines)) <= max(width, least)


@pytest.mark.parametrize("width", [80, 60, 40])
def test_what_has_no_room_follows_below_with_the_keys(width: int) -> None:
    columns = [GridColumn("run", ["a", "b"]), *(GridColumn(f"number {i}", [f"{i}.123456 MB"] * 2) for i in range(9))]
    lines = printed(columns, width)
    blocks = sum(line.startswith("a ") for line in lines)
    assert blocks == -(-9 // ((width - 3) // 13))  # 11 characters and 2 spaces each, beside 3 of the key
    assert sum("123456 MB" in line for line in lines) == 2 * blocks


def test_a_sentence_is_folded_before_columns_go_below() -> None:
    sentence = "Weighted mean of what the devices send, each by its number of samples, however late it comes."
    lines = printed(
        [GridColumn("name", ["fedavg"]), GridColumn("what it is", [sentence]), GridColumn("bytes", ["24360"])], 60
    )
    assert " ".join(" ".join(lines[2:]).replace("fedavg", "").replace("24360", "").split()) == sentence
    assert max(map(len, lines)) <= 60


def test_a_pipe_has_no_width(capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing is folded where lines are read by a program."""
    names = {f"name{i}": f"name{i}" for i in range(60)}
    print_table([{name: f"value of {name}, which is a sentence" for name in names}], names)
    head, _, row, *_ = capsys.readouterr().out.splitlines()
    assert head.split() == list(names)
    assert row.count("which is a sentence") == 60


def test_a_terminal_s_width_is_kept_to(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    row = {f"quantity_{i}_s": 0.123 + i for i in range(20)}
    print_table([{"run": "dadpfl-with-a-long-name", **row}], {"run": "run"} | {name: name for name in row})
    out = re.sub(r"\x1b\[\d*m", "", capsys.readouterr().out)  # bold headings
    assert max(map(len, out.splitlines())) <= 80
    assert "…" not in out and "..." not in out
    assert all(f"{0.123 + i:.3g} s" in out for i in range(1, 20))


@pytest.mark.parametrize("width", [80, 120])
def test_prose_on_a_terminal_breaks_between_words(monkeypatch: pytest.MonkeyPatch, width: int) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    path = "/a/folder/whose-name/" + "x" * width
    prose = f"The server averages their models by data size. {path} " + "Each device has a well-known share. " * 9
    out = io.StringIO()
    out.isatty = lambda: True  # type: ignore[method-assign]
    with redirect_stdout(out):
        print_prose(f"{prose}\n\nSource: somebody.")
    lines = out.getvalue().splitlines()
    assert " ".join(lines[:-2]).split() == prose.split()  # no word is cut, at a hyphen neither
    assert lines[-2:] == ["", "Source: somebody."]
    assert all(len(line) <= width for line in lines if line != path)
    out = io.StringIO()
    with redirect_stdout(out):
        print_prose(prose)
    assert out.getvalue() == f"{prose}\n"  # a pipe gets a line whole
