"""Most bytes that PyTorch's CPU allocator has out at once in a training step, by PyTorch's own profiler."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile


def peak_bytes(
    module: nn.Module,
    loss: Callable[[Tensor, Tensor], Tensor],
    x: Tensor,
    y: Tensor,
    optimizer: Callable[[list[nn.Parameter]], torch.optim.Optimizer],
) -> int:
    """Return the peak of the second training step: tensors before it, and the allocations within it.

    Gradients are freed after the step. Trained are all parameters that require gradients.
    """
    trained = [value for value in module.parameters() if value.requires_grad]
    update = optimizer(trained)

    def step() -> None:
        grads = torch.autograd.grad(loss(module(x), y), trained, allow_unused=True)
        for value, grad in zip(trained, grads, strict=True):
            value.grad = grad
        del grads
        update.step()
        update.zero_grad()

    step()  # makes the moments
    moments = (value for state in update.state.values() for value in state.values() if isinstance(value, Tensor))
    before = {
        value.untyped_storage().data_ptr(): value.untyped_storage().nbytes()
        for value in (*module.parameters(), *module.buffers(), *moments, x, y)
    }
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        step()
    tree = profiler.profiler.kineto_results.experimental_event_tree()  # type: ignore[union-attr]
    now = most = 0
    for _, nbytes in sorted(_allocations(tree), key=lambda each: each[0]):
        now += nbytes
        most = max(most, now)
    return sum(before.values()) + most


def _allocations(events: Iterable[Any]) -> Iterable[tuple[int, int]]:
    """Yield time and bytes of each allocation, and of each release as a negative number."""
    for event in events:
        if event.tag == torch._C._profiler._EventType.Allocation and event.extra_fields.device.type == "cpu":
            yield event.start_time_ns, event.extra_fields.alloc_size
        yield from _allocations(event.children)
