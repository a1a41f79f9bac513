"""A share sigma of i.i.d. devices; the others hold rho labels in equal shares.

Source: H. Wu, P. Wang, Node Selection Toward Faster Convergence for Federated Learning on Non-IID Data (FedPNS), IEEE
TNSE 2022; `shard_mode` follows the authors' code.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from edgesim.core.arrays import Ids
from edgesim.core.errors import ConfigError
from edgesim.core.limits import Count, Share
from edgesim.core.rng import Key
from edgesim.learning.data.split import Partition, SamplePool, Split, alike_devices, require


@dataclass(frozen=True, kw_only=True)
class SigmaRho(Partition):
    """The first round(sigma * devices) devices are i.i.d. Each other device holds rho labels.

    Smaller sigma and rho give more heterogeneous data. No two devices share a sample, except in shard mode. There the
    training set, sorted by label, is cut into shards of samples_per_device / rho samples, and each non-i.i.d. device
    gets rho random shards. A shard may span two labels, two shards of a device may have the same label, and shards may
    hold samples of i.i.d. devices.
    """

    sigma: Share = 0.3  # share of devices that are i.i.d.
    rho: Count = 1  # labels of a device that is not i.i.d.
    samples_per_device: Count = 200  # training samples
    shard_mode: bool = False  # devices that are not i.i.d. get shards

    def split(self, y_train: Ids, y_test: Ids, devices: int, classes: int, key: Key) -> Split:
        """Return the partition. Raises ConfigError if there are too few samples or labels, or shares are not whole."""
        if self.samples_per_device % self.rho:
            raise ConfigError(
                f"partition.samples_per_device: needs a multiple of rho = {self.rho}, is {self.samples_per_device}"
            )
        alike = alike_devices(self.sigma, devices)
        require(alike * self.samples_per_device, len(y_train), "partition.samples_per_device", f"for {alike} devices")
        pool = SamplePool(y_train, key.at(0).numpy())
        iid = [pool.draw(np.arange(classes), self.samples_per_device) for _ in range(alike)]
        others, generator = devices - alike, key.at(1).numpy()
        length = self.samples_per_device // self.rho  # samples of a label, or of a shard
        if self.shard_mode:
            shards, wanted = len(y_train) // length, others * self.rho
            require(wanted * length, len(y_train), "partition.samples_per_device", f"for {wanted} shards")
            cut = np.argsort(y_train, kind="stable")[: shards * length].reshape(shards, length)
            return Split((*iid, *cut[generator.permutation(shards)[:wanted]].reshape(others, self.rho * length)))
        labelled: list[Ids] = []
        for device in range(others):
            open_ = np.flatnonzero(pool.left(classes) >= length)
            if len(open_) < self.rho:
                raise ConfigError(
                    f"partition.rho: needs {self.rho} labels with {length} samples left for non-i.i.d. device "
                    f"{device + 1} of {others}, the data set has {len(open_)}"
                )
            labels = generator.choice(open_, self.rho, replace=False)
            labelled.append(np.concatenate([pool.draw(labels[i : i + 1], length) for i in range(self.rho)]))
        return Split((*iid, *labelled))


PLUGINS = {"sigma_rho": SigmaRho}
