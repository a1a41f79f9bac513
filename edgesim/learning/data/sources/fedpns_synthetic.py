"""Gaussian features labelled by random linear rules, made for each device.

Source: H. Wu, P. Wang, Node Selection Toward Faster Convergence for Federated Learning on Non-IID Data (FedPNS), IEEE
TNSE 2022, synthetic data. Details that the text does not specify follow the authors' code or are keys.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np
from annotated_types import Ge, Gt, Le, Lt

from edgesim.core.arrays import Arr, Ids
from edgesim.core.errors import ConfigError
from edgesim.core.limits import MOST_COUNT, Count, NonNegativeFactor, Share, check_memory
from edgesim.core.rng import Key, Purpose
from edgesim.learning.data.source import Raw, Source
from edgesim.learning.data.split import alike_devices

FEATURES, CLASSES = 60, 10
VARIANCES = tuple(h**-1.2 for h in range(1, FEATURES + 1))  # of the features, which are independent


@dataclass(frozen=True, kw_only=True)
class FedpnsSynthetic(Source):
    """60 features, 10 classes: label y = argmax(W x + b), x ~ N(o, diag(h^-1.2)), h = 1..60.

    The first round(sigma * devices) devices are i.i.d.: o = 0 and a common W, b, entries N(0, 1). Each other device has
    a B ~ N(0, varrho) and an o with entries N(B, 1), so that its features have another mean.

    Both splits are sorted by device, in the order of ids. Partition `blocks` gives each device its training samples,
    round(train_share * samples_per_device) of them. `test_limit` would remove the last devices from the test.
    """

    name = "fedpns_synthetic"

    seed: Annotated[int, Ge(0)] = 1  # of the data alone: runs with different seeds of their own share the data
    devices: Count = 50  # equal to the number of devices of the fleet
    samples_per_device: Annotated[int, Ge(2), Le(MOST_COUNT)] = 1000  # of both splits together
    sigma: Share = 0.3  # FedPNS: 0.2, 0.3 and 0.5
    varrho: NonNegativeFactor = 1.0  # FedPNS: 0.5 and 1
    varrho_is: Literal["deviation", "variance"] = "deviation"  # the text says N(0, varrho), the code uses a deviation
    labelling: Literal["own", "shared"] = "own"  # code: each other device has its own W, b. Text: the common W, b
    train_share: Annotated[float, Gt(0), Lt(1)] = 0.8  # as in the text. The code has 0.6
    test_on: Literal["all", "iid"] = "all"  # code: only i.i.d. devices, because labels of others may contradict theirs

    def read(self) -> Raw:
        """Return the samples of all devices. Raises ConfigError if a split would be empty."""
        alike, train = alike_devices(self.sigma, self.devices), round(self.train_share * self.samples_per_device)
        if not 0 < train < self.samples_per_device:
            raise ConfigError(
                f"data.train_share: must leave samples in both splits, {self.train_share:g} of "
                f"{self.samples_per_device} samples are {train}"
            )
        tested = self.devices if self.test_on == "all" else alike
        if tested == 0:
            raise ConfigError(
                f"data.test_on: needs i.i.d. devices, sigma = {self.sigma:g} of {self.devices} devices are none"
            )
        samples = self.devices * self.samples_per_device
        check_memory("data.samples_per_device", samples * FEATURES * 16, f"{samples:,} samples of {FEATURES} features")
        x, y = self._draw(alike)
        return Raw(
            x[:, :train].reshape(-1, FEATURES),
            y[:, :train].ravel(),
            x[:tested, train:].reshape(-1, FEATURES),
            y[:tested, train:].ravel(),
            CLASSES,
        )

    def _draw(self, alike: int) -> tuple[Arr, Ids]:
        """Return features (devices, samples, 60) and labels (devices, samples).

        One generator draws W and b, then for each device in the order of ids B, o, its own W and b, and x. A device's
        own rule is drawn even if it is not used, so that the features do not depend on `labelling`.
        """
        generator = Key(self.seed).at(Purpose.DATA).numpy()
        spread = self.varrho if self.varrho_is == "deviation" else self.varrho**0.5
        x = np.empty((self.devices, self.samples_per_device, FEATURES))
        y = np.empty(x.shape[:2], dtype=np.int64)
        common = _draw_rule(generator)
        for device in range(self.devices):
            mean, rule = np.zeros(FEATURES), common
            if device >= alike:
                mean = generator.normal(generator.normal(0.0, spread), 1.0, FEATURES)
                own = _draw_rule(generator)
                rule = own if self.labelling == "own" else common
            x[device] = generator.normal(mean, np.sqrt(VARIANCES), x.shape[1:])
            weight, bias = rule
            y[device] = (x[device] @ weight.T + bias).argmax(axis=1)
        return x, y


def _draw_rule(generator: np.random.Generator) -> tuple[Arr, Arr]:
    """Return W (classes, features), then b (classes,), with standard normal entries."""
    return generator.standard_normal((CLASSES, FEATURES)), generator.standard_normal(CLASSES)


PLUGINS = {"fedpns_synthetic": FedpnsSynthetic}
