"""Prices are claims: what the engine charged is what the trainer computed and what the message weighs."""

from __future__ import annotations

import math

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from edgesim.core.job import DELIVERED
from edgesim.core.task import TENSORS, Task
from edgesim.learning.models.flop_counter import flop_counter
from edgesim.learning.train.trainer import Trainer
from edgesim.methods.dp_fedavg import DpFedAvg
from edgesim.methods.flora import FLoRA
from edgesim.methods.over_the_air import OverTheAir
from edgesim.methods.secure_fedavg import SecureFedAvg
from tests.contracts.support import ARGUMENTS, EXACT, MODELS, NORMED, PRICED, mixed_scenario, needs_of, run, tried
from tests.sizes import thinned

FLOAT_BYTES = 4


# By formula, what PyTorch's counter does not score: singular values, eigenvalues.
DECLARED = {
    torch.ops.aten._linalg_svd: lambda maps, *_, **__: math.prod(maps[:-2]) * (8 * min(maps[-2:]) ** 3 // 3),
    torch.ops.aten._linalg_eigh: lambda matrix, *_, **__: 4 * matrix[-1] ** 3 // 3,
}

# Methods whose work beside training goes number by number, which PyTorch's counter does not score; see their own tests.
# FLoRA's products of stacks are computed once, by the server of the run, in place of each device.
NUMBER_BY_NUMBER = (DpFedAvg, FLoRA, OverTheAir, SecureFedAvg)


def device_counter():
    """Return the counter for what devices do, with declared operations scored too."""
    counter = flop_counter()
    declared = FlopCounterMode(display=False, custom_mapping=DECLARED).flop_registry
    counter.flop_registry = {**declared, **counter.flop_registry}
    return counter


def nbytes(body):
    """Return the bytes of the tensors of a message; those of a method's own may be of other types than float32."""
    own = sum(t.nbytes for t in body.get(TENSORS, {}).values())
    return own + FLOAT_BYTES * sum(t.numel() for kind, ts in body.items() if kind != TENSORS for t in ts.values())


def measured_jobs(scenario, monkeypatch):
    """Run a scenario and return its jobs table with the FLOPs, bytes and steps of the real training beside it.

    Jobs that were never trained, as they were on their way at the end, are left out.
    """
    found: dict[int, tuple[int, ...]] = {}
    tasks: dict[int, Task] = {}
    really_run = Trainer.run

    def counted(self, assignment):
        with device_counter() as counter:
            result = really_run(self, assignment)
        # what PyTorch's counter does not see, so that methods declare it: FLOPs per parameter and step, or once
        passes = assignment.task.passes
        by_hand = [work for work in passes if work.kind == "param_step"]
        times = sum(work.times for work in by_hand if work.samples is None)
        once = sum(int(work.times) * work.samples for work in by_hand if work.samples is not None)
        declared = (int(times) * result.steps + once) * sum(p.numel() for p in self.module.parameters())
        if isinstance(self.method, NUMBER_BY_NUMBER):
            declared += int(sum(work.times for work in passes if work.kind == "flops"))
        # before it ever trained, a peer sends as many bytes as its listener would
        heard = sum(nbytes(message.body if message.job >= 0 else result.body) for message in assignment.received)
        flops = counter.get_total_flops() + declared
        found[assignment.job] = (flops, nbytes(result.body), result.steps, heard, len(assignment.received))
        tasks[assignment.job] = assignment.task
        return result

    monkeypatch.setattr(Trainer, "run", counted)
    jobs = run(scenario).tables["jobs"].frame().set_index("job")
    jobs = jobs[jobs["outcome"].isin(DELIVERED) & jobs.index.isin(found)].copy()
    for place, column in enumerate(("real_flops", "real_bytes", "steps", "heard_bytes", "messages")):
        jobs[column] = [found[job][place] for job in jobs.index]
    jobs["extra_bytes"] = [tasks[job].up.extra_bytes for job in jobs.index]
    jobs["trades"] = [tasks[job].own_clock == "trade" for job in jobs.index]
    return jobs


@pytest.mark.parametrize("model", thinned(MODELS, [NORMED]))
@pytest.mark.parametrize("name", tried(PRICED))
def test_charged_is_what_was_done(name, model, monkeypatch):
    """For every width and phase: FLOPs charged = FLOPs counted, bytes charged = bytes of the tensors sent.

    Steps by hand: 40 samples in batches of 16 are 3 an epoch; batches of 13 leave one sample, which a network with
    batch normalisation does not train on.
    """
    for batch in (16, 13):
        method = {"name": name, **ARGUMENTS.get(name, {}), **EXACT.get(name, {})}
        jobs = measured_jobs(mixed_scenario(method=method, model=model, training={"batch": batch}), monkeypatch)
        assert (jobs["flops"] == jobs["real_flops"]).all()
        if jobs["trades"].any():  # what a device computed travels with its next trade, which is of models as large
            assert (jobs["up_bytes"] == jobs["real_bytes"]).all()
            assert (jobs["peer_bytes"] == jobs["real_bytes"]).all()
        elif needs_of(name).peers is not None:  # a job among peers pays for what it hears
            assert (jobs["peer_bytes"] == jobs["heard_bytes"] + jobs["messages"] * jobs["extra_bytes"]).all()
        else:
            assert (jobs["up_bytes"] == jobs["real_bytes"] + jobs["extra_bytes"]).all()
        sends = jobs["round"] >= needs_of(name).overlap  # devices that send beside their work have nothing at first
        assert (jobs["up_bytes"] + jobs["peer_bytes"])[sends].min() > 0
        assert (jobs["flops"].groupby(jobs["device"]).max() > 0).all()  # to fetch what a device kept takes none
        monkeypatch.undo()


@pytest.mark.parametrize(("model", "batch", "steps"), [("cnn_digits", 13, 4), (NORMED, 13, 3), (NORMED, 1, 40)])
def test_a_last_batch_of_one(model, batch, steps, monkeypatch):
    """40 = 3 x 13 + 1: batch normalisation leaves out the last sample. Batches of one are all there is if asked for."""
    jobs = measured_jobs(mixed_scenario(model=model, training={"batch": batch}, stop={"rounds": 1}), monkeypatch)
    assert set(jobs["steps"]) == {steps}
    assert (jobs["flops"] == jobs["real_flops"]).all()
