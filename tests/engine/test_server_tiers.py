"""Edge servers below edge servers: a schedule worked out on paper, and runs that have to equal those of fewer tiers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import edgesim
from edgesim.reports.energy import cost_by
from edgesim.reports.load import Run
from edgesim.runs.estimate import estimate
from tests.engine.test_edges import BUFFERED, FLEET, final, same, sums_close
from tests.engine.trees import run, tree
from tests.outside.regions import Regions
from tests.sizes import full, spread

EIGHT = [*FLEET, *FLEET]
UNEVEN = {"name": "dirichlet_label", "beta": 0.5, "min_samples": 5}


# --- six devices below three edge servers below two regions, on paper ------------------------------------------------


UP, DOWN, LATENCY = 1e6, 8e6, 0.02  # bit/s of devices, and seconds
EDGE_UP, EDGE_DOWN, EDGE_LATENCY = 2e6, 4e6, 0.01
REGION_UP, REGION_DOWN, REGION_LATENCY = 0.5e6, 3e6, 0.04
SERVER_LATENCY = 0.005
SPEEDS = (1e9, 0.5e9, 0.8e9, 0.25e9, 0.3e9, 0.6e9)  # FLOP/s of devices
EDGE_SPEED, REGION_SPEED, SERVER_SPEED = 2e6, 3e6, 1e6
KAPPA_2, KAPPA_3, ROUNDS = 2, 3, 2  # rounds of edge servers, of regions, and of the server
REGION_OF = (0, 0, 1)  # of each edge server
EDGE_J_PER_BIT, REGION_J_PER_BIT = 2e-8, 3e-7
EUR_PER_J = 0.36 / 3.6e6


@pytest.fixture(scope="module")
def three() -> Run:
    """Return a run of three tiers of aggregators: three edge servers, two regions and the server."""
    topology = {
        "name": "tree", "edge_servers": 3, "edge_up": EDGE_UP, "edge_down": EDGE_DOWN, "edge_latency": EDGE_LATENCY,
        "server_latency": SERVER_LATENCY,
    }  # fmt: skip
    region = {
        "servers": 2, "up": REGION_UP, "down": REGION_DOWN, "latency": REGION_LATENCY, "rounds": KAPPA_3,
        "flops_per_s": REGION_SPEED, "idle": 7.0, "busy": 12.0, "energy_per_bit": REGION_J_PER_BIT,
    }  # fmt: skip
    edges = {
        "rounds": KAPPA_2, "flops_per_s": EDGE_SPEED, "idle": 5.0, "busy": 9.0, "energy_per_bit": EDGE_J_PER_BIT,
        "above": region,
    }  # fmt: skip
    fleet = [{"count": 1, "cpu": {"flops_per_s": speed}} for speed in SPEEDS]
    server = {"flops_per_s": SERVER_SPEED, "idle": 20.0, "busy": 50.0}
    method, prices = {"name": "hierfavg", "kappa_1": 4}, {"electricity": "0.36 EUR/kWh"}
    samples = {"name": "iid", "samples_per_device": 24}
    given = {"topology": topology, "server": server, "fleet": fleet, "method": method, "prices": prices}
    return run(tree(edges, 3, **given, partition=samples, stop={"rounds": ROUNDS}))


class OnPaper:
    """Seconds of every step, from the bits and the numbers of the model and the FLOPs of a job."""

    def __init__(self, seen: Run) -> None:
        nbytes, flops = int(seen.jobs["down_bytes"].iloc[0]), seen.jobs["flops"].iloc[0]
        assert (seen.jobs[["down_bytes", "up_bytes"]] == nbytes).all(axis=None)
        assert (seen.jobs["flops"] == flops).all()
        self.bits, weights = 8.0 * nbytes, nbytes / 4  # 4 bytes a number
        self.jobs_s = [2 * LATENCY + self.bits * (1 / DOWN + 1 / UP) + flops / speed for speed in SPEEDS]
        self.edge_merge_s = 2 * 2 * weights / EDGE_SPEED  # it multiplies and adds every number of two updates
        pairs = [self.jobs_s[place : place + 2] for place in (0, 2, 4)]
        self.edge_rounds_s = [max(pair) + self.edge_merge_s for pair in pairs]
        self.edge_down_s, self.edge_up_s = (EDGE_LATENCY + self.bits / rate for rate in (EDGE_DOWN, EDGE_UP))
        self.edge_orders_s = [self.edge_down_s + KAPPA_2 * each + self.edge_up_s for each in self.edge_rounds_s]
        self.region_merges_s = [updates * 2 * weights / REGION_SPEED for updates in (2, 1)]
        slowest = (max(self.edge_orders_s[:2]), self.edge_orders_s[2])
        self.region_rounds_s = [wait + merge for wait, merge in zip(slowest, self.region_merges_s, strict=True)]
        latency = SERVER_LATENCY + REGION_LATENCY
        self.region_down_s, self.region_up_s = (latency + self.bits / rate for rate in (REGION_DOWN, REGION_UP))
        self.region_orders_s = [self.region_down_s + KAPPA_3 * each + self.region_up_s for each in self.region_rounds_s]
        self.server_s = 2 * 2 * weights / SERVER_SPEED
        self.round_s = max(self.region_orders_s) + self.server_s


def test_instants_on_paper(three: Run) -> None:
    """Each round of the server waits for the slower region, each of a region for its slowest edge server."""
    paper = OnPaper(three)
    orders = three.edges.sort_values("order")
    assert (orders["outcome"] == "ok").all() and (orders["link_wait_s"] < 1e-9).all()
    regions, edges = orders[orders["tier"] == 2], orders[orders["tier"] == 1]
    assert (len(regions), len(edges)) == (2 * ROUNDS, 3 * KAPPA_3 * ROUNDS)
    assert set(regions["asked_by"]) == {-1} and set(regions["edge"]) == {3, 4}
    for row in regions.itertuples():
        place, sent_s = row.edge - 3, row.round * paper.round_s
        counts = (row.rounds, row.asked, row.used, row.late)
        jobs = KAPPA_3 * KAPPA_2 * 2 * REGION_OF.count(place)
        assert (*counts, row.samples) == (KAPPA_3, jobs, jobs, 0, 24 * jobs)
        found = (row.sent_s, row.down_s, row.work_s, row.up_s, row.server_s, row.end_s)
        work_s, merge_s = KAPPA_3 * paper.region_rounds_s[place], KAPPA_3 * paper.region_merges_s[place]
        ends_s = sent_s + paper.region_orders_s[place]
        assert found == pytest.approx((sent_s, paper.region_down_s, work_s, paper.region_up_s, merge_s, ends_s))
    for edge, region in enumerate(REGION_OF):
        own = edges[edges["edge"] == edge]
        assert set(own["asked_by"]) == {3 + region}
        begins_s = np.repeat(np.arange(ROUNDS) * paper.round_s + paper.region_down_s, KAPPA_3)
        sent_s = begins_s + np.tile(np.arange(KAPPA_3) * paper.region_rounds_s[region], ROUNDS)
        assert own["sent_s"].tolist() == pytest.approx(sent_s.tolist())
        assert own["end_s"].tolist() == pytest.approx((sent_s + paper.edge_orders_s[edge]).tolist())
        assert own["round"].tolist() == np.repeat(np.arange(ROUNDS), KAPPA_3).tolist()  # of the server
        assert own["base_version"].tolist() == list(range(ROUNDS * KAPPA_3))  # of the region
        assert set(own["samples"]) == {KAPPA_2 * 2 * 24}
    now_s = [(number + 1) * paper.round_s for number in range(ROUNDS)]
    assert three.rounds["now_s"].tolist() == pytest.approx(now_s)
    assert three.rounds["asked"].tolist() == [6 * KAPPA_2 * KAPPA_3] * ROUNDS
    assert len(three.jobs) == 6 * KAPPA_2 * KAPPA_3 * ROUNDS
    assert (three.jobs["edge"] == three.jobs["device"] // 2).all()


def test_bytes_joules_and_money_on_paper(three: Run) -> None:
    """Each order moves the model twice over the links of its own tier, and each tier has its own power."""
    paper, end_s = OnPaper(three), float(three.rounds["now_s"].iloc[-1])
    orders = three.edges
    assert (orders[["down_bytes", "up_bytes"]] == paper.bits / 8).all(axis=None)
    per_bit = np.where(orders["tier"] == 1, EDGE_J_PER_BIT, REGION_J_PER_BIT)
    assert orders["link_j"].tolist() == pytest.approx((2 * paper.bits * per_bit).tolist())
    servers = three.devices[three.devices["device"] < -1]
    assert servers["kind"].tolist() == ["edge"] * 3 + ["tier2"] * 2
    busy_s = [KAPPA_2 * KAPPA_3 * ROUNDS * paper.edge_merge_s] * 3
    busy_s += [KAPPA_3 * ROUNDS * each for each in paper.region_merges_s]
    added_w, idle_w = np.array([4.0] * 3 + [5.0] * 2), np.array([5.0] * 3 + [7.0] * 2)
    assert servers["busy_s"].tolist() == pytest.approx(busy_s)
    assert servers["compute_j"].tolist() == pytest.approx((added_w * busy_s).tolist())
    assert servers["idle_j"].tolist() == pytest.approx((idle_w * end_s).tolist())
    carried_j = orders.groupby("edge")["link_j"].sum().to_numpy()
    own_j = servers["compute_j"].to_numpy() + servers["idle_j"].to_numpy() + carried_j
    assert servers["cost"].tolist() == pytest.approx((own_j * EUR_PER_J).tolist())
    last = three.rounds.iloc[-1]
    joules = last[["total_energy_j", "total_energy_network_j", "total_energy_server_j"]].sum()
    assert last["total_cost"] == pytest.approx(joules * EUR_PER_J)
    assert last["total_energy_network_j"] == pytest.approx(orders["link_j"].sum())
    assert three.costs["cost"].sum() == pytest.approx(last["total_cost"])
    assert {"edge server 2", "tier2 server 3", "tier2 server 4", "server"} <= set(cost_by(three, "device")["device"])
    sums_close(three)


# --- runs that have to equal those of fewer tiers --------------------------------------------------------------------


@pytest.mark.parametrize("above", [[{"servers": 2}], [{"servers": 3}, {"servers": 2}, {"servers": 1}]], ids=str)
def test_nested_means_are_the_mean(above: list[dict[str, Any]]) -> None:
    """With one round an order, weighted by samples, it is FedAvg of all devices, but for the rounding of float32."""
    fleet = [{"count": 8, "cpu": {"flops_per_s": 1e9}}]
    flat = final(run(tree(None, 4, partition=UNEVEN, fleet=fleet)))
    below = final(run(tree({"above": above}, 4, partition=UNEVEN, fleet=fleet)))
    for name, tensor in flat.items():
        np.testing.assert_allclose(below[name], tensor, rtol=0, atol=2e-6)


def test_a_tier_of_servers_with_one_edge_server_each_changes_nothing() -> None:
    given: dict[str, Any] = {"method": "scaffold", "partition": UNEVEN, "stop": {"rounds": 3}}
    two = run(tree({"rounds": 2}, 2, **given))
    three = run(tree({"rounds": 2, "above": {"servers": 2}}, 2, **given))
    same(two.jobs, three.jobs, "job")  # numbers follow the order of what happens at one instant
    for name in ("rounds", "evals", "metrics"):
        same(two.table(name), three.table(name))
    assert [set(three.edges["tier"]), set(two.edges["tier"])] == [{1, 2}, {1}]
    for name, tensor in final(two).items():
        np.testing.assert_array_equal(final(three)[name], tensor)


@full
def test_rounds_of_one_region_are_rounds_of_the_server() -> None:
    """Six rounds of the server are two rounds of three each of a region that has all edge servers."""
    given: dict[str, Any] = {"method": "scaffold", "partition": UNEVEN}
    two = run(tree({"rounds": 2}, 2, **given, stop={"rounds": 6}))
    three = run(tree({"rounds": 2, "above": {"servers": 1, "rounds": 3}}, 2, **given, stop={"rounds": 2}))
    same(two.jobs, three.jobs, "round")
    assert three.evals["accuracy"].tolist() == two.evals["accuracy"].tolist()[2::3]
    assert two.edges["samples"].sum() == three.edges.loc[three.edges["tier"] == 2, "samples"].sum()
    for name, tensor in final(two).items():
        np.testing.assert_array_equal(final(three)[name], tensor)


def test_a_run_without_training_takes_the_same_time() -> None:
    given = {"above": {"servers": 2, "rounds": 2, "flops_per_s": 1e6}}
    trained, null = (run(tree(given, 4, fleet=EIGHT, backend=name)) for name in ("serial", "null"))
    for name in ("jobs", "rounds", "edges", "devices"):
        same(trained.table(name), null.table(name))


def test_an_estimate_is_what_the_run_takes() -> None:
    given = {"above": {"servers": 2, "rounds": 2, "idle": 1.0, "energy_per_bit": 1e-7, "up": "1 Mbit/s"}}
    table = tree(given, 4, fleet=EIGHT)
    seen, totals = run(table).manifest["totals"], estimate(edgesim.load(table)).totals
    for name in ("sim_time_s", "energy_j", "energy_network_j", "energy_server_j"):
        assert totals[name] == pytest.approx(seen[name]), name


def test_tiers_stand_above_those_of_a_topology_from_outside() -> None:
    """The orders of the server cross the links of its own tier alone; those of that tier cross the regions' links."""
    topology = {"name": f"{Regions.__module__}:Regions", "regions": 2, "edge_servers": 4}
    topology |= {"region_rate": "1 Mbit/s", "region_latency": "0.3 s"}
    above = {"servers": 1, "latency": "0.1 s"}
    orders = run(tree({"above": above}, 4, topology=topology, backend="null", stop={"rounds": 1})).edges
    bits = 8 * orders["down_bytes"].iloc[0]
    assert orders.loc[orders["tier"] == 2, "down_s"].tolist() == pytest.approx([0.1])
    assert orders.loc[orders["tier"] == 1, "down_s"].tolist() == pytest.approx([0.3 + 2 * bits / 1e6] * 4)


# --- protocols over protocols ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("edge", "region", "cloud"),
    spread(
        [
            ("sync", BUFFERED, "sync"),
            (BUFFERED, "sync", BUFFERED),
            ({"name": "deadline", "deadline": "3 s", "late": "keep"}, {"name": "over_selection", "keep": 1}, "sync"),
            ("sync", {"name": "deadline", "deadline": "3 s", "late": "keep"}, {"name": "over_selection", "keep": 1}),
            (BUFFERED, BUFFERED, BUFFERED),
        ],
        2,
    ),
)
def test_any_protocol_on_any_tier(edge: Any, region: Any, cloud: Any) -> None:
    """Joules and bytes close, and parallel training gives the same to the last bit."""
    above = {"servers": 2, "protocol": region, "rounds": 2, "idle": 2.0, "busy": 3.0, "flops_per_s": 1e6}
    above |= {"energy_per_bit": 1e-7, "up": "1 Mbit/s", "failures": {"name": "server_restart", "mean_time": 3.0}}
    method = "fedasync" if edge is BUFFERED else "fedavg"
    given = {"protocol": cloud, "fleet": EIGHT, "stop": {"rounds": 4}, "method": method}
    table = tree({"protocol": edge, "above": above, "energy_per_bit": 1e-8}, 4, **given)
    seen, again = run(table), run(table, "backend={ name = 'workers', workers = 2 }")
    sums_close(seen)
    for name in ("jobs", "rounds", "evals", "edges", "devices"):
        same(seen.table(name), again.table(name))
    done = seen.edges[(seen.edges["outcome"] == "ok") & (seen.edges["tier"] == 2)]
    assert (done["rounds"] == 2).all() and len(done)


def test_a_region_asks_some_of_its_own_edge_servers() -> None:
    """Each of two regions asks one of its two edge servers a round, and they draw apart."""
    edges = {"asked": {"name": "uniform", "count": 1}, "above": {"servers": 2, "rounds": 8}}
    orders = run(tree(edges, 4, backend="null", stop={"rounds": 1})).edges
    own = orders[orders["tier"] == 1]
    assert own.groupby("asked_by")["edge"].apply(set).to_dict() == {4: {0, 1}, 5: {2, 3}}
    assert (own.groupby("asked_by").size() == 8).all()
    drawn = [own.loc[own["asked_by"] == region, "edge"].to_numpy() % 2 for region in (4, 5)]
    assert (drawn[0] != drawn[1]).any()


def test_a_region_whose_edge_servers_have_given_up_gives_up() -> None:
    gone = {"name": "lifetime", "leave": {"choice": ["2 s", "5 s"]}}
    table = tree({"above": {"servers": 2}}, 4, availability=gone, stop={"rounds": 50}, backend="null")
    seen = run(table)
    assert "no device can take part any more" in seen.manifest["stop_reason"]
    assert {"offline"} <= set(seen.edges.loc[seen.edges["tier"] == 2, "outcome"])
