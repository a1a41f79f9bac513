"""Where networks run."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from edgesim.errors import ConfigError


def check_device(name: str) -> None:
    """Raise ConfigError unless torch can compute on the device of this name here, such as "cpu" or "cuda:0"."""
    try:
        torch.ones(1, device=name).item()
    except (RuntimeError, AssertionError) as error:
        reason, *_ = str(error).partition(". ")  # torch goes on for a paragraph
        here = ", ".join(["cpu", *(f"cuda:{i}" for i in range(torch.cuda.device_count()))])
        raise ConfigError(f"backend.device: cannot compute on {name!r} here: {reason} (found: {here})") from error


@contextmanager
def one_thread() -> Iterator[None]:
    """Compute on one thread, so that times and sums do not depend on how many the host has.

    To be left in the order of entering, so for functions and with-blocks, not for objects that live as long as they do.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
