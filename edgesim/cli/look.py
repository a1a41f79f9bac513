"""Commands that show finished runs: tables, figures, timelines, energy, cost and differences."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from edgesim.cli.options import (
    AsJson,
    Folders,
    InSession,
    OneRun,
    RoundNumber,
    SortBy,
    TableStyle,
    Tolerances,
    check_file,
    names_in,
    order,
    tolerances_of,
)
from edgesim.cli.printing import (
    print_csv,
    print_frame,
    print_json,
    print_note,
    print_prose,
    print_runs,
    print_table,
    records,
)
from edgesim.core.errors import ConfigError
from edgesim.reports.format import heading, plain, text

if TYPE_CHECKING:
    import pandas as pd

    from edgesim.reports.load import Run

_SHARES = ("late_share", "took_part", "jobs_share")
_HEADINGS = {
    "device": "device", "kind": "kind", "devices": "devices", "took_part": "took part", "jobs": "jobs",
    "jobs_share": "of all jobs", "ok_jobs": "delivered", "late_jobs": "late", "late_share": "late share",
    "failed_jobs": "failed", "mean_down_s": "mean download", "mean_compute_s": "mean compute",
    "mean_up_s": "mean upload", "down_bytes": "down", "up_bytes": "up", "active_j": "active", "idle_j": "idle",
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class ShownRun:
    """A run, or one of its sessions."""

    run: OneRun
    session: InSession = None

    def open(self) -> Run:
        """Return the run, and report on stderr if it did not finish.

        Raises ConfigError as `open_run` and `Run.session` do, and if the run has several sessions and none is named.
        """
        from edgesim.reports.load import open_run

        found = open_run(self.run)
        if self.session is None and len(found.sessions) > 1:
            raise ConfigError(f"{self.run}: has the sessions {', '.join(found.sessions)}; name one with --session")
        return _with_note(found if self.session is None else found.session(self.session))


def opened(folder: Path) -> Run:
    """Return the run in a folder, and report on stderr if it did not finish. Raises ConfigError as `open_run` does."""
    from edgesim.reports.load import open_run

    return _with_note(open_run(folder))


def all_opened(paths: Sequence[Path]) -> list[Run]:
    """Return the runs that paths name, each session by itself, and report on stderr the runs that did not finish.

    Raises as `Run.find`.
    """
    from edgesim.reports.load import Run

    return [_with_note(view) for run in Run.find(paths) for view in run.views]


def _with_note(run: Run) -> Run:
    """Return the run. Report on stderr if it did not finish, or is charged for another network."""
    if run.charged_as:
        print_note(f"{run.name}: learned by {run.learned_by}, charged as {run.charged_as}")
    if not run.finished:
        rounds = len(run.table("rounds"))
        print_note(f"{run.name}: {run.status} after {rounds} round{'s'[: rounds != 1]}; the output ends there")
    return run


def table(runs: Folders, style: TableStyle, sort: SortBy = None) -> None:
    """Print the results of runs, and the cost of each target accuracy."""
    from edgesim.reports.stats import summary

    form, found = style.name, all_opened(runs)
    if sort:
        found = [found[place] for place in order(flat(found), sort)]
    if form == "csv":
        print_csv(flat(found))
    elif form == "json":
        print_json({"runs": [_identity(run) | summary(run) for run in found]})
    else:
        print_runs(found, form)


def flat(runs: Sequence[Run]) -> pd.DataFrame:
    """Return a row for each run: run, folder, seed, its summary, and its costs until each target (sim_time_s@0.75)."""
    import pandas as pd

    from edgesim.reports.stats import costs_of, summary

    rows = []
    for run in runs:
        found = summary(run)
        targets = found.pop("targets")
        until = {
            f"{'rounds' if name == 'round' else name}@{target}": (costs or {}).get(name)
            for target, costs in targets.items()
            for name in costs_of(run)
        }
        rows.append(_identity(run) | found | until)
    return pd.DataFrame(rows).convert_dtypes()


def _identity(run: Run) -> dict[str, object]:
    return {"run": run.name, "folder": str(run.folder), "seed": run.seed}


# --- rounds -----------------------------------------------------------------------------------------------------


def trace(
    shown: ShownRun,
    out: Annotated[Path, typer.Option(help="The JSON file to write.")] = Path("trace.json"),
    rounds: Annotated[str | None, typer.Option(metavar="A:B", help="Show only these rounds, counted from 1.")] = None,
    devices: Annotated[int | None, typer.Option(min=1, help="Show only the N busiest devices.")] = None,
) -> None:
    """Write a run as a timeline for ui.perfetto.dev or chrome://tracing (trace-event format)."""
    from edgesim.reports.timeline import write_trace

    check_file(out)
    print(write_trace(shown.open(), out, parse_rounds(rounds) if rounds else None, devices))


def parse_rounds(given: str) -> tuple[int, int]:
    """Return the first and last round of a text such as "3:5" or "4". Raises ConfigError for other texts."""
    match = re.fullmatch(r"([1-9]\d*)(?::([1-9]\d*))?", given)
    first, last = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
    if last < first:
        raise ConfigError(f"--rounds: {given!r} is not a range of rounds; write for example 3:5, counted from 1")
    return first, last


def explain(
    shown: ShownRun,
    number: RoundNumber,
    intervals: Annotated[
        bool, typer.Option("--intervals", help="Add 90 % intervals of the computations that the round waited for.")
    ] = False,
) -> None:
    """Explain the length of a round: its end, and the time spent in each step."""
    from edgesim.reports.critical_path import explain as in_words

    print_prose(in_words(shown.open(), number, intervals))


# --- energy, cost and participation ------------------------------------------------------------------------------


def energy(
    shown: ShownRun,
    by: Annotated[
        str,
        typer.Option(
            metavar="KEYS", help="One or more of account, device, kind, component, activity, job, round, with commas."
        ),
    ] = "component,activity",
    as_json: AsJson = False,
) -> None:
    """Print the energy of devices, network and server: sums and shares of each account."""
    from edgesim.reports.energy import ACCOUNT, ACCOUNTS, KEYS, KIND, split_energy

    run = shown.open()
    keys, split = names_in("--by", by, [*KEYS, KIND, ACCOUNT]), split_energy(run)
    others = {name: split[f"energy_{name}_j"] for name in ACCOUNTS[1:]}
    if any(others.values()) and ACCOUNT not in keys:
        keys = [ACCOUNT, *keys]
    sums = energy_by(run, keys)
    if as_json:
        print_json({"status": run.status, **split, "by": records(sums)})
        return
    columns = {name: heading(name) for name in [*keys, "joules", "share"]}
    of_devices = ("energy_j", "active_j", "idle_j", "participant_j")
    whole, active, idle, participants = (text(name, split[name]) for name in of_devices)
    title = f"{run.name}: {whole} = {active} active + {idle} idle; {participants} without devices that were never asked"
    title += "".join(f"; {name} {text('energy_j', joules)}" for name, joules in others.items() if joules)
    rows = sums.assign(share=[f"{share:.1%}" for share in sums["share"]]).to_dict("records")
    print_table(rows, columns, title, keys=len(keys))


def energy_by(run: Run, keys: list[str]) -> pd.DataFrame:
    """Return joules and shares as `edgesim.reports.energy.energy_by`, with the keys as columns.

    Rounds count from 1 here. Job and round are missing for joules that belong to none.
    """
    from edgesim.reports.energy import energy_by as by_index

    sums = by_index(run, *keys).reset_index()
    for key, first in {"job": 0, "round": 1}.items():
        if key in keys:
            sums[key] = sums[key].astype("Int64").where(sums[key] >= 0) + first
    return sums


def cost(
    shown: ShownRun,
    by: Annotated[str, typer.Option(metavar="KEY", help="One of item, round, device, kind.")] = "item",
    as_json: AsJson = False,
) -> None:
    """Print the money and carbon that a run cost by the prices of its scenario: sums and shares."""
    import pandas as pd

    from edgesim.records.schema import COSTS
    from edgesim.reports.energy import cost_by

    run = shown.open()
    sums, currency = cost_by(run, by), run.currency
    totals = {name: float(sums[name].sum()) for name in COSTS}
    if as_json:
        print_json({"status": run.status, "currency": currency or None, **totals, "by": records(sums)})
        return
    rows, said = pd.DataFrame({by: sums[by].astype(object).where(sums[by].notna(), "after")}), []
    money, carbon = ("cost_low", "cost", "cost_high", currency), ("co2e_low_g", "co2e_g", "co2e_high_g", "g")
    for low, name, high, unit in (money, carbon):
        said.append(_with_band(totals[low], totals[name], totals[high], unit))
        if totals[name] or totals[high]:
            rows[name] = [_with_band(row[low], row[name], row[high], unit) for row in sums.to_dict("records")]
            rows[f"{name}_share"] = [f"{share:.1%}" for share in sums[name] / (totals[name] or 1.0)]
    headings = {by: by, "cost": "money", "cost_share": "of it", "co2e_g": "CO2e", "co2e_g_share": "of it"}
    ended = run.manifest.get("totals")  # missing while a run goes on
    last_s = float(run.rounds["now_s"].iloc[-1]) if len(run.rounds) else 0.0
    sim_time_s = float(ended["sim_time_s"]) if ended else last_s
    title = f"{run.name}: {said[0]} and {said[1]} CO2e in {text('sim_time_s', sim_time_s)}"
    print_table(rows.to_dict("records"), {key: word for key, word in headings.items() if key in rows}, title)


def _with_band(low: float, typical: float, high: float, unit: str) -> str:
    band = f" ({plain(low, 4)} to {plain(high, 4)})" if (low, high) != (typical, typical) else ""
    return f"{plain(typical, 4)}{band} {unit}".rstrip()


def devices(
    shown: ShownRun,
    each: Annotated[bool, typer.Option("--each", help="Print a row for each device instead of each kind.")] = False,
    as_json: AsJson = False,
) -> None:
    """Print participation by device kind: jobs, late jobs, mean times, bytes and joules."""

    run = shown.open()
    found = run.participation(each)
    if as_json:
        print_json({"status": run.status, "rounds": len(run.rounds), "devices" if each else "kinds": records(found)})
        return
    rows = found.astype(object)
    for name in _SHARES:
        rows[name] = [None if share != share else f"{share:.1%}" for share in found[name]]
    rounds = f"{len(run.rounds)} round{'s'[: len(run.rounds) != 1]}"
    columns = {name: heading for name, heading in _HEADINGS.items() if name in rows}
    print_table(rows.to_dict("records"), columns, f"{run.name}: {len(run.jobs)} jobs in {rounds}")


def diff(
    run_a: OneRun,
    run_b: Annotated[Path, typer.Argument(metavar="RUN", help="Another run folder.")],
    tolerance: Tolerances = None,
) -> None:
    """Compare tables and weights of two runs value by value. The exit code is 1 if they differ.

    A tolerance applies to a column as in rounds.energy_j, to all columns of a name as in energy_j, or to `weights`.
    """
    from edgesim.reports.compare import diff as compared

    allowed = tolerances_of(tolerance or [])
    found = compared(opened(run_a), opened(run_b), allowed)
    if found.empty:
        print("identical" if not allowed else "equal within the tolerances")
        return
    print_frame(found.astype({"a": "str", "b": "str"}))
    raise typer.Exit(1)
