"""A contestant of benchmarks/rivals.py: FedAvg of fluke, with its own loaders over our split of FashionMNIST."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import torch
from fluke import DDict, FlukeENV
from fluke.algorithms.fedavg import FedAVG
from fluke.data import DataSplitter, DummyDataContainer, FastDataLoader
from fluke.evaluation import ClassificationEval
from fluke.utils import FederationObserver, ServerObserver
from torchmetrics import Accuracy

sys.path.insert(0, str(Path(__file__).parents[1]))
import networks
import workloads
from bare_loop import read

CLASSES = 10
taken = {"steps": 0, "accuracy": 0.0}


class CountedLoss(torch.nn.CrossEntropyLoss):
    """Cross-entropy that counts the SGD steps."""

    def forward(self, output, labels):
        """Return the loss of a batch."""
        taken["steps"] += 1
        return super().forward(output, labels)


class Laps(ServerObserver, FederationObserver):
    """Observer that stops the clock at the end of each round."""

    def __init__(self, clock):
        self.clock = clock

    def server_evaluation(self, round, eval_type, evals, **more):
        """Keep the accuracy of the server's model."""
        taken["accuracy"] = evals["accuracy"]

    def end_round(self, round):
        """Note that a round, its test included, is over."""
        self.clock.lap()


def main() -> None:
    """Do what the environment asks for."""
    asked = workloads.asked()
    work = asked.workload
    torch.set_num_threads(int(os.environ.get("THREADS", "1")))
    torch.manual_seed(0)
    train, test = read(asked.data, "train"), read(asked.data, "t10k")
    own = {"num_labels": CLASSES, "skip_singleton": False}
    loaders = [
        FastDataLoader(train.x[rows], train.y[rows], batch_size=workloads.BATCH, shuffle=True, **own)
        for rows in map(torch.from_numpy, workloads.shards(work, len(train.y)))
    ]
    tests = FastDataLoader(test.x, test.y, batch_size=1000, **own)
    data = DummyDataContainer(loaders, [None] * work.devices, tests, CLASSES)
    environment = FlukeENV()
    environment.set_seed(0)
    environment.set_eval_cfg(pre_fit=False, post_fit=False, locals=False, server=True)
    right = Accuracy(task="multiclass", num_classes=CLASSES)
    environment.set_evaluator(ClassificationEval(1, CLASSES, accuracy=right))
    client = {
        "batch_size": workloads.BATCH,
        "local_epochs": 1,
        "loss": CountedLoss,
        "persistency": False,
        "optimizer": DDict(name="SGD", lr=asked.lr),
        "scheduler": DDict(gamma=1, step_size=1),
    }
    net = getattr(networks, work.network)()
    chosen = DDict(client=DDict(client), server=DDict(weighted=True), model=net)
    algorithm = FedAVG(work.devices, DataSplitter(data), chosen)
    clock = workloads.Clock(asked.started)
    algorithm.set_callbacks([Laps(clock)])
    algorithm.run(asked.rounds, work.per_round / work.devices)
    clock.report(taken["steps"], taken["accuracy"])


if __name__ == "__main__":
    main()
