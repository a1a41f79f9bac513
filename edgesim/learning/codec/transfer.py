"""Transfer of model states between an accelerator and this machine's memory: many tensors move in one copy."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from edgesim.core.update import ModelState

_CPU = torch.device("cpu")


def on_cpu(model_state: ModelState) -> dict[str, dict[str, Tensor]]:
    """Return a model state without gradients in this machine's memory. Tensors already there are not copied."""
    found = {kind: {name: t.detach() for name, t in tensors.items()} for kind, tensors in model_state.items()}
    away = [(kind, name) for kind, tensors in found.items() for name, t in tensors.items() if t.device != _CPU]
    if away:
        for (kind, name), tensor in zip(away, in_one_copy([found[k][n] for k, n in away], _CPU), strict=True):
            found[kind][name] = tensor
    return found


def in_one_copy(tensors: Sequence[Tensor], device: torch.device) -> list[Tensor]:
    """Return copies of tensors on another device, in the same memory layout, with one transfer for each type.

    Copies of one type are parts of one piece of memory.
    """
    by_type: dict[torch.dtype, list[int]] = {}
    for place, tensor in enumerate(tensors):
        by_type.setdefault(tensor.dtype, []).append(place)
    copies = list(tensors)
    for places in by_type.values():
        # Entries of each row lie side by side in memory, and are moved in the order of memory.
        own = (tensors[place] for place in places)
        rows = [t if t.is_contiguous(memory_format=torch.channels_last) else t.contiguous() for t in own]
        moved = torch.cat([row.as_strided((row.numel(),), (1,)) for row in rows]).to(device)
        for place, row, piece in zip(places, rows, torch.split(moved, [row.numel() for row in rows]), strict=True):
            copies[place] = piece.as_strided(row.shape, row.stride(), piece.storage_offset())
    return copies
