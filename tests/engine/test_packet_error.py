"""Users and blocks against packet errors: numbers by hand, and brute force over all pairs."""

from __future__ import annotations

from itertools import combinations, permutations
from math import exp, log2

import numpy as np
import pytest

from edgesim.core.errors import ConfigError
from edgesim.core.rng import Key
from edgesim.engine.selection.packet_error import PacketError, assigned
from tests.engine.by_knowledge import cell_of, expected_of, known_of

KEY = Key(5)
FOUR = np.arange(4)


@pytest.mark.parametrize("most", [1, 2, 3, 4, 6])
def test_pairs_are_the_best_of_all(most):
    """Random worths of 4 devices on 6 blocks, some of which are worth nothing."""
    draws = np.random.default_rng(most)
    for _ in range(20):
        worth = np.where(draws.random((4, 6)) < 0.3, 0.0, draws.lognormal(0, 1, (4, 6)))
        pairs = min(most, 4)
        best = max(
            sum(worth[row, column] for row, column in zip(rows, columns, strict=True))
            for rows in combinations(range(4), pairs)
            for columns in permutations(range(6), pairs)
        )
        rows, columns = assigned(worth, most)
        assert len(set(rows)) == len(set(columns)) == pairs
        assert worth[rows, columns].sum() == pytest.approx(best, rel=1e-12)


def test_worth_by_hand():
    """Bands of 8 kHz in two blocks. Alone a device uploads 8 kbit in 1 or 1/2 s: SNR 1 and 3 on the band, 2 and 6 on a
    block, and half of these on the block with 3.01 dB of interference. 100 and 300 samples.

    Device 1 sends 4 kHz x log2(1 + 3) = 8 kbit/s on the second block, in 1 s, and device 0 in 2 s.
    """
    known = known_of([100, 300], cell=cell_of([1.0, 0.5], 2, transmit_w=[1.0, 2.0]), expected=expected_of(n=2))
    rule = PacketError(count=2, interference_db=(0.0, 10 * np.log10(2)))
    m = 10**0.0023
    by_hand = [[100 * exp(-m / 2), 100 * exp(-m)], [300 * exp(-m / 6), 300 * exp(-m / 3)]]
    assert rule.worth(np.arange(2), known) == pytest.approx(np.array(by_hand), rel=1e-12)
    assert PacketError(count=2, waterfall=0.0).worth(np.arange(2), known).tolist() == [[100] * 2, [300] * 2]
    # 1 s of computing, and 8 / (4 log2 3) = 1.262 s, 2 s, 8 / (4 log2 7) = 0.712 s and 1 s of sending
    upload_s = np.array([[2 / log2(3), 2.0], [2 / log2(7), 1.0]])
    for deadline_s, energy_j in [(2.0, None), (1.99, None), (2.5, 1.3), (None, 1.5)]:
        limited = PacketError(count=2, interference_db=rule.interference_db, deadline=deadline_s, energy=energy_j)
        late = 1 + upload_s > (deadline_s or np.inf) + 1e-9
        dear = upload_s * [[1.0], [2.0]] > (energy_j or np.inf) + 1e-9
        assert limited.worth(np.arange(2), known) == pytest.approx(np.where(late | dear, 0, by_hand), rel=1e-12)


def test_devices_that_lose_fewest_samples_are_asked():
    """SNR of 1, 3, 7, 15 on the band: with equal samples the best channels, with many the first device."""
    alone_s = [1.0, 1 / 2, 1 / 3, 1 / 4]
    alike = known_of([10] * 4, cell=cell_of(alone_s, 2), expected=expected_of())
    assert PacketError(count=2).choose(FOUR, alike, KEY).tolist() == [2, 3]
    assert PacketError(count=2).choose(FOUR[:3], alike, KEY).tolist() == [1, 2]
    assert PacketError(count=3).choose(FOUR, alike, KEY).tolist() == [2, 3]  # as there are two blocks
    many = known_of([90, 10, 10, 10], cell=cell_of(alone_s, 0), expected=expected_of())
    assert PacketError(count=2).choose(FOUR, many, KEY).tolist() == [0, 3]
    assert PacketError(count=2, deadline=1.0).choose(FOUR, many, KEY).tolist() == [3]  # nobody keeps it


def test_interference_is_of_each_block():
    known = known_of([1, 1], cell=cell_of([1.0, 1.0], 3))
    with pytest.raises(ConfigError, match=r"selection\.interference_db: must have a number for each of the 3 blocks"):
        PacketError(count=2, interference_db=(1.0, 2.0)).start(known)
