"""The FedPMT paper's own count of a training step, as printed and with its errors corrected.

One operation is one multiplication with its addition, so a step costs about half of what PyTorch counts as FLOPs;
speeds of a scenario are then operations per second. With a batch of B, n_l units in linear layer l and F_l
multiply-adds of convolution l on one image, a step of the corrected count takes

    forward     B n_(l-1) n_l for a linear layer, B F_l for a convolution; in a network without convolutions also B n_l
    error       2 B n_l for the output, B n_l for a hidden linear layer, and the forward operations of the next layer
                (for the way back through its weights)
    gradient    the same as forward without B n_l, for a trained layer
    update      n_(l-1) n_l for a trained linear layer. The paper counts none for convolutions

and an error is counted down to the first trained layer. Source: FedPMT paper, Table 5.2 in H. Wu, PhD thesis,
York University (2023): its 23 numbers follow from these formulas and the errors marked as slips in `_as_printed`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np

from edgesim.core.arrays import Arr
from edgesim.core.cost_model import CostModel
from edgesim.core.errors import ConfigError
from edgesim.core.price_list import CostProfile
from edgesim.core.task import Pass, Submodel
from edgesim.learning.cost_models.measured import Measured


class CountedLayer(NamedTuple):
    """Quantities of a layer in the paper's formulas, after thinning unless stated otherwise."""

    name: str
    linear: bool  # else a convolution
    outputs: float  # units or channels
    products: float  # multiply-adds of its forward pass, per sample
    misread: float  # height of its feature map / input channels, of the whole model. 1 where the paper is correct


class _Terms(NamedTuple):
    """Operations of one layer, each of shape (k,)."""

    forward: Arr
    error: Arr
    gradient: Arr
    update: Arr


@dataclass(frozen=True, kw_only=True)
class FedPMTPaper(CostModel):
    """Operations of convolutions followed by linear layers, by the FedPMT paper's formulas. It refuses other models.

    `count`: "published" gives the printed numbers, "corrected" the numbers of the same formulas without errors. If a
    method keeps a share of the units, the printed numbers are for fractions of units, rounded down to a whole number.
    Zeros of masked layers cost like any number. Work that is not a pass through the model is priced as by `measured`.
    """

    count: Literal["published", "corrected"] = "published"  # the basis of the paper's round times

    def flops(self, cost_profile: CostProfile, work: Pass, submodel: Submodel, samples: Arr, steps: Arr) -> Arr:
        """Return operations, shape (k,), of one pass over `samples` in `steps` SGD steps, both of shape (k,).

        A pass over a number of samples of its own is one batch, without update. Raises ConfigError if the model is not
        a plain chain of convolutions and linear layers.
        """
        if work.kind not in ("train", "forward"):
            return Measured().flops(cost_profile, work, submodel, samples, steps)
        submodel = work.submodel or submodel
        if work.samples is not None:
            samples, steps = np.full_like(samples, work.samples), np.ones_like(steps)
        sizes = {group.name: group.size for group in cost_profile.groups}
        nominal = self.count == "published" and submodel.share > 0
        kept = {
            name: (submodel.share * sizes[name] if nominal else len(channels), sizes[name])
            for name, channels in cost_profile.kept_channels(submodel).items()
        }
        frozen = submodel.frozen if work.kind == "train" else frozenset(cost_profile.layer_names)
        counted = self.operations(
            counted_layers(cost_profile, kept), frozen, samples, steps, update=work.samples is None
        )
        return work.times * (np.floor(counted + 1e-6) if nominal else counted)

    def operations(
        self, layers: Sequence[CountedLayer], frozen: frozenset[str], samples: Arr, steps: Arr, update: bool = True
    ) -> Arr:
        """Return operations, shape (k,), of `steps` training steps over `samples` in total. `frozen`: not trained."""
        total, reached = np.zeros_like(samples), False
        for place, layer in enumerate(layers):
            terms = _corrected(layers, place, samples, steps)
            if self.count == "published":
                terms = _as_printed(terms, layers, place, samples, steps)
            trained = layer.name not in frozen
            reached = reached or trained
            total = total + terms.forward + reached * terms.error
            total = total + trained * (terms.gradient + update * terms.update)
        return total


def _corrected(layers: Sequence[CountedLayer], place: int, samples: Arr, steps: Arr) -> _Terms:
    layer, after = layers[place], layers[place + 1 : place + 2]
    activations = layer.outputs * layers[0].linear
    own_error = layer.outputs * layer.linear * (1 if after else 2)
    way_back = sum(following.products for following in after)
    return _Terms(
        forward=samples * (layer.products + activations),
        error=samples * (own_error + way_back),
        gradient=samples * layer.products,
        update=steps * layer.products * layer.linear,
    )


def _as_printed(terms: _Terms, layers: Sequence[CountedLayer], place: int, samples: Arr, steps: Arr) -> _Terms:
    """Return a layer's terms with the paper's errors, each stated as a rule that fits all three of its networks."""
    layer, classes = layers[place], layers[-1].outputs
    if not layer.linear:
        # Slip 1: one image per step instead of the batch. Slip 2: the height of the map instead of the input channels.
        # Slip 5: the way back is charged where it leaves a convolution, not where it enters. So the way back of the
        # first one, which is not needed, is counted and the way back of the first linear layer is not.
        once = steps * layer.products * layer.misread
        return terms._replace(forward=once, error=once, gradient=once)
    if place == len(layers) - 1:
        return terms
    if place == 0:
        # Slip 4: the inputs of the first layer instead of its units.
        inputs = layer.products / layer.outputs
        return terms._replace(error=terms.error + samples * (inputs - layer.outputs))
    if not layers[0].linear:
        # Slip 3, behind convolutions: the classes instead of the units of the next layer and, in every hidden linear
        # layer except the first, also instead of the batch.
        own_error = samples * layer.outputs if not layers[place - 1].linear else steps * classes * layer.outputs
        return terms._replace(error=own_error + samples * layer.outputs * classes)
    return terms


def counted_layers(cost_profile: CostProfile, kept: Mapping[str, tuple[float, int]]) -> tuple[CountedLayer, ...]:
    """Return the layers of a cost profile. `kept`: channel group -> kept units and units of the group.

    Kept units need not be whole, because the paper also counts 0.1 x 128. Raises ConfigError if the formulas do not
    cover a layer.
    """
    if misfit := _misfit(cost_profile):
        raise ConfigError(
            "cost.name: 'fedpmt_paper' counts convolutions and then linear layers, in a row and each with a bias; "
            f"model {cost_profile.model} has {misfit}"
        )
    found: list[CountedLayer] = []
    channels = float(cost_profile.input_shape[0])  # of the layer's input, of the whole model
    for layer in cost_profile.layers:
        linear, outputs, products = layer.kind == "Linear", float(layer.params - layer.weights), layer.forward_flops / 2
        height = math.sqrt(products / layer.weights)  # side of a square map, from its number of pixels
        found.append(
            CountedLayer(
                name=layer.name,
                linear=linear,
                outputs=_thinned(outputs, layer.rows, kept),
                products=_thinned(_thinned(products, layer.rows, kept), layer.columns, kept),
                misread=height / channels if found and not linear else 1.0,
            )
        )
        channels = outputs
    return tuple(found)


def _thinned(amount: float, group: str, kept: Mapping[str, tuple[float, int]]) -> float:
    channels, size = kept.get(group, (1, 1))
    return amount * channels / size


def _misfit(cost_profile: CostProfile) -> str | None:
    """Return the first deviation of a model from a chain of convolutions and then linear layers, each with a bias."""
    before: list[str] = []
    kinds = ["Conv2d"]
    for layer in cost_profile.layers:
        what = f"{layer.name} ({layer.kind})"
        kinds = ["Linear"] if layer.kind == "Linear" else kinds
        if layer.kind not in kinds:
            return what
        if layer.params == layer.weights:
            return f"{what} without bias"
        if layer.upstream != set(before):
            return f"{what} beside the chain"
        if layer.kind == "Linear" and layer.forward_flops != 2 * layer.weights:
            return f"{what} on several vectors a sample"
        before.append(layer.name)
    if kinds != ["Linear"]:
        return "no linear layer"
    return "work outside its layers" if cost_profile.products or cost_profile.other_forward_flops else None


PLUGINS = {"fedpmt_paper": FedPMTPaper}
