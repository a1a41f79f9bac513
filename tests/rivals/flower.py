"""Flower's strategies, which are given the models that devices train by plain SGD in PyTorch.

flwr 1.41.0. FedAdam there corrects the learning rate for the start of both moments, and the adaptive strategies begin
with a second moment of 0; algorithm 2 of Reddi et al. (2021) does neither. So their second moment is set to tau^2, and
FedAdam's rate in each round to what its correction makes the wanted one.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import torch
from flwr.common import Code, FitRes, Status, ndarrays_to_parameters, parameters_to_ndarrays
from flwr.server import strategy as strategies
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from tests.rivals.federation import LR, Batch, Played

BETA_1, BETA_2, ETA, TAU = 0.9, 0.99, 0.02, 0.001


def fedavg(first: Any) -> Any:
    """Return FedAvg."""
    return strategies.FedAvg(initial_parameters=first)


def fedadam(first: Any) -> Any:
    """Return FedAdam from a second moment of tau^2, whose rate is what its correction makes ETA."""

    class Uncorrected(strategies.FedAdam):
        def aggregate_fit(self, server_round: int, results: Any, failures: Any) -> Any:
            n = server_round + 1.0
            self.eta = ETA * (1.0 - BETA_1**n) / (1.0 - BETA_2**n) ** 0.5
            return super().aggregate_fit(server_round, results, failures)

    return _begun(Uncorrected(initial_parameters=first, beta_1=BETA_1, beta_2=BETA_2, tau=TAU))


def fedyogi(first: Any) -> Any:
    """Return FedYogi from a second moment of tau^2."""
    return _begun(strategies.FedYogi(initial_parameters=first, eta=ETA, beta_1=BETA_1, beta_2=BETA_2, tau=TAU))


def fedadagrad(first: Any) -> Any:
    """Return FedAdagrad from a second moment of tau^2."""
    return _begun(strategies.FedAdagrad(initial_parameters=first, eta=ETA, tau=TAU))


def fedavgm(first: Any) -> Any:
    """Return FedAvgM."""
    return strategies.FedAvgM(initial_parameters=first, server_learning_rate=0.8, server_momentum=0.7)


def fedmedian(first: Any) -> Any:
    """Return FedMedian."""
    return strategies.FedMedian(initial_parameters=first)


def trimmed_mean(first: Any) -> Any:
    """Return FedTrimmedAvg without the lowest and the highest fifth."""
    return strategies.FedTrimmedAvg(initial_parameters=first, beta=0.2)


def krum(first: Any) -> Any:
    """Return Krum on guard against one of seven."""
    return strategies.Krum(initial_parameters=first, num_malicious_clients=1)


def multi_krum(first: Any) -> Any:
    """Return multi-Krum of four. It weighs them by data, which here all have the same of."""
    return _Unweighted(strategies.Krum(initial_parameters=first, num_malicious_clients=1, num_clients_to_keep=4))


STRATEGIES: dict[str, Callable[[Any], Any]] = {
    each.__name__: each
    for each in (fedavg, fedadam, fedyogi, fedadagrad, fedavgm, fedmedian, trimmed_mean, krum, multi_krum)
}


def replay(name: str, played: Played) -> dict[str, Tensor]:
    """Return the parameters that a strategy makes of a federation, by name."""
    names = [n for n, _ in played.module.named_parameters()]
    module = copy.deepcopy(played.module)
    strategy = STRATEGIES[name](ndarrays_to_parameters([p.detach().numpy().copy() for p in module.parameters()]))
    for number, round_ in enumerate(played.batches, 1):
        results = [
            (None, _result(_trained(module, batches[0]), samples))
            for batches, samples in zip(round_, played.samples, strict=True)
        ]
        aggregated, _ = strategy.aggregate_fit(number, results, [])
        for parameter, array in zip(module.parameters(), parameters_to_ndarrays(aggregated), strict=True):
            parameter.data = torch.from_numpy(array).to(parameter.dtype).clone()
    return dict(zip(names, (p.detach() for p in module.parameters()), strict=True))


def _trained(module: nn.Module, batches: Sequence[Batch]) -> nn.Module:
    network = copy.deepcopy(module)
    optimizer = torch.optim.SGD(network.parameters(), lr=LR)
    for x, y in batches:
        optimizer.zero_grad()
        cross_entropy(network(x), y).backward()
        optimizer.step()
    return network


def _result(network: nn.Module, samples: int) -> FitRes:
    arrays = [p.detach().numpy() for p in network.parameters()]
    return FitRes(Status(Code.OK, ""), ndarrays_to_parameters(arrays), samples, {})


def _begun(strategy: Any) -> Any:
    weights = parameters_to_ndarrays(strategy.initial_parameters)
    strategy.v_t = [0 * array + TAU**2 for array in weights]
    return strategy


class _Unweighted:
    """A strategy that is told that all devices have one sample."""

    def __init__(self, strategy: Any) -> None:
        self._strategy = strategy

    def aggregate_fit(self, server_round: int, results: Any, failures: Any) -> Any:
        for _, result in results:
            result.num_examples = 1
        return self._strategy.aggregate_fit(server_round, results, failures)
