"""The `model` command: FLOPs of each layer, and of training when only the last layers learn."""

from __future__ import annotations

import re
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError
from pydantic_core import PydanticCustomError

from edgesim.cli.show import print_table
from edgesim.core.errors import ConfigError
from edgesim.core.rng import Key

if TYPE_CHECKING:
    from edgesim.core.price_list import CostProfile

_REMEDY = "give --input and --classes, such as --input 3x32x32 --classes 10"
_LAYER = ("name", "kind", "params", "forward_flops", "weight_grad_flops", "input_grad_flops")


def parse_shape(shape: str) -> tuple[int, ...]:
    """Return the sizes in a text such as "3x32x32". Raises ConfigError for anything else."""
    if not re.fullmatch(r"[1-9]\d*(x[1-9]\d*)*", shape):
        raise ConfigError(f"--input: {shape!r} is not a shape; write for example 3x32x32")
    return tuple(int(size) for size in shape.split("x"))


def measured(name: str, shape: tuple[int, ...] | None, classes: int | None) -> CostProfile:
    """Return the cost profile of a model by its name in scenarios; shape and classes default to the model's own.

    Raises ConfigError if there is no such model or it does not fit.
    """
    from edgesim.config.plugin_fields import PartOf
    from edgesim.config.units import reason
    from edgesim.runs.network import network_of

    try:
        model = PartOf("model").read(name)
    except ValidationError as error:
        where = ".".join(["model", *map(str, error.errors()[0]["loc"])])
        raise ConfigError(f"{where}: {reason(error)}") from error
    except PydanticCustomError as error:
        raise ConfigError(f"model: {error.message()}") from error
    # whatever weights are drawn, it is the same
    return network_of(model, shape, classes, Key(0), remedy=_REMEDY).cost_profile


def describe(cost_profile: CostProfile) -> dict[str, Any]:
    """Return a cost profile as plain numbers, all per sample but `step_flops`: of a training step, whatever its batch.

    Keys: model, params, forward_flops, step_flops, layers (in forward order), suffixes: the training FLOPs if only the
    last 1, 2, ... all layers are trained and those before them are frozen; coverage: training FLOPs that PyTorch
    counts, those by formula, and operations that have neither; groups: the units that can be left out.
    """
    layers = [{key: _whole(own[key]) for key in _LAYER} for own in map(asdict, cost_profile.layers)]
    suffixes = [
        {
            "trained_layers": count,
            "first_trained": cost_profile.layer_names[-count],
            "train_flops": _whole(cost_profile.train_flops(cost_profile.before_last(count))),
        }
        for count in range(1, len(cost_profile.layers) + 1)
    ]
    return {
        "model": cost_profile.model,
        "params": cost_profile.params,
        "forward_flops": _whole(cost_profile.forward_flops()),
        "step_flops": _whole(cost_profile.step_flops()),
        "layers": layers,
        "suffixes": suffixes,
        "coverage": {key: _whole(value) for key, value in cost_profile.coverage._asdict().items()},
        "groups": [{"group": group.name, "channels": group.size} for group in cost_profile.groups],
    }


def print_profile(cost_profile: CostProfile) -> None:
    """Print the layers of a model, the training FLOPs for every cut, as plain integers, and what is not in them."""
    facts = describe(cost_profile)
    title = f"{facts['model']}: {facts['params']} parameters, {facts['forward_flops']} FLOPs forward per sample"
    if facts["step_flops"]:
        title += f", {facts['step_flops']} a training step whatever its batch"
    _print_whole(facts["layers"], title)
    _print_whole(facts["suffixes"], "training FLOPs per sample if only the last layers are trained")
    coverage = facts["coverage"] | {"left_at_zero": ", ".join(facts["coverage"]["left_at_zero"]) or "nothing"}
    _print_whole([coverage], "training FLOPs per sample; the default cost charges those counted, include = 'all' both")
    groups = facts["groups"] or [{"group": "none: the network cannot be thinned", "channels": "-"}]
    _print_whole(groups, "units that can be left out")


def _print_whole(rows: list[dict[str, Any]], title: str) -> None:
    # As text, so that FLOPs stay plain integers that can be compared with a paper digit by digit.
    print_table([{key: str(value) for key, value in row.items()} for row in rows], {key: key for key in rows[0]}, title)


def _whole(value: Any) -> Any:
    return int(value) if isinstance(value, float) else value
