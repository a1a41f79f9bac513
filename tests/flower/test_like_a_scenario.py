"""FedAvg of the same network as a scenario and as a Flower app: the same work takes the same seconds and joules."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from edgesim.config.load import load_scenario
from edgesim.runs.simulate import simulate
from edgesim.runs.simulation import check

APP = Path(__file__).parent / "apps" / "like_a_scenario"
WORLD = {
    "network": {"name": "fixed", "up": "2 Mbit/s", "down": "8 Mbit/s", "latency": "10 ms"},
    "fleet": [{"profile": "raspberry_pi_4", "network": None}, {"profile": "raspberry_pi_5", "network": None}],
}
FRAMING_BYTES = 1_500  # of Flower's records, names and metrics around the numbers, at most


def test_the_same_work_takes_the_same_seconds_and_joules():
    learning = {
        "data": "digits", "partition": "iid", "model": "cnn_digits", "method": "fedavg",
        "training": {"local_epochs": 2, "batch": 16, "lr": 0.1}, "stop": {"rounds": 2},
    }  # fmt: skip
    scenario = load_scenario({**WORLD, **learning, "backend": "null"})
    sizes = check(scenario).setting.samples.tolist()
    app = {"name": "flower", "path": str(APP), "config": {"sizes": ",".join(map(str, sizes))}}
    own, foreign = simulate(scenario).jobs, simulate(load_scenario({**WORLD, "app": app})).jobs
    order = ["round", "device"]
    own, foreign = own.sort_values(order), foreign.sort_values(order)
    np.testing.assert_allclose(foreign.flops, own.flops, rtol=1e-12)
    np.testing.assert_allclose(foreign.compute_s, own.compute_s, rtol=0.01)  # it also loads weights and reads losses
    np.testing.assert_allclose(foreign.compute_j / foreign.flops, own.compute_j / own.flops, rtol=0.01)
    for way, bps in (("down", 8e6), ("up", 2e6)):
        framing = (foreign[f"{way}_bytes"] - own[f"{way}_bytes"]).to_numpy()
        assert (framing > 0).all()
        assert (framing < FRAMING_BYTES).all()
        np.testing.assert_allclose(foreign[f"{way}_s"] - own[f"{way}_s"], 8 * framing / bps, rtol=1e-9)
