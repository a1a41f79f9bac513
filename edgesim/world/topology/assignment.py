"""Assignment of devices to edge servers."""

from __future__ import annotations

import numpy as np

from edgesim.config.scenario import Scenario
from edgesim.config.sections import Edges
from edgesim.config.units import draw
from edgesim.core.arrays import Arr, Ids
from edgesim.core.errors import ConfigError
from edgesim.core.rng import Key

_X, _Y = 0, 1  # streams; never renumber


def assigned(scenario: Scenario, edges: int, samples: Ids, labels: np.ndarray | None, key: Key) -> Ids:
    """Return the edge server of each device, int64, shape (devices,), in place to be changed as devices move.

    `samples`: local data sizes, shape (devices,); `labels`: label counts, shape (devices, classes), None: not known.
    Raises ConfigError if the scenario does not say what its assignment needs, or an edge server gets no device.
    """
    given, devices = scenario.edges, len(samples)
    assert given is not None
    if given.assignment == "column":
        for index, block in enumerate(scenario.fleet):
            if block.edge is None or block.edge >= edges:
                found = "nothing" if block.edge is None else block.edge
                raise ConfigError(f"fleet.{index}.edge: must be an edge server from 0 to {edges - 1}, got {found}")
        places = np.repeat([block.edge or 0 for block in scenario.fleet], [block.count for block in scenario.fleet])
    elif given.assignment == "nearest":
        places = _nearest(scenario, given, edges, key)
    elif given.assignment == "balanced":
        places = balanced(samples.astype(np.float64), edges)
    elif given.assignment == "labels":
        if labels is None:
            raise ConfigError("edges.assignment: 'labels' needs a data set whose samples devices hold")
        places = label_mixed(labels, edges)
    else:
        places = np.arange(devices) * edges // devices
    empty = np.flatnonzero(np.bincount(places, minlength=edges) == 0)
    if len(empty):
        raise ConfigError(
            f"edges.assignment: edge server {empty[0]} of {edges} gets none of the {devices} devices; "
            "every one needs a device"
        )
    return np.asarray(places, dtype=np.int64)


def _nearest(scenario: Scenario, given: Edges, edges: int, key: Key) -> Ids:
    """Return the edge server at the least straight distance, of several the one with the lowest number."""
    assert given.positions is not None
    if len(given.positions) != edges:
        raise ConfigError(f"edges.positions: must be one for each of {edges} edge servers, got {len(given.positions)}")
    x, y = (_column(scenario, axis, key) for axis in (_X, _Y))
    at = np.array(given.positions, dtype=np.float64)
    distance = np.hypot(x[:, np.newaxis] - at[:, 0], y[:, np.newaxis] - at[:, 1])
    nearest: Ids = distance.argmin(axis=1)
    return nearest


def _column(scenario: Scenario, axis: int, key: Key) -> Arr:
    """Return one coordinate of all devices, shape (devices,)."""
    name = "xy"[axis]
    parts = [
        draw(dict(block)[name], block.count, key.at(axis, index).numpy(), f"fleet.{index}.{name}")
        for index, block in enumerate(scenario.fleet)
    ]
    return np.concatenate(parts)


def balanced(amounts: Arr, edges: int) -> Ids:
    """Return groups with about equal sums: each device, the largest first, goes where there is least so far.

    Source: the longest-processing-time rule; Graham, "Bounds on multiprocessing timing anomalies" (1969).
    """
    sums, places = np.zeros(edges), np.zeros(len(amounts), dtype=np.int64)
    counts = np.zeros(edges, dtype=np.int64)
    for device in np.lexsort((np.arange(len(amounts)), -amounts)):
        place = int(np.lexsort((counts, sums))[0])
        places[device] = place
        sums[place] += amounts[device]
        counts[place] += 1
    return places


def label_mixed(labels: np.ndarray, edges: int) -> Ids:
    """Return groups of about equal numbers of devices whose label shares are near those of all devices.

    Device after device, the largest first, goes where it leaves the least squared distance between the labels that a
    group has and its part of all labels, among groups that are not full.
    """
    devices = len(labels)
    wanted, held = labels.sum(axis=0) / edges, np.zeros((edges, labels.shape[1]))
    room = np.full(edges, devices // edges) + (np.arange(edges) < devices % edges)
    places = np.zeros(devices, dtype=np.int64)
    for device in np.lexsort((np.arange(devices), -labels.sum(axis=1))):
        gain = ((held + labels[device] - wanted) ** 2).sum(axis=1) - ((held - wanted) ** 2).sum(axis=1)
        place = int(np.where(room > 0, gain, np.inf).argmin())
        places[device] = place
        held[place] += labels[device]
        room[place] -= 1
    return places
