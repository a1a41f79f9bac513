"""Table II of the DA-DPFL paper from our networks, masks, encodings and prices.

Source: DA-DPFL paper, Table II, and the final sparsities that its text gives. How the numbers come about the paper does
not say; they follow from

    Com  = 10 models x 4 bytes x parameters x (1 - sparsity) / 2^20, printed as MB, of one direction and without masks
    FLOP = 5 epochs x samples of a device x 3 x forward FLOPs, of ERK masks at sparsity 0.5 in sparse methods
"""

from __future__ import annotations

import csv
from functools import cache
from pathlib import Path

import pytest

from edgesim.core.encoding import Encoding
from edgesim.core.price_list import CostProfile
from edgesim.core.task import Payload, Submodel
from edgesim.learning.submodel import masks
from edgesim.methods.decentralised.sparse import FirstMasks, Maskable
from tests.learning.test_measure import cost_profile_of
from tests.sizes import full, spread

TABLE_2 = Path(__file__).parents[2] / "docs" / "data" / "dadpfl_table_2.csv"
MIB = 2**20
NEIGHBOURS, EPOCHS, BATCH = 10, 5, 128
# The network of each column. HAM10000 has 7 classes, but its bytes are those of a network for 10.
NETWORKS = {"HAM": ("alexnet_small", 10), "C10": ("resnet18_gn", 10), "C100": ("vgg11_gn", 100)}
SAMPLES = {"HAM": 650, "C10": 500, "C100": 500}  # of a device; 65,018 on HAM10000 after its rare classes are repeated
PRINTED_SPARSITY = {
    ("HAM", "Dir"): 0.61, ("HAM", "Pat"): 0.56, ("C10", "Dir"): 0.65, ("C10", "Pat"): 0.73,
    ("C100", "Dir"): 0.70, ("C100", "Pat"): 0.73,
}  # fmt: skip


def published(method: str, column: str, quantity: str = "Com_MB") -> float:
    """Return a number of the table."""
    lines = (line for line in TABLE_2.read_text().splitlines() if not line.startswith("#"))
    return next(float(row[f"{column}_{quantity}"]) for row in csv.DictReader(lines) if row["table2_method"] == method)


@cache
def network(column: str) -> CostProfile:
    """Return the price list of a column's network."""
    return cost_profile_of(*NETWORKS[column])


def masked(cost_profile: CostProfile, sparsity: float, maskable: Maskable = "2d") -> Submodel:
    """Return what ERK masks leave of a network."""
    first = FirstMasks(sparsity, maskable, "shared")
    return Submodel("sparse", nnz=masks.nonzeros(first.counts(first.shapes(cost_profile))))


def dense_mib(column: str) -> float:
    """Return what ten whole models take, in MiB."""
    return NEIGHBOURS * network(column).nbytes(Payload()) / MIB


def sparse_mib(column: str, sparsity: float, zeros: str = "known") -> float:
    """Return what ten masked models take by our encodings, in MiB: values and, unless known, where they belong."""
    cost_profile = network(column)
    payload = Payload(encoding=Encoding(zeros=zeros))  # type: ignore[arg-type]
    return NEIGHBOURS * cost_profile.nbytes(payload, masked(cost_profile, sparsity)) / MIB


def flops(column: str, submodel: Submodel | None = None, screening: bool = False) -> float:
    """Return the FLOPs of a device in a round, in 1e12: three times forward, and for a batch of the whole network."""
    cost_profile = network(column)
    forward = cost_profile.forward_flops(submodel or Submodel(), sparse="ideal")
    return 3 * (EPOCHS * SAMPLES[column] * forward + screening * BATCH * cost_profile.forward_flops()) / 1e12


# --- networks ---------------------------------------------------------------------------------------------------


@full
@pytest.mark.parametrize(
    ("name", "classes", "params", "weights"),
    spread(
        [
            ("resnet18_gn", 10, 11173962, 11164352),
            ("vgg11_gn", 100, 9277284, 9268928),
            ("alexnet_small", 7, 23259975, 23250624),
            ("alexnet_small", 10, 23272266, 23250624 + 3 * 4096),
        ],
        1,
    ),
)
def test_parameters_that_masks_can_cover(name: str, classes: int, params: int, weights: int) -> None:
    """All and those of two dimensions or more; three more classes are 3 x (4096 + 1) parameters more."""
    cost_profile = cost_profile_of(name, classes)
    assert cost_profile.params == params
    assert sum(layer.weights for layer in cost_profile.layers) == weights


# --- megabytes --------------------------------------------------------------------------------------------------


@full
@pytest.mark.parametrize(("column", "params", "mib"), [("HAM", 23272266, 887.8), ("C10", 11173962, 426.3)])
def test_ten_whole_models(column: str, params: int, mib: float) -> None:
    """10 x 4 x 23,272,266 / 2^20 = 887.77 and 10 x 4 x 11,173,962 / 2^20 = 426.25."""
    assert dense_mib(column) == 10 * 4 * params / 2**20
    assert round(dense_mib(column), 1) == mib == published("FedAvg", column) == published("DFedSAM", column)


@full
@pytest.mark.parametrize(("column", "partition", "mib"), [("HAM", "Dir", 346.2), ("C10", "Pat", 115.1)])
def test_what_pruning_left(column: str, partition: str, mib: float) -> None:
    """0.39 x 887.77 = 346.23 and 0.27 x 426.25 = 115.09; the paper prunes biases and normalisation on paper, too.

    Ours stay whole: (1 - s) weights + all others is s x others more, 0.06 and 0.23 %.
    """
    sparsity = PRINTED_SPARSITY[column, partition]
    assert round((1 - sparsity) * dense_mib(column), 1) == mib == published(f"DA-DPFL_{partition}", column)
    cost_profile = network(column)
    others = cost_profile.params - sum(layer.weights for layer in cost_profile.layers)
    more = NEIGHBOURS * 4 * sparsity * others / MIB
    assert sparse_mib(column, sparsity) == pytest.approx(mib + more, abs=0.05)  # half of the last printed digit
    assert sparse_mib(column, sparsity) == pytest.approx(mib, rel=0.003)


@pytest.mark.parametrize(
    ("method", "column", "sparsity", "off"),
    [
        ("DisPFL", "HAM", 0.50, 0.0006),  # 443.88 and 0.18 of biases; 443.8 cuts off instead of rounding
        ("DA-DPFL_Dir", "C10", 0.65, 0.0022),  # 149.19 and 0.24 of normalisation
        ("DA-DPFL_Pat", "HAM", 0.56, -0.0091),  # 390.62: the sparsity behind it is 1 - 394.4 / 887.77 = 0.5557
        ("DA-DPFL_Dir", "C100", 0.70, -0.0122),  # 106.17: the sparsity is 1 - 107.7 / 353.90 = 0.6957
        ("DA-DPFL_Pat", "C100", 0.73, 0.0104),  # 95.55: the sparsity is 1 - 94.8 / 353.90 = 0.7321
    ],
)
def test_close_by_the_printed_sparsity(method: str, column: str, sparsity: float, off: float) -> None:
    """Within 2 %: two digits of a sparsity s are 0.005 / (1 - s) of the bytes, 1.1 to 1.9 %."""
    found = sparse_mib(column, sparsity)
    assert found / published(method, column) - 1 == pytest.approx(off, abs=0.0002)
    assert abs(off) <= 0.02
    hidden = 1 - published(method, column) / dense_mib(column)
    assert round(hidden, 2) == sparsity


@pytest.mark.parametrize(
    ("method", "column", "share", "mib"),
    [
        ("DisPFL", "C10", 0.5, 213.13),  # 223.1 printed; only 223.48 decimal MB come near: 4.7 % dearer than DA-DPFL's
        ("FedAvg", "C100", 1.0, 353.90),  # 353.3; no number of classes or subset of parameters gives it
        ("DisPFL", "C100", 0.5, 176.95),  # 176.7, half of 353.3
    ],
)
def test_not_reproducible(method: str, column: str, share: float, mib: float) -> None:
    """The formula that gives all others does not give these: listed as they are."""
    found = share * dense_mib(column)
    assert found == pytest.approx(mib, abs=0.005)
    assert round(found, 1) != published(method, column)


def test_masks_are_left_out() -> None:
    """A bit for each weight is 3.1 % of the whole model: 6.2 % on top of a half of it."""
    for column in NETWORKS:
        bits = NEIGHBOURS * sum(layer.weights for layer in network(column).layers) / 8 / MIB
        values, everything = sparse_mib(column, 0.5), sparse_mib(column, 0.5, zeros="bitmap")
        assert everything - values == pytest.approx(bits, abs=1e-4)
        assert everything / values - 1 == pytest.approx(0.062, abs=0.001)


# --- FLOPs ------------------------------------------------------------------------------------------------------


# What is expected of ours is what the authors' code counts, with a FLOP for each bias and output: up to 0.2 % more.


@pytest.mark.parametrize(
    ("column", "ours", "printed"), [("HAM", 3.666, 3.6), ("C10", 8.331, 8.3), ("C100", 2.293, 2.3)]
)
def test_whole_networks(column: str, ours: float, printed: float) -> None:
    """5 epochs x samples x 3 x forward; on HAM10000 1.8 % off, where the samples are those of the published code.

    What edgesim charges, PyTorch's count, lacks the first layer's input gradient, which nobody needs: at most 0.4 %.
    """
    assert flops(column) == pytest.approx(ours, rel=1e-3)
    assert flops(column) == pytest.approx(printed, rel=0.02)
    assert published("FedAvg", column, "FLOP_1e12") == printed
    charged = EPOCHS * SAMPLES[column] * network(column).train_flops() / 1e12
    assert 0.996 * flops(column) < charged < flops(column)
    # DFedSAM takes two gradients a step: 16.66, 4.59 and 7.33 for 17, 4.6 and 7.2
    assert 2 * flops(column) == pytest.approx(published("DFedSAM", column, "FLOP_1e12"), rel=0.021)


@pytest.mark.parametrize(
    ("column", "trained", "screened"), [("HAM", 2.449, 2.593), ("C10", 6.636, 7.062), ("C100", 1.608, 1.725)]
)
def test_sparse_networks(column: str, trained: float, screened: float) -> None:
    """ERK at half the weights; and with the batch of the whole network by which weights grow."""
    submodel = masked(network(column), 0.5)
    assert flops(column, submodel) == pytest.approx(trained, rel=2e-3)
    assert flops(column, submodel, screening=True) == pytest.approx(screened, rel=2e-3)


def test_screening_is_counted_on_cifar_10_alone() -> None:
    """7.1 has it, 1.6 has not; the 2.0 of HAM10000 is neither 2.4 nor 2.6: not reproducible."""
    found = {c: [round(flops(c, masked(network(c), 0.5), s), 1) for s in (False, True)] for c in NETWORKS}
    printed = {c: published("DisPFL", c, "FLOP_1e12") for c in NETWORKS}
    assert found == {"HAM": [2.4, 2.6], "C10": [6.6, 7.1], "C100": [1.6, 1.7]}
    assert printed == {"HAM": 2.0, "C10": 7.1, "C100": 1.6}


@pytest.mark.parametrize(
    ("column", "partition", "ours", "within"),
    [
        ("HAM", "Dir", 1.910, 0.01),
        ("HAM", "Pat", 2.155, 0.08),  # 2.0, as much as DisPFL's at sparsity 0.50
        ("C10", "Dir", 4.700, 0.15),
        ("C10", "Pat", 3.647, 0.05),
        ("C100", "Dir", 0.965, 0.04),
        ("C100", "Pat", 0.869, 0.04),
    ],
)
def test_last_round_of_da_dpfl(column: str, partition: str, ours: float, within: float) -> None:
    """How pruning spreads over layers is not published; half the weights by ERK, scaled, are a rough guess.

    Shortcuts are whole, as in the published code.
    """
    left = (1 - PRINTED_SPARSITY[column, partition]) / 0.5
    nnz = tuple((name, round(left * count)) for name, count in masked(network(column), 0.5, "authors").nnz)
    found = flops(column, Submodel("sparse", nnz=nnz))
    assert found == pytest.approx(ours, rel=2e-3)
    assert found == pytest.approx(published(f"DA-DPFL_{partition}", column, "FLOP_1e12"), rel=within)
