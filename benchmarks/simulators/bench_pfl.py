"""A contestant of benchmarks/rivals.py: federated averaging of pfl-research, in one process or several of torchrun."""

from __future__ import annotations

import logging
import os
import sys
from pathlib import Path

import numpy as np
import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.aggregate.weighting import WeightByUser
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.callback.central_evaluation import CentralEvaluationCallback
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam import NNEvalHyperParams, NNTrainHyperParams
from pfl.metrics import Metrics, Weighted
from pfl.model.pytorch import PyTorchModel

sys.path.insert(0, str(Path(__file__).parents[1]))
import networks
import workloads
from bare_loop import read

PROCESSES = int(os.environ.get("WORLD_SIZE", "1"))
taken = {"steps": 0, "accuracy": 0.0}


class Net(torch.nn.Module):
    """Network with the loss and the metrics that pfl asks it for."""

    def __init__(self, net):
        super().__init__()
        self.net = net

    def loss(self, images, labels):
        """Return the loss of a batch, and count its SGD step."""
        taken["steps"] += 1
        return torch.nn.functional.cross_entropy(self.net(images), labels)

    @torch.no_grad()
    def metrics(self, images, labels):
        """Return the share of right answers."""
        right = (self.net(images).argmax(1) == labels).sum().item()
        return {"accuracy": Weighted(right, len(labels))}


class Laps(TrainingProcessCallback):
    """Callback that tests after every round, the first included, and stops the clock."""

    def __init__(self, clock, test):
        self.clock, self.test = clock, test

    def on_train_begin(self, *, model):
        """Prepare the test."""
        self.test.on_train_begin(model=model)
        return Metrics()

    def after_central_iteration(self, aggregate_metrics, model, *, central_iteration):
        """Test, and note that a round is over."""
        _, found = self.test.after_central_iteration(aggregate_metrics, model, central_iteration=1)
        taken["accuracy"] = found.to_simple_dict()["Central val | accuracy"]
        self.clock.lap()
        return False, found


def main() -> None:
    """Do what the environment asks for."""
    logging.disable(logging.INFO)
    asked = workloads.asked()
    work = asked.workload
    torch.set_num_threads(int(os.environ.get("THREADS", "1")))
    torch.manual_seed(0)
    np.random.seed(0)  # noqa: NPY002 - pfl draws its users from the global generator
    train, test = read(asked.data, "train"), read(asked.data, "t10k")
    shards = torch.from_numpy(workloads.shards(work, len(train.y)))

    def of_user(user: int) -> Dataset:
        rows = shards[user][torch.randperm(work.samples)]
        return Dataset((train.x[rows], train.y[rows]), user_id=str(user))

    users = FederatedDataset(of_user, get_user_sampler("random", list(range(work.devices))))
    net = Net(getattr(networks, work.network)())
    model = PyTorchModel(net, torch.optim.SGD, torch.optim.SGD(net.parameters(), lr=1.0))
    tested = NNEvalHyperParams(local_batch_size=1000)
    clock = workloads.Clock(asked.started)
    laps = Laps(clock, CentralEvaluationCallback(Dataset((test.x, test.y)), model_eval_params=tested))
    FederatedAveraging().run(
        algorithm_params=NNAlgorithmParams(
            central_num_iterations=asked.rounds,
            evaluation_frequency=10**9,
            train_cohort_size=work.per_round,
            val_cohort_size=0,
        ),
        backend=SimulatedBackend(training_data=users, val_data=users, postprocessors=[WeightByUser()]),
        model=model,
        model_eval_params=tested,
        model_train_params=NNTrainHyperParams(
            local_num_epochs=1, local_learning_rate=asked.lr, local_batch_size=workloads.BATCH
        ),
        callbacks=[laps],
    )
    steps = torch.tensor(taken["steps"])
    if PROCESSES > 1:
        torch.distributed.all_reduce(steps)
    if int(os.environ.get("RANK", "0")) == 0:
        clock.report(int(steps), taken["accuracy"])


if __name__ == "__main__":
    main()
