"""Stacked training: one batched step for the same layer of several devices, and SGD on it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch
from torch import Tensor, nn
from torch.autograd import Function
from torch.func import functional_call, vmap
from torch.optim.sgd import sgd

from edgesim.core.backend import Assignment
from edgesim.core.limits import MOST_FACTOR
from edgesim.core.local_sgd import LocalSGD
from edgesim.core.method import LocalRule, LocalState
from edgesim.core.update import ModelState
from edgesim.learning.data.dataset import Dataset
from edgesim.learning.models.build import copy_of, own_tensors, sent_buffers
from edgesim.learning.models.seeding import Stream
from edgesim.learning.models.trace import BATCH_NORMS
from edgesim.learning.train.adam import AdamMoments, adam_step
from edgesim.learning.train.context import Context
from edgesim.learning.train.loop import batch_order, clipped, gradients, mean_shares, output_gradients

Rows: TypeAlias = Mapping[str, Tensor]  # tensors of many devices, stacked along dimension 0, by name

_MUCH = 2**14  # entries of a matrix, from which on calling oneDNN pays off
_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)


class LinearStep(NamedTuple):
    """A step of plain SGD that a linear layer takes in the backward pass: w <- decay w - lr g."""

    lr: float
    decay: float = 1.0


class StackedNetwork:
    """A copy of a network that runs for many devices in one call. All devices use the one base of the network.

    A layer of the base alone runs as it is, on the samples of all devices as one batch.
    """

    def __init__(self, module: nn.Module) -> None:
        whole = copy_of(module)
        self._inner = list(whole.named_modules())
        self.params = [name for name, _ in whole.named_parameters()]
        self.buffers = list(sent_buffers(whole))
        self._trainable = frozenset(self.params)
        self.names = [*self.params, *self.buffers]
        tensors = {**dict(whole.named_parameters()), **dict(whole.named_buffers())}
        names = {id(tensors[name]): name for name in self.names}
        layers: dict[int, _StackedLayer] = {}
        for unit in _units(whole):
            own = {
                f"{path}.{name}" if path else name: names[id(tensor)]
                for path, inner in unit.named_modules()
                for name, tensor in own_tensors(inner)
                if id(tensor) in names
            }
            if not own and not any(isinstance(inner, BATCH_NORMS) for inner in unit.modules()):
                continue
            plain = not _is_hooked(unit) and len(own) == len(list(own_tensors(unit)))  # and none of its tensors frozen
            if type(unit) is nn.Linear and plain:
                layers[id(unit)] = _StackedLinear(unit, own)
            elif type(unit) in _CONVOLUTIONS and plain:
                layers[id(unit)] = _StackedConvolution(unit, own)
            else:
                layers[id(unit)] = _StackedLayer(unit, own)
        for _, parent in self._inner:
            for name, child in parent.named_children():
                if id(child) in layers:
                    setattr(parent, name, layers[id(child)])
        self._whole = layers.get(id(whole), whole)
        self._chain = _Chain.of(self._whole)
        self._layers = list(layers.values())
        users = [name for layer in self._layers for name in set(layer.names.values())]
        self._shared = {name for name in users if users.count(name) > 1}
        # Layers without gradients depend on this tensor, so that the backward pass reaches them.
        self._tick = torch.zeros((), device=next(module.parameters()).device, requires_grad=True)
        self._leaves: list[Tensor] = []
        self._left: list[str] = []  # names of `_leaves`

    def learn_uses(self) -> None:
        """Allow those linear layers to descend that the passes since the last binding used exactly once."""
        for layer in self._layers:
            layer.descends = layer.calls == 1

    def bind(
        self, tensors: Rows, trained: Sequence[str], frozen: frozenset[str], descent: LinearStep | None
    ) -> list[str]:
        """Use these weights. Return the names in `trained` whose gradients `gradients` returns, in the order of both.

        `frozen`: layers that run as in a test. `descent`: linear layers update their weights in place in every backward
        pass and return no gradients.
        """
        for name, layer in self._inner:
            layer.training = name not in frozen
        descending: set[str] = set()
        for layer in self._layers:
            own = set(layer.names.values())
            alone = layer.descends and own <= set(trained) and not own & self._shared
            if descent and alone and isinstance(layer, _StackedLinear):
                layer.descent = descent
                descending |= own
            else:
                layer.descent = None
        devices = len(next(iter(tensors.values())))
        self._left = left = [name for name in trained if name not in descending]
        leaves = {name: tensors[name].detach().requires_grad_() for name in left}
        self._leaves = list(leaves.values())
        for layer in self._layers:
            own_rows = {own: leaves.get(name, tensors[name]) for own, name in layer.names.items()}
            layer.bind(own_rows, self._tick, devices)
        return left

    def own(self, name: str, weights: ModelState) -> Tensor:
        """Return a device's tensor of this name."""
        tensor: Tensor = weights["params" if name in self._trainable else "buffers"][name]
        return tensor

    def __call__(self, x: Tensor) -> Tensor:
        """Return logits (devices x batch, classes) of samples (devices x batch, ...), device after device."""
        logits: Tensor = self._chain(x) if self._chain else self._whole(x)
        return logits

    def gradients(self, logits: Tensor, slopes: Tensor) -> list[Tensor]:
        """Return stacked gradients of the sum of all devices' losses.

        Devices share no weights, so each row is the gradient of that device's own loss. `logits`: the last output of
        the network. `slopes`: the gradients of the sum with respect to `logits`.
        """
        if self._chain:
            found = self._chain.gradients(slopes, self._left)
            return [found[name] for name in self._left]
        return gradients(logits, [self._tick, *self._leaves], shares=slopes)[1:]


class _StackedLayer(nn.Module):
    """A layer of any kind, or a part of a network with tensors of its own, run for all devices by torch.func.vmap."""

    def __init__(self, layer: nn.Module, names: Mapping[str, str]) -> None:
        super().__init__()
        self.layer = layer
        self.names = names  # name of a tensor in the layer -> name in the network
        self.descent: LinearStep | None = None
        self.descends = False  # whether descent is allowed: a layer used twice needs its old weights
        self.calls = 0  # since the last binding
        self.tensors: dict[str, Tensor] = {}
        self.tick: Tensor | None = None
        self.devices = 0

    def __getattr__(self, name: str) -> Any:
        """Return an attribute that the network reads of a layer, such as the type of its weight."""
        own: dict[str, Tensor] = vars(self).get("tensors", {})
        if name in own:
            return own[name]
        layer = self._modules.get("layer") if "_modules" in vars(self) else None
        return vars(layer)[name] if layer is not None and name in vars(layer) else super().__getattr__(name)

    def bind(self, tensors: dict[str, Tensor], tick: Tensor, devices: int) -> None:
        """Use these stacked tensors of so many devices, by their names in the layer."""
        self.tensors, self.tick, self.calls, self.devices = tensors, tick, 0, devices

    def forward(self, *inputs: Tensor) -> Tensor:
        """Return the outputs of the layer for all samples, device after device as in the inputs."""

        def of_one(tensors: dict[str, Tensor], *own: Tensor) -> Any:
            return functional_call(self.layer, tensors, own, tie_weights=False)

        apart = [self._apart(each) for each in inputs]
        out: Tensor = vmap(of_one)(self.tensors, *apart)
        return out.flatten(0, 1)

    def _apart(self, x: Tensor) -> Tensor:
        return x.reshape(self.devices, -1, *x.shape[1:])


class _StackedConvolution(_StackedLayer):
    """A convolution. On a CPU it runs device after device, because a grouped one is up to three times slower there."""

    def forward(self, *inputs: Tensor) -> Tensor:
        """Return the outputs of the layer."""
        [x] = inputs
        if x.device.type != "cpu":
            return super().forward(x)
        own = (self._apart(x).unbind(), *(each.unbind() for each in self.tensors.values()))
        bias = () if "bias" in self.tensors else (None,)
        convolve: Any = self.layer._conv_forward
        return torch.cat([convolve(*each, *bias) for each in zip(*own, strict=True)])


class _StackedLinear(_StackedLayer):
    """A linear layer: one product of stacked matrices, which may update the weights in the backward pass."""

    def among(self, wanted: Sequence[str]) -> list[str]:
        """Return the names in the layer of those tensors whose names in the network are `wanted`."""
        return [own for own, name in self.names.items() if name in wanted]

    def forward(self, *inputs: Tensor) -> Tensor:
        """Return the outputs of the layer."""
        [x] = inputs
        self.calls += 1
        weight, bias = self.tensors["weight"], self.tensors.get("bias")
        out: Tensor = _Affine.apply(x.reshape(self.devices, -1, x.shape[-1]), weight, bias, self.tick, self.descent)
        return out.reshape(*x.shape[:-1], -1)


class _Affine(Function):
    """y = x w' + b of every device: x (devices, n, in), w (devices, out, in), b (devices, out) or None."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, tick: Tensor, descent: LinearStep | None
    ) -> Tensor:
        ctx.save_for_backward(x, weight, bias)
        ctx.descent = descent
        return _affine(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, bias = ctx.saved_tensors
        to_x = torch.bmm(grad, weight) if ctx.needs_input_grad[0] else None
        if ctx.descent is None:
            to_weight = torch.bmm(grad.mT, x) if ctx.needs_input_grad[1] else None
            return to_x, to_weight, grad.sum(1) if ctx.needs_input_grad[2] else None, None, None
        _step(ctx.descent, x, grad, weight, bias)
        return to_x, None, None, grad.new_zeros(()), None


def _affine(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    product = torch.bmm(x, weight.mT)
    return product if bias is None else product.add_(bias[:, None])  # baddbmm would copy it out first


def _step(descent: LinearStep, x: Tensor, grad: Tensor, weight: Tensor, bias: Tensor | None) -> None:
    """Take a step with the weights of a layer, given its inputs and the gradients of its outputs."""
    lr, decay = descent
    weight.baddbmm_(grad.mT, x, beta=decay, alpha=-lr)
    if bias is not None:
        (bias if decay == 1.0 else bias.mul_(decay)).sub_(grad.sum(1), alpha=lr)


class _Chain:
    """A perceptron: linear layers and ReLUs, one after another, each used once.

    It runs forwards and backwards without autograd, whose bookkeeping takes a sixth of the time of such small layers.
    """

    def __init__(self, steps: Sequence[_StackedLinear | None]) -> None:
        """`steps`: None stands for a ReLU."""
        self._steps = steps
        self._made: list[Tensor] = []  # the input of each step

    @staticmethod
    def of(network: nn.Module) -> _Chain | None:
        """Return a stacked network as a chain, or None if it is not a chain."""
        layers = list(_in_turn(network))
        linear = [layer for layer in layers if isinstance(layer, _StackedLinear)]
        others = [layer for layer in layers if not isinstance(layer, _StackedLinear)]
        flat = isinstance(layers[0], nn.Flatten) and (layers[0].start_dim, layers[0].end_dim) == (1, -1)
        names = [name for layer in linear for name in layer.names.values()]
        plain = all(type(each) is nn.ReLU for each in others[1:]) and not any(map(_is_hooked, others))
        if not (flat and plain and names) or len(set(names)) < len(names):
            return None
        return _Chain([each if isinstance(each, _StackedLinear) else None for each in layers[1:]])

    def __call__(self, x: Tensor) -> Tensor:
        """Return logits, as `StackedNetwork` does."""
        devices = next(step for step in self._steps if step).devices
        x, self._made = x.reshape(devices, len(x) // devices, -1), []
        with torch.no_grad():
            for step in self._steps:
                self._made.append(x)
                if step is None:
                    x = torch.relu(x)
                else:
                    step.calls += 1
                    x = _affine(x, step.tensors["weight"], step.tensors.get("bias"))
        return x.flatten(0, 1)

    def gradients(self, slopes: Tensor, wanted: Sequence[str]) -> dict[str, Tensor]:
        """Return the gradients of these weights, by name. Layers that descend take their steps."""
        found: dict[str, Tensor] = {}
        with torch.no_grad():
            grad = slopes.view(len(self._made[-1]), -1, slopes.shape[-1])
            ends = [at for at, step in enumerate(self._steps) if step and (step.descent or step.among(wanted))]
            for at in range(len(self._steps) - 1, min(ends, default=len(self._steps)) - 1, -1):
                step, x = self._steps[at], self._made[at]
                if step is None:
                    grad = torch.ops.aten.threshold_backward(grad, x, 0)
                    continue
                weight, bias = step.tensors["weight"], step.tensors.get("bias")
                above, grad = grad, torch.bmm(grad, weight) if at > ends[0] else grad
                if step.descent:
                    _step(step.descent, x, above, weight, bias)
                for own in step.among(wanted):
                    found[step.names[own]] = above.sum(1) if own == "bias" else torch.bmm(above.mT, x)
        self._made = []
        return found


def _in_turn(network: nn.Module) -> Iterator[nn.Module]:
    """Yield the layers that a network runs one after another, or the network itself if it may do anything else."""
    if type(network).forward is not nn.Sequential.forward or _is_hooked(network):
        yield network
        return
    for child in network.children():
        yield from _in_turn(child)


class QuickLinear(nn.Linear):
    """A linear layer for tests, without gradients. oneDNN multiplies where it is available and pays off.

    On some CPUs oneDNN is twice as fast as MKL, which torch uses.
    """

    def forward(self, input: Tensor) -> Tensor:
        """Return x w' + b."""
        large = input.ndim == 2 and input.device.type == "cpu" and self.weight.numel() >= _MUCH
        if large and hasattr(torch.ops.mkldnn, "_linear_pointwise"):
            product: Tensor = torch.ops.mkldnn._linear_pointwise(
                input.contiguous(), self.weight, self.bias, "none", [], None
            )
            return product
        return super().forward(input)


def quick(module: nn.Module) -> nn.Module:
    """Return a copy of a network that runs faster in tests, with the same tensors under the same names."""
    result = copy_of(module)
    for layer in result.modules():
        if type(layer) is nn.Linear:
            layer.__class__ = QuickLinear
    return result


def _is_hooked(layer: nn.Module) -> bool:
    return bool(layer._forward_hooks or layer._forward_pre_hooks)


def _units(module: nn.Module) -> Iterator[nn.Module]:
    """Yield each outermost part of a network that has tensors of its own once."""
    if next(own_tensors(module), None) is not None:
        yield module
        return
    for child in module.children():
        yield from _units(child)


@dataclass(slots=True, eq=False)
class StackedJob:
    """An assignment that is carried out together with others."""

    assignment: Assignment
    rule: LocalRule
    context: Context
    local: LocalState
    stream: Stream  # of torch's generator, for the rule's hooks
    steps: int = 0  # taken so far

    def enter(self, place: int) -> None:
        """Run the `on_enter` hook of a phase of the rule."""
        enter = self.rule.phases[place].on_enter
        if enter:
            with self.stream.read():
                self.local = enter(self.local, self.context)


def run_stacked_sgd(jobs: Sequence[StackedJob], place: int, network: StackedNetwork, data: Dataset) -> None:
    """Run a phase of local SGD in place on the weights of jobs, each on its own samples, and count their steps.

    All jobs have the same network and settings. They may take different numbers of steps. If each logit depends on one
    sample alone, they may also have batches of different sizes. Hooks get each job's own tensors, as in
    `run_local_sgd`.
    """
    orders = [_order(job, place) for job in jobs]
    ranks = sorted(range(len(jobs)), key=lambda at: -len(orders[at]))  # jobs with the most steps first
    jobs = [jobs[at] for at in ranks]
    batches = _Batches(jobs, [orders[at] for at in ranks], place, data)
    task, phases = jobs[0].assignment.task, [job.rule.phases[place] for job in jobs]
    hooked = any(phase.adjust_gradients or phase.after_step for phase in phases)
    objective = jobs[0].context.objective
    stack = _Stack(jobs, network, task.local_sgd[place], lent=hooked)
    for step, (x, y) in enumerate(batches):
        active = batches.active(step)
        if active != stack.active:
            stack.bind(active, jobs[0].context.trained, task.submodel.frozen)
        logits = network(x)
        if jobs[0].context.meter is not None:
            _note(jobs[:active], batches.sizes(step), logits.detach(), y)
        shares = mean_shares(objective, y, batches.shares(step))
        grads = network.gradients(logits, output_gradients(objective, logits, y, shares))
        each = list(zip(jobs[:active], phases[:active], strict=True)) if hooked else []
        for row, (job, phase) in enumerate(each):
            own = [g[row] for g in grads] if phase.adjust_gradients else []
            for g, new in zip(own, _call(phase.adjust_gradients, job, own) or [], strict=True):
                g.copy_(new)
        with torch.no_grad():
            stack.descend(grads)
            for job, phase in each:
                _call(phase.after_step, job)
    stack.give_back(jobs)
    for job, steps in zip(jobs, batches.lengths, strict=True):
        job.steps += steps


def _note(jobs: Sequence[StackedJob], sizes: Sequence[int], logits: Tensor, y: Tensor) -> None:
    """Let each job note the losses of its own samples. These precede the samples that fill up a short batch."""
    losses = jobs[0].context.objective.losses(logits, y)
    rows = (each.reshape(len(jobs), -1, *each.shape[1:]) for each in (logits, losses, y))
    for job, size, *own in zip(jobs, sizes, *rows, strict=True):
        assert job.context.meter is not None
        job.context.meter.add(*(each[:size] for each in own))


def _call(hook: Callable[..., Any] | None, job: StackedJob, *given: Any) -> Any:
    if hook is None:
        return None
    with job.stream.read():
        job.context.bind(job.local.weights)
        return hook(*given, job.local, job.context)


class _Stack:
    """The stacked weights of jobs. With `lent` the jobs' own tensors are rows of the stack until it is given back."""

    def __init__(self, jobs: Sequence[StackedJob], network: StackedNetwork, settings: LocalSGD, lent: bool) -> None:
        self.active = 0
        self._network, self._settings = network, settings
        self._own = {name: [network.own(name, job.local.weights) for job in jobs] for name in network.names}
        self._all = {name: torch.stack(own) for name, own in self._own.items()}
        self._memory = {name: [each.data for each in own] for name, own in self._own.items()}
        self._bound: list[Tensor] = []
        self._momenta: list[Tensor | None] = []
        self._momentum = {n: torch.zeros_like(t) for n, t in self._all.items()} if settings.momentum else {}
        self._moments = {n: AdamMoments(t) for n, t in self._all.items()} if settings.optimizer != "sgd" else {}
        self._bound_moments: list[AdamMoments] = []
        plain = not lent and not settings.moments and settings.clip_norm == math.inf
        plain = plain and settings.lr * settings.weight_decay < MOST_FACTOR
        self._descent = LinearStep(settings.lr, 1.0 - settings.lr * settings.weight_decay) if plain else None
        if lent:
            for name, own in self._own.items():
                for row, tensor in enumerate(own):
                    tensor.data = self._all[name][row]

    def bind(self, active: int, trained: Sequence[str], frozen: frozenset[str]) -> None:
        """Let the network use the weights of the first `active` jobs."""
        now = {name: tensor[:active] for name, tensor in self._all.items()}
        names = self._network.bind(now, trained, frozen, self._descent)
        self.active, self._bound = active, [now[name] for name in names]
        self._momenta = [self._momentum[name][:active] if self._momentum else None for name in names]
        self._bound_moments = [self._moments[name].first(active) for name in names if self._moments]

    def descend(self, grads: Sequence[Tensor]) -> None:
        """Take a step with the weights that have these gradients. The network has already updated the others."""
        settings = self._settings
        if settings.clip_norm < math.inf:
            grads = vmap(partial(clipped, norm=settings.clip_norm))(list(grads))
        if self._moments:
            adam_step(self._bound, grads, self._bound_moments, settings)
            return
        sgd(
            self._bound, list(grads), list(self._momenta), foreach=None, weight_decay=settings.weight_decay,
            momentum=settings.momentum, lr=settings.lr, dampening=0.0, nesterov=settings.nesterov, maximize=False,
        )  # fmt: skip

    def give_back(self, jobs: Sequence[StackedJob]) -> None:
        """Write the weights into the jobs' own tensors."""
        for name, own in self._own.items():
            for tensor, memory, row in zip(own, self._memory[name], self._all[name].unbind(), strict=True):
                memory.copy_(row)
                tensor.data = memory


class _Batches:
    """The batches of jobs, gathered step by step. Jobs are sorted by falling numbers of steps."""

    def __init__(self, jobs: Sequence[StackedJob], orders: Sequence[Sequence[Tensor]], place: int, data: Dataset):
        self.lengths = [len(order) for order in orders]
        self._steps = max(self.lengths)
        self._data = data
        self._sizes = np.zeros((self._steps, len(jobs)), dtype=np.int64)
        for at, order in enumerate(orders):
            self._sizes[: len(order), at] = [len(positions) for positions in order]
        self._active = np.count_nonzero(self._sizes, axis=1).tolist()
        self._widths = self._sizes.max(axis=1).tolist()
        widest = max(self._widths, default=0)
        rows = torch.zeros(self._steps, len(jobs), widest, dtype=torch.int64, device=data.y_train.device)
        for at, (job, order) in enumerate(zip(jobs, orders, strict=True)):
            if order:
                # One row per batch. A short batch is filled up with its first sample, which gets a share of 0.
                own = np.array([len(batch) for batch in order])[:, None]
                column = np.arange(widest)
                starts = np.cumsum(own)[:, None] - own
                filled = torch.cat(list(order))[torch.from_numpy(starts + np.where(column < own, column, 0))]
                rows[: len(order), at] = job.context.shard[filled.to(rows.device)]
        sizes = torch.from_numpy(self._sizes)[:, :, None]
        share = (torch.arange(widest) < sizes) / sizes.clamp(min=1)
        self._rows, self._share = rows, share.to(rows.device)
        streams = [job.assignment.key.at(place, 1) for job in jobs if data.augment is not None]
        self._augmenting = [torch.Generator().manual_seed(key.word()) for key in streams]
        relabelled = ((at, job.context.relabelled) for at, job in enumerate(jobs))
        self._relabelled = {at: labels for at, labels in relabelled if labels is not None}

    def active(self, step: int) -> int:
        """Return the number of jobs that take this step."""
        active: int = self._active[step]
        return active

    def sizes(self, step: int) -> list[int]:
        """Return the number of samples of each job that takes this step."""
        sizes: list[int] = self._sizes[step, : self.active(step)].tolist()
        return sizes

    def shares(self, step: int) -> Tensor:
        """Return the weights of samples that count alike in the mean loss of their job, shape (jobs, width)."""
        return self._share[step, : self._active[step], : self._widths[step]]

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield samples and labels of each step, job after job."""
        sizes = zip(self._rows, self._active, self._widths, strict=True)
        rows = (places[:active, :width].flatten() for places, active, width in sizes)
        for step, (x, y) in enumerate(self._data.batches("train", rows)):
            width = self._widths[step]
            if self._data.augment is not None:
                x = torch.cat([self._augmented(at, mine, step) for at, mine in enumerate(torch.split(x, width))])
            for at, labels in self._relabelled.items():
                if at < self._active[step]:
                    mine = y[at * width : (at + 1) * width]
                    mine.copy_(labels[mine])
            yield x, y

    def _augmented(self, at: int, x: Tensor, step: int) -> Tensor:
        """Return a job's augmented samples of a step, filled up again with the first of them."""
        assert self._data.augment is not None
        size = int(self._sizes[step, at])
        found = self._data.augment.apply(x[:size], self._augmenting[at])
        return torch.cat([found, found[:1].expand(len(x) - size, *found.shape[1:])])


def _order(job: StackedJob, place: int) -> list[Tensor]:
    """Return the positions of a job's samples in each of its steps."""
    given, context = job.assignment, job.context
    key = given.key.at(place, 0)
    batches = batch_order(key, len(context.shard), given.task.local_sgd[place], context.drop_single)
    return list(islice(batches, given.left_after(job.steps)))
