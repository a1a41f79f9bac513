"""Members of a training, and the samples that its devices and its server hold."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from edgesim.config.plugin_fields import built
from edgesim.config.scenario import Scenario
from edgesim.config.validate import personal_tests, refuse
from edgesim.core.arrays import Arr, Ids
from edgesim.core.arrivals import Arrivals
from edgesim.core.rng import Key, Purpose
from edgesim.learning.data.dataset import Dataset
from edgesim.learning.data.split import Split, local_tests
from edgesim.learning.server_rows import ServerRows, draw_server_rows
from edgesim.world.fleet import Fleet


def server_set_of(scenario: Scenario, data: Dataset | None) -> ServerRows | None:
    """Return the samples of the method's server; None: it has none."""
    wanted = scenario.method.value.server_set
    if wanted is None or data is None:
        return None
    of_test = wanted.split == "test"
    labels = data.labels("test" if of_test else "train")
    seed = scenario.seed if of_test else _data_seed(scenario)  # reserved training rows are part of the partition
    key = Key(seed).at(Purpose.SERVER_SET)
    return ServerRows(wanted, draw_server_rows(wanted, labels, data.classes, key))


def _data_seed(scenario: Scenario) -> int:
    """Return the seed of all draws of the partition."""
    return scenario.seed if scenario.data_seed is None else scenario.data_seed


def for_others(server_set: ServerRows | None, split: str, samples: int) -> Ids:
    """Return the rows of a split that the server has not reserved for itself."""
    rows = np.arange(samples)
    if server_set is None or not server_set.wanted.reserved or server_set.wanted.split != split:
        return rows
    return np.delete(rows, server_set.rows)


def members_of(scenario: Scenario, fleet: Fleet) -> Ids | None:
    """Return the devices that the first session of a scenario may ask, ascending; None: all."""
    spans = scenario.session[0].spans([(b.name, b.count) for b in scenario.fleet]) if scenario.session else None
    if spans is None:
        return None
    found: Ids = np.unique(np.concatenate([np.arange(first, last + 1) for first, last in spans]))
    found.setflags(write=False)
    return found if len(found) < len(fleet) else None


def partition(
    scenario: Scenario, data: Dataset | None, devices: int, server_set: ServerRows | None, members: Ids | None
) -> tuple[Split | None, np.ndarray]:
    """Return the samples of each device (None: timing only) and the local data sizes, shape (devices,), read-only.

    All samples go to the `members`, as if there were no other devices.
    """
    chosen, key = scenario.partition, Key(_data_seed(scenario))
    plugin, count, drawn = chosen.value, devices if members is None else len(members), key.at(Purpose.DATA)
    split: Split | None = None
    if not plugin.has_samples:
        samples: Ids = built(chosen, "partition", np.ndarray, plugin.counts, count, drawn)
    else:
        assert data is not None
        labels, labels_of_tests = data.labels("train"), data.labels("test")
        rows = for_others(server_set, "train", len(labels))
        tests = for_others(server_set, "test", len(labels_of_tests))
        split = built(chosen, "partition", Split, plugin.divide, data, rows, tests, count, drawn)
        if scenario.evaluation.personal and split.test is None:
            refuse(personal_tests(scenario, data.name, data.kind))
            draws = key.at(Purpose.EVAL).numpy()
            own_tests = local_tests(split.train, labels[rows], labels_of_tests[tests], data.classes, draws)
            split = replace(split, test=own_tests)
        own = None if split.test is None else tuple(tests[of_device] for of_device in split.test)
        split = Split(tuple(rows[of_device] for of_device in split.train), own)
        samples = split.samples
    if members is not None:
        everybody = np.zeros(devices, dtype=samples.dtype)
        everybody[members] = samples
        samples = everybody
        split = split and split.among(members, devices)
    samples.setflags(write=False)
    return split, samples


def arrivals_of(
    scenario: Scenario, data: Dataset | None, split: Split | None, samples: Ids
) -> tuple[Arrivals | None, Split | None]:
    """Return the arrival times of samples, and the split with each device's samples in this order.

    None instead of times: all are there from the start. Each device has draws of its own, so that nothing depends on
    the other devices.
    """
    wanted = scenario.arrival
    if wanted is None:
        return None, split
    key, of_each, orders = Key(_data_seed(scenario)).at(Purpose.ARRIVAL), list[Arr](), list[Ids]()
    for device, count in enumerate(samples.tolist()):
        generator = key.at(device).numpy()
        late_s = generator.random(count) * wanted.over
        late_s[generator.permutation(count)[: round(wanted.start * count)]] = 0.0
        if wanted.class_every is not None and data is not None and split is not None:
            late_s = np.maximum(late_s, wanted.class_every * data.labels("train")[split.train[device]])
        order = np.argsort(late_s, kind="stable")
        at_s: Arr = late_s[order]
        at_s[:1] = 0.0
        of_each.append(at_s)
        orders.append(order)
    if split is None:
        return Arrivals(of_each), None
    split = replace(split, train=tuple(rows[order] for rows, order in zip(split.train, orders, strict=True)))
    if data is None or data.kind != "classes":
        return Arrivals(of_each), split
    classes_s = np.full(data.classes, np.inf)
    for rows, at_s in zip(split.train, of_each, strict=True):
        np.minimum.at(classes_s, data.labels("train")[rows], at_s)
    classes_s[np.bincount(data.labels("test"), minlength=data.classes) == 0] = np.inf
    return Arrivals(of_each, classes_s), split


def label_counts(scenario: Scenario, data: Dataset | None, split: Split | None) -> np.ndarray | None:
    """Return label counts, shape (devices, classes), if method or selection ask devices to report them, else None."""
    wanted = scenario.method.value.needs.metadata | scenario.selection.value.needs
    return counts_of(data, split) if "labels" in wanted else None


def counts_of(data: Dataset | None, split: Split | None) -> np.ndarray | None:
    """Return label counts, shape (devices, classes); None where no device holds samples."""
    if data is None or split is None or data.kind != "classes":
        return None
    labels = data.labels("train")
    counts = np.stack([np.bincount(labels[shard], minlength=data.classes) for shard in split.train])
    counts.setflags(write=False)
    return counts
