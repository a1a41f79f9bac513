"""Edge servers: schedules worked out on paper, runs that have to equal those without them, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import edgesim
from edgesim.core.errors import ConfigError
from edgesim.execution.checkpoint import Checkpoint
from edgesim.execution.result_cache import Answers
from edgesim.learning.train.trainer import Trainer
from edgesim.reports.energy import attribute_energy, split_energy
from edgesim.reports.load import Run
from edgesim.runs.assembly import assemble
from edgesim.runs.simulate import simulate
from edgesim.world.topology.assignment import balanced, label_mixed
from tests.engine.trees import run, tree
from tests.sizes import full, spread, thinned


def same(first: pd.DataFrame, second: pd.DataFrame, *but: str) -> None:
    """Assert that tables are equal in every bit, some columns left out."""
    pd.testing.assert_frame_equal(first.drop(columns=list(but)), second.drop(columns=list(but)), check_exact=True)


# --- one edge server --------------------------------------------------------------------------------------------


METHODS = ["fedavg", "fedprox", "scaffold", "fedpns", "feddyn"]


@pytest.mark.parametrize("method", spread(METHODS, 2))
def test_one_edge_server_is_a_server(method: str) -> None:
    """With one edge server, one round of it an order and links that take no time, all is as without it."""
    selection = {"name": "uniform", "count": 2}
    flat = run(tree(None, 1, method=method, selection=selection, stop={"rounds": 4}))
    below = run(tree({}, 1, method=method, selection=selection, stop={"rounds": 4}))
    same(flat.jobs, below.jobs, "edge")
    same(flat.rounds, below.rounds)
    same(flat.evals, below.evals)
    same(flat.devices, below.devices[below.devices["kind"] != "edge"].reset_index(drop=True))
    assert set(flat.jobs["edge"]) == {-1} and set(below.jobs["edge"]) == {0}
    assert (below.edges["asked"] == 2).all() and len(below.edges) == 4


# --- two edge servers with two devices each, on paper --------------------------------------------------------------


UP, DOWN = 1e6, 8e6  # bit/s of devices
EDGE_UP, EDGE_DOWN = 2e6, 4e6
SPEEDS = (1e9, 0.5e9, 0.8e9, 0.25e9)  # FLOP/s of devices
EDGE_SPEED, SERVER_SPEED = 2e6, 1e6
LATENCY, EDGE_LATENCY, SERVER_LATENCY = 0.02, 0.01, 0.005
KAPPA = 3


@pytest.fixture(scope="module")
def two() -> Run:
    """Return a run of two edge servers with two devices each."""
    topology = {
        "name": "tree", "edge_servers": 2, "edge_up": EDGE_UP, "edge_down": EDGE_DOWN, "edge_latency": EDGE_LATENCY,
        "server_latency": SERVER_LATENCY,
    }  # fmt: skip
    edges = {
        "rounds": KAPPA, "flops_per_s": EDGE_SPEED, "idle": 5.0, "busy": 9.0, "energy_per_bit": 2e-8,
    }  # fmt: skip
    server = {"flops_per_s": SERVER_SPEED, "idle": 20.0, "busy": 50.0}
    energy = {"name": "power", "idle": 1.0, "busy": 4.0, "transmit": 2.5, "receive": 1.75}
    fleet = [{"count": 1, "cpu": {"flops_per_s": speed}} for speed in SPEEDS]
    method = {"name": "hierfavg", "kappa_1": 4}
    return run(tree(edges, 2, topology=topology, server=server, energy=energy, fleet=fleet, method=method))


def numbers(seen: Run) -> tuple[float, float]:
    """Return bits and numbers of the model: 4 bytes a number."""
    nbytes = int(seen.jobs["down_bytes"].iloc[0])
    assert (seen.jobs[["down_bytes", "up_bytes"]] == nbytes).all(axis=None)
    return 8.0 * nbytes, nbytes / 4


def test_instants_on_paper(two: Run) -> None:
    """Each job takes its latencies, transfers and computation; each round waits for its slowest; each order too."""
    bits, weights = numbers(two)
    flops = two.jobs["flops"].iloc[0]
    assert (two.jobs["flops"] == flops).all() and (two.jobs["link_wait_s"] < 1e-12).all()
    takes = [LATENCY + bits / DOWN + flops / speed + LATENCY + bits / UP for speed in SPEEDS]
    mean_s = 2 * 2 * weights / EDGE_SPEED  # an edge server multiplies and adds every number of two updates
    rounds_s = [max(takes[:2]) + mean_s, max(takes[2:]) + mean_s]
    down_s = SERVER_LATENCY + EDGE_LATENCY + bits / EDGE_DOWN
    up_s = SERVER_LATENCY + EDGE_LATENCY + bits / EDGE_UP
    order_s = [down_s + KAPPA * each_s + up_s for each_s in rounds_s]
    server_s = 2 * 2 * weights / SERVER_SPEED
    for row in two.edges.itertuples():
        starts_s = row.round * (max(order_s) + server_s)
        assert row.sent_s == pytest.approx(starts_s, rel=1e-12)
        assert row.end_s == pytest.approx(starts_s + order_s[row.edge], rel=1e-12)
        spent = (row.down_s, row.work_s, row.up_s, row.server_s)
        assert spent == pytest.approx((down_s, KAPPA * rounds_s[row.edge], up_s, KAPPA * mean_s), rel=1e-12)
        assert (row.rounds, row.asked, row.used, row.late, row.samples) == (KAPPA, 2 * KAPPA, 2 * KAPPA, 0, 80 * KAPPA)
    for row in two.jobs.itertuples():
        edge, nth = row.device // 2, row.base_version - KAPPA * row.round  # which of its rounds for this order
        starts_s = row.round * (max(order_s) + server_s) + down_s + nth * rounds_s[edge]
        assert (row.edge, row.sent_s, row.end_s) == (
            edge, pytest.approx(starts_s, rel=1e-12), pytest.approx(starts_s + takes[row.device], rel=1e-12)
        )  # fmt: skip
    closed_s = [(number + 1) * (max(order_s) + server_s) for number in range(2)]
    assert two.rounds["now_s"].tolist() == pytest.approx(closed_s, rel=1e-12)
    assert two.rounds["server_s"].tolist() == pytest.approx([server_s] * 2, rel=1e-12)
    assert two.rounds["asked"].tolist() == [4 * KAPPA] * 2


def test_bytes_and_joules_on_paper(two: Run) -> None:
    bits, weights = numbers(two)
    flops, orders, end_s = two.jobs["flops"].iloc[0], 2 * KAPPA, float(two.rounds["now_s"].iloc[-1])
    assert (two.edges[["down_bytes", "up_bytes"]] == bits / 8).all(axis=None)
    assert two.edges["link_j"].tolist() == pytest.approx([2 * bits * 2e-8] * 4, rel=1e-12)
    devices = two.devices.set_index("device")
    for device, speed in enumerate(SPEEDS):
        spent = devices.loc[device, ["down_j", "compute_j", "up_j", "idle_j"]].tolist()
        each = (1.75 * bits / DOWN, 3.0 * flops / speed, 2.5 * bits / UP)
        assert spent == pytest.approx([*(orders * joules for joules in each), end_s], rel=1e-12)
    edge_s = orders * 4 * weights / EDGE_SPEED
    for edge in (0, 1):
        row = devices.loc[-2 - edge]
        assert (row["kind"], row["busy_s"]) == ("edge", pytest.approx(edge_s, rel=1e-12))
        assert [row["compute_j"], row["idle_j"]] == pytest.approx([4.0 * edge_s, 5.0 * end_s], rel=1e-12)
    server_s = 2 * 4 * weights / SERVER_SPEED
    assert devices.loc[-1, ["compute_j", "idle_j"]].tolist() == pytest.approx([30 * server_s, 20 * end_s], rel=1e-12)
    spent_j, last = devices[["down_j", "compute_j", "up_j", "idle_j"]].sum(axis=1), two.rounds.iloc[-1]
    of_devices, of_servers, network_j = (
        spent_j[spent_j.index >= 0],
        spent_j[spent_j.index < 0],
        two.edges["link_j"].sum(),
    )
    assert last["total_energy_j"] == pytest.approx(of_devices.sum(), rel=1e-12)
    assert last["total_energy_server_j"] == pytest.approx(of_servers.sum(), rel=1e-12)
    assert last["total_energy_network_j"] == pytest.approx(network_j, rel=1e-12)
    assert attribute_energy(two)["joules"].sum() == pytest.approx(spent_j.sum() + network_j, rel=1e-9)
    assert two.rounds["total_down_bytes"].iloc[-1] == orders * 4 * bits / 8  # of devices alone


@pytest.mark.parametrize("kappa", [2, 3, 6])
def test_bytes_to_the_cloud_fall_by_kappa(kappa: int) -> None:
    """As many rounds of edge servers, in fewer rounds of the server."""
    often = run(tree({}, 2, stop={"rounds": 6}, backend="null"))
    seldom = run(tree({"rounds": kappa}, 2, stop={"rounds": 6 // kappa}, backend="null"))
    assert len(often.jobs) == len(seldom.jobs)
    for column in ("down_bytes", "up_bytes"):
        assert often.edges[column].sum() == kappa * seldom.edges[column].sum() > 0
        assert often.jobs[column].sum() == seldom.jobs[column].sum() > 0


# --- what the server makes of models ---------------------------------------------------------------------------


def final(seen: Run) -> dict[str, np.ndarray]:
    """Return the last global model."""
    return seen.weights("final")


def test_the_mean_of_means_is_the_mean() -> None:
    """All devices, one round an order: weighted by samples it is FedAvg of all, but for the rounding of float32."""
    partition = {"name": "dirichlet_label", "beta": 0.5, "min_samples": 5}
    flat = final(run(tree(None, 2, partition=partition)))
    below = final(run(tree({}, 2, partition=partition)))
    for name, tensor in flat.items():
        np.testing.assert_allclose(below[name], tensor, rtol=0, atol=2e-6)


def test_an_edge_server_without_updates_counts_nothing() -> None:
    """Its devices are never there in time: the model is that of the other one's devices alone."""
    edges = {"protocol": {"name": "deadline", "deadline": "2 s"}}
    slow = [{"count": 2, "cpu": {"flops_per_s": 1e9}}, {"count": 2, "cpu": {"flops_per_s": 1e5}}]
    seen = run(tree(edges, 2, fleet=slow))
    flat = run(tree(None, 2, fleet=slow, protocol=edges["protocol"]))
    assert seen.edges.groupby("edge")["samples"].max().tolist() == [80, 0]
    assert seen.edges.groupby("edge")["late"].sum().tolist() == [0, 4]
    assert flat.rounds["used"].tolist() == [2, 2]
    for name, tensor in final(flat).items():
        np.testing.assert_allclose(final(seen)[name], tensor, rtol=0, atol=2e-6)


def test_a_late_device_trains_from_the_model_that_it_received(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its edge server merges nothing in the first order and gets another model meanwhile; the update comes then."""
    started = dict[int, Any]()
    really_run = Trainer.run

    def noted(self: Trainer, given: Any) -> Any:
        started[given.job] = {name: tensor.clone() for name, tensor in given.global_model["params"].items()}
        return really_run(self, given)

    monkeypatch.setattr(Trainer, "run", noted)
    edges = {"protocol": {"name": "deadline", "deadline": "1 s", "late": "keep"}}
    slow = [{"count": 2, "cpu": {"flops_per_s": 1e9}}, {"count": 2, "cpu": {"flops_per_s": 1e7}}]
    seen = run(tree(edges, 2, fleet=slow))
    late = seen.jobs[(seen.jobs["device"] >= 2) & (seen.jobs["sent_s"] == 0)]
    assert (late["end_s"] > seen.rounds["now_s"].iloc[0]).all() and (late["outcome"] == "ok").all()
    first = seen.jobs[(seen.jobs["device"] == 0) & (seen.jobs["sent_s"] == 0)]
    for job in late["job"]:
        for name, tensor in started[int(first["job"].iloc[0])].items():
            np.testing.assert_array_equal(started[job][name], tensor)


def test_models_of_an_asynchronous_cloud_move_it_by_their_share() -> None:
    """One edge server of two delivers: the model goes half of the way to its model, as its devices have half of all."""
    fleet = [{"count": 2, "cpu": {"flops_per_s": 1e9}}, {"count": 2, "cpu": {"flops_per_s": 1e3}}]
    protocol = {"name": "buffered", "concurrency": 2, "buffer": 1}
    moved = final(run(tree({}, 2, fleet=fleet, protocol=protocol, stop={"rounds": 1})))
    first = final(run(tree({}, 2, fleet=fleet, protocol=protocol, stop={"rounds": 1}, training={"lr": 1e-30})))
    only = {"protocol": {"name": "deadline", "deadline": "100 s"}}
    there = final(run(tree(only, 2, fleet=fleet, stop={"rounds": 1})))
    for name, tensor in moved.items():
        np.testing.assert_allclose(tensor, (first[name] + there[name]) / 2, rtol=0, atol=2e-6)


# --- protocols over protocols ------------------------------------------------------------------------------------

BUFFERED = {"name": "buffered", "concurrency": 2, "buffer": 1}
FLEET = [{"count": 1, "cpu": {"flops_per_s": speed}} for speed in (1e9, 0.5e9, 0.8e9, 0.05e9)]


def sums_close(seen: Run) -> None:
    """Assert that jobs, devices and totals tell of the same bytes and joules."""
    jobs, devices = seen.jobs, seen.devices
    for column in ("down_bytes", "up_bytes", "down_j", "compute_j", "up_j"):
        of_jobs = jobs[column].sum()
        of_devices = devices.loc[devices["device"] >= 0, column].sum()
        assert of_devices == pytest.approx(of_jobs, rel=1e-9)
    for name, joules in split_energy(seen).items():
        if name != "energy_total_j":
            assert seen.manifest["totals"][name] == pytest.approx(joules, rel=1e-9), name


@pytest.mark.parametrize(
    ("edge", "cloud"),
    spread(
        [
            (BUFFERED, "sync"),
            ("sync", BUFFERED),
            (BUFFERED, BUFFERED),
            ({"name": "deadline", "deadline": "3 s", "late": "keep"}, {"name": "over_selection", "keep": 1}),
            ({"name": "over_selection", "keep": 1}, {"name": "deadline", "deadline": "4 s"}),
        ],
        2,
    ),
)
def test_any_protocol_over_any_other(edge: Any, cloud: Any) -> None:
    method = "fedasync" if edge is BUFFERED else "fedavg"
    edges = {"protocol": edge, "rounds": 2, "idle": 2.0}
    table = tree(edges, 2, protocol=cloud, fleet=FLEET, stop={"rounds": 4}, method=method)
    seen, again = run(table), run(table, "backend={ name = 'workers', workers = 2 }")
    sums_close(seen)
    assert len(seen.rounds) == 4
    for name in ("jobs", "rounds", "evals", "edges", "devices"):
        same(seen.table(name), again.table(name))
    done = seen.edges[seen.edges["outcome"] == "ok"]
    assert (done["rounds"] == 2).all() and len(done)


def test_an_order_that_is_called_off() -> None:
    """The server waits for the first edge server alone; the other one ends its round before the next order."""
    table = tree({"rounds": 1}, 2, protocol={"name": "over_selection", "keep": 1}, fleet=FLEET, stop={"rounds": 6})
    seen = run(table)
    late = seen.edges[seen.edges["outcome"] == "late"]
    assert len(late) and set(late["edge"]) == {1}
    slow = seen.jobs[seen.jobs["device"] == 3]
    assert (slow["outcome"].iloc[:-1] == "ok").all()
    assert (slow["sent_s"].to_numpy()[1:] >= slow["end_s"].to_numpy()[:-1]).all()
    sums_close(seen)


def test_an_edge_server_whose_devices_have_gone() -> None:
    """It gives up, its order ends, and the others go on; with the last one the run ends."""
    gone = {"name": "lifetime", "leave": {"choice": ["2 s", "5 s"]}}
    seen = run(tree({"protocol": "sync"}, 2, availability=gone, stop={"rounds": 50}, backend="null"))
    assert "no device can take part any more" in seen.manifest["stop_reason"]
    assert "offline" in set(seen.edges["outcome"])


def test_a_restart_of_an_edge_server_loses_what_it_has() -> None:
    """Device 0 delivers at once, device 1 later; in between the edge server restarts."""
    fleet = [{"count": 1, "cpu": {"flops_per_s": speed}} for speed in (1e9, 0.01e9)]
    calm = run(tree({}, 1, fleet=fleet, stop={"rounds": 1}))
    between_s = float(calm.jobs["end_s"].mean())
    failures = {"name": "server_restart", "at": [between_s]}
    seen = run(tree({"failures": failures}, 1, fleet=fleet, stop={"rounds": 1}))
    assert dict(zip(seen.jobs["device"], seen.jobs["outcome"], strict=True)) == {0: "lost", 1: "ok"}
    assert seen.edges["used"].tolist() == [1]


# --- answers ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("above", spread([[], {"servers": 1, "rounds": 2}], 1), ids=["edges", "tiers"])
def test_a_run_is_answered_by_one_before_it(tmp_path: Path, above: Any) -> None:
    """Under other links nothing is trained again, and all is as if it were."""
    first = edgesim.load(tree({"rounds": 2, "above": above}, 2, method="scaffold"))
    faster = {"rounds": 2, "flops_per_s": 1e6, "above": above}
    other = edgesim.load(tree(faster, 2, method="scaffold"), ["network.up=2 Mbit/s"])
    answers = Answers(tmp_path / "kept")
    simulate(first, tmp_path / "first", answers=answers)
    seen = simulate(other, tmp_path / "seen", answers=answers)
    fresh = simulate(other, tmp_path / "fresh")
    assert seen.manifest["known"]["jobs"] == 0 < fresh.manifest["known"]["jobs"]
    for name in ("jobs", "rounds", "evals", "edges", "metrics"):
        same(seen.table(name), fresh.table(name))
    for name, tensor in final(seen).items():
        np.testing.assert_array_equal(tensor, final(fresh)[name])


# --- who hangs where, and who moves -------------------------------------------------------------------------------


def edge_of(table: dict[str, Any]) -> list[int]:
    """Return the edge server of each device of a scenario."""
    found = assemble(edgesim.load(table)).edge_of
    assert found is not None
    return found.tolist()


def test_assignments_on_paper() -> None:
    null: dict[str, Any] = {"backend": "null"}
    assert edge_of(tree({}, 2, **null)) == [0, 0, 1, 1]
    fleet = [{"edge": edge, "cpu": {"flops_per_s": 1e9}} for edge in (1, 0, 1, 1)]
    assert edge_of(tree({"assignment": "column"}, 2, fleet=fleet, **null)) == [1, 0, 1, 1]
    fleet = [{"x": x, "y": 1.0, "cpu": {"flops_per_s": 1e9}} for x in (9.0, 1.0, 4.0, 6.0)]
    nearest = {"assignment": "nearest", "positions": [[0.0, 0.0], [10.0, 0.0]]}
    assert edge_of(tree(nearest, 2, fleet=fleet, **null)) == [1, 0, 0, 1]


def test_balanced_and_mixed_on_paper() -> None:
    # the largest first, each where there is least: 7 | 6, 6+5 | 7+4, 11+3 | 11+2
    assert balanced(np.array([3.0, 7.0, 2.0, 6.0, 5.0, 4.0]), 2).tolist() == [0, 0, 1, 1, 1, 0]
    labels = np.array([[4, 0], [4, 0], [0, 4], [0, 4]])
    mixed = label_mixed(labels, 2)
    assert [labels[mixed == edge].sum(axis=0).tolist() for edge in (0, 1)] == [[4, 4], [4, 4]]


def moving(handover: str, at_s: float, tmp_path: Path) -> Run:
    """Return a run of two rounds in which device 1 moves from edge server 0 to 1."""
    file = tmp_path / "moves.csv"
    file.write_text(f"time,device,edge\n{at_s},1,1\n")
    edges = {"handover": handover, "mobility": {"name": "trace", "file": str(file)}}
    fleet = [{"count": 1, "cpu": {"flops_per_s": speed}} for speed in (1e9, 0.5e9, 1e9, 0.1e9)]
    return run(tree(edges, 2, fleet=fleet))


@pytest.mark.parametrize(
    ("handover", "outcome", "used"), [("old", "ok", [2, 2]), ("new", "ok", [1, 3]), ("lost", "moved", [1, 2])]
)
def test_a_device_that_moves_while_it_computes(handover: str, outcome: str, used: list[int], tmp_path: Path) -> None:
    """Its update goes to the old edge server, or the new one, or is lost; its next job is the new one's."""
    calm = moving("old", 1e6, tmp_path)
    job = calm.jobs[(calm.jobs["device"] == 1) & (calm.jobs["round"] == 0)].iloc[0]
    at_s = job["sent_s"] + job["down_s"] + job["compute_s"] / 2
    seen = moving(handover, at_s, tmp_path)
    mine = seen.jobs[seen.jobs["device"] == 1]
    assert (mine["edge"].tolist(), mine["outcome"].iloc[0]) == ([0, 1], outcome)
    first = seen.edges[seen.edges["round"] == 0].sort_values("edge")
    assert first["used"].tolist() == used
    assert seen.edges[seen.edges["round"] == 1].sort_values("edge")["asked"].tolist() == [1, 3]
    bits = 8.0 * job["down_bytes"]
    if handover == "lost":  # up to the move: the download, and half of the computation
        spent = (at_s, 0.5 * job["compute_s"], 0, 0.5 * job["compute_j"])
        assert tuple(mine[["end_s", "compute_s", "up_bytes", "compute_j"]].iloc[0]) == pytest.approx(spent, rel=1e-12)
    else:
        ends_s = job["sent_s"] + job["down_s"] + job["compute_s"] + LATENCY + bits / UP
        assert mine["end_s"].iloc[0] == pytest.approx(ends_s, rel=1e-12)  # its own access is the slowest link
    sums_close(seen)


@full
def test_devices_that_roam(tmp_path: Path) -> None:
    """They change cells at random, at all moments of a job: bytes and joules close, and runs repeat bit for bit."""
    for handover in ("old", "new", "lost"):
        for protocol in ("sync", BUFFERED):
            edges = {
                "handover": handover, "rounds": 2, "protocol": protocol,
                "mobility": {"name": "markov", "stay": "0.5 s", "roaming": 0.75},
            }  # fmt: skip
            method = "fedasync" if protocol is BUFFERED else "fedavg"
            table = tree(edges, 3, fleet=[*FLEET, *FLEET], stop={"rounds": 6}, method=method)
            seen, again = run(table), run(table)
            sums_close(seen)
            for name in ("jobs", "rounds", "evals", "edges"):
                same(seen.table(name), again.table(name))
            assert handover != "lost" or "moved" in set(seen.jobs["outcome"])


# --- what is refused ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"topology": "star"}, "edges: need topology.name = 'tree' and network.name = 'shared', found topology 'star'"),
        ({"edges": {"rounds": 0}}, "edges.rounds: "),
        ({"edges": {"protocol": "ring"}}, "edges.protocol.name: unknown protocol 'ring'"),
        ({"edges": {"handover": "both"}}, "edges.handover: "),
        ({"edges": {"busy": 1.0, "idle": 2.0, "flops_per_s": 1e9}}, "edges.busy: must be at least idle, 2 W"),
        ({"edges": {"assignment": "nearest"}}, "edges.positions: assignment 'nearest' needs positions"),
        ({"edges": {"positions": [[0.0, 0.0]]}}, "edges.positions: assignment 'nearest' alone takes positions"),
        (
            {"edges": {"assignment": "nearest", "positions": [[0.0, 0.0]]}},
            "edges.positions: must be one for each of 2 edge servers, got 1",
        ),
        ({"edges": {"assignment": "column"}}, "fleet.0.edge: must be an edge server from 0 to 1, got nothing"),
        (
            {"edges": {"protocol": {"name": "over_selection", "keep": 3}}},
            "edges.protocol.keep: must be at most the 2 devices asked a round, found 3",
        ),
        (
            {"edges": {"asked": {"name": "uniform", "count": 3}}},
            "edges.asked.count: must be at most the 2 devices of the fleet, found 3",
        ),
        (
            {"edges": {"failures": {"name": "crash", "mean_time": 1.0}}},
            "edges.failures.0.name: crash has to do with devi",
        ),
        (
            {"topology": {"name": "tree", "edge_servers": 5}},
            "topology.edge_servers: must be at most the 4 devices of the fleet, got 5",
        ),
        (
            {
                "edges": {"assignment": "column"},
                "fleet": [{"count": 4, "edge": 0, "cpu": {"flops_per_s": 1e9}}],
            },
            "edges.assignment: edge server 1 of 2 gets none of the 4 devices",
        ),
        ({"edges": {"rounds": 1001}}, "edges.rounds: must be less than or equal to 1000, got 1001"),
        ({"method": "dpsgd", "peers": "ring"}, "edges: dpsgd works among peers"),
        ({"protocol": "gossip"}, "protocol.name: gossip is for devices that exchange models among themselves, found"),
        ({"edges": {"above": 3}}, "edges.above.0: must be a table, got 3"),
        ({"edges": {"above": {}}}, "edges.above.servers: is missing"),
        ({"edges": {"above": {"servers": 0}}}, "edges.above.servers: must be greater than or equal to 1, got 0"),
        ({"edges": {"above": {"count": 1}}}, "edges.above.count: unknown key"),
        ({"edges": {"above": {"servers": 1, "latency": -1.0}}}, "edges.above.latency: "),
        (
            {"edges": {"above": {"servers": 1, "rounds": 1001}}},
            "edges.above.rounds: must be less than or equal to 1000",
        ),
        (
            {"edges": {"above": {"servers": 3}}},
            "edges.above.0.servers: must be at most the 2 edge servers below, got 3",
        ),
        (
            {"edges": {"above": [{"servers": 1}, {"servers": 2}]}},
            "edges.above.1.servers: must be at most the 1 servers of the tier below, got 2",
        ),
        (
            {"edges": {"above": {"servers": 1, "protocol": {"name": "over_selection", "keep": 3}}}},
            "edges.above.0.protocol.keep: must be at most the 2 devices asked a round, found 3",
        ),
        (
            {"edges": {"above": {"servers": 1, "protocol": "gossip"}}},
            "edges.above.0.protocol.name: gossip is for devices that exchange models among themselves, found edge serv",
        ),
        (
            {"edges": {"above": {"servers": 1, "asked": {"name": "uniform", "count": 2}}}},
            "edges.above.0.asked.count: must be at most the 1 devices of the fleet, found 2",
        ),
        (
            {"edges": {"above": {"servers": 1, "asked": {"name": "oort", "count": 1}}}},
            "edges.above.0.asked.name: oort looks at devices; edge servers have all, uniform, poisson or stratified",
        ),
        (
            {"edges": {"above": {"servers": 1, "failures": {"name": "crash", "mean_time": 1.0}}}},
            "edges.above.0.failures.0.name: crash has to do with devices",
        ),
        (
            {"edges": {"above": {"servers": 1, "flops_per_s": 1e-320}}},
            "edges.above.0.flops_per_s: a merge of an edge server takes inf s",
        ),
        (
            {"edges": {"above": {"servers": 1, "flops_per_s": 1e9, "idle": 2.0, "busy": 1.0}}},
            "edges.above.busy: must be at least idle, 2 W, got 1 W",
        ),
    ],
)
def test_bad_sections_are_refused_in_a_line(changed: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError) as error:
        assemble(edgesim.load(tree({}, 2) | changed))
    line = str(error.value)
    assert line.startswith(says) and "\n" not in line


class Cut(Exception):
    """What cuts a run off."""


@pytest.mark.parametrize(
    "edges",
    thinned(
        [
            {"rounds": 2},
            {"rounds": 2, "protocol": {"name": "buffered", "concurrency": 2, "buffer": 1}},
            {"above": [{"servers": 2, "rounds": 2, "protocol": {"name": "buffered", "concurrency": 1, "buffer": 1}}]},
        ],
        [{"above": [{"servers": 2, "rounds": 2, "protocol": {"name": "buffered", "concurrency": 1, "buffer": 1}}]}],
    ),
    ids=["rounds", "buffered", "tiers"],
)
def test_a_run_that_is_cut_off_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, edges: dict[str, Any]) -> None:
    """It ends as one that was left alone; what was trained before its checkpoint is not trained again."""
    method = "fedbuff" if "protocol" in edges else "fedavg"
    busy = {"flops_per_s": 1e6} | edges
    scenario = edgesim.load(tree(busy, 2, method=method, stop={"rounds": 3}))
    really_run, trained = Trainer.run, list[int]()

    def counted(self: Trainer, given: Any) -> Any:
        if len(trained) == most:
            raise Cut
        trained.append(1)
        return really_run(self, given)

    monkeypatch.setattr(Trainer, "run", counted)
    most = -1
    alone = simulate(scenario, tmp_path / "alone")
    every, most = len(trained), 2 * len(trained) // 3
    trained.clear()
    checkpoint = Checkpoint(tmp_path / "saved", 0.0, {})
    with pytest.raises(Cut):
        simulate(scenario, tmp_path / "run", checkpoint=checkpoint)
    assert checkpoint.file.exists()
    trained.clear()
    most = -1
    run = simulate(scenario, tmp_path / "run", checkpoint=checkpoint)
    assert 0 < len(trained) < every
    for name in ("jobs", "rounds", "evals", "edges", "metrics"):
        pd.testing.assert_frame_equal(getattr(run, name), getattr(alone, name), check_exact=True)
    run_weights, alone_weights = (tmp_path / name / "final.safetensors" for name in ("run", "alone"))
    assert run_weights.read_bytes() == alone_weights.read_bytes()


@pytest.mark.parametrize("rule", spread([{"name": "round_robin", "count": 2}, {"name": "oort", "count": 2}], 1))
def test_rules_that_look_at_devices_choose_for_edge_servers(rule: dict[str, Any]) -> None:
    """With one edge server as without it; with two each chooses among its own devices."""
    flat, below = (run(tree(edges, 1, selection=rule, stop={"rounds": 4})) for edges in (None, {}))
    same(flat.jobs, below.jobs, "edge")
    same(flat.evals, below.evals)
    two = run(tree({"rounds": 2}, 2, selection={**rule, "count": 1}, stop={"rounds": 4}))
    assert (two.jobs["edge"] == two.jobs["device"] // 2).all() and len(two.jobs) == 16
