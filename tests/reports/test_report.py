"""What a report says: who wins and whether that may be luck, and that names of runs are text and nothing else."""

from __future__ import annotations

import dataclasses
import json
import math
import re
from html.parser import HTMLParser

import numpy as np
import pandas as pd
import pytest

from edgesim.reports.figure_numbers import FigureLine
from edgesim.reports.html.answer import answer
from edgesim.reports.html.charts import (
    accuracy_charts,
    lengths_chart,
    lorenz_chart,
    swarm,
    target_chart,
    without_information,
)
from edgesim.reports.html.page import rendered, write_report
from edgesim.reports.html.words import HATCHED, change, interval, is_accuracy, number, p_text, words_of
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


@full
def test_a_target_that_nobody_reached(runs):
    never = [run for run in runs if run.method == made_up.HOSTILE]
    found = findings_of(*study_of(never), [])
    assert answer(found).first == f"{made_up.HOSTILE} did not reach 80\u00a0% test accuracy in most of its runs."
    assert "not reached" in rendered(found)


@full
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


def curves(*lines):
    return [FigureLine(label="", x=np.array(x, float), y=np.array(y, float)) for x, y in lines]


@pytest.mark.parametrize(
    ("lines", "why"),
    [
        ([([0, 1, 2], [0, 0.6, 0.9]), ([0, 1, 2], [0, 0.6, 0.9])], {"equal"}),
        ([([0, 1, 2], [0, 0.6, 0.9]), ([0, 1, 2], [0, 0.61, 0.9])], set()),  # a point of a hundred is seen
        ([([0, 1, 2], [0, 0.6, 0.9]), ([0, 1, 2], [0, 0.6001, 0.9])], {"equal"}),  # a hundredth of one is not
        ([([0, 1, 2], [0, 0.6, 0.9]), ([0, 2, 4], [0, 0.6, 0.9])], set()),  # one is slower
        ([([0, 0.5, 1], [0, 0.5, 1])], {"straight"}),
        ([([0, 1, 2], [0, 1, 2]), ([0, 1, 3], [0, 1, 3])], {"straight"}),  # one goes farther on the same line
        ([([0, 1, 2], [0, 1, 2]), ([0, 1, 2], [0, 2, 4])], set()),
        ([([0, 1], [0, 1])], set()),  # any two points are a straight line
        ([([3, 3, 3], [0.3, 0.6, 1]), ([5, 5, 5], [0.3, 0.6, 1])], {"upright"}),
        ([([0, 1, 2], [0, 0.6, 0.9])], set()),
    ],
)
def test_when_a_chart_shows_nothing(lines, why):
    assert without_information(curves(*lines)) == why


def test_bands_that_differ_are_shown():
    [one, other] = curves(([0, 1, 2], [0, 0.6, 0.9]), ([0, 1, 2], [0, 0.6, 0.9]))
    banded = [dataclasses.replace(one, band=(one.y, one.y + 0.1)), dataclasses.replace(other, band=(one.y, one.y))]
    assert without_information(banded) == set()


def test_charts_without_information_are_sentences(findings):
    """Six settings that learn alike, at different speed, with devices that spend alike and rounds of one length."""
    names = [f"setting {i}" for i in range(6)]
    one = findings.points[findings.points["run"] == 0]
    points, devices, lengths = [], [], []
    for i, name in enumerate(names):
        points.append(one.assign(setting=name, run=i, sim_time_s=one["sim_time_s"] * (i + 1)))
        devices.append(pd.DataFrame({"setting": name, "run": i, "device": range(9), "joules": 5.0 + i}))
        lengths.append(pd.DataFrame({"setting": name, "run": i, "round": range(1, 6), "length_s": 3.0 + i}))
    time, energy, rounds = accuracy_charts(pd.concat(points), names, [], ["accuracy: a; costs: b"])
    assert time.figure is not None and energy.figure is None and rounds.figure is None
    share = r"[\d.]+\u00a0%"
    said = f"The curve is the same for all 6 configurations: {share} at round 1, {share} at round 12."
    assert re.fullmatch(said, rounds.says)
    alike = lorenz_chart(pd.concat(devices), names)
    assert alike.figure is None and alike.says == "All devices of a configuration spend the same energy."
    even = lengths_chart(pd.concat(lengths), names)
    assert even.figure is None and even.says.startswith("All rounds of a configuration take equally long: setting 0 3")
    flat = pd.concat(points).assign(accuracy=0.1)
    assert {(each.figure, each.says) for each in accuracy_charts(flat, names, [])} == {
        (None, "Test accuracy stays at 10.0\u00a0% in all 6 configurations.")
    }
    of_settings = [each.assign(setting=name) for each, name in zip(points, findings.settings, strict=False)]
    page = rendered(dataclasses.replace(findings, points=pd.concat(of_settings)))
    assert "figure-accuracy-time" in page and "figure-accuracy-rounds" not in page
    assert "<strong>Accuracy against rounds.</strong> The curve is the same for all 4 configurations" in page
    # where all of them are alike, one is drawn, as it shows how learning went
    same = pd.concat([one.assign(setting=name, run=i) for i, name in enumerate(names)])
    assert [each.figure is None for each in accuracy_charts(same, names, [])] == [False, True, True]


@pytest.mark.parametrize("count", [1, 8, 30, 200])
@pytest.mark.parametrize("spread", [0.0, 1.0, 30.0])
def test_dots_of_a_row_do_not_overlap(count, spread):
    values = spread * np.random.default_rng(count).standard_normal(count)
    dots = swarm(values, 1.0, 10)
    assert sorted(i for _, _, those in dots for i in those) == list(range(count))
    places = np.array([(x, lane) for x, lane, _ in dots])
    apart = np.abs(places[:, None, 0] - places[None, :, 0]) + 1e-9
    same_lane = (places[:, None, 1] == places[None, :, 1]) & ~np.eye(len(dots), dtype=bool)
    heaped = any(len(those) > 1 for _, _, those in dots)
    assert (apart[same_lane] >= (3.0 if heaped else 1.0)).all() and places[:, 1].max() < 10
    assert dots == swarm(values, 1.0, 10)
    if count <= 8:
        assert not heaped and [values[those[0]] for _, _, those in dots] == [x for x, _, _ in dots]


def test_many_equal_runs_are_counted(findings):
    of = findings.values[(findings.values["column"] == TIME) & (findings.values["setting"] == "FedPMT")]
    values = of.iloc[[0] * 40].assign(seed=range(40))
    summary = findings.summary[findings.summary["setting"] == "FedPMT"]
    texts = [text for trace in target_chart(values, summary, TIME, ["FedPMT"]).figure.data for text in trace.text or ()]
    assert texts == ["40"]


def test_the_badge_says_whose_accuracy_it_is(findings, page):
    assert "badge" not in without_scripts(page)
    two = dataclasses.replace(findings, models=[("cnn_digits", "ResNet-18")])
    found = without_scripts(rendered(two))
    assert found.count('<span class="badge">accuracy: cnn_digits; costs: ResNet-18</span>') == 4  # title, three charts
    assert found.index('class="badge"') < found.index('class="verdict"')


@full
def test_cells_of_targets_that_were_not_reached_are_hatched(runs, page):
    found = without_scripts(page)
    assert found.count('class="open"') >= 2 and found.count('number open"') >= 2
    assert found.count(f'<p class="hatching"><span class="open"></span>{HATCHED}.</p>') == 2  # time and energy
    assert f"{HATCHED}." in found.partition('id="results"')[2].partition("</section>")[0]
    three = findings_of(*study_of([run for run in first(runs, 2) if run.method != made_up.HOSTILE]), [])
    assert "Hatched: at least" not in without_scripts(rendered(three))


def test_accuracy_is_in_percent_everywhere(findings, page):
    """No share between 0 and 1 stands where an accuracy is meant."""
    shares = ("accuracy_of[small]", "boards:best_accuracy", "accuracy_area[10 min]", "personal_worst")
    assert all(map(is_accuracy, shares))
    assert words_of("sim_time_s@accuracy:0.8") == words_of("sim_time_s@0.8") == "time to 80\u00a0%"
    assert dict(findings.scenario)["evaluation"] == "targets 80\u00a0%"
    said = Reader(without_scripts(page)).text
    assert not re.search(r"ccuracy\S*:? (is |of )?0\.\d", said)


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
