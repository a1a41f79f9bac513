"""The LSTM for characters against torch's own, and its price against a formula by hand."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from edgesim.cli.parts import measured
from edgesim.core.errors import ConfigError
from edgesim.core.rng import Key
from edgesim.learning.models.lstm_modules import LstmLayer, LstmNetwork
from edgesim.learning.models.recurrent import LstmChar
from edgesim.runs.network import cost_profile_of
from tests.sizes import full

TOKENS, POSITIONS = 7, 6
SMALL = LstmChar(embedding=4, hidden=5, layers=2)


class Torchs(nn.Module):
    """The network as torch's own modules make it."""

    def __init__(self, ours: LstmNetwork) -> None:
        super().__init__()
        self.embedding = nn.Embedding(TOKENS, 4)
        self.lstm = nn.LSTM(4, 5, num_layers=2, batch_first=True)
        self.output = nn.Linear(5, TOKENS)
        with torch.no_grad():
            for own, theirs in zip(self.parameters(), in_their_order(ours), strict=True):
                own.copy_(theirs)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return logits (batch, tokens, positions)."""
        logits: torch.Tensor = self.output(self.lstm(self.embedding(x.long()))[0])
        return logits.transpose(1, 2)


def in_their_order(ours: LstmNetwork) -> list[nn.Parameter]:
    """Return our parameters in the order of torch's: of a layer both weights, then both biases."""
    found: list[nn.Parameter] = [ours.embedding.weight]
    for layer in (ours.get_submodule("lstm1"), ours.get_submodule("lstm2")):
        assert isinstance(layer, LstmLayer)
        found += [layer.of_input.weight, layer.of_state.weight, layer.of_input.bias, layer.of_state.bias]
    return [*found, ours.output.weight, ours.output.bias]


def test_outputs_and_gradients_are_torchs() -> None:
    torch.manual_seed(3)
    ours = SMALL.build((POSITIONS,), TOKENS)
    assert isinstance(ours, LstmNetwork)
    theirs = Torchs(ours)
    x, y = torch.randint(TOKENS, (2, 3, POSITIONS))
    outputs, wanted = ours(x.float()), theirs(x.float())
    torch.testing.assert_close(outputs, wanted, rtol=1e-5, atol=1e-6)
    for logits in (outputs, wanted):
        nn.functional.cross_entropy(logits, y).backward()
    for own, other in zip(in_their_order(ours), theirs.parameters(), strict=True):
        assert own.grad is not None and float(own.grad.abs().max()) > 0
        torch.testing.assert_close(own.grad, other.grad, rtol=1e-4, atol=1e-6)


def test_weights_start_as_torchs_do() -> None:
    """Uniform within b = 1 / sqrt(hidden): the largest of thousands is near b, and their deviation b / sqrt 3."""
    torch.manual_seed(1)
    for weights in (
        torch.cat([p.detach().flatten() for p in each.parameters()]) for each in (LstmLayer(64, 64), nn.LSTM(64, 64))
    ):
        assert 0.999 / 8 < float(weights.abs().max()) <= 1 / 8
        assert float(weights.std()) == pytest.approx(1 / 8 / 3**0.5, rel=0.02)


def test_flops_by_hand() -> None:
    """2 FLOPs a multiply-accumulate; the gradient of the state that is 0 is not taken, so one position less."""
    _, profile = cost_profile_of(SMALL, "lstm_char", (POSITIONS,), TOKENS, Key(1))
    gates = 4 * 5
    forward = {
        "embedding": 0,
        "lstm1.of_input": POSITIONS * 2 * 4 * gates,  # 960
        "lstm1.of_state": POSITIONS * 2 * 5 * gates,  # 1200
        "lstm2.of_input": POSITIONS * 2 * 5 * gates,
        "lstm2.of_state": POSITIONS * 2 * 5 * gates,
        "output": POSITIONS * 2 * 5 * TOKENS,
    }
    layers = {layer.name: layer for layer in profile.layers}
    assert {name: layer.forward_flops for name, layer in layers.items()} == forward
    assert {name: layer.weight_grad_flops for name, layer in layers.items()} == forward
    back = forward | {f"lstm{n}.of_state": (POSITIONS - 1) * 2 * 5 * gates for n in (1, 2)}
    assert {name: layer.input_grad_flops for name, layer in layers.items()} == back
    assert profile.train_flops() == 2 * sum(forward.values()) + sum(back.values())
    assert not profile.coverage.left_at_zero


@full
def test_the_model_command_shows_it_as_published() -> None:
    """Embedding 80 x 8; a layer 4 (in x 256 + 256 x 256 + 2 x 256); output 256 x 80 + 80."""
    profile = measured("lstm_char", None, None)
    assert profile.params == 640 + 4 * (8 * 256 + 256**2 + 512) + 4 * (2 * 256**2 + 512) + 256 * 80 + 80 == 819_920
    assert profile.forward_flops() == 80 * 2 * (4 * 256 * (8 + 256 + 2 * 256) + 256 * 80)


def test_images_are_no_text() -> None:
    with pytest.raises(ConfigError) as caught:
        cost_profile_of(SMALL, "lstm_char", (1, 8, 8), TOKENS, Key(1))
    assert str(caught.value) == "model.name: lstm_char reads rows of tokens, data gives 1x8x8"
