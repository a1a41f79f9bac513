"""What tests work out once in a process: the costs of networks, and the digits, which take longer than most runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any
from unittest import mock

from torch import nn

from edgesim.core.price_list import CostProfile
from edgesim.files import code_identity
from edgesim.learning.data.sources import digits
from edgesim.learning.objectives.base import Objective
from edgesim.learning.objectives.classification import CLASSIFICATION
from edgesim.methods import augfl
from edgesim.methods import augfl_teacher as teacher
from edgesim.runs import host_time, network, recording

# Whose modules do what the texts, numbers and shapes in them say: a function in one might change under the same name.
KNOWN = ("torch.", "torchvision.", "edgesim.", "tests.")


def structure_of(module: nn.Module) -> str | None:
    """Return a text that two networks share if they cost the same; None for a network that is not known so well."""
    parts = []
    for name, inner in module.named_modules(remove_duplicate=False):
        cls = type(inner)
        if not cls.__module__.startswith(KNOWN) or "<locals>" in cls.__qualname__:
            return None
        settings = {key: repr(value) for key, value in vars(inner).items() if not key.startswith("_")}
        parts.append(f"{name} {cls.__module__}.{cls.__qualname__} {inner.extra_repr()} {sorted(settings.items())}")
    first: dict[int, str] = {}  # a weight that several layers share is priced once
    tensors = (*module.named_parameters(remove_duplicate=False), *module.named_buffers(remove_duplicate=False))
    for name, tensor in tensors:
        same = first.setdefault(id(tensor), name)
        parts.append(f"{name} {same} {type(tensor)} {tuple(tensor.shape)} {tensor.dtype} {tensor.requires_grad}")
    return "\n".join(parts)


def remembering(really: Callable[..., CostProfile]) -> Callable[..., CostProfile]:
    """Return `measure` that measures networks of one structure once. What it raises is not kept."""
    cost_profiles: dict[Any, CostProfile] = {}

    def measured(
        module: nn.Module,
        name: str,
        input_shape: Sequence[int],
        classes: int,
        objective: Objective = CLASSIFICATION,
        kinds: bool = False,
        tokens: bool = False,
    ) -> CostProfile:
        structure = structure_of(module)
        if structure is None:
            return really(module, name, input_shape, classes, objective, kinds, tokens)
        key = structure, name, tuple(input_shape), classes, objective, kinds, tokens
        if key not in cost_profiles:
            cost_profiles[key] = really(module, name, input_shape, classes, objective, kinds, tokens)
        return cost_profiles[key]

    return measured


@contextmanager
def costs_and_digits() -> Iterator[None]:
    """Share the cost profiles of equal networks among what is assembled in the block; `measure` itself does measure.

    What says how fast the host is tries it for a twentieth of a second; versions of libraries are read once.
    """
    measure_once, read_once = remembering(network.measured), cache(digits._table)
    with (
        mock.patch.object(network, "measured", measure_once),
        mock.patch.object(teacher, "measure", measure_once),
        mock.patch.object(augfl, "measure", measure_once),
        mock.patch.object(digits, "_table", lambda: read_once().copy()),
        mock.patch.object(host_time, "_PROBE_S", 0.05),
        mock.patch.object(code_identity, "version_of", cache(code_identity.version_of)),
        mock.patch.object(recording, "version", cache(recording.version)),
    ):
        yield
