"""The one place where torch's global generator is seeded, and put back afterwards."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from edgesim.core.rng import Key


@contextmanager
def seeded(key: Key) -> Iterator[None]:
    """Run a block with torch's generator at the start of the stream `key`; afterwards it stands where it stood."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(key.word())
        yield
