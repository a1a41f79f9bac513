# ruff: noqa: E402
"""Clients and servers of fluke, which are given batches in the order of edgesim.

fluke-fl 0.8.1. Left out, as they do something else than the papers: FedNova, which sums models by weights that do not
add up to 1; FedDyn, whose server adds the mean of the devices' linear terms with alpha in it; FedOpt, whose learning
rate also mixes the mean model with the old one; APFL, whose devices keep the mixture in place of their part of it.
"""

from __future__ import annotations

import copy
import sys
import types
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from typing import Any

sys.modules.setdefault("torchvision._meta_registrations", types.ModuleType("none"))  # of a torch for CPUs alone

import torch
from fluke import DDict, FlukeENV
from fluke.algorithms import ditto, fedper, fedprox, fedrep, lg_fedavg, moon, scaffold
from fluke.client import Client
from fluke.config import OptimizerConfigurator
from fluke.data import FastDataLoader
from fluke.nets import EncoderHeadNet
from fluke.server import Server
from torch import Tensor, nn

from tests.rivals.federation import BATCH, EPOCHS, LR, Batch, Played


class Epochs(FastDataLoader):
    """A loader of fluke that gives the epochs of a device in the order in which edgesim drew them."""

    def __init__(self, batches: Sequence[Batch], epochs: Sequence[Sequence[Batch]], samples: int) -> None:
        x, y = (torch.cat(column)[:samples] for column in zip(*batches, strict=True))
        super().__init__(x, y, num_labels=10, batch_size=BATCH, shuffle=False, skip_singleton=False)
        self._epochs = iter(epochs)

    def __iter__(self) -> Iterator[Batch]:  # type: ignore[override]
        return iter(next(self._epochs))


class Split(EncoderHeadNet):
    """The network as fluke wants it: all but the last layer, and the last one."""

    def __init__(self, module: nn.Module) -> None:
        layers = list(copy.deepcopy(module).named_children())
        super().__init__(nn.Sequential(OrderedDict(layers[:-1])), nn.Sequential(OrderedDict(layers[-1:])))

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits."""
        logits: Tensor = self.head(self.encoder(x))
        return logits


Made = tuple[type[Client], type[Server], dict[str, Any], dict[str, Any]]
# client, server, what each is given beside the usual
METHODS: dict[str, Made] = {
    "fedavg": (Client, Server, {}, {"weighted": True}),
    "fedprox": (fedprox.FedProxClient, Server, {"mu": 5.0}, {"weighted": True}),
    "scaffold": (scaffold.SCAFFOLDClient, scaffold.SCAFFOLDServer, {}, {"weighted": False}),
    "moon": (moon.MOONClient, Server, {"mu": 2.0, "tau": 0.5}, {"weighted": True}),
    "ditto": (ditto.DittoClient, Server, {"lam": 0.7, "tau": EPOCHS}, {"weighted": True}),
    "fedper": (fedper.FedPerClient, fedper.FedPerServer, {}, {"weighted": True}),
    "lg_fedavg": (lg_fedavg.LGFedAVGClient, lg_fedavg.LGFedAVGServer, {}, {"weighted": True}),
    "fedrep": (fedrep.FedRepClient, Server, {"tau": 1}, {"weighted": True}),
}
PERSONAL = {"ditto", "fedper", "lg_fedavg", "fedrep"}
SHARED: dict[str, Callable[[Split], nn.Module]] = {
    "fedper": lambda net: net.encoder,
    "fedrep": lambda net: net.encoder,
    "lg_fedavg": lambda net: net.head,
}


def replay(name: str, played: Played) -> dict[str, Tensor]:
    """Return the parameters that a method makes of a federation, by name; those of devices as "device/name"."""
    environment = FlukeENV()
    environment.set_eval_cfg(pre_fit=False, post_fit=False, locals=False, server=False)
    client_class, server_class, for_clients, for_server = METHODS[name]
    network = Split(played.module)
    clients = [
        _client(client_class, device, name, played, network, for_clients) for device in range(len(played.samples))
    ]
    shared = SHARED.get(name, lambda net: net)(copy.deepcopy(network))
    server = server_class(model=shared, test_set=None, clients=clients, **for_server)
    for client in clients:
        client.set_channel(server.channel)
    for number in range(1, len(played.batches) + 1):
        server.broadcast_model(clients)
        for client in clients:
            client.local_update(number)
        server.aggregate(clients, list(server.receive_client_models(clients, state_dict=False)))
    found = _named(server.model)
    for client in clients if name in PERSONAL else ():
        own = client.personalized_model if name == "ditto" else client.model.get_local()
        found |= {f"{client.index}/{n}": t for n, t in _named(own).items()}
    return found


def _client(
    client_class: type[Client], device: int, name: str, played: Played, network: Split, more: dict[str, Any]
) -> Client:
    runs = [run for round_ in played.batches for run in round_[device]]
    a_epoch = -(-played.samples[device] // BATCH)
    epochs = [run[start : start + a_epoch] for run in runs for start in range(0, len(run), a_epoch)]
    loader = Epochs(epochs[0], epochs, played.samples[device])
    model = {"model": copy.deepcopy(network)} if name in PERSONAL else {}
    return client_class(
        index=device,
        train_set=loader,
        test_set=None,
        optimizer_cfg=OptimizerConfigurator(DDict(name="SGD", lr=LR), DDict(name="StepLR", step_size=1, gamma=1)),
        loss_fn=nn.CrossEntropyLoss(),
        local_epochs=EPOCHS,
        **model,
        **more,
    )


def _named(module: nn.Module) -> dict[str, Tensor]:
    """Return parameters by the names that edgesim has for them: without the parts of fluke's networks."""
    return {".".join(n.split(".")[-2:]): p.detach().clone() for n, p in module.named_parameters()}
