"""How devices get the frozen parameters of their network: before the run, or with their first download."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import edgesim
from edgesim.core.errors import ConfigError
from edgesim.execution.backends.null import NullBackend
from edgesim.runs.simulation import Silent, Simulation
from edgesim.runs.training import assemble_all
from tests.conftest import frames, simulate_null
from tests.engine.trees import run, tree

HEAD = "tests.plugins.own_networks:HeadOnly"
MODEL_BYTES, BASE_BYTES = 4 * (4 * 36 * 10 + 10), 4 * (4 * 9 + 4)  # what trains, and the frozen convolution
FIRST_BYTES = MODEL_BYTES + BASE_BYTES


def scenario(base: str = "once", **changes: Any) -> edgesim.Scenario:
    """Return a timing-only scenario of three devices whose links carry 1,000 bytes a second."""
    table: dict[str, Any] = {
        "seed": 1,
        "data": {"name": "digits", "train_limit": 60},
        "partition": "iid",
        "model": HEAD,
        "training": {"batch": 10, "lr": 0.1},
        "network": {"name": "fixed", "up": "8 kbit/s", "down": "8 kbit/s"},
        "energy": {"name": "power", "idle": "1 W", "busy": "4 W", "receive": "2 W"},
        "method": "fedavg",
        "backend": "null",
        "encoding": {"base": base},
        "stop": {"rounds": 3},
        "fleet": [{"count": 3, "cpu": {"flops_per_s": 1e9}}],
    }
    return edgesim.load({**table, **changes})


def jobs(base: str = "once", **changes: Any) -> pd.DataFrame:
    """Return the jobs of a timing-only run, in the order in which they were sent."""
    found: pd.DataFrame = frames(simulate_null(scenario(base, **changes)))["jobs"]
    return found.sort_values(["sent_s", "device"])


def check_once(found: pd.DataFrame) -> None:
    """Check the bytes of each device's downloads: with the base up to the first whole one, without it afterwards."""
    for _, own in found.groupby("device"):
        whole = FIRST_BYTES
        for nbytes, outcome in zip(own["down_bytes"], own["outcome"], strict=True):
            assert nbytes == whole or (nbytes < whole and outcome != "ok")
            whole = MODEL_BYTES if nbytes == whole else whole
    assert (found["up_bytes"] <= MODEL_BYTES).all()  # the base never comes back


def test_the_first_download_of_each_device_brings_the_base_in_bytes_seconds_and_joules() -> None:
    found = jobs()
    first, later = found[found["round"] == 0], found[found["round"] > 0]
    assert (first["down_bytes"] == FIRST_BYTES).all() and (later["down_bytes"] == MODEL_BYTES).all()
    assert first["down_s"].tolist() == pytest.approx([FIRST_BYTES / 1000] * 3)
    assert later["down_s"].tolist() == pytest.approx([MODEL_BYTES / 1000] * 6)
    assert first["down_j"].tolist() == pytest.approx([2.0 * FIRST_BYTES / 1000] * 3)
    assert (found["up_bytes"] == MODEL_BYTES).all()


def test_preloaded_devices_never_download_it() -> None:
    assert (jobs("preloaded")["down_bytes"] == MODEL_BYTES).all()


def test_bytes_are_those_of_the_types_of_the_base() -> None:
    found = jobs(model={"name": HEAD, "numbers": "bfloat16"})
    assert found["down_bytes"].tolist() == [MODEL_BYTES + 2 * 40] * 3 + [MODEL_BYTES] * 6


def test_who_breaks_off_the_first_download_pays_again_and_who_returns_later_does_not(tmp_path: Path) -> None:
    """Device 0 goes after 2 s of its download, and after 8 s of its second job, whose download is through."""
    trace = tmp_path / "there.csv"
    trace.write_text("device,start,end\n0,0,2\n0,3,20\n0,25,1000\n1,0,1000\n2,0,1000\n")
    found = jobs(
        availability={"name": "trace", "file": str(trace)},
        stop={"rounds": 6},
    )
    own = found[found["device"] == 0]
    assert own["down_bytes"].tolist()[:2] == [2000, FIRST_BYTES]
    assert own["outcome"].tolist()[0] == "offline" and "offline" in own["outcome"].tolist()[1:]
    assert (own["down_bytes"].iloc[2:] <= MODEL_BYTES).all() and MODEL_BYTES in own["down_bytes"].tolist()
    check_once(found)


@pytest.mark.parametrize(
    "changes",
    [
        {"network": {"name": "shared", "up": "8 kbit/s", "down": "8 kbit/s"}},
        {"protocol": {"name": "buffered", "concurrency": 2, "buffer": 1}, "method": "fedasync", "stop": {"rounds": 8}},
        {"protocol": {"name": "deadline", "deadline": "14 s"}, "stop": {"rounds": 8}},
        {"availability": {"name": "sessions", "on": "9 s", "off": "5 s"}, "stop": {"rounds": 12}},
        {"failures": {"name": "crash", "probability": 0.5}, "stop": {"rounds": 8}},
    ],
    ids=["shared links", "buffered", "deadline", "churn", "crashes"],
)
def test_every_device_gets_it_once(changes: dict[str, Any]) -> None:
    check_once(jobs(**changes))


def test_each_session_has_a_base_of_its_own() -> None:
    sessions = [{"name": "a"}, {"name": "b", "encoding": {"base": "preloaded"}}, {"name": "c", "start": "1 s"}]
    first, *more = assemble_all(scenario(session=sessions))
    simulation = Simulation(first, NullBackend(), Silent(), others=[(parts, NullBackend()) for parts in more])
    simulation.run()
    a, b, c = (training.tables["jobs"].frame().sort_values("sent_s") for training in simulation.trainings)
    for found in a, c:
        check_once(found)
        assert (found.groupby("device")["down_bytes"].max() == FIRST_BYTES).all()
    assert (b["down_bytes"] <= MODEL_BYTES).all()


def test_edge_servers_get_it_once_and_hand_it_on() -> None:
    found = run(tree({"rounds": 2}, 2, model=HEAD, encoding={"base": "once"}, stop={"rounds": 3}))
    check_once(found.jobs.sort_values("sent_s"))
    assert (found.jobs.groupby("device")["down_bytes"].max() == FIRST_BYTES).all()
    orders = found.edges.sort_values("sent_s")
    for _, own in orders.groupby("edge"):
        assert own["down_bytes"].tolist() == [FIRST_BYTES, MODEL_BYTES, MODEL_BYTES]


def test_peers_have_no_server_that_sends_it() -> None:
    with pytest.raises(ConfigError, match=r"encoding\.base: 'once' needs a server"):
        jobs(method="dpsgd", peers="ring")
