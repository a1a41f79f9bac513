"""What do edgesim's own parts cost beside the library parts that could replace them? Each against its alternatives.

CPU time of one thread, for the pools of both processes. The contestants take turns. Three promises are measured as
well: whether a damaged file is refused, which processes outlive their parent, and which weights have the same bits.
The decisions that follow are in docs/decisions/0007-own-infrastructure.md.

Run: python benchmarks/alternatives.py [--hidden N] [--devices N] [--jobs N]
"""

from __future__ import annotations

import inspect
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from hashlib import sha256
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import psutil
import torch
import torch.nn.functional as F
from pydantic import TypeAdapter
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.serialization import safe_globals

from edgesim.config.describe import keys_of
from edgesim.config.plugins import PACKAGES, find, places_of
from edgesim.core.local_sgd import LocalSGD
from edgesim.core.task import Submodel, Task
from edgesim.core.update import ModelState, Update
from edgesim.execution.processes import ProcessPool
from edgesim.execution.serialization import read_tree, records_in, write_tree
from edgesim.execution.shared_memory import MemoryBlock, SharedMemory
from edgesim.learning.models.build import model_state_of
from edgesim.learning.objectives.classification import Classification
from edgesim.learning.train.adam import AdamMoments, adam_step
from edgesim.learning.train.loop import output_gradients
from edgesim.learning.train.stacked import LinearStep, StackedNetwork
from networks import Mlp, SmallCnn
from rows import Figures, Found, Row, alone, compared, in_turns, of

BATCH, LR, STEPS = 32, 0.1, 20
PATIENCE_S = 5.0  # for processes to end after their parent
WIDTH = 120  # characters of a source line
QUICK = {"hidden": 20, "devices": 2, "jobs": 2}


def rows(hidden: int = 2000, devices: int = 10, jobs: int = 10, repeats: int = 15) -> Iterator[Found]:
    """Yield what each part and its alternatives cost, and what they promise.

    `hidden`: units of the network that is saved and sent. `devices`: trained in one call. `jobs`: that use one model.
    """
    torch.set_num_threads(1)
    model = model_state_of(nn.Sequential(nn.Flatten(), nn.Linear(784, hidden), nn.ReLU(), nn.Linear(hidden, 10)))
    with tempfile.TemporaryDirectory() as folder:
        yield from files(model, Path(folder), repeats)
    yield from pools(model, jobs, repeats)
    yield from left_processes()
    for net in (Mlp(), SmallCnn()):
        yield from steps_of_many(net, devices, 20 * repeats)
        yield from adam_steps(net, 20 * repeats)
    yield from meanings(repeats)


def cpu(work: Callable[[], object]) -> Callable[[], Figures]:
    """Return work that is measured in milliseconds of this thread's CPU: its figure is "ms"."""

    def measured() -> Figures:
        start_s = time.thread_time()
        work()
        return {"ms": 1e3 * (time.thread_time() - start_s)}

    return measured


def counted(name: str, value: float, note: str) -> Row:
    """Return the row of a figure that is the same in every repeat and has no baseline."""
    return Row(name=name, value=value, low=value, high=value, unit="", note=note)


# --- files ------------------------------------------------------------------------------------------------------------


def files(model: ModelState, folder: Path, repeats: int) -> Iterator[Found]:
    """Yield the cost of writing and of reading an update, and the share of damaged files that are refused."""
    tree = {"update": Update(0, 0, Task(submodel=Submodel()), model, 1, 1, 0, {"loss": 0.5}), "sent": (1, 2.0)}
    records = records_in("edgesim.core.update", "edgesim.core.task")
    ours, torchs = folder / "ours", folder / "torch"

    def write() -> None:
        with ours.open("wb") as file:
            write_tree(file, tree, records)

    def torch_load(source: Path) -> Any:
        with safe_globals([frozenset, *records.values()]):
            return torch.load(source, weights_only=True)

    def and_hash(work: Callable[[], object]) -> None:
        work()
        sha256(torchs.read_bytes())

    writers: dict[str, Callable[[], object]] = {
        "edgesim": write,
        "torch.save": lambda: torch.save(tree, torchs),
        "torch.save, SHA-256": lambda: and_hash(lambda: torch.save(tree, torchs)),
    }
    readers: dict[str, Callable[[], object]] = {
        "edgesim": lambda: read_tree(ours, records, *tree),
        "torch.load": lambda: torch_load(torchs),
        "torch.load, SHA-256": lambda: and_hash(lambda: torch_load(torchs)),
    }
    note = f"An update of {sum(map(Tensor.numel, model['params'].values())):,} parameters, in CPU time."
    for does, base, contestants in (("written", "torch.save", writers), ("read", "torch.load", readers)):
        found = in_turns({name: cpu(work) for name, work in contestants.items()}, repeats, warm_ups=1)
        yield from compared(of(found, "ms"), base, "ms", note, about=f"file {does}")
    note = "Share of the files with one flipped bit that are refused, over 64 places of the bit."
    yield counted("damaged files: edgesim", refused(ours, lambda file: read_tree(file, records, *tree)), note)
    yield counted("damaged files: torch.load", refused(torchs, torch_load), note)


def refused(whole: Path, read: Callable[[Path], object]) -> float:
    """Return the share of copies of a file that cannot be read, each with one flipped bit."""
    content, damaged, failed = whole.read_bytes(), whole.with_suffix(".damaged"), 0
    places = range(0, len(content), -(-len(content) // 64))
    for place in places:
        damaged.write_bytes(content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :])
        try:
            read(damaged)
        except Exception:  # a damaged file may raise any
            failed += 1
    return failed / len(places)


# --- processes --------------------------------------------------------------------------------------------------------

_MEMORIES: list[SharedMemory] = []  # in a worker process: where it reads and where it writes
_SENT: list[MemoryBlock] = []  # in a worker process: its last answer


def start_worker(*memories: SharedMemory) -> None:
    """Start a worker process that finds models in shared memory."""
    torch.set_num_threads(1)
    _MEMORIES[:] = memories


def train_shared(block: MemoryBlock) -> tuple[MemoryBlock, float]:
    """Return the place of a changed model, and the CPU seconds of this process so far."""
    inbox, outbox = _MEMORIES
    if _SENT:
        outbox.free(_SENT.pop())
    _SENT.append(outbox.put(changed(inbox.get(block, copied=False))))
    return _SENT[0], time.process_time()


def train_sent(model: ModelState) -> tuple[ModelState, float]:
    """Return a changed model, and the CPU seconds of this process so far."""
    return changed(model), time.process_time()


def changed(model: ModelState) -> ModelState:
    """Return a model with other weights."""
    return {kind: {name: tensor + 1 for name, tensor in tensors.items()} for kind, tensors in model.items()}


def executor() -> ProcessPoolExecutor:
    """Return a pool of the standard library. Its tensors travel by torch.multiprocessing."""
    return ProcessPoolExecutor(1, get_context("forkserver"), start_worker)


def pools(model: ModelState, jobs: int, repeats: int) -> Iterator[Found]:
    """Yield the CPU time of this process and of a worker for jobs that get one model and return one each."""
    memories = inbox, outbox = SharedMemory(), SharedMemory()
    pool, library = ProcessPool("benchmark", 1, start_worker, memories), executor()

    def by_edgesim(fresh: ModelState) -> tuple[ModelState, float]:
        block = inbox.put(fresh)
        for _ in range(jobs):
            pool.give(0, train_shared, block)
            [(_, (sent, worker_s))] = pool.take(wait=True)
            found = outbox.get(sent, copied=True)
        inbox.free(block)
        return found, worker_s

    def by_library(fresh: ModelState) -> tuple[ModelState, float]:
        for _ in range(jobs):
            found, worker_s = library.submit(train_sent, fresh).result()
        return found, worker_s

    def measured(run: Callable[[ModelState], tuple[ModelState, float]], before: list[float]) -> Figures:
        fresh = changed(model)  # as each round has a new model
        start_s = time.process_time()
        found, worker_s = run(fresh)
        used_s = time.process_time() - start_s + worker_s - before.pop()
        before.append(worker_s)
        assert torch.equal(found["params"]["1.weight"], fresh["params"]["1.weight"] + 1)
        return {"ms": 1e3 * used_s / jobs}

    base = "ProcessPoolExecutor"
    contestants = {"edgesim": partial(measured, by_edgesim, [0.0]), base: partial(measured, by_library, [0.0])}
    with library:
        found = in_turns(contestants, repeats, warm_ups=2)
    pool.close()
    note = f"One of {jobs} jobs with the same model, sent there and back, in CPU time of both processes."
    yield from compared(of(found, "ms"), base, "ms", note, about="job in a process")


def wait_to_be_killed(whose: str) -> None:
    """Start a worker process, say so, and wait: `left_processes` kills this process."""
    pool, library = ProcessPool("benchmark", 1), executor()
    if whose == "edgesim":
        pool.begin()
    else:
        library.submit(time.sleep, 0).result()
    print("ready", flush=True)
    time.sleep(60)


def left_processes() -> Iterator[Found]:
    """Yield the number of processes that outlive a killed parent, for each pool."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    for whose in ("edgesim", "ProcessPoolExecutor"):
        code = f"import {Path(__file__).stem} as benchmark; benchmark.wait_to_be_killed({whose!r})"
        pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}  # Python warns of semaphores
        with subprocess.Popen([sys.executable, "-c", code], env=environment, text=True, **pipes) as parent:
            assert parent.stdout is not None and parent.stdout.readline() == "ready\n"
            started = psutil.Process(parent.pid).children(recursive=True)
            parent.kill()
        end_s = time.monotonic() + PATIENCE_S
        while (left := [each for each in started if is_running(each)]) and time.monotonic() < end_s:
            time.sleep(0.1)
        for process in left:
            process.kill()
        note = f"Processes that still run {PATIENCE_S:g} s after their parent was killed, of {len(started)}."
        yield counted(f"left processes: {whose}", len(left), note)


def is_running(process: psutil.Process) -> bool:
    """Return True if a process has not ended."""
    try:
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


# --- training ---------------------------------------------------------------------------------------------------------


class Opaque(nn.Module):
    """A network whose chain of layers edgesim cannot see. Its backward pass is autograd's, layer by layer."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, x: Tensor) -> Any:
        """Return the logits."""
        return self.net(x)


def steps_of_many(net: nn.Module, devices: int, repeats: int) -> Iterator[Found]:
    """Yield the CPU time of a step of SGD on as many copies of a network. Raises AssertionError if they disagree."""
    x, y = torch.randn(devices, BATCH, 1, 28, 28), torch.randint(10, (devices, BATCH))
    shares = torch.full((devices * BATCH,), 1 / BATCH)
    objective = Classification()
    first = {name: torch.stack([p.detach()] * devices) for name, p in net.named_parameters()}
    chain, layers, functional, mixed = ({name: p.clone() for name, p in first.items()} for _ in range(4))

    def by_edgesim(net: nn.Module, weights: dict[str, Tensor]) -> Callable[[], None]:
        network = StackedNetwork(net)
        bound = dict(zip(network.params, weights.values(), strict=True))
        network.bind(bound, network.params, frozenset(), None)
        network(x.flatten(0, 1))
        network.learn_uses()
        left = network.bind(bound, network.params, frozenset(), LinearStep(LR))

        def step() -> None:
            logits = network(x.flatten(0, 1))
            grads = network.gradients(logits, output_gradients(objective, logits, y.flatten(), shares))
            if left:  # layers that have not updated themselves
                torch._foreach_add_([bound[name] for name in left], grads, alpha=-LR)

        return step

    def forward(params: dict[str, Tensor], x: Tensor) -> Any:
        return functional_call(net, params, (x,))

    slopes = vmap(grad(lambda params, x, y: F.cross_entropy(forward(params, x), y)))

    def by_vmap() -> None:
        grads = slopes(functional, x, y)
        torch._foreach_add_(list(functional.values()), [grads[name] for name in functional], alpha=-LR)

    def by_autograd() -> None:
        leaves = [p.requires_grad_() for p in mixed.values()]
        logits = vmap(forward)(mixed, x)
        loss = F.cross_entropy(logits.flatten(0, 1), y.flatten(), reduction="sum") / BATCH
        grads = torch.autograd.grad(loss, leaves)
        with torch.no_grad():
            torch._foreach_add_(leaves, grads, alpha=-LR)

    contestants = {
        "edgesim": by_edgesim(net, chain),
        "edgesim, layer by layer": by_edgesim(Opaque(net), layers),
        "vmap(grad)": by_vmap,
        "vmap, torch.autograd": by_autograd,
    }
    for step in contestants.values():
        step()
    for name, weights in chain.items():
        assert torch.equal(weights, layers[name]), name
        assert all(torch.allclose(weights, other[name], atol=1e-5) for other in (functional, mixed)), name
    found = in_turns({name: cpu(step) for name, step in contestants.items()}, repeats, warm_ups=3)
    note = f"A step of {devices} devices together, batches of {BATCH}, on one thread, in CPU time."
    yield from compared(of(found, "ms"), "vmap(grad)", "ms", note, about=f"{type(net).__name__}, step of many")


def adam_steps(net: nn.Module, repeats: int) -> Iterator[Found]:
    """Yield the CPU time of a step of Adam, and the share of weights with the same bits after several."""
    grads = [torch.randn_like(p) for p in net.parameters()]
    ways: dict[str, dict[str, Any]] = {"": {}, ", foreach": {"foreach": True}, ", fused": {"fused": True}}
    names = ["edgesim", *(f"torch.optim.Adam{way}" for way in ways)]
    weights = {name: [p.detach().clone() for p in net.parameters()] for name in names}
    for tensors in weights.values():
        for tensor, slope in zip(tensors, grads, strict=True):
            tensor.grad = slope
    settings, own = LocalSGD(batch=BATCH, lr=1e-3, steps=1, optimizer="adam"), weights["edgesim"]
    moments = [AdamMoments(tensor) for tensor in own]
    steps: dict[str, Callable[[], object]] = {"edgesim": lambda: adam_step(own, grads, moments, settings)}
    for name, words in zip(names[1:], ways.values(), strict=True):
        steps[name] = torch.optim.Adam(weights[name], lr=settings.lr, **words).step
    about, note = type(net).__name__, f"Share of the weights with the bits of edgesim's after {STEPS} steps."
    for name, step in steps.items():
        for _ in range(STEPS):
            step()
        same = [(a == b).flatten() for a, b in zip(weights[name], own, strict=True)]
        yield counted(f"{about}, same bits: {name}", torch.cat(same).double().mean().item(), note)
    found = in_turns({name: cpu(step) for name, step in steps.items()}, repeats)
    note = "A step of Adam on all weights, on one thread, in CPU time."
    yield from compared(of(found, "ms"), "torch.optim.Adam", "ms", note, about=f"{about}, Adam")


# --- meanings of keys -------------------------------------------------------------------------------------------------


def meanings(repeats: int) -> Iterator[Found]:
    """Yield the CPU time of reading a part's keys, and the source lines of all keys as they are and with Doc."""
    part, _ = find("backend", "workers")
    base = "types and defaults alone"
    contestants = {
        "types, defaults and comments": cpu(lambda: keys_of(part)),
        base: cpu(lambda: TypeAdapter(part).json_schema()),
    }
    found = in_turns(contestants, repeats, warm_ups=1)
    note = "What `edgesim plugins show backend workers` says of the keys. Doc would leave the types alone."
    yield from compared(of(found, "ms"), base, "ms", note, about="keys of a part")
    classes = {find(kind, name)[0] for kind in PACKAGES for name in places_of(kind)}
    text = "\n".join(inspect.getsource(cls) for cls in classes)
    keys = re.findall(r"^    (\w+): ([^=#\n]+)( = .*)?  # (.*)$", text, re.MULTILINE)
    wide = [4 + len(f'{key}: Annotated[{kind}, Doc("{says}")]{default}') > WIDTH for key, kind, default, says in keys]
    note = "Source lines of the keys of all parts that have a comment, in the layout of the formatter."
    yield counted("lines of keys: comments", len(keys), note)
    yield counted("lines of keys: Annotated, Doc", len(keys) + 2 * sum(wide), note)


if __name__ == "__main__":
    alone(rows, QUICK)
