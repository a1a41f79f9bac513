"""The transformer for characters against torch's own layers, and its price and memory against formulas by hand."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from edgesim.cli.parts import measured
from edgesim.core.errors import ConfigError
from edgesim.core.price_list import CostProfile
from edgesim.core.rng import Key
from edgesim.core.task import Payload, Submodel
from edgesim.learning.models.transformer import TransformerChar
from edgesim.learning.models.transformer_modules import TransformerBlock, TransformerNetwork
from edgesim.learning.submodel.slicing import thinner
from edgesim.methods.fedbn import FedBN
from edgesim.runs.network import cost_profile_of
from tests.conftest import digits_scenario, frames, simulate_null
from tests.contracts.support import run
from tests.learning.test_training_memory import held_bytes, told
from tests.sizes import full

TOKENS, POSITIONS, WIDTH, HEADS, LAYERS = 7, 6, 8, 2, 3
SMALL = TransformerChar(layers=LAYERS, width=WIDTH, heads=HEADS)
WIDE = 4 * WIDTH
# Of a block: attention's two products of all pairs of positions, all heads together; then each linear layer.
PAIRS = 2 * POSITIONS**2 * WIDTH
LINEARS = {"attention.qkv": 3 * WIDTH**2, "attention.out": WIDTH**2, "up": WIDTH * WIDE, "down": WIDE * WIDTH}
NORMS = {*(f"block{n}.norm{m}" for n in range(1, LAYERS + 1) for m in (1, 2)), "norm"}
SCENARIO = {
    "data": {"name": "markov_text", "users": 4, "samples_per_user": 10, "letters": 5, "length": 8},
    "objective": "next_token", "partition": "by_column", "selection": "all",
    "model": {"name": "transformer_char", "layers": 1, "width": 8, "heads": 2},
    "training": {"batch": 4, "lr": 0.2, "local_epochs": 1}, "stop": {"rounds": 2},
    "fleet": [{"count": 4, "cpu": {"flops_per_s": "20 MFLOP/s"}}],
}  # fmt: skip


class Torchs(nn.Module):
    """The network as torch's own encoder layers make it, which normalise first and see no later position."""

    def __init__(self, ours: TransformerNetwork) -> None:
        super().__init__()
        self.embedding, self.positions = nn.Embedding(TOKENS, WIDTH), nn.Embedding(POSITIONS, WIDTH)
        layer = nn.TransformerEncoderLayer(WIDTH, HEADS, WIDE, 0.0, "gelu", batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, LAYERS, nn.LayerNorm(WIDTH), enable_nested_tensor=False)
        self.output = nn.Linear(WIDTH, TOKENS)
        with torch.no_grad():
            for own, theirs in zip(self.parameters(), in_their_order(ours), strict=True):
                own.copy_(theirs)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return logits (batch, tokens, positions)."""
        mask = nn.Transformer.generate_square_subsequent_mask(POSITIONS)
        hidden = self.encoder(self.embedding(x.long()) + self.positions.weight, mask, is_causal=True)
        logits: torch.Tensor = self.output(hidden)
        return logits.transpose(1, 2)


def in_their_order(ours: TransformerNetwork) -> list[nn.Parameter]:
    """Return our parameters in the order of torch's: of a layer attention, linear layers, then normalisation."""
    found: list[nn.Parameter] = [ours.embedding.weight, ours.positions.weight]
    for number in range(1, LAYERS + 1):
        block = ours.get_submodule(f"block{number}")
        assert isinstance(block, TransformerBlock)
        for layer in (block.attention.qkv, block.attention.out, block.up, block.down, block.norm1, block.norm2):
            found += [layer.weight, layer.bias]
    return [*found, ours.norm.weight, ours.norm.bias, ours.output.weight, ours.output.bias]


def network(plugin: TransformerChar = SMALL, scale: float = 1.0) -> TransformerNetwork:
    """Return a network whose weights, biases and gains are all different; its weights are `scale` times those drawn."""
    torch.manual_seed(3)
    ours = plugin.build((POSITIONS,), TOKENS)
    assert isinstance(ours, TransformerNetwork)
    with torch.no_grad():
        for parameter in ours.parameters():
            parameter.mul_(scale).add_(0.1 * torch.randn_like(parameter))
    return ours


def profile_of(plugin: TransformerChar = SMALL) -> CostProfile:
    _, profile = cost_profile_of(plugin, "transformer_char", (POSITIONS,), TOKENS, Key(1))
    return profile


def step(ours: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Take the gradients of the loss and return the logits."""
    logits: torch.Tensor = ours(x.float())
    nn.functional.cross_entropy(logits, y).backward()
    return logits.detach()


def test_outputs_and_gradients_are_torchs() -> None:
    ours = network()
    theirs = Torchs(ours)
    x, y = torch.randint(TOKENS, (2, 5, POSITIONS))
    torch.testing.assert_close(step(ours, x, y), step(theirs, x, y), rtol=1e-5, atol=1e-6)
    for own, other in zip(in_their_order(ours), theirs.parameters(), strict=True):
        assert own.grad is not None and float(own.grad.abs().max()) > 1e-3
        torch.testing.assert_close(own.grad, other.grad, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("place", range(1, POSITIONS))
def test_later_tokens_change_nothing_before_them(place: int) -> None:
    """Bit for bit; at the place itself and at all that come after it, they do."""
    ours = network(scale=20.0)
    x = torch.randint(TOKENS, (3, POSITIONS)).float()
    other = torch.cat([x[:, :place], (x[:, place:] + 1) % TOKENS], 1)
    with torch.no_grad():
        one, changed = ours(x), ours(other)
    assert torch.equal(one[:, :, :place], changed[:, :, :place])
    assert (one != changed)[:, :, place:].any(1).all()
    with torch.no_grad():  # an earlier token reaches every place from its own on
        reached = ours(torch.cat([(x[:, :1] + 1) % TOKENS, x[:, 1:]], 1))
    assert (one != reached).any(1).all()


def test_shorter_texts_have_the_first_positions() -> None:
    ours, x = network(), torch.randint(TOKENS, (2, POSITIONS)).float()
    torch.testing.assert_close(ours(x[:, :4]), ours(x)[:, :, :4])


def test_weights_start_as_gpt_2s_do() -> None:
    """N(0, 0.02^2), where a block adds to its input 0.02 / sqrt(2 x 4 layers); biases 0, gains 1."""
    torch.manual_seed(1)
    for name, parameter in TransformerChar().build((80,), 80).named_parameters():
        value = parameter.detach()
        if value.dim() == 1:
            assert (value == (1 if "norm" in name and name.endswith("weight") else 0)).all(), name
        else:
            small = name.endswith(("attention.out.weight", "down.weight"))
            assert float(value.std()) == pytest.approx(0.02 / math.sqrt(8) if small else 0.02, rel=0.03), name
            assert abs(float(value.mean())) < 4 * float(value.std()) / math.sqrt(value.numel())


# --- what it costs ------------------------------------------------------------------------------------------------


def test_flops_by_hand() -> None:
    """2 FLOPs a multiply-accumulate; the table of tokens is where the way back ends, so no gradient goes into it."""
    profile = profile_of()
    linears = {f"block{n}.{name}": 2 * POSITIONS * w for n in range(1, LAYERS + 1) for name, w in LINEARS.items()}
    linears["output"] = 2 * POSITIONS * WIDTH * TOKENS
    for layer in profile.layers:
        wanted = linears.get(layer.name, 0)
        assert (layer.forward_flops, layer.weight_grad_flops, layer.input_grad_flops) == (wanted,) * 3, layer.name
    forward = sum(linears.values()) + LAYERS * 2 * PAIRS
    assert profile.forward_flops() == forward
    assert profile.train_flops() == 3 * forward  # each product has two factors that take gradients
    assert profile.step_flops() == 0


def test_layers_are_listed_as_data_goes_through_them() -> None:
    block = ["norm1", "attention.qkv", "attention.out", "norm2", "up", "down"]
    blocks = [f"block{n}.{name}" for n in range(1, LAYERS + 1) for name in block]
    assert list(profile_of().layer_names) == ["embedding", "positions", *blocks, "norm", "output"]
    # the width and the heads stay: only units between the two linear layers of a block can be left out
    assert [group.name for group in profile_of().groups] == [f"block{n}.up" for n in range(1, LAYERS + 1)]


@pytest.mark.parametrize(
    "trained", [None, {"output"}, {"block3.down", "output"}, {"block2.attention.qkv"}, {"embedding"}, {"positions"}]
)
def test_torchs_counter_counts_what_is_charged(trained: set[str] | None) -> None:
    """Around a real step on a CPU, with all layers trained or with some."""
    ours, profile = network(), profile_of()
    frozen = frozenset(profile.layer_names) - trained if trained else frozenset[str]()
    for name, value in ours.named_parameters():
        value.requires_grad_(name.rpartition(".")[0] not in frozen)
    x, y = torch.randint(TOKENS, (2, 5, POSITIONS))
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        ours(x.float())
    assert counter.get_total_flops() == 5 * profile.forward_flops()
    with FlopCounterMode(display=False) as counter:
        step(ours, x, y)
    assert counter.get_total_flops() == 5 * profile.train_flops(frozen)


@full
def test_work_between_the_products_by_hand() -> None:
    """Rates and their sources: `learning/measure/elementwise.py`. Nothing is left without a price."""
    profile = profile_of()
    tokens, scores, wide, logits = (POSITIONS * n for n in (WIDTH, HEADS * POSITIONS, WIDE, TOKENS))
    a_block = 2 * 8 * tokens + tokens + 5 * scores + 5 * wide + 2 * tokens  # norms, scale, softmax, GELU, sums
    forward = tokens + LAYERS * a_block + 8 * tokens + 5 * logits + POSITIONS  # positions; norm, log-softmax, loss
    biases = 3 * tokens + tokens + wide + tokens
    back = 2 * 13 * tokens + tokens + 4 * scores + 11 * wide + biases + 2 * tokens  # x is used twice in both halves
    backward = 2 * tokens + LAYERS * back + 13 * tokens + logits + 4 * logits + POSITIONS  # both tables
    assert profile.coverage == (profile.train_flops(), forward + backward, ())
    dropping = profile_of(TransformerChar(layers=LAYERS, width=WIDTH, heads=HEADS, dropout=0.1))
    drops = 2 * (tokens + LAYERS * (2 * tokens + scores))  # a product each way
    assert dropping.coverage == profile.coverage._replace(formula_flops=forward + backward + drops)


@pytest.mark.parametrize("trained", [None, {"output"}, {"block2.attention.qkv", "norm"}, {"embedding"}])
def test_memory_is_what_a_real_step_holds(trained: set[str] | None) -> None:
    ours, profile = network(), profile_of()
    frozen = frozenset(profile.layer_names) - trained if trained else frozenset[str]()
    for batch in (2, 5):
        assert told(profile, batch, Submodel(frozen=frozen)) == held_bytes(ours, profile, frozen, batch)


def test_memory_by_hand() -> None:
    """What training keeps of a sample in each block, in numbers of four bytes; the mask once, a byte a pair."""
    tokens, scores, wide = POSITIONS * WIDTH, HEADS * POSITIONS**2, POSITIONS * WIDE
    # norms: input, and mean and root of each position; queries, keys, values as the products read them; shares;
    # what attention and each linear layer reads; GELU's input and result
    block = 2 * (tokens + 2 * POSITIONS + tokens) + 3 * tokens + scores + tokens + 2 * wide
    ends = tokens + 2 * POSITIONS + tokens + POSITIONS * TOKENS  # the last norm, the log-softmax
    per_sample = 4 * (LAYERS * block + ends) + 2 * 8 * POSITIONS  # tokens and labels are int64
    assert (
        profile_of().saved_bytes(Submodel(), batch=5) == 5 * per_sample + POSITIONS**2 + 4
    )  # and the sum of the weights of labels


@full
def test_the_model_command_shows_it() -> None:
    """12 E^2 and 13 E numbers a block of width E; two tables, a norm, an output: as many as `lstm_char` has, nearly."""
    profile = measured("transformer_char", None, None)
    block = 12 * 128**2 + 13 * 128
    assert profile.params == 2 * 80 * 128 + 4 * block + 2 * 128 + 129 * 80 == 824_144
    assert profile.forward_flops() == 2 * 80 * (4 * 12 * 128**2 + 80 * 128) + 4 * 2 * 2 * 80**2 * 128


# --- what does not fit --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("keys", "shape", "message"),
    [
        ({}, (1, 8, 8), "model.name: transformer_char reads rows of tokens, data gives 1x8x8"),
        ({"width": 30}, (80,), "model.width: must be a multiple of model.heads, 4, found 30"),
    ],
)
def test_what_does_not_fit_is_one_line(keys: dict[str, int], shape: tuple[int, ...], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        cost_profile_of(TransformerChar(**keys), "transformer_char", shape, TOKENS, Key(1))
    assert str(caught.value) == message


# --- methods ------------------------------------------------------------------------------------------------------


@full
@pytest.mark.parametrize("method", ["fedavg", "fedprox", "fedper", "fedbn"])
def test_methods_train_it(method: str) -> None:
    simulation = run(digits_scenario(**SCENARIO, method=method))
    evals = simulation.tables["evals"].frame()
    assert method in {"fedper", "fedbn"} or evals["loss"].iloc[-1] < evals["loss"].iloc[0]
    own = {"fedper": {"output"}, "fedbn": {"block1.norm1", "block1.norm2", "norm"}}.get(method, set())
    kept = {n.rpartition(".")[0] for state in simulation.learner.memory.values() for n in state["params"]}
    assert kept == own


def test_normalisation_and_the_last_layer_are_told_apart() -> None:
    assert FedBN().own_layers(profile_of()) == NORMS


def test_what_stays_on_devices_does_not_travel() -> None:
    """Of 8 x 5 + 8 x 8 in the tables, 12 x 8^2 + 13 x 8 in the block, 16 and 8 x 5 + 5 behind it, four bytes each."""
    whole = 40 + 64 + 12 * 64 + 13 * 8 + 16 + 45
    sent = {}
    for name, method in {
        "fedavg": "fedavg",
        "fedper": "fedper",
        "block": {"name": "fedper", "personal_layers": ["block1", "output"]},
        "fedbn": "fedbn",
    }.items():
        [sent[name]] = set(
            frames(simulate_null(digits_scenario(**SCENARIO, method=method, backend="null")))["jobs"]["up_bytes"]
        )
    own = {"fedavg": 0, "fedper": 45, "block": 12 * 64 + 13 * 8 + 45, "fedbn": 3 * 16}
    assert sent == {name: 4 * (whole - count) for name, count in own.items()}


@full
def test_half_the_units_are_a_network_of_half_the_expansion() -> None:
    """Its price and its shapes are those of a network that was built with so many units."""
    whole, half = profile_of(), profile_of(TransformerChar(layers=LAYERS, width=WIDTH, heads=HEADS, expansion=2))
    assert WIDE == 4 * WIDTH
    part = Submodel(channels=tuple((group.name, tuple(range(WIDE // 2))) for group in whole.groups))
    for include in ("counted", "all"):
        assert whole.train_flops(part, include=include) == half.train_flops(include=include)
    assert whole.memory_bytes(part, 5) == half.memory_bytes(Submodel(), 5)
    assert whole.nbytes(Payload(), part) == half.nbytes(Payload())
    small = thinner(network(), part, whole)
    assert small(torch.zeros(2, POSITIONS)).shape == (2, TOKENS, POSITIONS)
