"""Small run folders whose numbers are easy to follow by head."""

import numpy as np
import pytest

from tests.records.written import new_tables, write


@pytest.fixture
def fake_run(tmp_path):
    """Return a maker of runs: round r ends at 10 (r + 1) s with 5 (r + 1) J, 100 (r + 1) B up and twice that down.

    Of a round's 5 J, 2 are above idle power and 1 is of devices never asked.
    """

    def make(name="run", accuracies=(0.2, 0.6, 0.5, 0.95), method="fedavg", seed=1, shift=0.0, weights=None, lr=0.1):
        tables = new_tables()
        for r, accuracy in enumerate(accuracies):
            n = r + 1
            jobs = (
                r,
                0,
                r,
                r,
                "train",
                "full",
                10.0 * r,
                2.0,
                5.0,
                3.0,
                0.0,
                0.0,
                10.0 * n,
                "ok",
                0.0,
                1e6,
                200,
                100,
                0,
                1.0,
                2.5,
                1.5,
                0.0,
                0.0,
            )
            tables["jobs"].append(jobs)
            spent, totals = ((1e6 * k, 200 * k, 100 * k, 5.0 * k, 2.0 * k, 3.0 * k, 4.0 * k) for k in (1, n))
            tables["rounds"].append((r, n, 10.0 * r, 10.0 * n, 2, 2, 0, "all", np.inf, 0.0, 0.0, *spent, *totals))
            if accuracy is not None:
                tables["evals"].append((r, n, 10.0 * n, "test", 1.0, accuracy + shift, 50))
                tables["evals"].append((r, n, 10.0 * n, "train", 1.0, 1.0, 50))
        for device, kind in ((-1, "server"), (0, "slow"), (1, "fast"), (2, "fast")):
            tables["devices"].append((device, kind, 1, 4, 4, 8.0, 800, 400, 1.0, 10.0 * (device + 2), 2.0, 0.5, 0.0))
        manifest = {
            "name": "toy",
            "scenario": {
                "seed": seed,
                "method": {"name": method},
                "training": {"lr": lr},
                "evaluation": {"targets": [0.5, 0.99]},
            },
            "status": "finished",
            "stop_reason": "rounds",
            "host_s": 1.25,
            "rounds": len(accuracies),
        }
        return write(tmp_path / name, tables, manifest, weights or {"final": {"w": np.arange(3.0)}})

    return make
