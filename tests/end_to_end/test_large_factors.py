"""Numbers that float32 cannot hold, as rates, decays and other factors of tensors: one line that names the key."""

from __future__ import annotations

import re
from typing import Any

import pytest

from edgesim.config.describe import describe, keys_of
from edgesim.config.plugins import plugins_of
from edgesim.core.errors import ConfigError
from edgesim.core.local_sgd import Training
from tests.contracts.support import ARGUMENTS, mixed_scenario, run
from tests.sizes import full

LIMITS = {"method.clip_norm", "method.step_limit", "training.clip_norm"}  # which may be infinite, and multiply nothing
UNBOUNDED = {"number above 0", "number at least 0"}


@pytest.fixture(scope="module")
def factors() -> list[tuple[str, dict[str, Any]]]:
    """Return the keys of training, methods and server optimisers without an upper bound, and each as 1e39."""
    found = [
        (f"training.{key.key}", {"training": {key.key: 1e39}}) for key in keys_of(Training) if key.type in UNBOUNDED
    ]
    for kind in ("method", "server_optimizer"):
        for name in plugins_of(kind):
            given = {"name": name, **(ARGUMENTS.get(name, {}) if kind == "method" else {})}
            keys = [key.key for key in describe(kind, name).keys if key.type.removesuffix(" or unset") in UNBOUNDED]
            found += [(f"{kind}.{key}", {kind: {**given, key: 1e39}}) for key in keys]
    return [(key, changes) for key, changes in found if key not in LIMITS]


@full
def test_the_list_is_not_empty(factors: list[tuple[str, dict[str, Any]]]) -> None:
    keys = {key for key, _ in factors}
    assert {"training.lr", "training.weight_decay", "method.mu", "method.alpha", "method.lam"} <= keys
    assert len(factors) > 60


@full
def test_a_factor_beyond_float32_is_refused_by_name(factors: list[tuple[str, dict[str, Any]]]) -> None:
    for key, changes in factors:
        with pytest.raises(ConfigError, match=rf"^{re.escape(key)}: must be at most 1e\+30, .* got 1e\+39$"):
            mixed_scenario(**changes)


@pytest.mark.parametrize("backend", ["serial", {"name": "cohort", "size": 4}])
@pytest.mark.parametrize("optimizer", ["sgd", "adam", "adamw"])
def test_the_largest_that_is_allowed_diverges_without_a_traceback(backend: Any, optimizer: str) -> None:
    """Rate and decay at once, whose product float32 cannot hold."""
    training = {"lr": 1e30, "weight_decay": 1e30, "optimizer": optimizer}
    simulation = run(mixed_scenario(training=training, backend=backend))
    assert len(simulation.tables["rounds"].frame()) == 2
