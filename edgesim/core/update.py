"""Messages between devices and server: models by name, and the updates that jobs deliver."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from edgesim.core.model_state import MODEL
from edgesim.core.model_state import ModelState as ModelState  # for modules that read updates
from edgesim.core.task import Task

AVERAGED = frozenset(MODEL)  # collections that can be averaged in every method
BASE = "base"  # collection of a global model with the frozen parameters that a method has moved, by name
SERVER = 0  # owner of the global model


class ModelRef(NamedTuple):
    """Name of a model or message, which may not have been computed yet."""

    owner: int  # SERVER, 1 + device id, or the node of an edge server
    version: int  # models of its owner so far; for a device's message the id of its job, -1 for the first model


FIRST_MODEL = ModelRef(SERVER, 0)  # initial model of every run and every device


class Update(NamedTuple):
    """Update that a finished job delivered to the server or to a peer."""

    device: int
    job: int
    task: Task
    body: ModelState  # collections and layers of the task's `up` payload
    samples: int  # local data size n_k
    steps: int  # SGD steps taken
    staleness: int
    statistics: Mapping[str, Any]  # numbers or small arrays
    weight: float = 1.0  # weight from the protocol, a factor beside the method's own weights
    own_model: ModelState | None = None  # the device's model, where the body is something else; it is not sent
