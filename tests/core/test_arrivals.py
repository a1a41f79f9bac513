"""Samples that arrive while a run goes on: how many a job has, what it costs, and what it learns."""

from __future__ import annotations

import numpy as np
import pytest
import safetensors.torch
import torch
import torch.nn.functional as F

import edgesim
from edgesim.core.arrivals import Arrivals
from edgesim.core.errors import ConfigError
from edgesim.runs.assembly import assemble
from tests.conftest import digits_scenario, frames, simulate_null, timing_scenario
from tests.sizes import full


def test_counts_by_hand():
    arrivals = Arrivals([np.array([0.0, 2.0, 2.0, 5.0]), np.array([0.0]), np.array([])])
    ids = np.array([1, 0, 2, 0])
    assert [arrivals.held(ids, now_s).tolist() for now_s in (0.0, 2.0, 9.0)] == [
        [1, 1, 0, 1],
        [1, 3, 0, 3],
        [1, 4, 0, 4],
    ]


def test_a_job_costs_what_it_trains_with():
    """Twice the FLOPs for twice the samples; from `over` on a device has all, as if nothing had arrived late."""
    given = {"protocol": "sync", "stop": {"rounds": 6}, "fleet": [{"count": 3, "cpu": {"flops_per_s": 1e10}}]}
    late = timing_scenario(arrival={"over": "40 s", "start": 0.1}, **given)
    jobs, usual = frames(simulate_null(late))["jobs"], frames(simulate_null(timing_scenario(**given)))["jobs"]
    arrivals = assemble(late).setting.arrivals
    held = [arrivals.held(np.array([d]), t)[0] for d, t in zip(jobs["device"], jobs["sent_s"], strict=True)]
    assert held[:3] == [50, 50, 50] and 50 < held[5] < 500
    steps = np.ceil(np.array(held) / 20)  # the optimiser's share follows steps
    a_sample, a_step = np.linalg.lstsq(np.stack([held, steps], axis=1), jobs["flops"], rcond=None)[0]
    assert jobs["flops"].to_numpy() == pytest.approx(a_sample * np.array(held) + a_step * steps, rel=1e-9)
    assert usual["flops"].iloc[0] == pytest.approx(500 * a_sample + 25 * a_step, rel=1e-6)


def test_classes_appear_one_after_another():
    """No sample of class k before k times the interval, but for the first of a device."""
    parts = assemble(digits_scenario(arrival={"over": "1 s", "class_every": "10 s"}))
    labels = parts.data.labels("train")
    for rows, at_s in zip(parts.split.train, parts.setting.arrivals.at_s, strict=True):
        assert (np.diff(at_s) >= 0).all() and at_s[0] == 0.0
        assert (at_s[1:] >= 10 * labels[rows][1:]).all()
        assert (at_s <= np.maximum(1, 10 * labels[rows])).all()
    usual = assemble(digits_scenario())
    for rows, before in zip(parts.split.train, usual.split.train, strict=True):
        assert sorted(rows.tolist()) == sorted(before.tolist())


def test_a_device_has_arrivals_of_its_own():
    """More devices leave the arrivals of the first ones as they were."""
    few, many = (
        assemble(timing_scenario(arrival={"over": 9}, fleet=[{"count": n, "cpu": {"flops_per_s": 1e9}}]))
        for n in (2, 5)
    )
    for a, b in zip(few.setting.arrivals.at_s, many.setting.arrivals.at_s, strict=False):
        assert a.tolist() == b.tolist()


def test_training_uses_what_has_arrived(tmp_path):
    """Early rounds learn from less, at fewer FLOPs; once all has arrived a job costs as much as without arrivals."""
    late, usual = (
        edgesim.run(digits_scenario(**own, **{"stop": {"rounds": 8}}), out=tmp_path / name)
        for name, own in (("late", {"arrival": {"over": "0.5 s", "class_every": "50 ms"}}), ("usual", {}))
    )
    assert late.evals["accuracy"].iloc[0] < usual.evals["accuracy"].iloc[0]
    of_device = usual.jobs.groupby("device")["flops"].max()
    for job in late.jobs.itertuples():
        assert job.flops <= of_device.get(job.device, np.inf)
        if job.sent_s > 0.5 and job.device in of_device:
            assert job.flops == of_device[job.device]
    assert (late.jobs["sent_s"] > 0.5).any()


def test_current_data_by_hand(tmp_path):
    """The last model on the test samples of the classes that have appeared, against a forward pass in plain torch."""
    arrival = {"over": "1 ms", "class_every": "0.5 s"}
    scenario = digits_scenario(
        arrival=arrival, evaluation={"current": True, "every": 2}, stop={"rounds": 4}, weights="final"
    )
    run = edgesim.run(scenario, out=tmp_path / "run")
    assembled = assemble(scenario)
    x, labels = assembled.data.batch("test", torch.arange(len(assembled.data.labels("test"))))
    pairs = zip(assembled.split.train, assembled.setting.arrivals.at_s, strict=True)
    end_s = run.evals["now_s"].iloc[-1]
    seen = np.unique(np.concatenate([assembled.data.labels("train")[rows[at_s <= end_s]] for rows, at_s in pairs]))
    assert 1 < len(seen) < 10
    module = assembled.network.module
    module.load_state_dict(safetensors.torch.load_file(tmp_path / "run" / "final.safetensors"))
    of_seen = torch.isin(labels, torch.from_numpy(seen))
    with torch.no_grad():
        logits = module.eval()(x[of_seen])
    current = run.evals[run.evals["split"] == "current"]
    assert current["round"].tolist() == run.evals[run.evals["split"] == "test"]["round"].tolist()
    assert current["samples"].iloc[-1] == of_seen.sum()
    assert current["accuracy"].iloc[-1] == pytest.approx((logits.argmax(1) == labels[of_seen]).double().mean().item())
    assert current["loss"].iloc[-1] == pytest.approx(F.cross_entropy(logits, labels[of_seen]).item(), rel=1e-5)


@full
@pytest.mark.workers
@pytest.mark.parametrize("backend", [{"name": "workers", "workers": 2}, {"name": "cohort"}], ids=lambda b: b["name"])
def test_backends_agree(backend, tmp_path):
    """Tables are the same; what cohort learns is the same within rounding."""
    runs = [
        edgesim.run(
            digits_scenario(
                arrival={"over": "0.5 s", "class_every": "90 ms"}, evaluation={"current": True}, backend=each
            ),
            out=tmp_path / each["name"],
        )
        for each in ({"name": "serial"}, backend)
    ]
    assert runs[0].jobs.to_csv() == runs[1].jobs.to_csv()
    assert runs[0].evals["loss"].tolist() == pytest.approx(runs[1].evals["loss"].tolist(), rel=1e-4)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"method": "dpsgd", "peers": "ring"}, "arrival: does not go with peers; leave one of both out"),
        (
            {"arrival": {"over": "1 h", "class_every": "1 h"}},
            "arrival.class_every: needs samples with classes",
        ),
        ({"arrival": {"start": 0.5}}, "arrival.over"),
        (
            {"evaluation": {"current": True}},
            "evaluation.current: needs classes that appear one after another; set arrival.",
        ),
        ({"method": "fedl"}, "arrival: the method computes on a number of samples that it sets itself"),
    ],
)
def test_arrivals_that_cannot_be(changes, says):
    with pytest.raises(ConfigError) as refused:
        simulate_null(timing_scenario(**{"arrival": {"over": "1 h"}, **changes}))
    assert says in str(refused.value) and "\n" not in str(refused.value)
