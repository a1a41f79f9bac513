"""Whether matplotlib can be loaded at all."""

from __future__ import annotations

from importlib import import_module

from edgesim.errors import ConfigError


def check_backend() -> None:
    """Raise ConfigError if MPLBACKEND has a name that matplotlib does not load with, though no window is opened."""
    try:
        import_module("matplotlib")
    except ValueError as error:
        raise ConfigError(f"MPLBACKEND: {str(error).removeprefix('Key backend: ')[:300]}") from error
