"""Path loss: how many decibels a radio signal loses on its way."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from edgesim.core.arrays import Arr

LIGHT_M_S = 3.0e8  # as 3GPP TR 38.901 rounds it
_ENVIRONMENT_M = 1.0  # effective height of what is built around, for devices up to 13 m high


@dataclass(frozen=True, slots=True)
class Site:
    """Inputs of path loss besides the distance on the ground."""

    carrier_hz: float
    server_height_m: float
    device_height_m: float
    exponent: float  # of the log-distance model
    reference_m: float  # up to which the log-distance model is free space


def macro_db(distance_m: Arr, site: Site) -> Arr:
    """Return dB of an urban macro cell at 2 GHz, shape (k,).

    Source: 3GPP TR 36.814, Table A.2.1.1-2: 128.1 + 37.6 log10(R), R in km.
    """
    loss_db: Arr = 128.1 + 37.6 * np.log10(distance_m / 1000.0)
    return loss_db


def uma_los_db(distance_m: Arr, site: Site) -> Arr:
    """Return dB of an urban macro cell in line of sight, shape (k,); 40 dB a decade beyond the break point.

    Source: 3GPP TR 38.901, Table 7.4.1-1 (UMa LOS) and its note 1.
    """
    heights_m = (site.server_height_m - _ENVIRONMENT_M) * (site.device_height_m - _ENVIRONMENT_M)
    break_m = 4.0 * heights_m * site.carrier_hz / LIGHT_M_S
    rise_m = site.server_height_m - site.device_height_m
    common_db = 28.0 + 20.0 * np.log10(site.carrier_hz / 1e9)
    slant_db = np.log10(np.hypot(distance_m, rise_m))
    far_db = 40.0 * slant_db - 9.0 * np.log10(break_m**2 + rise_m**2)
    loss_db: Arr = common_db + np.where(distance_m <= break_m, 22.0 * slant_db, far_db)
    return loss_db


def uma_nlos_db(distance_m: Arr, site: Site) -> Arr:
    """Return dB of an urban macro cell without line of sight, shape (k,), at least those with it.

    Source: 3GPP TR 38.901, Table 7.4.1-1 (UMa NLOS).
    """
    slant_m = np.hypot(distance_m, site.server_height_m - site.device_height_m)
    hidden_db = 13.54 + 39.08 * np.log10(slant_m) + 20.0 * np.log10(site.carrier_hz / 1e9)
    hidden_db = hidden_db - 0.6 * (site.device_height_m - 1.5)
    loss_db: Arr = np.maximum(uma_los_db(distance_m, site), hidden_db)
    return loss_db


def log_distance_db(distance_m: Arr, site: Site) -> Arr:
    """Return dB of free space up to a reference distance and of a power law beyond it, shape (k,).

    Source: Rappaport, Wireless Communications, 2nd edition, section 4.9.1.
    """
    free_db = 20.0 * np.log10(4.0 * np.pi * site.reference_m * site.carrier_hz / LIGHT_M_S)
    loss_db: Arr = free_db + 10.0 * site.exponent * np.log10(distance_m / site.reference_m)
    return loss_db


class PathLoss(NamedTuple):
    """A model and the distances for which it is made."""

    loss_db: Callable[[Arr, Site], Arr]
    nearest_m: float
    farthest_m: float


MODELS = {
    "macro": PathLoss(macro_db, 1.0, np.inf),
    "uma_los": PathLoss(uma_los_db, 10.0, 5000.0),
    "uma_nlos": PathLoss(uma_nlos_db, 10.0, 5000.0),
    "log_distance": PathLoss(log_distance_db, 1.0, np.inf),
}
