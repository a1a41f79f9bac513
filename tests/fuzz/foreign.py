"""Fuzzes users' code: hostile Flower apps and training loops must neither break the run nor leave anything behind.

    python -m tests.fuzz.foreign --cases 1000 --seed 1 [--case N] [--workers 2] [--write PAGE]

A case is one app of three devices and two rounds, or a training loop of a FedAvg scenario, with one to three hostile
acts. It runs twice, the second time with cached answers. A verdict needs that no traceback names edgesim, that the exit
code is right, that the run folder can be read and its ledger closes, that the process is as before, and that both runs
have equal tables. Acts that should change nothing must give the tables of the same case without acts.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import os
import re
import shutil
import sys
import tempfile
import traceback
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from random import Random
from textwrap import indent
from typing import Any, Literal, NamedTuple

from tests.fuzz.hostility import ACTS, HARMLESS, Act, Effect, body_of
from tests.fuzz.process_facts import differences, process_facts
from tests.fuzz.scenarios import unsound
from tests.fuzz.tries import Limits, Verdict, verdicts

LIMITS = Limits(wall_s=120.0)
TIMEOUT_S = 1.5  # of a call that does not end; others end long before on a busy host too
LONGEST_LINE = 800  # characters of an error
_ON_THE_WAY = {"_ring", "__torch_dispatch__"}  # functions of edgesim between two lines of an app

# Acts that outlive their calls: they may change what later calls draw or find, and with it the app's own results.
_THREADS = "starts threads that go on"
_CAUGHT = "loops for ever and catches every exception"
_LOCKED = "loops for ever in C code or in locks"
_NO_LOOP = {"waits for ever on this host", "loops for ever", _CAUGHT, _LOCKED}  # a training loop has no time limit
_OUTLIVE = {_THREADS, "changes files of the app", "replaces functions of NumPy and torch"}
_OUTLIVE |= {_LOCKED}  # whether it or its worker ends first depends on the host


class Placed(NamedTuple):
    """An act in a case: when it is done, and by which devices. `device`: None: by all."""

    act: Act
    body: str
    before: bool  # the training of the call
    device: int | None
    later: bool  # in the second round only
    evaluates: bool  # in evaluations, not in trainings


class Case(NamedTuple):
    """One app or training loop with its acts. `workers`: 0: calls run in the process of the run."""

    form: Literal["app", "loop"]
    placed: tuple[Placed, ...]
    workers: int

    @property
    def effects(self) -> set[str]:
        """Effects of all acts."""
        return {each.act.effect for each in self.placed}


def case_of(seed: int, number: int) -> Case:
    """Return a case by its number."""
    random = Random(f"{seed}/{number}")
    form: Literal["app", "loop"] = random.choice(["app", "app", "loop"])
    acts = HARMLESS if random.random() < 0.05 else ACTS
    fit = [act for act in acts if form == "app" or not (act.flower or act.kind in _NO_LOOP)]
    kinds = sorted({act.kind for act in fit})
    placed = []
    for _ in range(random.choice([1, 1, 2, 3])):
        kind = random.choice(kinds)
        act = random.choice([each for each in fit if each.kind == kind])
        placed.append(_placed(act, form, random))
    return Case(form, tuple(placed), _workers(placed, random))


def _placed(act: Act, form: str, random: Random) -> Placed:
    device = random.choice([None, 0, 1, 2])
    evaluates = form == "app" and random.random() < 0.2
    return Placed(act, body_of(act, random), random.random() < 0.5, device, random.random() < 0.3, evaluates)


def _workers(placed: Sequence[Placed], random: Random) -> int:
    if any(each.act.effect in ("kills", "spoils") or each.act.kind == _CAUGHT for each in placed):
        return 1  # on a busy host a call that catches everything may take so long that its process is ended
    return random.choice([0] * 15 + [1, 2])


# --- files of a case ----------------------------------------------------------------------------------------------

_PYPROJECT = """
[project]
name = "hostile"
version = "1.0.0"
dependencies = ["flwr"]

[tool.flwr.app]
publisher = "edgesim"

[tool.flwr.app.components]
serverapp = "server:app"
clientapp = "client:app"

[tool.flwr.app.config]
rounds = 2
"""

_SERVER = """
import numpy as np
from flwr.app import ArrayRecord
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg

app = ServerApp()


@app.main()
def main(grid, context):
    strategy = FedAvg(fraction_train=1.0, fraction_evaluate=1.0, min_available_nodes=3)
    arrays = ArrayRecord([np.ones((4, 3), np.float32), np.zeros(3, np.float32)])
    strategy.start(grid=grid, initial_arrays=arrays, num_rounds=context.run_config["rounds"])
"""

_CLIENT = '''
"""A client that trains a linear layer, and does hostile things on the way."""

import random

import numpy as np
import torch
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

app = ClientApp()
KEPT = []


class Scene:
    pass


{acts}
def answer(message, context, evaluates):
    device, later = context.node_config["partition-id"], message.content["config"]["server-round"] > 1
    scene = Scene()
    scene.message, scene.context, scene.answer = message, context, None
    scene.arrays = message.content["arrays"].to_numpy_ndarrays()
    scene.metrics = {{"loss": 1.0, "accuracy": 0.5, "num-examples": 10 + device}}
    for act, before, devices, only_later, in_evaluations in ACTS:
        if before and device in devices and later >= only_later and evaluates == in_evaluations:
            act(scene)
    if not evaluates:
        draws = [random.random(), float(np.random.rand()), float(torch.rand(()))]
        weight = torch.ones(4, 3, requires_grad=True)
        (torch.ones(5, 4) @ weight).sum().backward()
        scene.arrays = [array + np.float32(0.01 * sum(draws)) for array in scene.arrays]
    for act, before, devices, only_later, in_evaluations in ACTS:
        if not before and device in devices and later >= only_later and evaluates == in_evaluations:
            act(scene)
    if scene.answer is not None:
        return scene.answer
    records = RecordDict({{"metrics": MetricRecord(scene.metrics)}})
    if not evaluates:
        records["arrays"] = ArrayRecord(scene.arrays)
    return Message(records, reply_to=message)


@app.train()
def train(message, context):
    return answer(message, context, False)


@app.evaluate()
def evaluate(message, context):
    return answer(message, context, True)


ACTS = [{table}]
'''

_LOOP = '''
"""A training loop that does hostile things on the way."""

import random

import numpy as np
import torch
from torch.nn.functional import cross_entropy

KEPT = []


class Scene:
    pass


{acts}
def train(model, data, config):
    device, later = config.device_id, config.round > 1
    scene = Scene()
    scene.answer, scene.metrics = None, {{}}
    scene.arrays = [value.detach().numpy() for value in model.state_dict().values()]
    for act, before, devices, only_later, _ in ACTS:
        if before and config.round and device in devices and later >= only_later:
            act(scene)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x, y = data.tensors
    for places in torch.split(torch.randperm(len(data)), config.batch):
        optimizer.zero_grad()
        cross_entropy(model(x[places] + 0.01 * random.random() + 0.01 * float(np.random.rand())), y[places]).backward()
        optimizer.step()
    for act, before, devices, only_later, _ in ACTS:
        if not before and config.round and device in devices and later >= only_later:
            act(scene)
    samples = scene.metrics.pop("num-examples", len(data))
    return {{"samples": samples, "metrics": scene.metrics}} if scene.answer is None else scene.answer


ACTS = [{table}]
'''

_FLEET = """
seed = 3
network = { name = "fixed", up = "1 Mbit/s", down = "8 Mbit/s", latency = 0.02 }
energy = { name = "power", idle = "1 W", busy = "4 W", transmit = "1 W", receive = "0.5 W" }
[[fleet]]
count = 1
cpu = { flops_per_s = "20 MFLOP/s" }
[[fleet]]
count = 2
cpu = { flops_per_s = "30 MFLOP/s" }
"""

_OF_LOOP = """
data = "digits"
partition = { name = "iid" }
model = "mlr"
training = { batch = 64, lr = 0.1 }
selection = { name = "all" }
stop = { rounds = 2 }
"""


def files_of(case: Case) -> Mapping[str, str]:
    """Return the files of a case by name."""
    functions, table = [], []
    for number, each in enumerate(case.placed):
        functions.append(f"def act_{number}(scene):\n{indent(each.body, '    ')}\n\n\n")
        devices = "(0, 1, 2)" if each.device is None else f"({each.device},)"
        table.append(f"(act_{number}, {each.before}, {devices}, {each.later}, {each.evaluates})")
    written = {"acts": "".join(functions), "table": ", ".join(table)}
    backend = f'backend = {{ name = "workers", workers = {case.workers} }}\n' if case.workers else ""
    limit_s = TIMEOUT_S if case.effects & {"endless", "kills", "spoils"} else 60.0
    if case.form == "app":
        app = f'app = {{ name = "flower", path = "app", call_timeout = {limit_s} }}\n'
        texts = {"pyproject.toml": _PYPROJECT, "server.py": _SERVER, "client.py": _CLIENT.format(**written)}
        return {"scenario.toml": app + backend + _FLEET, **{f"app/{name}": text for name, text in texts.items()}}
    method = 'method = { name = "fedavg", local = "hostile_loop:train" }\n'
    return {"scenario.toml": method + backend + _OF_LOOP + _FLEET, "hostile_loop.py": _LOOP.format(**written)}


# --- one run ------------------------------------------------------------------------------------------------------


class Outcome(NamedTuple):
    """How a run ended."""

    code: int
    said: str  # on stderr, by all its processes
    tables: str | None  # digest of the tables; None: there is no run folder
    status: str  # in the manifest
    fault: str  # what is wrong with it; "": nothing

    @property
    def line(self) -> str:
        """The last line of an error that the run said, without the user's own lines below it; else its last line."""
        lines = [line for line in reversed(self.said.splitlines()) if line.strip()]
        return next((line for line in lines if line.startswith("error: ")), lines[0] if lines else "")


def outcome_of(case: Case, folder: Path) -> Outcome:
    """Run a case by the command line, in this process, and return how that ended."""
    for name, text in files_of(case).items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8", errors="surrogateescape")
    before = process_facts()
    code, said = _commanded(["run", "scenario.toml", "--out", "runs/out", "--overwrite"], folder)
    sys.modules.pop("hostile_loop", None)
    if any(each.act.kind == _THREADS for each in case.placed):
        del before["random"]  # they still draw from it
    left = differences(before, process_facts())
    tables, status, fault = _read(folder / "runs" / "out")
    if "Traceback (most recent call last)" in said and (named := _edgesim_frames(said)):
        fault = f"a traceback names {named}: {_end(said)}"
    elif left:
        fault = f"the process is not as before: {left}"
    return Outcome(code, said, tables, status, fault)


def _commanded(words: Sequence[str], folder: Path) -> tuple[int, str]:
    """Return the exit code of a command in a folder, and what it and its children wrote to stderr."""
    from edgesim.cli.main import main

    os.environ["MPLBACKEND"] = "agg"  # as the command sets it
    argv, here, streams = list(sys.argv), Path.cwd(), (sys.stdout, sys.stderr)
    kept = [os.dup(number) for number in (1, 2)]
    with tempfile.TemporaryFile() as file:
        for number in (1, 2):
            os.dup2(file.fileno() if number == 2 else os.open(os.devnull, os.O_WRONLY), number)
        sys.stdout, sys.stderr = (os.fdopen(os.dup(number), "w", errors="backslashreplace") for number in (1, 2))
        os.chdir(folder)
        sys.argv = ["edgesim", *words]
        try:
            main()
            code: Any = 0
        except SystemExit as end:
            code = end.code
        except BaseException:
            os.write(2, traceback.format_exc().encode(errors="replace"))
            code = 70
        finally:
            with contextlib.suppress(Exception):
                sys.stderr.flush()
            os.chdir(here)
            sys.path[:] = [each for each in sys.path if each != str(folder)]
            sys.argv = argv
            sys.stdout, sys.stderr = streams
            for number, old in zip((1, 2), kept, strict=True):
                os.dup2(old, number)
                os.close(old)
        file.seek(0)
        return (code if isinstance(code, int) else 1), file.read().decode(errors="replace")


def _edgesim_frames(said: str) -> str:
    """Return the last frame of edgesim in tracebacks, "" if they have none.

    Those of `time.sleep` as apps see it, of counting torch's operations and of the end of a call's time may stand
    in what an app's own code logs.
    """
    from edgesim import __file__ as package

    frames = re.findall(rf'File "{re.escape(str(Path(package).parent))}/([^"]+)", line (\d+), in (\w+)', said)
    named = [each for each in frames if each[0] != "flower/app_time.py" and each[2] not in _ON_THE_WAY]
    return "{}:{}".format(*named[-1][:2]) if named else ""


def _end(said: str) -> str:
    return " / ".join(line.strip() for line in said.splitlines()[-3:])[:400]


def _read(folder: Path) -> tuple[str | None, str, str]:
    """Return a digest of the tables of a run folder, its status, and what is wrong with it."""
    from edgesim.core.errors import EdgesimError
    from edgesim.reports.load import open_run

    if not folder.exists():
        return None, "", ""
    try:
        run = open_run(folder)
        found = hashlib.sha256()
        for name in ("jobs", "rounds", "devices", "evals", "metrics"):
            found.update(run.table(name).to_csv().encode(errors="surrogatepass"))
        status = run.manifest["status"]
        fault = next((line for _, line in unsound(run)), "")
    except EdgesimError as error:
        return None, "", f"the run folder cannot be read: {error}"
    return found.hexdigest(), status, fault


# --- verdicts -----------------------------------------------------------------------------------------------------


@cache
def _plain_tables(form: Literal["app", "loop"]) -> str | None:
    """Return the tables of a case without acts."""
    with _folder() as folder:
        outcome_of(Case(form, (), 0), folder)  # loads what runs load
        outcome = outcome_of(Case(form, (), 0), folder)
    if outcome.code or outcome.fault:
        raise RuntimeError(f"without hostile acts: {outcome.fault} {outcome.line}")
    return outcome.tables


@contextlib.contextmanager
def _folder() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="edgesim-hostile-")).resolve()
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def judged(case: Case) -> tuple[str, Outcome]:
    """Return the fault of a case, "" if it has none, and how its first run ended."""
    plain = _plain_tables(case.form)
    with _folder() as folder:
        first = outcome_of(case, folder)
        again = outcome_of(case, folder)
    # what a process that dies has answered before may depend on the host as well
    outlives = any(each.act.kind in _OUTLIVE or each.act.effect == "kills" for each in case.placed)
    plain = None if outlives else plain  # tables to compare with
    fault = _fault(case, plain, first) or _fault(case, plain, again)
    return fault or ("" if outlives else _changed(first, again)), first


def _changed(first: Outcome, again: Outcome) -> str:
    if (first.code, first.tables) != (again.code, again.tables):
        told = (f"{each.code} {each.line} (tables {str(each.tables)[:8]})" for each in (first, again))
        return f"another outcome when it runs again: {', then '.join(told)}"
    return ""


def _fault(case: Case, plain: str | None, outcome: Outcome) -> str:
    if outcome.fault:
        return outcome.fault
    effects, code = case.effects, outcome.code
    if code not in (0, 1, 2):
        return f"exit code {code}: {_end(outcome.said)}"
    if code and not outcome.line.startswith("error: "):
        return f"exit code {code}, and no line of an error: {_end(outcome.said)}"
    if len(outcome.line) > LONGEST_LINE:
        return f"a line of {len(outcome.line)} characters: {outcome.line[:200]}"
    if (code == 0) != (outcome.status == "finished"):
        return f"exit code {code} of a run that is {outcome.status!r}"
    if effects <= {"silent"} and code:
        return f"exit code {code}, though nothing should change: {outcome.line}"
    if effects <= {"silent"} and outcome.tables != plain and plain is not None:
        return f"other tables, though nothing should change: {_end(outcome.said)}"
    return ""


def verdict(seed: int, number: int) -> Verdict:
    """Return the verdict on one case, tried in a folder of its own."""
    case = case_of(seed, number)
    try:
        fault, outcome = judged(case)
    except Exception as error:
        where = " < ".join(f"{f.name}:{f.lineno}" for f in reversed(traceback.extract_tb(error.__traceback__)[-4:]))
        return Verdict(number, "fault", f"{type(error).__name__}: {str(error)[:200]} ({where})")
    kinds = " + ".join(each.act.kind for each in case.placed)
    if fault:
        return Verdict(number, "fault", f"{case.form}: {kinds}: {fault}")
    return Verdict(number, {0: "finished", 1: "failed", 2: "refused"}[outcome.code], f"{kinds}: {outcome.line}")


# --- page ---------------------------------------------------------------------------------------------------------

_PROMISES: Mapping[Effect, str] = {
    "silent": "the run has the tables of a run without it",
    "answers": "its answer counts as it is, or is an error reply with a warning",
    "endless": "ends with the time of its call",
    "kills": "its worker ends, and the run with one line",
    "spoils": "goes on, or ends with one line",
}


def page(seed: int, found: Sequence[Verdict]) -> str:
    """Return the page of a run of this module in Markdown: how cases ended, by kind of act."""
    ended: dict[tuple[str, Effect], Counter[str]] = {(act.kind, act.effect): Counter() for act in ACTS}
    for each in found:
        for key in {(placed.act.kind, placed.act.effect) for placed in case_of(seed, each.case).placed} & ended.keys():
            ended[key][each.ended] += 1
    columns = ("finished", "failed", "refused", "fault")
    total = Counter(each.ended for each in found)
    lines = [
        "# Hostile code in apps and loops\n",
        f"`python -m tests.fuzz.foreign --cases {len(found)} --seed {seed} --write docs/reference/foreign_code.md`",
        "generates Flower clients and training loops that do one to three hostile things, runs each case twice, and",
        "writes this page. The second run takes what it can from the cache of answers. A case is a fault if edgesim",
        "shows a traceback of its own, if the run folder cannot be read, if its ledger does not close, if the process",
        "is not as before, if an exit code is wrong, or if the two runs differ. Runs may differ if a process was",
        "ended, or if threads or changed files outlive a call.",
        f"Of {len(found)} cases, {total['finished']} finished, {total['failed']} failed with exit code 1,",
        f"{total['refused']} ended with one line and exit code 2, and {total['fault']} were faults.\n",
        "A case with several acts counts in the row of each.\n",
        f"| the code | what edgesim promises | {' | '.join(columns)} |",
        "|---|---|" + "--:|" * len(columns),
    ]
    for (kind, effect), counted in ended.items():
        lines.append(f"| {kind} | {_PROMISES[effect]} | {' | '.join(str(counted[each]) for each in columns)} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Try cases and print the faults; the exit code is 1 if there are any."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--cases", type=int, default=100)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--case", type=int, help="show this one only")
    parser.add_argument("--write", type=Path, help="page in Markdown that shows how the cases ended")
    parser.add_argument("--all", action="store_true", help="print the verdicts on all cases")
    given = parser.parse_args()
    cases = range(given.first, given.first + given.cases)
    if given.case is not None:
        cases = range(given.case, given.case + 1)
        for name, text in files_of(case_of(given.seed, given.case)).items():
            print(f"--- {name}", text, sep="\n")
    found = []
    for each in verdicts(verdict, given.seed, cases, given.workers, LIMITS):
        found.append(each)
        if each.ended == "fault" or given.all or given.case is not None:
            print(f"--seed {given.seed} --case {each.case}: {each.ended}: {each.says}", flush=True)
    if given.write is not None:
        given.write.write_text(page(given.seed, found), encoding="utf-8")
    print(dict(Counter(each.ended for each in found)))
    sys.exit(any(each.ended == "fault" for each in found))


if __name__ == "__main__":
    main()
