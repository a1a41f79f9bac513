"""Random peers on their own clocks that come, go and break: laws that hold in every such run."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_args

import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgesim.core.job import Outcome
from tests.engine.spent import charged_j
from tests.engine.test_churn_properties import ALIKE, FAILURE, PHASES, ROUNDING_S, plugin, settings_of
from tests.engine.watched import Watched
from tests.sizes import examples

pytestmark = pytest.mark.usefixtures("few_tries")


@st.composite
def gossips(draw: st.DrawFn) -> dict[str, Any]:
    """Draw a run without a server in which each device goes on as soon as it is done."""
    given = draw(settings_of(server=False))
    given["failures"] = draw(st.lists(FAILURE, max_size=2))
    stop = {"rounds": draw(st.integers(1, 5)), "sim_time": draw(st.sampled_from([20, 60, 400]))}
    own = {
        "peers": st.one_of(plugin("ring"), plugin("full"), plugin("gossip_match", mode=["pair"])),
        "method": st.sampled_from(["adpsgd", "aedfl"]),
        "protocol": st.one_of(plugin("gossip"), plugin("gossip", every=[1, 3])),
    }
    return given | draw(st.fixed_dictionaries(own)) | {"stop": stop}


# --- laws --------------------------------------------------------------------------------------------------------


def time_runs_forward(seen: Watched) -> None:
    """Jobs are written as they end, one of a device after the other, while it is there."""
    jobs = seen.jobs
    assert jobs["end_s"].is_monotonic_increasing and (jobs["sent_s"] <= jobs["end_s"]).all()
    assert sorted(jobs["job"]) == list(range(len(jobs)))
    assert set(jobs["outcome"]) <= set(get_args(Outcome))
    for _, own in jobs.sort_values("job").groupby("device"):
        assert (own["sent_s"].to_numpy()[1:] >= own["end_s"].to_numpy()[:-1]).all()
    there = seen.simulation.parts.availability
    ids, sent_s = (jobs[name].to_numpy() for name in ("device", "sent_s"))
    assert (there.on_from_s(ids, sent_s) == sent_s).all()
    assert (jobs["end_s"] <= there.until_s(ids, sent_s) + ROUNDING_S).all()


def seconds_add_up(seen: Watched) -> None:
    """Phases and waits fill the time of a job."""
    jobs = seen.jobs
    assert (jobs[[*PHASES, "link_wait_s"]] >= 0).all(axis=None)
    lasted_s = (jobs["end_s"] - jobs["sent_s"]).to_numpy()
    assert jobs[PHASES].sum(axis=1).to_numpy() == pytest.approx(lasted_s, abs=ROUNDING_S)


def bytes_and_joules_add_up(seen: Watched) -> None:
    """What one device sends another receives, and devices, network and idle power are all that was spent."""
    every = seen.tables["devices"]
    assert every["down_bytes"].sum() == every["up_bytes"].sum()
    total_j = every[["down_j", "compute_j", "up_j", "idle_j", "sleep_j"]].to_numpy().sum() + seen.jobs["link_j"].sum()
    assert charged_j(seen.simulation.ledger, seen.end_s) == pytest.approx(total_j, rel=1e-9)
    rounds = seen.rounds
    assert (rounds["energy_j"] >= -1e-9 * total_j).all()  # a difference of sums, as rounding leaves it
    assert rounds["total_energy_j"].max() <= total_j * (1 + 1e-9) or not len(rounds)


@settings(ALIKE, max_examples=examples(250, short=6))
@given(given=gossips())
def test_laws_of_gossip(given: Mapping[str, Any], trace: Path) -> None:
    """Every law holds, and a second run is the same to the last bit."""
    seen, again = Watched(given, trace), Watched(given, trace)
    for law in (time_runs_forward, seconds_add_up, bytes_and_joules_add_up):
        law(seen)
    for name, table in seen.tables.items():
        pd.testing.assert_frame_equal(table, again.tables[name], check_exact=True)
