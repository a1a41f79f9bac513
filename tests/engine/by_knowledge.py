"""What a server might know, made by hand, so that a choice can be checked against numbers on paper."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np

from edgesim.core.selection import Expected, Known, Reported, StoredEnergy

NAN = float("nan")


def expected_of(down_s: Any = 0.0, compute_s: Any = 1.0, up_s: Any = 0.0, joules: Any = 0.0, n: int = 4) -> Expected:
    """Return expected jobs of n devices; numbers are common to all."""
    columns = (np.broadcast_to(np.asarray(each, dtype=float), n) for each in (down_s, compute_s, up_s, joules))
    return Expected(*columns, up_bytes=1000)


def known_of(samples: Sequence[int], state: Any = None, **facts: Any) -> Known:
    """Return what is known of devices with so many samples: nothing but what is given.

    `facts`: fields of Known as lists; and loss, square_loss, accuracy, norm, stored_j and capacity_j.
    """
    n = len(samples)
    reported = Reported(*(np.array(facts.pop(name, [NAN] * n), dtype=float) for name in Reported._fields))
    battery = StoredEnergy(*(np.array(facts.pop(name, [np.inf] * n), dtype=float) for name in StoredEnergy._fields))
    setting = SimpleNamespace(samples=np.array(samples))
    base: dict[str, Any] = {
        "round": 0,
        "now_s": 0.0,
        "asked": [0] * n,
        "delivered": [0] * n,
        "last_asked": [-1] * n,
        "last_delivered": [-1] * n,
        "seconds": [NAN] * n,
        "last": [],
        "up_bps": [1e6] * n,
        "expected": expected_of(n=n),
    }
    given = {name: np.array(each) if isinstance(each, list) else each for name, each in {**base, **facts}.items()}
    given["last"] = given["last"].astype(np.int64)
    return Known(setting=setting, reported=reported, battery=battery, state=state, **given)  # type: ignore[arg-type]
