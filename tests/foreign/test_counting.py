"""The counter of users' code against edgesim's prices, PyTorch's counter and closed forms."""

from __future__ import annotations

import threading
import time
import warnings
from collections import UserDict
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial

import numpy as np
import pytest
import torch
import torch.nn.functional as F
import torchvision
from torch import Tensor, nn
from torch.nn.attention.flex_attention import flex_attention
from torch.utils.data import DataLoader, TensorDataset, default_collate
from torch.utils.flop_counter import FlopCounterMode

from edgesim.core.price_list import CostProfile
from edgesim.core.task import Pass, Submodel
from edgesim.core.work import PRICED
from edgesim.foreign.counting import Counter
from edgesim.learning.cost_models.measured import Measured
from edgesim.learning.measure.step import measure
from edgesim.learning.models.build import bare_copy
from edgesim.learning.objectives.classification import CLASSIFICATION
from edgesim.learning.objectives.next_token import NextToken
from tests.foreign.small_transformers import (
    LAYERS,
    TOKENS,
    VOCABULARY,
    WIDTH,
    GPTBlock,
    LlamaBlock,
    Transformer,
    eager,
    fused,
)
from tests.sizes import thinned

BATCH = 4
SCORES = 2 * BATCH * TOKENS**2 * WIDTH * LAYERS  # FLOPs of one product of attention in all layers


def perceptron() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 20), nn.ReLU(), nn.Linear(20, 20), nn.ReLU(), nn.Linear(20, 10))


def convolutional() -> nn.Module:
    body = nn.Sequential(nn.Conv2d(1, 6, 3), nn.BatchNorm2d(6), nn.ReLU(), nn.Conv2d(6, 6, 3, groups=3), nn.ReLU())
    return nn.Sequential(body, nn.Conv2d(6, 8, 1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(32, 10))


NETWORKS = {
    "perceptron": (perceptron, (1, 8, 8)),
    "convolutional": (convolutional, (1, 8, 8)),
    "resnet18": (partial(torchvision.models.resnet18, num_classes=10), (3, 32, 32)),
    **{
        f"{block.__name__} {attend.__name__}": (partial(Transformer, block, attend), (TOKENS,))
        for block in (GPTBlock, LlamaBlock)
        for attend in (eager, fused)
    },
}
BASE = {"perceptron": ("1",), "convolutional": ("0",), "resnet18": ("conv1", "bn1", "layer1")}  # what is frozen
EMBEDDINGS = ("tokens", "places", "blocks.0")  # the same of a transformer


def batch_of(shape: tuple[int, ...], batch: int = BATCH) -> tuple[Tensor, Tensor]:
    if len(shape) == 1:
        return torch.randint(VOCABULARY, (batch, *shape)), torch.randint(VOCABULARY, (batch, *shape))
    return torch.randn(batch, *shape), torch.randint(10, (batch,))


def train(module: nn.Module, x: Tensor, y: Tensor, optimizer: torch.optim.Optimizer | None = None) -> None:
    F.cross_entropy(module(x).float(), y).backward()
    if optimizer is not None:
        optimizer.step()
        optimizer.zero_grad()


def flops_of(call: Callable[[], object]) -> float:
    with Counter() as counter:
        call()
    return counter.counted().flops


def price_of(module: nn.Module, shape: tuple[int, ...], kinds: bool = False) -> CostProfile:
    objective, classes = (NextToken(), VOCABULARY) if len(shape) == 1 else (CLASSIFICATION, 10)
    return measure(bare_copy(module), "network", shape, classes, objective=objective, kinds=kinds)


@pytest.mark.parametrize("name", thinned(NETWORKS, {"convolutional"}))
def test_flops_are_those_of_the_price(name: str) -> None:
    """Whole, in lower precision, as a test and with a frozen base."""
    make, shape = NETWORKS[name]
    module, (x, y) = make(), batch_of(shape)
    price = price_of(module, shape)
    with Counter() as whole:
        train(module, x, y)
    assert whole.counted().flops == BATCH * price.train_flops()
    with Counter() as half, torch.autocast("cpu", torch.bfloat16):
        train(module, x, y)
    assert half.counted().flops == BATCH * price.train_flops()
    for quietly in (torch.no_grad, torch.inference_mode):
        with Counter() as tested, quietly():
            module(x)
        assert tested.counted().flops == BATCH * price.forward_flops()
    base = [module.get_submodule(inner) for inner in BASE.get(name, EMBEDDINGS)]
    for inner in base:
        inner.requires_grad_(False)
    kept = {id(inner) for each in base for inner in each.modules()}
    frozen = frozenset(layer for layer in price.layer_names if id(module.get_submodule(layer)) in kept)
    with Counter() as rest:
        train(module, x, y)
    assert rest.counted().flops == BATCH * price.train_flops(Submodel(frozen=frozen)) < whole.counted().flops


@pytest.mark.parametrize("name", NETWORKS)
def test_flops_are_those_of_torchs_counter(name: str) -> None:
    """It has no formula for fused attention on CPUs, which is six products: forward two and backward four."""
    make, shape = NETWORKS[name]
    module, (x, y) = make(), batch_of(shape)
    with Counter() as counter, FlopCounterMode(display=False) as torchs:
        train(module, x, y)
    flops = torchs.get_total_flops()
    if name.endswith("fused"):
        flops += 6 * SCORES
    if name == "convolutional":  # torch forgets that a weight of 6 x 2 x 3 x 3 is in three groups: in its own gradient
        flops -= 2 * 2 * BATCH * 4**2 * 6 * 2 * 9
    assert counter.counted().flops == flops


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("block", [GPTBlock, LlamaBlock])
def test_recomputed_blocks_count_twice(block: type[nn.Module], reentrant: bool) -> None:
    """torch's newer way stops before the last linear layer, of which nothing is kept but its input."""
    x, y = batch_of((TOKENS,))
    once, twice = (
        flops_of(partial(train, Transformer(block, fused, again, reentrant), x, y)) for again in (False, True)
    )
    weights = sum(value.numel() for value in block(fused).parameters() if value.ndim == 2)
    last = 0 if reentrant else block(fused).down.weight.numel()
    assert twice - once == LAYERS * 2 * BATCH * TOKENS * (weights - last) + 2 * SCORES


def test_a_loop_counts_as_its_price_says() -> None:
    """Two epochs of batches of 4 and 3: all kinds of work, and the seed that a data loader draws in each epoch."""
    module, (x, y) = convolutional(), batch_of((1, 8, 8), 7)
    profile, optimizer = price_of(module, (1, 8, 8), kinds=True), torch.optim.SGD(module.parameters(), 0.01)
    with Counter(kinds=True) as counter:
        for _ in range(2):
            for batch in DataLoader(TensorDataset(x, y), BATCH, shuffle=True):
                train(module, *batch, optimizer)
    found = counter.counted()
    price = Measured().amounts(profile, Pass(), Submodel(), np.array([14.0]), np.array([4.0]))
    assert found.work.keys() == set(PRICED) and found.flops == found.work["flops"]
    assert (found.steps, found.samples) == (4, 14)
    seeds = {"operations": 2, "bytes": 2 * 2 * 8}
    for kind, amount in price.items():
        assert found.work[kind] == amount[0] + seeds.get(kind, 0), kind


def test_accumulated_gradients_count_every_batch_and_one_step() -> None:
    module, (x, y) = perceptron(), batch_of((1, 8, 8), 2 * BATCH)
    optimizer = torch.optim.Adam(module.parameters(), fused=True)
    with Counter(kinds=True) as counter:
        for place, (xs, ys) in enumerate(DataLoader(TensorDataset(x, y), BATCH)):
            train(module, xs, ys, optimizer if place else None)
    found, price = counter.counted(), price_of(module, (1, 8, 8))
    assert found.flops == 2 * BATCH * price.train_flops()
    assert (found.steps, found.samples, found.work["steps"]) == (1, 2 * BATCH, 2)
    assert found.work["update_bytes"] == 28 * price.params


def test_closures_of_optimisers_count_outside_of_the_update() -> None:
    module, (x, y) = perceptron(), batch_of((1, 8, 8))
    optimizer = torch.optim.SGD(module.parameters(), 0.01)
    with Counter(kinds=True) as plain:
        optimizer.step(lambda: train(module, x, y))
        optimizer.step(closure=lambda: train(module, x, y))
    with pytest.raises(ZeroDivisionError), Counter(kinds=True):
        optimizer.step(lambda: 1 / 0)
    found, price = plain.counted(), price_of(module, (1, 8, 8), kinds=True)
    sums = len(list(module.parameters()))  # of gradients with those before them
    amounts = Measured().amounts(price, Pass(), Submodel(), np.array([2.0 * BATCH]), np.array([2.0]))
    assert found.work["operations"] == amounts["operations"][0] + sums
    assert (found.steps, found.flops) == (2, amounts["flops"][0])


@pytest.mark.filterwarnings("ignore:There is a performance drop", "ignore:The PyTorch API of nested")
def test_functional_transforms_count_what_they_run() -> None:
    """A product of 5 x 7 with each of 3 samples, and gradients of each sample's own."""
    weight, x = torch.randn(5, 7), torch.randn(3, 7)

    def loss(weight: Tensor, x: Tensor) -> Tensor:
        return (weight @ x[:, None]).square().sum()

    assert flops_of(lambda: torch.vmap(lambda x: weight @ x[:, None])(x)) == 2 * 3 * 5 * 7
    assert flops_of(lambda: torch.func.grad(loss)(weight, x[0])) == 2 * 2 * 5 * 7
    assert flops_of(lambda: torch.vmap(torch.func.grad(loss), (None, 0))(weight, x)) == 2 * 2 * 3 * 5 * 7
    q = torch.randn(3, 2, 2, 6, 4)
    inner = torch.vmap(torch.func.grad(lambda q: F.scaled_dot_product_attention(q, q, q).sum()))
    assert flops_of(lambda: inner(q)) == 6 * 2 * (3 * 2 * 2) * 6 * 6 * 4


def test_second_derivatives_count() -> None:
    """y = w x: forward, gradient of w with a graph, and its derivative by x: one product each of 5 x 7 with 3."""
    weight, x = torch.randn(5, 7, requires_grad=True), torch.randn(7, 3, requires_grad=True)

    def twice() -> None:
        (slope,) = torch.autograd.grad((weight @ x).sum(), weight, create_graph=True)
        torch.autograd.grad(slope.sum(), x)

    assert flops_of(twice) == 3 * 2 * 5 * 7 * 3


def test_gradients_of_attention_that_nobody_needs_are_free() -> None:
    q, k, v = (torch.randn(2, 3, 5, 8, requires_grad=name == "q") for name in "qkv")
    product = 2 * 6 * 5 * 5 * 8
    assert flops_of(lambda: F.scaled_dot_product_attention(q, k, v).sum().backward()) == 4 * product
    assert flops_of(lambda: F.scaled_dot_product_attention(k, k, q).sum().backward()) == 3 * product


@pytest.mark.parametrize("bidirectional", [False, True])
def test_fused_layers_of_lstm_cost_their_products(bidirectional: bool) -> None:
    """Against the products that PyTorch's counter sees without numbers, where no kernel is fused."""
    found = []
    for device in ("cpu", "meta"):
        lstm = nn.LSTM(3, 5, 2, batch_first=True, bidirectional=bidirectional, device=device)
        x = torch.ones(2, 4, 3, device=device)
        counter = Counter() if device == "cpu" else FlopCounterMode(display=False)
        with counter:
            lstm(x)[0].sum().backward()
        found.append(counter.counted().flops if isinstance(counter, Counter) else counter.get_total_flops())
    assert found[0] == found[1] > 0


@pytest.mark.filterwarnings("ignore:There is a performance drop", "ignore:The PyTorch API of nested")
def test_the_fast_path_of_attention_costs_its_products() -> None:
    """A test takes it: one operation for a whole layer. Padded samples are computed without their padding."""
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval()
    encoder = nn.TransformerEncoder(layer, 1).eval()
    x, padded = torch.randn(2, 4, 8), torch.tensor([[False] * 4, [False, False, True, True]])

    def products(tokens: int) -> int:
        return 2 * tokens * (4 * 8 * 8 + 2 * 8 * 16) + 2 * 2 * tokens**2 * 8

    with torch.no_grad():
        assert flops_of(lambda: layer(x)) == 2 * products(4)
        assert flops_of(lambda: encoder(x, src_key_padding_mask=padded)) == products(4) + products(2)
        attention = layer.self_attn
        assert flops_of(lambda: attention(x, x, x)) == 2 * (products(4) - 2 * 4 * 2 * 8 * 16)


def test_bytes_of_storages() -> None:
    """100 floats read, 200 made at once: a view makes none, and a result that is let go of counts no more."""
    read = torch.ones(100)
    with Counter() as counter:
        for _ in range(3):
            made = read.view(10, 10) + 1
            also = made.t() * 2
            del made, also
        rows = torch.ones(1000)  # which are data: only what is picked of them is used
    with counter:
        rows[torch.arange(10)].sum()
    found = counter.counted()
    assert (found.read_bytes, found.made_bytes, found.memory_bytes) == (400, 4000, 4400)
    with Counter() as small:
        read + 1
    assert small.counted().memory_bytes == 800


def test_memory_of_training_is_near_the_price() -> None:
    """Both are the most bytes alive at an instant. The price also has the copies that oneDNN makes of weights."""
    module, (x, y) = convolutional(), batch_of((1, 8, 8), 64)
    optimizer, price = torch.optim.SGD(module.parameters(), 0.01), price_of(module, (1, 8, 8))
    with Counter() as counter:
        train(module, x, y, optimizer)
    assert counter.counted().memory_bytes == pytest.approx(price.memory_bytes(Submodel(), 64).total, rel=0.35)


def test_counters_nest_go_on_and_survive_errors() -> None:
    left, right = torch.ones(2, 3), torch.ones(3, 4)
    outer, inner = Counter(), Counter()
    with pytest.raises(ValueError, match="given up"), outer:
        left @ right
        with inner, inner:
            left @ right
            assert inner.counted().flops == 48
        with outer:
            left @ right
        raise ValueError("given up")
    left @ right
    assert (outer.counted().flops, inner.counted().flops) == (3 * 48, 48)
    with inner:
        left @ right
    assert inner.counted().flops == 2 * 48


def test_threads_and_tensors_without_numbers_do_not_count() -> None:
    """Each thread has its own counters. A network that is priced within a call costs nothing."""
    ones, module = torch.ones(3, 3), perceptron()
    found: list[float] = []
    with Counter() as counter:
        thread = threading.Thread(target=lambda: found.append(flops_of(lambda: ones @ ones)))
        thread.start()
        thread.join()
        measure(module, "perceptron", (1, 8, 8), 10)
    assert found == [54]
    assert (counter.counted().flops, counter.counted().memory_bytes) == (0, 0)


def test_host_seconds_are_of_processors() -> None:
    with Counter() as counter:
        time.sleep(0.05)
        idle_s = counter.counted().host_s
        end_s = time.process_time() + 0.05
        while time.process_time() < end_s:
            pass
    assert idle_s < 0.04 < counter.counted().host_s - idle_s
    before_s = counter.counted().host_s
    assert counter.counted().host_s == before_s


def test_results_are_the_same_bits() -> None:
    found = []
    for counted in (False, True):
        torch.manual_seed(1)
        module, (x, y) = convolutional(), batch_of((1, 8, 8))
        optimizer = torch.optim.Adam(module.parameters())
        with Counter(kinds=True) if counted else nullcontext():
            train(module, x, y, optimizer)
        found.append(torch.cat([value.detach().flatten() for value in module.parameters()]))
    assert torch.equal(*found)


@pytest.mark.parametrize("attend", ["eager", "sdpa"])
@pytest.mark.parametrize("family", ["GPT2", "Llama"])
def test_transformers_of_hugging_face(family: str, attend: str) -> None:
    """Against closed forms: 2 FLOPs a weight and token, three times for training, and the products of attention."""
    transformers = pytest.importorskip("transformers")
    if family == "GPT2":
        sizes = {"n_layer": 2, "n_embd": 32, "n_head": 4, "n_positions": 16}
        config = transformers.GPT2Config(vocab_size=50, attn_implementation=attend, **sizes)
        module = transformers.GPT2LMHeadModel(config)
        body = module.transformer.h
    else:
        sizes = {"num_hidden_layers": 2, "hidden_size": 32, "num_attention_heads": 4, "num_key_value_heads": 2}
        config = transformers.LlamaConfig(
            vocab_size=50, attn_implementation=attend, intermediate_size=48, max_position_embeddings=16, **sizes
        )
        module = transformers.LlamaForCausalLM(config)
        body = module.model.layers
    x = torch.randint(50, (3, 16))
    with Counter() as counter:
        module(input_ids=x, labels=x).loss.backward()
    weights = 32 * 50 + sum(value.numel() for value in body.parameters() if value.ndim == 2)
    assert counter.counted().flops == 3 * 2 * (weights * 3 * 16 + 2 * 2 * 3 * 16 * 16 * 32)


class Wrapped(Tensor):
    """A tensor of a user's class that holds another one and computes with it."""

    @staticmethod
    def __new__(cls, inner: Tensor) -> Wrapped:
        self = Tensor._make_wrapper_subclass(cls, inner.shape)
        self.inner = inner
        return self

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        return func(*(each.inner if isinstance(each, cls) else each for each in args), **(kwargs or {}))


def test_tensors_of_users_classes_count_what_they_are_made_of() -> None:
    ones = torch.ones(3, 3)
    assert flops_of(lambda: Wrapped(ones) @ ones) == 54


def test_compiled_code_counts_as_it_is_written() -> None:
    module, (x, y) = perceptron(), batch_of((1, 8, 8))
    compiled = torch.compile(module, backend="eager", fullgraph=True)
    flops = flops_of(lambda: train(module, x, y))
    assert flops_of(lambda: train(compiled, x, y)) == flops
    seen: list[object] = []
    torch.compile(module, backend=lambda graph, _: seen.append(graph) or graph)(x)
    assert seen  # the compiler is on again
    assert flops_of(lambda: train(compiled, x, y)) == flops


def test_samples_are_unknown_where_a_batch_does_not_say() -> None:
    """A mapping of a user's class says; a batch without tensors does not."""
    rows = [{"x": torch.ones(2)}] * 5
    with Counter() as counter:
        list(DataLoader(rows, 2, collate_fn=lambda each: UserDict(default_collate(each))))
    assert counter.counted().samples == 5
    with counter:
        list(DataLoader(rows, 2, collate_fn=str))
    assert counter.counted().samples is None


def test_tensors_of_other_layouts_run_as_they_do_without_a_counter() -> None:
    ones = torch.ones(3, 3)
    with warnings.catch_warnings(action="ignore"):  # that some of these layouts may change
        nested = torch.nested.nested_tensor([ones[:2], ones])
        jagged = torch.nested.nested_tensor([ones[:2], ones], layout=torch.jagged)
        compressed = ones.to_sparse_csr()
    with Counter(kinds=True) as counter:
        for quietly in (torch.enable_grad, torch.inference_mode):
            with quietly():
                F.linear(nested, ones), nested @ nested.transpose(1, 2), nested.relu()
                ones.to_sparse() + ones.to_sparse(), compressed + compressed, ones.to_mkldnn()
    assert counter.counted().flops == 0
    for multiply, tokens in (
        (lambda: F.linear(jagged, ones), 5),
        (lambda: ones.to_sparse() @ ones, 3),
        (lambda: compressed @ ones, 3),
        (lambda: torch.mm(ones, ones, out=torch.empty(3, 3)), 3),
    ):
        assert flops_of(multiply) == 2 * tokens * 3 * 3


def test_higher_order_operations_run() -> None:
    x = torch.ones(1, 1, 4, 8)
    with warnings.catch_warnings(action="ignore"):  # that it is slow without a compiler
        assert flops_of(lambda: flex_attention(x, x, x)) == 2 * 2 * 4 * 4 * 8


def test_rows_that_are_picked_count_and_not_all_rows_that_there_are():
    table = torch.zeros(1000, 8)
    with Counter(kinds=True) as counter:
        table[torch.tensor([3, 5])]
    assert counter.counted().work["bytes"] == 2 * 2 * 8 * 4  # read and written
