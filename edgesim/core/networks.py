"""Several networks in one run: each kind of device trains its own, and the global model holds all of them.

The global model of such a run holds the networks side by side: the parameters of network `lenet5` are named
`lenet5.*`. A device receives, trains and sends only its own network, under the names without the prefix.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

from edgesim.core.arrays import Ids
from edgesim.core.task import TENSORS, Order, Plan, Task
from edgesim.core.update import ModelState


@dataclass(frozen=True, slots=True, eq=False)
class Networks:
    """Networks of a run, at least two, and the network of each device of the fleet."""

    names: tuple[str, ...]
    of_devices: Ids  # place in `names`, shape (devices,)

    def of(self, device: int) -> str:
        """Return the name of a device's network."""
        return self.names[int(self.of_devices[device])]

    def routed(self, plan: Plan) -> Plan:
        """Return a plan in which every device trains its own network. Devices of one network share a task as before."""
        tasks: dict[tuple[int, str], Task] = {}
        orders: list[Order] = []
        for order in plan.orders:
            name, task = self.of(order.device), order.task
            key = id(task), name
            if key not in tasks:
                tasks[key] = replace(task, submodel=replace(task.submodel, network=name))
            orders.append(order._replace(task=tasks[key]))
        return plan._replace(orders=tuple(orders))


def part_of(model: ModelState, network: str) -> ModelState:
    """Return the part of a global model that belongs to one network, under its own names.

    A method's own tensors belong to all networks. `network`: "" in a run with one network, whose model is the part.
    """
    if not network:
        return model
    start = f"{network}."
    return {
        collection: tensors
        if collection == TENSORS
        else {name.removeprefix(start): value for name, value in tensors.items() if name.startswith(start)}
        for collection, tensors in model.items()
    }


def as_part(model: ModelState, network: str) -> ModelState:
    """Return a model of one network under its names in the global model. Inverse of `part_of`."""
    if not network:
        return model
    return {
        collection: tensors if collection == TENSORS else {f"{network}.{n}": value for n, value in tensors.items()}
        for collection, tensors in model.items()
    }


def joined(models: Mapping[str, ModelState]) -> ModelState:
    """Return the global model that holds these models, given by the names of their networks."""
    found: dict[str, dict[str, Any]] = {}
    for network, model in models.items():
        for collection, tensors in as_part(model, network).items():
            found.setdefault(collection, {}).update(tensors)
    return found


def labels_of(names: Collection[str]) -> list[str]:
    """Return a label for each network from the name of its plug-in. Labels are distinct and have no dots."""
    labels: list[str] = []
    for name in names:
        label = wanted = name.rpartition(":")[2].replace(".", "_")
        count = 1
        while label in labels:
            count += 1
            label = f"{wanted}_{count}"
        labels.append(label)
    return labels
