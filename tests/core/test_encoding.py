"""What payloads weigh: published totals, real serialisations, and scenarios that choose an encoding."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import edgesim
from edgesim.config.schema import json_schema
from edgesim.core.encoding import Contents, Encoding
from edgesim.core.price_list import CostProfile, LayerCost
from edgesim.core.task import Payload, Submodel
from tests.calling import TINY
from tests.conftest import digits_scenario, simulate_null
from tests.end_to_end.test_bad_input import check
from tests.learning.test_measure import cost_profile_of
from tests.sizes import full, spread

BITMAP = Encoding(zeros="bitmap")
PARAMS = frozenset({"params"})


def cost_profile(*layers: tuple[int, int]) -> CostProfile:
    """Return the cost profile of layers with so many weights and other parameters."""
    costs = [
        LayerCost(str(i), "Linear", weights + vectors, 0, 0.0, 0.0, 0.0, frozenset(), weights)
        for i, (weights, vectors) in enumerate(layers)
    ]
    return CostProfile("made up", (1,), 2, tuple(costs))


def masked(model: CostProfile, nonzero: int) -> Submodel:
    """Return a part whose masks cover all weights and keep so many, those of the first layers."""
    found = {}
    for layer in model.layers:
        if layer.weights:
            found[layer.name] = min(layer.weights, nonzero)
            nonzero -= found[layer.name]
    assert nonzero == 0
    return Submodel(nnz=tuple(found.items()))


# --- published numbers --------------------------------------------------------------------------------------------


def test_values_leftovers_and_one_bitmap() -> None:
    """DA-DPFL sheet, TV9: 1000 weights of which 500 are kept, 20 other numbers: 2000 + 80 + 125 bytes."""
    model = cost_profile((1000, 20))
    assert model.nbytes(Payload(encoding=BITMAP), masked(model, 500)) == 2205
    assert model.nbytes(Payload(extra_bytes=8), masked(model, 500), Encoding(zeros="known")) == 2088  # with a seed
    assert model.nbytes(Payload(), masked(model, 500)) == 4080  # zeros and all, unless something else is asked for
    assert model.numbers(Payload(encoding=BITMAP), masked(model, 500)) == 1020


@full
@pytest.mark.parametrize(
    ("name", "classes", "nonzero", "nbytes"),
    spread(
        [
            ("resnet18_gn", 10, 5582173, 23762676),
            ("vgg11_gn", 100, 4634461, 19729884),
            ("alexnet_small", 7, 11625310, 49444972),
        ],
        1,
    ),
)
def test_half_of_the_paper_models(name: str, classes: int, nonzero: int, nbytes: int) -> None:
    """DA-DPFL sheet, 1.11: 53.2 % of the dense bytes; what the mask keeps in which layer does not matter."""
    model = cost_profile_of(name, classes)
    assert model.nbytes(Payload(encoding=BITMAP), masked(model, nonzero)) == nbytes
    assert nbytes / model.nbytes(Payload()) == pytest.approx(0.532, abs=6e-4)


def test_quantised_models() -> None:
    """DFedAvgM sends half the bytes; BEER's two vectors of 9 bits are 2 x 9/32 of one of 32, and a scale a layer."""
    model = cost_profile((3200, 10), (640, 10))
    assert model.nbytes(Payload(encoding=Encoding(values="float16"))) == 2 * 3860
    two = Payload(frozenset({"x", "v"}), encoding=Encoding(values="gsgd", bits=9))
    assert model.nbytes(two) == 2 * (3840 * 9 // 8 + 4 * 20 + 4 * 2)
    assert model.nbytes(Payload(encoding=Encoding(values="int8"))) == 3840 + 4 * 20 + 4 * 2


# --- the cheapest -------------------------------------------------------------------------------------------------


@given(masked=st.integers(1, 10**6), data=st.data())
def test_the_cheapest_follows_the_density(masked: int, data: st.DataObject) -> None:
    """Dense above 31/32, indices below 1/32, else a bitmap. Its last byte may be begun, so up to a byte dearer."""
    nonzero = data.draw(
        st.integers(0, masked) | st.integers(masked // 64, masked // 16 + 1).map(lambda n: min(n, masked))
    )
    held = Contents(collections=1, layers=1, whole=0, masked=masked, nonzero=nonzero, vectors=7)
    density = nonzero / masked
    rule = "sent" if density > 31 / 32 else "indices" if density < 1 / 32 else "bitmap"
    by_rule = Encoding(zeros=rule).nbytes(held)  # type: ignore[arg-type]
    assert by_rule - 1 <= Encoding(zeros="cheapest").nbytes(held) <= by_rule


@pytest.mark.parametrize(
    ("nonzero", "nbytes"), [(0, 0), (31, 248), (32, 256), (33, 132 + 128), (992, 4096), (993, 4096)]
)
def test_the_cheapest_at_its_thresholds(nonzero: int, nbytes: int) -> None:
    """1024 weights: 8 bytes each up to 32, then 128 and 4 each up to 992, then 4096."""
    model = cost_profile((1024, 0))
    assert model.nbytes(Payload(encoding=Encoding(zeros="cheapest")), masked(model, nonzero)) == nbytes


# --- real serialisations ------------------------------------------------------------------------------------------


class Layer(NamedTuple):
    """Numbers of one layer, one row a kind."""

    weights: np.ndarray  # zero where `keep` is not
    keep: np.ndarray | None  # None: no mask covers it
    vectors: np.ndarray


def write(layers: Sequence[Layer], zeros: str, dtype: str) -> bytes:
    """Return a payload as bytes: the mask, then for each kind the weights, then all other numbers."""
    keeps = np.concatenate([layer.keep for layer in layers if layer.keep is not None] or [np.zeros(0, bool)])
    masks = {"bitmap": np.packbits(keeps), "indices": np.flatnonzero(keeps).astype("<u4")}
    rows = [w if keep is None or zeros == "sent" else w[:, keep] for w, keep, _ in layers]
    numbers = [*rows, *(layer.vectors for layer in layers)]
    mask = masks[zeros].tobytes() if zeros in masks else b""
    return mask + b"".join(row.astype(dtype).tobytes() for row in numbers)


def read(data: bytes, like: Sequence[Layer], zeros: str, dtype: str) -> list[Layer]:
    """Return what was written, from the sizes of the layers alone and, if it is known, the mask."""
    covered = sum(layer.weights.shape[1] for layer in like if layer.keep is not None)
    keeps = np.concatenate([layer.keep for layer in like if layer.keep is not None] or [np.zeros(0, bool)])
    start = 0
    if zeros == "bitmap":
        start = -(-covered // 8)
        keeps = np.unpackbits(np.frombuffer(data[:start], np.uint8))[:covered].astype(bool)
    if zeros == "indices":
        start = 4 * int(keeps.sum())  # how many there are is known from the length of the message
        keeps = np.isin(np.arange(covered), np.frombuffer(data[:start], "<u4"))
    numbers, found = np.frombuffer(data[start:], dtype).astype(np.float32), []
    for weights, keep, _ in like:
        mine = None
        if keep is not None:
            mine, keeps = keeps[: len(keep)], keeps[len(keep) :]
        where = np.ones(weights.shape[1], bool) if mine is None or zeros == "sent" else mine
        full = np.zeros_like(weights)
        taken, numbers = np.split(numbers, [len(full) * int(where.sum())])
        full[:, where] = taken.reshape(len(full), -1)
        found.append((full, mine))
    vectors = np.split(numbers, np.cumsum([layer.vectors.size for layer in like]))
    return [Layer(w, k, v.reshape(ly.vectors.shape)) for (w, k), v, ly in zip(found, vectors, like, strict=False)]


@given(
    sizes=st.lists(st.tuples(st.integers(1, 60), st.integers(0, 9), st.booleans()), min_size=1, max_size=4),
    collections=st.integers(1, 2),
    density=st.sampled_from([0.0, 0.01, 0.03, 0.5, 0.97, 1.0]),
    half=st.booleans(),
    seed=st.integers(0, 2**32),
)
def test_a_price_is_the_length_of_a_message_that_can_be_read(
    sizes: list[tuple[int, int, bool]], collections: int, density: float, half: bool, seed: int
) -> None:
    """For random masks: bytes charged are those written, and all numbers come back from them."""
    draw = np.random.default_rng(seed)
    layers = []
    for weights, vectors, is_masked in sizes:
        keep = draw.random(weights) < density if is_masked else None
        values = draw.standard_normal((collections, weights)).astype(np.float16).astype(np.float32)
        others = draw.standard_normal((collections, vectors)).astype(np.float16).astype(np.float32)
        layers.append(Layer(values if keep is None else values * keep, keep, others))
    model = cost_profile(*((w, v) for w, v, _ in sizes))
    submodel = Submodel(nnz=tuple((str(i), int(ly.keep.sum())) for i, ly in enumerate(layers) if ly.keep is not None))
    payload = Payload(frozenset({"params", "momenta"}) if collections == 2 else PARAMS)
    name, dtype = ("float16", "<f2") if half else ("float32", "<f4")
    lengths = {}
    for zeros in ("sent", "bitmap", "indices", "known"):
        data = write(layers, zeros, dtype)
        lengths[zeros] = len(data)
        assert model.nbytes(payload, submodel, Encoding(values=name, zeros=zeros)) == len(data)  # type: ignore[arg-type]
        for mine, theirs in zip(layers, read(data, layers, zeros, dtype), strict=True):
            np.testing.assert_array_equal(mine.weights, theirs.weights)
            np.testing.assert_array_equal(mine.vectors, theirs.vectors)
    lengths.pop("known")
    cheapest = Encoding(values=name, zeros="cheapest")  # type: ignore[arg-type]
    assert model.nbytes(payload, submodel, cheapest) == min(lengths.values())


@pytest.mark.parametrize(
    ("values", "nonzero", "sent", "cheapest"),
    [
        ("int8", 90, 100 + 4, 90 + 13 + 4),  # beside 255 levels a byte has one number to spare
        ("qsgd", 90, 100 + 13 + 4, 90 + 13 + 4),  # all 256 are levels
        ("gsgd", 100, 100 + 4, 100 + 4),  # nothing is left out
    ],
)
def test_where_no_number_is_to_spare_zeros_take_a_bit(values: str, nonzero: int, sent: int, cheapest: int) -> None:
    """The receiver has to tell a weight that was rounded to 0 from one that is not there."""
    held = Contents(collections=1, layers=1, whole=0, masked=100, nonzero=nonzero, vectors=0)
    bits = None if values == "int8" else 8
    assert Encoding(values=values, bits=bits).nbytes(held) == sent  # type: ignore[arg-type]
    assert Encoding(values=values, bits=bits, zeros="cheapest").nbytes(held) == min(sent, cheapest)  # type: ignore[arg-type]


# --- scenarios ----------------------------------------------------------------------------------------------------


def encoded(**encoding: Any) -> Any:
    """Return the jobs of a timing-only run whose payloads are written so."""
    sizes = {"name": "sizes", "samples_per_device": 50}
    run = simulate_null(digits_scenario(backend="null", partition=sizes, encoding=encoding, stop={"rounds": 1}))
    return run.tables["jobs"].frame()


def test_each_direction_has_its_encoding() -> None:
    """cnn_digits has 144 + 4608 + 1280 weights and 58 biases; transfers take as long as their bytes say."""
    plain, mixed = encoded(), encoded(up="float16", down={"values": "qsgd", "bits": 9})
    assert set(plain["up_bytes"]) == set(plain["down_bytes"]) == {4 * 6090}
    assert set(mixed["up_bytes"]) == {2 * 6090}
    assert set(mixed["down_bytes"]) == {6032 * 9 // 8 + 4 * 58 + 4 * 3}
    assert (mixed["up_s"] - 0.02).to_numpy() == pytest.approx((plain["up_s"] - 0.02).to_numpy() / 2)
    assert mixed["flops"].tolist() == plain["flops"].tolist()


def test_encoding_and_decoding_take_flops() -> None:
    """A device pays for each number that it sends and for each that it receives."""
    plain, coded = encoded(), encoded(up={"values": "int8", "flops_per_number": 4}, down={"flops_per_number": 0.5})
    assert (coded["flops"] - plain["flops"]).to_numpy() == pytest.approx(4.5 * 6090)
    assert (coded["compute_s"] > plain["compute_s"]).all()


def test_a_payload_may_have_its_own() -> None:
    """What the method says stands above what the scenario says."""
    assert cost_profile((8, 0)).nbytes(Payload(encoding=Encoding()), usual=Encoding(values="float16")) == 32


def test_a_scenario_keeps_its_encodings() -> None:
    """A name stands for a table, the canonical scenario gives them back, and a different one is a different run."""
    short = digits_scenario(encoding={"up": "int8", "down": {"values": "gsgd", "bits": 5, "zeros": "cheapest"}})
    assert short.encoding.up == Encoding(values="int8")
    assert edgesim.load(short.canonical()) == short
    assert short.digest() != digits_scenario().digest()


@full
def test_editors_know_the_names() -> None:
    """A name where it says all, or a table."""
    up = json_schema()["$defs"]["Encodings"]["properties"]["up"]
    assert up["anyOf"][0] == {"enum": ["float32", "float16", "int8", "sign"]}
    assert json_schema()["$defs"]["Encoding"]["properties"]["zeros"]["default"] == "sent"


BAD = {
    "few bits": ("up={values='qsgd', bits=2}", "up.bits: must be greater than or equal to 3, got 2"),
    "many bits": ("up={values='gsgd', bits=17}", "up.bits: must be less than or equal to 16, got 17"),
    "half a bit": (
        "up={values='qsgd', bits=4.5}",
        "up.bits: must be a whole number, got 4.5",
    ),
    "no bits": ("down=qsgd", "down: 'qsgd' needs bits, from 3 to 16"),
    "bits of float32": ("up={bits=8}", "up: bits go with 'qsgd' and 'gsgd' alone, found bits = 8 with 'float32'"),
    "unknown values": ("up=float8", "up: must be 'float32', 'float16', 'int8', 'qsgd', 'gsgd' or 'sign', got"),
    "unknown zeros": ("up={zeros='some'}", "up.zeros: must be 'sent', 'bitmap', 'indices', 'cheapest' or 'known', got"),
    "negative cost": ("up={flops_per_number=-1}", "up.flops_per_number: must be greater than or equal to 0, got -1"),
    "endless cost": ("up={flops_per_number=inf}", "up.flops_per_number: must be less than inf, got inf"),
    "no share": ("up={sparsify='top_k'}", "up: 'top_k' needs a share of the weights, such as share = 0.01"),
    "scale alone": ("up={values='int8', scale='root_mean_square'}", "up: scale goes with values = 'sign', found scale"),
    "share alone": ("up={share=0.1}", "up: a share goes with sparsify = 'top_k' or 'rand_k', found share = 0.1 alone"),
    "all of them": ("up={sparsify='rand_k', share=1.0}", "up.share: must be less than 1, got 1.0"),
    "an update of zeros": (
        "up={update=true, zeros='bitmap'}",
        "up: zeros go with whole models under a mask, found zeros = 'bitmap' with an update",
    ),
    "momentum alone": (
        "up={momentum=0.9, sparsify='top_k', share=0.1}",
        "up: momentum goes with sparsify = 'top_k' and error_feedback = true, found sparsify = 'top_k', "
        "error_feedback = false",
    ),
    "momentum of all": (
        "up={momentum=0.9, error_feedback=true}",
        "up: momentum goes with sparsify = 'top_k' and error_feedback = true, found sparsify = 'none'",
    ),
    "momentum turned": (
        "up={momentum=0.9, sparsify='top_k', share=0.1, error_feedback=true, rotate=true}",
        "up: momentum ends for weights that are sent, and rotate mixes them with others; leave one out",
    ),
    "endless momentum": ("up={momentum=1}", "up.momentum: must be less than 1, got 1"),
    "no length": ("up={clip_norm=0}", "up.clip_norm: must be greater than 0, got 0"),
    "rank of signs": (
        "up={rank=2, values='sign', error_feedback=true}",
        "up: rank goes with error_feedback = true and none of values, sparsify, rotate; found values",
    ),
    "rank of some": (
        "up={rank=2, sparsify='rand_k', share=0.1, error_feedback=true}",
        "up: rank goes with error_feedback = true and none of values, sparsify, rotate; found sparsify",
    ),
    "rank alone": (
        "up={rank=2}",
        "up: rank goes with error_feedback = true and none of values, sparsify, rotate; found no error_feedback",
    ),
    "no rank": ("up={rank=0, error_feedback=true}", "up.rank: must be greater than or equal to 1, got 0"),
    "warm-up alone": ("up={warm_up=4}", "up: warm_up goes with a share of the weights, found warm_up = 4 alone"),
    "momentum down": (
        "down={clip_norm=1}",
        "down: the server sends whole models, an update goes up alone; use encoding.up",
    ),
    "an update down": ("down=sign", "down: the server sends whole models, an update goes up alone; use encoding.up"),
    "a number": ("up=16", "up: must be a table, got 16"),
    "unknown key": ("up={bit=4}", "up.bit: unknown key; did you mean 'bits'?"),
    "unknown direction": ("upp=float16", "upp: unknown key; did you mean 'up'? (allowed: up, down, base)"),
}


@pytest.mark.parametrize(("override", "says"), BAD.values(), ids=BAD)
def test_a_bad_encoding_is_one_line(override: str, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The line names the key, what was found and what is allowed."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "scenario.toml").write_text(TINY)
    check(tmp_path, ["run", "scenario.toml", "--out", "run", "--set", f"encoding.{override}"], f"encoding.{says}")
