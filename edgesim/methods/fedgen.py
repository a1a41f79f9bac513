"""FedGen: a generator, which the server trains on what devices' last layers say, teaches devices about all labels.

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
    packed,
    shape_for,
    unpacked,
)

_MODEL = ("params", "buffers")
_COUNT_BYTES = 4  # of one label
_LEAST_RATE = 1e-4  # of alpha and beta, below which they do not decay


@dataclass(frozen=True, kw_only=True)
class FedGen(FedAvg):
    """FedAvg with a generator G that makes features, inputs of the model's last layer, of a label and noise.

    After each round the server trains G in `generator_steps` steps of Adam on batches of labels and noise: the sum over
    the round's devices k of n_ky / n_y times the cross-entropy of the last layer of k on G's features, where k has n_ky
    of the n_y samples of label y, plus `diversity` times a loss that is small where other noise makes other features.
    `labels` of these batches: "uniform" over those that the round's devices have, or as often as they are, "counts". G
    and the model are sent to devices. A device's loss on a batch of b samples is the cross-entropy, plus `alpha`
    (`generated` / b) times that of its last layer on G's features for `generated` labels, drawn alike of all, plus
    `beta` times KL(q || p), with p what it says of the batch and q, fixed, what its last layer says of G's features for
    the labels of the batch; b of `training`. Both factors decay by `decay` a round, down to 1e-4. In the first round
    there is no G. Every update has its device's label counts, 4 bytes a class. The metric `generator_loss` is the last
    step's. Keys of the average: see FedAvg.

    The loss of the paper is that without `beta` and `diversity`, which its published code has; its third term of the
    server, against what the mean model knows already, is off in all of that code's settings and left out. Noise is
    normal, as in the paper; the code draws it from [0, 1), and gives every label of a batch the mean of its n_ky / n_y.
    Adam's moments start anew with every round. Label counts are those of a device's samples. The server's training
    takes its time, as multiplications of matrices: so does what devices compute with G. As timing alone does not know
    the first, the method does not run on the null backend.
    """

    alpha: NonNegativeFactor = 10.0
    """Published settings, at a learning rate of 0.01: at ten times that, a tenth. 0 takes no generated samples."""
    beta: NonNegativeFactor = 10.0
    """Published settings for MNIST and CelebA, 1 for EMNIST, at a learning rate of 0.01. 0 is the paper's loss."""
    decay: PositiveShare = 0.98
    """Published code."""
    generated: Count = 32
    """Published code."""
    generator_steps: Count = 50
    """Published code."""
    generator_batch: Annotated[int, Ge(2), Le(MOST_COUNT)] = 32  # labels of a step of the generator
    """Published code takes the batch of training, 32."""
    generator_lr: PositiveFactor = 3e-4  # learning rate of the generator, times `decay` a round
    """Published settings for MNIST and CelebA; 1e-4 for EMNIST."""
    generator_weight_decay: NonNegativeFactor = 0.01  # of the generator
    """Published settings."""
    diversity: NonNegativeFactor = 1.0
    """Published settings."""
    labels: Literal["uniform", "counts"] = "uniform"
    """Published code. The paper's distribution is that of all samples, `"counts"`."""
    noise: Count = 32  # random numbers that the generator makes a sample of
    """Published settings for MNIST."""
    hidden: Count = 256  # units of the generator
    """Published settings for MNIST; 128 for CelebA."""
    # plan() reads whether there is a generator; timing alone does not know the server's training
    needs: ClassVar[Needs] = Needs(feedback=True, metadata=frozenset({"labels"}))

    @property
    def needs_classes(self) -> str:
        """What the method does for which labels have to be classes."""
        return "makes samples of each class"

    def init(self, setting: Setting, key: Key) -> Any:
        """Return that there is no generator yet. Raises ConfigError without labels or a last layer that fits."""
        super().init(setting, key)
        self._shape(setting.cost_profile)
        if setting.labels is None:
            raise ConfigError("data: the method needs the labels of devices, found no data set")
        return {"seed": key.exact_word(), "ready": False}

    def plan(self, state: Any, view: View, key: Key) -> Plan:
        """Ask the selected devices to train, with the generator if there is one; equally many samples make one task."""
        setting, ids = view.setting, view.choose(key)
        up = Payload(extra_bytes=_COUNT_BYTES * setting.cost_profile.classes)
        plain = replace(super().task(view), up=up)
        if not state["ready"]:
            return Plan.of_one_task(ids.tolist(), plain)
        return Plan.by_kind(ids.tolist(), setting.samples[ids].tolist(), partial(self._regularised, plain, view))

    def local(self, task: Task) -> LocalRule:
        """Return SGD on the cross-entropy, with what the generator adds if there is one."""
        if "alpha" not in task.config:
            return super().local(task)
        return LocalRule((LocalPhase(loss=self._loss),), on_start=self._start)

    def combine(
        self, state: Any, global_model: ModelState, updates: Sequence[Update], server: ServerContext, key: Key
    ) -> Aggregate:
        """Return the mean model with the generator, trained on the last layers that arrived."""
        old = {kind: global_model[kind] for kind in _MODEL}
        mean = super().combine(state, old, updates, server, key)
        generator, loss = self._taught(state["seed"], global_model, updates, server, key)
        model = {
            **(old if mean.model is None else mean.model),
            TENSORS: packed(generator, self._shape(server.setting.cost_profile)),
        }
        return mean._replace(state={**state, "ready": True}, model=model, metrics={"generator_loss": loss})

    def _shape(self, cost_profile: Any) -> Shape:
        return shape_for(cost_profile, self.noise, self.hidden)

    # --- on the server ------------------------------------------------------------------------------------------

    def _taught(
        self, seed: int, global_model: ModelState, updates: Sequence[Update], server: ServerContext, key: Key
    ) -> tuple[ModelState, float]:
        """Return the generator after its steps of a round, and the loss of the last one before it."""
        tools, shape = server.tools, self._shape(server.setting.cost_profile)
        module = shape.first(Key(seed))
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
        return learner.model, loss

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

    # --- on the device ------------------------------------------------------------------------------------------

    def _regularised(self, plain: Task, view: View, samples: int) -> Task:
        """Return the task of devices with so many samples that have the generator."""
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

    def _start(self, context: Context) -> LocalState:
        """Return the model to train, and the generator with its draws."""
        received, down = context.global_model, context.task.down
        assert down is not None
        shape = Shape.of(down.tensors, self.noise)
        model = context.copy({kind: received[kind] for kind in _MODEL})
        held = context.copy({TENSORS: {spec.name: received[TENSORS][spec.name] for spec in down.tensors}})[TENSORS]
        weights = {name.removeprefix(shape.prefix): t for name, t in held.items()}
        draws = torch.Generator().manual_seed(context.key.at(JobStream.GENERATED).word())
        return LocalState(model, _Given(shape, shape.without_weights(), weights, draws))

    def _loss(self, local: LocalState, batch: Batch, context: Context) -> Tensor:
        """Return the loss of a batch."""
        given, config = local.scratch, context.task.config
        trained = dict(zip(context.trained, context.bound, strict=True))  # which take gradients
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
    """Scratch of a job: the generator received, a module for it, and what labels and noise are drawn from."""

    shape: Shape
    module: Generator
    weights: Mapping[str, Tensor]
    draws: torch.Generator

    def labels(self, count: int) -> Tensor:
        """Return so many labels, all alike."""
        return torch.randint(self.shape.classes, (count,), generator=self.draws)

    def features(self, labels: Tensor) -> Tensor:
        """Return generated features for labels, (batch, features)."""
        noise = torch.randn(len(labels), self.shape.noise, generator=self.draws)
        return made(self.module, self.weights, noise.to(labels.device), labels)


def shares_of_labels(counts: Arr) -> Arr:
    """Return each device's share of all samples of a label, 0 where there are none; counts: (devices, classes)."""
    total = counts.sum(axis=0)
    shares: Arr = (counts / np.maximum(total, 1)).astype(np.float32)
    return shares


PLUGINS = {"fedgen": FedGen}
