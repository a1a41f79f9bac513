"""A contestant of benchmarks/rivals.py: FedAvg of FLGo on a task made in memory, without its latency simulator."""

from __future__ import annotations

import os
import sys
import tempfile
import types
from pathlib import Path

import flgo
import flgo.algorithm.fedavg
import torch
from flgo.benchmark.partition import BasicPartitioner
from flgo.benchmark.toolkits.cv.classification import FromDatasetGenerator, FromDatasetPipe, GeneralCalculator
from flgo.experiment.logger.simple_logger import SimpleLogger

sys.path.insert(0, str(Path(__file__).parents[1]))
import networks
import workloads
from bare_loop import read

PACKAGE = "fashion_of_ours"  # FLGo looks for the classes of a task under this name
asked = workloads.asked()
work = asked.workload
data = {split: torch.utils.data.TensorDataset(*read(asked.data, split)) for split in ("train", "t10k")}
taken = {"steps": 0, "accuracy": 0.0, "clock": None}
# PyTorch 2.14 asks a data set for several samples at once; FLGo 0.4.4 has one at a time.
FromDatasetPipe.TaskDataset.__getitems__ = lambda self, rows: [self[row] for row in rows]


class TaskGenerator(FromDatasetGenerator):
    """Generator of the task from the images in memory."""

    def __init__(self):
        super().__init__(benchmark=PACKAGE, train_data=data["train"], test_data=data["t10k"])


class TaskPipe(FromDatasetPipe):
    """Reader of the task from the images in memory."""

    def __init__(self, task_path):
        super().__init__(task_path, train_data=data["train"], test_data=data["t10k"])


class TaskCalculator(GeneralCalculator):
    """Calculator that counts the SGD steps."""

    def compute_loss(self, model, batch):
        """Return the loss of a batch."""
        taken["steps"] += 1
        return super().compute_loss(model, batch)


class Split(BasicPartitioner):
    """Partition into the rows of each device that all contestants have."""

    num_clients = work.devices

    def __call__(self, images):
        """Return the rows of each device."""
        return workloads.shards(work, len(data["train"])).tolist()


class Laps(SimpleLogger):
    """Logger that tests and stops the clock. FLGo calls it once before the first round."""

    def log_once(self, *args, **more):
        """Test, and note that a round is over."""
        taken["accuracy"] = self.coordinator.test()["accuracy"]
        self.output["test_accuracy"].append(taken["accuracy"])
        if taken["clock"] is None:
            taken["clock"] = workloads.Clock(asked.started)
        else:
            taken["clock"].lap()


def main() -> None:
    """Do what the environment asks for."""
    package, core = types.ModuleType(PACKAGE), types.ModuleType(f"{PACKAGE}.core")
    package.__path__, package.__file__ = [], str(Path(__file__).resolve())
    TaskGenerator.__module__ = core.__name__
    core.TaskGenerator, core.TaskPipe, core.TaskCalculator = TaskGenerator, TaskPipe, TaskCalculator
    sys.modules.update({PACKAGE: package, core.__name__: core})
    options = {
        "num_rounds": asked.rounds,
        "proportion": work.per_round / work.devices,
        "sample": "uniform",
        "aggregate": "uniform",
        "num_epochs": 1,
        "batch_size": float(workloads.BATCH),
        "learning_rate": asked.lr,
        "train_holdout": 0.0,
        "test_batch_size": 1000,
        "torch_num_threads": int(os.environ.get("THREADS", "1")),
        "log_level": "ERROR",
        "no_tqdm": True,
    }
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        flgo.gen_task_by_(package, Split(), "task")
        net = flgo.convert_model(getattr(networks, work.network), "net")
        flgo.init("task", flgo.algorithm.fedavg, options, model=net, Logger=Laps).run()
        taken["clock"].report(taken["steps"], taken["accuracy"])
        os.chdir("/")


if __name__ == "__main__":
    main()
