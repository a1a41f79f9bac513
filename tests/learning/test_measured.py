"""The measured cost model on a cost profile written by hand."""

import numpy as np
import pytest
from pydantic import TypeAdapter, ValidationError

from edgesim.core.price_list import ChannelGroup, CostProfile, LayerCost, OperationCost
from edgesim.core.task import Pass, Submodel
from edgesim.core.workload import update_flops
from edgesim.learning.cost_models.measured import Measured
from edgesim.learning.cost_models.table import TableCost

# a: 4 inputs, 6 units without bias; b: 6 units, 2 outputs and their biases. One FLOP a unit between them each way.
CARD = CostProfile(
    "hand",
    (4,),
    2,
    (
        LayerCost("a", "Linear", 24, 0, 48.0, 48.0, 48.0, frozenset(), weights=24, rows="a"),
        LayerCost("b", "Linear", 14, 0, 24.0, 24.0, 24.0, frozenset({"a"}), weights=12, columns="a"),
    ),
    groups=(ChannelGroup("a", 6),),
    operations=(OperationCost("activation", 6.0, 6.0, frozenset({"a"}), groups=("a",)),),
)
SAMPLES, STEPS = np.array([10.0, 20.0]), np.array([2.0, 4.0])
THIRD = Submodel(channels=(("a", (0, 5)),))
MASKED = Submodel(nnz=(("a", 6), ("b", 3)))  # a quarter of each


def price(cost: Measured, work: Pass, submodel: Submodel) -> list[float]:
    """FLOPs of two devices."""
    return cost.flops(CARD, work, submodel, SAMPLES, STEPS).tolist()


@pytest.mark.parametrize(
    ("submodel", "train", "forward", "formula", "trained"),
    [
        (Submodel(), 72 + 48 + 24 + 24, 72, 12, 38),
        (Submodel(frozen=frozenset({"a"})), 72 + 24, 72, 6, 14),
        (Submodel(frozen=frozenset({"b"})), 72 + 48 + 24, 72, 12, 24),
        (THIRD, (72 + 48 + 24 + 24) / 3, 72 / 3, 12 / 3, 24 / 3 + 12 / 3 + 2),
    ],
)
def test_prices_of_parts(submodel: Submodel, train: float, forward: float, formula: float, trained: int) -> None:
    assert price(Measured(), Pass(), submodel) == [10 * train, 20 * train]
    assert price(Measured(), Pass("forward"), submodel) == [10 * forward, 20 * forward]
    everything = [n * (train + formula) + s * 2 * trained for n, s in ((10, 2), (20, 4))]
    assert price(Measured(include="all"), Pass(), submodel) == everything
    momentum = Pass(update_flops=update_flops(momentum=True))
    more = [n * (train + formula) + s * 4 * trained for n, s in ((10, 2), (20, 4))]
    assert price(Measured(include="all"), momentum, submodel) == more


def test_other_kinds_of_work() -> None:
    full = Measured(include="all")
    assert price(full, Pass(samples=3, times=2.0), Submodel()) == [6 * (168 + 12)] * 2  # no steps, so no updates
    assert price(full, Pass("forward", submodel=THIRD), Submodel()) == [10 * (24 + 2), 20 * (24 + 2)]
    assert price(Measured(), Pass("param_step", times=3.0), Submodel()) == [3 * 2 * 38, 3 * 4 * 38]
    assert price(Measured(), Pass("param_step"), THIRD) == [2 * 14, 4 * 14]
    assert price(Measured(), Pass("param_step", times=3.0, samples=1), Submodel()) == [3 * 38] * 2  # once a job
    assert price(full, Pass("flops", times=5.0), Submodel()) == [5.0, 5.0]


def test_two_accounts_of_a_mask() -> None:
    assert price(Measured(), Pass(), MASKED) == price(Measured(), Pass(), Submodel())
    assert price(Measured(sparse="ideal"), Pass(), MASKED) == [10 * 168 / 4, 20 * 168 / 4]
    assert price(Measured(sparse="ideal"), Pass("forward"), MASKED) == [10 * 72 / 4, 20 * 72 / 4]
    # Work on activations does not know the weights' zeros.
    both = price(Measured(include="all", sparse="ideal"), Pass("forward"), MASKED)
    assert both == [10 * (72 / 4 + 6), 20 * (72 / 4 + 6)]


def test_a_table_stays_a_share_of_the_full_model() -> None:
    table = TableCost(ratios=(0.5, 1.0))
    priced = table.flops(CARD, Pass(), Submodel(width=1, channels=THIRD.channels), SAMPLES, STEPS)
    assert priced.tolist() == [0.5 * 10 * 168, 0.5 * 20 * 168]


@pytest.mark.parametrize("key", ["include", "sparse"])
def test_unknown_accounts_are_refused(key: str) -> None:
    with pytest.raises(ValidationError, match=key):
        TypeAdapter(Measured).validate_python({key: "most"})


def test_a_card_with_everything_survives_json() -> None:
    assert CostProfile.from_json(CARD.to_json()) == CARD
