"""Where networks run."""

from __future__ import annotations

import torch

from edgesim.errors import ConfigError


def check_device(name: str) -> None:
    """Raise ConfigError unless torch can compute on the device of this name here, such as "cpu" or "cuda:0"."""
    try:
        torch.empty(0, device=name)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise ConfigError(f"backend.device: cannot compute on {name!r} here: {reason}") from error
