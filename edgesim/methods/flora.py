"""FLoRA: the server stacks the low-rank adapters of devices, which fold the exact mean product into their base.

Source: Wang et al., "FLoRA: Federated Fine-Tuning Large Language Models with Heterogeneous Low-Rank Adaptations"
(NeurIPS 2024, arXiv 2409.05976), algorithm 1, and its authors' published code.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from edgesim.core.errors import ConfigError
from edgesim.core.job import Job
from edgesim.core.method import Aggregate, LocalPhase, LocalRule, LocalState, Needs, ServerContext
from edgesim.core.price_list import F32_BYTES
from edgesim.core.rng import JobStream, Key
from edgesim.core.task import Pass, Payload, Plan, Task
from edgesim.core.update import BASE, ModelState, Update
from edgesim.core.view import Setting, View
from edgesim.learning.models.trace import layer_of
from edgesim.learning.train.context import Context, original_base
from edgesim.methods.lora.adapters import Adapter, adapters_of, at_rank, pairs_in, shares, without
from edgesim.methods.lora.ranks import ByRank


@dataclass(frozen=True, kw_only=True)
class FLoRA(ByRank):
    """Devices of different ranks start new adapters in every round, and their exact mean product moves the base.

    The server stacks the A of all devices, each times its share of the data, and the B of all devices. The product of
    the stacks is the mean of the products, whatever the ranks. A device downloads the stacks of the rounds since its
    last update and adds their product, times alpha / r of the network, to the frozen weights. So it receives the sum of
    ranks times (inputs + outputs) numbers of each adapted layer, and computes 2 sum of ranks x inputs x outputs FLOPs.
    Then it trains adapters of its own rank: A is drawn anew, uniform in +- 1 / sqrt(inputs) as peft does, and B is 0.
    Parameters beside the adapters are averaged by data size.

    The run holds the moved weights of adapted layers once for each global model, as the collection "base". Stacks
    travel in float32 whatever the scenario's encoding. The adapters of the first model are not used: their product is
    taken to be 0, as in peft. Adapted layers must be linear.

    `ranks`: rising, at most the rank of the network's adapters. `tiers`: with "fix" a device keeps a rank that is drawn
    once, in the given `proportions`, equal ones if unset. With "level" devices of level i have the i-th rank.

    Without training times and bytes are known too: they follow from the ranks of the devices whose updates arrived.

    In the paper all devices take part or get every stack. The paper does not specify what an absent device downloads
    later.

    Family: low-rank adapters. Formula: `W <- W + alpha / r sum_k n_k B_k A_k / sum_k n_k`. Paper: arXiv 2409.05976.
    """

    needs: ClassVar[Needs] = Needs(feedback=True)  # the stacks hold the updates that were finite
    no_server_optimizer: ClassVar[str] = "adds products to the frozen weights, which a server optimiser would not see"
    no_update_encoding: ClassVar[str] = "starts new adapters on devices, so that no update is one of the received model"

    def init(self, setting: Setting, key: Key) -> Any:
        """Return ranks, the ranks in all stacks so far after each merge, and the merges that each device has folded.

        Raises ConfigError if ranks do not fit or an adapted layer is not linear.
        """
        state, profile = super().init(setting, key), setting.cost_profile
        adapters = adapters_of(profile)
        kinds = {layer.name: f"a trained {layer.kind}" if layer.weights else layer.kind for layer in profile.layers}
        for each in adapters:
            kind = kinds.get(f"{each.layer}.base_layer", "not there")
            if kind not in _LINEAR:
                raise ConfigError(
                    "method.name: flora adds products to frozen linear layers; "
                    f"{each.layer}.base_layer of {profile.model} is {kind}"
                )
        return {**state, "stacked": [[0] * len(adapters)], "folded": [0] * len(setting.samples)}

    def plan(self, state: Any, view: View, key: Key) -> Plan:
        """Ask the selected devices to fold the stacks that they lack and to train new adapters of their ranks."""
        profile, devices, usual = view.setting.cost_profile, view.choose(key).tolist(), self.task(view)
        adapters = adapters_of(profile)
        stacks, own = state["stacked"], {layer for each in adapters for layer in (each.a_layer, each.b_layer)}
        others = frozenset(profile.layer_names) - own

        def task_of(kind: tuple[int, int]) -> Task:
            rank, folded = kind
            lacking = [(each, now - old) for each, now, old in zip(adapters, stacks[-1], stacks[folded], strict=True)]
            numbers = sum(ranks * (each.inputs + each.outputs) for each, ranks in lacking)
            folding = sum(2 * ranks * each.inputs * each.outputs for each, ranks in lacking)
            return replace(
                usual,
                submodel=at_rank(adapters, rank, self.width_of(rank)),
                down=Payload(layers=others, extra_bytes=F32_BYTES * numbers),
                up=Payload(layers=others | own),
                passes=(*usual.passes, *((Pass("flops", times=float(folding)),) if folding else ())),
                config={"folded": float(len(stacks) - 1)},
            )

        kinds = [(state["rank"][device], state["folded"][device]) for device in devices]
        return Plan.by_kind(devices, kinds, task_of)

    def local(self, task: Task) -> LocalRule:
        """Return SGD on the cross-entropy from new adapters on the moved base."""
        return LocalRule((LocalPhase(),), on_start=_start)

    def combine(
        self, state: Any, global_model: ModelState, updates: Sequence[Update], server: ServerContext, key: Key
    ) -> Aggregate:
        """Return the model with the mean product in its base, and the mean of the other parameters."""
        profile = server.setting.cost_profile
        adapters, weights = adapters_of(profile), self.update_weights(updates, server.setting)
        model = server.mean(global_model, without(adapters, updates), weights)
        if sum(weights) <= 0:
            return Aggregate(state, model)
        module, moved = server.tools.network.module, dict(global_model.get(BASE, {}))
        params, kinds = dict(model["params"]), {layer.name: layer.kind for layer in profile.layers}
        for each in adapters:
            step = stacked_product(each, [update.body["params"] for update in updates], shares(weights))
            layer, base = module.get_submodule(each.layer), f"{each.layer}.base_layer"
            step *= layer.scaling[each.a_layer.rpartition(".")[2]]  # alpha / r by name of the adapter, as peft has it
            step = step.mT if kinds[base] == "Conv1D" else step
            name = f"{base}.weight"
            before = moved[name] if name in moved else original_base(module, name).cpu()
            moved[name] = (before.double() + step).to(before.dtype)
            params[each.b] = torch.zeros_like(params[each.b])
        new = self.foreseen(state, updates, server.setting)
        return Aggregate(new, {**model, "params": params, BASE: moved})

    def foreseen(self, state: Any, jobs: Sequence[Job | Update], setting: Setting) -> Any:
        """Return the state with the ranks of these jobs in a new stack, and the merges that their devices have folded.

        Devices without samples give no stack.
        """
        if not any(setting.samples[each.device] if each.samples is None else each.samples for each in jobs):
            return state
        folded, parts = list(state["folded"]), [each.task.submodel for each in jobs]
        for each in jobs:
            folded[each.device] = int(each.task.config["folded"])
        so_far = [
            before + sum(adapter.rank_in(part) for part in parts)
            for adapter, before in zip(adapters_of(setting.cost_profile), state["stacked"][-1], strict=True)
        ]
        return {**state, "stacked": [*state["stacked"], so_far], "folded": folded}


_LINEAR = ("Linear", "Conv1D")  # of torch, and of transformers, whose weight is (inputs, outputs)


def stacked_product(adapter: Adapter, models: Sequence[Any], weights: Sequence[float]) -> Tensor:
    """Return the product of the stacked B and the stacked A, each times its weight, in float64: sum_k w_k B_k A_k."""
    a = torch.cat([weight * params[adapter.a].double() for params, weight in zip(models, weights, strict=True)], dim=0)
    b = torch.cat([params[adapter.b].double() for params in models], dim=1)
    return b @ a


def _start(context: Context) -> LocalState:
    """Return the received model with new adapters: A uniform, B of zeros."""
    model = context.copy(context.global_model)
    params = model["params"]
    generator = torch.Generator().manual_seed(context.key.at(JobStream.ADAPTERS).word())
    for a, b in pairs_in(map(layer_of, params)).items():
        own = params[f"{a}.weight"]
        own.copy_((2 * torch.rand(own.shape, generator=generator) - 1) / math.sqrt(own.shape[1]))
        params[f"{b}.weight"].zero_()
    return LocalState(model)


PLUGINS = {"flora": FLoRA}
