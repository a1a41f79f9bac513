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
from edgesim.learning.data.split import Pool, Split, alike_devices, require


@dataclass(frozen=True, kw_only=True)
class SigmaRho:
    """The first round(sigma * devices) devices are i.i.d., each other holds rho labels; smaller is more heterogeneous.

    No two devices share a sample, save in shard mode. There the training set, sorted by label, is cut into shards of
    samples_per_device / rho, and rho random shards go to each non-i.i.d. device: a shard may straddle two labels, two
    shards of a device may have one label, and shards may hold samples of i.i.d. devices.
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
        pool = Pool(y_train, key.at(0).numpy())
        iid = [pool.draw(np.arange(classes), self.samples_per_device) for _ in range(alike)]
        others = (
            self._shards(y_train, devices - alike, key.at(1))
            if self.shard_mode
            else self._labelled(pool, devices - alike, classes, key.at(1))
        )
        return Split((*iid, *others))

    def _labelled(self, pool: Pool, devices: int, classes: int, key: Key) -> list[Ids]:
        generator, share = key.numpy(), self.samples_per_device // self.rho
        out = []
        for device in range(devices):
            open_ = np.flatnonzero(pool.left(classes) >= share)
            if len(open_) < self.rho:
                raise ConfigError(
                    f"partition.rho: needs {self.rho} labels with {share} samples left for non-i.i.d. device "
                    f"{device + 1} of {devices}, the data set has {len(open_)}"
                )
            labels = generator.choice(open_, self.rho, replace=False)
            out.append(np.concatenate([pool.draw(labels[i : i + 1], share) for i in range(self.rho)]))
        return out

    def _shards(self, y: Ids, devices: int, key: Key) -> list[Ids]:
        length = self.samples_per_device // self.rho
        shards, wanted = len(y) // length, devices * self.rho
        require(wanted * length, len(y), "partition.samples_per_device", f"for {wanted} shards")
        cut = np.argsort(y, kind="stable")[: shards * length].reshape(shards, length)
        return list(cut[key.numpy().permutation(shards)[:wanted]].reshape(devices, self.rho * length))


PLUGINS = {"sigma_rho": SigmaRho}
