"""What does a device's job cost beside PyTorch's own kernels? 19 SGD steps of small networks against loops by hand.

One process, one thread, a job each in turns. A job starts from the weights of a model and ends with others: of edgesim
all that a backend does for it, of the loops the steps alone. Both loops take what is faster by hand: the network in
channels-last memory, rows gathered by index_select; "bare" also updates by torch._foreach_add_ and lets go of its
gradients before the next step, "usual" has torch.optim.SGD. All three end with the same bits, which is checked. With
compiled steps edgesim's weights are equal but for rounding. Making them takes a minute at the first time. Then an
evaluation of 10,000 test samples, against a loop over slices of as many samples as edgesim takes at once. The default
data are random images of the shape of FashionMNIST: no files needed.

Run: python benchmarks/step.py [--jobs N] [--data NAME]
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from itertools import cycle

import torch
import torch.nn.functional as F
from torch import Tensor

import edgesim
from edgesim.core.backend import CHUNK, Assignment
from edgesim.core.local_sgd import LocalSGD
from edgesim.core.rng import Key, Purpose
from edgesim.core.task import Task
from edgesim.learning.compiled.programs import Programs
from edgesim.learning.models.build import model_state_of
from edgesim.learning.train.torch_settings import plain_torch
from edgesim.learning.train.trainer import Trainer
from edgesim.runs.assembly import assemble
from networks import Mlp, SmallCnn
from rows import Figures, Found, alone, compared, in_turns, of

DEVICES, SAMPLES, BATCH, LR = 100, 600, 32, 0.1
WARM_UPS = 5
NOISE = {"name": "noise:RandomImages", "train": DEVICES * SAMPLES, "pixels": 28, "channels": 1}
QUICK = {"jobs": 2}


class ByHand:
    """A network trained and tested as anyone would write it."""

    def __init__(self, trainer: Trainer) -> None:
        data = trainer.data
        self.net = copy.deepcopy(trainer.module)
        self.params = list(self.net.parameters())
        self._shards = trainer.shards
        self._x, self._y = data.x_train.permute(0, 3, 1, 2), data.y_train
        self._tests = list(zip(data.x_test.permute(0, 3, 1, 2).split(CHUNK), data.y_test.split(CHUNK), strict=True))

    def usual(self, start: Mapping[str, Tensor], device: int, seed: int) -> list[Tensor]:
        """Return the weights after an epoch by torch.optim.SGD."""
        self.load(start)
        optimizer = torch.optim.SGD(self.params, lr=LR)
        for rows in self._batches(device, seed):
            optimizer.zero_grad()
            self._loss(rows).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        return [p.detach().clone() for p in self.params]

    def bare(self, start: Mapping[str, Tensor], device: int, seed: int) -> list[Tensor]:
        """Return the weights after an epoch by as little as possible."""
        self.load(start)
        for rows in self._batches(device, seed):
            grads = torch.autograd.grad(self._loss(rows), self.params)
            with torch.no_grad():
                torch._foreach_add_(self.params, grads, alpha=-LR)
            del grads
        return [p.detach().clone() for p in self.params]

    def evaluate(self, start: Mapping[str, Tensor]) -> tuple[float, int]:
        """Return loss and hits on the test samples."""
        self.load(start)
        loss, hits = 0.0, 0
        with torch.no_grad():
            for x, y in self._tests:
                logits = self.net(x)
                loss += F.cross_entropy(logits, y, reduction="sum").item()
                hits += int((logits.argmax(1) == y).sum())
        return loss, hits

    def load(self, start: Mapping[str, Tensor]) -> None:
        """Copy weights into the network."""
        with torch.no_grad():
            for parameter, value in zip(self.params, start.values(), strict=True):
                parameter.copy_(value)

    def _batches(self, device: int, seed: int) -> list[Tensor]:
        order = torch.randperm(SAMPLES, generator=torch.Generator().manual_seed(seed))
        return list(self._shards[device].index_select(0, order).split(BATCH))

    def _loss(self, rows: Tensor) -> Tensor:
        return F.cross_entropy(self.net(self._x.index_select(0, rows)), self._y.index_select(0, rows))


def trainer_of(model: str, data: str | None) -> Trainer:
    """Return what trains a network of this file as a run would."""
    scenario = {
        "data": data or NOISE,
        "partition": {"name": "iid", "samples_per_device": SAMPLES},
        "model": f"networks:{model}",
        "training": {"batch": BATCH, "lr": LR},
        "method": "fedavg",
        "stop": {"rounds": 1},
        "fleet": [{"count": DEVICES, "cpu": {"flops_per_s": "1 GFLOP/s"}}],
    }
    return assemble(edgesim.load(scenario)).make_trainer("cpu")


def rows(jobs: int = 100, data: str = "", repeats: int = 2) -> Iterator[Found]:
    """Yield CPU seconds of a job and of an evaluation, so many jobs a repeat; `data`: of this data set, not noise."""
    with plain_torch():
        for model in (Mlp, SmallCnn):
            yield from compare(model.__name__, data or None, jobs * repeats)


def compare(model: str, data: str | None, jobs: int) -> Iterator[Found]:
    """Yield the rows of one network. Raises AssertionError if the weights or the hits are not the same."""
    trainer = trainer_of(model, data)
    first, by_hand = model_state_of(trainer.module), ByHand(trainer)
    params, chunks = first["params"], range(trainer.chunks())
    task = Task(local_sgd=(LocalSGD(batch=BATCH, lr=LR, epochs=1),))
    keys = [Key(1).at(Purpose.LOCAL, device, 0) for device in range(DEVICES)]
    orders = [key.at(0).at(0).word() for key in keys]  # of the first run of local SGD, its batch order

    def job(device: int, by: Trainer = trainer) -> list[Tensor]:
        assignment = Assignment(device, device, task, keys[device], first, None)
        return list(by.run(assignment).body["params"].values())

    trained, compiling = job(0), replace(trainer, programs=Programs())
    assert all(map(torch.allclose, trained, job(0, compiling))), "not the same steps"
    for loop in (by_hand.bare, by_hand.usual):
        assert all(map(torch.equal, trained, loop(params, 0, orders[0]))), "not the same steps"
    assert sum(chunk.correct for chunk in trainer.score_chunks(first, chunks)) == by_hand.evaluate(params)[1]
    jobs_of = {
        "edgesim": job,
        "edgesim, compiled": lambda device: job(device, compiling),
        "bare loop": lambda device: by_hand.bare(params, device, orders[device]),
        "usual loop, torch.optim.SGD": lambda device: by_hand.usual(params, device, orders[device]),
    }
    found = in_turns({name: turning(work) for name, work in jobs_of.items()}, jobs, WARM_UPS)
    note = f"A job of {SAMPLES} samples, batches of {BATCH}, on one thread, in CPU time."
    yield from compared(of(found, "ms"), "bare loop", "ms", note, about=f"{model}, job")
    tests_of = {
        "edgesim": lambda _: trainer.score_chunks(first, chunks),
        "loop over slices": lambda _: by_hand.evaluate(params),
    }
    found = in_turns({name: turning(work) for name, work in tests_of.items()}, max(1, jobs // 10), WARM_UPS)
    note = "An evaluation on the test set, on one thread, in CPU time."
    yield from compared(of(found, "ms"), "loop over slices", "ms", note, about=f"{model}, test")


def turning(work: Callable[[int], object]) -> Callable[[], Figures]:
    """Return work that is done for one device after another, and measured in milliseconds of this thread's CPU."""
    devices = cycle(range(DEVICES))

    def measured() -> Figures:
        device, start_s = next(devices), time.thread_time()
        work(device)
        return {"ms": 1e3 * (time.thread_time() - start_s)}

    return measured


if __name__ == "__main__":
    alone(rows, QUICK)
