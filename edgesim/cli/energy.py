"""The `energy` command: sums of joules and their shares."""

from __future__ import annotations

import pandas as pd

from edgesim.cli.show import print_json, print_table
from edgesim.core.errors import ConfigError
from edgesim.reports import energy
from edgesim.reports.energy import split_energy
from edgesim.reports.format import heading, text
from edgesim.reports.load import Run

_OF_DEVICES = ("energy_j", "active_j", "idle_j", "participant_j")
_KEYS = [*energy.KEYS, energy.KIND, energy.ACCOUNT]


def parse_keys(given: str) -> list[str]:
    """Return the columns in a text such as "component,activity". Raises ConfigError if one is unknown or twice."""
    keys = [key.strip() for key in given.split(",")]
    wrong = [key for place, key in enumerate(keys) if key not in _KEYS or key in keys[:place]]
    if wrong:
        raise ConfigError(f"--by: {wrong[0]!r} is unknown or twice in {given!r} (known: {', '.join(_KEYS)})")
    return keys


def energy_by(run: Run, keys: list[str]) -> pd.DataFrame:
    """Return joules and shares as `edgesim.reports.energy.energy_by`, with the keys as columns.

    Rounds count from 1 here; job and round are missing where joules belong to none.
    """
    sums = energy.energy_by(run, *keys).reset_index()
    for key, first in {"job": 0, "round": 1}.items():
        if key in keys:
            sums[key] = sums[key].astype("Int64").where(sums[key] >= 0) + first
    return sums


def print_energy(run: Run, by: str, as_json: bool = False) -> None:
    """Print what the joules of a run were spent on, a row for each value of the columns `by`.

    Where others than the devices spent any, `account` comes first. Raises ConfigError if `by` names no columns.
    """
    keys, split = parse_keys(by), split_energy(run)
    others = {name: split[f"energy_{name}_j"] for name in energy.ACCOUNTS[1:]}
    if any(others.values()) and energy.ACCOUNT not in keys:
        keys = [energy.ACCOUNT, *keys]
    sums = energy_by(run, keys)
    if as_json:
        rows = sums.astype(object).where(sums.notna(), None).to_dict("records")
        print_json({"status": run.status, **split, "by": rows})
        return
    shown = sums.assign(share=[f"{share:.1%}" for share in sums["share"]])
    columns = {name: heading(name) for name in [*keys, "joules", "share"]}
    whole, active, idle, participants = (text(name, split[name]) for name in _OF_DEVICES)
    title = f"{run.name}: {whole} = {active} active + {idle} idle; {participants} without devices that were never asked"
    title += "".join(f"; {name} {text('energy_j', joules)}" for name, joules in others.items() if joules)
    print_table(shown.to_dict("records"), columns, title, keys=len(keys))
