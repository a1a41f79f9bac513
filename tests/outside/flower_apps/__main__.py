"""Runs public Flower apps, unmodified, under edgesim and under Flower's own simulation, and writes what came out.

It takes a checkout of the repository that `listing.py` names, flwr and the packages of the apps, and EDGESIM_DATA with
CIFAR-10 and MNIST. What the apps would download is replaced by `stand_ins.py`.

Run: python -m tests.outside.flower_apps CHECKOUT WORK [NAME ...] [--write docs/reference/flower_apps.md]
"""

from __future__ import annotations

import argparse
import json
import os
import pickle
import re
import shlex
import subprocess
import sys
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from tests.outside.flower_apps.compare import difference
from tests.outside.flower_apps.listing import APPS, PublicApp
from tests.outside.flower_apps.page import page
from tests.outside.flower_apps.stand_ins import environment, write_all, write_metric

ROOT = Path(__file__).parents[3]
PATHS = re.compile(r" in /[^ ]*| \(/[^)]*\)")  # of this machine
LIMIT_S = 900.0  # of one run
OTHERS = {"OMP_NUM_THREADS": "1", "PYTHONHASHSEED": "0", "WANDB_MODE": "offline", "FLWR_TELEMETRY_ENABLED": "0"}


def fleet(devices: int) -> str:
    """Return a fleet file: boards of two speeds, with the links of their profiles."""
    old = (devices + 1) // 2
    boards = (("pi 4", old, "raspberry_pi_4"), ("pi 5", devices - old, "raspberry_pi_5"))
    tables = [
        f'[[fleet]]\nname = "{name}"\ncount = {count}\nprofile = "{profile}"\n' for name, count, profile in boards
    ]
    return "\n".join(("seed = 1\n", *tables))


def ran(words: Sequence[str], folder: Path, log: str, variables: dict[str, str]) -> str:
    """Run a module of Python in a folder; return "" or why it failed."""
    paths = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    with (folder / log).open("w") as out:
        try:
            code = subprocess.run(
                [sys.executable, "-m", *words],
                cwd=folder,
                env={**os.environ, **OTHERS, **variables, "PYTHONPATH": paths},
                stdout=out,
                stderr=subprocess.STDOUT,
                timeout=LIMIT_S,
            ).returncode
        except subprocess.TimeoutExpired:
            return f"took longer than {LIMIT_S:g} s"
    if not code:
        return ""
    lines = [line.strip() for line in (folder / log).read_text(errors="replace").splitlines() if line.strip()]
    last = lines[-1] if lines else f"exit code {code}"
    return PATHS.sub("", last)


def run_app(app: PublicApp, checkout: Path, work: Path) -> dict[str, Any]:
    """Run one app both ways in a folder of its own; return its row."""
    path, folder = app.path(checkout).absolute(), (work / app.name).absolute()
    folder.mkdir(parents=True, exist_ok=True)
    write_metric(folder)
    (folder / "fleet.toml").write_text(fleet(app.devices))
    variables = environment((work / "caches").absolute())
    config = " ".join(f"{key}={json.dumps(value)}" for key, value in app.config.items())
    words = ["flower", "run", str(path), "--fleet", "fleet.toml", "--out", "run", "--overwrite", "--fresh"]
    words += ["--run-config", config] if config else []
    words += ["--host-seconds"] if app.host_seconds else []
    failed = ran(["tests.outside.flower_apps.recorded", "edgesim.pkl", *words], folder, "edgesim.log", variables)
    row: dict[str, Any] = {"name": app.name, "failed": failed}
    row |= {"command": shlex.join(["edgesim", *words])}
    if failed:
        return row
    row |= _told(folder / "run")
    notes = pickle.loads((folder / "edgesim.pkl").read_bytes())
    row["errors"] = sum("error" in each.values for each in notes.got)
    words = ["tests.outside.flower_apps.reference", str(path), "--devices", str(app.devices)]
    words += ["--config", config, "--notes", "edgesim.pkl", "--out", "flower.pkl"]
    row["reference_failed"] = ran(words, folder, "flower.log", variables)
    if not row["reference_failed"]:
        row |= vars(difference(notes, pickle.loads((folder / "flower.pkl").read_bytes()), app.without))
    return row


def _told(folder: Path) -> dict[str, Any]:
    """Return the totals of a run folder, with the accuracy or else the loss of the last test."""
    import edgesim

    manifest = json.loads((folder / "manifest.json").read_text())
    evals = edgesim.open(folder).evals
    tests = evals[evals["split"] == "test"] if len(evals) else evals
    last = {} if tests.empty else tests.iloc[-1][["accuracy", "loss"]].astype(float).to_dict()
    totals = manifest["totals"]
    return {
        "rounds": manifest["rounds"],
        "status": manifest["status"],
        "warnings": manifest["warnings"],
        "sim_time_s": totals["sim_time_s"],
        "energy_j": totals["energy_j"],
        "flops": totals["flops"],
        **{key: value for key, value in last.items() if value == value},
    }


def main() -> None:
    """Run the named apps, or all, and print a line of each. Rows of earlier calls stay in the work folder."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("checkout", type=Path)
    parser.add_argument("work", type=Path)
    parser.add_argument("names", nargs="*", metavar="NAME", help="apps; default: all")
    parser.add_argument("--write", type=Path, metavar="PAGE", help="write the table of all rows found so far")
    parser.add_argument("--only-write", action="store_true", help="run none")
    given = parser.parse_args()
    if not (given.work / "caches").is_dir():
        write_all(given.work / "caches", Path(os.environ.get("EDGESIM_DATA", "data")))
    for app in APPS:
        if not given.only_write and (not given.names or app.name in given.names):
            row = run_app(app, given.checkout, given.work)
            (given.work / app.name / "row.json").write_text(json.dumps(row, indent=1))
            print(json.dumps(row), flush=True)
    if given.write:
        files = {app.name: given.work / app.name / "row.json" for app in APPS}
        rows = {name: json.loads(file.read_text()) for name, file in files.items() if file.exists()}
        given.write.write_text(page(rows, {name: version(name).partition("+")[0] for name in ("flwr", "torch")}))


if __name__ == "__main__":
    main()
