"""Selection of the units that methods of thinner networks leave out."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Literal, TypeAlias

from edgesim.core.errors import ConfigError
from edgesim.core.price_list import ChannelGroup, CostProfile

Units: TypeAlias = tuple[tuple[str, tuple[int, ...]], ...]  # channel group -> kept channels, as in Submodel
Which: TypeAlias = Literal["inner", "all"]


def groups_of(cost_profile: CostProfile, which: Which) -> tuple[ChannelGroup, ...]:
    """Return the channel groups of a model that may be thinned, in forward order.

    "inner": units that a single layer makes. "all": also units that several layers make because their outputs are
    added, such as the channels along the shortcuts of a residual network.
    """
    makers = Counter(layer.rows for layer in cost_profile.layers if layer.weights)
    return tuple(group for group in cost_profile.groups if which == "all" or makers[group.name] == 1)


def check_groups(cost_profile: CostProfile, which: Which, otherwise: str) -> None:
    """Raise ConfigError for a model without units that can be left out. `otherwise`: advice at the end of the error."""
    if not groups_of(cost_profile, which):
        raise ConfigError(
            f"model.name: {cost_profile.model} has no unit that method.channels {which!r} could leave out "
            "(channel groups: "
            f"{', '.join(group.name for group in cost_profile.groups) or 'none'}); {otherwise}"
        )


def check_kept(
    groups: Iterable[ChannelGroup], cost_profile: CostProfile, option: str, kept: Callable[[int], int] | None
) -> None:
    """Raise ConfigError if group normalisation cannot split the units that a method keeps of a channel group.

    `option`: the key and value that set the number of kept units, or a description of the method. `kept`: maps the size
    of a group to the number of kept units. None: any number may stay.
    """
    for group in groups:
        found = group.size if kept is None else kept(group.size)
        if group.splits > 1 and (kept is None or found % group.splits):
            stays = "any number" if kept is None else f"{found}"
            raise ConfigError(
                f"{option}: {stays} of the {group.size} units of {group.name} would stay, which "
                f"{cost_profile.model}'s group "
                f"normalisation cannot split into {group.splits} groups; needed is a multiple of {group.splits}"
            )


def units_at(width: float, size: int) -> int:
    """Return ceil(width x size), the units of a layer at a width in (0, 1], and at least one."""
    return max(1, math.ceil(width * size - 1e-9))  # 0.55 x 20 is a little more than 11
