"""FedGen: the server trains a generator on the devices' last layers, and the generator teaches devices all labels.

Source: Zhu, Hong and Zhou, "Data-Free Knowledge Distillation for Heterogeneous Federated Learning" (ICML 2021),
algorithm 1, and its authors' published code.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
import torch
import torch.nn.functional as F
from annotated_types import Ge, Le
from torch import Tensor

from edgesim.core.arrays import Arr
from edgesim.core.errors import ConfigError
from edgesim.core.limits import MOST_COUNT, Count, NonNegativeFactor, PositiveFactor, PositiveShare
from edgesim.core.local_sgd import LocalSGD
from edgesim.core.method import Aggregate, LocalPhase, LocalRule, LocalState, Needs, ServerContext
from edgesim.core.model_state import flattened, model_in
from edgesim.core.rng import JobStream, Key
from edgesim.core.task import TENSORS, Pass, Payload, Plan, Task
from edgesim.core.update import ModelState, Update
from edgesim.core.view import Setting, View
from edgesim.learning.train.context import Batch, Context
from edgesim.methods.fedavg import FedAvg
from edgesim.methods.generator import (
    Generator,
    Shape,
    diversity_loss,
    head_of,
    made,
    shape_for,
    unpacked,
)

_COUNT_BYTES = 4  # of one label
_LEAST_RATE = 1e-4  # alpha and beta do not decay below it


@dataclass(frozen=True, kw_only=True)
class FedGen(FedAvg):
    """FedAvg for unequal labels: a generator G, trained by the server, gives devices features of labels that they lack.

    G turns a label and noise into features, inputs of the model's last layer. After each round the server trains G in
    `generator_steps` steps of Adam on batches of labels and noise. Its loss is the sum over the round's devices k of
    n_ky / n_y times the cross-entropy of the last layer of k on G's features, where k has n_ky of the n_y samples of
    label y, plus `diversity` times a loss that is small where different noise makes different features. `labels` of
    these batches are drawn "uniform" over the labels of the round's devices, or in proportion to their "counts". The
    server sends G and the model to devices. A device's loss on a batch of b samples is the cross-entropy, plus `alpha`
    (`generated` / b) times the cross-entropy of its last layer on G's features for `generated` labels, drawn uniformly
    over all, plus `beta` times KL(q || p). Here p is the model's output for the batch and q, fixed, the output of its
    last layer for G's features of the same labels; b is the batch size of `training`. Both factors decay by `decay` a
    round, down to 1e-4. In the first round there is no G. Every update has its device's label counts, 4 bytes a class.
    The metric `generator_loss` is the loss of the last step. Keys of the average: see FedAvg.

    The paper's loss has neither `beta` nor `diversity`; its published code has both. The paper's third term of the
    server, against the knowledge of the mean model, is off in all settings of the published code and is left out here.
    Noise is normal, as in the paper. The published code draws it from [0, 1), and gives every label of a batch the mean
    of its n_ky / n_y. Adam's moments start anew with every round. Label counts are those of a device's samples. The
    server's training and the devices' work with G take their time, as matrix multiplications. Timing alone does not
    know the server's training, so the method does not run on the null backend.

    Family: distillation. Formula: `loss_k = CE + alpha CE(head_k(G(y, noise)), y) + beta KL, where the server trains
    G`. Paper: arXiv 2105.10056.
    """

    alpha: NonNegativeFactor = 10.0
    """Published settings for a learning rate of 0.01. With ten times that rate take a tenth. 0: no generated samples.
    """
    beta: NonNegativeFactor = 10.0
    """Published settings for MNIST and CelebA, 1 for EMNIST, with a learning rate of 0.01. 0 is the paper's loss."""
    decay: PositiveShare = 0.98
    """Published code."""
    generated: Count = 32
    """Published code."""
    generator_steps: Count = 50
    """Published code."""
    generator_batch: Annotated[int, Ge(2), Le(MOST_COUNT)] = 32  # labels of a step of the generator
    """The published code takes the batch size of training, 32."""
    generator_lr: PositiveFactor = 3e-4  # learning rate of the generator, times `decay` a round
    """Published settings for MNIST and CelebA; 1e-4 for EMNIST."""
    generator_weight_decay: NonNegativeFactor = 0.01  # weight decay of the generator
    """Published settings."""
    diversity: NonNegativeFactor = 1.0
    """Published settings."""
    labels: Literal["uniform", "counts"] = "uniform"
    """Published code. The paper takes the distribution of all samples, `"counts"`."""
    noise: Count = 32  # random numbers from which the generator makes a sample
    """Published settings for MNIST."""
    hidden: Count = 256  # units of the generator
    """Published settings for MNIST; 128 for CelebA."""
    # plan() asks for a generator; timing alone does not know the server's training
    needs: ClassVar[Needs] = Needs(feedback=True, metadata=frozenset({"labels"}))

    @property
    def needs_classes(self) -> str:
        """The reason why labels must be classes, a verb phrase for the error message."""
        return "makes samples of each class"

    def init(self, setting: Setting, key: Key) -> Any:
        """Return the state without a generator. Raises ConfigError without labels or a last layer that fits."""
        super().init(setting, key)
        self._shape(setting.cost_profile)
        if setting.labels is None:
            raise ConfigError("data: the method needs the labels of devices, found no data set")
        return {"seed": key.exact_word(), "ready": False}

    def plan(self, state: Any, view: View, key: Key) -> Plan:
        """Ask the selected devices to train, with the generator if there is one, in one task per number of samples."""
        setting, ids = view.setting, view.choose(key)
        up = Payload(extra_bytes=_COUNT_BYTES * setting.cost_profile.classes)
        plain = replace(super().task(view), up=up)
        if not state["ready"]:
            return Plan.of_one_task(ids.tolist(), plain)
        return Plan.by_kind(ids.tolist(), setting.samples[ids].tolist(), partial(self._regularised, plain, view))

    def local(self, task: Task) -> LocalRule:
        """Return SGD on the cross-entropy, with the terms of the generator if there is one."""

        def start(context: Context) -> LocalState:
            received, down = context.global_model, context.task.down
            assert down is not None
            shape = Shape.of(down.tensors, self.noise)
            model = context.copy(model_in(received))
            held = context.copy({TENSORS: {spec.name: received[TENSORS][spec.name] for spec in down.tensors}})[TENSORS]
            weights = {name.removeprefix(shape.prefix): t for name, t in held.items()}
            draws = torch.Generator().manual_seed(context.key.at(JobStream.GENERATED).word())
            return LocalState(model, _Given(shape, shape.without_weights(), weights, draws))

        if "alpha" not in task.config:
            return super().local(task)
        return LocalRule((LocalPhase(loss=self._loss),), on_start=start)

    def combine(
        self, state: Any, global_model: ModelState, updates: Sequence[Update], server: ServerContext, key: Key
    ) -> Aggregate:
        """Return the mean model with the generator, trained on the last layers that arrived."""
        old = model_in(global_model)
        mean = super().combine(state, old, updates, server, key)
        tools, shape = server.tools, self._shape(server.setting.cost_profile)
        module = shape.first(Key(state["seed"]))
        network = tools.own(module)
        sgd = LocalSGD(
            batch=self.generator_batch,
            lr=self.generator_lr,
            steps=self.generator_steps,
            optimizer="adam",
            weight_decay=self.generator_weight_decay,
        )
        learner = network.trained(unpacked(global_model, shape, module), sgd, key.at(1))
        heads = [
            tuple(t if t is None else t.to(network.device) for t in head_of(u.body["params"], shape)) for u in updates
        ]
        assert server.setting.labels is not None
        counts = server.setting.labels[[update.device for update in updates]]
        shares = torch.from_numpy(shares_of_labels(counts)).to(network.device)
        draws, loss = torch.Generator().manual_seed(key.at(0).word()), 0.0
        for _ in range(self.generator_steps):
            labels, noise = self._drawn(counts, draws)
            step = partial(
                self._server_loss, learner, heads, shares, noise.to(network.device), labels.to(network.device)
            )
            loss = tools.step(step, learner, rate=self.decay**server.round, like="generator")
        model = {**(old if mean.model is None else mean.model), TENSORS: flattened(learner.model, shape.prefix)}
        return mean._replace(state={**state, "ready": True}, model=model, metrics={"generator_loss": loss})

    def _shape(self, cost_profile: Any) -> Shape:
        return shape_for(cost_profile, self.noise, self.hidden)

    def _drawn(self, counts: Any, draws: torch.Generator) -> tuple[Tensor, Tensor]:
        """Return labels of a batch, int64, and noise, float32, (batch, noise)."""
        weights = torch.from_numpy(counts.sum(axis=0)).double()
        weights = (weights > 0).double() if self.labels == "uniform" else weights
        labels = torch.multinomial(weights, self.generator_batch, replacement=True, generator=draws)
        return labels, torch.randn(self.generator_batch, self.noise, generator=draws)

    def _server_loss(self, learner: Any, heads: Sequence[Any], shares: Tensor, noise: Tensor, labels: Tensor) -> Tensor:
        """Return the loss of the generator on a batch."""
        features = learner(noise, labels)
        loss = self.diversity * diversity_loss(noise, features)
        for share, (weight, bias) in zip(shares, heads, strict=True):
            each = F.cross_entropy(F.linear(features, weight, bias), labels, reduction="none")
            loss = loss + (share[labels] * each).mean()
        return loss

    def _regularised(self, plain: Task, view: View, samples: int) -> Task:
        """Return the task with the generator, for devices with this number of samples."""
        setting, (sgd,) = view.setting, plain.local_sgd
        shape, decayed = self._shape(setting.cost_profile), self.decay**view.round
        (seen,), (steps,) = sgd.amount(np.array([samples]), setting.cost_profile.drop_single)
        of_batch = float(seen) * (shape.forward_flops + shape.head_flops) if self.beta else 0.0
        of_generated = (
            float(steps) * self.generated * (shape.forward_flops + 2 * shape.head_flops) if self.alpha else 0.0
        )
        factors = {"alpha": self.alpha, "beta": self.beta}
        return replace(
            plain,
            down=Payload(tensors=shape.specs),
            passes=(Pass(), Pass("flops", times=of_batch + of_generated)),
            config={name: max(_LEAST_RATE, factor * decayed) if factor else 0.0 for name, factor in factors.items()},
        )

    def _loss(self, local: LocalState, batch: Batch, context: Context) -> Tensor:
        given, config = local.scratch, context.task.config
        trained = dict(zip(context.trained, context.bound, strict=True))  # the tensors that take gradients
        weight, bias = head_of(trained, given.shape)
        logits = context.forward(local.weights, batch.x)
        loss = F.cross_entropy(logits, batch.y)
        if config["beta"]:
            with torch.no_grad():
                wanted = F.softmax(F.linear(given.features(batch.y), weight, bias), 1)
            loss = loss + config["beta"] * F.kl_div(F.log_softmax(logits, 1), wanted, reduction="batchmean")
        if config["alpha"]:
            labels = given.labels(self.generated).to(batch.y.device)
            ratio = self.generated / context.task.local_sgd[0].batch
            told = F.linear(given.features(labels), weight, bias)
            loss = loss + ratio * config["alpha"] * F.cross_entropy(told, labels)
        return loss


@dataclass(slots=True)
class _Given:
    """Scratch of a job: the generator received, a module for it, and the source of labels and noise."""

    shape: Shape
    module: Generator
    weights: Mapping[str, Tensor]
    draws: torch.Generator

    def labels(self, count: int) -> Tensor:
        """Return `count` labels, drawn uniformly over all classes."""
        return torch.randint(self.shape.classes, (count,), generator=self.draws)

    def features(self, labels: Tensor) -> Tensor:
        """Return generated features for labels, (batch, features)."""
        noise = torch.randn(len(labels), self.shape.noise, generator=self.draws)
        return made(self.module, self.weights, noise.to(labels.device), labels)


def shares_of_labels(counts: Arr) -> Arr:
    """Return each device's share of all samples of a label, float32; 0 where there are none.

    `counts` and the result: shape (devices, classes).
    """
    total = counts.sum(axis=0)
    shares: Arr = (counts / np.maximum(total, 1)).astype(np.float32)
    return shares


PLUGINS = {"fedgen": FedGen}
