"""Inputs of plans and aggregations beside values of nodes: the part of their identities that protocols decide."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from edgesim.core.job import DELIVERED, Completion
from edgesim.core.view import View
from edgesim.execution.graph import Node


def delivered(completions: Sequence[Completion]) -> list[Completion]:
    """Return the completions that brought an update, by job."""
    return sorted((each for each in completions if each.outcome in DELIVERED), key=lambda each: each.job.id)


def as_used(used: Sequence[Completion], results: Sequence[Node]) -> list[Any]:
    """Return the inputs of an aggregation from its updates: device, staleness, weight, and identity of the result."""
    return [(each.job.device, each.staleness, each.weight, node.id) for each, node in zip(used, results, strict=True)]


def seen_in(view: View) -> list[Any]:
    """Return the inputs of a plan beside the method's state."""
    last = [(each.job.device, each.job.task, each.outcome, each.ended_s) for each in view.last]
    now = [view.round, view.exchange, view.version, view.now_s, view.free_places, np.asarray(view.idle), last]
    return [*now, view.setting.steered] if view.setting.steered else now
