"""Errors of device clocks: how much longer than predicted the computations of a kind of device take, as keyed draws."""

from __future__ import annotations

import math
from hashlib import sha256

from edgesim.core.rng import Key, Purpose


def clock_factor(draw: int, spread: float, board: str, network: str) -> float:
    """Return true over predicted seconds of computations in draw number `draw`: exp(spread x standard normal number).

    `spread`: standard deviation of ln(true / predicted seconds), of networks whose family was not measured. All devices
    of a `board` that train a `network` have one factor in all scenarios, so their errors cancel where two are compared.
    Another board, or another network, has another factor, independent of it.
    """
    key = Key(draw).at(Purpose.CLOCK_ERROR, _word(board), _word(network))
    return math.exp(spread * float(key.numpy().standard_normal()))


def _word(name: str) -> int:
    return int.from_bytes(sha256(name.encode()).digest()[:4], "big")
