"""Codes and scales of frozen layers by NumPy, products by hand, and bytes of whole networks."""

from __future__ import annotations

from statistics import NormalDist
from typing import get_args

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from edgesim.core.errors import ConfigError
from edgesim.core.price_list import WHOLE, CostProfile
from edgesim.learning.measure.step import measure
from edgesim.learning.models.build import base_of
from edgesim.learning.models.quantised import NF4, Codes, QuantisedLinear, dequantised, quantised
from edgesim.learning.objectives.next_token import NextToken
from tests.learning.test_hugging_face import network, part
from tests.sizes import full, sized

KINDS: tuple[Codes, ...] = get_args(Codes)
LARGEST = {"int8": 127, "int4": 7, "nf4": 1}


def test_nf4_has_the_quantiles_of_a_normal_distribution() -> None:
    """Appendix E of QLoRA: quantiles from 1 - 0.9677 to 1/2 and on to 0.9677, 7 below 0, 0 itself and 8 above."""
    end = (1 - 1 / 32 + 1 - 1 / 30) / 2
    above = [NormalDist().inv_cdf(end + (0.5 - end) * place / 8) for place in range(8)]
    below = [-NormalDist().inv_cdf(end + (0.5 - end) * place / 7) for place in range(7)]
    assert np.array(NF4) == pytest.approx(np.sort([*above, 0.0, *below]) / above[0], abs=1e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_codes_are_those_of_the_nearest_levels(kind: Codes) -> None:
    """In NumPy: blocks of 64 in a row, the last one of 15 weights, one of zeros; two codes of 4 bits in a byte."""
    weight = np.random.default_rng(1).normal(size=(11, 13)).astype(np.float32)  # 143 = 64 + 64 + 15
    weight.flat[64:128] = 0.0
    levels = np.array(NF4, np.float32) if kind == "nf4" else np.arange(-LARGEST[kind], LARGEST[kind] + 1)
    nearest, scales = np.zeros(143, dtype=np.int64), np.zeros(3, dtype=np.float32)
    for place, block in enumerate(np.split(weight.flatten(), [64, 128])):
        scales[place] = np.abs(block).max() / np.float32(LARGEST[kind])
        ratios = block / (scales[place] or np.float32(1.0))
        nearest[64 * place : 64 * place + 64] = np.abs(ratios[:, None] - levels).argmin(1)
    codes, found_scales = quantised(torch.from_numpy(weight), kind)
    assert found_scales.numpy().tolist() == scales.tolist()
    if kind == "int8":
        assert codes.dtype == torch.int8 and codes.tolist() == (nearest - 127).tolist()
    else:
        pairs = np.append(nearest, 0).reshape(-1, 2)
        assert codes.dtype == torch.uint8 and codes.tolist() == (16 * pairs[:, 0] + pairs[:, 1]).tolist()
    expected = levels[nearest].astype(np.float32) * np.repeat(scales, 64)[:143]
    assert dequantised(codes, found_scales, kind, (11, 13)).numpy().tolist() == expected.reshape(11, 13).tolist()


@pytest.mark.parametrize("kind", KINDS)
def test_a_layer_multiplies_by_its_dequantised_weights(kind: Codes) -> None:
    """x W' + b and its gradient g W, against a plain linear layer with these weights."""
    torch.manual_seed(1)
    layer = QuantisedLinear(torch.randn(5, 70), torch.randn(5), kind)
    weight = dequantised(layer.codes, layer.scales, kind, (5, 70))
    x = torch.randn(2, 3, 70, requires_grad=True)
    y = x.detach().clone().requires_grad_()
    one, other = layer(x), F.linear(y, weight, layer.bias)
    assert torch.equal(one, other)
    one.square().sum().backward()
    other.square().sum().backward()
    torch.testing.assert_close(x.grad, y.grad)
    assert not any(value.requires_grad for value in layer.parameters())


# Tiny GPT-2 by hand: two blocks of 32 -> 96, 32 -> 32, 32 -> 128 and 128 -> 32, without biases, out of 29,568 numbers.
CODES = 2 * 32 * (96 + 32 + 128 + 128)
OTHERS = 29_568 - CODES
BASE_BYTES = {
    "float16": 2 * 29_568,
    "int8": CODES + 4 * CODES // 64 + 2 * OTHERS,
    "int4": CODES // 2 + 4 * CODES // 64 + 2 * OTHERS,
    "nf4": CODES // 2 + 4 * CODES // 64 + 2 * OTHERS,
}


def price(dtype: str) -> CostProfile:
    module = network(lora={"r": 4}, dtype=dtype)
    return measure(module, dtype, (12,), 8, objective=NextToken(), tokens=True)


@full
def test_bytes_of_the_base_follow_its_type() -> None:
    """Codes of 8 or 4 bits, 4 bytes for each 64 of them, and 2 bytes of each other number. All FLOPs stay."""
    half = price("bfloat16")
    assert (half.base, half.base_bytes) == (29_568, 2 * 29_568)
    for dtype in sized(["nf4"], list(BASE_BYTES), list(BASE_BYTES)):
        found = price(dtype)
        assert (found.base, found.base_bytes) == (29_568, BASE_BYTES[dtype])
        assert (found.train_flops(), found.forward_flops()) == (half.train_flops(), half.forward_flops())
        assert found.coverage == half.coverage
        one, other = (each.memory_bytes(WHOLE, 4, moments=2) for each in (half, found))
        weights = one.weights - half.base_bytes + found.base_bytes
        assert other == one._replace(weights=weights, temporaries=other.temporaries)
        has_codes = dtype not in ("float16", "bfloat16")
        assert (other.temporaries > one.temporaries) == has_codes  # with the weights of the layer at work
        assert other.optimiser == 2 * 4 * found.params  # what trains is float32, and so are its two moments


def test_output_layer_and_shared_tables_keep_their_numbers() -> None:
    """Llama: seven layers in each of two blocks have codes. GPT-2's output layer is its embedding."""
    llama, gpt2 = (network(name, lora={"r": 2}, dtype="int4") for name in ("tiny-llama", "tiny-gpt2"))
    layers = [name for name, layer in llama.named_modules() if isinstance(layer, QuantisedLinear)]
    assert len(layers) == 2 * 7 and not any("lm_head" in name for name in layers)
    held = base_of(gpt2)
    assert held["network.transformer.wte.weight"].dtype == torch.bfloat16
    assert held["network.transformer.h.0.attn.c_attn.base_layer.codes"].numel() == 32 * 96 // 2
    assert not any("wte.codes" in name or "lm_head" in name for name in held)


def test_a_quantised_network_is_near_its_float32_one() -> None:
    """8 bits lose less than 4. The learned levels of normal weights lose less than even ones."""
    x = torch.arange(12)[None] % 8
    exact = network(lora={"r": 2})(x)
    far = {kind: float((network(lora={"r": 2}, dtype=kind)(x) - exact).norm() / exact.norm()) for kind in KINDS}
    assert far["int8"] < far["nf4"] < far["int4"] < 0.5


@pytest.mark.parametrize("dtype", ["nf4", "float16"])
def test_types_are_for_frozen_weights(dtype: str) -> None:
    with pytest.raises(ConfigError, match=f"^model.dtype: {dtype} is for frozen weights; give model.lora"):
        part(dtype=dtype).build((12,), 8)
