"""Totals at a round's end against integrals of power: jobs, merges and transfers that go on at that instant count."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgesim.execution.backends.null import NullBackend
from edgesim.records.schema import COSTS
from edgesim.runs.simulation import Silent, Simulation
from edgesim.runs.training import assemble_all
from tests.conftest import PSI, timing_scenario
from tests.engine.priced import turns
from tests.engine.test_churn_properties import ALIKE
from tests.sizes import examples

NUMBERS = 567_858  # of CNN-CIFAR10, which PSI trains on 500 samples in 10 s
BITS = 8 * 4 * NUMBERS
DEVICE_W = {"idle": 2.0, "busy": 5.0, "transmit": 1.0, "receive": 0.5}  # the last two above idle power
SERVER_W = {"idle": 20.0, "busy": 120.0}
EDGE_W = {"idle": 7.0, "busy": 47.0}
J_PER_BIT = 2e-6  # of links between edge servers and server
EACH_S, MONEY, GRAMS = 1.7, (1.0, 3.0, 0.5), (5.0, 0.0, 1.0)  # prices of a joule, in turns


class Span(NamedTuple):
    """Watts that are drawn above idle power for a time."""

    from_s: float
    to_s: float
    watts: float


def integrated(spans: Sequence[Span], idle_w: float, at_s: float, price: Callable[[float], float]) -> float:
    """Return the integral of power x price from 0 to an instant; `price`: its integral, itself for joules."""
    begun = [span for span in spans if span.from_s < at_s]
    return idle_w * price(at_s) + sum(span.watts * (price(min(span.to_s, at_s)) - price(span.from_s)) for span in begun)


def check_rounds(rounds: pd.DataFrame, spans: Sequence[Span], idle_w: float, slack_j: float = 0.0) -> None:
    """Every total of joules, money and carbon is the integral at its instant; `slack_j`: of bytes that are cut off."""
    for row in rounds.itertuples():
        at_s = row.now_s
        energy_j = integrated(spans, idle_w, at_s, lambda until_s: until_s)
        found_j = row.total_energy_j + row.total_energy_network_j + row.total_energy_server_j
        assert found_j == pytest.approx(energy_j, rel=1e-9, abs=slack_j)
        assert row.total_active_j + row.total_idle_j == pytest.approx(row.total_energy_j, rel=1e-9)
        for total, prices in (row.total_cost, MONEY), (row.total_co2e_g, GRAMS):
            expected = integrated(spans, idle_w, at_s, turns(prices, EACH_S))
            assert total == pytest.approx(expected, rel=1e-9, abs=slack_j * max(prices) + 1e-9)


def check_amounts(rounds: pd.DataFrame, jobs: pd.DataFrame) -> None:
    """FLOPs and bytes are those of a session's own jobs, by the share of a phase that is over."""
    ends_s = np.cumsum(jobs[["sent_s", "down_s", "compute_s", "up_s"]].to_numpy(), axis=1)
    for row in rounds.itertuples():
        lasts_s = np.maximum(np.diff(ends_s), 1e-300)
        down, compute, up = np.clip((row.now_s - ends_s[:, :3]) / lasts_s, 0.0, 1.0).T
        assert row.total_flops == pytest.approx((compute * jobs["flops"]).sum(), rel=1e-9)
        assert row.total_down_bytes == pytest.approx((down * jobs["down_bytes"]).sum(), abs=len(jobs))
        assert row.total_up_bytes == pytest.approx((up * jobs["up_bytes"]).sum(), abs=len(jobs))


def priced(**changes: Any) -> Any:
    """Return a scenario of devices, server and prices that turn; keys of `changes` come on top."""
    money, grams = (
        [{band: f"{price} {unit}/J" for band in ("low", "typical", "high")} for price in prices]
        for prices, unit in ((MONEY, "EUR"), (GRAMS, "g"))
    )
    tariff = {"name": "tests.plugins.tariffs:Turns", "each": EACH_S}
    prices = {"electricity": {**tariff, "prices": money}, "carbon": {**tariff, "prices": grams}}
    return timing_scenario(**{"energy": {"name": "power", **DEVICE_W}, "prices": prices, **changes})


def run(scenario: Any) -> Simulation:
    """Run all trainings of a timing-only scenario in memory."""
    first, *more = assemble_all(scenario)
    simulation = Simulation(first, NullBackend(), Silent(), others=[(parts, NullBackend()) for parts in more])
    simulation.run()
    return simulation


def table(simulation: Simulation, name: str, of: int = 0) -> pd.DataFrame:
    """Return a table of one of the trainings."""
    return simulation.trainings[of].tables[name].frame()


def devices_at_work(jobs: pd.DataFrame) -> Iterator[Span]:
    """Yield what devices draw above idle power for jobs whose links have no latency and no other users."""
    for row in jobs.itertuples():
        computes_s = row.sent_s + row.down_s
        sends_s = computes_s + row.compute_s
        yield Span(row.sent_s, computes_s, DEVICE_W["receive"])
        yield Span(computes_s, sends_s, DEVICE_W["busy"] - DEVICE_W["idle"])
        yield Span(sends_s, sends_s + row.up_s, DEVICE_W["transmit"])


def merges(jobs: pd.DataFrame, whose: str, numbers: int, speed: float, watts: float) -> Iterator[Span]:
    """Yield the merges of synchronous rounds: from the last job's end, two FLOPs for each number of each update."""
    for _, asked in jobs.groupby([whose, "sent_s"]):
        if not (asked["outcome"] == "stopped").any():
            ends_s = asked["end_s"].max()
            yield Span(ends_s, ends_s + 2 * numbers * len(asked) / speed, watts)


# --- sessions ----------------------------------------------------------------------------------------------------


def test_by_hand_a_session_closes_a_round_while_the_server_merges_for_the_other():
    """Devices of 6 and 9 s, merges of 4 s: a closes at 10 and 20 s, b at 13 and 26 s, on one server of 100 W more.

    At 10 s: 3 W for 6 + 9 s of computing, 100 W for 4 s of a's merge and 1 s of b's, (2 + 2 + 20) W for 10 s.
    At 13 s: 6 + 9 and 3 s of a's second job; both merges. At 20 s: 12 s of a, 9 + 7 of b; three merges.
    """
    fleet = [{"name": name, "cpu": {"flops_per_s": PSI * 10 / takes_s}} for name, takes_s in (("one", 6), ("two", 9))]
    sessions = [{"name": "a", "devices": "one"}, {"name": "b", "devices": "two"}]
    server = {**SERVER_W, "flops_per_s": 2 * NUMBERS / 4}
    seen = run(priced(fleet=fleet, server=server, session=sessions, stop={"rounds": 2}))
    a, b = table(seen, "rounds", 0), table(seen, "rounds", 1)
    assert a["now_s"].tolist() == pytest.approx([10, 20])
    assert b["now_s"].tolist() == pytest.approx([13, 26])
    assert a["total_energy_j"].tolist() == pytest.approx([45 + 40, 3 * 28 + 80])
    assert a["total_energy_server_j"].tolist() == pytest.approx([500 + 200, 1200 + 400])
    assert b["total_energy_j"].tolist() == pytest.approx([3 * 18 + 52, 3 * 30 + 104])
    assert b["total_energy_server_j"].tolist() == pytest.approx([800 + 260, 1600 + 520])
    computing = [Span(0, 6, 3), Span(10, 16, 3), Span(0, 9, 3), Span(13, 22, 3)]
    merging = [Span(6, 10, 100), Span(16, 20, 100), Span(9, 13, 100), Span(22, 26, 100)]
    for rounds in (a, b):
        check_rounds(rounds, computing + merging, 24.0)
    assert seen.totals["energy_j"] == pytest.approx(b["total_energy_j"].iloc[-1])


def test_by_hand_each_worker_of_the_other_s_merge_counts_for_what_it_did():
    """b merges three updates on two workers from 9 s on, 2 s each: both work until 11 s, one of them until 13 s.

    a closes at 6.1 + 4 s = 10.1 s, and in the second case at 12.1 s.
    """
    blocks = [{"name": "three", "count": 3, "cpu": {"flops_per_s": PSI * 10 / 9}}]
    server = {**SERVER_W, "flops_per_s": 2 * NUMBERS / 2, "workers": 2}
    sessions = [{"name": "b", "devices": "three"}, {"name": "a", "devices": "one"}]
    for takes_s, worked_s in (8.1, 2 * 1.1), (10.1, 2 * 2 + 1.1):
        fleet = [*blocks, {"name": "one", "cpu": {"flops_per_s": PSI * 10 / takes_s}}]
        seen = run(priced(fleet=fleet, server=server, session=sessions))
        [row] = table(seen, "rounds", 1).to_dict("records")
        assert row["now_s"] == pytest.approx(takes_s + 2)
        assert row["total_active_j"] == pytest.approx(3 * (27 + takes_s))
        assert row["total_energy_server_j"] == pytest.approx(100 * (2 + worked_s) + 20 * row["now_s"])


@st.composite
def of_sessions(draw: st.DrawFn) -> dict[str, Any]:
    """Draw two or three sessions on devices of their own, over links of their own."""
    count = draw(st.integers(2, 3))
    sizes = draw(st.lists(st.integers(1, 3), min_size=count, max_size=count))
    speed = st.sampled_from([PSI, 2 * PSI, {"uniform": [PSI / 2, 3 * PSI]}])
    fleet = [{"name": f"f{i}", "count": sizes[i], "cpu": {"flops_per_s": draw(speed)}} for i in range(count)]
    stops = [{"rounds": draw(st.integers(1, 5))} for _ in range(count)]
    starts = [draw(st.sampled_from([0, 3, 11])) for _ in range(count)]
    sessions = [{"devices": f"f{i}", "stop": stops[i], "start": starts[i]} for i in range(count)]
    links = draw(st.sampled_from([{"name": "fixed", "up": "2 Mbit/s", "down": {"uniform": ["4 Mbit/s", "9 Mbit/s"]}}]))
    server = {**SERVER_W, "flops_per_s": 2 * NUMBERS / draw(st.sampled_from([0.7, 3.0, 8.0]))}
    return {
        "seed": draw(st.integers(0, 999)), "fleet": fleet, "session": sessions, "network": links, "server": server,
    }  # fmt: skip


@settings(ALIKE, max_examples=examples(150, short=6))
@given(given=of_sessions())
def test_sessions_count_what_is_in_progress(given: Mapping[str, Any]) -> None:
    """At every round of every session."""
    seen = run(priced(**given))
    jobs = [table(seen, "jobs", of) for of in range(len(given["session"]))]
    spans = [span for each in jobs for span in devices_at_work(each)]
    added_w = SERVER_W["busy"] - SERVER_W["idle"]
    for each in jobs:
        spans += merges(each.assign(server=0), "server", NUMBERS, given["server"]["flops_per_s"], added_w)
    idle_w = DEVICE_W["idle"] * sum(block["count"] for block in given["fleet"]) + SERVER_W["idle"]
    for of, own in enumerate(jobs):
        check_rounds(table(seen, "rounds", of), spans, idle_w)
        check_amounts(table(seen, "rounds", of), own)


# --- edge servers ------------------------------------------------------------------------------------------------

BUFFERED = {"name": "buffered", "concurrency": 2, "buffer": 1}


def below(servers: int, edges: Mapping[str, Any], **changes: Any) -> dict[str, Any]:
    """Return what a scenario needs for edge servers whose own links take time, while those of devices do not."""
    topology = {"name": "tree", "edge_servers": servers, "edge_up": BITS / 2, "edge_down": BITS}
    return {
        "network": {"name": "shared", "up": 1e15, "down": 1e15}, "topology": topology,
        "edges": {**EDGE_W, "energy_per_bit": J_PER_BIT, **edges}, "server": {"idle": SERVER_W["idle"]}, **changes,
    }  # fmt: skip


def backhaul(orders: pd.DataFrame, up_bps: float, down_bps: float) -> Iterator[Span]:
    """Yield what the links between edge servers and server draw, which take as long as nobody else is on them."""
    for row in orders.itertuples():
        yield Span(row.sent_s, row.sent_s + row.down_s, J_PER_BIT * down_bps)
        yield Span(row.end_s - row.up_s, row.end_s, J_PER_BIT * up_bps)


def test_by_hand_the_cloud_merges_while_an_edge_server_does():
    """Orders take 1 s down, then 4 s on a device and 3 s of merging, or 2.5 s more; then 2 s up.

    The cloud closes its first round at 10 s. The second edge server has computed from 1 to 7.5 s, and merges since: it
    is 2.5 s at it. At 12.5 s it is through; the first has its second order since 10 s, and its device works since 11 s.
    """
    fleet = [{"count": 1, "cpu": {"flops_per_s": PSI * 10 / takes_s}} for takes_s in (4, 6.5)]
    edges = {"flops_per_s": 2 * NUMBERS / 3}
    seen = run(priced(fleet=fleet, protocol=BUFFERED, stop={"rounds": 2}, **below(2, edges)))
    rounds = table(seen, "rounds")
    assert rounds["now_s"].tolist() == pytest.approx([10, 12.5], abs=1e-6)
    link_j = J_PER_BIT * BITS  # of a model, one way
    servers_w = 2 * EDGE_W["idle"] + SERVER_W["idle"]
    assert rounds["total_energy_j"].tolist() == pytest.approx([3 * 10.5 + 40, 3 * (10.5 + 1.5) + 50], rel=1e-6)
    assert rounds["total_energy_network_j"].tolist() == pytest.approx([3 * link_j, 5 * link_j], rel=1e-6)
    servers_j = [40 * (3 + 2.5) + servers_w * 10, 40 * (3 + 3) + servers_w * 12.5]
    assert rounds["total_energy_server_j"].tolist() == pytest.approx(servers_j, rel=1e-6)


def test_by_hand_the_cloud_merges_while_a_model_is_on_its_way():
    """The edge servers' models leave at 5 and 6 s, and take 2 s: when the first arrives, half of the second has moved.

    Money and carbon have paid for a half too, at the prices of the last second.
    """
    fleet = [{"count": 1, "cpu": {"flops_per_s": PSI * 10 / takes_s}} for takes_s in (4, 5)]
    seen = run(priced(fleet=fleet, protocol=BUFFERED, **below(2, {})))
    [row] = table(seen, "rounds").to_dict("records")
    assert row["now_s"] == pytest.approx(7)
    watts = J_PER_BIT * BITS  # on the way down, half of that on the way up
    spans = [Span(0, 1, watts), Span(0, 1, watts), Span(1, 5, 3), Span(1, 6, 3), Span(5, 7, watts / 2)]
    spans.append(Span(6, 7, watts / 2))
    check_rounds(table(seen, "rounds"), spans, 2 * 2.0 + 2 * 7.0 + 20.0, slack_j=16 * J_PER_BIT)
    assert row["total_energy_j"] == pytest.approx(27 + 4 * 7)
    assert row["total_energy_network_j"] == pytest.approx(3.5 * watts, abs=16 * J_PER_BIT)


@st.composite
def of_edges(draw: st.DrawFn) -> dict[str, Any]:
    """Draw two or three edge servers of one to three devices below a cloud that does not wait for all of them."""
    servers = draw(st.integers(2, 3))
    speed = st.sampled_from([PSI, 2 * PSI, {"uniform": [PSI / 2, 3 * PSI]}])
    fleet = [{"count": draw(st.integers(servers, 2 * servers)), "cpu": {"flops_per_s": draw(speed)}}]
    protocol = draw(
        st.sampled_from(
            [
                {**BUFFERED, "concurrency": servers, "buffer": draw(st.integers(1, 2))},
                {"name": "over_selection", "keep": 1},
                {"name": "deadline", "deadline": 20, "late": draw(st.sampled_from(["keep", "drop"]))},
            ]
        )
    )
    edges = {"rounds": draw(st.integers(1, 2)), "flops_per_s": 2 * NUMBERS / draw(st.sampled_from([0.7, 4.0]))}
    own = below(servers, edges, fleet=fleet, protocol=protocol, stop={"rounds": draw(st.integers(2, 6))})
    own["topology"]["edge_up"] = BITS / draw(st.sampled_from([0.5, 3.0, 9.0]))
    return {**own, "seed": draw(st.integers(0, 999))}


@settings(ALIKE, max_examples=examples(150, short=6))
@given(given=of_edges())
def test_edge_servers_count_what_is_in_progress(given: Mapping[str, Any]) -> None:
    """At every round of the cloud."""
    seen = run(priced(**given))
    jobs, orders, topology = table(seen, "jobs"), table(seen, "edges"), given["topology"]
    added_w = EDGE_W["busy"] - EDGE_W["idle"]
    spans = [*devices_at_work(jobs), *merges(jobs, "edge", NUMBERS, given["edges"]["flops_per_s"], added_w)]
    spans += backhaul(orders, topology["edge_up"], topology["edge_down"])
    idle_w = DEVICE_W["idle"] * given["fleet"][0]["count"] + EDGE_W["idle"] * topology["edge_servers"]
    slack_j = 16 * J_PER_BIT * (1 + len(orders))  # bytes are whole
    check_rounds(table(seen, "rounds"), spans, idle_w + SERVER_W["idle"], slack_j)
    check_amounts(table(seen, "rounds"), jobs)
    for name in COSTS:
        sums = [table(seen, "costs")[name].sum(), seen.devices()[name].sum()]  # by item, and by device or server
        assert sums == pytest.approx([seen.totals[name]] * 2, rel=1e-9)


# --- who reads totals --------------------------------------------------------------------------------------------


def test_limits_count_the_merges_of_others() -> None:
    """The first session above has paid for 785 J at its first round; without the other's merge it would be 685."""
    fleet = [{"name": name, "cpu": {"flops_per_s": PSI * 10 / takes_s}} for name, takes_s in (("one", 6), ("two", 9))]
    sessions = [
        {"name": "a", "devices": "one", "stop": {"cost": "785 EUR", "rounds": 9}},
        {"name": "b", "devices": "two"},
    ]
    server = {**SERVER_W, "flops_per_s": 2 * NUMBERS / 4}
    flat = {"electricity": "1.0000001 EUR/J"}
    seen = run(priced(fleet=fleet, server=server, session=sessions, prices=flat))
    assert table(seen, "rounds")["now_s"].tolist() == pytest.approx([10])
    assert (seen.rounds.stop_reason or "").startswith("cost")
