"""Jobs over links that they share, in the event loop."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgesim.core.errors import ConfigError
from edgesim.core.rng import Draws, Key, Purpose
from edgesim.world.links.wireless import FADING
from edgesim.world.spectrum.allocators import PLUGINS as ALLOCATORS
from tests.conftest import frames, simulate_null, timing_scenario
from tests.sizes import examples, sized

BITS = 8 * 4 * 567_858  # CNN-CIFAR10, one way
ACCESS = {"name": "shared", "up": "1 Mbit/s", "down": "4 Mbit/s", "latency": "0.1 s"}
RADIO = {"name": "wireless", "bandwidth": "1 MHz", "distance_m": 100.0}
POWER = {"name": "power", "idle": "2 W", "busy": "5 W", "transmit": "1 W", "receive": "0.5 W"}
TIMES = ["down_s", "compute_s", "up_s", "link_wait_s", "end_s", "down_j", "up_j"]


def jobs_of(**changes):
    """Return the jobs of a timing-only run, by device."""
    return frames(simulate_null(timing_scenario(energy=POWER, **changes)))["jobs"].sort_values("device")


def equal_devices(count, **changes):
    """Return the jobs of `count` devices that train for 10 s each."""
    return jobs_of(fleet=[{"count": count, "cpu": {"flops_per_s": 7.3806e8}}], **changes)


@pytest.mark.parametrize("discipline", ["fair", "fifo"])
def test_without_a_common_bottleneck_they_are_fixed_links(discipline):
    """A star without a limit at the server: every number is that of links of the devices' own."""
    shared = jobs_of(network={**ACCESS, "discipline": discipline})
    fixed = jobs_of(network={**ACCESS, "name": "fixed"})
    assert shared[TIMES].to_numpy() == pytest.approx(fixed[TIMES].to_numpy(), rel=1e-9)


def test_equal_devices_share_the_server_fairly():
    """Four equal devices below a 2 Mbit/s server: each gets a quarter, both ways; no access link limits them."""
    limits = {"name": "star", "server_up": "2 Mbit/s", "server_down": "2 Mbit/s"}
    jobs = equal_devices(4, network=ACCESS, topology=limits)
    each_s = BITS / (2e6 / 4)
    assert jobs["down_s"].tolist() == pytest.approx([0.1 + each_s] * 4)
    assert jobs["up_s"].tolist() == pytest.approx([0.1 + each_s] * 4)
    assert jobs["link_wait_s"].tolist() == pytest.approx([2 * each_s - BITS / 2e6 - BITS / 1e6] * 4)
    assert jobs["up_j"].tolist() == pytest.approx([1.0 * each_s] * 4)


@pytest.mark.parametrize("network", [{**ACCESS, "name": "fixed"}, "ideal"], ids=["fixed", "ideal"])
def test_links_of_their_own_share_the_link_of_the_server(network):
    """Four equal devices, of which each gets a quarter of 2 Mbit/s: `fixed` links do as `shared` ones."""
    limits = {"name": "star", "server_up": "2 Mbit/s", "server_down": "2 Mbit/s"}
    jobs, latency_s = equal_devices(4, network=network, topology=limits), 0.0 if network == "ideal" else 0.1
    assert jobs["down_s"].tolist() == pytest.approx([latency_s + BITS / (2e6 / 4)] * 4)
    assert jobs["up_s"].tolist() == pytest.approx([latency_s + BITS / (2e6 / 4)] * 4)
    if network != "ideal":
        shared = equal_devices(4, network=ACCESS, topology=limits)
        assert jobs[TIMES].to_numpy().tolist() == shared[TIMES].to_numpy().tolist()


def test_in_order_of_arrival():
    """The same four in a queue: the k-th download ends after k transfers at the server's full 2 Mbit/s."""
    topology = {"name": "star", "server_up": "2 Mbit/s"}
    jobs = equal_devices(4, network={**ACCESS, "discipline": "fifo"}, topology=topology)
    assert jobs["down_s"].tolist() == pytest.approx([0.1 + k * BITS / 2e6 for k in (1, 2, 3, 4)])


def test_a_discipline_from_outside():
    """Links of which half the speed can be had take twice as long, whoever is on them."""
    limits = {"name": "star", "server_up": "2 Mbit/s", "server_down": "2 Mbit/s"}
    half = {"name": "tests.plugins.contention:Derated", "efficiency": 0.5}
    fair, derated = (
        equal_devices(4, network={**ACCESS, "discipline": discipline}, topology=limits)
        for discipline in ({"name": "fair"}, half)
    )
    for way in ("down_s", "up_s"):
        assert (derated[way] - 0.1).to_numpy() == pytest.approx(2 * (fair[way] - 0.1).to_numpy(), rel=1e-12)


@pytest.mark.parametrize(
    ("discipline", "says"),
    [
        ("tests.plugins.contention:NoLinks", "network.discipline.name: tests.plugins.contention:NoLinks.links() must "),
        ("tests.plugins.tariffs:Turns", "discipline.name: tests.plugins.tariffs:Turns must be a dataclass that "),
        ("fairest", "discipline.name: unknown discipline 'fairest'; did you mean 'fair'"),
        ({"name": "fair", "weight": 2}, "unknown key"),
    ],
)
def test_a_discipline_that_is_none(discipline, says):
    """One line that says what was asked for."""
    with pytest.raises(ConfigError) as error:
        jobs_of(network={**ACCESS, "discipline": discipline})
    assert says in str(error.value)
    assert "\n" not in str(error.value)


def test_blocks_share_links_in_one_way():
    """Two disciplines in a fleet are none; the same one, written in two forms, is one."""

    def of(*disciplines):
        return [{"cpu": {"flops_per_s": 1e9}, "network": {**ACCESS, "discipline": each}} for each in disciplines]

    with pytest.raises(ConfigError, match="blocks must all have shared links of one discipline, or none"):
        jobs_of(fleet=of("fair", "fifo"), network=ACCESS)
    assert len(jobs_of(fleet=of("fifo", {"name": "fifo"}), network=ACCESS)) == 2


def test_a_late_starter_slows_the_first():
    """By hand: A (10 s of computing) uploads alone at 1 Mbit/s until B (20 s) comes; then both have half."""
    fleet = [{"cpu": {"flops_per_s": 7.3806e8}}, {"cpu": {"flops_per_s": 3.6903e8}}]
    access = {"name": "shared", "up": "1 Mbit/s", "down": "1 Gbit/s"}
    jobs = jobs_of(fleet=fleet, network=access, topology={"name": "star", "server_down": "1 Mbit/s"})
    down_s = BITS / 1e9
    left_bits = BITS - 1e6 * 10  # of A when B begins, 10 s later
    both_s = left_bits / 0.5e6
    after_bits = BITS - 0.5e6 * both_s  # of B when A is done
    assert jobs["end_s"].tolist() == pytest.approx(
        [down_s + 20 + both_s, down_s + 20 + both_s + after_bits / 1e6], rel=1e-9
    )


@pytest.mark.parametrize("deadline_s", [0.05, 5.0, 20.0, 60.0, 80.0])
def test_a_deadline_charges_what_has_moved(deadline_s):
    """Bytes of an aborted transfer are those of its share of the link; phases fill the time until the deadline."""
    topology = {"name": "star", "server_up": "2 Mbit/s", "server_down": "2 Mbit/s"}
    protocol = {"name": "deadline", "deadline": deadline_s}
    jobs = equal_devices(4, network=ACCESS, topology=topology, protocol=protocol)
    rate = 2e6 / 4
    air_s = BITS / rate
    down_air_s = np.clip(deadline_s - 0.1, 0, air_s)
    up_air_s = np.clip(deadline_s - 0.1 - air_s - 10 - 0.1, 0, air_s)
    assert set(jobs["outcome"]) == {"late"}
    assert jobs["down_bytes"].tolist() == pytest.approx([rate * down_air_s / 8] * 4, abs=1.001)
    assert jobs["up_bytes"].tolist() == pytest.approx([rate * up_air_s / 8] * 4, abs=1.001)
    assert jobs[["down_s", "compute_s", "up_s"]].sum(axis=1).tolist() == pytest.approx([deadline_s] * 4)
    # What they lack, with the links to themselves: 2 and 1 Mbit/s, and latencies of 0.1 s that have passed or have not.
    computed_s = np.clip(deadline_s - 0.1 - air_s, 0, 10)
    lacked_s = (1 - down_air_s / air_s) * BITS / 2e6 + 10 - computed_s + (1 - up_air_s / air_s) * BITS / 1e6
    assert ((jobs["lacked_s"] >= lacked_s - 1e-9) & (jobs["lacked_s"] <= lacked_s + 0.2 + 1e-9)).all()
    assert jobs["down_j"].tolist() == pytest.approx([0.5 * down_air_s] * 4)


@settings(max_examples=examples(40), deadline=None)
@given(
    seed=st.integers(0, 10_000),
    devices=st.integers(1, 9),
    discipline=st.sampled_from(["fair", "fifo"]),
    edge_servers=st.integers(0, 3),
    deadline_s=st.one_of(st.none(), st.floats(1, 300)),
)
def test_time_and_joules_add_up(seed, devices, discipline, edge_servers, deadline_s):
    """Random fleets, trees and deadlines: every job ends once, phases fill its time, the ledger closes."""
    server = {"server_up": "3 Mbit/s", "server_down": "2 Mbit/s"}
    tree = {"name": "tree", "edge_servers": edge_servers, "edge_up": "2 Mbit/s", "edge_down": "4 Mbit/s", **server}
    scenario = timing_scenario(
        seed=seed,
        fleet=[{"count": devices, "cpu": {"flops_per_s": {"log_uniform": [1e8, 1e10]}}}],
        network={
            "name": "shared",
            "up": {"log_uniform": [1e5, 1e7]},
            "down": {"log_uniform": [1e6, 1e7]},
            "latency": {"uniform": [0, 0.2]},
            "discipline": discipline,
        },
        topology=tree if edge_servers else {"name": "star", **server},
        energy=POWER,
        protocol="sync" if deadline_s is None else {"name": "deadline", "deadline": deadline_s},
        stop={"rounds": 3},
    )
    simulation = simulate_null(scenario)  # checks the ledger
    jobs = frames(simulation)["jobs"]
    assert jobs["job"].is_unique
    assert len(jobs) == 3 * devices
    assert not simulation.session.running
    phases_s = jobs[["down_s", "compute_s", "up_s"]].sum(axis=1).to_numpy()
    assert (jobs["end_s"] - jobs["sent_s"]).to_numpy() == pytest.approx(phases_s, rel=1e-9, abs=1e-6)
    assert (jobs["link_wait_s"] >= 0).all()
    done = jobs[jobs["outcome"] == "ok"]
    assert set(done["down_bytes"]) | set(done["up_bytes"]) <= {BITS // 8}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"network": RADIO, "topology": {"name": "star", "server_up": "1 Mbit/s"}},
            "topology.name: links beyond .* constant rates",
        ),
        ({"network": RADIO, "topology": {"name": "ring"}}, "topology.name"),
        (
            {
                "network": ACCESS,
                "fleet": [{"cpu": {"flops_per_s": 1e9}, "network": "ideal"}, {"cpu": {"flops_per_s": 1e9}}],
            },
            "fleet.network: blocks must all",
        ),
        ({"network": ACCESS, "topology": {"name": "random_regular", "degree": 9}}, "topology.degree"),
        ({"network": ACCESS, "topology": {"name": "file", "file": "no_such.csv"}}, "no_such.csv"),
    ],
)
def test_what_does_not_fit_is_refused(changes, message):
    """Links that nobody would use, mixed blocks and impossible graphs are named before the run."""
    with pytest.raises(ConfigError, match=message):
        simulate_null(timing_scenario(**changes))


def test_a_device_without_a_path_is_refused(tmp_path):
    """A file of links that leaves device 4 alone."""
    lines = ["a,b,bps_ab,bps_ba,latency_s", *(f"0,{1 + i},1 Mbit/s,1 Mbit/s,0" for i in range(4))]
    file = tmp_path / "links.csv"
    file.write_text("\n".join(lines))
    with pytest.raises(ConfigError, match=r"topology.*device 4"):
        simulate_null(timing_scenario(network=ACCESS, topology={"name": "file", "file": str(file)}))


# --- cells --------------------------------------------------------------------------------------------------------

ONE = {"count": 1, "cpu": {"flops_per_s": 1e9}}
CELL = {"name": "cell", "bandwidth": "1 MHz", "distance_m": 100.0, "power_control": "target_snr",
        "target_snr_db": 10.0, "efficiency": 0.25}  # fmt: skip


def test_a_cell_of_three_devices():
    """By hand: 10 dB on the whole band is 10 MHz of signal, so a third of it carries 1/3 x log2(31) Mbit/s.

    All end together, so nothing is divided anew. The radio draws what it radiates over its efficiency.
    """
    jobs = equal_devices(3, network=CELL)
    up_s = BITS / (1e6 / 3 * np.log2(1 + 10e6 / (1e6 / 3)))
    down_s = BITS / (1e6 / 3 * np.log2(1 + 10 ** ((46 - 90.5 + 174) / 10) / 1e6))
    assert jobs["down_s"].tolist() == pytest.approx([down_s] * 3, rel=1e-12)
    assert jobs["up_s"].tolist() == pytest.approx([up_s] * 3, rel=1e-12)
    assert jobs["up_j"].tolist() == pytest.approx([1.0 * up_s] * 3, rel=1e-12)  # of the energy model
    radiated_w = 10 * 10**-20.4 * 1e6 * 10**9.05
    own = frames(
        simulate_null(
            timing_scenario(
                energy={"name": "power", "idle": "2 W", "busy": "5 W"},
                fleet=[{"count": 3, "cpu": {"flops_per_s": 7.3806e8}}],
                network=CELL,
            )
        )
    )["jobs"]
    assert own["up_j"].tolist() == pytest.approx([radiated_w / 0.25 * up_s] * 3, rel=1e-12)


def test_three_devices_with_weights_by_hand():
    """Hertz by weights 1, 2, 3 at 100, 200 and 400 m: rates, ends and joules event by event, from when each sends."""
    cell = {"name": "cell", "bandwidth": "1 MHz", "allocator": "weighted", "efficiency": 0.25, "transmit": "0.5 W"}
    places = [(100.0, 1.0, 3e9), (200.0, 2.0, 2e9), (400.0, 3.0, 1e9)]  # metres, weight, FLOP/s
    fleet = [
        {"cpu": {"flops_per_s": speed}, "network": {**cell, "distance_m": metres, "weight": weight}}
        for metres, weight, speed in places
    ]
    energy = {"name": "power", "idle": "2 W", "busy": "5 W"}
    jobs = frames(simulate_null(timing_scenario(fleet=fleet, energy=energy)))["jobs"].sort_values("device")
    loss_db = np.array([128.1 + 37.6 * np.log10(metres / 1000) for metres, _, _ in places])
    snr_hz = 10 ** ((23 - loss_db + 174) / 10)
    weights = np.array([1.0, 2.0, 3.0])
    starts_s = (jobs["down_s"] + jobs["compute_s"]).to_numpy()
    left_bits, ends_s, now_s = np.full(3, float(BITS)), np.zeros(3), 0.0
    while (left_bits > 0).any():
        sending = (starts_s <= now_s) & (left_bits > 0)
        hz = 1e6 * np.where(sending, weights, 0) / max(1.0, weights[sending].sum())
        rate_bps = np.zeros(3)
        rate_bps[sending] = hz[sending] * np.log2(1 + snr_hz[sending] / hz[sending])
        after_s = np.full(3, np.inf)
        after_s[sending] = left_bits[sending] / rate_bps[sending]
        change_s = min([now_s + after_s.min(), *starts_s[starts_s > now_s]])
        done = sending & (now_s + after_s <= change_s)
        left_bits = np.where(done, 0.0, left_bits - rate_bps * (change_s - now_s))
        ends_s[done], now_s = change_s, change_s
    assert jobs["end_s"].tolist() == pytest.approx(ends_s.tolist(), rel=1e-12)
    drawn_w = 0.5 + 10**-0.7 / 0.25
    assert jobs["up_j"].tolist() == pytest.approx((drawn_w * (ends_s - starts_s)).tolist(), rel=1e-12)


def test_a_radio_draws_power_in_its_own_turns():
    """Three devices take turns on 1 Mbit/s x log2(11): a third of the time each, so each radio is on for one third."""
    jobs = equal_devices(3, network={**CELL, "access": "tdma"})
    alone_s = BITS / (1e6 * np.log2(11))
    assert jobs["up_s"].tolist() == pytest.approx([3 * alone_s] * 3, rel=1e-12)
    assert jobs["up_j"].tolist() == pytest.approx([1.0 * alone_s] * 3, rel=1e-12)
    assert jobs["down_j"].tolist() == pytest.approx((0.5 * jobs["down_s"] / 3).tolist(), rel=1e-12)
    down_alone_s = BITS / (1e6 * np.log2(1 + 10 ** ((46 - 90.5 + 174) / 10) / 1e6))
    assert jobs["link_wait_s"].tolist() == pytest.approx([2 * alone_s + 2 * down_alone_s] * 3, rel=1e-9)


def test_a_radio_without_a_block_draws_nothing():
    """One block: each device waits for those before it, and sends and receives for the time that it needs alone."""
    jobs = equal_devices(3, network={**CELL, "access": "ofdma", "blocks": 1})
    alone_s = BITS / (1e6 * np.log2(11))
    assert jobs["up_j"].tolist() == pytest.approx([1.0 * alone_s] * 3, rel=1e-12)
    assert jobs["down_j"].tolist() == pytest.approx([0.5 * jobs["down_s"].min()] * 3, rel=1e-9)


def test_a_battery_lasts_through_the_turns_of_others():
    """60 % of what the radio would draw if it were always on are enough for its own turns, a third of the time."""
    network = {**CELL, "access": "tdma", "transmit": "1 W", "efficiency": None}
    alone_s = BITS / (1e6 * np.log2(11))
    joules = 0.6 * 3 * alone_s
    battery = {"name": "rechargeable", "capacity": joules, "level": 1, "charge": 0, "windows": [[0, 1]]}
    fleet = [{"count": 3, "cpu": {"flops_per_s": 1e12}, "battery": battery}]
    tables = frames(simulate_null(timing_scenario(network=network, fleet=fleet, energy="none", stop={"rounds": 1})))
    assert set(tables["jobs"]["outcome"]) == {"ok"}
    assert tables["jobs"]["up_j"].tolist() == pytest.approx([alone_s] * 3, rel=1e-12)


def test_updates_that_are_lost():
    """At -10 dB with m = 0.1 a share of 1 - exp(-1) is lost, after it was sent; every job costs the same."""
    network = {**CELL, "target_snr_db": -10.0, "waterfall": 0.1, "on_outage": "lose"}
    jobs = jobs_of(fleet=[{"count": 400, "cpu": {"flops_per_s": 7.3806e8}}], network=network)
    assert set(jobs["outcome"]) == {"ok", "outage"}
    assert (jobs["outcome"] == "outage").mean() == pytest.approx(1 - np.exp(-1), abs=0.07)
    for column in ("up_j", "up_bytes", "up_s", "compute_j", "flops"):
        assert jobs[column].nunique() == 1 and jobs[column].iloc[0] > 0, column
    assert jobs["lacked_s"].tolist() == [0.0] * 400


def test_inverted_channels():
    """Power P = min(power, target x noise / gain) with fading; below the cut-off nothing is sent and nothing drawn."""
    network = {**CELL, "power_control": "inversion", "target_snr_db": 25.0, "power": "0.5 mW", "fading": "per_transfer"}
    shown = set()
    for cutoff_db in (None, -93.0):
        given = timing_scenario(
            network=network | ({} if cutoff_db is None else {"cutoff_db": cutoff_db}),
            fleet=[{"count": 40, "cpu": {"flops_per_s": 7.3806e8}}],
            energy={"name": "power", "idle": "2 W", "busy": "5 W"},
        )
        jobs = frames(simulate_null(given))["jobs"].sort_values("device")
        key = Key(1).at(Purpose.CELL)
        fading = FADING["per_transfer"](Draws(key, np.arange(40), np.zeros(40, dtype=np.int64)), True)
        gain = fading * 10**-9.05
        wanted_w = 10**2.5 * 10**-20.4 * 1e6 / gain
        silent = wanted_w > 0.5e-3 if cutoff_db is None else gain < 10 ** (cutoff_db / 10)
        assert (jobs["outcome"] == "outage").tolist() == silent.tolist()
        assert jobs["up_j"][silent].tolist() == jobs["up_bytes"][silent].tolist() == [0.0] * silent.sum()
        radiated_w = np.minimum(wanted_w, 0.5e-3)
        drawn_w = (jobs["up_j"] / jobs["up_s"])[~silent]
        assert drawn_w.tolist() == pytest.approx((radiated_w / 0.25)[~silent].tolist(), rel=1e-9)
        shown |= {(bool(low), bool(most)) for low, most in zip(silent, wanted_w > 0.5e-3, strict=True)}
    assert shown == {(False, False), (True, True), (False, True)}


def random_cell(of):
    """Return a scenario with cells of any access, allocator, fading and power; `of`: draws."""
    access = str(of.choice(["fdma", "ofdma", "tdma", "noma"]))
    network = {
        "name": "cell",
        "bandwidth": float(10 ** of.uniform(5, 7)),
        "access": access,
        "blocks": int(of.integers(1, 20)) if access == "ofdma" else 0,
        "allocator": str(of.choice(list(ALLOCATORS))),
        "weight": {"uniform": [1, 4]},
        "distance_m": {"uniform": [50, 1500]},
        "shadowing_db": float(of.choice([0, 8])),
        "fading": str(of.choice(["none", "per_round", "per_transfer"])),
        "latency": float(of.choice([0, 0.3])),
        "efficiency": float(of.uniform(0.1, 1)),
        "waterfall": float(of.choice([0, 1])),
        "power_control": str(of.choice(["fixed", "target_snr", "inversion"])),
    }
    if network["power_control"] != "fixed":
        network["target_snr_db"] = float(of.uniform(0, 20))
    if network["waterfall"]:
        network["on_outage"] = str(of.choice(["resend", "lose"]))
    tree = {"name": "tree", "edge_servers": 2, "edge_up": "2 Mbit/s", "edge_down": "4 Mbit/s"}
    return timing_scenario(
        seed=int(of.integers(1_000)),
        model="cnn_digits",
        fleet=[{"count": int(of.integers(1, 8)), "cpu": {"flops_per_s": {"log_uniform": [1e7, 1e9]}}}],
        network=network,
        topology=tree if of.random() < 0.3 else "star",
        energy={"name": "power", "idle": "2 W", "busy": "5 W"} if of.random() < 0.5 else POWER,
        failures=[{"name": "link_outage", "up": 20, "down": 2}] if of.random() < 0.3 else [],
        protocol={"name": "deadline", "deadline": float(of.uniform(1, 60))} if of.random() < 0.5 else "sync",
        stop={"rounds": 2},
    )


@pytest.mark.grows
def test_ledgers_of_random_cells_close():
    """Joules of jobs and of idling are those of the ledger; seconds of phases fill a job."""
    of, outcomes = np.random.default_rng(7), set()
    for _ in range(sized(10, 300, 3_000)):
        scenario = random_cell(of)
        simulation = simulate_null(scenario)  # checks the ledger
        jobs, world = frames(simulation)["jobs"], simulation.world
        spent_j = jobs[["down_j", "compute_j", "up_j"]].sum().sum()
        idle_j = 2.0 * len(world.fleet) * world.now_s
        assert world.totals().energy_j == pytest.approx(spent_j + idle_j, rel=1e-9), scenario
        phases_s = jobs[["down_s", "compute_s", "up_s"]].sum(axis=1)
        assert (jobs["end_s"] - jobs["sent_s"]).to_numpy() == pytest.approx(phases_s.to_numpy(), rel=1e-9, abs=1e-6)
        assert (jobs[["down_j", "up_j", "link_wait_s"]] >= -1e-9).all(axis=None), scenario
        assert jobs[jobs["outcome"] == "ok"][["down_bytes", "up_bytes"]].nunique().max() <= 1
        outcomes |= set(jobs["outcome"])
    assert {"ok", "outage", "late"} <= outcomes


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"network": {**CELL, "power_control": "fixed"}}, "network.target_snr_db: must be given with power_control"),
        ({"network": {**CELL, "target_snr_db": None}}, "network.target_snr_db: must be given with power_control"),
        ({"network": {**CELL, "cutoff_db": -90}}, "network.cutoff_db: goes with power_control 'inversion', got"),
        ({"network": {**CELL, "on_outage": "lose"}}, "network.on_outage: 'lose' needs a waterfall above 0"),
        (
            {"network": {**CELL, "on_outage": "lose", "waterfall": 1.0}, "method": "dpsgd", "peers": "ring"},
            "network: on_outage 'lose' needs a server, found peers",
        ),
        ({"network": {**CELL, "blocks": 5}}, "network.blocks: must be above 0 with access 'ofdma' and only there"),
        ({"network": {**CELL, "access": "ofdma"}}, "network.blocks: must be above 0 with access 'ofdma'"),
        ({"network": {**CELL, "allocator": "fair"}}, "unknown allocator 'fair'"),
        ({"network": CELL, "topology": "ring"}, "topology.name: cells need base stations, those of a star or a tree"),
        (
            {"network": CELL, "fleet": [{**ONE, "network": {**CELL, "access": "noma"}}, ONE]},
            "fleet.network: blocks must all be in cells of one band",
        ),
    ],
)  # fmt: skip
def test_cells_that_cannot_be(changes, says):
    with pytest.raises(ConfigError) as refused:
        simulate_null(timing_scenario(**changes))
    assert says in str(refused.value)
