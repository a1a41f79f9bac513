"""Claims of papers are judged by runs: reproduced, refuted, undecided or not run, and nothing is taken on trust."""

from __future__ import annotations

import csv
import tomllib
from pathlib import Path

import pytest

from edgesim.studies.claims.claim import ELSEWHERE, Claim, ClaimsFile, load_claims, read_results
from edgesim.studies.claims.judge import ClaimVerdict, Judgement, cells_for, judge
from edgesim.studies.claims.page import effects
from edgesim.studies.study import Study, read_fixed, study_of
from tests.calling import TINY, Done, call
from tests.sizes import full
from tests.studies.made_up import values

# All four devices take part; those of "slow" compute at half of the speed of "fast", and links take no time.
STUDY = """
name = "tiny"
base = "base.toml"
without = ["data"]
overrides = ["partition=sizes", "backend=null", "network=ideal", "selection=all"]
columns = ["round_s", "flops"]

[axes.speed]
slow = ["fleet.0.cpu.flops_per_s='50 MFLOP/s'", "fleet.1.cpu.flops_per_s='50 MFLOP/s'"]
fast = ["fleet.0.cpu.flops_per_s='100 MFLOP/s'", "fleet.1.cpu.flops_per_s='100 MFLOP/s'"]

[axes]
seed = [1, 2]

[sizes]
full = {}
never = { overrides = ["stop={ rounds = 2 }"] }

[[published]]
cell = { speed = "slow" }
column = "round_s"
value = 1e9
"""
CLAIMS = """
paper = "A paper"
source = "Nobody (2026)."

[[claims]]
id = "twice"
where = "Table 1"
says = "Half of the speed takes twice the time."
study = "study.toml"
ratio = { column = "round_s", first = { speed = "slow" }, than = { speed = "fast" }, value = 2, within = 1e-9 }

[[claims]]
id = "faster"
where = "text"
says = "The slow are faster."
study = "study.toml"
order = { column = "round_s", first = { speed = "slow" }, than = { speed = "fast" }, first_is = "lower" }

[[claims]]
id = "published"
where = "Table 2"
says = "A round takes a billion seconds."
study = "study.toml"
number = { columns = ["round_s"], within = 0.1 }
why = "It is wrong."

[[claims]]
id = "later"
where = "Table 3"
says = "Nobody ran this."
study = "study.toml"
size = "never"
number = { columns = ["round_s"], below = 1 }

[[claims]]
id = "nowhere"
where = "Table 4"
says = "Needs a laboratory."
cannot = "there is no laboratory"
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Go to a folder with claims and a study that was not run."""
    monkeypatch.chdir(tmp_path)
    for name, text in {"base.toml": TINY, "study.toml": STUDY, "claims.toml": CLAIMS}.items():
        (tmp_path / name).write_text(text)
    return tmp_path


def run() -> None:
    """Run the study where its runs are looked for."""
    assert call("study", "run", "study.toml", "--size", "full").code == 0


def rows(page: str) -> dict[str, list[str]]:
    """Return the cells of a page's rows by the ids of their claims."""
    cells = [line.strip("| ").split(" | ") for line in page.splitlines() if "<a id='" in line]
    return {each[0].split("'")[1]: each for each in cells}


def csv_rows(*words: str) -> dict[str, dict[str, str]]:
    """Return the rows that the command writes as CSV, by the ids of their claims."""
    done = call("study", "claims", "claims.toml", "--csv", "rows.csv", *words)
    assert done.code == 0 and "(rows.csv)" in done.out and 'data-csv="rows.csv"' in done.out, done.err
    return {each["id"]: each for each in csv.DictReader(Path("rows.csv").read_text().splitlines())}


def test_the_page_says_what_the_runs_say(here: Path) -> None:
    run()
    assert call("study", "claims", "claims.toml", "--out", "page.md") == (
        Done(0, "", "page.md: 1 reproduced, 2 refuted, 1 not run, 1 no test here\n")
    )
    found = rows((here / "page.md").read_text())
    assert found["twice"][2:4] == ["reproduced", "paper's"]
    effect = "slow against fast: 2 [2, 2], claimed 2 (2 seeds)"
    assert found["twice"][4] == f"*exactly*<br>{effect}<br><small>`study`, full</small>"
    assert found["faster"][2] == "refuted"
    assert found["published"][2] == "refuted" and found["published"][4].startswith("*within 10 %")
    assert found["published"][1].endswith("<br><small>It is wrong.</small>")
    assert found["later"][2:] == ["not run", "`study`, never"]
    assert found["nowhere"][2] == "cannot be run here: there is no laboratory"


def test_without_runs_nothing_is_judged(here: Path) -> None:
    done = call("study", "claims", "claims.toml")
    assert (done.code, done.err) == (0, "")
    assert "The 5 claims of 1 paper, each" in done.out
    assert "| not run | 4 |  |  |  |\n| no test here | 1 |  |  |  |\n" in done.out
    assert 'aria-label="A paper: 5 without runs"' in done.out
    assert {each[2] for each in rows(done.out).values()} == {"not run", "cannot be run here: there is no laboratory"}


def test_hours_of_runs_that_are_missing(here: Path) -> None:
    done = call("study", "claims", "claims.toml", "--hours")
    assert done.code == 0 and rows(done.out)["later"][2].startswith("not run: needs about ")


@full
def test_results_stand_in_for_runs_that_are_gone(here: Path) -> None:
    run()
    words = ("study", "claims", "claims.toml", "--results", "results.csv")
    judged = rows(call(*words, "--record").out)
    first = (here / "results.csv").read_text()
    assert len(first.splitlines()) == 1 + 4  # two speeds, two seeds, one column that claims are about
    (here / "runs").rename(here / "gone")
    assert rows(call(*words).out)["twice"] == judged["twice"]
    assert csv_rows("--results", "results.csv")["twice"]["status"].startswith("**reproduced** exactly; recorded: ")
    assert call(*words, "--record").code == 0 and (here / "results.csv").read_text() == first


@full
def test_runs_of_another_scenario_are_none(here: Path) -> None:
    run()
    (here / "study.toml").write_text(STUDY.replace("'50 MFLOP/s'", "'60 MFLOP/s'"))
    assert rows(call("study", "claims", "claims.toml").out)["twice"][2] == "not run"


@full
def test_a_smaller_study_stands_in_and_is_called_so(here: Path) -> None:
    run()
    text = CLAIMS.replace('size = "never"\n', 'size = "never"\nsmaller = [{ study = "study.toml", size = "full" }]\n')
    (here / "claims.toml").write_text(text)
    found = csv_rows()["later"]
    assert "smaller scale" in found["status"] and found["scale"] == "smaller"
    assert found["command"] == "edgesim study run study.toml --size full"


@full
def test_a_smaller_study_may_test_a_claim_in_some_cells_alone(here: Path) -> None:
    """Labels of axes of its own choose them; the command says so, and a label that it lacks is refused."""
    run()
    cut = CLAIMS.replace('columns = ["round_s"], below = 1 }', 'columns = ["round_s"], below = 3 }')
    found = {}
    for cell in ("", ', cell = { speed = "fast" }', ', cell = { speed = "none" }'):
        more = f'smaller = [{{ study = "study.toml", size = "full"{cell} }}]\n'
        (here / "claims.toml").write_text(cut.replace('size = "never"\n', f'size = "never"\n{more}'))
        found[cell] = call("study", "claims", "claims.toml", "--csv", f"{len(found)}.csv")
    both, fast, none = found.values()
    assert rows(both.out)["later"][2] == "refuted"
    assert rows(fast.out)["later"][2] == "reproduced so far (1 of 2)"  # of the two cells that the paper has
    assert "study run study.toml --size full --only speed=fast" in (here / "1.csv").read_text()
    assert none.code == 2 and "claim 'later': study.toml: smaller.cell: no cell has speed=none" in none.err


@full
def test_a_smaller_study_may_compare_another_column(here: Path) -> None:
    """The slow take twice the time for the same FLOPs. A claim about numbers has columns of its own."""
    run()
    number = 'number = { columns = ["round_s"], below = 1 }'
    ratio = (
        'ratio = { column = "round_s", first = { speed = "slow" }, than = { speed = "fast" }, value = 1, within = 0.1 }'
    )

    def claim(column: str, rule: str = ratio) -> None:
        more = f'smaller = [{{ study = "study.toml", size = "full"{column} }}]'
        text = CLAIMS.replace('size = "never"\n', f'size = "never"\n{more}\n').replace(number, rule)
        (here / "claims.toml").write_text(text)

    claim("")
    assert csv_rows()["later"]["status"].startswith("**refuted** within 10 %; smaller scale; runs of ")
    claim(', column = "flops"')
    status = csv_rows()["later"]["status"]
    assert status.startswith("**reproduced** within 10 %; smaller scale, by `flops`; runs of ")
    claim(', column = "flopz"')
    assert "unknown column 'flopz'" in call("study", "claims", "claims.toml").err
    claim(', column = "flops"', number)
    refused = call("study", "claims", "claims.toml")
    assert refused.code == 2 and "claim 'later': smaller.column: goes with a claim about one column" in refused.err


@full
def test_a_chosen_reading_is_named_with_the_others(here: Path) -> None:
    """The slow are not faster. If fast is read as slow, they are; a third reading was not run."""
    run()
    readings = """readings = [
        { says = "as printed" },
        { says = "the other way round", instead = { slow = "fast", fast = "slow" } },
        { says = "two rounds", study = "study.toml", size = "never" },
    ]"""
    old = 'says = "The slow are faster."\n'
    (here / "claims.toml").write_text(CLAIMS.replace(old, f"{old}{readings}\n"))
    row = csv_rows()["faster"]
    assert row["verdict"] == "refuted under reading 1 of 3"
    told = "reading 1: as printed; reading 2: the other way round: reproduced; reading 3: two rounds: not run"
    assert told in row["status"]
    (here / "claims.toml").write_text(CLAIMS.replace(old, f"{old}{readings.replace('fast = ', 'fats = ')}\n"))
    assert call("study", "claims", "claims.toml").code == 0  # a label that the rule does not have is no label
    wrong = readings.replace('fast = "slow"', 'fast = "slov"')
    (here / "claims.toml").write_text(CLAIMS.replace(old, f"{old}{wrong}\n"))
    says = "reading 'the other way round': study.toml: no cell has speed=slov"
    assert says in call("study", "claims", "claims.toml").err

    named = f'{old}readings = "ways"\n'
    shared = CLAIMS.replace("[[claims]]", f"[readings]\n{readings.replace('readings =', 'ways =')}\n[[claims]]", 1)
    (here / "claims.toml").write_text(shared.replace(old, named))
    assert csv_rows()["faster"] == row
    (here / "claims.toml").write_text(shared.replace(old, named.replace("ways", "way")))
    refused = call("study", "claims", "claims.toml")
    assert refused.code == 2
    assert "claims.toml: claim 'faster': readings: [readings] has no 'way' (known: ways)" in refused.err


def test_numbers_of_other_programs_are_judged(here: Path) -> None:
    """A crossing without an interval, and a correlation with one."""
    more = 'elsewhere = "python theta.py"\nnumber = { columns = ["theta"], value = 0.2, within = 0.25 }'
    (here / "claims.toml").write_text(CLAIMS.replace('cannot = "there is no laboratory"', more))
    for lines, verdict in (
        ("nowhere,elsewhere,to=a,,theta,0.21,yes,,2026-01-01,\n", "reproduced"),
        ("nowhere,elsewhere,to=a,,theta,0.45,yes,,2026-01-01,\n", "refuted"),
        ("nowhere,elsewhere,to=a,1,theta,0.21,yes,,2026-01-01,\n", "within on the mean, one seed"),
        (
            "nowhere,elsewhere,,,theta,0.21,yes,,,p\nnowhere,elsewhere,,,theta.low,0.1,yes,,,p\n"
            "nowhere,elsewhere,,,theta.high,0.3,yes,,,p\n",
            "within on the mean",
        ),
    ):
        (here / "results.csv").write_text(HEADER + lines)
        assert csv_rows("--results", "results.csv")["nowhere"]["verdict"] == verdict


# --- verdicts ---------------------------------------------------------------------------------------------------

LEARNED = {
    "name": "learned",
    "columns": ["best_accuracy", "rounds@0.9"],
    "axes": {"method": {"a": ["training.lr=0.1"], "b": ["training.lr=0.2"]}, "seed": [1, 2, 3]},
    "sizes": {"full": {}},
    "published": [{"cell": {"method": "a"}, "column": "best_accuracy", "value": 0.5}],
}


def claim_of(rule: str) -> tuple[Claim, Study]:
    """Return a claim with a rule, and the study that tests it."""
    table = f"id = 'x'\nwhere = 'x'\nsays = 'x'\nstudy = 'x'\n{rule}"
    study: Study = study_of({**LEARNED, "base": tomllib.loads(TINY)}, Path())
    return Claim.model_validate(tomllib.loads(table)), study


def found(rule: str, numbers: dict[tuple[str, ...], str]) -> Judgement:
    """Judge a claim by numbers of seeds 1 to 3."""
    claim, study = claim_of(rule)
    return judge(claim, study, "full", values(("method",), numbers))


ORDER = "order = { column = 'COLUMN', first = { method = 'a' }, than = { method = 'b' }, first_is = 'higher' }"


# Student's t with two degrees of freedom: the interval is the mean, give or take 4.302653 standard errors.
@pytest.mark.parametrize(
    ("numbers", "verdict", "low"),
    [
        ("0.62 0.71 0.83", ClaimVerdict.REPRODUCED, 0.12 - 4.302653 * 0.01 / 3**0.5),  # differences 0.12 0.11 0.13
        ("0.6 0.6 0.59", ClaimVerdict.UNDECIDED, -0.0033333 - 4.302653 * 0.1050397 / 3**0.5),  # 0.1 0 -0.11
        ("0.6 0.7 0.71", ClaimVerdict.ORDER, 0.07 - 4.302653 * (0.0027 / 3) ** 0.5),  # 0.1 0.1 0.01
        ("0.4 0.5 0.61", ClaimVerdict.REFUTED, -0.0966667 - 4.302653 * 0.0057735 / 3**0.5),  # -0.1 -0.1 -0.09
        ("0.6", ClaimVerdict.ORDER, None),  # one seed: no interval
        ("0.4", ClaimVerdict.UNDECIDED, None),
    ],
)
def test_an_order_goes_by_paired_differences(numbers: str, verdict: ClaimVerdict, low: float | None) -> None:
    of = found(
        ORDER.replace("COLUMN", "best_accuracy"),
        {("a", "best_accuracy"): numbers, ("b", "best_accuracy"): "0.5 0.6 0.7"},
    )
    assert (of.verdict, len(of.effects), of.of) == (verdict, 1, 1)
    if low is not None:
        assert of.effects[0].low == pytest.approx(low, abs=2e-5)


def test_seeds_are_paired_by_name() -> None:
    of = found(
        ORDER.replace("COLUMN", "best_accuracy"), {("a", "best_accuracy"): "- 0.8", ("b", "best_accuracy"): "0.1 0.7"}
    )
    assert of.effects[0].seeds == ("2",) and of.effects[0].value == pytest.approx(0.1)


def test_who_never_arrives_is_not_called_faster() -> None:
    """Neither arrives in the 300 rounds of each: nothing is known of who would be first."""
    of = found(ORDER.replace("COLUMN", "rounds@0.9"), {("a", "rounds@0.9"): "300+", ("b", "rounds@0.9"): "300+"})
    assert of.verdict == ClaimVerdict.UNDECIDED and effects(of.effects) == "a against b: not known, cut to 0 (1 seed)"


@pytest.mark.parametrize(
    ("a", "b", "shown"),
    [
        ("100", "300+", "a against b: at most -200 (1 seed)"),
        ("300+", "100", "a against b: at least 200 (1 seed)"),
        ("100 110 90", "300+ 300+ 280", "a against b: at most -193.3 [-207.7, -179] (3 seeds)"),
        ("100", "280", "a against b: -180 (1 seed)"),
        ("100 300+", "300+ 280", "a against b: not known, cut to -90 [-1488, 1308] (2 seeds)"),
        ("320", "300+", "a against b: not known, cut to 0 (1 seed)"),
    ],
)
def test_a_difference_from_a_run_that_was_cut_off_is_a_bound(a: str, b: str, shown: str) -> None:
    """It is that of values cut at 300: what did not arrive by then would have taken longer."""
    of = found(ORDER.replace("COLUMN", "rounds@0.9"), {("a", "rounds@0.9"): a, ("b", "rounds@0.9"): b})
    assert effects(of.effects) == shown


@pytest.mark.parametrize(
    "rule",
    [
        "ratio = { value = 0.5, within = 0.25,",
        "ratio = { value = 0.9, within = 0.1,",
        "difference = { value = -100, within = 20,",
    ],
)
def test_of_who_was_cut_off_no_size_of_a_lead_is_known(rule: str) -> None:
    """Of b one run did not arrive: a's share of b's rounds is 0.5 at most, and may be any less."""
    sides = " column = 'rounds@0.9', first = { method = 'a' }, than = { method = 'b' } }"
    of = found(rule + sides, {("a", "rounds@0.9"): "100 150", ("b", "rounds@0.9"): "200 300+"})
    assert of.verdict == ClaimVerdict.UNDECIDED and of.effects[0].bound == "at most"


@pytest.mark.parametrize(
    ("rule", "numbers", "verdict"),
    [
        ("columns = ['best_accuracy'], within = 0.1", "0.46 0.465 0.47", ClaimVerdict.REPRODUCED),  # 0.453 ... 0.477
        ("columns = ['best_accuracy'], within = 0.1", "0.46 0.46 0.47", ClaimVerdict.WITHIN),  # 0.449 ... 0.478
        ("columns = ['best_accuracy'], within = 0.1", "0.46", ClaimVerdict.WITHIN),
        ("columns = ['best_accuracy'], within = 0.01", "0.46 0.46 0.47", ClaimVerdict.REFUTED),
        ("columns = ['best_accuracy'], within = 0.01", "0.3 0.5 0.6", ClaimVerdict.UNDECIDED),
        (
            "columns = ['best_accuracy'], within = 0.01",
            "0.3",
            ClaimVerdict.UNDECIDED,
        ),  # one seed refutes nothing learned
        (
            "cell = { method = 'a' }, columns = ['rounds@0.9'], value = 100, within = 0.1",
            "120+ 130+",
            ClaimVerdict.REFUTED,
        ),
        (
            "cell = { method = 'a' }, columns = ['rounds@0.9'], value = 100, within = 0.1",
            "100+ 90",
            ClaimVerdict.UNDECIDED,
        ),
        (
            "cell = { method = 'a' }, columns = ['rounds@0.9'], value = 100, within = 0.1",
            "90 300+",
            ClaimVerdict.UNDECIDED,
        ),
        ("cell = { method = 'a' }, columns = ['best_accuracy'], above = 0.4", "0.5 0.51", ClaimVerdict.REPRODUCED),
        ("cell = { method = 'a' }, columns = ['best_accuracy'], above = 0.4", "0.3 0.6", ClaimVerdict.ORDER),
        ("cell = { method = 'a' }, columns = ['best_accuracy'], below = 0.4", "0.5 0.51", ClaimVerdict.REFUTED),
    ],
)
def test_a_number_goes_by_its_mean_and_interval(rule: str, numbers: str, verdict: ClaimVerdict) -> None:
    column = "rounds@0.9" if "rounds" in rule else "best_accuracy"
    assert found(f"number = {{ {rule} }}", {("a", column): numbers}).verdict == verdict


# Per seed the mean share of the published 0.5 and 100 is 0.8, 0.85 and 0.75: 0.8 give or take 4.302653 * 0.05 / 3**0.5.
TOGETHER = """
[[published]]
cell = { method = "a" }
column = "rounds@0.9"
value = 100
"""


def test_numbers_may_miss_their_tolerance_together_though_each_alone_is_undecided() -> None:
    """Their mean is 0.676 to 0.924 of the published ones: outside 7 %, and not outside 10 %."""
    numbers = {("a", "best_accuracy"): "0.3 0.45 0.45", ("a", "rounds@0.9"): "100 80 60"}
    claims = [
        claim_of(f"number = {{ columns = ['best_accuracy', 'rounds@0.9'], within = {within} }}")
        for within in (0.07, 0.1)
    ]
    published = [*LEARNED["published"], *tomllib.loads(TOGETHER)["published"]]
    study = study_of({**LEARNED, "published": published, "base": tomllib.loads(TINY)}, Path())
    outside, inside = (judge(claim, study, "full", values(("method",), numbers)) for claim, _ in claims)
    assert {each.verdict for each in outside.effects} == {ClaimVerdict.UNDECIDED}
    assert (outside.verdict, inside.verdict) == (ClaimVerdict.REFUTED, ClaimVerdict.UNDECIDED)
    assert outside.together is not None
    reach = 4.302653 * 0.05 / 3**0.5
    assert outside.together[2:5] == pytest.approx((0.8, 0.8 - reach, 0.8 + reach), abs=1e-6)


def test_runs_without_an_interval_are_named() -> None:
    order = ORDER.replace("COLUMN", "best_accuracy")
    for label, says in (("0.6", "one seed"), ("0.6 0.61", "")):
        of = found(order, {("a", "best_accuracy"): label, ("b", "best_accuracy"): "0.5 0.5"})
        assert of.few == says
    of = found("number = { columns = ['flops'], below = 3 }", {("a", "flops"): "2"})
    assert (of.verdict, of.few) == (ClaimVerdict.REPRODUCED, "one run without training")
    of = found(ORDER.replace("COLUMN", "flops"), {("a", "flops"): "2", ("b", "flops"): "3"})
    assert of.verdict == ClaimVerdict.REFUTED


def test_gaps_to_a_third_side_are_compared() -> None:
    """Of the gap to c, seed by seed, that of a is 0.3 and 0.31, that of b 0.1 and 0.2."""
    methods = {name: [f"training.lr={rate}"] for name, rate in (("a", 0.1), ("b", 0.2), ("c", 0.3))}
    study = study_of({**LEARNED, "axes": {"method": methods, "seed": [1, 2]}, "base": tomllib.loads(TINY)}, Path())
    rule = ORDER.replace("COLUMN", "best_accuracy").replace("first_is", "gap_to = { method = 'c' }, first_is")
    claim, _ = claim_of(rule)
    numbers = {("a", "best_accuracy"): "0.6 0.59", ("b", "best_accuracy"): "0.8 0.7", ("c", "best_accuracy"): "0.9 0.9"}
    of = judge(claim, study, "full", values(("method",), numbers))
    assert of.effects[0].value == pytest.approx((0.2 + 0.11) / 2) and of.verdict == ClaimVerdict.ORDER
    assert {cell.labels["method"] for cell in cells_for(claim, study, "full")} == {"a", "b", "c"}


def test_one_pair_that_fails_refutes_a_claim_about_all() -> None:
    rule = (
        "order = { column = 'best_accuracy', first = { method = 'a' }, than = [{ method = 'b' }], first_is = 'lower' }"
    )
    of = found(rule, {("a", "best_accuracy"): "0.9 0.8", ("b", "best_accuracy"): "0.5 0.4"})
    assert (of.verdict, of.as_claimed) == (ClaimVerdict.REFUTED, 0)


def test_cells_that_are_left_out_are_no_part_of_a_claim() -> None:
    numbers = {("a", "best_accuracy"): "0.5 0.51", ("b", "best_accuracy"): "0.1 0.11"}
    all_, some = (
        f"number = {{ columns = ['best_accuracy'], above = 0.4{more} }}"
        for more in ("", ", leave_out = { method = 'b' }")
    )
    assert (found(all_, numbers).verdict, found(some, numbers).verdict) == (
        ClaimVerdict.REFUTED,
        ClaimVerdict.REPRODUCED,
    )
    assert {cell.labels["method"] for cell in cells_for(*claim_of(some), "full")} == {"a"}
    order = ORDER.replace("COLUMN", "best_accuracy")
    without = order.replace("first_is", "leave_out = { method = 'b' }, first_is")
    assert (found(order, numbers).of, found(without, numbers).of) == (1, 0)


# --- bad files --------------------------------------------------------------------------------------------------

BAD = {
    "no rule": ('ratio = { column = "round_s"', 'rato = { column = "round_s"', "unknown key; did you mean 'ratio'?"),
    "two rules": (
        "within = 1e-9 }",
        "within = 1e-9 }\nnumber = { columns = ['flops'], below = 1 }",
        "needs one of number",
    ),
    "no study and no reason": ('cannot = "there is no laboratory"', "", "needs one of study, cannot and elsewhere"),
    "no such label": ('speed = "fast" }, value', 'speed = "fats" }, value', "no cell has speed=fats (slow, fast)"),
    "no such label left out": (
        "value = 2, within",
        'leave_out = { speed = "no" }, value = 2, within',
        "no cell has speed=no",
    ),
    "no such column": ('columns = ["round_s"], within', 'columns = ["round"], within', "unknown column 'round'"),
    "no such size": ('size = "never"', 'size = "ever"', "unknown size 'ever' (known: full, never)"),
    "no such study": ('study = "study.toml"\nsize', 'study = "other.toml"\nsize', "other.toml: cannot be read"),
    "an id twice": ('id = "later"', 'id = "twice"', "two claims have the id 'twice'"),
    "no tolerance": ("value = 2, within = 1e-9", "value = 2", "within"),
    "no way to judge": (", below = 1 }", " }", "needs one of within, above and below"),
    "the sides name other axes": ('first = { speed = "slow" }, than = { speed = "fast" }, value', "value", "same axes"),
}


@pytest.mark.parametrize(("old", "new", "says"), BAD.values(), ids=BAD)
def test_a_bad_claims_file_is_one_line(here: Path, old: str, new: str, says: str) -> None:
    assert old in CLAIMS
    (here / "claims.toml").write_text(CLAIMS.replace(old, new))
    code, out, err = call("study", "claims", "claims.toml", "--out", "page.md")
    assert (code, out) == (2, "") and err.startswith("error: claims.toml: ") and says in err and err.count("\n") == 1, (
        err
    )
    assert not (here / "page.md").exists()


HEADER = "study,size,cell,seed,column,value,observed,revision,date,source\n"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("study,size\n", "line 1: the header must be"),
        (f"{HEADER}s,full,a=1,1,round_s,many,yes,,,\n", "line 2: value: must be a finite number, got 'many'"),
        (f"{HEADER}s,full,a=1,1,round_s,1,maybe,,,\n", "line 2: observed: must be yes or no, got 'maybe'"),
        (f"{HEADER}s,full,a,1,round_s,1,yes,,,\n", "line 2: cell: must be labels"),
        (f"{HEADER}s,full,a=1,1,seconds,1,yes,,,\n", "line 2: columns: unknown column 'seconds'"),
    ],
)
def test_a_bad_file_of_results_is_one_line(here: Path, text: str, says: str) -> None:
    (here / "results.csv").write_text(text)
    code, out, err = call("study", "claims", "claims.toml", "--results", "results.csv")
    assert (code, out) == (2, "") and err.startswith(f"error: results.csv {says}") and err.count("\n") == 1, err


def test_results_are_needed_to_record(here: Path) -> None:
    says = "error: --record: needs --results, the file to write\n"
    assert call("study", "claims", "claims.toml", "--record") == (2, "", says)


# --- the project's own ------------------------------------------------------------------------------------------

ROOT = Path(__file__).parents[2]
FILES = sorted((ROOT / "scenarios" / "claims").glob("*.toml"))


def test_every_claim_has_a_row_on_the_page() -> None:
    claims = [claim for file in FILES for claim in read_fixed(file, ClaimsFile).claims]
    assert len(FILES) == 5 and len({claim.id for claim in claims}) == len(claims) >= 80
    page = rows((ROOT / "docs" / "explanation" / "claims.md").read_text())
    table = list(csv.DictReader((ROOT / "docs" / "data" / "claims.csv").read_text().splitlines()))
    assert [each["id"] for each in table] == [claim.id for claim in claims] and len(page) == len(claims)
    for claim, each in zip(claims, table, strict=True):
        assert page[claim.id][1].partition("<br>")[0] == each["claim"] == claim.says
        assert page[claim.id][2] == (each["status"] if each["verdict"] == "not run" else each["verdict"])


@full
@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_every_claim_fits_its_studies(file: Path) -> None:
    load_claims(file)


def test_results_belong_to_studies() -> None:
    everything = read_results(ROOT / "docs" / "data" / "claims_results.csv")
    assert len({each.key for each in everything}) == len(everything) > 100
    programs = {each.id for file in FILES for each in read_fixed(file, ClaimsFile).claims if each.elsewhere}
    assert {each.study for each in everything if each.size == ELSEWHERE} <= programs
    results = [each for each in everything if each.size != ELSEWHERE]
    for study in {each.study for each in results}:
        axes = set(tomllib.loads((ROOT / "scenarios" / "studies" / f"{study}.toml").read_text())["axes"])
        assert all(set(each.labels) == axes - {"seed"} for each in results if each.study == study), study
    assert all(each.source or (each.revision and each.date) for each in results)
