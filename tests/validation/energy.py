"""Frequencies, batteries, radios and ledgers: joules and seconds that a pencil finds too."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

import edgesim
from edgesim.core.rng import Key
from tests.conftest import frames, simulate_null, timing_scenario
from tests.engine.spent import charged_j
from tests.validation.checks import Item, Row, close, exact, explained, within, worst
from tests.validation.work import simulate_work

# --- frequencies --------------------------------------------------------------------------------------------

CYCLES = 6e9  # on each core: 6e9 x 4 FLOPs a cycle x cores


def frequencies() -> list[Row]:
    """Return joules a cycle at fixed frequencies, and the frequencies of least joules."""
    rows = []
    for ghz in (0.5, 1.0, 1.5, 2.0):
        job = _governed({"name": "fixed", "frequency": ghz * 1e9}, cores=3, static=0.0)
        rows.append(close(f"{ghz:g} GHz: seconds of {CYCLES:g} cycles", CYCLES / (ghz * 1e9), job["compute_s"]))
        rows.append(
            close(f"{ghz:g} GHz: J per cycle and core", 1e-27 * (ghz * 1e9) ** 2, job["compute_j"] / CYCLES / 3)
        )
    # (P / (2 kappa))^(1/3): 2 W / 2e-27 gives 1e27, so 1 GHz; 3 cores need 3 times the power for it
    for cores, static_w, hz in ((1, 2.0, 1e9), (3, 6.0, 1e9), (1, 6.75, 1.5e9), (1, 0.0, 0.5e9), (1, 100.0, 2e9)):
        job = _governed("energy_optimal", cores, static_w)
        bound = {0.5e9: " (lower bound)", 2e9: " (upper bound)"}.get(hz, "")
        rows.append(close(f"{cores} cores, {static_w:g} W static: optimal Hz{bound}", hz, CYCLES / job["compute_s"]))
    return rows


def _governed(governor: Any, cores: int, static: float) -> Any:
    cpu = {"frequency": "2 GHz", "min_frequency": "0.5 GHz", "flops_per_cycle": 4, "cores": cores, "governor": governor}
    energy = {"name": "cpu", "capacitance": 1e-27, "static": static}
    return simulate_work([CYCLES * 4 * cores], [0], fleet=[{"cpu": cpu}], energy=energy)[1].iloc[0]


DEADLINE_S = 60.0
JOBS = 100


@dataclass(frozen=True)
class _Cpus:
    """Random CPUs and jobs, float64, shape (JOBS,)."""

    min_hz: np.ndarray
    max_hz: np.ndarray
    cores: np.ndarray
    capacitance: np.ndarray
    static_w: np.ndarray
    cycles: np.ndarray  # on each core
    nbytes: np.ndarray  # each way
    bps: np.ndarray  # each way
    latency_s: np.ndarray

    def joules(self, job: int, hz: Any) -> Any:
        """Return kappa cores C f^2 + P C / f."""
        cycles, kappa = self.cycles[job], self.capacitance[job]
        return kappa * self.cores[job] * cycles * hz**2 + self.static_w[job] * cycles / hz

    @property
    def comm_s(self) -> np.ndarray:
        """Seconds of a job's two transfers."""
        seconds: np.ndarray = 2 * (self.latency_s + 8 * self.nbytes / self.bps)
        return seconds


def _random_cpus() -> _Cpus:
    draw = Key(3).numpy()
    return _Cpus(
        min_hz=draw.uniform(0.3e9, 0.8e9, JOBS),
        max_hz=draw.uniform(1e9, 3e9, JOBS),
        cores=draw.integers(1, 9, JOBS),
        capacitance=10 ** draw.uniform(-29, -26.5, JOBS),
        static_w=draw.uniform(0, 3, JOBS),
        cycles=10 ** draw.uniform(9.5, 11.3, JOBS),
        nbytes=draw.integers(1e5, 3e6, JOBS),
        bps=draw.uniform(1e6, 1e7, JOBS),
        latency_s=draw.uniform(0, 0.5, JOBS),
    )


def just_in_time() -> list[Row]:
    """Return how 100 random jobs that may take 60 s end, and how many more joules they take than they have to."""
    cpus = _random_cpus()
    jobs = simulate_work(
        (cpus.cycles * cpus.cores * 4).tolist(),
        cpus.nbytes.tolist(),
        cpus.nbytes.tolist(),
        fleet=[_block(cpus, job) for job in range(JOBS)],
        protocol={"name": "deadline", "deadline": DEADLINE_S},
    )[1]
    possible = cpus.comm_s + cpus.cycles / cpus.max_hz <= DEADLINE_S
    ok = jobs[jobs["outcome"] == "ok"]
    taken_s = ok[["down_s", "compute_s", "up_s"]].sum(axis=1)
    excess = [_excess(cpus, job, float(ok["compute_j"][job])) for job in ok.index]
    chosen_j = [cpus.joules(job, cpus.cycles[job] / ok["compute_s"][job]) for job in ok.index]
    # who has more time than the optimum (or the lowest frequency) needs does not wait for the deadline
    optimal_hz = np.cbrt(cpus.static_w / (2 * cpus.capacitance * cpus.cores)).clip(cpus.min_hz, cpus.max_hz)
    hurried = possible & (cpus.comm_s + cpus.cycles / optimal_hz > DEADLINE_S)
    return [
        exact("jobs in time, of 100", int(possible.sum()), len(ok)),
        within("seconds that the last of these ends after the deadline", 0, max(0.0, taken_s.max() - DEADLINE_S), 1e-9),
        exact("jobs that end at the deadline, to 1e-9 s", int(hurried.sum()), int((taken_s > DEADLINE_S - 1e-9).sum())),
        worst("joules of the frequency chosen: worst job", chosen_j, ok["compute_j"], 1e-12, relative=True),
        within("share by which a job exceeds the best of 2,001 frequencies", 0, max(0.0, *excess), 1e-12),
    ]


def _block(cpus: _Cpus, job: int) -> dict[str, Any]:
    rate = float(cpus.bps[job])
    return {
        "cpu": {
            "frequency": float(cpus.max_hz[job]),
            "min_frequency": float(cpus.min_hz[job]),
            "cores": int(cpus.cores[job]),
            "flops_per_cycle": 4,
            "governor": "just_in_time",
        },
        "energy": {"name": "cpu", "capacitance": float(cpus.capacitance[job]), "static": float(cpus.static_w[job])},
        "network": {"name": "fixed", "up": rate, "down": rate, "latency": float(cpus.latency_s[job])},
    }


def _excess(cpus: _Cpus, job: int, spent_j: float) -> float:
    """Return by which share of its joules a job exceeds the best frequency of a grid that is in time."""
    grid_hz = np.linspace(cpus.min_hz[job], cpus.max_hz[job], 2001)
    in_time = cpus.comm_s[job] + cpus.cycles[job] / grid_hz <= DEADLINE_S
    return float(spent_j / cpus.joules(job, grid_hz[in_time]).min() - 1)


# --- batteries ----------------------------------------------------------------------------------------------

POWER = {"name": "power", "idle": "2 W", "busy": "5 W", "transmit": "1 W", "receive": "0.5 W"}


def batteries() -> list[Row]:
    """Return a device of 61 J that dies in its upload, charges and works again.

    Download 1 MB at 4 Mbit/s: 2 s of 2.5 W, 5 J; computing: 10 s of 5 W, 50 J; upload at 2 Mbit/s: 4 s of 3 W, of which
    the 6 J left pay 2 s. Off until it has charged to 20 %, 12.2 J, at 8 W from second 100 on: 101.525 s. The second job
    takes 16 s and 67 J.
    """
    battery = {"capacity": "61 J", "charge": "8 W", "windows": [["100 s", "200 s"]]}
    network = {"name": "fixed", "up": "2 Mbit/s", "down": "4 Mbit/s"}
    fleet = [{"cpu": {"flops_per_s": 1.0}, "battery": battery}]
    simulation, jobs = simulate_work(
        [10], [1_000_000], [1_000_000], fleet=fleet, network=network, energy=POWER, stop={"rounds": 2}
    )
    first, second = jobs.iloc[0], jobs.iloc[1]
    spent_j = float(first[["down_j", "compute_j", "up_j"]].sum())
    return [
        exact("first job: outcome", "battery", first["outcome"]),
        close("first job: seconds until the battery is empty", 14, first["end_s"]),
        close("first job: upload, J", 2, first["up_j"]),
        exact("first job: bytes sent", 500_000, int(first["up_bytes"])),
        close("first job and idle power until then, J: the capacity", 61, spent_j + 2 * first["end_s"]),
        close("second job: start, s", 100 + 12.2 / 8, second["sent_s"]),
        exact("second job: outcome", "ok", second["outcome"]),
        close("second job: end, s", 100 + 12.2 / 8 + 16, second["end_s"]),
        close("idle energy, J: none while off", 2 * (14 + 16), simulation.devices()["idle_j"][0]),
        close("the whole run, J", 61 + 67, charged_j(simulation.ledger, simulation.session.now_s)),
    ]


# --- radio --------------------------------------------------------------------------------------------------


def wireless() -> list[Row]:
    """Return rates at three distances, from the seconds of 1 MB each way; 23 dBm up over 1 MHz, 46 dBm down over 2."""
    # dBm received and dBm of noise, -174 per Hz: -174 + 60 over 1 MHz, -174 + 63.0103 over 2 MHz
    distances_m = (100, 500, 1000)
    radio = {"name": "wireless", "bandwidth": "1 MHz", "down_bandwidth": "2 MHz", "power": "23 dBm"}
    fleet = [{"cpu": {"flops_per_s": 1.0}, "network": {**radio, "distance_m": metres}} for metres in distances_m]
    jobs = simulate_work([1] * 3, [1_000_000] * 3, [1_000_000] * 3, fleet=fleet)[1]
    rows = []
    for metres, job in zip(distances_m, jobs.itertuples(), strict=True):
        loss_db = 128.1 + 37.6 * math.log10(metres / 1000)
        for way, dbm, hz, seconds in (("up", 23, 1e6, job.up_s), ("down", 46, 2e6, job.down_s)):
            snr_db = dbm - loss_db - (-174 + 10 * math.log10(hz))
            rate = hz * math.log2(1 + 10 ** (snr_db / 10))
            rows.append(close(f"{metres} m {way}: SNR {snr_db:.2f} dB, bit/s", rate, 8e6 / seconds, 1e-9))
    return rows


# --- schedules ----------------------------------------------------------------------------------------------


def schedule() -> list[Row]:
    """Return joules of two devices, with two rounds of 25.5 s, and with a deadline at which one is still computing.

    A: 0.5 s latency, 2 s down at 0.5 W, 10 s at 5 - 2 W, 0.5 s, 8 s up at 1 W: 21 s, 1 + 30 + 8 J; idle 2 W.
    B: 0.25 s latency, 1 s down at 0.25 W, 20 s at 9 - 1 W, 0.25 s, 4 s up at 2 W: 25.5 s, 0.25 + 160 + 8 J; idle 1 W.
    The server idles at 10 W. At the deadline of 21 s A arrives and B has computed for 21 - 1.25 = 19.75 s.
    """
    whole = {"A": (2, 60, 16, 2 * 51), "B": (0.5, 320, 16, 51), "server": (0, 0, 0, 510)}
    cut = {"A": (1, 30, 8, 2 * 21), "B": (0.25, 8 * 19.75, 0, 21), "server": (0, 0, 0, 210)}
    return [
        *_schedule("two rounds", whole, (283.75, 283.75), stop={"rounds": 2}),
        *_schedule("deadline 21 s", cut, (260.25,), protocol={"name": "deadline", "deadline": 21}),
    ]


def _schedule(name: str, expected: dict[str, Any], rounds_j: tuple[float, ...], **changes: Any) -> Iterator[Row]:
    one = {
        "cpu": {"flops_per_s": 1.0},
        "network": {"name": "fixed", "up": "1 Mbit/s", "down": "4 Mbit/s", "latency": "0.5 s"},
        "energy": POWER,
    }
    other = {
        "cpu": {"flops_per_s": 1.0},
        "network": {"name": "fixed", "up": "2 Mbit/s", "down": "8 Mbit/s", "latency": "0.25 s"},
        "energy": {"name": "power", "idle": "1 W", "busy": "9 W", "transmit": "2 W", "receive": "0.25 W"},
    }
    size = [1_000_000] * 2
    simulation, _ = simulate_work([10, 20], size, size, fleet=[one, other], server={"idle": "10 W"}, **changes)
    devices = simulation.devices()
    for place, (who, joules) in enumerate(expected.items()):
        for column, expected_j in zip(("down_j", "compute_j", "up_j", "idle_j"), joules, strict=True):
            yield within(f"{name}: {who}, {column}", expected_j, devices[column][place], 1e-9)
    rounds = frames(simulation)["rounds"]
    for number, expected_j in enumerate(rounds_j):
        yield within(f"{name}: both devices in round {number}, J", expected_j, rounds["energy_j"][number], 1e-9)


# --- ledger -------------------------------------------------------------------------------------------------

LEDGERS = 60


def ledger() -> list[Row]:
    """Return the largest gap in the ledgers of random scenarios."""
    gaps = [ledger_gap(seed) for seed in range(LEDGERS)]
    return [within(f"largest relative gap of {LEDGERS} random scenarios", 0, max(gaps), 1e-9)]


def ledger_gap(seed: int) -> float:
    """Return by which share joules of jobs + idle differ from those of devices, and these from the running total."""
    simulation = simulate_null(random_scenario(seed))
    jobs, devices, now_s = frames(simulation)["jobs"], simulation.devices(), simulation.session.now_s
    fleet, server = simulation.parts.fleet, simulation.parts.scenario.server
    idle_j = [*simulation.ledger.idle_j(now_s)]
    if all(block.new_batteries is None for block in fleet.blocks):
        idle_j = [*(fleet.idle_w * now_s)]
    expected_j = math.fsum([*jobs[["down_j", "compute_j", "up_j"]].to_numpy().ravel(), *idle_j, server.idle * now_s])
    columns = (devices[name] for name in ("down_j", "compute_j", "up_j", "idle_j"))
    found_j = (math.fsum(np.concatenate([*columns])), charged_j(simulation.ledger, now_s))
    return max(abs(joules - expected_j) / expected_j for joules in found_j)


def random_scenario(seed: int) -> edgesim.Scenario:
    """Return a small timing-only scenario in which links, energies, batteries, slow-downs and protocol are drawn."""
    draw = Key(seed).numpy()

    def one_of(*options: Any) -> Any:
        return options[int(draw.integers(len(options)))]

    rates: dict[str, Any] = {"up": {"log_uniform": [1e5, 1e8]}, "down": {"log_uniform": [1e6, 1e8]}, "latency": 0.1}
    fair, fifo = ({"name": "shared", "discipline": discipline, **rates} for discipline in ("fair", "fifo"))
    noisy = {"name": "fixed", **rates, "jitter": 0.05, "loss": 0.1}
    radio = {"name": "wireless", "bandwidth": 1e6, "distance_m": {"uniform": [50, 500]}, "fading": "per_transfer"}
    network = one_of("ideal", noisy, radio, fair, fifo)
    shared = network in (fair, fifo)
    radios = {"idle": {"uniform": [0.1, 2]}, "transmit": 1.0, "receive": 0.5}
    battery = {"capacity": {"uniform": [20, 400]}, "charge": 9, "windows": [["0 s", "1 h"]], "restart": 0.5}
    block = {
        "count": int(draw.integers(1, 9)),
        "cpu": {"frequency": {"uniform": [1e9, 2e9]}, "flops_per_cycle": 1, "efficiency": {"uniform": [0.1, 1]}},
        **({} if shared else {"battery": one_of(None, battery)}),
    }
    return timing_scenario(
        seed=seed,
        fleet=[block, {**block, "battery": None}],
        network=network,
        topology={"name": "star", "server_up": "3 Mbit/s", "server_down": "2 Mbit/s"} if shared else "star",
        energy=one_of({"name": "power", "busy": 5, **radios}, {"name": "cpu", "static": 0.3, **radios}),
        slowdown=one_of(
            "none", {"name": "log_normal", "sigma": 0.5}, {"name": "markov", "idle": 9, "busy": 9, "factor": 3}
        ),
        selection={"name": "uniform", "fraction": float(draw.uniform(0.2, 1))},
        protocol=one_of("sync", {"name": "deadline", "deadline": float(draw.uniform(1, 60))}),
        server={"idle": 1.0},
        stop={"rounds": 3, "sim_time": float(draw.uniform(5, 500))},
    )


ITEMS = (
    Item(
        "Energy of a frequency",
        "kappa f^2 joules per cycle and core with kappa = 1e-27 J s^2; least joules a cycle, with static power P, at "
        "(P / (2 kappa cores))^(1/3) between 0.5 and 2 GHz",
        frequencies,
    ),
    Item(
        "The deadline with the fewest joules",
        f"{JOBS} random CPUs, jobs and links with a deadline of {DEADLINE_S:g} s, governor `just_in_time`: joules "
        "kappa cores C f^2 + P C / f of each job against those of 2,001 frequencies that are in time",
        just_in_time,
    ),
    Item("A battery that empties in mid-job", explained(batteries), batteries),
    Item(
        "Rates of a wireless link",
        "B log2(1 + SNR) (Shannon) with 128.1 + 37.6 log10(d / km) dB of path loss and -174 dBm/Hz of noise",
        wireless,
    ),
    Item("A schedule of two devices", explained(schedule), schedule),
    Item(
        "The ledger closes",
        "joules of jobs + idle power x time that a device is on = joules of devices = the running total, over random "
        "links, energies, batteries, slow-downs, protocols and ends in mid-round",
        ledger,
    ),
)
