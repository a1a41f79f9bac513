"""Privacy spent by rounds with noise, and the noise that a privacy budget needs, by the accountants of opacus.

Both accountants are for the Gaussian mechanism on a Poisson sample: each device takes part in a round with the same
probability, independently of the others. Without one device, the published result would differ by at most one
*sensitivity*, the norm of the largest contribution. The noise multiplier is the noise's standard deviation divided by
the sensitivity.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from importlib.util import find_spec
from typing import Any, Literal, TypeAlias

import numpy as np

from edgesim.core.errors import ConfigError

Accountant: TypeAlias = Literal["rdp", "prv"]
"""Renyi differential privacy, or privacy loss as a random variable, which has a tighter bound and takes longer.

Source: Mironov, Talwar and Zhang, "Renyi Differential Privacy of the Sampled Gaussian Mechanism" (2019); Gopi, Lee and
Wutschitz, "Numerical Composition of Differential Privacy" (NeurIPS 2021).
"""

_ALL_NOISE = 1e9  # noise multiplier that leaves nothing of a device: what "rdp" still reports then is its least epsilon


def check_installed(key: str) -> None:
    """Raise ConfigError that names the `key` which needs opacus if it is not installed. Opacus is not loaded."""
    spec = find_spec("opacus")
    if spec is None or spec.origin is None:  # a folder of this name is not a module
        raise ConfigError(f'{key}: opacus is not installed; pip install "edgesim[privacy]", or use "none"')


@lru_cache(maxsize=4096)
def epsilon_spent(accountant: Accountant, noise_multiplier: float, rate: float, releases: int, delta: float) -> float:
    """Return epsilon at this delta after `releases` releases, each of which has a device with probability `rate`."""
    with _quiet():
        from opacus.accountants import create_accountant  # takes seconds

        made: Any = create_accountant(mechanism=accountant)
        made.history = [(noise_multiplier, rate, releases)]
        return float(made.get_epsilon(delta=delta))


def noise_for(accountant: Accountant, epsilon: float, rate: float, releases: int, delta: float) -> float:
    """Return a noise multiplier with which `releases` releases spend `epsilon`, or up to 0.01 less.

    Raises ConfigError that names method.epsilon if no noise is enough.
    """
    from opacus.accountants.utils import get_noise_multiplier

    try:
        if accountant == "rdp" and epsilon <= epsilon_spent(accountant, _ALL_NOISE, 1.0, 1, delta):
            raise ValueError("the conversion to epsilon alone takes more than the budget")
        with _quiet():
            found = get_noise_multiplier(
                target_epsilon=epsilon,
                target_delta=delta,
                sample_rate=rate,
                steps=releases,
                accountant=accountant,
                epsilon_tolerance=min(0.01, 0.01 * epsilon),
            )
    except ValueError as error:  # opacus tries noise multipliers up to 10^6
        raise ConfigError(
            f"method.epsilon: accountant {accountant} finds no noise for {epsilon:g} at delta {delta:g} in {releases} "
            f"rounds that ask a device with probability {rate:g}; ask for more"
        ) from error
    return float(found)


@contextmanager
def _quiet() -> Iterator[None]:
    """Suppress warnings that change no bound: orders at the end of the tried range, logarithms of 0 in a density."""
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.filterwarnings("ignore", message="Optimal order is the")
        yield
