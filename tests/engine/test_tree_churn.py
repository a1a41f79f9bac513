"""Random edge servers over random devices that come, go, move and break: laws that hold in every such run."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgesim.core.job import Outcome
from tests.engine.spent import charged_j
from tests.engine.test_churn_properties import (
    ALIKE,
    PHASES,
    ROUNDING_S,
    ROUNDS,
    SHARED,
    plugin,
    settings_of,
)
from tests.engine.watched import Watched
from tests.sizes import examples

pytestmark = pytest.mark.usefixtures("few_tries")

LATE: dict[str, list[Any]] = {"late": ["keep", "drop"], "late_weight": [0.5, 0], "minimum": [0, 0, 1]}
TREE: dict[str, list[Any]] = {
    "edge_up": ["40 kbit/s", float("inf")],
    "edge_latency": [0, 0.3],
    "server_down": ["60 kbit/s"],
}


def in_rounds(asked: int) -> st.SearchStrategy[dict[str, Any]]:
    """Return a strategy for protocols of rounds that ask so many."""
    return st.one_of(
        plugin("sync"), plugin("deadline", deadline=[3, 8, 20], **LATE), plugin("over_selection", keep=[1, asked])
    )


def at_top(below: int) -> st.SearchStrategy[dict[str, Any]]:
    """Return a strategy for protocols over so many edge servers, at least."""
    return st.one_of(in_rounds(below), plugin("buffered", concurrency=[below], buffer=[1, below]))


@st.composite
def trees(draw: st.DrawFn) -> dict[str, Any]:
    """Draw a run with one to three edge servers, or with two tiers of servers."""
    given = draw(settings_of(server=True)) | {"network": draw(SHARED)}
    devices = sum(block["count"] for block in given["fleet"])
    servers = draw(st.integers(1, min(3, devices)))
    fewest = devices // servers  # devices of an edge server, at least
    at_edges = st.one_of(in_rounds(fewest), plugin("buffered", concurrency=[1, fewest], buffer=[1, 2]))
    highest = draw(st.one_of(st.just(0), st.integers(1, servers)))  # servers of a tier above; 0: none
    at_cloud = at_top(highest or servers)
    mobility = st.one_of(st.none(), plugin("markov", stay=[5, 30], roaming=[0.5, 1.0]))
    own = {
        "rounds": st.integers(1, 3),
        "protocol": at_edges,
        "handover": st.sampled_from(["old", "new", "lost"]),
        "mobility": mobility,
        "failures": st.lists(plugin("server_restart", mean_time=[10, 40]), max_size=1),
    }
    busy = {"flops_per_s": st.just(5e4), "idle": st.just(1), "busy": st.just(4), "energy_per_bit": st.just(1e-6)}
    edges = draw(st.fixed_dictionaries(own)) | draw(st.sampled_from([{}, busy]).flatmap(st.fixed_dictionaries))
    if edges["mobility"] is None:
        del edges["mobility"]
    if highest:
        tier = {"servers": st.just(highest), "protocol": at_top(servers // highest), "rounds": st.integers(1, 2)}
        links = draw(st.sampled_from([{}, {"up": "40 kbit/s", "latency": 0.3, "energy_per_bit": 1e-6}]))
        edges["above"] = draw(st.fixed_dictionaries(tier)) | links | {"failures": edges["failures"]}
    buffered = edges["protocol"]["name"] == "buffered"
    method = draw(st.sampled_from(["fedasync", "fedbuff"] if buffered else ["fedavg", "fedpmt"]))
    topology = draw(plugin("tree", edge_servers=[servers], **TREE))
    stop = draw(ROUNDS) | {"sim_time": draw(st.sampled_from([20, 60, 400]))}
    return given | {
        "edges": edges, "topology": topology, "method": method, "protocol": draw(at_cloud), "stop": stop,
    }  # fmt: skip


# --- laws --------------------------------------------------------------------------------------------------------


def time_runs_forward(seen: Watched) -> None:
    """Rows are written in the order of time, and the run ended for a reason."""
    for table in (seen.jobs, seen.orders):
        assert table["end_s"].is_monotonic_increasing and (table["sent_s"] <= table["end_s"]).all()
        assert table["end_s"].max() <= seen.end_s or not len(table)
        assert set(table["outcome"]) <= set(get_args(Outcome))
    assert seen.rounds["now_s"].is_monotonic_increasing
    assert seen.simulation.rounds.stop_reason


def one_at_a_time(seen: Watched) -> None:
    """No device has two jobs at once, and no edge server two orders; devices work while they are there."""
    for table, whose, number in ((seen.jobs, "device", "job"), (seen.orders, "edge", "order")):
        assert sorted(table[number]) == list(range(len(table)))
        for _, own in table.sort_values(number).groupby(whose):
            assert (own["sent_s"].to_numpy()[1:] >= own["end_s"].to_numpy()[:-1]).all()
    there = seen.simulation.parts.availability
    ids, sent_s = (seen.jobs[name].to_numpy() for name in ("device", "sent_s"))
    assert (there.on_from_s(ids, sent_s) == sent_s).all()
    assert (seen.jobs["end_s"] <= there.until_s(ids, sent_s) + ROUNDING_S).all()


def seconds_add_up(seen: Watched) -> None:
    """Phases fill the time of a job, and of an order."""
    for table, phases in ((seen.jobs, PHASES), (seen.orders, ["down_s", "work_s", "up_s"])):
        assert (table[[*phases, "link_wait_s"]] >= 0).all(axis=None)
        lasted_s = (table["end_s"] - table["sent_s"]).to_numpy()
        assert table[phases].sum(axis=1).to_numpy() == pytest.approx(lasted_s, abs=ROUNDING_S)
    assert (seen.orders["server_s"] <= seen.orders["work_s"] + ROUNDING_S).all()


def devices_hang_where_they_should(seen: Watched) -> None:
    """Without movements an edge server asks its own devices alone."""
    edge_of = seen.simulation.parts.edge_of
    assert edge_of is not None
    assert seen.jobs["edge"].between(0, seen.given["topology"]["edge_servers"] - 1).all()
    if "mobility" not in seen.given["edges"]:
        assert (seen.jobs["edge"].to_numpy() == edge_of[seen.jobs["device"].to_numpy()]).all()
        assert "moved" not in set(seen.jobs["outcome"])


def orders_keep_their_word(seen: Watched) -> None:
    """One that was done closed its rounds and moved the model both ways; rounds of the server count its jobs."""
    orders, edges = seen.orders, seen.given["edges"]
    done = orders[orders["outcome"] == "ok"]
    given = [edges, *([edges["above"]] if "above" in edges else [])]  # by tier
    for tier, most in enumerate((each["rounds"] for each in given), start=1):
        assert (done.loc[done["tier"] == tier, "rounds"] == most).all()
        assert (orders.loc[orders["tier"] == tier, "rounds"] <= most).all()
    sizes = set(done["down_bytes"]) | set(done["up_bytes"])
    assert len(sizes) <= 1 and (orders[["down_bytes", "up_bytes"]] <= max(sizes, default=np.inf)).all(axis=None)
    assert (orders["used"] + orders["late"] <= orders["asked"]).all()
    per_bit = orders["tier"].map({tier: each.get("energy_per_bit", 0.0) for tier, each in enumerate(given, start=1)})
    joules = 8 * per_bit * (orders["down_bytes"] + orders["up_bytes"])
    assert orders["link_j"].to_numpy() == pytest.approx(joules.to_numpy(), rel=1e-9)
    assert (seen.rounds["used"] <= seen.rounds["asked"]).all()
    assert seen.rounds["asked"].sum() <= orders["asked"].sum()


def bytes_and_joules_add_up(seen: Watched) -> None:
    """What devices, edge servers and server have spent is what jobs and orders did, and idle power."""
    jobs, every, ledger = seen.jobs, seen.tables["devices"], seen.simulation.ledger
    devices = every[every["device"] >= 0]
    for column in ("down_bytes", "up_bytes"):
        assert devices[column].sum() == jobs[column].sum()
    for column in ("down_j", "compute_j", "up_j"):
        assert devices[column].sum() == pytest.approx(jobs[column].sum(), rel=1e-9, abs=1e-12)
    total_j = every[["down_j", "compute_j", "up_j", "idle_j", "sleep_j"]].to_numpy().sum()
    total_j += jobs["link_j"].sum() + seen.orders["link_j"].sum()
    assert charged_j(ledger, seen.end_s) == pytest.approx(total_j, rel=1e-9)
    of_edges = every[every["kind"] == "edge"]
    assert len(of_edges) == seen.given["topology"]["edge_servers"]
    idle_w, busy_w = (seen.given["edges"].get(key, 0.0) for key in ("idle", "busy"))
    assert of_edges["idle_j"].to_numpy() == pytest.approx(idle_w * seen.end_s)
    assert of_edges["compute_j"].to_numpy() == pytest.approx((busy_w - idle_w) * of_edges["busy_s"].to_numpy())
    of_tiers = every[every["device"] < -1]
    assert len(of_tiers) == len(of_edges) + seen.given["edges"].get("above", {}).get("servers", 0)
    assert of_tiers["busy_s"].sum() >= seen.orders["server_s"].sum() - ROUNDING_S


LAWS = (
    time_runs_forward,
    one_at_a_time,
    seconds_add_up,
    devices_hang_where_they_should,
    orders_keep_their_word,
    bytes_and_joules_add_up,
)


@settings(ALIKE, max_examples=examples(500, short=6))
@given(given=trees())
def test_laws_of_trees(given: Mapping[str, Any], trace: Path) -> None:
    """Every law holds, and a second run is the same to the last bit."""
    seen, again = Watched(given, trace), Watched(given, trace)
    for law in LAWS:
        law(seen)
    for name, table in seen.tables.items():
        pd.testing.assert_frame_equal(table, again.tables[name], check_exact=True)
