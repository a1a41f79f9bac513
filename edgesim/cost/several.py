"""The price list of several networks in one run: of all of them side by side, and of each.

Who prices a task asks `profile_of` for the network that its sub-model is of, whatever the run has.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from edgesim.core.task import Submodel
from edgesim.cost.memory import LayerNames
from edgesim.cost.profile import ChannelGroup, CostProfile, LayerCost, ProductCost


@dataclass(frozen=True, slots=True)
class SeveralProfiles(CostProfile):
    """What several networks cost together, as if they were one of which a device trained all. They share no layer."""

    networks: Mapping[str, CostProfile] = field(default_factory=dict)  # by name


def profile_of(cost_profile: CostProfile, submodel: Submodel) -> CostProfile:
    """Return the cost profile of the network that a sub-model is of: in a run with one network that of the run."""
    return (
        cost_profile.networks[submodel.network]
        if isinstance(cost_profile, SeveralProfiles) and submodel.network
        else cost_profile
    )


def side_by_side(networks: Mapping[str, CostProfile]) -> SeveralProfiles:
    """Return the cost profile of networks of which each has its name before those of its layers and channel groups."""
    each = [_named(name, profile) for name, profile in networks.items()]
    first = each[0]
    return SeveralProfiles(
        model=" + ".join(profile.model for profile in each),
        input_shape=first.input_shape,
        classes=first.classes,
        layers=tuple(layer for profile in each for layer in profile.layers),
        other_forward_flops=sum(profile.other_forward_flops for profile in each),
        products=tuple(product for profile in each for product in profile.products),
        drop_single=any(profile.drop_single for profile in each),
        needs_two=any(profile.needs_two for profile in each),
        groups=tuple(group for profile in each for group in profile.groups),
        operations=tuple(work for profile in each for work in profile.operations),
        left_at_zero=tuple(dict.fromkeys(left for profile in each for left in profile.left_at_zero)),
        saved=tuple(kept for profile in each for kept in profile.saved),
        integer_buffer_bytes=sum(profile.integer_buffer_bytes for profile in each),
        step_forward_flops=sum(profile.step_forward_flops for profile in each),
        step_products=tuple(product for profile in each for product in profile.step_products),
        networks=dict(networks),
    )


def _named(name: str, profile: CostProfile) -> CostProfile:
    """Return a cost profile with a name before those of its layers and channel groups."""

    def own(found: str) -> str:
        return found and f"{name}.{found}"

    def all_own(found: Iterable[str]) -> LayerNames:
        return frozenset(map(own, found))

    def layer_of(layer: LayerCost) -> LayerCost:
        rows, columns = own(layer.rows), own(layer.columns)
        return replace(layer, name=own(layer.name), rows=rows, columns=columns, upstream=all_own(layer.upstream))

    def group_of(group: ChannelGroup) -> ChannelGroup:
        return replace(group, name=own(group.name))

    def product_of(product: ProductCost) -> ProductCost:
        return replace(product, upstream=all_own(product.upstream))

    return replace(
        profile,
        layers=tuple(map(layer_of, profile.layers)),
        groups=tuple(map(group_of, profile.groups)),
        products=tuple(map(product_of, profile.products)),
        step_products=tuple(map(product_of, profile.step_products)),
        operations=tuple(
            replace(
                work,
                upstream=all_own(work.upstream),
                only_with=own(work.only_with),
                groups=tuple(map(own, work.groups)),
            )
            for work in profile.operations
        ),
        saved=tuple(
            replace(kept, upstream=all_own(kept.upstream), groups=tuple(map(own, kept.groups)))
            for kept in profile.saved
        ),
    )
