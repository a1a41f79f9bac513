"""What a check hands to a CI service: JUnit XML, JSON and Markdown, and exit codes; tolerances, sizes, `--update`."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import junitparser
import pytest
from junitparser import Error, Failure, JUnitXml, TestCase, TestSuite

from edgesim.core.errors import ConfigError
from edgesim.learning.models.base import Conv
from edgesim.learning.models.chains import CnnDigits
from edgesim.reports.compare import Tolerance, parse_tolerance
from edgesim.studies.check import Difference
from edgesim.studies.check_texts import in_words
from edgesim.studies.golden import load_golden
from tests.calling import Done, call
from tests.sizes import full
from tests.studies.golden_project import LEARNED, STUDY, replace, rows_of
from tests.studies.test_study import contents

FILES = ("--junit", "check.xml", "--json", "check.json", "--markdown", "check.md")
FAVG, THIN = "method=fedavg,seed=1", "method=thin,seed=1"


@pytest.fixture
def here(golden_here: Path) -> Path:
    """Go to a project with golden tables."""
    return golden_here


def flops_of(channels: int) -> int:
    """Return the FLOPs of a job on 50 samples with so many channels in the second convolution of cnn_digits.

    Multiply-adds: 64 x 9 x 16, then 16 x 144 for every channel, and 4 x 10 for each in the last layer. A training step
    takes three times these but for the input gradient of the first layer.
    """
    first, others = 64 * 9 * 16, (16 * 144 + 4 * 10) * channels
    return 50 * 2 * (3 * (first + others) - first)


def widen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give the second convolution of the model one channel more than its golden tables know."""
    monkeypatch.setattr(CnnDigits, "convs", (Conv(16, 3, padding=1), Conv(33, 3, padding=1)))


# --- the schema of a public parser ------------------------------------------------------------------------------

# Element -> the class of junitparser that stands for it; the attributes that it declares are all that there may be.
CLASSES: dict[str, type] = {
    "testsuites": JUnitXml,
    "testsuite": TestSuite,
    "testcase": TestCase,
    "failure": Failure,
    "error": Error,
    "system-out": junitparser.SystemOut,
}
INSIDE = {"testsuites": {"testsuite"}, "testsuite": {"testcase"}, "testcase": {"failure", "error", "system-out"}}


def attributes_of(kind: type) -> set[str]:
    """Return the names of attributes that a class of junitparser declares."""
    return {
        getattr(value, "name", None) or name
        for cls in kind.__mro__
        for name, value in vars(cls).items()
        if isinstance(value, junitparser.Attr)
    }


def check_junit(path: Path) -> JUnitXml:
    """Return a JUnit file as junitparser reads it, which knows all that is in it, and counts what it counts."""
    for element in ElementTree.parse(path).getroot().iter():
        assert set(element.attrib) <= attributes_of(CLASSES[element.tag]), element.tag
        assert {child.tag for child in element} <= INSIDE.get(element.tag, set())
    found = JUnitXml.fromfile(str(path))
    said = [(each.tests, each.failures, each.errors, each.skipped, each.time) for each in (found, *found)]
    for each in (*found, found):
        each.update_statistics()
    counted = [(each.tests, each.failures, each.errors, each.skipped, each.time) for each in (found, *found)]
    assert [row[:4] for row in counted] == [(*row[:3], row[3] or 0) for row in said]
    assert [row[4] for row in counted] == pytest.approx([row[4] for row in said], abs=0.01)
    return found


def cases_of(path: Path) -> dict[str, TestCase]:
    """Return the cases of a valid JUnit file by name."""
    return {case.name: case for suite in check_junit(path) for case in suite}


# --- what they say ----------------------------------------------------------------------------------------------


def test_a_check_that_agrees_passes_in_all_three(here: Path) -> None:
    assert call("check", "golden", *FILES).code == 0
    cases = cases_of(here / "check.xml")
    assert {name: case.result for name, case in cases.items()} == {FAVG: [], THIN: []}
    assert {case.classname for case in cases.values()} == {"golden"} and all(c.time > 0 for c in cases.values())
    found = json.loads((here / "check.json").read_text())
    [golden] = found["goldens"]
    assert (found["agrees"], golden["agrees"], golden["size"], golden["scenario"]) == (True, True, "quick", "base.toml")
    stored = {row["cell"]: row for row in rows_of(here / "golden/cells.csv")}
    for cell in golden["cells"]:
        assert {name: str(cell["numbers"][name]) for name in ("energy_j",)} == {
            "energy_j": stored[cell["cell"]]["energy_j"]
        }
    page = (here / "check.md").read_text()
    assert page.startswith("## Golden tables: 1 of 1 as stored\n") and "| `golden` | tiny | 2 | as stored |" in page


def test_a_changed_flop_count_fails_with_all_that_one_needs_to_know(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Scenario, cell, column, both values, and the first job that has it with both of its own."""
    widen(monkeypatch)
    first = rows_of(here / "golden/jobs.csv")[0]
    assert call("check", "golden", *FILES).code == 1
    [failure] = cases_of(here / "check.xml")[FAVG].result
    assert isinstance(failure, Failure)
    said = failure.message
    was, now = flops_of(32), flops_of(33)
    assert said.startswith(f"scenario base.toml, cell {FAVG}: ")
    assert f"flops: stored {2 * was}, found {2 * now} (+{100 * (now / was - 1):.3g} %, allowed: equal)" in said
    job = f"job {first['job']} (device {first['device']}, round 0, submodel full)"
    _, _, of_job = said.partition(f"first of 2 jobs that differ: {job}: ")
    assert f"flops: stored {was}, found {now} " in of_job and "\n" not in said
    [golden] = json.loads((here / "check.json").read_text())["goldens"]
    cell = golden["cells"][0]
    [number] = [each for each in cell["differences"] if each["column"] == "flops"]
    assert (number["stored"], number["found"]) == (2 * was, 2 * now)
    assert number["change"] == pytest.approx(now / was - 1)
    assert cell["first_job"]["stored"]["job"] == int(first["job"]) and cell["first_job"]["jobs"] == 2
    page = (here / "check.md").read_text()
    assert f"| `{FAVG}` | `flops` | {2 * was} | {2 * now} | +" in page
    assert f"- first of 2 differing jobs of `{FAVG}`: {job}: " in page
    assert page.startswith("## Golden tables: 0 of 1 as stored\n")


def test_a_job_alone_that_differs_is_a_failure(here: Path) -> None:
    """The end of one job is moved; the columns of the cell stay."""
    job = rows_of(here / "golden/jobs.csv")[0]
    replace(here / "golden/jobs.csv", job["end_s"], "123")
    assert call("check", "golden", *FILES).code == 1
    [failure] = cases_of(here / "check.xml")[FAVG].result
    assert failure.message.startswith(f"scenario base.toml, cell {FAVG}: first of 1 jobs that differ: job ")
    assert f": end_s: stored 123, found {job['end_s']} (" in failure.message
    assert cases_of(here / "check.xml")[THIN].result == []


def test_a_cell_that_cannot_run_is_an_error_and_the_others_are_told(here: Path) -> None:
    replace(here / "study.toml", "fedavg = []", 'fedavg = ["peers=ring"]')
    done = call("check", "golden", *FILES)
    assert done.code == 2 and done.out == ""
    cases = cases_of(here / "check.xml")
    [error] = cases[FAVG].result
    assert isinstance(error, Error) and "peers: fedavg has a server" in error.message
    assert cases[THIN].result == []
    [golden] = json.loads((here / "check.json").read_text())["goldens"]
    assert "peers: fedavg has a server" in golden["cells"][0]["fault"] and not golden["agrees"]
    assert f"- cell `{FAVG}` could not be run: " in (here / "check.md").read_text()


def test_broken_input_is_in_the_files_too(here: Path) -> None:
    replace(here / "golden/golden.toml", "study", "studdy")
    done = call("check", "golden", *FILES)
    says = done.err.removeprefix("error: ").rstrip("\n")
    assert (done.code, done.out) == (2, "") and "studdy" in says
    [case] = cases_of(here / "check.xml").values()
    assert isinstance(case.result[0], Error) and case.result[0].message == says
    found = json.loads((here / "check.json").read_text())
    assert (found["agrees"], found["error"], found["goldens"]) == (False, says, [])
    assert f"**Nothing was compared:** {says}" in (here / "check.md").read_text()


def test_older_files_are_replaced_as_a_whole(here: Path) -> None:
    (here / "check.xml").write_text("an older one" * 10_000)
    assert call("check", "golden", *FILES).code == 0
    check_junit(here / "check.xml")
    assert [path.name for path in here.glob(".*growing*")] == []


def test_what_xml_cannot_hold_is_left_out(here: Path) -> None:
    """A fault may say anything."""
    from edgesim.studies.check_texts import junit

    (here / "check.xml").write_text(junit([], ConfigError("a\x00b\x1b[2J <&> \ud800 \u00e9")), encoding="utf-8")
    [case] = cases_of(here / "check.xml").values()
    assert "<&>" in case.result[0].message and "\u00e9" in case.result[0].message


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--junit", "nowhere/check.xml"), "--junit: nowhere is not a folder"),
        (("--markdown", "golden"), "--markdown: golden cannot be written"),
        (("--json", "/dev/null"), "--json: /dev/null is no regular file"),
        (("--json", "a", "--markdown", "a"), "--markdown: a is also the file of another option"),
    ],
)
def test_files_that_cannot_be_written_are_known_before_anything_runs(
    here: Path, words: tuple[str, ...], says: str
) -> None:
    before = contents(here)
    assert call("check", "golden", *words) == Done(2, "", f"error: {says}\n")
    assert contents(here) == before


# --- tolerances -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "tolerance"),
    [
        (0.5, Tolerance(0.5)),
        (2, Tolerance(2.0)),
        ("0.5", Tolerance(0.5)),
        ("1e-3", Tolerance(1e-3)),
        ("5 %", Tolerance(relative=0.05)),
        ("0.5%", Tolerance(relative=0.005)),
        ("5 % or 0.1", Tolerance(0.1, 0.05)),
        ("0.1 or 5 %", Tolerance(0.1, 0.05)),
    ],
)
def test_what_a_tolerance_is(text: Any, tolerance: Tolerance) -> None:
    assert parse_tolerance(text) == parse_tolerance(str(tolerance)) == tolerance


@pytest.mark.parametrize(
    "wrong", [-1, True, float("nan"), float("inf"), "", "5 % or 6 %", "1 or 2", "-5 %", "a %", None]
)
def test_what_is_no_tolerance(wrong: Any) -> None:
    with pytest.raises(ValueError, match="must be a number in the unit of the column, a share such as"):
        parse_tolerance(wrong)


def test_either_of_both_is_near_enough() -> None:
    both = Tolerance(absolute=1.0, relative=0.01)
    assert [both.allows(1000.0, found) for found in (1010.0, 1010.1)] == [True, False]  # a share of a large number
    assert [both.allows(10.0, found) for found in (11.0, 11.1)] == [True, False]  # and so much of a small one


@pytest.mark.parametrize(
    ("words", "code"),
    [
        ((), 1),
        (("--tolerance", "energy_j=30 %"), 1),  # its jobs differ still
        (("--tolerance", "energy_j=30 %", "--tolerance", "jobs.compute_j=20 %"), 0),  # by a sixth
        (("--tolerance", "energy_j=30 %", "--tolerance", "jobs.compute_j=10 %"), 1),
        (("--tolerance", "energy_j=1e-9", "--tolerance", "jobs.compute_j=20 %"), 1),
        (("--tolerance", "energy_j=0.1 % or 1e3", "--tolerance", "jobs.compute_j=1e3"), 0),
    ],
)
def test_tolerances_of_the_command_line(here: Path, words: tuple[str, ...], code: int) -> None:
    """Computing adds 3.5 W to idle power where it added 3 W."""
    replace(here / "base.toml", 'busy = "4 W"', 'busy = "4.5 W"')
    done = call("check", "golden", *words)
    assert done.code == code, done.out + done.err


def test_tolerances_beside_the_tables_may_be_of_jobs_and_both_kinds(here: Path) -> None:
    replace(here / "base.toml", 'busy = "4 W"', 'busy = "4.5 W"')
    replace(
        here / "golden/golden.toml", "[tolerances]", '[tolerances]\nenergy_j = "30 % or 1"\n"jobs.compute_j" = "20 %"'
    )
    assert call("check", "golden").code == 0


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("loss=1",), "--tolerance: 'loss' is no column of these golden tables (energy_j, flops, sim_time_s, rounds@0"),
        (("jobs.outcome=1",), "--tolerance: 'jobs.outcome' is no column of these golden tables ("),
        (("energy_j",), "--tolerance: must be COLUMN=VALUE, such as \"energy_j=1 %\", got 'energy_j'"),
        (
            ("energy_j=much",),
            "--tolerance: energy_j: must be a number in the unit of the column, a share such as '5 %'",
        ),
        (("energy_j=1", "energy_j=2"), "--tolerance: 'energy_j' is given twice"),
    ],
)
def test_tolerances_that_are_none(here: Path, words: tuple[str, ...], says: str) -> None:
    code, out, err = call("check", "golden", *(part for word in words for part in ("--tolerance", word)))
    assert (code, out, err.count("\n")) == (2, "", 1) and err.startswith(f"error: {says}")


def test_a_change_from_nothing_has_no_share() -> None:
    assert in_words(Difference("late", 0.0, 2.0)) == "late: stored 0, found 2 (allowed: equal)"
    assert in_words(Difference("rounds@0.3", None, 2.0, "1")) == "rounds@0.3: stored nothing, found 2 (allowed: 1)"


# --- any size, or a scenario ------------------------------------------------------------------------------------


@full
def test_golden_tables_of_another_size(here: Path) -> None:
    """The large size has both seeds and two rounds; what it keeps is compared with what it gives."""
    (here / "study.toml").write_text(STUDY + '\n[sizes.large]\noverrides = ["stop.rounds=2"]\n')
    (here / "large").mkdir()
    (here / "large/golden.toml").write_text('study = "../study.toml"\nsize = "large"\n[tolerances]\n"rounds@0.3" = 2\n')
    assert call("check", "large", "--update").out == "large: written, 4 cells\n"
    assert {row["round"] for row in rows_of(here / "large/jobs.csv")} == {"0", "1"}
    assert call("check", "large").out == "large: as stored (4 cells, 16 numbers, 16 jobs)\n"
    replace(here / "large/golden.toml", '"large"', '"huge"')
    says = "error: large/golden.toml: size: ../study.toml has no size 'huge' (it has quick, large)\n"
    assert call("check", "large") == Done(2, "", says)


def test_golden_tables_of_a_scenario_need_no_study(here: Path) -> None:
    (here / "alone").mkdir()
    (here / "alone/golden.toml").write_text('scenario = "../base.toml"\n')
    replace(here / "base.toml", "stop =", 'backend = "null"\nstop =')
    assert call("check", "alone", "--update").out == "alone: written, 1 cells\n"
    [row] = rows_of(here / "alone/cells.csv")
    assert list(row) == ["cell", "sim_time_s", "energy_j", "down_bytes", "up_bytes", "flops"]
    assert row["cell"] == "seed=1"
    assert call("check", "alone").code == 0
    replace(here / "base.toml", 'busy = "4 W"', 'busy = "4.5 W"')
    code, out, _ = call("check", "alone", "--junit", "check.xml")
    assert code == 1 and "energy_j" in out and "up_bytes" not in out
    [case] = cases_of(here / "check.xml").values()
    assert case.result[0].message.startswith("scenario base.toml, cell seed=1: energy_j: stored ")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "study: give a study or a scenario, one of them"),
        ('study = "../study.toml"\nscenario = "../base.toml"', "scenario: give a study or a scenario, one of them"),
        ('scenario = "../base.toml"\nsize = "quick"', "size: belongs to a study"),
        ('scenario = "../base.toml"\nonly = ["seed=1"]', "only: belongs to a study"),
        ('study = "../study.toml"\ncolumns = ["flops"]', "columns: belongs to a scenario; a study names its own"),
        ('scenario = "../base.toml"\ncolumns = ["flop"]', "columns: unknown column 'flop'"),
        ('scenario = "../base.toml"\ncolumns = ["accuracy"]', "tolerances: 'accuracy' needs one, such as 0.02"),
        ('scenario = "../bare.toml"', "scenario: "),
        (
            'study = "../study.toml"\n[tolerances]\n"jobs.outcome" = 1',
            "tolerances: 'jobs.outcome' is no number that is",
        ),
    ],
)
def test_a_golden_that_is_none(here: Path, text: str, says: str) -> None:
    (here / "golden/golden.toml").write_text(text + "\n")
    with pytest.raises(ConfigError, match=re.escape(f"golden.toml: {says}")):
        load_golden(here / "golden")


# --- update -----------------------------------------------------------------------------------------------------


def test_an_update_shows_what_moved_and_passes(here: Path) -> None:
    replace(here / "base.toml", 'busy = "4 W"', 'busy = "4.5 W"')
    stored = rows_of(here / "golden/cells.csv")[0]["energy_j"]
    code, out, _ = call("check", "golden", "--update", *FILES)
    assert code == 0 and out.startswith("golden: written, 2 cells; 2 numbers, 4 jobs moved\n")
    now = rows_of(here / "golden/cells.csv")[0]["energy_j"]
    assert float(now) > float(stored)
    assert re.search(rf"{FAVG} +energy_j +{re.escape(stored)} +{re.escape(now)} +equal +\+", out)
    assert f"first of 2 differing jobs of cell {FAVG}: job " in out
    case = cases_of(here / "check.xml")[FAVG]
    assert case.result == [] and case.system_out.startswith(
        f"written anew: scenario base.toml, cell {FAVG}: energy_j: "
    )
    [golden] = json.loads((here / "check.json").read_text())["goldens"]
    assert (golden["written"], golden["agrees"], golden["cells"][0]["agrees"]) == (True, True, False)
    assert "| `golden` | tiny | 2 | written, 2 numbers, 4 jobs moved |" in (here / "check.md").read_text()
    assert call("check", "golden", "--update").out == "golden: written, 2 cells; nothing moved\n"


@full
def test_an_update_shows_what_moved_within_its_tolerance_too(here: Path) -> None:
    text = STUDY.replace(*LEARNED).replace('"flops"', '"flops", "accuracy"')
    (here / "study.toml").write_text(text)
    replace(here / "golden/golden.toml", "[tolerances]", "[tolerances]\naccuracy = 0.5")
    call("check", "golden", "--update")
    accuracy = rows_of(here / "golden/cells.csv")[0]["accuracy"]
    replace(here / "golden/cells.csv", f",{accuracy},", f",{float(accuracy) + 0.01},")
    assert call("check", "golden").code == 0
    assert call("check", "golden", "--update").out.startswith("golden: written, 2 cells; 1 number, 0 jobs moved\n")


@full
def test_an_update_over_tables_of_something_else_says_so(here: Path) -> None:
    replace(here / "golden/cells.csv", "schema 1", "schema 0")
    code, out, _ = call("check", "golden", "--update")
    assert code == 0
    assert out.startswith("golden: written, 2 cells; what was there: golden/cells.csv: must begin with ")
    assert call("check", "golden").code == 0


# --- diff -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "code"),
    [
        ((), 1),
        (("compute_j=20 %", "idle_j=0.1"), 1),  # sums over them, too
        (("jobs.compute_j=20 %", "devices.compute_j=20 %", *(f"{t}energy_j=20 %" for t in ("", "total_"))), 1),
        (
            ("compute_j=20 %", *(f"{t}{name}=20 %" for t in ("", "total_") for name in ("energy_j", "active_j")))
            + tuple(f"{t}participant_j=20 %" for t in ("", "total_")),
            0,
        ),
    ],
)
def test_diff_with_tolerances(here: Path, words: tuple[str, ...], code: int) -> None:
    for name, busy in {"a": "4 W", "b": "4.5 W"}.items():
        changes = ("--set", f"energy.busy={busy}", "--set", "backend=null", "--out", name, "--quiet")
        assert call("run", "base.toml", *changes).code == 0
    done = call("diff", "a", "b", *(part for word in words for part in ("--tolerance", word)))
    assert done.code == code, done.out + done.err
    assert (done.out == "equal within the tolerances\n") == (code == 0)


def test_diff_refuses_a_tolerance_of_no_column(here: Path) -> None:
    words = ("diff", f"runs/{FAVG}", f"runs/{FAVG}", "--tolerance")
    says = "error: --tolerance: these runs have no column 'joules', such as rounds.energy_j or accuracy\n"
    assert call(*words, "joules=1") == Done(2, "", says)
    assert call(*words, "rounds.energy_j=1 %") == Done(0, "equal within the tolerances\n", "")


def test_diff_within_a_tolerance_of_weights(here: Path) -> None:
    """Two seeds of one trained scenario: their weights lie far less than 100 apart, and their tables differ."""
    for name in ("a", "b"):
        assert (
            call("run", "base.toml", "--set", f"seed={len(name) if name == 'a' else 2}", "--out", name, "--quiet").code
            == 0
        )
    found = call("diff", "a", "b").out
    assert "weights final" in found
    assert "weights" not in call("diff", "a", "b", "--tolerance", "weights=100").out


@full
@pytest.mark.parametrize("broken", ["golden.toml", "cells.csv"])
def test_a_broken_golden_stops_no_other(here: Path, broken: str) -> None:
    """The goldens before and after it are compared, and the files of the check name it beside them."""
    for name in ("a", "b", "c"):
        shutil.copytree(here / "golden", here / name)
    (here / "b" / broken).write_text("nonsense [")
    done = call("check", "a", "b", "c", "--markdown", "it.md", "--junit", "it.xml")
    assert done.code == 2 and done.out.splitlines() == [
        f"{name}: as stored (2 cells, 8 numbers, 4 jobs)" for name in "ac"
    ]
    assert done.err.splitlines()[-1].startswith("error: 1 of 3 goldens are broken; b/")
    assert "Not everything was compared" in Path("it.md").read_text() and "`c`" in Path("it.md").read_text()
    assert [suite.name for suite in JUnitXml.fromfile("it.xml")] == ["a", "c", "edgesim check"]
    assert call("check", "b").err.startswith("error: b/")
