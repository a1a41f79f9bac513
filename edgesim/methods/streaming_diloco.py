"""Streaming DiLoCo: DiLoCo that exchanges one fragment of the model at a time, while workers go on training.

Source: Douillard et al., "Streaming DiLoCo with overlapping communication: Towards a Distributed Free Lunch" (2025),
algorithm 2. The formulas are from memory of the paper, because it could not be read here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

from edgesim.core.errors import ConfigError
from edgesim.core.limits import Count, Share
from edgesim.core.method import Aggregate, Finished, LocalPhase, LocalRule, LocalState, Needs, ServerContext
from edgesim.core.model_state import MODEL, lerp, model_in, named, selected
from edgesim.core.price_list import CostProfile
from edgesim.core.rng import Key
from edgesim.core.task import Pass, Payload, Task
from edgesim.core.update import ModelState, Update
from edgesim.core.view import Setting, View
from edgesim.learning.aggregate.mean import is_finite
from edgesim.learning.codec.transfer import on_cpu
from edgesim.learning.models.trace import layer_of
from edgesim.learning.server_optimizers.base import stepped
from edgesim.learning.train.context import Context
from edgesim.methods.diloco import DiLoCo, kept_optimizer, optimizer_of

_NOTHING: frozenset[str] = frozenset()


@dataclass(frozen=True, kw_only=True)
class StreamingDiLoCo(DiLoCo):
    """DiLoCo in fragments: workers never wait for a whole model, as a fragment travels while they train.

    The layers are dealt to `fragments` fragments. Every `every` rounds of `training.local_steps` steps the next
    fragment is due. A worker sends its weights of the fragment, as they are at the start of the round, while it trains.
    At the end of the round the server takes its outer step on the fragment. The new fragment comes back during the next
    round. At the end of that round the worker mixes it into its weights w: w <- `alpha` w + (1 - `alpha`) new.
    So a fragment is exchanged every H = `fragments` x `every` x `local_steps` steps, and its outer step counts
    tau = 2 x `local_steps` steps after it was sent. The paper's tau is any number of steps. Here it is two rounds.

    A round lasts as long as the longest of computing, download and upload, and all workers begin the next one together.
    In the jobs table `down_s` and `up_s` are the seconds that a transfer lasts beyond computing. The first round has no
    overlap: workers get the whole model before they train. Evaluations test the server's model. `encoding.up` writes
    outer gradients in few bits, such as `{ values = "qsgd", bits = 4, update = true }`.
    Every worker takes part in every round. Running statistics are mixed like weights.

    Family: server optimiser. Formula: `each fragment in turn: v <- momentum v + d; x <- x - lr (d + momentum v); tau
    steps later w_k <- alpha w_k + (1 - alpha) x`. Paper: arXiv 2501.18512.
    """

    fragments: Count = 3
    """Chosen here for small networks. Douillard et al. have fragments of three transformer blocks."""
    pattern: Literal["strided", "sequential"] = "strided"  # "sequential" cuts the model into runs of layers
    """Douillard et al. prefer `"strided"`: layer i is in fragment i mod `fragments`. Layers are those of the cost
    profile, not whole transformer blocks.
    """
    every: Count = 1  # rounds between two fragments
    """The paper has no rounds. More of them make H longer and leave tau as it is."""
    alpha: Share = 0.5  # weight of the worker's own weights when a new fragment arrives
    """Douillard et al. have 0.5."""
    needs: ClassVar[Needs] = Needs(protocols=frozenset({"sync"}), device_state="computed", overlap=True)
    no_server_optimizer: ClassVar[str] = "steps by an optimiser of its own, fragment by fragment"

    def init(self, setting: Setting, key: Key) -> Any:
        """Return a state without moments. Raises ConfigError if the model cannot be cut so, or tau would exceed H."""
        layers = len(setting.cost_profile.layer_names)
        if self.fragments > layers:
            found = f"{setting.cost_profile.model} has {layers} layers, found {self.fragments}"
            raise ConfigError(f"method.fragments: must be at most the number of layers, {found}")
        if self.fragments * self.every < 2:
            raise ConfigError(
                "method.fragments: fragments x every must be at least 2, as an exchange takes two rounds, found 1; "
                "use method.every = 2, or method.name = 'diloco'"
            )
        return super().init(setting, key)

    def task(self, view: View) -> Task:
        """Return a round of training; in the first the whole model comes before it, in others fragments pass beside."""
        usual, profile, round_ = super().task(view), view.setting.cost_profile, view.round
        sends = self._due(profile, round_) if round_ else _NOTHING
        if not round_:
            return replace(usual, up=Payload(layers=sends))
        gets = self._due(profile, round_ - 1) if round_ > 1 else _NOTHING
        mixed = Payload(layers=gets)
        mixing = Pass("flops", times=3.0 * profile.contents(mixed, usual.submodel).numbers)
        work = (Pass(), mixing) if gets else (Pass(),)
        return replace(usual, down=mixed, up=Payload(layers=sends), passes=work, overlaps=True)

    def local(self, task: Task) -> LocalRule:
        """Return training that goes on with the worker's own weights and optimiser."""
        phases = (LocalPhase(keeps_optimizer=True),) * len(task.local_sgd)
        return LocalRule(phases, on_start=self._start, on_finish=self._finish)

    def combine(
        self, state: Any, global_model: ModelState, updates: Sequence[Update], server: ServerContext, key: Key
    ) -> Aggregate:
        """Return the model after an outer step on the fragment that arrived. No model if none did."""
        sent = updates[0].body
        if not any(sent.values()):
            return Aggregate(state, None)
        mean = server.mean(global_model, updates, self.update_weights(updates, server.setting))
        old, new = ({"params": {name: m["params"][name] for name in sent["params"]}} for m in (global_model, mean))
        moments, moved = stepped(self, state["moments"], old, new)
        model = {**mean, "params": {**mean["params"], **moved["params"]}}
        return Aggregate({**state, "moments": {**state["moments"], **moments}}, model)

    def merge_flops_of(self, tasks: Sequence[Task], setting: Setting) -> float:
        """Return the FLOPs of a step on the fragment."""
        params = Payload(collections=frozenset({"params"}), layers=tasks[0].up.layers)
        return self.flops_per_parameter * float(setting.cost_profile.numbers(params))

    def _due(self, profile: CostProfile, round_: int) -> frozenset[str]:
        """Return the layers that workers send in a round, from 1: the fragment held at its beginning, or nothing."""
        nth, rest = divmod(round_, self.every)
        if rest:
            return _NOTHING
        names, place = profile.layer_names, (nth - 1) % self.fragments
        if self.pattern == "strided":
            return frozenset(names[place :: self.fragments])
        cut = [len(names) * part // self.fragments for part in (place, place + 1)]
        return frozenset(names[cut[0] : cut[1]])

    def _start(self, context: Context) -> LocalState:
        """Return the worker's own model, the received one at first, with the fragment to send set aside."""
        own = context.device_state or context.global_model
        sent = _of_layers(context.copy(model_in(own)), context.task.up.layers)
        optimizer = optimizer_of(context) if self.inner_state == "keep" else []
        return LocalState(context.copy(model_in(own)), sent, optimizer)

    def _finish(self, local: LocalState, context: Context) -> Finished:
        """Return the fragment to send, and the model to keep with the received fragment mixed in."""
        if not is_finite(local.weights):
            return Finished(local.scratch)
        w, down = local.weights, context.task.down
        if context.task.overlaps and down is not None:
            got = _of_layers(context.copy(model_in(context.global_model)), down.layers)
            mixed = {kind: lerp(got[kind], w[kind], self.alpha) for kind in got}
            w = {kind: named(lambda n, t, kind=kind: mixed[kind].get(n, t), tensors) for kind, tensors in w.items()}
        return Finished(local.scratch, on_cpu({**w, **kept_optimizer(local, context)}))


def _of_layers(model: ModelState, layers: frozenset[str] | None) -> dict[str, Any]:
    """Return the tensors of these layers."""
    return selected({kind: model[kind] for kind in MODEL}, lambda name: layers is None or layer_of(name) in layers)


PLUGINS = {"streaming_diloco": StreamingDiLoCo}
