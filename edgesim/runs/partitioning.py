"""Members of a training, and the samples that its devices and its server hold."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from edgesim.config.plugin_fields import built
from edgesim.config.scenario import Scenario
from edgesim.core.arrays import Ids
from edgesim.core.errors import ConfigError
from edgesim.core.rng import Key, Purpose
from edgesim.learning.data.dataset import Dataset
from edgesim.learning.data.split import Split, local_tests
from edgesim.learning.server_rows import ServerRows, draw_server_rows
from edgesim.runs.selection_checks import wants_of
from edgesim.world.fleet import Fleet

_SPLIT = ("train", "test", "samples")  # attributes that the result of a partition must have


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
    plugin, count = chosen.value, devices if members is None else len(members)
    if hasattr(plugin, "counts"):
        split, samples = None, built(chosen, "partition", ("shape",), count, key.at(Purpose.DATA), by="counts")
    elif data is None:
        raise ConfigError(f"data: partition {chosen.name} needs a data set")
    else:
        labels, labels_of_tests = data.labels("train"), data.labels("test")
        rows = for_others(server_set, "train", len(labels))
        tests = for_others(server_set, "test", len(labels_of_tests))
        y_train, y_test = labels[rows], labels_of_tests[tests]
        check_partition(scenario, data)
        if hasattr(plugin, "divide"):
            split = built(chosen, "partition", _SPLIT, data, rows, tests, count, by="divide")
        else:
            drawn = key.at(Purpose.DATA)
            split = built(chosen, "partition", _SPLIT, y_train, y_test, count, data.classes, drawn, by="split")
        if scenario.evaluation.personal and split.test is None:
            if data.kind != "classes":
                raise ConfigError(
                    f"evaluation.personal: test sets of devices have the classes of their training sets, those of data "
                    f"{data.name} are {data.kind}; use a partition that divides the test samples too, such as by_column"
                )
            draws = key.at(Purpose.EVAL).numpy()
            split = replace(split, test=local_tests(split.train, y_train, y_test, data.classes, draws))
        own = None if split.test is None else tuple(tests[of_device] for of_device in split.test)
        split = Split(tuple(rows[of_device] for of_device in split.train), own)
        samples = split.samples
    if scenario.backend.value.trains and split is None:
        raise ConfigError(
            f"backend.name: {scenario.backend.name} trains, but partition {chosen.name} gives sizes "
            "without samples; use the null backend or another partition"
        )
    if members is not None:
        everybody = np.zeros(devices, dtype=samples.dtype)
        everybody[members] = samples
        samples = everybody
        split = split and split.among(members, devices)
    samples.setflags(write=False)
    return split, samples


def check_partition(scenario: Scenario, data: Dataset) -> None:
    """Raise ConfigError if a partition divides samples by classes and the labels are of another kind."""
    if data.kind != "classes" and getattr(scenario.partition.value, "by_classes", True):
        raise ConfigError(
            f"partition.name: {scenario.partition.name} divides samples by their classes, those of data {data.name} "
            f"are {data.kind}; use iid or by_column"
        )


def label_counts(scenario: Scenario, data: Dataset | None, split: Split | None) -> np.ndarray | None:
    """Return label counts, shape (devices, classes), if method or selection ask devices to report them, else None."""
    wanted = scenario.method.value.needs.metadata | wants_of(scenario)
    return counts_of(data, split) if "labels" in wanted else None


def counts_of(data: Dataset | None, split: Split | None) -> np.ndarray | None:
    """Return label counts, shape (devices, classes); None where no device holds samples."""
    if data is None or split is None or data.kind != "classes":
        return None
    labels = data.labels("train")
    counts = np.stack([np.bincount(labels[shard], minlength=data.classes) for shard in split.train])
    counts.setflags(write=False)
    return counts
