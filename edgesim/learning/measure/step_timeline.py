"""Bytes held at every instant of a training step, from its storages: when each is made, and when it is freed.

A step runs once forward and backward with the kernels and memory layouts of a CPU, but without numbers. Every operation
is an instant. A tensor that forward keeps for backward is held twice over here: by forward itself, as long as Python or
another operation refers to it, and by the node that keeps it, until that node has run backward. The second span exists
only if a layer that needs the node is trained. So one run prices every choice of trained layers.

A checkpointed block runs once here and keeps everything. Its second run is then put into backward, before the node that
first needs one of its tensors, and what its nodes keep is held from there on.

Buffers inside a kernel are not seen, such as the weights that oneDNN reorders. Its LSTM also keeps a workspace.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from edgesim.core.price_list import HeldBytes, Part, StepTimeline
from edgesim.learning.measure.channel_groups import Layout
from edgesim.learning.measure.memory import KeptInBlock, groups_of, kept_in_blocks, needed_by
from edgesim.learning.measure.run_again import Again, parts_of
from edgesim.learning.models.build import applied, blank_inputs
from edgesim.learning.models.checkpointing import plain_blocks
from edgesim.learning.models.trace import (
    DATA,
    Block,
    KeptTensor,
    Node,
    NotMeasured,
    Owners,
    Trace,
    layer_of,
    nodes_behind,
    operands,
    operation,
    shape_of,
    stand_ins_on_cpu,
)
from edgesim.learning.objectives.base import Objective
from edgesim.learning.train.loop import gradients


@dataclass
class _Storage:
    """A storage that an operation made. Instants are numbers of operations; `until` is the first without it."""

    nbytes: int
    shape: tuple[int, ...]
    since: int
    until: int | None = None
    node: Node | None = None  # in backward: the node that ran. In forward: the node of the result, if Python saw it
    backward: bool = False
    gradient_of: str = ""  # parameter
    copy_of: str = ""  # parameter that a kernel copies while it runs
    kept: list[int] = field(default_factory=list)  # places among kept tensors
    inputs: list[int] = field(default_factory=list)  # checkpointed blocks that it is an input of


class _Log(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Record of the storages that operations make, and of those that stand in for kept tensors."""

    def __init__(self, fixed: Mapping[str, Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.storages: list[_Storage] = []
        self.freed: dict[int, int] = {}  # kept tensor -> first instant of backward without it
        self.used: dict[int, int] = {}  # kept tensor -> instant of backward before its first use
        self.shapes: list[tuple[int, ...]] = []  # of kept tensors
        self.blocks: list[Block] = []  # checkpointed; their clock is the instant
        self.ends: list[int] = []  # last instants of blocks
        self.now = 0
        self.in_backward = False
        self._quiet = False
        self._within: Block | None = None
        self._alive: dict[int, _Storage] = {}
        self._fixed = {_identity(value): name for name, value in fixed.items()}
        self._stand_ins: set[int] = set()  # of kept tensors
        self._watched: dict[int, weakref.ref[Any]] = {}  # references to equal storages are equal, so they have no set

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operation, and note the storages that are new."""
        result = func(*args, **(kwargs or {}))
        made = [value for value in tree_leaves(result) if isinstance(value, Tensor)]
        if made and not self._quiet:
            self.now += 1
            for value in made:
                self._note(value)
            if self.in_backward and func is torch.ops.aten.add.Tensor and isinstance(args[1], Tensor):
                # Autograd adds gradients of one tensor in place, though not those of tensors without numbers.
                into, total = self.find(args[0]), self.find(made[0])
                if into is not None and total is not None and into.backward and into.nbytes == total.nbytes:
                    total.since = self.now + 1
            if func in (torch.ops.aten.convolution.default, torch.ops.aten.convolution_backward.default):
                self._note_copies(args[2] if self.in_backward else args[1])
        return result

    def _note_copies(self, weight: Tensor) -> None:
        """Note the copies of a kernel that oneDNN makes: of weights in its own layout, and of their gradient, twice.

        A kernel of one pixel has that layout. Seen in the events of PyTorch's allocator with oneDNN 3.
        """
        name = self._fixed.get(_identity(weight), "")
        if math.prod(weight.shape[2:]) > 1:
            node = torch._C._current_autograd_node() if self.in_backward else None
            for gradient in (False, True)[: 1 + self.in_backward]:
                found = _Storage(weight.nbytes, tuple(weight.shape), self.now, self.now + 1, node, self.in_backward)
                found.copy_of, found.gradient_of = name, name if gradient else ""
                self.storages.append(found)

    def _note(self, value: Tensor) -> None:
        identity = _identity(value)
        if identity in self._alive or identity in self._fixed or identity in self._stand_ins:
            return
        found = _Storage(value.untyped_storage().nbytes(), tuple(value.shape), self.now, backward=self.in_backward)
        found.node = torch._C._current_autograd_node() if self.in_backward else None
        self.storages.append(found)
        self._alive[identity] = found

        def free() -> None:
            found.until = self.now + 1
            del self._alive[identity]

        self._watch(value, free)

    def _watch(self, value: Tensor, free: Any) -> None:
        def freed(reference: weakref.ref[Any]) -> None:
            del self._watched[id(reference)]
            free()

        reference = weakref.ref(value.untyped_storage(), freed)
        self._watched[id(reference)] = reference

    def find(self, value: Tensor) -> _Storage | None:
        """Return the record of a tensor's storage; None if no operation of the step made it."""
        return self._alive.get(_identity(value))

    @contextmanager
    def quiet(self) -> Iterator[None]:
        """Note nothing within the block."""
        self._quiet = True
        try:
            yield
        finally:
            self._quiet = False

    def kept(self) -> torch.autograd.graph.saved_tensors_hooks:
        """Return the context in which forward must run: nodes keep stand-ins, so that no node holds a result."""

        def pack(tensor: Tensor) -> tuple[int, Tensor]:
            place = len(self.shapes)
            self.shapes.append(tuple(tensor.shape))
            if self._within is not None:
                self._within.kept.append(KeptTensor(place, 0, self.now))
            if _identity(tensor) in self._fixed:
                return place, tensor
            found = self.find(tensor)
            if found is not None:
                found.kept.append(place)
            with self.quiet():
                instead = torch.empty_strided(tensor.size(), tensor.stride(), dtype=tensor.dtype, device=tensor.device)
            identity = _identity(instead)
            self._stand_ins.add(identity)

            def free() -> None:
                self.freed[place] = self.now + 1
                self._stand_ins.discard(identity)

            self._watch(instead, free)
            return place, instead

        def unpack(packed: tuple[int, Tensor]) -> Tensor:
            place, tensor = packed
            self.used.setdefault(place, self.now)
            return tensor

        return torch.autograd.graph.saved_tensors_hooks(pack, unpack)

    @contextmanager
    def block(self, inputs: Sequence[Tensor]) -> Iterator[None]:
        """Note that a checkpointed block runs in the with-block."""
        for found in filter(None, map(self.find, inputs)):
            found.inputs.append(len(self.blocks))
        self._within = Block((), self.now)
        self.blocks.append(self._within)
        yield
        self.ends.append(self.now)
        self._within = None


class _Results(TorchFunctionMode):
    """Notes the graph's node of each result that Python sees."""

    def __init__(self, log: _Log) -> None:
        super().__init__()
        self._log = log

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call a function of torch."""
        result = func(*args, **(kwargs or {}))
        for value in tree_leaves(result):
            node = value.grad_fn if isinstance(value, Tensor) else None
            if node is not None and tuple(value.shape) == shape_of(node):
                found = self._log.find(value)
                if found is not None and found.node is None:
                    found.node = node
        return result


@dataclass
class _Step:
    """One step that has run. `fixed_bytes`: of the batch with its labels, which is there throughout."""

    log: _Log
    nodes: list[Node]
    fixed_bytes: int


class _Holdings:
    """Bytes that a step holds, by when and for which layers. `sizes`: bytes by the sample and of every batch."""

    def __init__(self) -> None:
        self._owners: dict[Owners | None, int] = {None: 0}
        self._groups: dict[tuple[str, ...], int] = {(): 0}
        self._found: dict[tuple[int, int, int, int, Part], tuple[int, int]] = {}

    def hold(
        self, sizes: tuple[int, int], since: int, until: int, by: Owners | None, thin: tuple[str, ...], part: Part
    ) -> None:
        """Hold bytes from one instant to another if one of the layers `by` is trained; None: in any case."""
        if since < until and by != frozenset():
            owners = self._owners.setdefault(by, len(self._owners))
            key = (since, until, owners, self._groups.setdefault(thin, len(self._groups)), part)
            sampled, fixed = self._found.get(key, (0, 0))
            self._found[key] = (sampled + sizes[0], fixed + sizes[1])

    def keep(
        self, sizes: tuple[int, int], since: int, keeping: list[tuple[int, Owners]], thin: tuple[str, ...]
    ) -> None:
        """Hold what is kept until each of these instants for the layers beside it."""
        keeping.sort(key=lambda each: each[0])
        for number, (until, _) in enumerate(keeping):
            self.hold(sizes, since, until, frozenset().union(*(by for _, by in keeping[number:])), thin, "kept")
            since = max(since, until)

    def timeline(self, instants: int) -> StepTimeline:
        """Return all holdings of a step of so many instants."""
        return StepTimeline(
            instants=instants,
            owners=tuple(by for by in self._owners if by is not None),
            groups=tuple(self._groups),
            held=tuple(
                HeldBytes(*sizes, since, until, by, thin, part)
                for (since, until, by, thin, part), sizes in self._found.items()
                if any(sizes)
            ),
        )


def timeline_of(
    module: nn.Module,
    input_shape: Sequence[int],
    objective: Objective,
    tokens: bool,
    trace: Trace,
    layout: Layout,
) -> StepTimeline:
    """Return the bytes that a step of a network in training mode holds, by instant.

    `trace`: of the same step on the CPU, with `layout`, its layout; nodes and kept tensors are matched to it in order.
    """
    one, more = (_run(module, input_shape, batch, objective, tokens) for batch in (trace.batch, trace.batch + 1))
    same = len(one.log.storages) == len(more.log.storages) and one.log.now == more.log.now
    if not same or [*map(operation, one.nodes)] != [*map(operation, trace.nodes)]:
        raise NotMeasured("its operations are not the same in every pass and for every batch")
    if len(one.log.shapes) != len(trace.kept.tensors):
        raise NotMeasured("the tensors that it keeps for backward are not the same in every pass")
    known = dict(zip(one.nodes, trace.nodes, strict=True))
    keepers = {place: (node, name) for node in trace.nodes for name, place in trace.kept.by_node(node)}
    everything = trace.behind(trace.loss.grad_fn)
    in_blocks = kept_in_blocks(trace)
    repeats = [_Repeat.of(number, one.log, in_blocks) for number in range(len(one.log.blocks))]
    of_place = {place: each for each in repeats for place in each.block.places}

    def later(instant: int, freed: bool = False) -> int:
        """Return an instant, or the first one without something, moved by the second runs that come before it."""
        return instant + sum(each.instants for each in repeats if each.after + freed < instant)

    last = one.log.now + 1  # the instant of the update of the weights
    end = later(last)
    holdings = _Holdings()
    hold, keep = holdings.hold, holdings.keep
    batch_bytes = more.fixed_bytes - one.fixed_bytes
    hold((batch_bytes, one.fixed_bytes - batch_bytes * trace.batch), 0, end + 1, None, (), "kept")
    state = (0, torch.get_rng_state().nbytes)  # of the generator: a block notes it, and its second run lends its own
    for each in repeats:
        hold(state, each.block.done + 1, each.ended + 1, None, (), "passing")
        hold(state, each.ended + 1, later(each.until, freed=True), each.upstream, (), "kept")
        first = later(each.after) + 1
        hold(state, first, first + each.instants, each.upstream, (), "passing")
    for storage, other in zip(one.log.storages, more.log.storages, strict=True):
        per_sample = other.nbytes - storage.nbytes
        sizes = (per_sample, storage.nbytes - per_sample * trace.batch)
        gone = last + 1 if storage.until is None else storage.until
        since, until = later(storage.since), later(gone, freed=True)
        node = known.get(storage.node)
        if parameter := storage.gradient_of or storage.copy_of:
            layer = layer_of(parameter)
            columns = layout.columns.get(layer, ("", 1))[0] if len(storage.shape) > 1 else ""
            thin = tuple(filter(None, (layout.rows.get(layer, ""), columns)))
            behind = None if node is None else trace.behind(node)
            by = frozenset({layer}) if storage.gradient_of else behind
            if storage.copy_of:
                hold(sizes, since, until, by, thin, "passing")
            else:
                hold(sizes, since, end + 1, by, thin, "gradient")
        elif storage.backward:
            thin, by = _of_backward(node, storage.shape, trace, layout) if node is not None else ((), everything)
            hold(sizes, since, until, by, thin, "passing")
        else:
            thin = () if node is None else tuple(filter(None, layout.axes[node]))
            for place in filter(keepers.__contains__, storage.kept):
                thin = thin or groups_of(keepers[place][0], trace.kept.tensors[place], layout)
            own = next((each for each in repeats if each.block.done < storage.since <= each.ended), None)
            freed = {place: later(one.log.freed.get(place, last + 1), freed=True) for place in storage.kept}
            keeping: list[tuple[int, Owners]] = [  # also by a kind of function that does not list its tensors
                (gone_at, needed_by(*keepers[place], trace) if place in keepers else everything)
                for place, gone_at in freed.items()
                if place not in of_place
            ]
            readers = [of_place[place] for place in storage.kept if of_place.get(place, own) is not own]
            readers += [repeats[number] for number in storage.inputs]
            keeping += [(later(each.until, freed=True), each.upstream) for each in readers]
            keeping_again = [
                (gone_at, in_blocks[place].upstream)
                for place, gone_at in freed.items()
                if place in in_blocks and of_place[place] is own
            ]
            hold(sizes, since, until, None, thin, "kept" if keeping else "passing")
            keep(sizes, until, keeping, thin)
            if own is not None:
                first = later(own.after) + storage.since - own.block.done
                ended = later(own.after) + own.instants + 1
                then = min(first + gone - storage.since, ended)
                hold(sizes, first, then, own.upstream_at(storage.since), thin, "kept" if keeping_again else "passing")
                keep(sizes, then, keeping_again, thin)
    return holdings.timeline(end + 1)


@dataclass(frozen=True, eq=False)
class _Repeat:
    """Second run of a checkpointed block, before all instants have made room for it. Instants are those of one run.

    Copies of weights that a kernel makes are left out.
    """

    block: Block
    ended: int  # last instant of the block in forward
    parts: Sequence[Again]
    after: int  # instant of backward that it follows
    until: int  # first instant of backward without the inputs of the block

    @classmethod
    def of(cls, number: int, log: _Log, kept: Mapping[int, KeptInBlock]) -> _Repeat:
        """Return the second run of a block by its number."""
        block = log.blocks[number]
        used = [log.used[place] for place in block.places if place in log.used] or [log.now]
        freed = (log.freed.get(place, 0) for place in block.places)
        return cls(block, log.ends[number], parts_of(block, kept), min(used), max(max(used) + 1, *freed, 0))

    @property
    def instants(self) -> int:
        """Number of operations."""
        return self.parts[-1].until - self.block.done if self.parts else 0

    @property
    def upstream(self) -> Owners:
        """Layers of which one must be trained for any of it."""
        return self.parts[0].upstream if self.parts else frozenset()

    def upstream_at(self, instant: int) -> Owners:
        """Layers of which one must be trained for what forward did at an instant to run again."""
        return next((part.upstream for part in self.parts if part.since < instant <= part.until), frozenset())


def _run(module: nn.Module, input_shape: Sequence[int], batch: int, objective: Objective, tokens: bool) -> _Step:
    with FakeTensorMode(allow_non_fake_inputs=True):  # for constants that a network holds
        weights = stand_ins_on_cpu(module)
        data = blank_inputs(batch, input_shape, tokens, "cpu").requires_grad_(not tokens)
        given = data.clone()  # not a leaf, so that a network may change it in place
        log = _Log({**weights, DATA: given})
        labels_bytes = 0

        def forward() -> Tensor:  # what it holds is freed when it returns
            nonlocal labels_bytes
            outputs = applied(module, weights, given)
            with log.quiet():
                labels = objective.some_labels(outputs)
            labels_bytes = labels.nbytes
            return objective.loss(outputs, labels)

        with log:
            with log.kept(), _Results(log), plain_blocks(log.block):
                loss = forward()
            nodes = nodes_behind(loss.grad_fn)
            log.in_backward = True
            names = [name for name, value in weights.items() if value.requires_grad]
            grads = gradients(loss, [weights[name] for name in names])
        for name, grad in zip(names, grads, strict=True):
            storage = log.find(grad)
            if storage is not None:
                storage.gradient_of, storage.shape = name, tuple(weights[name].shape)
        return _Step(log, nodes, data.nbytes + labels_bytes)


def _of_backward(node: Node, shape: tuple[int, ...], trace: Trace, layout: Layout) -> tuple[tuple[str, ...], Owners]:
    """Return the channel groups of a result of a node's backward pass, and the layers that need it.

    It is the gradient of an operand of its shape, if there is one.
    """
    of_operands = [source for source, place in operands(node) if shape_of(source, place) == shape]
    by = frozenset[str]().union(*(trace.behind(source) for source in of_operands or [node]))
    for source in (*of_operands, node):
        if shape_of(source) == shape:
            return tuple(filter(None, layout.axes[source])), by
    return (), by


def _identity(tensor: Tensor) -> int:
    return tensor.untyped_storage()._cdata  # tensors without numbers have no address
