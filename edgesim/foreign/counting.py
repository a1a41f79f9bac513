"""Counter of what a user's code computes with torch, operation by operation.

A dispatch mode sees every operation below autograd, autocast and transforms of functions, so that recomputed, frozen
and accumulated work counts as it is done. FLOPs are those of PyTorch's counter with edgesim's formulas. Fused attention
counts as the plain products of which edgesim's prices are made. Tensors without numbers (meta) cost nothing. Compiled
functions run as they are written. Products of nested tensors of the older layout (torch.strided) are seen only where a
whole encoder layer is one operation.

In the kinds of work, updates of optimisers count as `update_bytes` and the loading of data as `samples`, as in prices.
Operations of both are left out of `operations` and `bytes`.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from functools import cache, wraps
from threading import Lock, local
from types import TracebackType
from typing import Any, NamedTuple, Self, cast

import torch
from torch import Tensor
from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.data import dataloader

from edgesim.core.work import PRICED, UPDATE_BYTES
from edgesim.foreign.counted import Counted, cpu_s
from edgesim.learning.measure.operation_work import convolving, does_work
from edgesim.learning.models.flop_counter import plain_formulas

_PICKING = {"index", "index_select", "gather", "stack", "cat"}  # of rows: what they read is data, not weights
_BY_SHAPE = {"mm", "addmm", "bmm", "baddbmm", "convolution", "convolution_backward"}  # whose formulas are slow
_PLAIN_TYPES = {Tensor, torch.nn.Parameter}


class Counter:
    """Counter of a block of code: `with Counter() as counter: ...`, then `counter.counted()`.

    `kinds`: also count the kinds of work. A block may hold others of any counter, which count on their own. A counter
    that is entered again while it counts goes on, and one that is entered later adds to what it has counted. What was
    counted before an exception is kept.
    """

    def __init__(self, kinds: bool = False) -> None:
        self._mode = _Counting(kinds)
        self._depth, self._host_s = 0, 0.0

    def __enter__(self) -> Self:
        self._depth += 1
        if self._depth == 1:
            _process.hold()
            _here.counting = (*_here.counting, self._mode)
            self._host_s -= cpu_s()
            self._mode.__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._depth -= 1
        if not self._depth:
            self._mode.__exit__(kind, error, traceback)  # type: ignore[no-untyped-call]
            self._host_s += cpu_s()
            _here.counting = tuple(each for each in _here.counting if each is not self._mode)
            self._mode.forget()
            _process.release()

    def counted(self) -> Counted:
        """Return the amounts counted so far."""
        mode = self._mode
        sizes = [size for size in mode.loaded if size is not None]
        samples = sum(sizes) if mode.loaded and len(sizes) == len(mode.loaded) else None
        work = dict(mode.work)
        if mode.kinds:
            steps = max(mode.steps, len(mode.loaded))  # batches of a test take no step of an optimiser
            work.update(flops=mode.flops, samples=float(samples or 0), steps=float(steps))
        return Counted(
            flops=mode.flops,
            memory_bytes=mode.most_bytes,
            made_bytes=mode.most_made_bytes,
            read_bytes=mode.most_read_bytes,
            steps=mode.steps,
            samples=samples,
            host_s=self._host_s + (cpu_s() if self._depth else 0.0),
            work=work,
        )


class _Process:
    """Settings of the process that counters need.

    torch's compiler stays off while any counter counts. It would hide what functions do, and it refuses dispatch modes
    if the whole graph is wanted. Optimisers and data loaders report to counters from the first one on.
    """

    def __init__(self) -> None:
        self._lock, self._counters = Lock(), 0
        self._off: AbstractContextManager[object] = nullcontext()

    def hold(self) -> None:
        """Make them for one more counter."""
        with self._lock:
            _watch()
            self._counters += 1
            set_stance = vars(torch.compiler).get("set_stance")  # from torch 2.6 on
            if self._counters == 1 and set_stance is not None:
                self._off = set_stance("force_eager")
                self._off.__enter__()

    def release(self) -> None:
        """Let the compiler work again if this was the last counter."""
        with self._lock:
            self._counters -= 1
            if not self._counters:
                self._off.__exit__(None, None, None)


_process = _Process()


class _Here(local):
    """Counters that count in this thread, by their dispatch modes, and what optimisers and data loaders tell them."""

    counting: tuple[_Counting, ...] = ()

    def before_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> Any:
        """Note a step, and return its arguments with a closure that counts as if it were outside of the step."""
        if not self.counting:
            return None
        for mode in self.counting:
            mode.step_begins(optimizer)
        me, *rest = args
        if rest and callable(rest[0]):
            rest[0] = self._outside_steps(rest[0])
        elif callable(kwargs.get("closure")):
            kwargs = {**kwargs, "closure": self._outside_steps(kwargs["closure"])}
        return (me, *rest), kwargs

    def after_step(self, optimizer: Optimizer, _args: Any, _kwargs: Any) -> None:
        """Count a step."""
        for mode in self.counting:
            mode.step_ends(optimizer)

    def next_batch(self, loader: Any, following: Callable[[Any], Any]) -> Any:
        """Return the next batch of a data loader, and count its samples."""
        counting = tuple(mode for mode in self.counting if not mode.loading)  # not of a loader inside a data set
        for mode in counting:
            mode.loading = True
        try:
            batch = following(loader)
        finally:
            for mode in counting:
                mode.loading = False
        parts = tree_leaves(dict(batch) if isinstance(batch, Mapping) else batch) if counting else ()
        size = next((len(each) for each in parts if isinstance(each, Tensor) and each.ndim), None)
        for mode in counting:
            mode.loaded.append(size)
        return batch

    def _outside_steps(self, closure: Callable[[], Any]) -> Callable[[], Any]:
        @wraps(closure)
        def outside() -> Any:
            with ExitStack() as stack:
                for mode in self.counting:
                    stack.enter_context(mode.outside_steps())
                return closure()

        return outside


_here = _Here()


@cache
def _watch() -> None:
    """Let every optimiser and data loader of the process report to the counters of its thread, from now on."""
    register_optimizer_step_pre_hook(lambda *step: _here.before_step(*step))
    register_optimizer_step_post_hook(lambda *step: _here.after_step(*step))
    loading = cast("Any", dataloader._BaseDataLoaderIter)
    following = loading.__next__
    loading.__next__ = wraps(following)(lambda loader: _here.next_batch(loader, following))


class _Operation(NamedTuple):
    """Facts of an operation that do not depend on its operands."""

    name: str
    view: bool  # whether its result shares the memory of an operand
    works: bool
    picks: bool  # whether it picks rows
    composed: bool  # whether it consists of others, into which autograd has not split it
    formula: Callable[..., int] | None
    by_shape: bool  # whether its FLOPs are remembered by shapes and plain values


@cache
def _operation(func: Any) -> _Operation:
    higher_order = not isinstance(func, torch._ops.OpOverload)
    if higher_order:  # such as flex attention
        return _Operation(str(func), False, False, False, False, _formulas().get(func), by_shape=False)
    name, formula = func.overloadpacket.__name__, _formulas().get(func.overloadpacket)
    composed = torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), "CompositeImplicitAutograd")
    return _Operation(
        name,
        view=func.is_view or name == "_unsafe_view",
        works=does_work(func),
        picks=name in _PICKING,
        composed=composed and formula is None,
        formula=formula,
        by_shape=name in _BY_SHAPE,
    )


_formulas = cache(plain_formulas)


class _Storage(weakref.ref[Any]):
    """A storage that is alive."""

    __slots__ = ("key", "nbytes", "read")

    key: int
    nbytes: int
    read: bool


class _Counting(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Dispatch mode of a counter. It runs at every operation, so that it is written for speed."""

    supports_higher_order_operators = True

    def __init__(self, kinds: bool) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.kinds = kinds
        self.flops = 0.0
        self.work: dict[str, float] = dict.fromkeys(PRICED, 0.0) if kinds else {}
        self.steps = 0
        self.loaded: list[int | None] = []  # samples of each batch that a data loader gave, None where not known
        self.loading = False
        self.stepping: list[Optimizer] = []
        self.most_bytes = self.most_made_bytes = self.most_read_bytes = 0
        self._made_bytes = self._read_bytes = 0
        self._alive: dict[int, _Storage] = {}
        self._known: dict[Any, int] = {}  # FLOPs by operation, shapes and plain values

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operation of torch and count it."""
        kwargs = kwargs or {}
        if types and not _PLAIN_TYPES.issuperset(types):
            from torch._subclasses.fake_tensor import FakeTensor  # without numbers, as edgesim measures networks

            # tensors of other classes say first what they are made of
            return func(*args, **kwargs) if FakeTensor in types else NotImplemented
        op = _operation(func)
        if op.composed and not any(each.is_nested for each in _tensors(args)):
            with self:
                return func.decompose(*args, **kwargs)
        result = func(*args, **kwargs)
        if op.view:
            return result
        made = [result] if isinstance(result, Tensor) else _tensors(result) if isinstance(result, list | tuple) else []
        read = _tensors((*args, *kwargs.values()) if kwargs else args)
        for first in (made or read)[:1]:
            fake = type(first) not in _PLAIN_TYPES and first.untyped_storage().device.type == "meta"
            if fake or first.is_meta:
                return result
        alive = self._alive
        try:
            for tensor in () if op.picks else read:
                if (storage := tensor.untyped_storage())._cdata not in alive:
                    self._add(storage, True)
            for tensor in made:
                if (storage := tensor.untyped_storage())._cdata not in alive:
                    self._add(storage, False)
        except RuntimeError:  # a tensor of a layout without storage, such as a sparse one
            pass
        if op.formula is not None:
            self.flops += self._flops_of(op, op.formula, func, args, kwargs, result)
        if self.kinds and made and op.works and not self.loading and not self.stepping:
            self._count_kinds(op, func, args, result, read, made)
        return result

    def _flops_of(
        self, op: _Operation, formula: Callable[..., int], func: Any, args: Any, kwargs: Any, result: Any
    ) -> int:
        try:
            if not op.by_shape:
                return formula(*args, **kwargs, out_val=result)
            plain = [tuple(each) if isinstance(each, list) else each for each in args]
            key = (func, *[each.shape if isinstance(each, Tensor) else each for each in plain])
            found = self._known.get(key)
            if found is None:
                found = self._known[key] = formula(*args, **kwargs, out_val=result)
            return found
        except RuntimeError:  # a nested tensor of the older layout has no shape
            return 0

    def _count_kinds(
        self, op: _Operation, func: Any, args: Any, result: Any, read: list[Tensor], made: list[Tensor]
    ) -> None:
        try:
            nbytes = sum([each.nbytes for each in {id(each): each for each in made}.values()])
            if op.picks:  # it reads the rows that it picks, and not all that there are
                nbytes *= 2
            else:
                nbytes += sum([each.nbytes for each in {id(each): each for each in read}.values()])
        except RuntimeError:  # a sparse tensor does not say
            nbytes = 0
        work = self.work
        work["operations"] += 1
        work["bytes"] += nbytes
        if "convolution" in op.name and (conv := convolving(op.name, args, result)):
            work["convolutions"] += 1
            for kind, amount in conv.items():
                if kind == "dense":
                    work["conv_bytes"] += nbytes
                else:
                    work[kind] += amount

    def _add(self, storage: Any, read: bool) -> None:
        self._alive[storage._cdata] = alive = _Storage(storage, self._freed)
        alive.key, alive.nbytes, alive.read = storage._cdata, storage.nbytes(), read
        if read:
            self._read_bytes += alive.nbytes
            if self._read_bytes > self.most_read_bytes:
                self.most_read_bytes = self._read_bytes
        else:
            self._made_bytes += alive.nbytes
            if self._made_bytes > self.most_made_bytes:
                self.most_made_bytes = self._made_bytes
        if self._read_bytes + self._made_bytes > self.most_bytes:
            self.most_bytes = self._read_bytes + self._made_bytes

    def _freed(self, storage: _Storage) -> None:
        if self._alive.get(storage.key) is storage:
            del self._alive[storage.key]
            if storage.read:
                self._read_bytes -= storage.nbytes
            else:
                self._made_bytes -= storage.nbytes

    def forget(self) -> None:
        """Let go of the storages that are alive. The counter may count again."""
        self._alive.clear()
        self._made_bytes = self._read_bytes = 0
        self.stepping.clear()

    def step_begins(self, optimizer: Optimizer) -> None:
        """Note a step of an optimiser, which may be part of a step of another one."""
        self._leave(optimizer)  # an earlier step of it that failed
        self.stepping.append(optimizer)

    def step_ends(self, optimizer: Optimizer) -> None:
        """Count the step and what it updates, unless it is part of another one."""
        self._leave(optimizer)
        if not self.stepping:
            self.steps += 1
            if self.kinds:
                given = (each for group in optimizer.param_groups for each in group["params"])
                self.work["update_bytes"] += UPDATE_BYTES * sum(each.numel() for each in given if each.grad is not None)

    def _leave(self, optimizer: Optimizer) -> None:
        for place, each in enumerate(self.stepping):
            if each is optimizer:
                del self.stepping[place:]
                break

    @contextmanager
    def outside_steps(self) -> Iterator[None]:
        """Count a block in a step as if it were outside: the closure that an optimiser calls for its loss."""
        stepping, self.stepping = self.stepping, []
        try:
            yield
        finally:
            self.stepping = stepping


def _tensors(values: Iterable[Any]) -> list[Tensor]:
    found = []
    for value in values:
        if isinstance(value, Tensor):
            found.append(value)
        elif isinstance(value, list | tuple):
            found += [each for each in value if isinstance(each, Tensor)]
    return found
