"""Krum and multi-Krum against numbers on paper and the paper's formula in NumPy.

Source: Blanchard et al. (2017), section 4.
"""

from __future__ import annotations

import numpy as np
import pytest

from edgesim.core.errors import ConfigError
from edgesim.methods.krum import Krum, MultiKrum
from tests.conftest import digits_scenario
from tests.methods.hand_made import KEY, message_of, model_of, server_of, setting_of, view_of

# On a line at 0, 1, 3, 4, 5 and 100. With f = 1 each has 6 - 1 - 2 = 3 neighbours.
LINE = [0.0, 1.0, 3.0, 4.0, 5.0, 100.0]
# Sums of the three least squares: 1 + 9 + 16, 1 + 4 + 9, 1 + 4 + 4, 1 + 1 + 9, 1 + 4 + 16, 9025 + 9216 + 9409.
SCORES = [26, 14, 9, 11, 21, 27650]


def merged(method, rows):
    """Return the parameters and the choice that a method makes of devices' parameters, each a list."""
    setting = setting_of([1] * len(rows), {"v": 1, "w": len(rows[0]) - 1} if len(rows[0]) > 1 else {"w": 1})
    layers = [{"v": row[:1], "w": row[1:]} if len(row) > 1 else {"w": row} for row in rows]
    updates = [message_of(k, 1 + k, row) for k, row in enumerate(layers)]
    server = server_of(view_of(setting))
    start = model_of({name: [0.0] * len(row) for name, row in layers[0].items()})
    result = method.aggregate({}, start, updates, server, KEY)
    params = [number for tensor in result.model["params"].values() for number in tensor.tolist()]
    return params, [device for device, chosen in result.metrics["chosen"].items() if chosen]


def test_the_least_score_wins():
    """3, whose score is 9."""
    assert merged(Krum(attackers=0.2), [[x] for x in LINE]) == ([3.0], [2])
    assert min(SCORES) == SCORES[2]


def test_several_are_averaged():
    """Two of least score: 3 and 4. Without `keep` n - f = 5: all but 100, whatever their data sizes."""
    rows = [[x] for x in LINE]
    assert merged(MultiKrum(attackers=0.2, keep=2), rows) == ([3.5], [2, 3])
    assert merged(MultiKrum(attackers=0.2), rows) == (pytest.approx([13 / 5]), [0, 1, 2, 3, 4])
    assert merged(MultiKrum(attackers=0.2, keep=99), rows)[1] == [0, 1, 2, 3, 4, 5]
    assert merged(MultiKrum(attackers=0.2, keep=1), rows) == merged(Krum(attackers=0.2), rows)


def test_how_many_it_is_on_guard_against():
    """f = share x n rounded down, and 2 f + 2 < n: of seven at most two, of four none."""
    found = [Krum(attackers=0.45).harmful(n) for n in (1, 2, 3, 4, 5, 6, 7, 20)]
    assert found == [0, 0, 0, 0, 1, 1, 2, 8]
    assert all(2 * f + 2 < n for n, f in zip((3, 4, 5, 6, 7, 20), found[2:], strict=True))
    assert [Krum(attackers=0.3).harmful(n) for n in (10, 20)] == [3, 6]
    assert Krum(attackers=0.0).harmful(20) == 0
    assert [MultiKrum(attackers=share).taken(20, MultiKrum(attackers=share).harmful(20)) for share in (0, 0.3)] == [
        20,
        14,
    ]


@pytest.mark.parametrize("seed", range(10))
def test_as_the_paper_s_formula(seed):
    """Distances over all layers as one vector; scores by sorting in NumPy."""
    rng = np.random.default_rng(seed)
    n = int(rng.integers(5, 12))
    rows, f = rng.normal(size=(n, 5)).astype(np.float32), max(0, min(int(0.3 * n + 1e-9), (n - 3) // 2))
    squares = ((rows[:, None].astype(np.float64) - rows[None]) ** 2).sum(2)
    scores = [np.sort(np.delete(squares[i], i))[: n - f - 2].sum() for i in range(n)]
    assert merged(Krum(), rows.tolist()) == (pytest.approx(rows[np.argmin(scores)].tolist()), [int(np.argmin(scores))])
    best = sorted(np.argsort(scores, kind="stable")[: n - f].tolist())
    assert merged(MultiKrum(), rows.tolist()) == (pytest.approx(rows[best].mean(0).tolist(), abs=1e-6), best)


@pytest.mark.parametrize("count", [1, 2, 3])
def test_of_few_updates_the_first_of_equal_ones_wins(count):
    """One update is taken; of two, and of three at equal distances, the one of the earliest job."""
    rows = [[0.0, 1.0], [1.0, 0.0], [0.5 + np.sqrt(0.75), 0.5 + np.sqrt(0.75)]][:count]
    assert merged(Krum(), rows)[1] == [0]


def test_distances_are_charged():
    """Of five updates 10 pairs, each a difference, a square and a sum for three parameters."""
    assert Krum().merge_flops(5, setting_of([1], {"w": 3})) == 10 * 3 * 3
    assert Krum().merge_flops(1, setting_of([1], {"w": 3})) == 0


def test_half_cannot_be_attackers():
    with pytest.raises(ConfigError, match=r"method\.attackers: .*less than 0\.5"):
        digits_scenario(method={"name": "krum", "attackers": 0.5})


# The test of each key of the methods, here or in another file.
OPTIONS = {
    "krum": {
        "attackers": "test_how_many_it_is_on_guard_against",
    },
    "multi_krum": {
        "attackers": "test_how_many_it_is_on_guard_against",
        "keep": "test_several_are_averaged",
    },
}
