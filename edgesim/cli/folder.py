"""Default run folders."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from pathlib import Path

_LONGEST = 80  # characters of what `--set` says
_UNFIT = re.compile(r'[\x00-\x1f<>:"/\\|?*]+')  # for names on common file systems
_SHOWN = re.compile(r"(seed|method(\.name)?)\s*=")  # overrides that the rest of the name tells


def default_folder(scenario: Path, method: str, seed: int, overrides: Sequence[str]) -> Path:
    """Return runs/SCENARIO-METHOD-SEED and, after it, what `--set` changes otherwise, so that each has its own.

    What is long, or has characters that no file name should, is shortened and ends in a hash.
    """
    told = [text for text in overrides if not (_SHOWN.match(text) and "{" not in text)]
    return Path("runs") / (_UNFIT.sub(".", f"{scenario.stem}-{method}-{seed}") + _short(told))


def changed_folder(run: Path, overrides: Sequence[str]) -> Path:
    """Return the folder beside a run for the same one with overrides."""
    return run.with_name(f"{run.name}{_short(overrides) or '-again'}")


def _short(overrides: Sequence[str]) -> str:
    changes = "".join(f"-{text}" for text in overrides)
    short = _UNFIT.sub("_", changes.replace(" ", ""))[:_LONGEST]
    if short != changes.replace(" ", ""):
        short += f"-{hashlib.sha256(changes.encode()).hexdigest()[:8]}"
    return short
