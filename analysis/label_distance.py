"""Are labels a measure of how far a device's optimum is? Usage: python analysis/label_distance.py [SCENARIO] [--seed 1]

Trains one model on all devices' samples, w*, and one on each device's own, w_k*, and prints how Gamma_k = F_k(w*) -
F_k(w_k*) correlates with the divergence JS_k of the device's labels, over devices. F_k is the mean loss of device k: on
its training samples, and on test samples in its mix of classes.

Source: arXiv 2507.10430, Figure 7. How the authors found the optima is not said: here each is the model of least loss
after an epoch of SGD, the loss being that of F_k, or for w* the mean over devices of it, weighted by data size.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pandas as pd
import torch
import typer
from scipy.stats import pearsonr

import edgesim
from edgesim.cli.main import run_script
from edgesim.config.scenario import Scenario
from edgesim.core.arrays import Arr
from edgesim.core.backend import Assignment
from edgesim.core.errors import ConfigError
from edgesim.core.rng import Key, Purpose
from edgesim.core.task import Task
from edgesim.core.update import ModelState
from edgesim.files.atomic import whole_file
from edgesim.learning.data.dataset import Side
from edgesim.learning.models.build import model_state_of
from edgesim.learning.train.torch_settings import plain_torch
from edgesim.learning.train.trainer import Trainer
from edgesim.methods.weighting.dynamic import js_divergence, shares_of
from edgesim.runs.assembly import Assembly, assemble
from edgesim.runs.partitioning import counts_of

ROOT = Path(__file__).parents[1]
SIDES: tuple[Side, Side] = ("train", "test")  # where a device's loss is taken


@dataclass(frozen=True)
class Optima:
    """Trains models to their optima, on the data of one device or of all."""

    scenario: Scenario
    trainer: Trainer
    start: ModelState  # which every training starts from

    def epochs(self, rows: torch.Tensor, place: int, epochs: int) -> Iterator[ModelState]:
        """Yield the model after each epoch of SGD on these training samples. `place`: tells random streams apart."""
        trainer, model = replace(self.trainer, shards=[rows]), self.start
        training = replace(self.scenario.training, local_epochs=1)
        for epoch in range(epochs):
            task = Task(local_sgd=(training.local_sgd(epoch),))
            key = Key(self.scenario.seed).at(Purpose.LOCAL, place, epoch)
            model = trainer.run(Assignment(epoch, 0, task, key, model, None)).body
            yield model

    def losses(self, model: ModelState, device: int) -> Arr:
        """Return the mean loss of a model on a device's training samples and on its test samples, shape (2,)."""
        own = (self.trainer.shards[device], self.trainer.personal_rows[device])
        scores = [self.trainer.score_rows(model, side, rows) for side, rows in zip(SIDES, own, strict=True)]
        return np.array([score.loss for score in scores])

    def of_device(self, device: int, epochs: int) -> Arr:
        """Return the least losses of a model trained on a device's own samples, on either side, shape (2,)."""
        models = self.epochs(self.trainer.shards[device], 1 + device, epochs)
        found: Arr = np.min([self.losses(model, device) for model in models], axis=0)
        return found

    def in_common(self, epochs: int) -> Arr:
        """Return each device's losses by the model trained on all samples, on either side, shape (devices, 2).

        The model is that of the epoch with the least mean loss over devices, weighted by data size.
        """
        devices = range(len(self.trainer.shards))
        models = self.epochs(torch.cat(list(self.trainer.shards)), 0, epochs)
        losses = np.array([[self.losses(model, device) for device in devices] for model in models])
        sizes = [len(shard) for shard in self.trainer.shards]
        best = np.average(losses, axis=1, weights=sizes).argmin(axis=0)
        return np.stack([losses[epoch, :, side] for side, epoch in enumerate(best)], axis=1)


def distances(parts: Assembly, epochs: int) -> pd.DataFrame:
    """Return a row for each device: its samples, the divergence of its labels and Gamma of either side."""
    counts = counts_of(parts.data, parts.split)
    if counts is None:
        raise ConfigError("data: labels have to be classes, whose shares are compared")
    optima = Optima(parts.scenario, parts.make_trainer("cpu"), model_state_of(parts.module))
    common = optima.in_common(epochs)
    own = np.array([optima.of_device(device, epochs) for device in range(len(counts))])
    total = counts.sum(axis=0)
    table = pd.DataFrame({"device": range(len(counts)), "samples": counts.sum(axis=1)})
    table["js"] = js_divergence(shares_of(counts), total / total.sum())
    for side, name in enumerate(SIDES):
        table[f"gamma_{name}"] = common[:, side] - own[:, side]
    return table


def correlations(points: pd.DataFrame) -> list[dict[str, Any]]:
    """Return Pearson's correlation of the divergence with Gamma, with its 95 % interval and p, for either side."""
    rows = []
    for name in SIDES:
        found = pearsonr(points["js"], points[f"gamma_{name}"])
        low, high = found.confidence_interval()
        numbers = {"mean gamma": points[f"gamma_{name}"].mean(), "r": found.statistic, "low": low, "high": high}
        rows.append({"loss on": name, **numbers, "p": found.pvalue})
    return rows


def main(
    scenario: Annotated[Path, typer.Argument()] = ROOT / "scenarios" / "feddhad_cifar10.toml",
    epochs: Annotated[int, typer.Option(min=1)] = 50,
    seed: int = 1,
    lr: Annotated[float, typer.Option(min=0)] = 0.01,
    points: Path | None = None,
) -> None:
    """Print both correlations; `points`: a CSV file for the numbers of every device."""
    if points and not points.parent.is_dir():  # before half an hour of training, not after it
        raise ConfigError(f"--points: there is no folder {points.parent}")
    settings = {"seed": seed, "training.lr": lr, "method": "fedavg", "evaluation.personal": "true"}
    loaded = edgesim.load(scenario, [f"{key}={value}" for key, value in settings.items()])
    with plain_torch():
        found = distances(assemble(loaded), epochs)
    if points:
        with whole_file(points) as file:
            found.to_csv(file, index=False)
    print(pd.DataFrame(correlations(found)).to_string(index=False, float_format="{:.4g}".format))


if __name__ == "__main__":
    run_script(main)
