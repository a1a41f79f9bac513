"""A user's own training loop in the place of local SGD: same prices and weights, and one line for each fault."""

from __future__ import annotations

import importlib
import random
import sys
from contextlib import closing

import numpy as np
import pytest
import torch

from edgesim.config.plugins import find, plugins_of
from edgesim.core.errors import EdgesimError
from edgesim.core.method import has_plain_rule
from edgesim.foreign.loops import LoopPrice, fitted
from edgesim.runs.assembly import assemble
from edgesim.runs.cache_identity import facts_of
from tests.conftest import simulate_null
from tests.contracts.support import ARGUMENTS, NORMED, fingerprint, mixed_scenario, results_of, run
from tests.docs.pages import ROOT, blocks_of
from tests.sizes import full

LOOPS = "tests.plugins.loops"
TAKES = {
    *("fedavg", "fedadp", "fedexp", "fedadam", "fedyogi", "fedbuff", "fednova", "hierfavg", "fedmedian", "krum"),
    *("dfedavg", "dp_fedavg", "secure_fedavg", "fedbn", "fedper"),
}


def with_loop(method, loop="plain", **keys):
    """Return the table of a method whose devices train by a loop."""
    return {"name": method, **ARGUMENTS.get(method, {}), "local": f"{LOOPS}:{loop}", **keys}


def tables(simulation):
    """Return the tables of a run without the metrics of its loops."""
    found = {name: table.frame() for name, table in simulation.tables.items()}
    found["metrics"] = found["metrics"][~found["metrics"].name.str.startswith("local_")]
    return {name: frame.to_csv(index=False) for name, frame in found.items()}


@pytest.mark.parametrize(
    ("method", "more"),
    [
        ("fedavg", {"training": {"batch": 16, "lr": 0.1, "local_epochs": 2, "momentum": 0.5}}),
        ("fedavg", {"training": {"batch": 16, "lr": 0.1, "local_steps": 4}}),
        ("fedbuff", {"protocol": {"name": "buffered", "concurrency": 4, "buffer": 2}}),
        ("fedexp", {}),
        ("dfedavg", {}),
        ("fednova", {"model": NORMED, "encoding": {"up": {"sparsify": "top_k", "share": 0.1, "error_feedback": True}}}),
    ],
)
def test_a_loop_like_local_sgd_is_local_sgd(method, more):
    """The same seconds, bytes and joules to the last bit, and weights within 1e-6."""
    own, loop = (run(mixed_scenario(method=table, **more)) for table in (method, with_loop(method)))
    assert tables(own) == tables(loop)
    first, second = (simulation.learner.weights() for simulation in (own, loop))
    for kind, tensors in first.items():
        for name, tensor in tensors.items():
            assert torch.allclose(tensor, second[kind][name], atol=1e-6, rtol=0)


@full
def test_workers_and_serial_agree_whatever_the_loop_leaves_behind():
    """Equal results although the loop draws from every global generator and changes torch's settings."""
    before = (torch.get_num_threads(), torch.get_default_dtype(), torch.is_grad_enabled(), random.getstate())
    numbers = np.random.get_state()[1].copy()  # noqa: NPY002
    serial = results_of(run(mixed_scenario(method=with_loop("fedavg", "loader"))))
    workers = {"name": "workers", "workers": 2}
    with_workers = run(mixed_scenario(method=with_loop("fedavg", "loader"), backend=workers))
    with closing(with_workers.learner.backend):
        assert results_of(with_workers) == serial
    assert before == (torch.get_num_threads(), torch.get_default_dtype(), torch.is_grad_enabled(), random.getstate())
    assert np.array_equal(np.random.get_state()[1], numbers)  # noqa: NPY002


def test_timing_needs_no_training():
    """The null backend gives the seconds and joules of the run that trains."""
    trained = run(mixed_scenario(method=with_loop("fedavg"), evaluation={"every": 2}))
    timed = simulate_null(mixed_scenario(method=with_loop("fedavg"), backend="null"))
    assert timed.tables["jobs"].frame().equals(trained.tables["jobs"].frame())


def test_the_samples_that_a_loop_returns_weigh_its_update():
    """All loops return twice their samples but device 5, whose weight is 0.02 of the others'."""
    simulation = run(mixed_scenario(method=with_loop("fedavg", "weighed"), stop={"rounds": 1}))
    plain = run(mixed_scenario(method="fedavg", stop={"rounds": 1}))
    metrics = simulation.tables["metrics"].frame()
    assert metrics.name.unique().tolist() == ["local_loss", "local_round"]
    assert fingerprint(simulation.learner.weights()) != fingerprint(plain.learner.weights())


@pytest.mark.parametrize(
    ("title", "needs"),
    [("my_lightning.py", "pytorch_lightning"), ("my_hugging_face.py", "transformers")],
)
@full
def test_trainers_of_the_page_cost_what_local_sgd_costs(title, needs, tmp_path, monkeypatch):
    """The loops of docs/howto/own_loop.md run, with the FLOPs of edgesim's own local SGD."""
    pytest.importorskip(needs)
    [block] = [each for each in blocks_of(ROOT / "docs" / "howto" / "own_loop.md") if each.title == title]
    (tmp_path / title).write_text(block.text, encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    method = {"name": "fedavg", "local": f"{title.removesuffix('.py')}:train"}
    loop, own = (run(mixed_scenario(method=each, stop={"rounds": 1})) for each in (method, "fedavg"))
    jobs = [simulation.tables["jobs"].frame() for simulation in (loop, own)]
    assert jobs[0].flops.tolist() == pytest.approx(jobs[1].flops.tolist(), rel=1e-9)
    assert loop.tables["metrics"].frame().name.unique().tolist() == ["local_loss"]


def test_kinds_of_work_are_priced():
    """On a board with seconds for each kind of work a loop with a DataLoader costs what local SGD does.

    It has three operations more a job, which draw the order, beside 21 a step.
    """
    board = {"fleet": [{"count": 2, "profile": "raspberry_pi_5"}], "stop": {"rounds": 1}}
    own, loop = (run(mixed_scenario(method=each, **board)) for each in ("fedavg", with_loop("fedavg", "batches")))
    seconds = [simulation.tables["jobs"].frame().compute_s.tolist() for simulation in (own, loop)]
    assert seconds[1] == pytest.approx(seconds[0], rel=0.05)
    assert all(after >= before for before, after in zip(*seconds, strict=True))


def test_the_code_of_a_loop_is_part_of_the_identity(tmp_path, monkeypatch):
    """Cached answers follow from the module of a loop and from what it imports."""
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)  # bytecode of equal size and second would be taken as current
    (tmp_path / "loop_rates.py").write_text("FACTOR = 1.0\n")
    (tmp_path / "a_loop.py").write_text("import loop_rates\nfrom tests.plugins.loops import plain as train\n")
    scenario = mixed_scenario(method={"name": "fedavg", "local": "a_loop:train"})
    first = facts_of(assemble(scenario))
    assert facts_of(assemble(scenario)) == first
    for name in ("a_loop", "loop_rates"):
        del sys.modules[name]
    (tmp_path / "loop_rates.py").write_text("FACTOR = 2.5\n")
    importlib.invalidate_caches()
    assert facts_of(assemble(mixed_scenario(method={"name": "fedavg", "local": "a_loop:train"}))) != first


def test_methods_that_take_a_loop():
    """Those whose devices train by plain SGD, as their rules say."""
    found = set()
    for name in plugins_of("method"):
        cls, fixed = find("method", name)
        if has_plain_rule(cls(**fixed, **ARGUMENTS.get(name, {}))):
            found.add(name)
    assert found >= TAKES
    assert not found & {"fedprox", "scaffold", "fedasync", "ditto", "moon", "dpsgd", "signsgd", "feddyn", "fedrep"}


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ({"name": "fedprox"}, "method.local: devices of FedProx do not train by plain SGD"),
        ({"name": "heterofl"}, "method.local: devices of HeteroFL do not train by plain SGD"),
        ({"name": "feddrop"}, "method.local: devices of FedDrop do other work than one training of the whole network"),
        ({"name": "krum", "locl": "a:b"}, "method.locl: unknown key; did you mean 'local'? (allowed: "),
        ({"local": "nowhere"}, "method.local: must be package.module:function, got 'nowhere'"),
        ({"local": f"{LOOPS}:missing"}, "method.local: cannot import"),
        ({"local": f"{LOOPS}:LIMIT"}, "must be a function or class, found 3"),
        ({"local": f"{LOOPS}:two"}, "must be a function(model, data, config), found two(model, data)"),
        ({"config": {"lr": 1.0}}, "method.config: lr is an entry that edgesim sets itself"),
        ({"local": f"{LOOPS}:early"}, "tests.plugins.loops:early on device 0 in round 0 did "),
        ({"local": f"{LOOPS}:drops_last"}, "cannot be priced by its samples: it did "),
        ({"local": f"{LOOPS}:in_numpy"}, "did no floating-point operations in torch"),
        ({"local": f"{LOOPS}:fails"}, "fails on device 0 in round 0: ZeroDivisionError: "),
        ({"local": f"{LOOPS}:fails"}, "(loops.py, line "),
        ({"local": f"{LOOPS}:leaves"}, "SystemExit: 3"),
        ({"local": f"{LOOPS}:answers", "config": {"answer": 3}}, "must return a dict such as"),
        ({"local": f"{LOOPS}:answers", "config": {"answer": {"sample": 1}}}, "unknown key 'sample'"),
        ({"local": f"{LOOPS}:answers", "config": {"answer": {"samples": 0}}}, "samples must be a number above 0"),
        (
            {"local": f"{LOOPS}:answers", "config": {"answer": {"samples": "all"}}},
            "samples must be a number, got 'all'",
        ),
        ({"local": f"{LOOPS}:answers", "config": {"answer": {"metrics": {"a": "b"}}}}, "metrics.a must be a number"),
        ({"local": f"{LOOPS}:answers", "config": {"answer": {"metrics": 1}}}, "metrics must be a dict"),
        ({"local": f"{LOOPS}:answers", "config": {"answer": {"steps": 0.5}}}, "steps must be a whole number"),
        ({"local": f"{LOOPS}:reshapes"}, "must not change the architecture: "),
        ({"local": f"{LOOPS}:sets"}, "the config is read-only"),
        ({"local": f"{LOOPS}:early"}, "did it stop early"),
    ],
)
def test_faults_are_one_line(table, words):
    """Each names the key, the function, the device and the round where there are any."""
    method = with_loop("fedavg") | table
    method |= ARGUMENTS.get(method["name"], {})
    with pytest.raises(EdgesimError) as caught:
        run(mixed_scenario(method=method))
    assert words in str(caught.value) and str(caught.value).startswith("method.")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"data": None, "partition": {"name": "sizes", "samples_per_device": 40}, "backend": "null"}, "method.local: "),
        ({"cost": {"name": "measured", "include": "all"}}, "cost: must be 'measured' without other keys"),
        ({"selection": {"name": "oort", "count": 2}}, "selection.name: oort needs losses"),
        ({"failures": {"name": "partial_work", "probability": 0.5}}, "failures.0.name: partial_work ends"),
    ],
)
def test_what_does_not_go_with_a_loop(more, words):
    """Refused before anything is built."""
    with pytest.raises(EdgesimError, match=words):
        run(mixed_scenario(method=with_loop("fedavg"), **more))


def test_a_cohort_says_that_it_trains_one_by_one():
    """Loops cannot be stacked."""
    simulation = run(mixed_scenario(method=with_loop("fedavg"), backend={"name": "cohort", "workers": 1}))
    assert any("a loop of the user's own" in line for line in simulation.learner.backend.warnings)


def test_prices_are_exact():
    """Amounts a job, a sample and a step are found from three calls; none of them where nothing is trained."""
    samples, steps = [32.0, 64.0, 48.0], [1.0, 2.0, 2.0]
    works = [{"flops": 7.0 + 3.0 * n + 5.0 * t} for n, t in zip(samples, steps, strict=True)]
    price = fitted(samples, steps, works, 0)
    assert price == LoopPrice({"flops": (7.0, 3.0, 5.0)})
    assert price.of(np.array([100.0, 0.0]), np.array([4.0, 0.0]))["flops"].tolist() == [327.0, 0.0]
