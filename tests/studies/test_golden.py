"""Golden tables: those of this project hold, a change is found and named, and broken ones are refused."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from edgesim.learning.models.base import Conv
from edgesim.learning.models.chains import CnnDigits
from edgesim.reports.compare import Tolerance
from edgesim.studies.golden import GoldenNumbers, load_golden, read_numbers, same, write_numbers
from tests.calling import Done, call
from tests.end_to_end.test_scenarios import skip_without_data
from tests.records.written import seal_again
from tests.sizes import full, thinned
from tests.studies.golden_project import GOLDEN, LEARNED, PROGRESS, STUDY, replace, rows_of
from tests.studies.test_study import contents

ROOT = Path(__file__).parents[2]
SHIPPED = sorted(path.parent.relative_to(ROOT) for path in ROOT.glob("golden/*/golden.toml"))


@pytest.fixture
def here(golden_here: Path) -> Path:
    """Go to a project with golden tables."""
    return golden_here


# --- this project's own -----------------------------------------------------------------------------------------


def test_there_are_golden_tables() -> None:
    assert {path.name for path in SHIPPED} >= {
        "fedpmt_table_5_2",
        "fedpmt_table_5_3_timing",
        "quickstart",
        "fedadp_figure_3_2",
        *("async_shared", "wireless_cell", "gossip_graphs", "edge_servers", "hourly_prices", "solar_sensors"),
        *("dadpfl_waiting", "flower_app"),
    }


@pytest.mark.golden
@pytest.mark.parametrize(
    "folder",
    thinned(SHIPPED, [Path("golden/quickstart")]),
    ids=lambda folder: folder.name,
)
def test_what_was_stored_is_what_comes_out(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    code, out, err = call("check", folder)
    found = re.search(r"data\.name: .*", err)
    skip_without_data(f"error: {found[0]}" if found else "")
    assert (code, out.startswith(f"{folder}: as stored")) == (0, True), out + err


# --- what is found ----------------------------------------------------------------------------------------------


@full
def test_an_unchanged_project_agrees_and_its_tables_are_not_touched(here: Path) -> None:
    before = contents(here)
    assert call("check", "golden") == Done(0, "golden: as stored (2 cells, 8 numbers, 4 jobs)\n", PROGRESS)
    assert contents(here) == before


def test_a_constant_of_the_energy_model_is_named_with_column_job_and_both_values(here: Path) -> None:
    """Computing adds busy - idle: 3 W before, 3.5 W now, for the seconds that the first job computes."""
    first = rows_of(here / "golden/jobs.csv")[0]
    replace(here / "base.toml", 'busy = "4 W"', 'busy = "4.5 W"')
    code, out, _ = call("check", "golden")
    assert (code, out.splitlines()[0]) == (1, "golden: DIFFERS (2 cells, 8 numbers, 4 jobs)")
    head = "first of 2 differing jobs of cell method=fedavg,seed=1: "
    assert head + f"job {first['job']} (device {first['device']}, round 0, submodel full)\n" in out
    named = re.search(r"^    compute_j: stored (\S+), found (\S+)$", out, re.MULTILINE)
    assert named is not None and named[1] == first["compute_j"]
    assert float(named[2]) == pytest.approx(float(named[1]) * 3.5 / 3, rel=1e-12)
    energy = [line.split() for line in out.splitlines() if "energy_j" in line]
    assert [words[:2] for words in energy] == [["method=fedavg,seed=1", "energy_j"], ["method=thin,seed=1", "energy_j"]]
    assert energy[0][2] == rows_of(here / "golden/cells.csv")[0]["energy_j"] and energy[0][4] == "equal"


def test_a_layer_of_a_model_is_named_with_column_job_and_both_values(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Multiply-adds of cnn_digits: 64 x 9 x 16, then 16 x 144 for every channel of the second convolution, 4 x 10 for
    each in the last layer. A training step takes three times these but for the input gradient of the first layer.
    """

    def flops(channels: int) -> int:
        first, others = 64 * 9 * 16, (16 * 144 + 4 * 10) * channels
        return 50 * 2 * (3 * (first + others) - first)

    monkeypatch.setattr(CnnDigits, "convs", (Conv(16, 3, padding=1), Conv(33, 3, padding=1)))
    code, out, _ = call("check", "golden")
    assert code == 1 and f"    flops: stored {flops(32)}, found {flops(33)}\n" in out
    cells = [line.split()[:5] for line in out.splitlines() if line.split()[:2] == ["method=fedavg,seed=1", "flops"]]
    assert cells == [["method=fedavg,seed=1", "flops", str(2 * flops(32)), str(2 * flops(33)), "equal"]]


@pytest.mark.parametrize(
    ("kept", "say"), [(1, "was found but is not stored"), (3, "is stored but was not found")], ids=["new", "gone"]
)
def test_a_job_without_a_partner(here: Path, kept: int, say: str) -> None:
    """A stored row is taken away, or a third job is stored beside two."""
    path = here / "golden/jobs.csv"
    first, header, *rows = path.read_text().splitlines()
    third = re.sub(r'^("[^"]*"),\d+,', r"\1,7,", rows[0])
    path.write_text("\n".join([first, header, *([third, *rows] if kept == 3 else rows[1:])]) + "\n")
    code, out, _ = call("check", "golden")
    number = 7 if kept == 3 else int(rows[0].split('"')[2].split(",")[1])
    assert (code, f"job {number} (device " in out, out.count(say)) == (1, True, 1)


@full
def test_jobs_of_the_first_rounds_only(here: Path) -> None:
    """What differs later shows in the columns, and the report says that the jobs that are kept do not differ."""
    replace(here / "base.toml", "rounds = 1", "rounds = 3")
    replace(here / "golden/golden.toml", 'toml"', 'toml"\nrounds = 1')
    call("check", "golden", "--update")
    assert {row["round"] for row in rows_of(here / "golden/jobs.csv")} == {"0"}
    replace(here / "base.toml", "rounds = 3", "rounds = 2")
    code, out, _ = call("check", "golden")
    assert (code, out.splitlines()[-1]) == (1, "  no job of the first 1 rounds, which are kept, differs")


@full
def test_what_is_learned_has_a_tolerance(here: Path) -> None:
    """Stored accuracies are moved by 0.01 and by 0.03, with a tolerance of 0.02."""
    text = STUDY.replace(*LEARNED).replace('"flops"', '"flops", "accuracy"')
    (here / "study.toml").write_text(text)
    replace(here / "golden/golden.toml", "[tolerances]", "[tolerances]\naccuracy = 0.02")
    call("check", "golden", "--update")
    [stored, _] = rows_of(here / "golden/cells.csv")
    for move, code in ((0.01, 0), (0.03, 1)):
        moved = str(float(stored["accuracy"]) + move)
        replace(here / "golden/cells.csv", f",{stored['accuracy']},", f",{moved},")
        done = call("check", "golden")
        replace(here / "golden/cells.csv", f",{moved},", f",{stored['accuracy']},")
        assert done.code == code, done.out
    assert re.search(rf"accuracy +{moved} +{stored['accuracy']} +0\.02", done.out)
    assert done.out.endswith("no job differs\n")


@pytest.mark.parametrize(
    ("stored", "found", "equal"),
    [
        (0.1 + 0.2, 0.3, True),  # the last bit
        (26.4, 26.4 * (1 + 1e-11), False),
        (1e13, 1e13 + 1, False),  # a FLOP of ten tera
        (50.0, 50.00000000000001, True),
        (7, 7, True),
        (7, 8, False),
        ("ok", "late", False),
        (None, None, True),
        (None, 3.0, False),
        (3.0, None, False),
        (3.0, float("nan"), False),
    ],
)
def test_what_counts_as_equal(stored: Any, found: Any, equal: bool) -> None:
    assert same(stored, found) == equal


@pytest.mark.parametrize(("found", "near"), [(108.0, True), (92.0, True), (111.0, False), (float("nan"), False)])
def test_tolerances(found: float, near: bool) -> None:
    assert Tolerance(10).allows(100.0, found) == near
    assert Tolerance(relative=0.1).allows(100.0, found) == near


# --- writing and reading ----------------------------------------------------------------------------------------


def test_floats_come_back_to_the_last_digit(here: Path) -> None:
    golden = load_golden(here / "golden")
    job = {"submodel": "a, b", "outcome": "ok"} | dict.fromkeys(
        ("job", "device", "round", "down_bytes", "up_bytes"), 2**53
    )
    times = {name: 0.1 + 0.2 for name in ("end_s", "flops", "down_j", "compute_j", "up_j", "peer_j", "link_j")}
    row = {"energy_j": 1 / 3, "flops": 1e23, "sim_time_s": 5e-324, "rounds@0.3": None}
    names = [cell.name for cell in golden.cells]
    numbers = GoldenNumbers(dict.fromkeys(names, row), {name: [job | times] for name in names})
    write_numbers(golden, numbers)
    assert read_numbers(golden) == numbers


def test_an_intended_change_is_taken_over(here: Path) -> None:
    replace(here / "base.toml", 'busy = "4 W"', 'busy = "4.5 W"')
    assert call("check", "golden").code == 1
    assert call("check", "golden", "--update").code == 0
    assert call("check", "golden").code == 0


@full
def test_none_named_means_all_of_the_project(here: Path) -> None:
    says = "error: golden/: no golden tables (*/golden.toml) in the current folder; name some: edgesim check FOLDER\n"
    assert call("check") == Done(2, "", says)
    for name in ("a", "b"):
        (here / "golden" / name).mkdir()
        (here / "golden" / name / "golden.toml").write_text(GOLDEN.replace("../", "../../"))
    assert call("check", "--update").out == "golden/a: written, 2 cells\ngolden/b: written, 2 cells\n"
    code, out, _ = call("check")
    assert (code, [line.partition(" (")[0] for line in out.splitlines()]) == (
        0,
        ["golden/a: as stored", "golden/b: as stored"],
    )


# --- given runs -------------------------------------------------------------------------------------------------


def test_given_runs_are_compared_as_they_are_and_this_is_said(here: Path) -> None:
    says = "compared with {}; nothing was run again\n"
    every, one = "runs", "runs/method=thin,seed=1"
    out = "golden: as stored (2 cells, 8 numbers, 4 jobs)\n"
    assert call("check", "golden", "--from", every) == Done(0, out, says.format(every))
    out = "golden: as stored (1 cells, 4 numbers, 2 jobs)\n"
    assert call("check", "golden", "--from", one) == Done(0, out, says.format(one))
    replace(here / "golden/cells.csv", 'seed=1",', 'seed=1",1')
    assert call("check", "golden", "--from", every).code == 1


@full
def test_a_golden_that_cannot_run_keeps_no_other_from_its_check(here: Path) -> None:
    (here / "broken").mkdir()
    for name in ("cells.csv", "jobs.csv", "golden.toml"):
        (here / "broken" / name).write_text((here / "golden" / name).read_text())
    (here / "broken.toml").write_text(STUDY.replace("fedavg = []", 'fedavg = ["peers=ring"]'))
    replace(here / "broken/golden.toml", "../study.toml", "../broken.toml")
    code, out, err = call("check", "broken", "golden")
    assert (code, out) == (2, "golden: as stored (2 cells, 8 numbers, 4 jobs)\n")
    fault = "broken: method=fedavg,seed=1: peers: fedavg has a server"
    assert err.splitlines()[-1].startswith(f"error: 1 of 2 goldens could not be run; {fault}")


# --- bad input --------------------------------------------------------------------------------------------------


class Bad(NamedTuple):
    """A mistake, and what the line about it says after "error: ".

    `old`: what to replace in the file, a pattern (none: all of it); `new` None: the file is removed.
    """

    says: str
    file: str = ""
    old: str = ""
    new: str | None = ""
    words: tuple[str, ...] = ("golden",)


SETTINGS, CELLS, JOBS = "golden/golden.toml", "golden/cells.csv", "golden/jobs.csv"
ANEW = "; to write it anew: edgesim check golden --update"
RUN = "runs/method=fedavg,seed=1"
FROM = ("golden", "--from", "runs")
ONE = ("golden", "--from", RUN)
VALUE = r'(?<==1",)[^,]*'  # the first one of a row
BAD = {
    "key": Bad(
        f"{SETTINGS}: tolerance: unknown key; did you mean 'tolerances'?", SETTINGS, r"\[tolerances", "[tolerance"
    ),
    "no TOML": Bad(f"{SETTINGS}: not valid TOML", SETTINGS, r"\[tolerances\]", "[tolerances"),
    "no such golden": Bad("nowhere/golden.toml: cannot be read: No such file", words=("nowhere",)),
    "no such study": Bad("golden/../stud.toml: cannot be read: No such file", SETTINGS, "study.toml", "stud.toml"),
    "axis of no key": Bad(
        "golden/../study.toml: size quick, cell method=fedavg,sed=1: sed: unknown key; did you mean 'seed'?",
        "study.toml",
        r"seed = \[1, 2\](?s:.*)",
        "sed = [1]\n[sizes.quick]",
    ),
    "no quick size": Bad(
        f"{SETTINGS}: size: ../study.toml has no size 'quick' (it has small)",
        "study.toml",
        "sizes.quick",
        "sizes.small",
    ),
    "no such cell": Bad(
        f"{SETTINGS}: only 'seed=3': no cell has seed=3 (seed: 1, 2)", SETTINGS, r"\[t", 'only = ["seed=3"]\n[t'
    ),
    "tolerance of no column": Bad(
        f"{SETTINGS}: tolerances: 'loss' is no column of the study (",
        SETTINGS,
        r"\]\n",
        "]\nloss = 1\n",
    ),
    "tolerance below 0": Bad(f"{SETTINGS}: tolerances.rounds@0.3: must be a number in", SETTINGS, "= 2", "= -2"),
    "tolerance in words": Bad(
        f"{SETTINGS}: tolerances.rounds@0.3: must be a number in the unit of the column, a share such as '5 %', or "
        "both as in '5 % or 0.1'; got '2 rounds'",
        SETTINGS,
        "= 2",
        "= '2 rounds'",
    ),
    "learned but exact": Bad(
        f"{SETTINGS}: tolerances: 'rounds@0.3' needs one, such as 0.02", SETTINGS, '"rounds@0.3" = 2', ""
    ),
    "not written yet": Bad(f"{CELLS}: not there yet{ANEW}", CELLS, new=None),
    "empty": Bad(f"{JOBS}: must begin with '# edgesim golden table, schema 1, of", JOBS, r"(?s:.+)"),
    "of another study": Bad(
        f"{CELLS}: must begin with '# edgesim golden table, schema 1, of the study \"tiny\"', found '# edgesim golden",
        CELLS,
        '"tiny"',
        '"huge"',
    ),
    "older schema": Bad(f"{JOBS}: must begin with '# edgesim golden table, schema 1", JOBS, "schema 1", "schema 0"),
    "missing column": Bad(f"{CELLS}: has no column 'flops'{ANEW}", CELLS, "flops", "flop"),
    "missing column of jobs": Bad(f"{JOBS}: has no column 'end_s'{ANEW}", JOBS, "end_s", "ends"),
    "missing cell": Bad(f"{CELLS}: has no row of cell method=fedavg,seed=2{ANEW}", "study.toml", r'\["seed=1"\]', "[]"),
    "cell of another study": Bad(
        f"{JOBS} line 3: 'method=slim,seed=1' is no cell of golden{ANEW}", JOBS, "method=fedavg", "method=slim"
    ),
    "cell twice": Bad(f"{CELLS} line 4: cell method=fedavg,seed=1 has a row already", CELLS, "=thin", "=fedavg"),
    "job twice": Bad(
        f"{JOBS} line 5: job 0 of cell method=fedavg,seed=1 has a row already",
        JOBS,
        r'(\n"method=fedavg,seed=1",0,.*)',
        r"\1\1",
    ),
    "rounds that are true": Bad(
        f"{SETTINGS}: rounds: must be a whole number, got True", SETTINGS, r"^", "rounds = true\n"
    ),
    "short row": Bad(f"{CELLS} line 3: has not as many values as the header has names", CELLS, f"{VALUE},", ""),
    "text for a number": Bad(f"{JOBS} line 3: job must be a number, got 'x'", JOBS, VALUE, "x"),
    "NaN in an exact column": Bad(f"{CELLS} line 3: energy_j must be a finite number, got nan", CELLS, VALUE, "nan"),
    "nothing in an exact column": Bad(f"{CELLS} line 3: energy_j has no number", CELLS, VALUE, ""),
    "NaN in a job": Bad(f"{JOBS} line 3: end_s must be a finite number, got nan", JOBS, "(?<=,ok,)[^,]*", "nan"),
    "half-written run": Bad(f"{RUN}: not a run folder: no jobs.parquet", f"{RUN}/jobs.parquet", new=None, words=FROM),
    "cut table": Bad(f"{RUN}/jobs.parquet: damaged: its SHA-256", f"{RUN}/jobs.parquet", new="PAR1", words=ONE),
    "interrupted run": Bad(
        f"{RUN}: not a finished run; manifest.json has the status 'interrupted'",
        f"{RUN}/manifest.json",
        '"finished"',
        '"interrupted"',
        FROM,
    ),
    "run of another scenario": Bad(
        f"{RUN}: is a run of another scenario than that of cell method=fedavg,seed=1", "base.toml", "4 W", "5 W", FROM
    ),
    "run of no cell": Bad(f"{RUN}: is a run of none of the 2 cells", "base.toml", "4 W", "5 W", ONE),
    "two goldens": Bad("--from: compares one golden with that run; name one, without", words=("golden", *FROM)),
    "update from runs": Bad("--from: compares one golden with", words=(*FROM, "--update")),
}


@pytest.mark.parametrize("bad", BAD.values(), ids=BAD)
def test_bad_input_is_one_line_and_overwrites_nothing(here: Path, bad: Bad) -> None:
    path = here / bad.file
    if bad.new is None:
        path.unlink()
    elif bad.old:
        text, changes = re.subn(bad.old, bad.new, path.read_text(), count=1)
        assert changes == 1
        path.write_text(text)
        if path.name == "manifest.json":
            seal_again(path.parent)
    elif bad.file:
        path.write_text(bad.new)
    before = contents(here)
    code, out, err = call("check", *bad.words)
    assert (code, out) == (2, "")
    assert err.startswith("error: " + bad.says) and err.count("\n") == 1
    assert contents(here) == before


def test_what_has_no_number_cannot_be_stored_as_exact(here: Path) -> None:
    """Without a round no round has a mean length; nothing is overwritten."""
    replace(here / "study.toml", '"flops"', '"flops", "round_s"')
    replace(here / "base.toml", "rounds = 1", "sim_time = '1 ms'")
    before = contents(here)
    says = "error: golden: cell method=fedavg,seed=1: round_s has no number, and no tolerance in golden.toml that would"
    code, out, err = call("check", "golden", "--update")
    assert (code, out) == (2, "") and err.splitlines()[-1].startswith(says)
    assert contents(here) == before
