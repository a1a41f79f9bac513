"""FedGKT: devices train small networks and send feature maps, on which the server trains a large network.

Source: He, Annavaram and Avestimehr, "Group Knowledge Transfer: Federated Learning of Large CNNs at the Edge" (NeurIPS
2020), algorithm 1, and its authors' published code.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from annotated_types import Ge, Le
from torch import Tensor

from edgesim.core.backend import CHUNK
from edgesim.core.errors import ConfigError
from edgesim.core.limits import MOST_COUNT, Count, CountOrZero, NonNegativeFactor, PositiveFactor
from edgesim.core.local_sgd import LocalSGD
from edgesim.core.method import (
    Aggregate,
    Finished,
    LocalPhase,
    LocalRule,
    LocalState,
    Method,
    Needs,
    ServerContext,
    ServerSet,
)
from edgesim.core.model_state import model_in
from edgesim.core.rng import JobStream, Key
from edgesim.core.task import TENSORS, Pass, Payload, Plan, Task, TensorSpec
from edgesim.core.update import ModelState, Update
from edgesim.core.view import Setting, View
from edgesim.learning.aggregate.mean import is_finite
from edgesim.learning.codec.transfer import on_cpu
from edgesim.learning.train.context import Batch, Context
from edgesim.learning.train.loop import batch_order
from edgesim.methods.augfl_teacher import teacher_network
from edgesim.methods.fedjs import noted

_FEATURES, _LOGITS, _LABELS = "features of ", "logits", "labels"  # names of tensors; the layer follows the first
_NETWORK = ""  # the network itself, as torch names submodules


@dataclass(frozen=True, kw_only=True)
class FedGKT(Method):
    """For weak devices: each device trains a small network, and the server trains a large one on their feature maps.

    A device trains its own model on the cross-entropy plus `alpha` times the distance T^2 KL from the logits that the
    server sent it for its samples. Both are softened by the `temperature` T. Then it runs all of its samples through
    its model and sends the outputs of the layer `features`, by default the first, with its logits and the labels, two
    bytes each. The server trains `server_model` on these feature maps for `server_epochs` epochs of Adam, on the
    samples of the round's devices. Its loss is the distance from their logits plus `alpha` times the cross-entropy. In
    its next turn each device receives the logits of its samples, computed as in a test. A device downloads the network
    itself only in its first turn, and keeps its model if its update arrives. No model is averaged: the global model of
    the run keeps its initial weights, and `evaluation.personal` tests the devices' own small networks. The network that
    the method produces is the layers of a device up to `features`, followed by the server's network. The metric
    `server_accuracy` is the accuracy of this network, for each device of the round, on `score_samples` test samples.
    This test costs no simulated time.

    The layers after `features` in the scenario's network are the device's classifier. The maps are the outputs of the
    layer itself: activation and pooling after it belong to the device, and the server's network starts from the maps.
    Samples are not augmented differently in each round unless the data set asks for it. The server of the paper goes
    through one device after the other. Here batches mix the samples of all devices. Adam has no variant with the
    largest moments here, and its moments start anew with every round. Devices use the scenario's optimiser. The engine
    charges the server 2 FLOPs for each number that arrives, as if it were averaged, in addition to the work of its
    network. Timing alone does not know the work of its network, so the method does not run on the null backend.

    Family: distillation. Formula: `loss_k = CE + alpha T^2 KL(server's logits / T, own logits / T)`. Paper: arXiv
    2007.14513.
    """

    alpha: NonNegativeFactor = 1.0
    """Published code."""
    temperature: PositiveFactor = 3.0
    """Published code."""
    features: Annotated[int, Ge(-1000), Le(1000)] | str = (
        1  # number of a layer with weights, -1 the last, or its name: linear, or a convolution on square images
    )
    """The ResNet-8 of the paper sends the outputs of its first convolution, after normalisation."""
    server_model: str = "resnet18_bn"
    """The paper has ResNet-55 and ResNet-109. Any network by name that takes such inputs, or `package.module:Class`."""
    server_epochs: Count = 3
    """Published code."""
    server_batch: Annotated[int, Ge(2), Le(MOST_COUNT)] = 64  # samples of a step of the server's network
    """A comment of the published code, where devices and server have the same batch size."""
    server_lr: PositiveFactor = 0.001  # learning rate of the server's network
    """Published code, with Adam."""
    server_weight_decay: NonNegativeFactor = 1e-4  # weight decay of the server's network
    """Published code, with Adam."""
    score_samples: CountOrZero = 200
    """Our choice. 0 leaves the metric out. In the published code devices send features of their test samples."""
    # plan() reads for which devices there are logits; timing alone does not know the server's training
    needs: ClassVar[Needs] = Needs(device_state="delivered", feedback=True)
    uses_kept_model: ClassVar[bool] = True
    no_server_optimizer: ClassVar[str] = "averages no models, so that there is nothing to step towards"

    @property
    def needs_classes(self) -> str:
        """The reason why labels must be classes, a verb phrase for the error message."""
        return "distils the probabilities of classes"

    @property
    def server_set(self) -> ServerSet | None:
        """Test samples for the metric."""
        return ServerSet(self.score_samples, at_most=True) if self.score_samples else None

    def init(self, setting: Setting, key: Key) -> Any:
        """Return a server that knows no device. Raises ConfigError for a layer or network that does not fit."""
        super().init(setting, key)
        _, shape = self._layer(setting.cost_profile)
        self._network(shape, setting.cost_profile.classes, key)
        return {"seed": key.exact_word(), "known": [], "server": None}

    def plan(self, state: Any, view: View, key: Key) -> Plan:
        """Ask the selected devices to train and to send features. Devices that the server knows get their logits."""
        setting, plain = view.setting, super().task(view)
        layer, shape = self._layer(setting.cost_profile)
        classes, nothing = setting.cost_profile.classes, frozenset[str]()
        known, devices = frozenset(state["known"]), view.choose(key).tolist()
        kinds = [(int(setting.samples[device]), device if device in known else None) for device in devices]

        def task_of(kind: tuple[int, int | None]) -> Task:
            n, receiver = kind  # samples, and the device whose logits it downloads
            features, logits = TensorSpec(_FEATURES + layer, (n, *shape)), TensorSpec(_LOGITS, (n, classes))
            told = TensorSpec(f"{_LOGITS}_{receiver}", (n, classes))
            sent = (features, logits, TensorSpec(_LABELS, (n,), "int16"))
            return replace(
                plain,
                down=Payload() if receiver is None else Payload(collections=nothing, layers=nothing, tensors=(told,)),
                up=Payload(collections=nothing, layers=nothing, tensors=sent),
                passes=(Pass(), Pass("forward", samples=n)),
            )

        return Plan.by_kind(devices, kinds, task_of)

    def local(self, task: Task) -> LocalRule:
        """Return SGD on the cross-entropy and the distance from the server's logits, if there are any."""

        def start(context: Context) -> LocalState:
            received, kept = context.global_model, context.device_state
            model = context.copy(model_in(kept or received))
            assert context.task.down is not None
            told = [received[TENSORS][spec.name] for spec in context.task.down.tensors]
            (sgd,) = context.task.local_sgd
            places = batch_order(context.key.at(0).at(0), len(context.shard), sgd, context.drop_single)
            return LocalState(model, _Told(told[0] if told else None, places))

        def distilled(local: LocalState, batch: Batch, context: Context) -> Tensor:
            logits = context.forward(local.weights, batch.x)
            loss = F.cross_entropy(logits, batch.y)
            if local.scratch.told is None:
                return loss
            wanted = local.scratch.told[next(local.scratch.places)].to(logits.device)
            return loss + self.alpha * self._distance(logits, wanted)

        return LocalRule((LocalPhase(loss=distilled),), on_start=start, on_finish=_finish)

    def combine(
        self, state: Any, global_model: ModelState, updates: Sequence[Update], server: ServerContext, key: Key
    ) -> Aggregate:
        """Return the model with the new logits of devices. The server's network is part of the state."""
        tools, profile = server.tools, server.setting.cost_profile
        layer, shape = self._layer(profile)
        network = tools.own(self._network(shape, profile.classes, Key(state["seed"])))
        sent = [update.body[TENSORS] for update in updates]
        features = [tensors[_FEATURES + layer] for tensors in sent]
        x, told, labels = torch.cat(features), *(torch.cat([ts[name] for ts in sent]) for name in (_LOGITS, _LABELS))
        y = labels.long()

        def loss(model: Any, places: Tensor) -> Tensor:
            logits = model(x[places])
            distance = self._distance(logits, told[places].to(logits.device))
            return distance + self.alpha * F.cross_entropy(logits, y[places].to(logits.device))

        sgd = LocalSGD(
            batch=self.server_batch,
            lr=self.server_lr,
            epochs=self.server_epochs,
            optimizer="adam",
            weight_decay=self.server_weight_decay,
        )
        before = network.first if state["server"] is None else state["server"]
        trained = tools.fit(network, before, sgd, loss, len(x), key)
        own = {update.device: network.outputs(trained, each) for update, each in zip(updates, features, strict=True)}
        flops = tools.take_flops()
        metrics = self._scored(updates, layer, network, trained, tools)
        tools.take_flops()  # the metric is no work of the method
        held = {**global_model.get(TENSORS, {}), **{f"{_LOGITS}_{device}": logits for device, logits in own.items()}}
        new = {**state, "known": sorted({*state["known"], *own}), "server": trained}
        return Aggregate(new, {**model_in(global_model), TENSORS: held}, flops, metrics)

    def _layer(self, cost_profile: Any) -> tuple[str, tuple[int, ...]]:
        """Return the layer whose outputs are sent, and the shape of one output. Raises ConfigError if none fits."""
        layers, wanted = [layer for layer in cost_profile.layers if layer.weights], self.features
        numbered = {name: layer for n, layer in enumerate(layers) for name in (layer.name, n + 1, n - len(layers))}
        if wanted not in numbered:
            names = ", ".join(layer.name for layer in layers)
            raise ConfigError(
                f"method.features: must be a layer with weights of the model ({names}) or its number, 1 to "
                f"{len(layers)} or -{len(layers)} to -1, found {wanted!r}"
            )
        return numbered[wanted].name, output_shape(numbered[wanted], cost_profile)

    def _network(self, shape: Sequence[int], classes: int, key: Key) -> Any:
        return teacher_network(self.server_model, shape, classes, key, option="server_model")

    def _distance(self, logits: Tensor, wanted: Tensor) -> Tensor:
        """Return the mean of T^2 KL(wanted || logits) at temperature T."""
        soft, hard = F.log_softmax(logits / self.temperature, 1), F.log_softmax(wanted / self.temperature, 1)
        return self.temperature**2 * F.kl_div(soft, hard, reduction="batchmean", log_target=True)

    def _scored(
        self, updates: Sequence[Update], layer: str, network: Any, trained: ModelState, tools: Any
    ) -> Mapping[str, Any]:
        """Return the accuracy of the server's network behind each device's layers on the server's test samples."""
        if not self.score_samples:
            return {}
        x, y = tools.inputs(), tools.labels
        own, hits = [], []
        for update, model in ((update, update.own_model) for update in updates):
            if model is not None:
                maps: list[Tensor] = []
                submodule = tools.network.module.get_submodule(layer)
                hook = submodule.register_forward_hook(lambda _, given, out, maps=maps: maps.append(out.cpu()))
                try:
                    tools.network.outputs(model, x)
                finally:
                    hook.remove()
                logits = network.outputs(trained, torch.cat(maps))
                own.append(update)
                hits.append(float((logits.argmax(1) == y.cpu()).double().mean()))
        return noted(own, server_accuracy=np.array(hits))


@dataclass(slots=True)
class _Told:
    """Scratch of a job: the server's logits of the device's samples (None without any) and positions of batches."""

    told: Tensor | None
    places: Iterator[Tensor]


def _finish(local: LocalState, context: Context) -> Finished:
    """Return features, logits and labels to send, and the model to keep unless it diverged."""
    model = on_cpu(model_in(local.weights))
    layer = next(s.name for s in context.task.up.tensors if s.name.startswith(_FEATURES)).removeprefix(_FEATURES)
    augmenting = torch.Generator().manual_seed(context.key.at(JobStream.ONE_BATCH, 1).word())
    found: dict[str, list[Tensor]] = {_FEATURES + layer: [], _LOGITS: [], _LABELS: []}
    for places in torch.split(torch.arange(len(context.shard), device=context.shard.device), CHUNK):
        batch = context.batch(places, augmenting)
        outputs = context.outputs(local.weights, batch.x, [layer, _NETWORK])
        for name, t in zip(found, (outputs[layer], outputs[_NETWORK], batch.y.to(torch.int16)), strict=True):
            found[name].append(t)
    body = {TENSORS: {name: torch.cat(parts) for name, parts in found.items()}}
    return Finished(body, model if is_finite(model) else None, own_model=model)


def output_shape(layer: Any, cost_profile: Any) -> tuple[int, ...]:
    """Return the shape of a layer's output for one input: (channels, side, side) or (features,).

    The shape follows from the cost profile, because a method knows no more before the first round. Raises ConfigError
    for layers other than linear ones and convolutions with square maps.
    """
    sizes = {group.name: group.size for group in cost_profile.groups}
    outputs = layer.params - layer.weights or sizes.get(layer.rows, cost_profile.classes)
    places = layer.forward_flops / (2.0 * layer.weights)
    if layer.kind == "Linear" and places == 1:
        return (outputs,)
    side = math.isqrt(int(places))
    square = len(cost_profile.input_shape) == 3 and cost_profile.input_shape[1] == cost_profile.input_shape[2]
    if layer.kind != "Conv2d" or side**2 != places or not square:
        raise ConfigError(
            f"method.features: needs a linear layer or a convolution on square images; found {layer.name} of "
            f"{cost_profile.model}, {layer.kind}, whose outputs have another shape"
        )
    return (outputs, side, side)


PLUGINS = {"fedgkt": FedGKT}
