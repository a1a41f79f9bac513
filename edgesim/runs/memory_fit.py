"""Whether training fits the memory of each kind of device, up to which batch, and which changes would make it fit."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from edgesim.config.plugin_fields import Foreign, PartOf
from edgesim.core.price_list import CostProfile, profile_of
from edgesim.core.task import Plan, Submodel, Task
from edgesim.core.view import Setting
from edgesim.engine.pricing import memory_bytes
from edgesim.runs.assembly import Assembly, build_network

_MB = 1e6


@dataclass(frozen=True)
class MemoryFit:
    """Memory of one kind of device, and what its jobs need at their peak.

    `largest_batch`: the largest batch of which a job fits, at most the samples of the device that has most of this
    kind; 0 if none fits. None if the method sets the batch itself. `changes`: changes of the scenario, each enough for
    a job to fit, as text, and the largest batch that fits with it; empty if the job fits as it is.
    """

    kind: str
    memory_bytes: int
    need_bytes: int
    batch: int
    fits: bool
    largest_batch: int | None
    changes: tuple[tuple[str, int], ...] = ()

    def facts(self) -> dict[str, Any]:
        """Return all as plain values."""
        changes = [{"change": text, "largest_batch": batch} for text, batch in self.changes]
        return {**asdict(self), "changes": changes}

    def line(self) -> str:
        """Return one line for a reader."""
        has, need = f"{self.memory_bytes / _MB:,.3g}", f"{self.need_bytes / _MB:,.3g}"
        told = f"{self.kind} ({has} MB): {'fits' if self.fits else 'does not fit'}, {need} MB at batch {self.batch}"
        if self.fits:
            return told + (f"; largest batch {self.largest_batch}" if self.largest_batch else "")
        if not self.changes:
            return f"{told}; no change known to edgesim makes it fit"
        return f"{told}; fits with {', or '.join(f'{what} (batch {batch} at most)' for what, batch in self.changes)}"


def memory_fits(parts: Assembly, plan: Plan) -> list[MemoryFit]:
    """Return the fit of every fleet block with a memory limit, by its job of the plan that needs most."""
    setting, found = parts.setting, []
    devices = np.array([order.device for order in plan.orders], dtype=np.int64)
    kinds = parts.fleet.kind[devices]
    for number, block in enumerate(parts.fleet.blocks):
        limit = float(parts.fleet.memory_bytes[block.first])
        own = [order.task for order, kind in zip(plan.orders, kinds, strict=True) if kind == number]
        tasks = list({id(task): task for task in own}.values())
        if np.isfinite(limit) and tasks:
            most = int(setting.samples[block.first : block.first + block.count].max())
            found.append(_fit(parts, parts.fleet.kinds[number], limit, tasks, max(1, most)))
    return found


def _fit(parts: Assembly, kind: str, limit: float, tasks: Sequence[Task], samples: int) -> MemoryFit:
    setting = parts.setting
    task = max(tasks, key=lambda each: memory_bytes(each, setting))
    need, batch = memory_bytes(task, setting), max((sgd.batch for sgd in task.local_sgd), default=0)
    fits = need <= limit
    own = any(sgd.batch != setting.training.batch for sgd in task.local_sgd)
    if task.counted is not None or own or not batch:
        return MemoryFit(kind, int(limit), need, batch, fits, None)
    least = 2 if profile_of(setting.cost_profile, task.submodel).needs_two else 1

    def largest(task: Task, setting: Setting) -> int:
        """Return the largest batch with which a task fits; 0 if there is none."""

        def needs_more(size: int) -> bool:
            sized = replace(task, local_sgd=tuple(replace(sgd, batch=size) for sgd in task.local_sgd))
            return memory_bytes(sized, setting) > limit

        tried = range(least, max(least, samples, batch) + 1)
        fitting = bisect_left(tried, True, key=needs_more)
        return tried[fitting - 1] if fitting else 0

    at_most = largest(task, setting)
    changes = () if fits else tuple(_changes(parts, task, at_most, largest))
    return MemoryFit(kind, int(limit), need, batch, fits, at_most, changes)


def _changes(
    parts: Assembly, task: Task, at_most: int, largest: Callable[[Task, Setting], int]
) -> Iterator[tuple[str, int]]:
    """Yield the changes that make a job fit, the simplest first."""
    setting = parts.setting
    if at_most:
        yield "a smaller training.batch", at_most
    if any(sgd.moments for sgd in task.local_sgd):
        plain = tuple(replace(sgd, optimizer="sgd", momentum=0.0, nesterov=False) for sgd in task.local_sgd)
        if batch := largest(replace(task, local_sgd=plain), setting):
            yield 'training.optimizer = "sgd" without momentum', batch
    profile: CostProfile = profile_of(setting.cost_profile, task.submodel)
    layers = [layer.name for layer in profile.layers]

    def of_last(count: int) -> Task:
        frozen = task.submodel.frozen | profile.before_last(count)
        return replace(task, submodel=replace(task.submodel, frozen=frozen))

    def most(batch: int) -> int:
        """Return the most layers that can train on batches of this size; 0 if none can."""
        counts = range(1, len(layers))  # the more layers train, the more is needed
        return bisect_left(counts, True, key=lambda count: largest(of_last(count), setting) < batch)

    trained = most(setting.training.batch) or most(1)
    if trained and profile.submodel_params(of_last(trained).submodel, trained_only=True):
        batch = largest(of_last(trained), setting)
        yield f"model.freeze of all but the last {trained} of {len(layers)} layers", batch
    model = parts.scenario.model
    if len(parts.scenario.models) == 1 and not isinstance(model.value, Foreign) and profile.charged_as is None:
        for text, keys in model.value.lighter:
            variant = PartOf("model").read({**model.table(), **keys})
            network = build_network(parts.scenario.model_copy(update={"model": variant}), parts.data)
            light = replace(setting, cost_profile=network.cost_profile)
            if batch := largest(replace(task, submodel=Submodel()), light):
                yield text, batch
