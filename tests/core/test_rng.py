"""Keyed streams: named by meaning, independent of order."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from edgesim.core.rng import Draws, Key, Purpose


def test_equal_keys_give_equal_streams_and_drawing_changes_nothing():
    key = Key(7).at(Purpose.LOCAL, 3, 4)
    first = key.numpy().random(5)
    assert np.array_equal(first, key.numpy().random(5))
    assert np.array_equal(first, Key(7, (int(Purpose.LOCAL), 3, 4)).numpy().random(5))
    assert key.word() == Key(7).at(Purpose.LOCAL, 3, 4).word()


def test_paths_do_not_collide():
    words = {Key(s).at(*path).word() for s in (1, 2) for path in [(1,), (1, 0), (0, 1), (1, 1), (2,), (1, 0, 0)]}
    assert len(words) == 12


@pytest.mark.parametrize("index", [-1, 2**32])
def test_an_index_that_numpy_would_split_is_refused(index):
    """(2**32,) and (0, 1) would name one stream."""
    with pytest.raises(ValueError, match="index"):
        Key(1).at(index)


def test_purposes_are_never_renumbered():
    """The numbers are part of every published result."""
    assert [p.value for p in Purpose] == list(range(1, 24))
    assert (Purpose.FLEET, Purpose.DATA, Purpose.LOCAL, Purpose.PROBE) == (1, 2, 8, 10)
    assert (Purpose.PEERS, Purpose.AVAILABILITY, Purpose.FAILURE) == (11, 12, 13)
    assert Purpose.SERVER_SET == 14
    assert Purpose.BOOTSTRAP == 15
    assert Purpose.SEARCH == 16 and Purpose.EDGES == 17 and Purpose.SESSION == 18


def test_draws_depend_on_the_job_alone():
    """The draw of (device 5, job 2) is the same alone, among others and in another order."""
    ids, nth = np.array([3, 5, 9]), np.array([0, 2, 1])
    together = Draws(Key(1), ids, nth).uniform(4)
    reverse = Draws(Key(1), ids[::-1], nth[::-1]).uniform(4)[::-1]
    alone = Draws(Key(1), np.array([5]), np.array([2])).uniform(4)
    assert np.array_equal(together, reverse)
    assert alone[0] == together[1]
    assert len(set(together) | set(Draws(Key(1), ids, nth).uniform(5)) | set(Draws(Key(2), ids, nth).uniform(4))) == 9


def test_draws_have_their_distributions():
    """Kolmogorov-Smirnov and serial correlation over neighbouring devices and jobs, fixed seed."""
    ids, nth = np.repeat(np.arange(400), 50), np.tile(np.arange(50), 400)
    draws = Draws(Key(11).at(7), ids, nth)
    uniform, normal = draws.uniform(0), draws.normal(1)
    assert stats.kstest(uniform, "uniform").pvalue > 0.01
    assert stats.kstest(normal, "norm").pvalue > 0.01
    grid = uniform.reshape(400, 50)
    assert abs(np.corrcoef(grid[:-1].ravel(), grid[1:].ravel())[0, 1]) < 0.03
    assert abs(np.corrcoef(grid[:, :-1].ravel(), grid[:, 1:].ravel())[0, 1]) < 0.03
