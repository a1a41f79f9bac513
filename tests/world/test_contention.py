"""Shared links against schedules solved by hand, an exact water-filling solution and queueing theory."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from decimal import Decimal
from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgesim.core.errors import ConfigError, ContractError
from edgesim.core.rng import Key
from edgesim.world.contention.base import Link, SharedLinks
from edgesim.world.contention.fair import FairLinks
from edgesim.world.contention.fifo import FifoLinks
from edgesim.world.topology.base import Access, Tier, TreePaths, Wire
from tests.sizes import examples
from tests.world.water_filling import Change, Transfer, fair_rates, finish_times, queue_times

BOTH = pytest.mark.parametrize("discipline", [FairLinks, FifoLinks])


def play(links: SharedLinks, transfers: Sequence[Transfer], changes: Sequence[Change] = ()) -> list[float]:
    """Run transfers, in order of start, and changes of capacity to their end; return when each transfer ended."""
    starts = [(s, partial(links.admit, flow, path, size, s)) for flow, (s, path, size) in enumerate(transfers)]
    starts += [(s, partial(links.set_capacity, link, bps, s)) for s, link, bps in changes]
    starts.sort(key=lambda start: start[0])
    ends = [math.nan] * len(transfers)
    while starts or links.busy:
        due = links.next_done()
        if due is None or (starts and starts[0][0] < due[0]):
            starts.pop(0)[1]()
        else:
            ends[due[1]] = due[0]
            links.finish(due[1], due[0])
    return ends


def agree(found: Sequence[float], expected: Sequence[object]) -> bool:
    """Return whether seconds agree to 1e-9, absolute or relative."""
    return found == pytest.approx([float(second) for second in expected], rel=1e-9, abs=1e-9)


def rates(capacity: Mapping[Link, float], paths: Sequence[Sequence[Link]]) -> list[float]:
    """Return the fair rates of transfers that start together."""
    links = FairLinks(capacity)
    for flow, path in enumerate(paths):
        links.admit(flow, path, 1e6, 0.0)
    return [links.rate_bps(flow) for flow in range(len(paths))]


# --- solved by hand -----------------------------------------------------------------------------------------


def test_three_flows_on_two_links() -> None:
    # one long flow and one short one on each of two equal links: each gets half
    assert rates({"x": 10.0, "y": 10.0}, ["xy", "x", "y"]) == [5.0, 5.0, 5.0]
    # x is the bottleneck of the long flow (3 each), what it leaves of y goes to the short one
    assert rates({"x": 6.0, "y": 10.0}, ["xy", "x", "y"]) == [3.0, 3.0, 7.0]


def test_parking_lot() -> None:
    # the long path has a third of b, where it meets two others; a and c leave their other user what it does not take
    paths = ["abc", "a", "b", "b", "c"]
    assert rates({"a": 1.0, "b": 1.0, "c": 1.0}, paths) == pytest.approx([1 / 3, 2 / 3, 1 / 3, 1 / 3, 2 / 3])


def test_own_links_cap_and_leave_the_rest_to_others() -> None:
    # 12 for four: the first two can take 1 and 2 only, the others share 9
    capacity = {"up": 12.0, "d0": 1.0, "d1": 2.0, "d2": 8.0, "d3": 100.0}
    assert rates(capacity, [["d0", "up"], ["d1", "up"], ["d2", "up"], ["d3", "up"]]) == [1.0, 2.0, 4.5, 4.5]
    # nobody is slowed by a link that is faster than all it serves
    capacity["up"] = 111.0
    assert rates(capacity, [["d0", "up"], ["d1", "up"], ["d2", "up"], ["d3", "up"]]) == [1.0, 2.0, 8.0, 100.0]


def test_arrival_and_departure_in_the_middle() -> None:
    # link of 8 bit/s = 1 byte/s. A (10 bytes) alone until 2, then with B (3 bytes): B ends at 2 + 3 / 0.5 = 8,
    # when A has moved 2 + 3 = 5; the other 5 take until 13
    links = FairLinks({"x": 8.0})
    assert play(links, [(0.0, "x", 10.0), (2.0, "x", 3.0)]) == [13.0, 8.0]
    # with C (1 byte) from 4 to 7 (at 1/3 byte/s): B has 2 bytes left at 4, 1 at 7, ends at 9; A has 8 at 2, 7 at 4,
    # 6 at 7, 5 at 9, ends at 14
    assert play(FairLinks({"x": 8.0}), [(0.0, "x", 10.0), (2.0, "x", 3.0), (4.0, "x", 1.0)]) == pytest.approx(
        [14, 9, 7]
    )


def test_fifo_by_hand() -> None:
    # bytes per second: x 1, y 2. A holds x 0-4. B (x and y, at 1) waits for it, 4-6. C (y) was free to go but is behind
    # B on y: 6-9. D (z) meets nobody: 3-4.
    transfers = [(0.0, "x", 4.0), (1.0, "xy", 2.0), (2.0, "y", 6.0), (3.0, "z", 1.0)]
    assert play(FifoLinks({"x": 8.0, "y": 16.0, "z": 8.0}), transfers) == [4.0, 6.0, 9.0, 4.0]


def test_fifo_drop_lets_the_next_go() -> None:
    links = FifoLinks({"x": 8.0, "y": 8.0})
    for flow, path in enumerate(["x", "xy", "y"]):
        links.admit(flow, path, 10.0, 0.0)
    assert [links.rate_bps(flow) for flow in range(3)] == [8.0, 0.0, 0.0]
    assert links.queue_length("y") == 2 and links.busy == 3
    assert links.drop(1, 1.0) == 0.0  # it waited on x, so the third moves from now on
    assert links.next_done() == (10.0, 0)
    links.finish(0, 10.0)
    assert links.next_done() == (11.0, 2)
    assert links.drop(2, 10.5) == 9.5


def test_fifo_capacity_of_a_link_whose_first_waits_elsewhere() -> None:
    # B is first on y but waits for A on x until 4; y, by then at 2 bytes/s, is the slower of its links
    transfers = [(0.0, "x", 16.0), (1.0, "xy", 6.0)]
    assert play(FifoLinks({"x": 32.0, "y": 8.0}), transfers, [(2.0, "y", 16.0)]) == [4.0, 7.0]


def test_capacity_that_changes_and_stops() -> None:
    # bytes per second: 1 for 2 s, none for 3 s, 4 afterwards: 2 moved, 8 left, end at 5 + 2
    changes = [(2.0, "x", 0.0), (5.0, "x", 32.0)]
    for discipline in (FairLinks, FifoLinks):
        assert play(discipline({"x": 8.0}), [(0.0, "x", 10.0)], changes) == [7.0]
    # two of 4 bytes: 1 each by 2, 3 left each; from 5 on 2 bytes/s each
    assert play(FairLinks({"x": 8.0}), [(0.0, "x", 4.0), (0.0, "x", 4.0)], changes) == [6.5, 6.5]


def test_a_link_of_endless_speed_that_becomes_finite_is_shared() -> None:
    # at 1 bit/s each by their own links until 10, then 0.5 each: 10 of 16 bits moved, 6 left, 12 s
    links = FairLinks({"core": math.inf, "a": 1.0, "b": 1.0})
    transfers = [(0.0, ["a", "core"], 2.0), (0.0, ["b", "core"], 2.0)]
    assert play(links, transfers, [(10.0, "core", 1.0)]) == [22.0, 22.0]


@BOTH
@pytest.mark.parametrize("nbytes", [1, 12_345, 3.3e6])
def test_one_flow_on_contended_links_is_the_fixed_link(discipline: type[FairLinks], nbytes: float) -> None:
    links = discipline({"own": 7.3e6, "server": 5.1e6})
    assert play(links, [(0.0, ["own", "server"], nbytes)]) == [8.0 * nbytes / 5.1e6]


@BOTH
def test_without_bytes_or_links_a_transfer_ends_at_once(discipline: type[FairLinks]) -> None:
    transfers = [(1.5, "x", 0.0), (1.5, "", 5.0), (1.5, "y", 5.0)]
    assert play(discipline({"x": 8.0, "y": math.inf}), transfers) == [1.5, 1.5, 1.5]


@BOTH
def test_a_dropped_transfer_has_moved_what_it_had_time_for(discipline: type[FairLinks]) -> None:
    # alone on x at 1 byte/s: 3 bytes by second 5; on y at once; nothing at the second of its start
    links = discipline({"x": 8.0, "y": math.inf})
    for flow, path in enumerate(["x", "y", "y"]):
        links.admit(flow, path, 100.0, 2.0)
    assert links.next_done() == (2.0, 1)
    links.finish(1, 2.0)
    assert links.next_done() == (2.0, 2)
    assert links.drop(2, 2.0) == 100.0
    links.admit(3, "x", 100.0, 2.0)
    assert links.drop(3, 2.0) == 0.0
    assert links.moved_bytes(0, 2.0) == 0.0 and links.moved_bytes(0, 3.0) == 1.0
    assert links.drop(0, 5.0) == 3.0
    assert links.busy == 0 and links.next_done() is None


@BOTH
def test_ends_of_one_second_come_in_the_order_of_flows(discipline: type[FairLinks]) -> None:
    links = discipline({link: 3.0 for link in range(9)})
    for flow in (5, 2, 8, 0, 3):
        links.admit(flow, [flow], 0.7, 0.1)
    order = []
    while (due := links.next_done()) is not None:
        order.append(due)
        links.finish(due[1], due[0])
    assert [flow for _, flow in order] == [0, 2, 3, 5, 8]
    assert len({second for second, _ in order}) == 1


def test_equal_shares_of_equal_transfers_end_at_one_second() -> None:
    paths = [(f"d{i}", f"edge{i % 3}", "server") for i in range(60)]
    capacity = {"server": 7.7e6} | {f"edge{i}": 1e8 for i in range(3)} | {f"d{i}": 1e7 for i in range(60)}
    ends = play(FairLinks(capacity), [(0.3, path, 1e6) for path in paths])
    assert len(set(ends)) == 1
    assert ends[0] == pytest.approx(0.3 + 60 * 8e6 / 7.7e6, rel=1e-12)


# --- against independent solutions ----------------------------------------------------------------------------


def test_thousand_transfers_on_one_uplink() -> None:
    draw = Key(1).numpy()
    starts = np.sort(draw.uniform(0, 100, 1000))
    sizes = draw.lognormal(13, 1, 1000)
    transfers = [(float(s), ["uplink"], float(size)) for s, size in zip(starts, sizes, strict=True)]
    capacity = {"uplink": 60e6}
    links = FairLinks(capacity)
    assert agree(play(links, transfers), finish_times(capacity, transfers))
    assert links.busy == links.queue_length("uplink") == 0


def test_thousand_transfers_on_one_uplink_behind_slower_links() -> None:
    draw = Key(2).numpy()
    starts = np.sort(draw.uniform(0, 100, 1000))
    own = draw.uniform(1e5, 4e6, 1000)
    transfers = [(float(s), [device, "uplink"], 1e5) for device, s in enumerate(starts)]
    capacity = {"uplink": 9e6} | dict(enumerate(own.tolist()))
    assert agree(play(FairLinks(capacity), transfers), finish_times(capacity, transfers))


def random_tree(seed: int, flows: int) -> tuple[dict[Link, float], list[Transfer]]:
    """Return links of random speeds in a tree of 60 devices, 7 and 3 edge servers, and flows between random nodes."""
    draw = Key(seed).numpy()
    columns = Access(*(np.ones(60) for _ in range(3)))
    paths = TreePaths(columns, Wire(), [Tier(7, Wire()), Tier(3, Wire())])
    capacity = {link: float(draw.uniform(1e6, 2e7)) for link in paths.capacity_bps}
    capacity |= {(0, paths.hub): 3e7, (paths.hub, 0): 4e7}
    transfers = []
    for start_s in np.sort(draw.uniform(0, 60, flows)):
        device, other = (int(node) for node in draw.choice(np.arange(1, 61), 2, replace=False))
        ends = [(device, 0), (0, device), (device, other)][int(draw.integers(3))]
        transfers.append((float(start_s), paths.path(*ends), float(draw.exponential(5e6))))
    return capacity, transfers


def test_random_flows_on_a_three_tier_tree() -> None:
    capacity, transfers = random_tree(3, 200)
    assert agree(play(FairLinks(capacity), transfers), finish_times(capacity, transfers))


def test_a_device_moves_while_its_transfer_waits() -> None:
    """It goes on over the links of where the device was: second in the queue of the other edge server's link."""
    paths = TreePaths(Access(*(np.full(2, 8e3) for _ in range(3))), Wire(), [Tier(2, Wire(8e3, 8e3, 0.0))])
    place = np.array([0, 1])
    paths.assign(place)
    links, (edge, other) = FifoLinks(paths.capacity_bps), paths.tier_nodes(0)
    links.admit(0, paths.path(edge, 0), 1e3, 0.0)
    links.admit(1, paths.path(1, other), 1e3, 0.0)
    place[0] = 1
    links.finish(0, 1.0)
    assert links.next_done() == (2.0, 1)


def test_random_flows_on_a_tree_whose_links_change() -> None:
    capacity, transfers = random_tree(4, 60)
    draw = Key(5).numpy()
    links = list(capacity)
    changes = [(float(s), links[int(draw.integers(len(links)))], 2e6) for s in np.sort(draw.uniform(0, 60, 60))]
    changes += [(float(s), links[-1], float(draw.uniform(1e5, 1e7))) for s in np.sort(draw.uniform(0, 60, 20))]
    changes.sort(key=lambda change: change[0])
    assert agree(play(FairLinks(capacity), transfers, changes), finish_times(capacity, transfers, changes))


def test_random_flows_in_fifo_order() -> None:
    capacity, transfers = random_tree(6, 500)
    assert agree(play(FifoLinks(capacity), transfers), queue_times(capacity, transfers))


# --- against queueing theory ----------------------------------------------------------------------------------


def mean_sojourn(links: SharedLinks, load: float, customers: int) -> tuple[float, float]:
    """Return mean and standard error of the seconds that Poisson arrivals of 1 s of work each stay, by batch means."""
    starts = np.cumsum(Key(7).numpy().exponential(1 / load, customers))
    ends = play(links, [(float(start_s), "x", 1e6) for start_s in starts])
    batches = (np.array(ends) - starts)[customers // 25 :].reshape(24, -1).mean(axis=1)
    return float(batches.mean()), float(batches.std(ddof=1) / math.sqrt(len(batches)))


def test_fifo_link_is_an_md1_queue() -> None:
    # Pollaczek-Khinchine with service of exactly S = 1 s: wait rho S / (2 (1 - rho)), then S
    load = 0.6
    mean_s, error_s = mean_sojourn(FifoLinks({"x": 8e6}), load, 30_000)
    assert error_s < 0.03
    assert abs(mean_s - (1 + load / (2 * (1 - load)))) < 3 * error_s


def test_fair_link_is_a_processor_sharing_queue() -> None:
    # processor sharing is insensitive to the distribution of sizes: S / (1 - rho)
    load = 0.7
    mean_s, error_s = mean_sojourn(FairLinks({"x": 8e6}), load, 30_000)
    assert error_s < 0.08
    assert abs(mean_s - 1 / (1 - load)) < 3 * error_s


# --- properties -----------------------------------------------------------------------------------------------

LINKS = "abcde"
ADMIT = st.tuples(st.just("admit"), st.permutations(LINKS).flatmap(lambda p: st.integers(1, 4).map(lambda n: p[:n])))
OTHER = st.sampled_from([("drop", None), ("end", None), ("wait", None)])
CHANGE = st.tuples(st.just("change"), st.tuples(st.sampled_from(LINKS), st.sampled_from([0.0, 2.0, 9.0])))
STEPS = st.lists(st.one_of(ADMIT, ADMIT, OTHER, CHANGE), max_size=40)


def check_max_min(links: FairLinks, capacity: Mapping[str, float], paths: Mapping[int, Sequence[str]]) -> None:
    """Assert that no link carries too much and that each flow has a full link on which nobody is faster."""
    rate = {flow: links.rate_bps(flow) for flow in paths}
    on = {link: [rate[flow] for flow, path in paths.items() if link in path] for link in LINKS}
    for link in LINKS:
        assert sum(on[link]) <= capacity[link] * (1 + 1e-9)
        assert links.queue_length(link) == len(on[link])
    for flow, path in paths.items():
        full = [link for link in path if sum(on[link]) >= capacity[link] * (1 - 1e-9)]
        assert any(rate[flow] >= max(on[link]) * (1 - 1e-9) for link in full), (flow, rate, capacity)


@settings(deadline=None, max_examples=examples(150))
@given(STEPS, st.lists(st.sampled_from([1.0, 2.0, 3.0, 5.0]), min_size=5, max_size=5))
def test_rates_are_always_max_min_fair_and_bits_are_conserved(
    steps: list[tuple[str, Any]], speeds: list[float]
) -> None:
    capacity = dict(zip(LINKS, speeds, strict=True))
    links = FairLinks(capacity)
    paths: dict[int, Sequence[str]] = {}
    moved: dict[int, float] = {}
    now_s = 0.0
    for flow, (step, detail) in enumerate(steps):
        due = links.next_done()
        if step == "admit":
            paths[flow], moved[flow] = detail, 0.0
            links.admit(flow, paths[flow], 10.0, now_s)
        elif step == "change":
            link, bps = detail
            capacity = {**capacity, link: bps}
            links.set_capacity(link, bps, now_s)
        elif step == "drop" and paths:
            dropped = next(iter(paths))
            assert links.drop(dropped, now_s) == pytest.approx(moved.pop(dropped), abs=1e-9)
            del paths[dropped]
        elif due is not None:
            after_s = due[0] if step == "end" else (now_s + due[0]) / 2
            moved = {f: moved[f] + links.rate_bps(f) * (after_s - now_s) / 8 for f in paths}
            now_s = after_s
            if step == "end":
                links.finish(due[1], now_s)
                del paths[due[1]]
                assert moved.pop(due[1]) == pytest.approx(10.0)
        check_max_min(links, capacity, paths)
    assert links.busy == len(paths)


@settings(deadline=None, max_examples=examples(100))
@given(
    st.lists(st.lists(st.sampled_from(range(12)), min_size=1, max_size=5, unique=True), min_size=1, max_size=25),
    st.lists(st.integers(1, 60), min_size=12, max_size=12),
)
def test_rates_of_any_mesh(paths: list[list[int]], speeds: list[int]) -> None:
    capacity = dict(enumerate(map(float, speeds)))
    expected = fair_rates(dict(enumerate(map(Decimal, speeds))), dict(enumerate(paths)))
    assert rates(capacity, paths) == pytest.approx([float(expected[flow]) for flow in range(len(paths))], rel=1e-9)


# --- refusals -------------------------------------------------------------------------------------------------


@BOTH
def test_broken_promises_are_refused(discipline: type[FairLinks]) -> None:
    links = discipline({"x": 8.0, "y": -1.0})
    links.admit(1, "x", 4.0, 2.0)
    for broken, words in (
        (lambda: links.admit(1, "x", 4.0, 2.0), "1 is under way already"),
        (lambda: links.admit(2, "xx", 4.0, 2.0), "crosses a link twice"),
        (lambda: links.admit(2, "x", -4.0, 2.0), "at least 0 bytes"),
        (lambda: links.admit(2, "x", 4.0, 1.0), "1.0 s after they had come to 2.0 s"),
        (lambda: links.drop(7, 2.0), "7 is not under way"),
        (lambda: links.finish(1, 5.0), "ended at 5.0 s but is due at 6.0 s"),
    ):
        with pytest.raises(ContractError, match=words):
            broken()
    for impossible, words in (
        (lambda: links.admit(2, "xz", 4.0, 2.0), "'z' does not exist"),
        (lambda: links.admit(2, "y", 4.0, 2.0), "'y' must be at least 0 bit/s, got -1.0"),
        (lambda: links.set_capacity("x", math.nan, 2.0), "'x' must be at least 0 bit/s, got nan"),
    ):
        with pytest.raises(ConfigError, match=words):
            impossible()
    assert links.busy == 1 and links.next_done() == (6.0, 1)  # nothing of it has left a trace
