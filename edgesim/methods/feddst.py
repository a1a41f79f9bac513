"""FedDST: one sparse network, whose mask moves as devices prune and regrow weights and the server merges them.

Source: S. Bibikar, H. Vikalo, Z. Wang and X. Chen, "Federated Dynamic Sparse Training: Computing Less, Communicating
Less, Yet Learning Better" (AAAI 2022) and its authors' published code; as a baseline of the FedDHAD paper (arXiv
2507.10430) and of DA-DPFL.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, TypeAlias

import numpy as np
from annotated_types import Ge, Lt

from edgesim.core.limits import Count, Share
from edgesim.core.method import Aggregate, LocalPhase, LocalRule, LocalState, Method, ServerContext
from edgesim.core.rng import Key
from edgesim.core.task import Pass, Payload, Plan, Submodel, Task
from edgesim.core.update import ModelState, Update
from edgesim.core.view import Setting, View
from edgesim.learning.submodel import masks
from edgesim.learning.train.context import Context

When: TypeAlias = Literal["before", "last_epoch"]
Weights: TypeAlias = Literal["samples", "equal"]
Initial: TypeAlias = Literal["magnitude", "random"]


class _Settings(NamedTuple):
    """Keys that a preset sets where the scenario leaves them out."""

    sparsity: float
    allocation: masks.Allocation
    initial: Initial
    alpha: float
    interval: int
    end_round: int
    readjust: When
    weights: Weights


_PRESETS = {
    "feddhad": _Settings(0.01, "feddst", "magnitude", 0.01, 15, 250, "last_epoch", "samples"),
    "dadpfl": _Settings(0.5, "erk", "random", 0.3, 5, 500, "before", "equal"),
}


@dataclass(frozen=True, kw_only=True)
class FedDST(Method):
    """To save bytes and FLOPs, all devices train one sparse model: a share `sparsity` of its weights is always zero.

    In rounds 1, 1 + `interval`, ... before `end_round` each device prunes the smallest weights of every layer, a share
    `alpha` that falls to 0 along a cosine. It regrows as many, from 0, where the gradient of one batch is largest. It
    can `readjust` at the start of its last epoch ("last_epoch") or before training ("before"). The server averages each
    weight over the devices that have it, by data size or with `weights` "equal", and keeps the largest of each layer.
    `allocation`: the number of weights of each layer, by "erk" or by the rule of FedDST's code. `initial`: the weights
    kept at first, the largest ("magnitude") or random ones. The `preset` sets the keys that are left out, as in the
    comparison of the FedDHAD or the DA-DPFL paper. `bitmap`: where encodings send masks, they send them only if they
    have "changed", or "always". The metric `regrown` counts weights of the new model that were zero in the old one.

    The mask of a message is its nonzero weights. The mask of a model is the largest weights of each layer, as many as
    the layer keeps. So neither is sent, except for the bytes that the encoding charges. A kept weight that is exactly
    zero counts as missing on its device; one that the encoding rounds to zero does not. The gradient for regrowing is
    taken on one random batch and costs one training step of the whole model. Pruned weights may come straight back,
    from zero. The number of weights of a layer has to be known before the first round, from the cost profile. It is
    known for linear layers and convolutions with square kernels in one group; other models are refused. Zeros save
    FLOPs with `cost = { name = "measured", sparse = "ideal" }` and bytes with `encoding.up = { zeros = "bitmap" }`.

    Family: pruning. Formula: `w_e <- sum_(k has e) n_k w_ke / sum_(k has e) n_k, then the largest of each layer stay`.
    Paper: arXiv 2112.09824.
    """

    preset: Literal["feddhad", "dadpfl"] = "feddhad"
    """Two papers compare with FedDST, each with its own settings, below as FedDHAD / DA-DPFL. Where the papers do not
    specify a value, it is from the published code.
    """
    no_server_optimizer: ClassVar[str] = masks.ZEROS_STAY
    no_update_encoding: ClassVar[str] = masks.ZEROS_GO
    sparsity: Annotated[float, Ge(0), Lt(1)] | None = None
    """0.01 / 0.5. FedDHAD tunes it and does not specify the result. Its printed costs give 0.01 for LeNet and the CNN
    on CIFAR, 0.008 and 0.055 on SVHN, 0.03 for VGG11, 0.2 for ResNet18. The FedDST paper has 0.8.
    """
    allocation: masks.Allocation | None = None
    """`"feddst"` / `"erk"`. Both are called ERK: FedDST's code makes sparsities proportional to 1 - sum / product of
    a shape, the rule's authors densities to sum / product, at most 1. `"feddst"` cannot leave out nearly all weights,
    because one tensor would have none left. The error then names the largest possible sparsity.
    """
    initial: Initial | None = None
    """`"magnitude"` / `"random"`: the largest weights of the first model, or random positions, the same on every
    device.
    """
    alpha: Share | None = None
    """0.01 / 0.3. The published code decays it and then prunes with the constant. Here the decayed share is pruned,
    rounded up in every layer.
    """
    interval: Count | None = None
    """15 / 5, counted from round 1. FedDST: 10 to 20; DA-DPFL tries 1, 5, 10 and 20."""
    end_round: Count | None = None
    """250 / 500: half of the 500 rounds of FedDHAD, all rounds of DA-DPFL."""
    readjust: When | None = None  # time at which masks move
    """`"last_epoch"` / `"before"`. FedDST's code moves the mask in its last epoch, read as at the start of this epoch,
    so that new weights are trained once. DA-DPFL's code moves it before training.
    """
    weights: Weights | None = None
    """`"samples"` / `"equal"`: DA-DPFL's code counts devices, not samples."""
    bitmap: Literal["changed", "always"] = "changed"
    """A mask is sent if it changed. A device that missed that round would need the mask later, which is not counted;
    `"always"` counts it. Only where `encoding` sends masks (`zeros` other than `"sent"`).
    """

    def init(self, setting: Setting, key: Key) -> Any:
        """Return the number of weights that each tensor keeps.

        Raises ConfigError for a model that no mask fits, and for local steps where the last epoch counts.
        """
        if self._settings().readjust == "last_epoch":
            setting.training.check_epochs("with method.readjust 'last_epoch' masks move in the last epoch")
        settings, shapes = self._settings(), masks.weight_shapes(setting.cost_profile)
        super().init(setting, key)
        shares = masks.densities(shapes, settings.sparsity, settings.allocation)
        return {"kept": masks.kept_counts(shapes, shares), "seed": key.exact_word()}

    def plan(self, state: Any, view: View, key: Key) -> Plan:
        """Ask the selected devices to train the sparse model, and in some rounds to move its mask."""
        setting, settings, ids = view.setting, self._settings(), view.choose(key)
        sgd, share = setting.training.local_sgd(view.round), self._share(view.round + 1)
        config = {"share": share} if share else {}
        if settings.initial == "random" and view.version == 0:
            config["seed"] = state["seed"]
        new = view.version == 0 or self._share(view.round) > 0
        plain = Task(
            submodel=Submodel("sparse", nnz=masks.nonzeros(state["kept"])),
            local_sgd=(sgd,),
            down=Payload(encoding=masks.wire(setting.encoding_down, self._known(new))),
            up=Payload(encoding=masks.wire(setting.encoding_up, self._known(share > 0))),
            config={name: value for name, value in config.items() if name != "share"},
        )
        _, steps = sgd.amount(setting.samples[ids], setting.cost_profile.drop_single)
        smaller = np.minimum(sgd.batch, setting.samples[ids])
        sizes = np.where(steps > 0, smaller, 0).tolist() if share else [0] * len(ids)  # of the batch for regrowing

        def task_of(size: int) -> Task:
            if not size:
                return plain
            halves = settings.readjust == "last_epoch" and sgd.epochs > 1
            local_sgd = (sgd.for_epochs(sgd.epochs - 1), sgd.for_epochs(1)) if halves else (sgd,)
            passes = (Pass(), Pass("train", samples=size, submodel=Submodel()))  # the dense gradient
            return replace(plain, name="readjust", local_sgd=local_sgd, passes=passes, config=config)

        return Plan.by_kind(ids.tolist(), sizes, task_of)

    def local(self, task: Task) -> LocalRule:
        """Return SGD on the cross-entropy under a mask, which moves before the last phase if the task says so."""

        def start(context: Context) -> LocalState:
            w, counts = context.copy(context.global_model), masks.counts_in(context.task.submodel)
            mask, config = masks.by_magnitude(w["params"], counts), context.task.config
            if "seed" in config:  # random weights of the first model
                shapes = {name: tuple(w["params"][name].shape) for name in counts}
                drawn = masks.at_random(shapes, counts, Key(int(config["seed"])))
                mask = {name: drawn[name].to(old.device) for name, old in mask.items()}
            return LocalState(masks.applied(w, mask), masks.UnderMask(mask))

        def readjusted(local: LocalState, context: Context, share: float) -> LocalState:
            w, old = local.weights, local.scratch.mask
            size = min(context.task.local_sgd[0].batch, len(context.shard))
            gradient = masks.dense_gradient(w, masks.one_batch(context, size), context)
            kept = {name: masks.pruned(w["params"][name], mask, share) for name, mask in old.items()}
            new = {name: masks.regrown(kept[name], gradient[name], masks.how_many(mask)) for name, mask in old.items()}
            return LocalState(masks.applied(w, kept), masks.UnderMask(new))

        phase = LocalPhase(adjust_gradients=masks.masked_gradients)
        last = phase
        if "share" in task.config:
            last = replace(phase, on_enter=partial(readjusted, share=task.config["share"]))
        return LocalRule((*[phase] * (len(task.local_sgd) - 1), last), on_start=start)

    def combine(
        self, state: Any, global_model: ModelState, updates: Sequence[Update], server: ServerContext, key: Key
    ) -> Aggregate:
        """Average each weight over the devices that have it, and keep the largest of each layer."""
        model = merged(updates, self.update_weights(updates, server.setting), state["kept"])
        new, old = model["params"], global_model["params"]
        regrown = sum(int(((new[n] != 0) & (old[n] == 0)).sum()) for n in state["kept"])
        return Aggregate(state, model, metrics={"regrown": float(regrown)})

    def update_weights(self, updates: Sequence[Update], setting: Setting) -> Sequence[float]:
        """Return data sizes or ones, times the protocol's weights."""
        by_samples = self._settings().weights == "samples"
        return [m.weight * (m.samples if by_samples else 1) for m in updates]

    def _settings(self) -> _Settings:
        given: dict[str, Any] = {
            "sparsity": self.sparsity,
            "allocation": self.allocation,
            "initial": self.initial,
            "alpha": self.alpha,
            "interval": self.interval,
            "end_round": self.end_round,
            "readjust": self.readjust,
            "weights": self.weights,
        }
        return _PRESETS[self.preset]._replace(**{name: value for name, value in given.items() if value is not None})

    def _share(self, t: int) -> float:
        """Return the share that devices prune in round `t`, counted from 1; 0 if the mask stays."""
        settings = self._settings()
        if t < 1 or (t - 1) % settings.interval or t >= settings.end_round:
            return 0.0
        return masks.annealed(settings.alpha, t, settings.end_round)

    def _known(self, changed: bool) -> bool:
        return self.bitmap == "changed" and not changed


def merged(updates: Sequence[Update], weights: Sequence[float], kept: masks.Counts) -> dict[str, Any]:
    """Return the mean of each weight over the models that have it, with the `kept` largest weights of each tensor."""
    bodies = [message.body for message in updates]
    mean = masks.masked_mean(bodies, [masks.support(body["params"]) for body in bodies], weights)
    return masks.applied(mean, masks.by_magnitude(mean["params"], kept))


PLUGINS = {"feddst": FedDST}
