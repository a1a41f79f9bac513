"""Partitions of the training set among devices."""

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from edgesim.config.plugins import plugins_of
from edgesim.core.errors import ConfigError
from edgesim.core.rng import Key
from edgesim.learning.data.partitions.dirichlet import cut, take_turns
from edgesim.learning.data.partitions.two_class import pair_up
from edgesim.learning.data.split import Split, deal, local_tests
from edgesim.runs.assembly import assemble
from tests.conftest import digits_scenario, timing_scenario
from tests.sizes import examples

PLUGINS = plugins_of("partition")
KEY = Key(11, (2,))


def labels(classes: int, each: int) -> np.ndarray:
    """A balanced label array in random order."""
    return np.random.default_rng(5).permutation(np.repeat(np.arange(classes), each))


CIFAR, CIFAR_TEST = labels(10, 5000), labels(10, 1000)
SMALL, SMALL_TEST = labels(10, 300), labels(10, 50)


def divide(
    name: str, devices: int, y: np.ndarray = SMALL, y_test: np.ndarray = SMALL_TEST, key: Key = KEY, **keys: object
) -> Split:
    part = TypeAdapter(PLUGINS[name]).validate_python(keys)
    return part.split(y, y_test, devices, int(y.max()) + 1, key)


def counts(split: Split, y: np.ndarray = SMALL) -> np.ndarray:
    """Label counts, shape (devices, classes)."""
    return np.stack([np.bincount(y[rows], minlength=int(y.max()) + 1) for rows in split.train])


def disjoint(split: Split) -> bool:
    given_out = np.concatenate(split.train)
    return len(np.unique(given_out)) == len(given_out)


WITH_SAMPLES: list[tuple[str, int, dict[str, object]]] = [
    ("iid", 7, {}),
    ("iid", 7, {"samples_per_device": 40}),
    ("x_class", 8, {"x": 2, "samples_per_device": 90}),
    ("iid_plus_classes", 10, {"iid_devices": 3, "samples_per_device": 90}),
    ("cases", 10, {"case": 1, "samples_per_device": 90}),
    ("cases", 10, {"case": 2, "samples_per_device": 90}),
    ("sigma_rho", 10, {"rho": 2, "samples_per_device": 60}),
    ("sigma_rho", 10, {"rho": 2, "samples_per_device": 60, "shard_mode": True}),
    ("two_class", 10, {"samples_per_device": 100}),
    ("dirichlet_label", 10, {}),
    ("dirichlet_device", 10, {}),
    ("pathological", 10, {}),
]


@pytest.mark.parametrize(("name", "devices", "keys"), WITH_SAMPLES)
def test_what_every_partition_promises(name: str, devices: int, keys: dict[str, object]) -> None:
    first, again = (divide(name, devices, **keys) for _ in range(2))
    other = divide(name, devices, key=Key(12, (2,)), **keys)
    assert len(first.train) == devices
    for rows, same in zip(first.train, again.train, strict=True):
        assert rows.dtype == np.int64 and rows.min() >= 0 and rows.max() < len(SMALL)
        assert np.array_equal(rows, same)
    assert any(not np.array_equal(rows, changed) for rows, changed in zip(first.train, other.train, strict=True))
    assert first.samples.dtype == np.int64 and first.samples.tolist() == [len(rows) for rows in first.train]


# --- iid ----------------------------------------------------------------------------------------------------


def test_iid_uses_every_sample_once_in_nearly_equal_parts() -> None:
    split = divide("iid", 7)
    assert sorted(np.concatenate(split.train)) == list(range(3000))
    assert sorted(split.samples) == [428, 428, 428, 429, 429, 429, 429]  # 3000 = 7 * 428 + 4


def test_iid_of_a_given_size_is_disjoint_and_looks_like_the_whole() -> None:
    split = divide("iid", 10, CIFAR, samples_per_device=2000)
    assert split.samples.tolist() == [2000] * 10 and disjoint(split)
    # hypergeometric: sd = sqrt(2000 * 0.1 * 0.9 * 48/50) = 13.1
    assert np.abs(counts(split, CIFAR) - 200).max() < 5 * 13.1


# --- numbers of classes -------------------------------------------------------------------------------------


def test_x_class_draws_from_the_union_of_x_classes() -> None:
    for x in (1, 2, 5, 10):
        split = divide("x_class", 20, CIFAR, x=x, samples_per_device=600)
        assert split.samples.tolist() == [600] * 20 and disjoint(split)
        assert ((counts(split, CIFAR) > 0).sum(axis=1) == x).all()
    two = divide("x_class", 20, CIFAR, x=2, samples_per_device=600)
    shares = np.sort(counts(two, CIFAR), axis=1)[:, -1]
    assert (
        shares > 300
    ).any() and shares.max() < 300 + 6 * 12.3  # binomial sd = sqrt(600) / 2 = 12.2, not equal halves


def test_x_class_shares_samples_only_where_supply_ends() -> None:
    y = np.repeat([0, 1], 100)
    split = divide("x_class", 4, y, x=2, samples_per_device=80)  # 320 wanted of 200
    given_out = np.concatenate(split.train)
    assert len(np.unique(given_out)) == 200
    assert all(len(np.unique(rows)) == 80 for rows in split.train)
    assert len(np.unique(np.concatenate(split.train[:2]))) == 160


def test_iid_plus_classes_puts_the_iid_devices_first() -> None:
    mixed = divide("iid_plus_classes", 10, CIFAR, iid_devices=5, x=[1, 1, 1, 2, 2])
    held = counts(mixed, CIFAR)
    assert (held > 0).sum(axis=1).tolist() == [10] * 5 + [1, 1, 1, 2, 2]
    assert mixed.samples.tolist() == [600] * 10 and disjoint(mixed)
    assert held[5:8].max(axis=1).tolist() == [600] * 3
    alone = divide("iid_plus_classes", 5, CIFAR, iid_devices=5)
    assert (counts(alone, CIFAR) > 0).all() and alone.samples.tolist() == [600] * 5 and disjoint(alone)


@pytest.mark.parametrize("x", [1, 2])
@pytest.mark.parametrize("iid_devices", [3, 5, 6])
def test_mixes_of_ten_devices(iid_devices: int, x: int) -> None:
    split = divide("iid_plus_classes", 10, CIFAR, iid_devices=iid_devices, x=x)
    assert split.samples.tolist() == [600] * 10 and disjoint(split)
    assert (counts(split, CIFAR) > 0).sum(axis=1).tolist() == [10] * iid_devices + [x] * (10 - iid_devices)


def test_case_1_is_a_permutation_of_1_to_10_and_case_2_two_halves() -> None:
    split = divide("cases", 10, CIFAR, case=1)
    first = (counts(split, CIFAR) > 0).sum(axis=1)
    assert sorted(first) == list(range(1, 11)) and first.tolist() != sorted(first)
    assert split.samples.tolist() == [600] * 10 and disjoint(split)
    for seed in range(5):
        split = divide("cases", 10, CIFAR, case=2, key=Key(seed))
        assert split.samples.tolist() == [600] * 10 and disjoint(split)
        second = (counts(split, CIFAR) > 0).sum(axis=1)
        assert second[:5].min() >= 1 and second[:5].max() <= 5
        assert second[5:].min() >= 6 and second[5:].max() <= 10


# --- sigma and rho ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("sigma", "alike"), [(0.2, 10), (0.3, 15), (0.5, 25), (0.0, 0), (1.0, 50)])
@pytest.mark.parametrize("rho", [1, 2])
def test_sigma_rho_gives_exact_equal_shares(sigma: float, alike: int, rho: int) -> None:
    split = divide("sigma_rho", 50, CIFAR, sigma=sigma, rho=rho)
    held = counts(split, CIFAR)
    assert split.samples.tolist() == [200] * 50 and disjoint(split)
    assert ((held[:alike] > 0).sum(axis=1) > 5).all()
    assert (np.sort(held[alike:], axis=1)[:, -rho:] == 200 // rho).all()


def test_shards_are_runs_of_the_sorted_training_set() -> None:
    y = np.repeat(np.arange(10), 95)  # 950 = 9 shards of 100 and 50 over: most shards straddle two labels
    split = divide("sigma_rho", 6, y, sigma=0.34, rho=2, samples_per_device=200, shard_mode=True)
    shards = np.stack(split.train[2:]).reshape(8, 100)
    assert (np.diff(shards, axis=1) == 1).all() and (shards[:, 0] % 100 == 0).all()
    assert len(np.unique(shards)) == 800


@pytest.mark.parametrize("rho", [1, 2])
def test_shards_may_hold_samples_of_iid_devices_which_share_none(rho: int) -> None:
    split = divide("sigma_rho", 50, CIFAR, sigma=0.5, rho=rho, shard_mode=True)
    assert split.samples.tolist() == [200] * 50
    iid, others = np.concatenate(split.train[:25]), np.concatenate(split.train[25:])
    assert len(np.unique(iid)) == len(np.unique(others)) == 5000
    assert len(np.intersect1d(iid, others)) > 0  # both hold a tenth of all, so that 500 are to be expected in both
    held = (counts(split, CIFAR) > 0).sum(axis=1)
    assert (held[:25] > 5).all() and (held[25:] <= rho).all()  # 5000 of a label: no shard straddles two
    assert (divide("sigma_rho", 50, CIFAR, sigma=0.5, rho=rho).train[0] == split.train[0]).all()


# --- two classes --------------------------------------------------------------------------------------------


def test_two_class_uses_every_sample_of_cifar10_once() -> None:
    split = divide("two_class", 100, CIFAR)
    held = counts(split, CIFAR)
    assert sorted(np.concatenate(split.train)) == list(range(50000))
    assert (np.sort(held, axis=1) == [0] * 8 + [250, 250]).all()
    assert ((held > 0).sum(axis=0) == 20).all()
    assert len({tuple(np.flatnonzero(row)) for row in held}) > 20  # of 45 pairs, not a few repeated


@given(devices=st.integers(1, 25), classes=st.integers(2, 8), seed=st.integers(0, 99))
@settings(max_examples=examples(60), deadline=None)
def test_two_class_always_pairs_different_classes(devices: int, classes: int, seed: int) -> None:
    y = np.repeat(np.arange(classes), 2 * (2 * devices // classes + 1))
    split = divide("two_class", devices, y, key=Key(seed), samples_per_device=4)
    held = counts(split, y)
    assert disjoint(split) and (np.sort(held, axis=1)[:, -2:] == 2).all()
    assert np.ptp((held > 0).sum(axis=0)) <= 1


def test_pairs_of_equals_are_swapped_apart() -> None:
    tokens = np.array([0, 0, 1, 1, 2, 2, 3, 1])
    pairs = pair_up(tokens, KEY)
    assert (pairs[:, 0] != pairs[:, 1]).all()
    assert sorted(pairs.ravel()) == sorted(tokens)
    assert tokens.tolist() == [0, 0, 1, 1, 2, 2, 3, 1]


# --- Dirichlet ----------------------------------------------------------------------------------------------


def test_cut_of_seven_samples() -> None:
    # floor(7 * (0.1, 0.35)) = (0, 2)
    assert cut(np.array([0.1, 0.25, 0.65]), 7).tolist() == [0, 2, 5]


@given(st.lists(st.floats(0.01, 1), min_size=1, max_size=8), st.integers(0, 500))
def test_cut_hands_out_all_and_is_off_by_less_than_one(weights: list[float], size: int) -> None:
    shares = np.array(weights) / np.sum(weights)
    got = cut(shares, size)
    assert got.sum() == size and (got >= 0).all()
    assert (np.abs(got - shares * size) < 1 + 1e-9).all()


@pytest.mark.parametrize("balance", [True, False])
def test_dirichlet_label_uses_every_sample_once(balance: bool) -> None:
    split = divide("dirichlet_label", 100, CIFAR, balance=balance)
    assert sorted(np.concatenate(split.train)) == list(range(50000))
    assert split.samples.min() >= 10 and np.ptp(split.samples) > 100


def test_dirichlet_label_balance_stops_at_the_equal_part() -> None:
    spread = [divide("dirichlet_label", 20, CIFAR, balance=flag).samples.std() for flag in (True, False)]
    assert spread[0] < spread[1]
    # a device below its 2500 can get at most one more class of 5000
    assert divide("dirichlet_label", 20, CIFAR, beta=0.1).samples.max() < 2500 + 5000


def test_dirichlet_label_beta_sets_the_spread_of_a_class() -> None:
    # share of one device in one class: mean 1/N, variance (1/N)(1 - 1/N) / (N beta + 1); N = 20, beta = 0.5
    shares = [
        counts(divide("dirichlet_label", 20, CIFAR, balance=False, min_samples=1, key=Key(seed)), CIFAR) / 5000
        for seed in range(20)
    ]
    assert np.std(shares) == pytest.approx((0.05 * 0.95 / 11) ** 0.5, rel=0.1)


@pytest.mark.parametrize(("devices", "size"), [(100, 500), (7, 7142)])
def test_dirichlet_device_gives_equal_sizes(devices: int, size: int) -> None:
    split = divide("dirichlet_device", devices, CIFAR, CIFAR_TEST)
    assert split.samples.tolist() == [size] * devices and disjoint(split)


def test_dirichlet_device_alpha_sets_the_skew() -> None:
    def largest_share(alpha: float) -> float:
        return float((counts(divide("dirichlet_device", 20, CIFAR, CIFAR_TEST, alpha=alpha), CIFAR)).max(axis=1).mean())

    # 2500 samples a device: near 1/10 for a large alpha, near all for a small one while supply lasts
    assert largest_share(1000) < 350 < largest_share(0.3) < largest_share(0.01)


def test_turns_follow_the_shares_while_supply_lasts() -> None:
    shares = np.array([[0.7, 0.3, 0.0], [0.0, 0.5, 0.5]])
    got = take_turns(shares, np.array([10**5] * 3), 10000, np.random.default_rng(0))
    assert got.sum(axis=1).tolist() == [10000, 10000]
    assert np.abs(got / 10000 - shares).max() < 5 * 0.005  # binomial sd at most sqrt(0.25 / 10000) = 0.005
    assert (got[shares == 0] == 0).all()


@given(seed=st.integers(0, 1000), alpha=st.sampled_from([0.001, 0.1, 1.0]))
@example(seed=292, alpha=0.001)  # shares that are all but zero, the smallest number there is
@settings(max_examples=examples(40), deadline=None)
def test_turns_never_exceed_the_supply(seed: int, alpha: float) -> None:
    generator = np.random.default_rng(seed)
    supply = generator.integers(0, 40, 6)
    size = int(supply.sum()) // 5
    got = take_turns(generator.dirichlet(np.full(6, alpha), 5), supply, size, generator)
    assert (got.sum(axis=1) == size).all() and (got.sum(axis=0) <= supply).all() and (got >= 0).all()


def test_an_exhausted_class_is_shared_by_the_devices_that_want_it() -> None:
    # both want only class 0, which has 400 for 2 x 400: it is used up, and each gets about half of it
    got = take_turns(np.array([[1.0, 0.0], [1.0, 0.0]]), np.array([400, 400]), 400, np.random.default_rng(1))
    assert got[:, 0].sum() == 400 and abs(got[0, 0] - 200) < 5 * 10  # binomial sd = sqrt(400) / 2 = 10


# --- pathological -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n_cls", [1, 2, 5])
def test_pathological_gives_n_cls_classes_and_equal_sizes(n_cls: int) -> None:
    split = divide("pathological", 100, CIFAR, CIFAR_TEST, n_cls=n_cls)
    held = counts(split, CIFAR)
    assert split.samples.tolist() == [500] * 100
    assert ((held > 0).sum(axis=1) == n_cls).all()
    sd = (500 / n_cls * (1 - 1 / n_cls)) ** 0.5
    assert np.abs(held[held > 0] - 500 / n_cls).max() <= 5 * sd


def test_pathological_reuses_samples_of_a_class_only_when_it_has_run_out() -> None:
    split = divide("pathological", 100, CIFAR, CIFAR_TEST)
    used = np.bincount(np.concatenate(split.train), minlength=50000)
    for label, wanted in enumerate(counts(split, CIFAR).sum(axis=0)):
        of_class = used[label == CIFAR]
        assert (of_class.min(), of_class.max()) == (wanted // 5000, -(-wanted // 5000))


def test_deal_repeats_shuffles() -> None:
    got = deal(np.array([4, 5, 6]), [2, 0, 5], np.random.default_rng(0))
    assert [len(part) for part in got] == [2, 0, 5]
    stream = np.concatenate(got)
    assert sorted(stream[:3]) == sorted(stream[3:6]) == [4, 5, 6]


# --- local test sets ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["dirichlet_device", "pathological"])
def test_local_test_sets_have_the_shares_of_the_training_set(name: str) -> None:
    split = divide(name, 100, CIFAR, CIFAR_TEST)
    assert split.test is not None
    for train, test in zip(split.train, split.test, strict=True):
        shares = np.bincount(CIFAR[train], minlength=10) / 500
        # ceil(n_test / K) = 100; 1e-9 keeps 0.29 * 100 = 28.999999999999996 and its like from rounding up twice
        assert np.bincount(CIFAR_TEST[test], minlength=10).tolist() == np.ceil(100 * shares - 1e-9).tolist()
        assert 100 <= len(test) <= 100 + 10
        assert len(np.unique(test)) == len(test) and test.dtype == np.int64


def test_a_class_with_too_few_test_samples_repeats_them_evenly() -> None:
    y, y_test = np.zeros(4, dtype=np.int64), np.array([0, 0, 1, 1, 1, 1])
    (first, second) = local_tests([np.array([0, 1]), np.array([2])], y, y_test, 2, np.random.default_rng(0))
    # ceil(6 / 2) = 3 of class 0, which has 2
    assert sorted(np.bincount(first)) == sorted(np.bincount(second)) == [1, 2]


def test_only_partitions_with_local_tests_have_them() -> None:
    assert divide("iid", 5).test is None


# --- sizes only ---------------------------------------------------------------------------------------------


def test_sizes_are_equal_or_drawn_from_the_whole_range() -> None:
    assert PLUGINS["sizes"](samples_per_device=300).counts(4, KEY).tolist() == [300] * 4
    drawn = TypeAdapter(PLUGINS["sizes"]).validate_python({"samples_per_device": [3, 5]}).counts(300, KEY)
    assert drawn.dtype == np.int64 and set(drawn.tolist()) == {3, 4, 5}
    assert np.array_equal(drawn, PLUGINS["sizes"](samples_per_device=(3, 5)).counts(300, KEY))


# --- seeds --------------------------------------------------------------------------------------------------


def test_a_data_seed_keeps_the_partition_while_all_else_changes_with_the_seed() -> None:
    first, second, free, plain = (
        assemble(digits_scenario(seed=seed, data_seed=data_seed))
        for seed, data_seed in [(1, 7), (2, 7), (2, None), (7, None)]
    )
    rows = [np.concatenate(parts.split.train) for parts in (first, second, free, plain) if parts.split is not None]
    assert np.array_equal(rows[0], rows[1]) and np.array_equal(rows[0], rows[3])
    assert not np.array_equal(rows[0], rows[2])
    weights = [next(parts.module.parameters()) for parts in (first, second, free)]
    assert torch.equal(weights[1], weights[2]) and not torch.equal(weights[0], weights[1])
    assert not np.array_equal(first.fleet.flops_per_s, second.fleet.flops_per_s)


# --- refusals -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "devices", "keys", "message"),
    [
        ("iid", 3001, {}, "needs 3001 training samples for 3001 devices, the data set has 3000"),
        ("iid", 10, {"samples_per_device": 301}, r"samples_per_device: needs 3010 .*, the data set has 3000"),
        ("x_class", 2, {"x": 11}, r"partition\.x: needs 11 classes, the data set has 10"),
        ("x_class", 2, {"x": 1, "samples_per_device": 301}, "needs 301 training samples of classes .* has 300"),
        ("iid_plus_classes", 4, {}, r"iid_devices: 5 of them, the fleet has 4 devices"),
        ("iid_plus_classes", 8, {"x": [1, 2]}, r"partition\.x: 2 numbers given, 3 devices are not"),
        ("iid_plus_classes", 9, {"samples_per_device": 601}, "needs 3005 training samples for 5 devices"),
        ("cases", 9, {}, r"partition\.case: needs 10 devices, the fleet has 9"),
        ("sigma_rho", 10, {"rho": 3, "samples_per_device": 100}, "needs a multiple of rho = 3, is 100"),
        ("sigma_rho", 10, {"samples_per_device": 400}, r"partition\.rho: needs 1 labels with 400 samples left"),
        ("sigma_rho", 10, {"samples_per_device": 500, "shard_mode": True}, "needs 3500 training samples for 7 shards"),
        ("sigma_rho", 10, {"sigma": 1.0, "samples_per_device": 301}, "needs 3010 training samples for 10 devices"),
        ("two_class", 10, {"samples_per_device": 400}, "needs 400 training samples of class 0, the data set has 300"),
        ("dirichlet_label", 301, {}, r"partition\.min_samples: needs 3010 training samples for 301 devices"),
        (
            "dirichlet_label",
            100,
            {"min_samples": 30},
            r"min_samples: needs 30 samples on each of 100 devices, which none",
        ),
        ("dirichlet_device", 3001, {}, "needs 3001 training samples"),
        ("pathological", 10, {"n_cls": 11}, r"partition\.n_cls: needs 11 classes, the data set has 10"),
    ],
)
def test_the_impossible_is_refused(name: str, devices: int, keys: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        divide(name, devices, **keys)


def test_more_impossible_cases() -> None:
    with pytest.raises(ConfigError, match="needs 10 classes, the data set has 4"):
        divide("cases", 10, labels(4, 1000))
    with pytest.raises(ConfigError, match="two_class needs 2 classes, the data set has 1"):
        divide("two_class", 2, labels(1, 1000))
    with pytest.raises(ConfigError, match=r"need test samples of classes \[0, 1\]"):
        divide("dirichlet_device", 4, labels(3, 40), np.full(9, 2))
    with pytest.raises(ConfigError, match=r"low <= high, is \[5, 4\]"):
        PLUGINS["sizes"](samples_per_device=(5, 4)).counts(3, KEY)


@pytest.mark.parametrize(
    ("name", "keys"),
    [
        ("iid", {"samples_per_device": 0}),
        ("cases", {"case": 3}),
        ("sigma_rho", {"sigma": 1.5}),
        ("two_class", {"samples_per_device": 301}),
        ("dirichlet_label", {"beta": 0}),
        ("dirichlet_device", {"alpha": -1}),
        ("sizes", {"samples_per_device": [1, 2, 3]}),
    ],
)
def test_keys_out_of_range_are_refused(name: str, keys: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        TypeAdapter(PLUGINS[name]).validate_python(keys)


def test_sizes_of_each_device():
    """They are taken as given, and must be as many as there are devices."""
    parts = assemble(timing_scenario(partition={"name": "sizes", "samples": [7, 5, 3, 2, 1]}))
    assert parts.setting.samples.tolist() == [7, 5, 3, 2, 1]
    with pytest.raises(ConfigError, match=r"partition.samples: must have 5 numbers, one a device, has 2"):
        assemble(timing_scenario(partition={"name": "sizes", "samples": [7, 5]}))
