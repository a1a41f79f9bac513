"""What a report says: who wins and whether that may be luck, and that names of runs are text and nothing else."""

from __future__ import annotations

import json
import math
import re
from html.parser import HTMLParser

import pytest

from edgesim.reports.html.answer import answer
from edgesim.reports.html.page import rendered, write_report
from edgesim.reports.html.words import change, interval, number, p_text, words_of
from edgesim.studies.report import findings_of, study_of
from tests.calling import call
from tests.reports import made_up
from tests.sizes import full

TIME = "sim_time_s@0.8"


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    return made_up.runs(tmp_path_factory.mktemp("runs"))


@pytest.fixture(scope="module")
def findings(runs):
    return findings_of(*study_of(runs), ["edgesim run it.toml"], question="Which method is first?")


@pytest.fixture(scope="module")
def page(findings):
    return rendered(findings)


def without_scripts(page):
    return re.sub(r"<(script|style)>.*?</\1>", "", page, flags=re.DOTALL)


def first(runs, count):
    """Return the runs of the first seeds alone."""
    return [run for run in runs if run.seed <= count]


def test_the_verdict_names_the_winner_and_its_lead(findings):
    """FedPMT needs about half the rounds of FedAvg; seven seeds are enough to tell."""
    said = answer(findings)
    assert said.first == "FedPMT."
    assert re.match(r"FedPMT reaches 80\u00a0% in .*, .* \(\d+\u00a0%\) less than FedAvg \[.*\]\.$", said.told[0])
    assert said.confidence[0].startswith("Seven seeds confirm ") and "p = " not in " ".join(
        [*said.told, *said.confidence]
    )
    assert said.tiles[0].title == "Least time to 80\u00a0%" and said.tiles[0].who == "FedPMT"


def test_the_numbers_of_the_answer_are_those_of_the_runs(findings, runs):
    """The mean difference over seeds, by hand from the evaluations."""

    def reached_s(run):
        evals = run.evals[run.evals["split"] == "test"]
        return float(evals["now_s"][evals["accuracy"] >= made_up.TARGET].iloc[0])

    of = {name: {run.seed: reached_s(run) for run in runs if run.method == name} for name in ("fedpmt", "fedavg")}
    gaps = [of["fedavg"][seed] - of["fedpmt"][seed] for seed in made_up.SEEDS]
    [row] = findings.contests[0].against[findings.contests[0].against["setting"] == "FedAvg"].to_dict("records")
    assert row["difference"] == pytest.approx(sum(gaps) / len(gaps)) and row["pairs"] == len(gaps)
    assert number(TIME, sum(gaps) / len(gaps)) in answer(findings).told[0]


@full
def test_few_seeds_confirm_nothing(runs):
    """No test can tell three pairs from luck, however far they are apart."""
    found = findings_of(*study_of(first(runs, 3)), [])
    said = answer(found)
    assert said.first == "FedPMT." and said.confidence[0].startswith("Three seeds cannot confirm any difference")
    assert "Seven can." in said.confidence[0]  # three rivals: 3 x 2 / 2^7 is below 0.05
    alone = answer(findings_of(*study_of(first(runs, 1)), []))
    assert alone.confidence[0] == "One seed cannot tell a difference from luck. Seven can."


def test_a_target_that_nobody_reached(runs):
    never = [run for run in runs if run.method == made_up.HOSTILE]
    found = findings_of(*study_of(never), [])
    assert answer(found).first == f"{made_up.HOSTILE} did not reach 80\u00a0% test accuracy in most of its runs."
    assert "not reached" in rendered(found)


def test_one_configuration_is_told_without_a_rival(runs):
    found = findings_of(*study_of([run for run in runs if run.method == "fedavg"]), [])
    said = answer(found)
    assert re.fullmatch(r"FedAvg reaches 80\u00a0% in [\d.]+\u00a0\w+ \[.*\]\.", said.first) and said.grids == []
    assert "Holm" not in " ".join(said.confidence) and "aria-sort" not in without_scripts(rendered(found))


def test_runs_that_did_not_arrive_count(findings):
    """The one that never arrives is last, not left out, and has no median."""
    last = findings.contests[0].ranking.iloc[-1]
    assert (last["setting"], last["reached"]) == (made_up.HOSTILE, 0) and not math.isfinite(last["middle"])
    assert f"{made_up.HOSTILE} in 0 of 7 runs" in answer(findings).told[-1]


class Reader(HTMLParser):
    """What is in a page: its elements, what they point to, and its text."""

    def __init__(self, page):
        super().__init__()
        self.tags, self.links, self.text = [], [], ""
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.links += [value for name, value in attrs if name in ("src", "href", "action", "data", "srcset", "poster")]

    def handle_data(self, data):
        self.text += data


def test_it_stands_alone(page):
    """It points to itself only, and the browser is told to fetch nothing."""
    found = Reader(without_scripts(page))
    assert found.links and all(link.startswith("#") for link in found.links)
    assert not {"link", "img", "iframe", "object", "base"} & set(found.tags)
    assert "default-src 'none'" in page and "@import" not in page and "url(" not in without_scripts(page)


def test_names_are_text(page):
    """A method may be called what it likes: no element comes of it, in no table, chart or script."""
    assert "<script>alert" not in page
    assert "&lt;script&gt;alert" in page
    charts = re.findall(r'<script type="application/json"[^>]*>(.*?)</script>', page, re.DOTALL)
    assert len(charts) >= 7 and all(json.loads(chart)["data"] for chart in charts)
    assert any("\\u003c" in chart or "&lt;" in json.dumps(json.loads(chart)) for chart in charts)


def test_every_section_is_there(page):
    found = Reader(without_scripts(page)).text
    for title in ("Results", "Accuracy", "Time to the target", "Trade-offs", "Energy", "The slowest round",
                  "Fleet and scenario", "Methods and models", "How to reproduce"):  # fmt: skip
        assert title in found
    assert "Cost and carbon" not in found  # nothing is priced
    assert "McMahan" in found and "0123456789abcdef" * 4 in found and "edgesim 0.2.0" in found
    assert "edgesim run it.toml" in found and "single-board computer" in found
    assert "was the last" in found  # of the slowest round, as `explain` says it


def test_cost_and_carbon_appear_with_prices(findings):
    page = rendered(made_up.with_prices(findings))
    assert "Cost and carbon" in page and "cost (EUR)" in page and "total_cost" not in without_scripts(page)
    assert "What the money is for" in page and "payments" in without_scripts(page)


def test_the_same_findings_are_the_same_page(findings, page):
    assert rendered(findings) == page


@full
def test_the_table_compares_with_the_baseline(runs):
    study, cells = study_of(runs)
    found = findings_of(study, cells, [], {"configuration": "fedpmt"})
    assert found.baseline == "FedPMT" and set(found.compared["setting"]) == {*found.settings} - {"FedPMT"}
    with pytest.raises(Exception, match="--baseline: no configuration is configuration=nobody"):
        findings_of(study, cells, [], {"configuration": "nobody"})


def test_words():
    assert words_of("energy_j@0.85-on") == "energy to 85\u00a0% for good"
    assert (number("energy_j@0.8", 3400.0), number("best_accuracy", 0.9312)) == ("3.4\u00a0kJ", "93.1\u00a0%")
    assert interval(TIME, 60.0, math.inf) == "at least 1\u00a0min"
    assert (
        interval(TIME, 30.0, 90.0) == "30 to 90\u00a0s" and interval(TIME, 30.0, 90.0, 1800.0) == "0.5 to 1.5\u00a0min"
    )
    assert (change(0.74), change(1.05), change(3.14159), change(math.nan)) == (
        "−26\u00a0%",
        "+5.0\u00a0%",
        "×3.14",
        "",
    )
    assert (p_text(0.0004), p_text(0.0312), p_text(math.nan)) == ("p < 0.001", "p = 0.031", "")


# --- the command ------------------------------------------------------------------------------------------------


@full
def test_the_command(runs, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = call("report", *(run.folder for run in first(runs, 2)), "--out", "it.html", "--question", "Who?")
    assert (done.code, done.out) == (0, "it.html\n")
    assert "<h1>Who?</h1>" in (tmp_path / "it.html").read_text(encoding="utf-8")
    assert [path.name for path in tmp_path.iterdir()] == ["it.html"]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["nowhere"], "nowhere"),
        (["a.toml", "b.toml"], "a.toml and b.toml: a report covers one study, or runs"),
        (["a.toml"], "a.toml"),
        (["RUN", "--out", "nowhere/it.html"], "--out: nowhere is not a folder"),
        (["RUN", "--out", "."], "--out: '.' is no file name"),
        (["RUN", "--only", "seed=1"], "--only, --runs, --size: are for studies"),
        (["RUN", "--baseline", "fedavg"], "--baseline: must be labels such as method=fedavg"),
        (["RUN", "COPY"], "are alike, seed 1 included"),
    ],
)
def test_bad_input_is_one_line_and_leaves_nothing(runs, tmp_path, monkeypatch, words, says):
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    copy = made_up.run(tmp_path / "copy", "fedavg", 1)
    given = [{"RUN": str(runs[0].folder), "COPY": str(copy.folder)}.get(word, word) for word in words]
    code, out, err = call("report", *given)
    assert (code, out) == (2, "") and err.startswith("error: ") and says in err and err.count("\n") == 1
    assert list((tmp_path / "here").iterdir()) == []


def test_an_older_report_stays_if_writing_fails(findings, tmp_path, monkeypatch):
    file = tmp_path / "report.html"
    file.write_text("older")
    monkeypatch.setattr("pathlib.Path.replace", lambda *_: (_ for _ in ()).throw(OSError("disk full")))
    with pytest.raises(Exception, match="cannot be written: disk full"):
        write_report(findings, file)
    assert file.read_text() == "older" and [path.name for path in tmp_path.iterdir()] == ["report.html"]
