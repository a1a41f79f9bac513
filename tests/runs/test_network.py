"""Several networks in one run: each device trains, sends and is charged for its own."""

from __future__ import annotations

import resource

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import Tensor, nn

from edgesim.config.plugin_fields import PartOf
from edgesim.core.errors import ConfigError
from edgesim.core.networks import as_part, joined, labels_of, part_of
from edgesim.core.rng import Key
from edgesim.core.task import Submodel
from edgesim.runs.assembly import assemble
from edgesim.runs.cache_identity import facts_of
from edgesim.runs.network import network_of
from tests.conftest import digits_scenario, simulate_null
from tests.contracts.support import merge_arguments, prepare, results_of, run
from tests.sizes import full

FIRST, SECOND = "cnn_digits", "mlr"
SPEED = {"flops_per_s": "50 MFLOP/s"}


def blocks(*models, **more):
    """Return a fleet of three devices with each of these models; None: that of the scenario."""
    return [{"count": 3, "cpu": SPEED, **({} if model is None else {"model": model}), **more} for model in models]


def scenario_of(*models, **changes):
    """Return a scenario on digits with six devices of unequal data, which all are asked."""
    base = {"selection": "all", "fleet": blocks(*models), "partition": {"name": "dirichlet_label", "beta": 1.0}}
    return digits_scenario(**{**base, "stop": {"rounds": 2}, **changes})


BOTH = (None, SECOND)


def test_each_network_is_averaged_over_the_devices_that_have_it():
    """What devices send is what they send in a run where all have their network; means by data size in NumPy."""
    merged = run(scenario_of(*BOTH, stop={"rounds": 1})).learner.weights()
    for place, model in enumerate((FIRST, SECOND)):
        updates = [u for u in merge_arguments(prepare(scenario_of(model, model)))[2] if u.device // 3 == place]
        sizes = np.array([u.samples for u in updates], dtype=float)
        own = part_of(merged, model)["params"]
        assert own.keys() == updates[0].body["params"].keys()
        for name, value in own.items():
            mean = np.average([u.body["params"][name].numpy() for u in updates], axis=0, weights=sizes)
            assert np.allclose(value.numpy(), mean, atol=1e-6)


def test_jobs_cost_what_they_cost_where_all_have_that_network():
    """Seconds, FLOPs, bytes, joules and memory of every device, with and without training; so does averaging."""
    columns = ["compute_s", "up_s", "down_s", "flops", "up_bytes", "down_bytes", "compute_j"]
    together, *alone = (
        run(scenario_of(*models)).tables["jobs"].frame().set_index(["round", "device"])
        for models in (BOTH, (FIRST, FIRST), (SECOND, SECOND))
    )
    for place, jobs in enumerate(alone):
        ours = [index for index in jobs.index if index[1] // 3 == place]
        assert together.loc[ours, columns].equals(jobs.loc[ours, columns])
    assert together["flops"].nunique() > 2
    null = simulate_null(scenario_of(*BOTH, backend="null")).tables["jobs"].frame().set_index(["round", "device"])
    assert null[columns].equals(together[columns])


def test_averaging_takes_two_flops_for_each_number_of_each_devices_own_network():
    """Three updates of each network, on a server of 1 MFLOP/s."""
    simulation = run(scenario_of(*BOTH, server={"flops_per_s": "1 MFLOP/s"}))
    numbers = [sum(p.numel() for p in assemble(scenario_of(m, m)).module.parameters()) for m in (FIRST, SECOND)]
    assert simulation.tables["rounds"].frame()["server_s"][0] == pytest.approx(2 * 3 * sum(numbers) / 1e6)


def test_memory_is_that_of_the_devices_own_network():
    """Devices that have room for the smaller network alone train that and are refused the larger one."""
    profiles = [assemble(scenario_of(m, m)).setting.cost_profile for m in (FIRST, SECOND)]
    needs_bytes = [profile.memory_bytes(Submodel(), 16).total for profile in profiles]
    assert needs_bytes[0] > needs_bytes[1]
    jobs = run(scenario_of(*BOTH, fleet=blocks(*BOTH, memory=needs_bytes[1]))).tables["jobs"].frame()
    assert set(jobs[jobs["device"] < 3]["outcome"]) == {"no_memory"}
    assert set(jobs[jobs["device"] >= 3]["outcome"]) == {"ok"}


def test_scores_are_those_of_each_network_and_their_mean():
    """On the whole test set, by torch itself."""
    simulation = run(scenario_of(*BOTH))
    model, data = simulation.learner.weights(), simulation.parts.data
    x, y = data.batch("test", torch.arange(len(data.y_test)))
    evals = simulation.tables["evals"].frame().query("round == 1").set_index("split")
    found = []
    for name, network in simulation.parts.module.named_children():
        own = part_of(model, name)
        network.load_state_dict({**own["params"], **own["buffers"]})
        logits = network.eval()(x)
        loss, hits = F.cross_entropy(logits, y), logits.argmax(1) == y
        found.append([loss.item(), hits.float().mean().item()])
        assert evals.loc[f"test_{name}", ["loss", "accuracy"]].tolist() == pytest.approx(found[-1], abs=1e-5)
    assert evals.loc["test", ["loss", "accuracy"]].tolist() == pytest.approx(np.mean(found, axis=0).tolist(), abs=1e-5)


def test_devices_are_tested_on_their_own_network():
    """Each on its own test set."""
    simulation = run(scenario_of(*BOTH, evaluation={"personal": True}))
    personal = simulation.learner.evaluate_personal().get()
    data, model = simulation.parts.data, simulation.learner.weights()
    for device, rows in enumerate(simulation.parts.split.test):
        name = simulation.parts.setting.networks.of(device)
        network, own = simulation.parts.module.get_submodule(name), part_of(model, name)
        network.load_state_dict({**own["params"], **own["buffers"]})
        x, y = data.batch("test", torch.from_numpy(rows))
        assert personal[device].accuracy == pytest.approx(float((network.eval()(x).argmax(1) == y).float().mean()))


@pytest.mark.workers
def test_processes_change_nothing():
    """Two workers give the tables and weights of one process."""
    serial, workers = (
        run(scenario_of(*BOTH, evaluation={"personal": True}, backend=backend))
        for backend in ("serial", {"name": "workers", "workers": 2})
    )
    try:
        assert results_of(serial) == results_of(workers)
    finally:
        workers.learner.backend.close()


def test_one_network_named_by_its_blocks_is_a_run_with_one_network():
    """As if the scenario named it: nothing has a name in front, and nothing else differs."""
    named, plain = run(scenario_of(SECOND, SECOND)), run(scenario_of(None, None, model=SECOND))
    assert results_of(named) == results_of(plain)
    assert named.parts.setting.networks is None


def test_runs_whose_devices_have_other_networks_share_no_answers():
    """Nor where they are the same networks on other devices."""
    fleets = (BOTH, BOTH[::-1], (None, None), (SECOND, SECOND), (FIRST, SECOND))
    facts = [facts_of(assemble(scenario_of(*models))) for models in fleets]
    assert len(set(facts)) == 4 and facts[4] == facts[0]


def test_labels_tell_networks_apart():
    """By the names of their plug-ins, without what would mean a place in a module."""
    names = ["lenet5", "my.nets:Small", "torchvision:vgg11", "lenet5"]
    assert labels_of(names) == ["lenet5", "Small", "vgg11", "lenet5_2"]


def test_a_global_model_is_taken_apart_and_put_together():
    """A method's own tensors belong to all networks; with one network nothing changes."""
    model = {"params": {"a.w": 1, "ab.w": 2}, "buffers": {"ab.m": 3}, "tensors": {"logits": 4}}
    assert part_of(model, "a") == {"params": {"w": 1}, "buffers": {}, "tensors": {"logits": 4}}
    assert part_of(model, "ab") == {"params": {"w": 2}, "buffers": {"m": 3}, "tensors": {"logits": 4}}
    assert joined({name: part_of(model, name) for name in ("a", "ab")}) == model
    assert as_part(part_of(model, "a"), "a")["params"] == {"a.w": 1}
    assert part_of(model, "") is as_part(model, "") is model
    assert joined({"": model}) == model


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"method": "scaffold"}, "scaffold trains one network for all devices, found cnn_digits and mlr; methods for"),
        ({"method": "one_shot_pruning"}, "one_shot_pruning trains one network.*: .*fedavg"),
        ({"backend": "cohort"}, r"several networks \(cnn_digits and mlr\) do not go with backend.name: cohort"),
        ({"cost": {"name": "as", "model": "lenet5"}}, r".* do not go with cost\.name: as"),
        ({"topology": {"name": "tree", "edge_servers": 2}, "edges": {}}, ".* do not go with edges"),
    ],
)  # fmt: skip
def test_what_works_with_one_network_alone_says_so(changes, message):
    """In one line, with the key and the networks."""
    with pytest.raises(ConfigError, match=rf"^fleet\.1\.model: {message}"):
        assemble(scenario_of(*BOTH, **changes))


def test_a_model_that_there_is_not_is_refused_by_its_place():
    """As the scenario's own is."""
    with pytest.raises(ConfigError, match=r"fleet\.1\.model"):
        scenario_of(None, "cnn_digit")


# --- without weights --------------------------------------------------------------------------------------------------


class Large(nn.Module):
    """A network of over a million numbers. `counts`: it is built only where tensors have numbers."""

    def __init__(self, counts: bool = False) -> None:
        super().__init__()
        self.table, self.out = nn.Linear(64, 20_000), nn.Linear(20_000, 10)
        self.scale = float(torch.arange(3).sum()) if counts else 3.0

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.table(x.flatten(1)).relu()) * self.scale


@pytest.mark.parametrize(
    "model",
    [
        {"name": "tests.runs.test_network:Large"},
        pytest.param({"name": "tests.runs.test_network:Large", "counts": True}, marks=full),
        pytest.param({"name": "hf", "config": "tiny-gpt2", "vocabulary": 40_000, "lora": {"r": 2}}, marks=full),
        pytest.param("timm:resnet18", marks=full),
    ],
)
def test_a_large_network_has_the_same_price_without_weights(model, monkeypatch, tmp_path):
    """With freezing, bytes of its base and memory; its weights are those of the seed once they are asked for."""
    with_them, without = [], []
    for found, weights in ((with_them, True), (without, False)):
        monkeypatch.setenv("EDGESIM_CACHE", str(tmp_path / str(weights)))
        chosen = PartOf("model").read(model)
        shape = (8, 8) if "Large" in str(model) else None
        network = network_of(chosen, shape, 10 if shape else None, Key(1), weights=weights)
        found += [network.cost_profile, network.module.state_dict()]
    assert with_them[0] == without[0]
    assert all(torch.equal(value, without[1][name]) for name, value in with_them[1].items())


LARGE = {
    "data": {"name": "markov_text", "users": 6, "samples_per_user": 8, "letters": 6, "length": 8},
    "objective": "next_token",
    "partition": "by_column",
    "model": {"name": "hf", "config": "llama-3.1-8b", "layers": 1, "dtype": "bfloat16", "lora": {"r": 8}},
    "fleet": [{"count": 6, "cpu": SPEED}],
    "stop": {"rounds": 2},
}


@full
def test_a_run_without_training_holds_no_weights_of_a_large_base():
    """Two tables of 128256 x 4096 numbers have 4.2 GB; one layer of a base in bfloat16. Adapters of rank 8 travel."""
    before_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    simulation = simulate_null(digits_scenario(**LARGE, backend="null"))
    grown_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kb
    assert grown_kb < 1e6
    jobs = simulation.tables["jobs"].frame()
    # queries 4096 -> 4096, and values 4096 -> 1024 as 8 heads of 128
    assert set(jobs["up_bytes"]) == {4 * 8 * (4096 + 4096 + 4096 + 1024)}


@full
def test_only_a_run_that_trains_needs_memory_for_its_weights(monkeypatch):
    """Too large a network is refused before it is built, but not where it would never be built."""
    for module in ("edgesim.core.limits", "edgesim.runs.network"):
        monkeypatch.setattr(f"{module}.memory_bytes", lambda: 5e8)
    large = {**LARGE, "model": {**LARGE["model"], "config": "llama-3.2-1b"}}
    assemble(digits_scenario(**large, backend="null"))
    with pytest.raises(ConfigError, match=r"^model: HuggingFaceModel with .* would take about"):
        assemble(digits_scenario(**large))


def test_names_and_shapes_of_a_file_are_checked_without_its_weights(tmp_path):
    """The file has another width in its last layer."""
    wide = 20_000
    weights = {"fc1.weight": (wide, 64), "fc1.bias": (wide,), "fc2.weight": (10, wide), "fc2.bias": (10,)}
    for name, last in (("fits", (10,)), ("wrong", (9,))):
        save_file({key: torch.zeros(shape) for key, shape in {**weights, "fc2.bias": last}.items()}, tmp_path / name)
    table = {"name": "mlp", "hidden": [wide]}
    fits = PartOf("model").read({**table, "init_from": str(tmp_path / "fits")})
    module = network_of(fits, (64,), 10, Key(1), weights=False).module
    assert not any(value.any() for value in module.parameters())
    with pytest.raises(ConfigError, match=r"^model.init_from: .*fc2.bias is \(9,\), the model has \(10,\)"):
        network_of(
            PartOf("model").read({**table, "init_from": str(tmp_path / "wrong")}), (64,), 10, Key(1), weights=False
        )
