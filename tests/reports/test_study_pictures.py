"""Pictures and reports of a real study, by the commands that a user types."""

from __future__ import annotations

import re
import shutil

import pytest

from edgesim.cli.figures import KINDS
from tests.calling import TINY, call
from tests.sizes import full, spread

STUDY = """
name = "two methods"
question = "Which method gets to 5 % first?"
base = "tiny.toml"
overrides = ["prices={ electricity = '0.3 EUR/kWh', payments = { low = '1 EUR', typical = '2 EUR', high = '3 EUR' } }"]
columns = ["sim_time_s@0.05", "energy_j@0.05", "energy_j", "best_accuracy"]

[axes.method]
fedavg = ["method=fedavg"]
fedprox = ["method={ name = 'fedprox', mu = 0.01 }"]

[axes]
"training.lr" = [0.1, 0.02]
seed = [1, 2]
"""


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    """Return a folder with a study that has been run."""
    folder = tmp_path_factory.mktemp("study")
    (folder / "tiny.toml").write_text(TINY.replace("rounds = 1", "rounds = 2"))
    (folder / "two.toml").write_text(STUDY)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        assert call("study", "run", "two.toml").code == 0
    return folder


@pytest.fixture(autouse=True)
def in_the_folder(study, monkeypatch):
    monkeypatch.chdir(study)


@pytest.mark.parametrize("kind", spread(KINDS, 1))
def test_every_kind(study, kind):
    done = call("study", "plot", "two.toml", "--kind", kind, "--width", "double", "--format", "pdf,svg")
    assert done == (0, f"{kind}.pdf\n{kind}.svg\n", "")
    assert 'width="518.4pt"' in (study / f"{kind}.svg").read_text()
    assert (study / f"{kind}.pdf").read_bytes()[:4] == b"%PDF"


@full
def test_a_heat_map_is_over_the_axes(study):
    assert (
        call("study", "plot", "two.toml", "--kind", "heat", "--column", "best_accuracy", "--out", "best.svg").code == 0
    )
    texts = re.findall(r"<text[^>]*>([^<]*)</text>", (study / "best.svg").read_text())
    assert {"method", "lr", "FedAvg", "FedProx", "0.1", "0.02", "best accuracy (%)"} <= set(texts)


@pytest.mark.parametrize("kind", ["targets", "energy", "rounds", "lorenz", "topology"])
def test_runs_have_kinds_too(study, kind):
    runs = "runs/studies/two/quick/*lr=0.1*"
    words = ["--kind", kind, "--out", f"of_runs_{kind}.svg"]
    if kind == "targets":
        assert (
            "has no target; set evaluation.targets or name a column" in call("plot", runs, *words).err
        )  # no targets in the scenario
    else:
        assert call("plot", runs, *words) == (0, f"of_runs_{kind}.svg\n", "")


@full
def test_runs_are_named_as_in_the_report(study):
    """In curves and in bars: the spelling of the method, and the unit of a value."""
    for method in ("fedavg", "fedprox"):
        words = ["--set", f"method={method}", "--set", "protocol={ name = 'deadline', deadline = '1500 ms' }"]
        words += ["--set", "evaluation.targets=[0.01, 0.05, 0.99]", "--quiet"]
        assert call("run", "tiny.toml", *words, "--out", f"named/{method}").code == 0
    assert call("run", "tiny.toml", *words, "--set", "protocol.deadline=3s", "--out", "named/slow").code == 0
    for kind in ("accuracy", "energy", "targets", "pareto"):
        assert call("plot", "named/*", "--kind", kind, "--width", "double", "--out", "named.svg").code == 0
        texts = " ".join(re.findall(r"<text[^>]*>([^<]*)</text>", (study / "named.svg").read_text()))
        assert {"FedAvg, deadline = 1.5 s", "FedProx, deadline = 1.5 s", "FedProx, deadline = 3 s"} <= set(
            re.findall(r"Fed\w+, deadline = [\d.]+ s", texts)
        ), kind
        if kind == "targets":
            assert "time to 1\u00a0%" in texts and "time to 5\u00a0%" in texts and "no run reached 99\u00a0%" in texts
    refused = call("plot", "named/slow", "--kind", "pareto").err
    assert refused == "error: --kind pareto: compares configurations, got one (FedProx)\n"
    shutil.rmtree(study / "named")
    (study / "named.svg").unlink()


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["study", "plot", "two.toml", "--kind", "pie"], "--kind: unknown 'pie' (known: accuracy, targets, "),
        (["study", "plot", "two.toml", "--width", "wide"], "--width: 'wide' is not a width"),
        (["study", "plot", "two.toml", "--kind", "heat", "--x", "nobody"], "--x: a heat map has two axes"),
        (["study", "plot", "two.toml", "--kind", "targets", "--column", "nothing"], "unknown column 'nothing'"),
        (["study", "plot", "two.toml", "--x", "hours"], "--x: 'hours' is unknown or given twice"),
        (["study", "plot", "two.toml", "--out", "nowhere/it.pdf"], "--out: nowhere is not a folder"),
        (
            ["plot", "runs/studies/two/quick/*", "--kind", "energy", "--x", "time"],
            "--x, --labels: are for --kind accuracy",
        ),
        (["plot", "runs/studies/two/quick/*", "--kind", "heat"], "--y: a heat map has two axes"),
        (["report", "two.toml", "--baseline", "method=nobody"], "--baseline: no configuration is method=nobody"),
        (["report", "two.toml", "two.toml"], "a report covers one study, or runs"),
    ],
)
def test_bad_input_is_one_line(study, words, says):
    before = sorted(study.iterdir())
    code, out, err = call(*words)
    assert (code, out) == (2, "") and err.startswith("error: ") and says in err and err.count("\n") == 1
    assert sorted(study.iterdir()) == before


@full
def test_its_report(study):
    assert call("report", "two.toml", "--baseline", "method=fedprox,training.lr=0.1", "--out", "it.html").code == 0
    page = (study / "it.html").read_text(encoding="utf-8")
    assert "<h1>Which method gets to 5\u00a0% first?</h1>" in page
    assert "edgesim study run two.toml --size quick" in page
    assert "FedProx, lr 0.1" in page and "Wilcoxon" in page and "against FedProx, lr 0.1" in page
    assert "Federated Optimization in Heterogeneous Networks" in page  # a source of the catalogue


@full
def test_a_part_of_a_study_says_so(study):
    cells = "runs/studies/two/quick"
    folder = next(path for path in (study / cells).iterdir() if path.name.startswith("method=fedavg"))
    aside = folder.with_name("aside")
    folder.rename(aside)
    try:
        done = call("report", "two.toml", "--out", "part.html")
        assert done.code == 0 and "1 of 8 cells are missing" in done.err
        assert "1 of 8 cells are missing." in (study / "part.html").read_text(encoding="utf-8")
    finally:
        aside.rename(folder)


@full
def test_runs_that_only_time(study):
    """Nothing is trained and no energy modelled: what is not there is left out."""
    words = ["--set", "backend=null", "--set", "energy=none", "--quiet"]
    for method in ("fedavg", "fedprox"):
        assert call("run", "tiny.toml", *words, "--set", f"method={method}", "--out", f"timed/{method}").code == 0
    assert call("report", "timed", "--out", "timed.html") == (0, "timed.html\n", "")
    page = (study / "timed.html").read_text(encoding="utf-8")
    titles = re.findall(r"<h2[^>]*>([^<]*)</h2>", page)
    assert {"Results", "Devices and rounds", "The slowest round", "How to reproduce"} <= set(titles)
    assert not {"Accuracy", "Energy", "Time to the target", "Cost and carbon"} & set(titles)
    (study / "timed.html").unlink()
