"""Transformers by name and from folders: sizes against published ones, adapters by hand, weights, and bad input."""

from __future__ import annotations

import itertools
import json
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

import edgesim
from edgesim.config.plugin_fields import PartOf
from edgesim.core.errors import ConfigError
from edgesim.core.rng import Key, Purpose
from edgesim.learning.measure.step import measure
from edgesim.learning.models.build import build_model, model_state_of
from edgesim.learning.models.checkpointing import Checkpointed
from edgesim.learning.models.hugging_face import HuggingFaceModel, LoraKeys, architectures
from edgesim.learning.objectives.classification import CLASSIFICATION
from edgesim.learning.objectives.next_token import NextToken
from edgesim.runs.assembly import assemble
from edgesim.runs.warnings import of_parts
from tests.calling import call
from tests.sizes import full, sized, spread, thinned

ROOT = Path(__file__).parents[2]

# Parameters of the networks that the library's own checkpoints hold, as their model cards count them: of GPT-2 (124M),
# of Llama 3.2 (1.24B) and 3.1 (8.03B), of Qwen2.5 (0.49B), of BERT-base (110M), of DistilBERT (66M), of ViT-B/16 with
# ImageNet's 1000 classes (86.6M). BERT and DistilBERT are counted without the layers of a head.
PUBLISHED = {
    "gpt2": 124_439_808,
    "llama-3.2-1b": 1_235_814_400,
    "llama-3.1-8b": 8_030_261_248,
    "qwen2.5-0.5b": 494_032_768,
    "bert-base": 109_482_240,
    "distilbert": 66_362_880,
    "vit-b-16": 86_567_656,
}
HEADS = {"bert-base": 2 * 768 + 2, "distilbert": 768 * 768 + 768 + 2 * 768 + 2}
ONE_WAY = ("gpt2", "llama", "qwen")  # read from left to right
TINY = ("tiny-gpt2", "tiny-llama", "tiny-bert")


def task_of(name: str) -> str:
    return "causal_lm" if any(each in name for each in ONE_WAY) else "classification"


def part(name: str = "tiny-gpt2", **keys: Any) -> HuggingFaceModel:
    """Return the part of a scenario's table, checked as a scenario's is."""
    chosen = PartOf("model").read({"name": "hf", "config": name, "task": task_of(name), **keys})
    assert isinstance(chosen.value, HuggingFaceModel)
    return chosen.value


def network(name: str = "tiny-gpt2", seed: int = 1, positions: int = 12, **keys: Any) -> nn.Module:
    """Return a network for rows of tokens."""
    plugin = part(name, **keys)
    classes = 8 if plugin.task == "causal_lm" else 3
    return build_model(plugin, (positions,), classes, Key(seed), objective=plugin.native_objective)


def trained(module: nn.Module) -> dict[str, torch.Tensor]:
    return dict(module.named_parameters())


# --- sizes ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", PUBLISHED)
def test_presets_have_the_published_sizes(name: str) -> None:
    plugin = part(name)
    with torch.device("meta"):
        module = plugin.build(plugin.native_input_shape, plugin.native_classes)
    parameters = sum(value.numel() for value in module.parameters() if value.requires_grad)
    assert parameters - HEADS.get(name, 0) == PUBLISHED[name]


def test_every_preset_is_counted_or_tiny() -> None:
    assert set(architectures()) == {*PUBLISHED, *TINY}


@pytest.mark.parametrize(
    ("name", "keys", "expected"),
    [
        # GPT-2: one layer of queries, keys and values from width 32 to 96, in each of two blocks.
        ("tiny-gpt2", {"lora": {"r": 8}}, 2 * 8 * (32 + 96)),
        # Llama: 32 -> 32 queries and 32 -> 16 values, as two heads of 8 numbers serve four heads of queries.
        ("tiny-llama", {"lora": {"r": 4, "targets": ["q_proj", "v_proj"]}}, 2 * 4 * ((32 + 32) + (32 + 16))),
        # BERT: queries and values, and the head of three classes, which trains with its bias.
        ("tiny-bert", {"lora": {"r": 2}}, 2 * 2 * (2 * (32 + 32)) + 3 * 32 + 3),
    ],
)
def test_adapters_and_head_are_all_that_trains(name: str, keys: dict[str, Any], expected: int) -> None:
    module = network(name, **keys)
    assert sum(value.numel() for value in module.parameters()) == expected
    assert all(value.requires_grad for value in module.parameters())


def test_adapters_of_a_billion_parameters() -> None:
    """r (inputs + outputs) of 2048 -> 2048 queries and 2048 -> 512 values, in 16 blocks: 851,968 with r = 8."""
    plugin = part("llama-3.2-1b", lora={"r": 8, "targets": ["q_proj", "v_proj"]}, dtype="bfloat16")
    with torch.device("meta"):
        module = plugin.build((128,), 128256)
    train = [value for value in module.parameters() if value.requires_grad]
    held = [value for name, value in module.named_parameters() if not value.requires_grad and "inv_freq" not in name]
    assert sum(value.numel() for value in train) == 16 * 8 * (2048 + 2048 + 2048 + 512) == 851_968
    assert sum(value.numel() for value in held) == PUBLISHED["llama-3.2-1b"]
    assert {value.dtype for value in train} == {torch.float32}
    assert {value.dtype for value in held} == {torch.bfloat16}


def test_sizes_can_be_overridden() -> None:
    """GPT-2's table of 64 positions, blocks of 12 x 32^2 + 13 x 32, and a norm of 2 x 32."""
    module = network(layers=3, vocabulary=10)
    assert sum(value.numel() for value in module.parameters()) == 10 * 32 + 64 * 32 + 3 * (12 * 32**2 + 13 * 32) + 64


def test_native_sizes_are_those_of_the_architecture() -> None:
    llama, bert, image = part("llama-3.1-8b"), part("bert-base"), part("vit-b-16")
    assert (llama.native_input_shape, llama.native_classes) == ((1024,), 128256)
    assert (bert.native_input_shape, bert.native_classes) == ((512,), 2)
    assert (image.native_input_shape, image.native_classes) == ((3, 224, 224), 1000)
    assert isinstance(llama.native_objective, NextToken)
    assert bert.native_objective is CLASSIFICATION
    assert part(vocabulary=9).native_classes == 9


# --- weights ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("keys", [{}, {"lora": {}}], ids=["whole", "lora"])
@pytest.mark.parametrize("name", spread(TINY, 2))
def test_weights_follow_from_the_seed(name: str, keys: dict[str, Any]) -> None:
    first, same, other = (network(name, seed, **keys).state_dict() for seed in (1, 1, 2))
    assert first.keys() == same.keys()
    assert all(torch.equal(first[each], same[each]) for each in first)
    assert not all(torch.equal(first[each], other[each]) for each in first)


def test_adapters_start_as_the_paper_says() -> None:
    """B is 0 and A uniform within a linear layer's 1 / root(inputs), so that the network starts as its base."""
    adapted, base = network(lora={"r": 8}), network()
    for name, value in trained(adapted).items():
        if ".lora_B." in name:
            assert not value.any()
        else:
            assert 0.9 / 32**0.5 < value.abs().max() <= 1 / 32**0.5  # the largest of 256 draws
    x = torch.arange(12)[None] % 8
    assert torch.equal(adapted(x), base(x))


def test_an_adapter_adds_its_scaled_product() -> None:
    """W x + b + alpha / r B A x, in a few lines; GPT-2 keeps the transpose of W."""
    module = network(lora={"r": 4, "alpha": 6.0, "targets": ["c_attn"]})
    layer = module.get_submodule("network.transformer.h.0.attn.c_attn")
    a, b = (layer.get_parameter(f"lora_{each}.default.weight") for each in "AB")
    nn.init.normal_(b)
    x = torch.randn(3, 32)
    held = dict(layer.named_buffers()) | dict(layer.named_parameters())
    expected = x @ held["base_layer.weight"] + held["base_layer.bias"] + 6.0 / 4 * x @ a.T @ b.T
    torch.testing.assert_close(layer(x), expected)


def saved(folder: Path, seed: int = 5) -> Any:
    """Let the library write a small Llama, config.json and safetensors, and return it."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(seed)
    entries = {key: value for key, value in architectures()["tiny-llama"].items() if key != "model_type"}
    module = LlamaForCausalLM(LlamaConfig(**entries))
    module.save_pretrained(folder)
    return module


def test_weights_of_a_folder_are_loaded(tmp_path: Path) -> None:
    x = torch.arange(12)[None] % 8
    theirs = saved(tmp_path / "base").eval()(x).logits[..., :8].transpose(1, 2)
    torch.testing.assert_close(network_of_folder(tmp_path / "base")(x), theirs)
    torch.testing.assert_close(network_of_folder(tmp_path / "base", lora={"targets": ["q_proj"]})(x), theirs)


def network_of_folder(folder: Path, seed: int = 1, **keys: Any) -> nn.Module:
    plugin = part(str(folder), **{"task": "causal_lm", **keys})
    classes = 8 if plugin.task == "causal_lm" else 3
    return build_model(plugin, (12,), classes, Key(seed), objective=plugin.native_objective)


def test_a_classifier_takes_the_body_of_a_folder_and_draws_its_head(tmp_path: Path) -> None:
    written = {f"network.{name}": value for name, value in saved(tmp_path / "base").state_dict().items()}
    one, other = (network_of_folder(tmp_path / "base", seed, task="classification").state_dict() for seed in (1, 2))
    body = [name for name in one if name.startswith("network.model.") and "inv_freq" not in name]
    assert len(body) == 20  # an embedding, two blocks of nine tensors, a norm
    assert all(torch.equal(one[name], written[name]) for name in body)
    assert not torch.equal(one["network.score.weight"], other["network.score.weight"])


def test_a_loaded_network_is_priced_as_in_training(tmp_path: Path) -> None:
    saved(tmp_path)
    assert all(inner.training for inner in network_of_folder(tmp_path, gradient_checkpointing=True).modules())


def test_a_folder_without_weights_has_drawn_ones(tmp_path: Path) -> None:
    saved(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    one, other = (network_of_folder(tmp_path, seed) for seed in (1, 2))
    assert not torch.equal(one.get_parameter("network.lm_head.weight"), other.get_parameter("network.lm_head.weight"))


# --- what the networks compute ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("keys", [{}, {"attention": "sdpa"}], ids=["eager", "sdpa"])
@pytest.mark.parametrize("name", ["tiny-gpt2", "tiny-llama"])
def test_a_position_sees_no_later_token(name: str, keys: dict[str, Any]) -> None:
    module = network(name, **keys).eval()
    x = torch.randint(8, (2, 12), generator=torch.Generator().manual_seed(1))
    changed = torch.cat([x[:, :6], (x[:, 6:] + 1) % 8], 1)
    before, after = module(x), module(changed)
    assert before.shape == (2, 8, 12)
    torch.testing.assert_close(before[..., :6], after[..., :6])
    assert not torch.allclose(before[..., 6:], after[..., 6:])


@pytest.mark.parametrize("name", TINY)
def test_floats_and_integers_give_the_same(name: str) -> None:
    module, x = network(name), torch.arange(12)[None] % 8
    assert torch.equal(module(x), module(x.float()))


@pytest.mark.parametrize("name", TINY)
def test_padding_changes_nothing(name: str) -> None:
    """A classifier's answer is that of the library for the same text alone, or with a mask that it gets itself."""
    module = network(name, task="classification", padding=0).eval()
    text = torch.tensor([[3, 1, 4, 1, 5]])
    padded = torch.cat([text, torch.zeros(1, 7, dtype=torch.int64)], 1)
    torch.testing.assert_close(module(padded), module(text))
    inner: Any = module.get_submodule("network")
    inner.config.pad_token_id = 0
    mask = (padded != 0).long()
    torch.testing.assert_close(module(padded), inner(input_ids=padded, attention_mask=mask).logits)


def test_next_tokens_agree_with_the_library() -> None:
    """Under padding on the right, at the positions that are no padding."""
    module = network("tiny-llama", padding=0).eval()
    x = torch.tensor([[3, 1, 4, 1, 5, 0, 0], [2, 7, 1, 2, 2, 3, 6]])
    inner: Any = module.get_submodule("network")
    theirs = inner(input_ids=x, attention_mask=(x != 0).long()).logits[..., :8].transpose(1, 2)
    ours = module(x)
    torch.testing.assert_close(ours[1], theirs[1])
    torch.testing.assert_close(ours[0, :, :5], theirs[0, :, :5])


@pytest.mark.parametrize("task", ["causal_lm", "classification"])
def test_a_base_in_bfloat16_is_near_the_float32_one(task: str) -> None:
    """bfloat16 keeps 8 bits: relative differences of 2^-8, which layers add up. What trains is float32."""
    x = torch.arange(12)[None] % 8
    keys = {"task": task, "lora": {"r": 2, "targets": ["q_proj"]}}
    whole, half = network("tiny-llama", **keys), network("tiny-llama", dtype="bfloat16", **keys)
    assert {value.dtype for value in half.parameters()} == {torch.float32}
    assert half(x).dtype == torch.float32
    assert not torch.equal(half(x), whole(x))
    torch.testing.assert_close(half(x), whole(x), rtol=0.05, atol=0.02)


def test_an_image_model_reads_images_of_any_square_size() -> None:
    module = build_model(part("vit-b-16", layers=1), (1, 32, 32), 10, Key(1))
    assert module(torch.zeros(2, 1, 32, 32)).shape == (2, 10)


# --- prices -----------------------------------------------------------------------------------------------------------


def step_flops(module: nn.Module, x: torch.Tensor, classes: int) -> tuple[float, float]:
    """Return the FLOPs of a training step that edgesim charges, and those that torch counts in a real one."""
    objective = NextToken() if classes == 8 else CLASSIFICATION
    tokens = x.dim() == 2
    profile = measure(module, "hf", tuple(x.shape[1:]), classes, objective=objective, tokens=tokens)
    charged = len(x) * profile.train_flops() + profile.step_flops()
    # torch has no formula for the fused attention of CPUs, whose products it counts one by one here
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):
        outputs = module.train()(x)
        labels = torch.zeros(outputs.shape[:1] + outputs.shape[2:], dtype=torch.int64)
        nn.functional.cross_entropy(outputs, labels).backward()
    return charged, counter.get_total_flops()


@full
def test_a_step_with_adapters_is_charged_as_torch_counts_it() -> None:
    tokens = torch.arange(36).view(3, 12) % 8
    ranks = sized([4], [4, 16], [4, 16], rest=[16])
    for attention, r, checkpointing in itertools.product(("eager", "sdpa"), ranks, (False, True)):
        keys: dict[str, Any] = {"attention": attention, "gradient_checkpointing": checkpointing}
        for name in TINY:
            module = network(name, lora={"r": r}, **keys)
            charged, counted = step_flops(module, tokens, 8 if task_of(name) == "causal_lm" else 3)
            assert charged == pytest.approx(counted, rel=1e-3), (name, r, keys)
        image = part("vit-b-16", layers=1, lora={"r": r, "targets": ["q_proj", "v_proj"]}, **keys)
        module = build_model(image, (3, 32, 32), 3, Key(1))
        charged, counted = step_flops(module, torch.ones(3, 3, 32, 32), 3)
        assert charged == pytest.approx(counted, rel=1e-3), (r, keys)


class OwnTransformer(nn.Module):
    """A network of transformers as a user calls it, without a mask of attention."""

    def __init__(self, name: str, attention: str, use_cache: bool | None) -> None:
        super().__init__()
        from transformers import CONFIG_MAPPING, AutoModelForCausalLM

        entries = architectures()[name]
        config = CONFIG_MAPPING[entries["model_type"]].from_dict({**entries, "vocab_size": 8})
        self.network = AutoModelForCausalLM.from_config(config, attn_implementation=attention)
        self.use_cache = use_cache

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.network(input_ids=x.long(), use_cache=self.use_cache).logits
        return logits.transpose(1, 2)


CALLS = list(itertools.product(("tiny-gpt2", "tiny-llama"), ("eager", "sdpa"), (False, None)))


@full
@pytest.mark.parametrize(("name", "attention", "use_cache"), thinned(CALLS, [("tiny-llama", "sdpa", False)]))
def test_a_users_transformer_without_a_mask_is_charged_as_torch_counts_it(
    name: str, attention: str, use_cache: bool | None
) -> None:
    """The library asks for the values of its positions there, which tensors without numbers do not have."""
    module = OwnTransformer(name, attention, use_cache)
    charged, counted = step_flops(module, torch.arange(36).view(3, 12) % 8, 8)
    assert charged == pytest.approx(counted, rel=1e-3)


# --- training ---------------------------------------------------------------------------------------------------------


SCENARIO = """
seed = 3
data = { name = "markov_text", users = 3, samples_per_user = 12, letters = 6, length = 8 }
objective = "next_token"
partition = "by_column"
model = { name = "hf", config = "tiny-gpt2", lora = { r = 4, targets = ["c_attn"] } }
training = { local_epochs = 1, batch = 4, lr = 0.2 }
network = { name = "fixed", up = "1 Mbit/s", down = "8 Mbit/s" }
energy = { name = "power", idle = "1 W", busy = "4 W" }
method = "fedavg"
stop = { rounds = 2 }
[[fleet]]
count = 3
cpu = { flops_per_s = "1 GFLOP/s" }
"""
WAYS = {
    "fedavg": [],
    "fedprox": ["method=fedprox"],
    "scaffold": ["method=scaffold"],
    "fednova": ["method=fednova"],
    "feddyn": ["method=feddyn"],
    "fedadam": ["server_optimizer=adam"],
    "fedit": ["method=fedit"],
    "ffa_lora": ["method=ffa_lora"],
    "adam": ["training.optimizer=adam", "training.lr=0.01"],
    "int8": ["encoding.up.values=int8"],
    "llama": ["model={ name = 'hf', config = 'tiny-llama', lora = { r = 4 } }"],
    "bfloat16": ["model={ name = 'hf', config = 'tiny-llama', lora = { r = 4 }, dtype = 'bfloat16' }"],
    "nf4": ["model={ name = 'hf', config = 'tiny-llama', lora = { r = 4 }, dtype = 'nf4' }", "encoding.base=once"],
    "mixed": [
        "model={ name = 'hf', config = 'tiny-gpt2', lora = { r = 4 }, dtype = 'int8', attention = 'sdpa' }",
        "training.precision=bfloat16",
        "fleet.0.cpu.bfloat16_speedup=2",
    ],
    "whole": ["model=hf"],
}


def run(folder: Path, name: str, overrides: list[str]) -> tuple[list[float], dict[str, torch.Tensor]]:
    """Run the scenario. Return the test loss of each round and the final weights."""
    from safetensors.torch import load_file

    (folder / "scenario.toml").write_text(SCENARIO)
    words = [word for override in overrides for word in ("--set", override)]
    done = call("run", folder / "scenario.toml", "--out", folder / name, "--quiet", *words)
    assert (done.code, done.err) == (0, "")
    return list(edgesim.open(folder / name).evals["loss"]), load_file(folder / name / "final.safetensors")


@pytest.mark.parametrize("way", spread(list(WAYS), 1))
def test_a_tiny_transformer_trains_federatedly(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str) -> None:
    """Three devices learn six letters from ln 64 of an untrained network down, and the frozen base keeps its bits."""
    monkeypatch.setenv("EDGESIM_CACHE", str(tmp_path / "cache"))
    losses, weights = run(tmp_path, "run", WAYS[way])
    assert losses[-1] < losses[0]
    plugin = edgesim.load(tmp_path / "scenario.toml", WAYS[way]).model.value
    start = build_model(plugin, (8,), 6, Key(3).at(Purpose.INIT, 0), objective=NextToken())
    for name, value in start.named_buffers():
        if name in weights:
            assert torch.equal(weights[name], value), name
    assert any(not torch.equal(weights[name], value) for name, value in start.named_parameters())


@full
def test_a_cohort_trains_adapters_as_one_device_after_the_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EDGESIM_CACHE", str(tmp_path / "cache"))
    alone, weights = run(tmp_path, "serial", [])
    together, others = run(tmp_path, "cohort", ["backend=cohort"])
    assert together == pytest.approx(alone, rel=1e-5)
    for name, value in weights.items():
        torch.testing.assert_close(others[name], value, rtol=1e-4, atol=1e-5)


@full
def test_checkpointing_changes_time_and_no_weight(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs that share a cache. Of a cohort too, which differs from one device after the other by rounding."""
    monkeypatch.setenv("EDGESIM_CACHE", str(tmp_path / "cache"))
    model = "model={{ name = 'hf', config = 'tiny-llama', lora = {{ r = 4 }}, {} }}"
    plain, again = model.format("gradient_checkpointing = false"), model.format("gradient_checkpointing = true")
    alone, weights = run(tmp_path, "plain", [plain])
    checkpointed, others = run(tmp_path, "again", [again])
    assert checkpointed == alone
    assert all(torch.equal(others[name], value) for name, value in weights.items())
    times = [list(edgesim.open(tmp_path / name).rounds["now_s"]) for name in ("plain", "again")]
    assert all(one < other for one, other in zip(*times, strict=True))
    together, others = run(tmp_path, "cohort", [again, "backend=cohort"])
    assert together == pytest.approx(alone, rel=1e-5)
    for name, value in weights.items():
        torch.testing.assert_close(others[name], value, rtol=1e-4, atol=1e-5)


@full
def test_a_host_short_of_memory_runs_blocks_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Which changes no weight and no time, as devices are priced as before. A warning says that memory is short."""
    (tmp_path / "scenario.toml").write_text(SCENARIO)
    scenario = edgesim.load(tmp_path / "scenario.toml", ["model={ name = 'hf', config = 'tiny-llama' }"])
    again, called = 0, Checkpointed.__call__

    def counted(*given: Any) -> Any:
        nonlocal again
        again += 1
        return called(*given)

    monkeypatch.setattr(Checkpointed, "__call__", counted)
    plain = edgesim.run(scenario)
    assert (again, of_parts(scenario, [assemble(scenario)])) == (0, [])
    monkeypatch.setattr("edgesim.runs.assembly.memory_bytes", lambda: 1.0)
    short = edgesim.run(scenario)
    assert again > 0
    assert short.jobs.equals(plain.jobs)
    assert all(np.array_equal(short.weights()[name], value) for name, value in plain.weights().items())
    (line,) = of_parts(scenario, [assemble(scenario)])
    assert line.startswith("model: training takes more memory than this machine has")


@full
def test_other_weights_in_the_folder_are_another_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that may use cached results equals one that has none, after the weights in the folder have changed."""
    monkeypatch.setenv("EDGESIM_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    overrides = ["model={ name = 'hf', config = 'base', lora = { r = 4, targets = ['q_proj'] } }"]
    saved(tmp_path / "base")
    first, _ = run(tmp_path, "first", overrides)
    shutil.rmtree(tmp_path / "base")
    saved(tmp_path / "base", seed=6)
    second, weights = run(tmp_path, "second", overrides)
    for cached in (".answers", "cache"):
        shutil.rmtree(tmp_path / cached)
    alone, others = run(tmp_path, "alone", overrides)
    assert first != second == alone
    assert all(torch.equal(weights[name], others[name]) for name in others)


# --- bad input --------------------------------------------------------------------------------------------------------


PRESETS = ", ".join(architectures())
BAD = {
    "unknown preset": ("config='gpt3'", "model.config: no folder '{here}/gpt3' and no preset of this name; did you "
                       f"mean 'gpt2'? (presets: {PRESETS})"),
    "missing folder": ("config='bases/own'", "model.config: no folder '{here}/bases/own' and no preset of this "
                       f"name (presets: {PRESETS})"),
    "empty folder": ("config='empty'", "{here}/empty/config.json: cannot be read: No such file or directory"),
    "no table": ("config='list'", "model.config: {here}/list/config.json must be a table with a model_type, such as "
                 "'gpt2'"),
    "no JSON": ("config='damaged'", "model.config: {here}/damaged/config.json: not a readable JSON file, truncated or "
                "damaged: Expecting value: line 1 column 1 (char 0)"),
    "unknown type": ("config='strange'", "model.config: transformers "),
    "damaged weights": ("config='cut'", "model.config: {here}/cut: cannot be loaded: "),
    "weights that do not fit": ("config='wide'", "model.config: {here}/wide does not fit: lm_head.weight "
                                "is (64, 32), the model has (9, 32); "),
    "weights that are missing": ("config='deep'", "model.config: {here}/deep does not fit: "
                                 "model.layers.2.input_layernorm.weight is missing; "),
    "no such layer": ("lora={targets=['q_proj']}", "model.lora.targets: no layer is called 'q_proj' (layers: c_attn, "
                      "c_fc, c_proj, lm_head)"),
    "no rank": ("lora={r=0}", "model.lora.r: must be greater than or equal to 1, got 0"),
    "unknown key": ("lora={rank=8}", "model.lora.rank: unknown key"),
    "layers of no list": ("config='distilbert', task='classification', lora={}", "model.lora.targets: peft lists no "
                          "layers for distilbert; name some, such as 'q_proj'"),
    "half without adapters": ("dtype='bfloat16'", "model.dtype: bfloat16 is for frozen weights; give model.lora, or "
                              "use float32"),
    "both directions": ("config='tiny-bert'", "model.task: tiny-bert reads a text in both directions; use "
                        "'classification'"),
    "small vocabulary": ("vocabulary=4", "model.vocabulary: the model has 4 tokens, the data set has 6"),
    "padding beyond": ("padding=64", "model.padding: must be below the 64 tokens, found 64"),
    "images": ("config='vit-b-16', task='classification'", "model.config: vit-b-16 reads images, data gives 8"),
    "frozen by no name": ("freeze=['conv*']", "model.freeze: no layer with parameters has a name like 'conv*' (layers: "
                          "network.transformer.wte, "),
}  # fmt: skip


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a scenario and with damaged models, where nothing is cached."""
    monkeypatch.setenv("EDGESIM_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "scenario.toml").write_text(SCENARIO)
    texts = {"empty": None, "list": "[]", "damaged": "", "strange": '{"model_type": "no such type"}'}
    for name, text in texts.items():
        (tmp_path / name).mkdir()
        if text is not None:
            (tmp_path / name / "config.json").write_text(text)
    for name, changed in ("cut", {}), ("wide", {"vocab_size": 9}), ("deep", {"num_hidden_layers": 3}):
        saved(tmp_path / name)
        path = tmp_path / name / "config.json"
        table = json.loads(path.read_text()) | changed
        table.pop("layer_types", None)
        path.write_text(json.dumps(table))
    weights = tmp_path / "cut" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    return tmp_path


@pytest.mark.parametrize("bad", spread(list(BAD), 6))
def test_bad_input_is_one_line(here: Path, bad: str) -> None:
    keys, says = BAD[bad]
    code, out, err = call(
        "run", here / "scenario.toml", "--out", here / "run", "--quiet", "--set", f"model={{ name='hf', {keys} }}"
    )
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert err.startswith("error: " + says.format(here=here.resolve()))


@pytest.mark.parametrize("missing", ["transformers", "peft"])
def test_without_the_extra_one_line_says_how_to_get_it(
    here: Path, monkeypatch: pytest.MonkeyPatch, missing: str
) -> None:
    for name in list(sys.modules):
        if name.split(".")[0] == missing or name == "edgesim.learning.models.hugging_face_modules":
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, missing, None)  # which `import` answers with ImportError
    code, out, err = call("run", here / "scenario.toml", "--out", here / "run", "--quiet")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert err.startswith('error: model.name: hf needs transformers and peft; pip install "edgesim[llm]" (')


def test_a_long_text_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"tiny-gpt2 reads 64 tokens at most \(n_positions\), data gives 65"):
        network(positions=65)


def test_the_hub_is_never_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Building opens no connection, be it from a preset or a folder."""
    import socket

    saved(tmp_path / "base")

    def refused(*_: Any, **__: Any) -> None:
        raise AssertionError("a connection")

    monkeypatch.setattr(socket.socket, "connect", refused)
    network(lora={})
    network_of_folder(tmp_path / "base", lora={})


def test_lora_has_the_defaults_of_its_documentation() -> None:
    assert LoraKeys() == LoraKeys(r=8, alpha=16.0, targets=(), dropout=0.0)
    assert model_state_of(network(lora={}))["params"].keys() == trained(network(lora={})).keys()
