"""What does every method cost, and what has it learned by then? Usage: python docs/gen/methods_compared.py [--out PAGE]

Writes docs/explanation/methods_compared.md of what scenarios/studies/all_methods.toml has run, see `make methods-page`;
a method without runs has a row without results. --costs-only prints the costs alone, as CSV, and needs no runs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import pandas as pd

import edgesim
from edgesim.cli.main import run_script
from edgesim.cli.printing import markdown
from edgesim.config.plugins import plugins_of
from edgesim.config.scenario import Scenario
from edgesim.core.errors import ConfigError
from edgesim.reports.format import text
from edgesim.reports.load import Run
from edgesim.runs.assembly import assemble
from edgesim.runs.estimate import estimate_of, instant
from edgesim.studies.runs import folder_of
from edgesim.studies.study import SEED, Study, load_study
from edgesim.studies.values import summarised

ROOT = Path(__file__).parents[2]
STUDY = ROOT / "scenarios" / "studies" / "all_methods.toml"
PAGE = ROOT / "docs" / "explanation" / "methods_compared.md"
NOTES = ROOT / "docs" / "data" / "methods_compared.csv"
BASELINE = "fedavg"
OWN_CLOCKS = ("buffered", "gossip")  # protocols under which a device may have several turns a round

HEAD = """# Methods compared

The methods that edgesim ships, on one scenario with {devices} devices, `{file}`{absent}. `make methods-page`
runs what is missing of it and writes this page. **Nothing is tuned**: the tables say what methods cost, and whether
they learn; they are no ranking. One learning rate, one network and one fleet suit some methods and not others.
"""

COSTS = """## What a turn costs

Multiples of FedAvg's. A turn is what one device does in one round, all exchanges of it together; on a clock of its own,
one job. FLOPs are those of the device; down and up are the bytes that it receives and sends, among peers those that it
fetches and those that peers send for that.

- *foreseen*: by `edgesim estimate`, before anything trains: the mean over devices of the first exchange.
- *run*: the mean over all turns of the runs below. It differs where a method changes its mind, chooses among unequal
  devices, or has several exchanges.
- *server*: FLOPs of the server, averaging included, for each turn of the runs; `-`: there is no server, or it has no
  work.

FedAvg: foreseen {foreseen}; in the runs {run}; {server} of the server.
"""

RESULTS = """## After {time}

Means and standard deviations over {seeds} seeds of what a run had when {time} of simulated time were over.

- *accuracy*: of the global model on all test samples; among peers, of the mean of all models.
- *personal*: the mean over devices of what each would use itself, on test samples of its own class mix. Methods without
  personal models use the global one.
- *active*: joules above idle power, of all devices.
"""


class Turn(NamedTuple):
    """What one device does in one round; NaN: unknown."""

    flops: float
    down_bytes: float
    up_bytes: float
    server_flops: float = float("nan")

    def over(self, other: Turn) -> Turn:
        """Return this as multiples of another; NaN of what is nothing there."""
        return Turn(*(mine / its if its else float("nan") for mine, its in zip(self, other, strict=True)))


def foreseen(scenario: Scenario) -> Turn:
    """Return the mean over devices of the first exchange, as `edgesim estimate` has it. Raises ConfigError."""
    blocks = estimate_of([assemble(scenario)], instant).blocks
    weights = blocks["devices"] / blocks["devices"].sum()
    return Turn(*(float((blocks[name] * weights).sum()) for name in ("flops", "down_bytes", "up_bytes")))


def spent(run: Run) -> Turn:
    """Return the mean over all turns of a run in its closed rounds; jobs that were broken off do not count."""
    scenario, rounds = run.manifest["scenario"], run.rounds
    jobs = run.jobs[(run.jobs["outcome"] == "ok") & (run.jobs["end_s"] <= rounds["now_s"].iloc[-1])]
    once = [] if scenario["protocol"]["name"] in OWN_CLOCKS else ["edge", "round", "device"]
    turns = len(jobs[once].drop_duplicates()) if once else len(jobs)
    flops_per_s = float(scenario["server"]["flops_per_s"])
    server_flops = float(rounds["server_s"].sum()) * flops_per_s
    up_bytes = int(jobs["up_bytes"].sum() + jobs["peer_bytes"].sum())
    return Turn(jobs["flops"].sum() / turns, jobs["down_bytes"].sum() / turns, up_bytes / turns, server_flops / turns)


def mean_of(turns: Sequence[Turn]) -> Turn:
    """Return the mean of turns."""
    return Turn(*(sum(column) / len(turns) for column in zip(*turns, strict=True)))


def costs(study: Study, file: Path, size: str) -> dict[str, Turn]:
    """Return what is foreseen of every method of a study, of its first seed."""
    found: dict[str, Turn] = {}
    for cell in study.cells(size):
        if cell.labels["method"] not in found:
            found[cell.labels["method"]] = foreseen(study.scenario(file.parent, cell, size))
    return found


def notes(path: Path = NOTES) -> dict[str, str]:
    """Return what readers have to know, by method."""
    table = pd.read_csv(path, comment="#")
    return dict(zip(table["method"], table["note"], strict=True))


class Found(NamedTuple):
    """What the runs of a study say: `turns` by method, and the statistics over seeds by method and column."""

    turns: Mapping[str, Turn]
    statistics: Mapping[tuple[str, str], Mapping[str, float]]


def found_of(file: Path, size: str, out: Path) -> Found:
    """Return what the runs of a study say. Raises ConfigError if the baseline has none."""
    result = edgesim.study(file, out=out).open(size)
    if not any(f"method={BASELINE}" in name.split(",") for name in result.runs):
        raise ConfigError(f"{out}: no run of {BASELINE}, which the others are compared with")
    turns: dict[str, list[Turn]] = {}
    for name, run in result.runs.items():
        turns.setdefault(dict(part.split("=") for part in name.split(","))["method"], []).append(spent(run))
    rows = summarised(result.values()).to_dict("records")
    statistics = {(row["method"], row["column"]): row for row in rows}
    return Found({method: mean_of(each) for method, each in turns.items()}, statistics)


# --- the page ---------------------------------------------------------------------------------------------------


def times(value: float) -> str:
    """Return a multiple of FedAvg's as text, to three digits."""
    if value != value:
        return "-"
    return f"{value:.3g}" if value < 1000 else f"{value:.0f}"


def amounts(turn: Turn) -> str:
    """Return what a device does and transfers as text."""
    flops, down, up = (text(name, getattr(turn, name)) for name in ("flops", "down_bytes", "up_bytes"))
    return f"{flops}, {down} down, {up} up"


def _costs_table(planned: Mapping[str, Turn], found: Found, marks: Mapping[str, str]) -> str:
    columns = ["FLOPs, foreseen", "down", "up", "FLOPs, run", "down", "up", "server"]
    rows = []
    for method, turn in planned.items():
        before = turn.over(planned[BASELINE])[:3]
        nothing = (float("nan"),) * 4
        after = found.turns[method].over(found.turns[BASELINE]) if method in found.turns else nothing
        server = float("nan") if after[3] == 0 else after[3]
        rows.append([f"`{method}`{marks.get(method, '')}", *map(times, (*before, *after[:3], server))])
    return markdown(["method", *columns], rows)


def _statistic(row: Mapping[str, float] | None, form: str) -> str:
    if row is None or row["mean"] != row["mean"]:
        return "-"
    deviation = "" if row["sd"] != row["sd"] else f" ± {row['sd']:{form}}"
    return f"{row['mean']:{form}}{deviation}"


def _results_table(methods: Sequence[str], found: Found, marks: Mapping[str, str]) -> str:
    columns = {"accuracy": ".3f", "personal_accuracy": ".3f", "rounds": ".0f", "active_j": ".0f"}
    rows = [
        [f"`{method}`{marks.get(method, '')}",
         *(_statistic(found.statistics.get((method, name)), form) for name, form in columns.items())]
        for method in methods
    ]  # fmt: skip
    return markdown(["method", "accuracy", "personal", "rounds", "active, J"], rows)


def page(study: Study, file: Path, size: str, out: Path) -> str:
    """Return the page of a study's runs in a size, which lie below `out`. Raises ConfigError."""
    planned, found = costs(study, file, size), found_of(file, size, out)
    known = {method: note for method, note in notes().items() if method in planned}
    marks = {method: f" ({place})" for place, method in enumerate(known, 1)}
    first = study.scenario(file.parent, study.cells(size)[0], size)
    devices = sum(block.count for block in first.fleet)
    mine = found.turns[BASELINE]
    amount = {"foreseen": amounts(planned[BASELINE]), "run": amounts(mine)}
    file_name = file.relative_to(ROOT) if file.is_relative_to(ROOT) else file.name
    missing = [f"`{name}`" for name in sorted(plugins_of("method").keys() - planned.keys())]
    absent = f", but for {', '.join(missing)}, not compared yet" if file == STUDY and missing else ""
    seeds, time = len(study.axes.get(SEED, {"": ()})), text("sim_time_s", first.stop.sim_time or 0.0)
    return "\n".join(
        [
            HEAD.format(name=study.name, file=file_name, devices=devices, absent=absent),
            COSTS.format(**amount, server=text("flops", mine.server_flops)),
            _costs_table(planned, found, marks),
            RESULTS.format(time=time, seeds=seeds),
            _results_table(list(planned), found, marks),
            "## Notes\n",
            *(f"- ({place}) `{method}`: {note}" for place, (method, note) in enumerate(known.items(), 1)),
            "",
        ]
    )


def main(
    study: Path = STUDY, size: str = "full", runs: Path | None = None, out: Path = PAGE, costs_only: bool = False
) -> None:
    """Write the page, or print what is foreseen."""
    loaded = load_study(study)
    if costs_only:
        planned = costs(loaded, study, size)
        table = pd.DataFrame(
            [{"method": method, **turn.over(planned[BASELINE])._asdict()} for method, turn in planned.items()]
        )
        print(table.drop(columns="server_flops").to_csv(index=False, float_format="%.4g"), end="")
        return
    out.write_text(page(loaded, study, size, runs or folder_of(study, size)), encoding="utf-8")
    print(out)


if __name__ == "__main__":
    run_script(main)
