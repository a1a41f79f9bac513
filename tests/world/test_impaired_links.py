"""Jitter and loss wherever links are: shared, replayed, wireless and among peers, and what they cost."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import simpy
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter
from scipy import stats

from edgesim.core.errors import ConfigError
from edgesim.core.rng import Draws, Key
from edgesim.engine.batteries import FleetBatteries
from edgesim.engine.battery_loads import BatteryLoads
from edgesim.engine.flows import SharedFlows, Transfers
from edgesim.world.contention.network import shared_network
from edgesim.world.fleet import build_fleet
from edgesim.world.links.analytic import Fixed
from edgesim.world.links.shared import Shared
from edgesim.world.links.trace import LinkTrace
from edgesim.world.links.wireless import Wireless
from tests.conftest import frames, simulate_null, timing_scenario
from tests.sizes import examples

KEY = Key(11)
MANY = 40_000
BYTES = 4 * 567_858  # CNN-CIFAR10, one way
BITS = 8 * BYTES
PACKETS = -(-BYTES // 1500)
LINK = {"up": "1 Mbit/s", "down": "4 Mbit/s", "latency": "0.1 s"}
ROUGH = {"jitter": "50 ms", "loss": 0.2}
POWER = {"name": "power", "idle": "2 W", "busy": "5 W", "transmit": "1 W", "receive": "0.5 W"}
TIMES = ["down_s", "compute_s", "up_s", "link_wait_s", "end_s", "down_j", "up_j", "link_j"]


def jobs_of(count: int = 4, **changes: Any) -> Any:
    """Return the jobs of `count` devices that train for 10 s each."""
    fleet = [{"count": count, "cpu": {"flops_per_s": 7.3806e8}}]
    scenario = timing_scenario(**{"energy": POWER, "fleet": fleet, **changes})
    return frames(simulate_null(scenario))["jobs"].sort_values(["round", "device"])


def part(cls: type, **fields: Any) -> Any:
    """Return a part of a scenario."""
    return TypeAdapter(cls).validate_python(fields)


def draws(n: int) -> Draws:
    """Return the draws of the first job of n devices."""
    return Draws(KEY, np.arange(n), np.zeros(n, dtype=np.int64))


# --- shared links -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("discipline", ["fair", "fifo"])
@pytest.mark.parametrize("deadline_s", [None, 3.0, 20.0, 40.0])
def test_without_a_common_bottleneck_they_are_fixed_links(discipline, deadline_s):
    """Every number is that of links of the devices' own, also where a deadline breaks a transfer off."""
    protocol = "sync" if deadline_s is None else {"name": "deadline", "deadline": deadline_s}
    changes = {"protocol": protocol, "stop": {"rounds": 3}}
    link = {**LINK, **ROUGH, "energy_per_bit": "50 nJ/bit"}
    shared = jobs_of(network={"name": "shared", **link, "discipline": discipline}, **changes)
    fixed = jobs_of(network={"name": "fixed", **link}, **changes)
    times = [name for name in TIMES if name != "link_wait_s"]
    assert shared[times].to_numpy() == pytest.approx(fixed[times].to_numpy(), rel=1e-9)
    for name in ("down_bytes", "up_bytes"):  # whole bytes of a broken transfer may differ by rounding
        assert shared[name].tolist() == pytest.approx(fixed[name].tolist(), abs=1)
    assert len(set(fixed["down_s"].round(6))) > 1 or deadline_s == 3.0  # it does vary


def test_what_is_sent_again_takes_the_shared_link_too():
    """Alone below a server of 0.5 Mbit/s: latency and sendings are those of its own link, at the server's rate."""
    limits = {"name": "star", "server_up": "0.5 Mbit/s", "server_down": "0.5 Mbit/s"}
    shared = jobs_of(1, network={"name": "shared", **LINK, **ROUGH}, topology=limits).iloc[0]
    fixed = jobs_of(1, network={"name": "fixed", **LINK, **ROUGH}).iloc[0]
    down_air_s, up_air_s = fixed["down_j"] / 0.5, fixed["up_j"] / 1.0
    assert down_air_s > 1.1 * BITS / 4e6  # 1 / 0.8 on average
    assert shared["down_s"] == pytest.approx(fixed["down_s"] - down_air_s + down_air_s * 4 / 0.5)
    assert shared["up_s"] == pytest.approx(fixed["up_s"] - up_air_s + up_air_s * 1 / 0.5)
    assert shared["up_j"] == pytest.approx(up_air_s * 1 / 0.5)
    assert (shared["down_bytes"], shared["up_bytes"]) == (BYTES, BYTES)


@pytest.mark.parametrize("name", ["fixed", "shared"])
def test_the_mean_of_what_a_transfer_costs_is_that_of_the_formula(name):
    """Air time and radio joules are bits / rate / (1 - loss) on average, and bytes in tables are payload.

    One transfer of N packets varies by sqrt(loss / N) / (1 - loss); 300 of them by a 17th of that.
    """
    loss, count = 0.2, 300
    network = {"name": name, **LINK, "loss": loss, "energy_per_bit": "10 nJ/bit"}
    jobs = jobs_of(count, network=network)
    error = 5 * np.sqrt(loss / PACKETS) / np.sqrt(count)
    assert jobs["up_j"].mean() == pytest.approx(BITS / 1e6 / (1 - loss), rel=error)
    assert jobs["up_s"].mean() == pytest.approx(0.1 + BITS / 1e6 / (1 - loss), rel=error)
    assert jobs["down_j"].mean() == pytest.approx(0.5 * BITS / 4e6 / (1 - loss), rel=error)
    assert set(jobs["up_bytes"]) == set(jobs["down_bytes"]) == {BYTES}
    assert jobs["link_j"].to_numpy() == pytest.approx(10e-9 * 2 * BITS / (1 - loss))  # at its mean
    assert jobs["up_s"].nunique() == count


def test_nothing_given_changes_nothing():
    """Jitter and loss of 0 are the same run bit for bit."""
    for name in ("fixed", "shared"):
        plain = jobs_of(network={"name": name, **LINK})
        zero = jobs_of(network={"name": name, **LINK, "jitter": 0, "loss": 0, "transmit": 0})
        assert zero.equals(plain)


# --- among peers --------------------------------------------------------------------------------------------


def flows_of(link: dict[str, Any]) -> tuple[simpy.Environment, Any, SharedFlows]:
    """Return two devices whose messages go over shared links."""
    scenario = timing_scenario(network={"name": "shared", **link}, fleet=[{"count": 2, "cpu": {"flops_per_s": 1e9}}])
    fleet, env = build_fleet(scenario), simpy.Environment()
    network = shared_network(scenario, fleet)
    assert network is not None
    loads = BatteryLoads(env, FleetBatteries(fleet), lambda device: None)
    return env, fleet, SharedFlows(env, network, Transfers(env, network.links), fleet, KEY, loads, None)


def drawn(fleet: Any, nbytes: float, stream: int) -> tuple[float, float]:
    """Return latency and sendings of a message from device 0 to device 1 on occasion 3, by its own draws."""
    key, latency_s, sendings = KEY.at(stream), 0.0, 1.0
    for end, device, other in ((0, 0, 1), (1, 1, 0)):  # the sender sends up, the receiver gets it down
        ids = np.array([device])
        one = Draws(key.at(end), ids, np.array([3 * 2 + other]))
        latency_s += fleet.delay_s(ids, end == 0, one)[0]
        sendings *= fleet.air_bytes(ids, np.array([nbytes]), end == 0, one)[0] / nbytes
    return latency_s, sendings


@pytest.mark.parametrize("fresh", [False, True])
def test_a_message_crosses_both_ends_and_what_either_loses_is_sent_again(fresh):
    """It takes both latencies, and bits x sendings at the slower rate; broken off, it has moved a share of payload."""
    nbytes, seen = 150_000.0, []
    env, fleet, flows = flows_of({**LINK, **ROUGH})
    latency_s, sendings = drawn(fleet, nbytes, 2 if fresh else 1)
    takes_s = 8 * nbytes * sendings / 1e6
    assert sendings > 1.2  # 1 / 0.8^2 on average

    def start() -> Any:
        if fresh:
            return flows.one(0, 1, nbytes, 3, seen.append)
        return flows.together(np.array([0]), np.array([1]), np.array([nbytes]), 3, seen.append)[0]

    flow = start()
    env.run(until=latency_s + takes_s / 4)
    [so_far] = flows.so_far([flow])
    assert so_far.moved_bytes == pytest.approx(nbytes / 4)
    assert so_far.up_air_s == pytest.approx(takes_s / 4)
    env.run()
    assert seen == [flow]
    assert (flow.ends_s, flow.moved_bytes) == (pytest.approx(latency_s + takes_s), nbytes)
    assert flow.up_air_s == flow.down_air_s == pytest.approx(takes_s)
    again = start()
    env.run(until=env.now + latency_s + takes_s / 2)
    flows.stop([again])
    assert again.moved_bytes == pytest.approx(nbytes / 2)


# --- replayed and wireless links ----------------------------------------------------------------------------


def test_a_trace_of_one_rate_is_a_fixed_link(tmp_path):
    """Same draws, same seconds; a trace waits for the bits sent again at the rates it has then."""
    (tmp_path / "rates.csv").write_text("time_s,up_bps,down_bps\n0,1e6,4e6\n")
    trace = part(LinkTrace, file=tmp_path / "rates.csv", latency="0.1 s", **ROUGH).build(50, KEY, "network")
    fixed = part(Fixed, **LINK, **ROUGH).build(50, KEY, "network")
    nbytes = np.linspace(0, 1e6, 50)
    for up in (True, False):
        of_trace = trace.transfer(np.arange(50), nbytes, up, 7.0, draws(50))
        of_fixed = fixed.transfer(np.arange(50), nbytes, up, 7.0, draws(50))
        assert np.array(of_trace) == pytest.approx(np.array(of_fixed), rel=1e-9)
    (tmp_path / "steps.csv").write_text("time_s,up_bps,down_bps\n0,8,8\n10,80,8\n20,80,8\n")
    steps = part(LinkTrace, file=tmp_path / "steps.csv", loss=0.9, repeat=False).build(1, KEY, "network")
    sendings = steps.sendings(np.array([0]), np.array([30.0]), True, draws(1))[0]
    assert sendings >= 2
    bits = 8 * 30 * sendings  # 80 of them by 10 s, the others at 80 bit/s
    assert steps.transfer(np.array([0]), np.array([30.0]), True, 0.0, draws(1))[0] == pytest.approx(
        10 + (bits - 80) / 80
    )


def test_wireless_jitter_and_loss_have_nothing_to_do_with_fading():
    """Latency follows its own law, air time that of the fading alone times sendings, and neither tells the other."""
    given = {"bandwidth": "1 MHz", "distance_m": 500, "fading": "per_transfer", "latency": "50 ms"}
    plain = part(Wireless, **given).build(MANY, KEY, "network")
    rough = part(Wireless, **given, jitter="20 ms", loss=0.2).build(MANY, KEY, "network")
    rows, nbytes = np.arange(MANY), np.full(MANY, 1500.0 * 100)
    seconds, air_s = rough.transfer(rows, nbytes, True, 0.0, draws(MANY))
    faded_s = plain.transfer(rows, nbytes, True, 0.0, draws(MANY))[1]
    shape = np.sqrt(np.log(1 + 0.4**2))
    law = stats.lognorm(shape, scale=0.05 / np.exp(shape**2 / 2))
    bound = np.sqrt(np.log(2 / 1e-9) / (2 * MANY))  # Dvoretzky-Kiefer-Wolfowitz: wrong once in a billion
    assert stats.kstest(seconds - air_s, law.cdf).statistic < bound
    sendings = air_s / faded_s
    assert sendings.mean() == pytest.approx(1 / 0.8, rel=5 * np.sqrt(0.2 / 100) / np.sqrt(MANY))
    for other in (seconds - air_s, sendings):
        assert abs(stats.spearmanr(other, faded_s).statistic) < 5 / np.sqrt(MANY)


@pytest.mark.parametrize(
    ("cls", "fields"), [(Shared, LINK), (Wireless, {"bandwidth": "1 MHz", "distance_m": 500, "latency": "0.1 s"})]
)
def test_impaired_links_are_not_steady_and_draw_what_a_device_has(cls, fields):
    """A distribution over devices: those that lose nothing are those without loss; impossible values name the key."""
    links = part(cls, **fields, loss={"choice": [0.0, 0.5]}).build(99, KEY, "network")
    assert not links.steady
    again = links.sendings(np.arange(99), np.full(99, 1e6), True, draws(99)) > 1
    assert np.array_equal(again, links.loss > 0)
    assert 0 < again.sum() < 99
    with pytest.raises(ConfigError, match=r"^network\.jitter: needs a latency above 0"):
        part(cls, **{**fields, "latency": 0.0}, jitter="1 ms").build(2, KEY, "network")


# --- radio powers -------------------------------------------------------------------------------------------


def test_the_radio_of_a_link_holds_where_the_energy_model_has_none():
    """3 W while 18 s of bits are sent; a device whose own radio has 1 W keeps it."""
    link = {"name": "fixed", **LINK, "transmit": "3 W", "receive": "2 W"}
    bare = jobs_of(1, network=link, energy="none").iloc[0]
    assert bare["up_j"] == pytest.approx(3 * BITS / 1e6)
    assert bare["down_j"] == pytest.approx(2 * BITS / 4e6)
    own = jobs_of(1, network=link, energy={**POWER, "receive": "0 W"}).iloc[0]
    assert (own["up_j"], own["down_j"]) == (pytest.approx(BITS / 1e6), pytest.approx(2 * BITS / 4e6))


# --- all of it at once --------------------------------------------------------------------------------------


@settings(max_examples=examples(40), deadline=None)
@given(
    seed=st.integers(0, 10_000),
    devices=st.integers(1, 6),
    discipline=st.sampled_from([None, "fair", "fifo"]),
    deadline_s=st.one_of(st.none(), st.floats(1, 300)),
    loss=st.floats(0, 0.6),
    outages=st.booleans(),
)
def test_time_and_joules_add_up(seed, devices, discipline, deadline_s, loss, outages):
    """Random fleets, deadlines and outages: every job ends once, phases fill its time, the ledger closes."""
    network = {"name": "fixed"} if discipline is None else {"name": "shared", "discipline": discipline}
    rates = {"up": {"log_uniform": [1e5, 1e7]}, "down": {"log_uniform": [1e6, 1e7]}}
    scenario = timing_scenario(
        seed=seed,
        fleet=[{"count": devices, "cpu": {"flops_per_s": {"log_uniform": [1e8, 1e10]}}}],
        network={**network, **rates, "latency": "0.1 s", "jitter": "80 ms", "loss": loss, "energy_per_bit": "9 nJ/bit"},
        topology="star" if discipline is None else {"name": "star", "server_up": "3 Mbit/s", "server_down": "2 Mbit/s"},
        failures=[{"name": "link_outage", "up": "9 s", "down": "2 s"}] if outages else [],
        energy=POWER,
        protocol="sync" if deadline_s is None else {"name": "deadline", "deadline": deadline_s},
        stop={"rounds": 2},
    )
    jobs = frames(simulate_null(scenario))["jobs"]  # which checks the ledger
    assert len(jobs) == 2 * devices
    phases_s = jobs[["down_s", "compute_s", "up_s"]].sum(axis=1).to_numpy()
    assert (jobs["end_s"] - jobs["sent_s"]).to_numpy() == pytest.approx(phases_s, rel=1e-9, abs=1e-6)
    assert (jobs["link_wait_s"] >= 0).all()
    done = jobs[jobs["outcome"] == "ok"]
    assert set(done["down_bytes"]) | set(done["up_bytes"]) <= {BYTES}
    carried_j = 9e-9 * 8 * (jobs["down_bytes"] + jobs["up_bytes"]) / (1 - loss)
    assert jobs["link_j"].to_numpy() == pytest.approx(carried_j.to_numpy())
