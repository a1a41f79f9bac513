"""Spectra against NumPy's eigenvalues and PyTorch's Hessians, and the gap rule against the numbers of two examples."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn

from edgesim.config.plugins import find
from edgesim.core.rng import Key
from edgesim.core.task import Submodel
from edgesim.learning.measure.step import measure
from edgesim.learning.models.flop_counter import flop_counter
from edgesim.learning.train.loop import gradients, hessian_product
from edgesim.methods.adaptive_dropout.spectrum import Spectrum, dense, lanczos, mean_of, product_flops, share_below_gap
from edgesim.runs.network import cost_profile_of
from tests.plugins.networks import TinyNorm
from tests.sizes import full

KEY = Key(11)


def symmetric(size, rank=None):
    """Return a random symmetric matrix of a rank, NumPy, and a start vector of random signs."""
    draws = KEY.at(size).numpy()
    directions, _ = np.linalg.qr(draws.normal(size=(size, size)))
    values = np.concatenate([draws.normal(size=rank or size), np.zeros(size - (rank or size))])
    return (directions * values) @ directions.T, torch.from_numpy(draws.choice([-1.0, 1.0], size))


def times(matrix):
    """Return a matrix as its product with vectors."""
    return lambda vector: torch.from_numpy(matrix) @ vector


@pytest.mark.parametrize("size", [1, 2, 20])
def test_as_many_steps_as_rows_give_all_eigenvalues(size):
    """NumPy's eigenvalues, and as masses the squares of the start's parts along the eigenvectors."""
    matrix, start = symmetric(size)
    values, vectors = np.linalg.eigh(matrix)
    found = lanczos(times(matrix), start, size)
    assert found.values == pytest.approx(values, abs=1e-9)
    assert found.masses == pytest.approx((vectors.T @ start.numpy()) ** 2 / size, abs=1e-9)
    assert found.residual == pytest.approx(0, abs=1e-9)


def test_few_steps_find_the_outer_eigenvalues_and_say_how_well():
    """An eigenvalue lies within the residual of the largest Ritz value, and after more steps it is smaller."""
    matrix, start = symmetric(200)
    eigenvalues = np.linalg.eigvalsh(matrix)
    residuals = []
    for steps in (5, 40):
        found = lanczos(times(matrix), start, steps)
        largest = found.values[np.argmax(np.abs(found.values))]
        assert np.abs(eigenvalues - largest).min() <= found.residual * abs(largest) + 1e-12
        assert found.masses.sum() == pytest.approx(1)
        residuals.append(found.residual)
    assert residuals[0] > 1e-2 > 1e-4 > residuals[1]


def test_nothing_new_ends_the_search():
    """Of rank 3 there are four different eigenvalues, zero among them; a matrix of zeros has one."""
    matrix, start = symmetric(30, rank=3)
    found = lanczos(times(matrix), start, 30)
    assert len(found.values) == 4
    assert np.sort(np.abs(found.values))[0] == pytest.approx(0, abs=1e-12)
    assert found.residual == 0
    nothing = lanczos(times(np.zeros((5, 5))), torch.ones(5, dtype=torch.float64), 4)
    assert (nothing.values.tolist(), nothing.masses.tolist(), nothing.residual) == ([0.0], [1.0], 0.0)
    assert share_below_gap(nothing, 0.1) == 1.0


def test_what_is_not_finite_is_said():
    """A spectrum of NaN with a residual of infinity, by either way."""
    for found in (
        lanczos(lambda vector: vector * math.nan, torch.ones(4), 3),
        dense(lambda vector: vector * math.inf, torch.ones(4)),
    ):
        assert found.residual == math.inf


def test_dense_is_all_of_it():
    """NumPy's eigenvalues, each with the same mass."""
    matrix, start = symmetric(12)
    found = dense(times(matrix), start)
    assert found.values == pytest.approx(np.linalg.eigvalsh(matrix), abs=1e-12)
    assert found.masses.tolist() == [1 / 12] * 12


def test_mean_of_two_starts():
    """Values of both in order, each with half its mass; the worse residual."""
    both = mean_of([Spectrum(np.array([1.0, 3.0]), np.array([0.2, 0.8]), 0.1), Spectrum(np.array([2.0]), np.ones(1))])
    assert both.values.tolist() == [1, 2, 3]
    assert both.masses.tolist() == pytest.approx([0.1, 0.5, 0.4])
    assert both.residual == 0.1


# --- the gap ----------------------------------------------------------------------------------------------------


def test_mass_below_the_first_gap():
    """Zero left out, gaps 0.3, 0.05, 1.85 and 0.6 against 0.4: 0.35 of the mass of 0.4; none above 8: all of it."""
    ritz = Spectrum(np.array([-0.2, 0, 0.1, 0.15, 2.0, 2.6]), np.array([0.05, 0.6, 0.2, 0.1, 0.03, 0.02]))
    assert share_below_gap(ritz, 0.1) == pytest.approx(0.875)
    assert share_below_gap(ritz, 2.0) == 1.0


@full
def test_a_planted_gap_is_found():
    """350 of 500 eigenvalues in [0.1, 1] and 150 in [3, 4]: its edges and its share, after 30 steps."""
    draws = KEY.at(500).numpy()
    directions, _ = np.linalg.qr(draws.normal(size=(500, 500)))
    eigenvalues = np.concatenate([np.linspace(0.1, 1, 350), np.linspace(3, 4, 150)])
    matrix = (directions * eigenvalues) @ directions.T
    found = [lanczos(times(matrix), torch.from_numpy(draws.choice([-1.0, 1.0], 500)), 30) for _ in range(20)]
    for ritz in found:
        below, above = ritz.values[ritz.values < 2], ritz.values[ritz.values > 2]
        assert below.max() == pytest.approx(1, rel=0.01)
        assert above.min() == pytest.approx(3, rel=0.01)
    shares = [share_below_gap(ritz, 0.25) for ritz in found]
    assert all(0.5 < share < 1 for share in shares)
    assert np.mean(shares) == pytest.approx(350 / 500, abs=0.05)


def test_small_eigenvalues_count_as_zero():
    """At 1e-3 of the largest 0.0026 is zero, and at nothing it counts."""
    spectrum = Spectrum(np.array([0.0026, 1.0, 2.6]), np.full(3, 1 / 3))
    assert share_below_gap(spectrum, 0.1, zero=1e-3) == pytest.approx(1 / 2)
    assert share_below_gap(spectrum, 0.1, zero=0.0) == pytest.approx(1 / 3)


def test_a_loss_of_five_weights():
    """L = sum of a w^2 / 2 + 0.0125 w^4 around W': the Hessian, B, its bound, and a cut after 3 of 5 eigenvalues."""
    a = torch.tensor([0.1, 0.2, 0.3, 2.0, 5.0], dtype=torch.float64)

    def look(w):
        w = torch.tensor(w, dtype=torch.float64, requires_grad=True)
        slopes, product = hessian_product((0.5 * a * w**2 + 0.0125 * w**4).sum(), [w])
        return slopes[0], lambda vector: product([vector])[0]

    there, _ = look([1.0, -1.0, 2.0, 0.0, 1.0])
    here, product = look([0.5, 0.5, 1.0, 1.0, -1.0])
    way = torch.tensor([0.5, -1.5, 1.0, -1.0, 2.0], dtype=torch.float64)
    beyond, at_zero = product(way) - there, -here
    assert beyond.tolist() == pytest.approx([-0.08125, -0.10625, -0.55, -2.15, 5.25], abs=1e-6)
    assert at_zero.tolist() == pytest.approx([-0.05625, -0.10625, -0.35, -2.05, 5.05], abs=1e-6)
    bound = float((beyond - at_zero).norm() / way.norm())
    assert bound == pytest.approx(0.103256, abs=1e-6)
    found = dense(product, way)
    assert found.values.tolist() == pytest.approx([0.1375, 0.2375, 0.45, 2.15, 5.15], abs=1e-6)
    assert share_below_gap(found, bound) == pytest.approx(0.6)


# --- Hessians of networks ---------------------------------------------------------------------------------------


def network():
    """Return a convolutional network of 67 parameters in float64, and a batch."""
    generator = torch.Generator().manual_seed(KEY.word())
    net = nn.Sequential(nn.Conv2d(1, 2, 3), nn.Tanh(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(8, 4), nn.Linear(4, 3))
    net.double()
    for p in net.parameters():
        p.data = torch.randn(p.shape, generator=generator, dtype=torch.float64)
    return net, torch.randn(6, 1, 6, 6, generator=generator, dtype=torch.float64), torch.arange(6) % 3


def test_products_are_those_of_pytorchs_hessian_and_of_finite_differences():
    """torch.autograd's whole matrix; and the difference quotient of gradients along a vector."""
    net, x, y = network()
    params = dict(net.named_parameters())
    sizes = [p.numel() for p in params.values()]

    def loss(flat):
        pieces = torch.split(flat, sizes)
        weights = {name: piece.view_as(params[name]) for name, piece in zip(params, pieces, strict=True)}
        return F.cross_entropy(torch.func.functional_call(net, weights, (x,)), y)

    flat = torch.cat([p.detach().flatten() for p in params.values()])
    matrix = torch.autograd.functional.hessian(loss, flat)
    slopes, times = hessian_product(F.cross_entropy(net(x), y), list(params.values()))
    vector = torch.from_numpy(KEY.at(1).numpy().normal(size=len(flat)))
    product = times([p.view_as(w) for p, w in zip(torch.split(vector, sizes), params.values(), strict=True)])
    product = torch.cat([p.flatten() for p in product])
    assert product.tolist() == pytest.approx((matrix @ vector).tolist(), abs=1e-10)
    step = 1e-5
    ends = [(flat + sign * step * vector).requires_grad_(True) for sign in (1, -1)]
    difference = (gradients(loss(ends[0]), [ends[0]])[0] - gradients(loss(ends[1]), [ends[1]])[0]) / (2 * step)
    assert product.tolist() == pytest.approx(difference.tolist(), abs=1e-6)
    plain = gradients(F.cross_entropy(net(x), y), list(params.values()))
    assert all(torch.allclose(one, other, atol=1e-14) for one, other in zip(slopes, plain, strict=True))


@full
def test_spectrum_of_a_trained_network():
    """508 parameters, trained on digits: PyTorch's whole Hessian has these moments and this largest eigenvalue.

    The fourth moment is all but that of the largest eigenvalue, of which a random start sees chi-squared: 3,200 starts
    leave it a standard error of 2.5 %.
    """
    images, labels = load_digits(return_X_y=True)
    few = labels < 8
    x = F.avg_pool2d(torch.from_numpy(images[few] / 16).view(-1, 1, 8, 8), 2).flatten(1)
    y = torch.from_numpy(labels[few]).long()
    shapes = {"0.weight": (20, 16), "0.bias": (20,), "2.weight": (8, 20), "2.bias": (8,)}
    net = nn.Sequential(nn.Linear(16, 20), nn.Tanh(), nn.Linear(20, 8)).double()
    draws = torch.Generator().manual_seed(KEY.word())
    for p in net.parameters():
        p.data = 0.3 * torch.randn(p.shape, generator=draws, dtype=torch.float64)
    optimiser = torch.optim.SGD(net.parameters(), lr=0.5)
    for _ in range(300):
        optimiser.zero_grad()
        F.cross_entropy(net(x), y).backward()
        optimiser.step()
    assert float((net(x).argmax(1) == y).double().mean()) > 0.9

    def loss(flat):
        pieces = torch.split(flat, [math.prod(shape) for shape in shapes.values()])
        weights = {name: piece.view(shape) for (name, shape), piece in zip(shapes.items(), pieces, strict=True)}
        return F.cross_entropy(torch.func.functional_call(net, weights, (x,)), y)

    matrix = torch.autograd.functional.hessian(loss, torch.cat([p.detach().flatten() for p in net.parameters()]))
    exact = torch.linalg.eigvalsh(matrix).numpy()
    _, product = hessian_product(F.cross_entropy(net(x), y), list(net.parameters()))

    def by_products(vector):
        pieces = torch.split(vector, [p.numel() for p in net.parameters()])
        return torch.cat(
            [t.flatten() for t in product([v.view_as(p) for v, p in zip(pieces, net.parameters(), strict=True)])]
        )

    starts = torch.from_numpy(KEY.at(2).numpy().choice([-1.0, 1.0], (3200, len(exact))))
    assert lanczos(by_products, starts[0], 30).values.max() == pytest.approx(exact.max(), rel=0.01)
    found = mean_of([lanczos(lambda vector: matrix @ vector, start, 4) for start in starts])
    for power in (1, 2, 3, 4):
        assert (found.masses * found.values**power).sum() == pytest.approx((exact**power).mean(), rel=0.05)


def test_constants_and_straight_lines_have_no_curvature():
    """Zeros for a tensor that the loss does not depend on, and for one whose gradient is constant."""
    line, other, bowl = (torch.ones(2, requires_grad=True) for _ in range(3))
    slopes, times = hessian_product(3 * line.sum() + (bowl**2).sum(), [line, other, bowl])
    assert [slope.tolist() for slope in slopes] == [[3, 3], [0, 0], [2, 2]]
    assert [row.tolist() for row in times([torch.ones(2)] * 3)] == [[0, 0], [0, 0], [2, 2]]
    _, flat = hessian_product(3 * line.sum(), [line])
    assert flat([torch.ones(2)])[0].tolist() == [0, 0]


LINEAR_ONLY = {"cnn_digits": {"conv1", "conv2"}, "lenet5": {"conv1", "conv2"}, "cnn_3conv": {"conv1", "conv2", "conv3"}}


@pytest.mark.parametrize("frozen", [True, False], ids=["linear layers", "all layers"])
@pytest.mark.parametrize("name", LINEAR_ONLY)
def test_what_a_product_costs(name, frozen):
    """PyTorch's counter, of the first backward pass and of a product, 2 samples."""
    plugin = find("model", name)[0]()
    net, cost_profile = (
        plugin.build(plugin.native_input_shape, 10),
        cost_profile_of(plugin, name, None, None, KEY)[1],
    )
    check_price(net, cost_profile, Submodel(frozen=frozenset(LINEAR_ONLY[name] if frozen else ())))


def test_what_a_product_costs_with_normalisation():
    """The network with batch normalisation, as in a test."""
    net = TinyNorm()
    check_price(net, measure(net.train(), "tiny", (1, 8, 8), 10), Submodel())


def check_price(net, cost_profile, submodel):
    """Compare prices with PyTorch's counter."""
    x, y = torch.zeros(2, *cost_profile.input_shape), torch.zeros(2, dtype=torch.int64)
    for name, p in net.named_parameters():
        p.requires_grad_(name.rpartition(".")[0] not in submodel.frozen)
    trained = [p for p in net.parameters() if p.requires_grad]
    with flop_counter() as first:
        _, times = hessian_product(F.cross_entropy(net.eval()(x), y), trained)
    with flop_counter() as second:
        times([torch.ones_like(p) for p in trained])
    assert first.get_total_flops() == 2 * cost_profile.train_flops(submodel)
    assert second.get_total_flops() == 2 * product_flops(cost_profile, submodel)
