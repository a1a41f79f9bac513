"""Hertz and seconds of an upload at the margin, where one more is worth what it spares."""

from __future__ import annotations

import math

import numpy as np
from scipy.special import lambertw

from edgesim.core.arrays import Arr


def nats_worth(worth: Arr) -> Arr:
    """Return the nats for each hertz and second, x, at which (x - 1) e^x + 1 = `worth`, shape (k,).

    The energy of an upload falls with its hertz and seconds, this much with the last of them, so x is optimal where one
    is worth as much: x = 1 + W((worth - 1) / e) with Lambert's W.
    """
    # the closed form cancels near 0, where its series begins with sqrt(2 worth)
    nats: Arr = np.where(worth < 1e-9, np.sqrt(2.0 * worth), 1.0 + lambertw((worth - 1.0) / math.e).real)
    return nats
