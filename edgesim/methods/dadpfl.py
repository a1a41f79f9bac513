"""DA-DPFL: DisPFL whose devices reuse models of the same round and, once training has settled, prune permanently.

Source: DA-DPFL paper (decentralised personalised federated learning by dynamic aggregation and sparse-to-sparser
training), algorithms 1 to 3, and its authors' published code.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, TypeAlias

import numpy as np
import torch
from annotated_types import Ge, Lt

from edgesim.core.errors import ConfigError
from edgesim.core.limits import Count, CountOrZero, NonNegativeFactor, PositiveFactor, PositiveShare, Share
from edgesim.core.method import Aggregate, Finished, LocalPhase, LocalRule, LocalState, Method, Needs, ServerContext
from edgesim.core.model_state import model_in
from edgesim.core.peer_graph import PeerGraph
from edgesim.core.rng import Key
from edgesim.core.task import Plan, Task
from edgesim.core.update import ModelState, Update
from edgesim.core.view import Setting, View
from edgesim.learning.submodel import masks, pruning
from edgesim.learning.train.context import Context
from edgesim.methods.decentralised import sparse as sparse_peers
from edgesim.methods.decentralised.base import Select, check_reuse, peer_plan
from edgesim.methods.decentralised.sparse import FirstMasks, Growth, Initial, Maskable

Schedule: TypeAlias = Literal["constant", "step_down"]
Sends: TypeAlias = Literal["pruned", "trained"]
AlphaAt: TypeAlias = Literal["t - 1", "t"]

_ORIGIN, _DISTANCES = "origin", "distances"  # kinds that a device keeps: its first mask, its first and last distance


class _Settings(NamedTuple):
    """Keys that a preset sets where the scenario leaves them out."""

    wait_schedule: Schedule
    maskable: Maskable
    initial_masks: Initial
    distance: pruning.Distance
    clock: pruning.Clock
    max_prunings: int
    sends: Sends
    gamma: float
    eta: float
    alpha_at: AlphaAt


_RECONSTRUCTED = _Settings("constant", "2d", "per_device", "squared", "paper", 20, "pruned", 1.0, 0.0, "t - 1")
_PRESETS = {
    "reconstructed": _RECONSTRUCTED,
    "printed": _RECONSTRUCTED._replace(gamma=0.9, eta=1.0, alpha_at="t"),
    "authors": _Settings("step_down", "authors", "shared", "norms", "authors", 21, "trained", 1.0, 0.0, "t - 1"),
}


@dataclass(frozen=True, kw_only=True)
class DADPFL(Method):
    """Sparse peers that wait for fresh models of earlier peers in the round, and vote on when to prune permanently.

    Mixing, training and moving masks: see DisPFL. A device waits for `reuse` neighbours that come before it in the
    round's random order, chosen by `wait_select`; unset: for all. With `wait_schedule` "step_down" it waits for one
    fewer in each of `reuse` + 1 equal parts of the `end_round` rounds. It waits without limit or, once nothing else is
    missing, for `wait_timeout` times its own training time for each training in the longest chain of waits before it.
    After a timeout or a failure of the neighbour it continues without that model ("drop"), or takes the neighbour's
    model of the start of the round, which it has fetched as well ("stale"). With "first_finish" it has fetched those of
    all neighbours anyway. A device votes for pruning if its `distance` to its first model changed by less than
    `change_below` of the change in its first round. After the round in which a share `majority` of the votes is for it,
    devices prune in the rounds of the `clock`, which depends on `b` and `c`, at most `max_prunings` times and until a
    share `target_sparsity` is zero. The PQ index with `p`, `q`, `gamma`, `eta` and `beta` says how many weights each
    layer can spare. In such a round a device `sends` the "pruned" model or the "trained" one. The `preset` sets the
    keys that are left out. The metrics hold the means of `sparsity`, `change` and `vote`.

    Three values below are for the presets `reconstructed`, `printed` and `authors`. All else is as for `dispfl`; with
    `reuse = 0` and `max_prunings = 0` every bit is. Votes, one byte to every device, travel free of charge. Prices
    depend on how many weights devices have pruned, so the method does not run on the null backend. The work and
    messages of a device are priced by the mask under which it trains. This is exact except for the message of a round
    in which it prunes and sends `"pruned"`. Its size is not known beforehand, so it is priced as before the pruning,
    which is never too low. A device that prunes and then fails before it delivers keeps its smaller model, but is
    priced by the old mask until it delivers. Any `peers` will do. A `reuse` above the number of neighbours is refused.
    The paper's settings of local work go into `training`: 5 epochs, batch 128, lr 0.1, decay 0.998 (0.997 in the
    scripts for HAM10000), weight decay 5e-4.

    Family: peers. Formula: `w_i <- m_i (sum_j m_j w_j) / (sum_j m_j), over own and received models, some of them of
    this round`.
    """

    preset: Literal["reconstructed", "printed", "authors"] = "reconstructed"
    """Sets the keys that are left out below. `"reconstructed"` is the paper with pruning settings under which its
    figures are possible: `gamma` 1 and `eta` 0 are not printed. `"printed"` takes the printed 0.9 and 1 as these two,
    and the cosine at t. `"authors"` does the same as the released code.
    """
    reuse: CountOrZero | None = None
    """N. The paper has 10, which is M. Unset: all neighbours, so also the 2 of a ring, where the code ignores the cap.
    """
    wait_select: Select = "lowest_index"
    """The paper has "the N fastest clients". The code takes the N first in the order, whatever their speed:
    `"lowest_index"`. The words mean `"first_finish"`. In the paper each device has an order of its own, with which two
    devices could wait for each other. Here, as in the code, there is one order for all.
    """
    wait_schedule: Schedule | None = None  # wait for equally many in all rounds, or for fewer and fewer
    """`"constant"` / the same / `"step_down"`: as run, the code lowers N to 0 in equal blocks of rounds."""
    wait_timeout: PositiveFactor | None = None
    """The paper does not specify this. Unset, a device waits for a model without limit, and a neighbour that fails
    releases it at once. A limit, such as 3, drops neighbours that are this many times slower than the device itself.
    """
    on_prior_failure: Literal["drop", "stale"] = "drop"  # after a failure: no model, or the neighbour's old model
    """The paper does not specify this. With the default the missing model is in no sum. With `"stale"` the model from
    the start of the round takes its place. All of these are fetched as well, up to N messages more. With
    `wait_select = "first_finish"` there is no choice. The first neighbours are not known beforehand, so all models from
    the start of the round are fetched and in the sum.
    """
    sparsity: Annotated[float, Ge(0), Lt(1)] = 0.5
    """At first; as for `dispfl`."""
    maskable: Maskable | None = None  # tensors that masks cover
    """`"2d"` / the same / `"authors"`, as for `dispfl`."""
    initial_masks: Initial | None = None  # one for each device, or one for all
    """`"per_device"` / the same / `"shared"`, as for `dispfl`: the paper starts as DisPFL does."""
    alpha: Share = 0.3  # share of the kept weights that moves, falling along a cosine
    """Not in the paper; in the scripts 0.3, and 0.5 on CIFAR-100."""
    alpha_at: AlphaAt | None = None  # place of round t, counted from 1, on the cosine
    """`"t - 1"` / `"t"` / `"t - 1"`: Algorithm 3 prints t. In the code `alpha` itself moves in the first round."""
    end_round: Count = 500
    """All rounds; 300 on HAM10000. Devices do not prune after it."""
    growth: Growth = "gradient"  # places where weights grow back: at large gradients, or at random
    """As in the papers, by the cross-entropy of one batch. The scripts that were run grow at random: `"random"`, which
    needs no gradient and pays for none. The code squares the mean over several batches of a loss on raw logits.
    """
    target_sparsity: Annotated[float, Ge(0), Lt(1)] = 0.8
    """A device that has reached it does not prune any more. The last pruning may go beyond it. The scripts have 0.7 on
    HAM10000.
    """
    distance: pruning.Distance | None = None
    """`"squared"` / the same / `"norms"`: the paper takes the squared norm of the whole difference, the code adds up
    norms of tensors. `change_below` was presumably tuned with the norms.
    """
    change_below: PositiveFactor = 0.02
    """0.01 to 0.03 in the paper, 0.02 in the scripts. An equal change is no vote."""
    majority: PositiveShare = 0.5
    """As printed, fewer votes than this share decide, which is true in round 1 already. In text and code at least this
    share of the arrived votes decides.
    """
    clock: pruning.Clock | None = None
    """`"paper"` / the same / `"authors"`. t_p is read as a running sum of gaps from round 0. With b = 0 its first value
    is the round of the vote, which does not prune. The code prunes first in the round after the vote, and one round
    after each sum.
    """
    b: NonNegativeFactor = 0.0
    """Paper and code."""
    c: PositiveFactor = 1.3
    """The paper; 1.4 in some scripts. Above 1 gaps shrink to single rounds, at 1 or less they do not."""
    max_prunings: CountOrZero | None = None
    """20 / 20 / 21. The paper does not specify this; the code lists no more."""
    sends: Sends | None = None
    """`"pruned"` / the same / `"trained"`: Algorithm 2 prunes before it sends; the code prunes only the mask of the
    next round.
    """
    p: PositiveFactor = 0.5
    """Paper and code."""
    q: PositiveFactor = 1.0
    """Paper and code. The printed exponent p / (q - p) is p q / (q - p) in the source of the rule, the same for q = 1.
    """
    gamma: Share | None = None
    """1 / 0.9 / 1."""
    eta: NonNegativeFactor | None = None
    """0 / 1 / 0. The paper lists 0.9 and 1 as gamma and eta. With these one pruning takes two thirds of a layer or
    more, unlike in its figures. In the source of the rule 0.9 is beta.
    """
    beta: Share = 0.9
    """At most this share of a layer at once; not in the paper."""
    needs: ClassVar[Needs] = Needs(protocols=frozenset({"sync"}), device_state="computed", feedback=True, peers="any")
    uses_kept_model: ClassVar[bool] = True

    def init(self, setting: Setting, key: Key) -> Any:
        """Return the numbers of weights that devices keep at first, and no pruning rounds.

        Raises ConfigError for a model that no mask fits, and for keys that contradict each other.
        """
        super().init(setting, key)
        if self.target_sparsity < self.sparsity:
            raise ConfigError(
                f"method.target_sparsity: must be at least method.sparsity, {self.sparsity:g}, "
                f"got {self.target_sparsity:g}"
            )
        if self.p >= self.q:
            raise ConfigError(f"method.p: must be below method.q, {self.q:g}, got {self.p:g}")
        first = self._first()
        counts = first.counts(first.shapes(setting.cost_profile))
        return {"first": counts, "kept": {}, "seed": key.exact_word(), "settled": 0, "rounds": []}

    def check_peers(self, graph: PeerGraph) -> None:
        """Raise ConfigError if `reuse` is above the number of neighbours of every device."""
        check_reuse(graph, self.reuse, "; all: leave it out")

    def plan(self, state: Any, view: View, key: Key) -> Plan:
        """Ask every reachable device to wait, mix, train and move its mask, and in some rounds to prune."""
        t, most = view.round + 1, int(view.peers.degree.max())
        orders = peer_plan(view, key, Task(start="device"), self.cap(t, most), self.wait_select).orders
        of_round = t if self._settings().alpha_at == "t - 1" else t + 1  # whose place on the cosine is one before it
        config = sparse_peers.config_of(state["seed"], sparse_peers.share_at(self.alpha, of_round, self.end_round))
        if t in state["rounds"]:
            config["prune"] = 1.0
        kept = {device: state["kept"].get(device, state["first"]) for device in view.idle.tolist()}
        orders = sparse_peers.sparse_orders(orders, view, kept, config, self.growth)
        if self.on_prior_failure == "stale":  # also fetch the models of the start of the round
            orders = tuple(o._replace(inputs=tuple(sorted({*o.inputs, *o.wait.peers}))) for o in orders)
        if self.wait_timeout is not None:
            orders = sparse_peers.impatient(orders, view.setting, self.wait_timeout)
        return Plan(orders)

    def local(self, task: Task) -> LocalRule:
        """Return SGD under a mask from the mix, after which the device prunes if told to, moves its mask and votes."""
        phase = LocalPhase(adjust_gradients=masks.masked_gradients)
        start = partial(sparse_peers.mixed, first=self._first())
        return LocalRule((phase,), on_start=start, on_finish=self._finish)

    def aggregate(
        self, state: Any, global_model: ModelState, updates: Sequence[Update], server: ServerContext, key: Key
    ) -> Aggregate:
        """Return the mean of each weight over the devices that have it, and count the votes."""
        merged, usable = sparse_peers.mean_of_sparse(state, global_model, updates)
        if not usable:
            return merged
        state = {**state, "kept": {**state["kept"], **{m.device: m.statistics["kept"] for m in usable}}}
        vote = float(np.mean([m.statistics["vote"] for m in usable]))
        if not state["settled"] and vote >= self.majority:
            state |= {"settled": server.round + 1, "rounds": self.rounds(server.round + 1)}
        size = sum(math.prod(shape) for shape in self._first().shapes(server.setting.cost_profile).values())
        sparsity = 1 - float(np.mean([sum(m.statistics["kept"].values()) for m in usable])) / size
        change = float(np.mean([m.statistics["change"] for m in usable]))
        return merged._replace(
            state=state, metrics={"sparsity": sparsity, "change": change, "vote": vote, **merged.metrics}
        )

    def cap(self, t: int, most: int) -> int:
        """Return the number of neighbours for which devices wait in round `t`, counted from 1.

        `most`: the largest number of neighbours of a device.
        """
        cap = most if self.reuse is None else self.reuse
        if self._settings().wait_schedule == "constant":
            return cap
        return max(0, cap - (t - 1) // max(1, self.end_round // (cap + 1)))

    def rounds(self, settled: int) -> list[int]:
        """Return the rounds in which devices prune after the votes of round `settled`."""
        settings = self._settings()
        return pruning.pruning_rounds(settled, self.end_round, settings.clock, self.b, self.c, settings.max_prunings)

    def _finish(self, local: LocalState, context: Context) -> Finished:
        """Return the model to send and to keep, and the device's vote, the change behind it and its new counts."""
        settings, own, mask = self._settings(), context.device_state or {}, local.scratch.mask
        model = local.weights
        origin = own.get(_ORIGIN, mask)
        started = masks.applied(context.global_model, {name: m.cpu() for name, m in origin.items()})
        now = pruning.distance(model["params"], started["params"], settings.distance)
        first, last = own[_DISTANCES][_DISTANCES].tolist() if own else (now, 0.0)
        change = pruning.change(now, last, first)
        if "prune" in context.task.config and sparsity_of(mask) < self.target_sparsity:
            rule = pruning.PQ(self.p, self.q, settings.gamma, settings.eta, self.beta)
            params = model["params"]
            spared = {name: pruning.spared(params[name][m], rule) for name, m in mask.items()}
            mask = {name: masks.without_smallest(params[name], m, spared[name]) for name, m in mask.items()}
            model = model_in(masks.applied(model, mask)) if settings.sends == "pruned" else model
        mask = sparse_peers.moved(model, mask, context, self.growth)
        keep = sparse_peers.memory(model, mask)
        distances = torch.tensor([first, now], dtype=torch.float64)
        keep |= {_ORIGIN: {n: m.cpu() for n, m in origin.items()}, _DISTANCES: {_DISTANCES: distances}}
        vote = float(first > 0 and change < self.change_below)
        return Finished(model, keep, {"vote": vote, "change": change, "kept": masks.counts_of(mask)})

    def _settings(self) -> _Settings:
        given: dict[str, Any] = {
            "wait_schedule": self.wait_schedule,
            "maskable": self.maskable,
            "initial_masks": self.initial_masks,
            "distance": self.distance,
            "clock": self.clock,
            "max_prunings": self.max_prunings,
            "sends": self.sends,
            "gamma": self.gamma,
            "eta": self.eta,
            "alpha_at": self.alpha_at,
        }
        return _PRESETS[self.preset]._replace(**{name: value for name, value in given.items() if value is not None})

    def _first(self) -> FirstMasks:
        settings = self._settings()
        return FirstMasks(self.sparsity, settings.maskable, settings.initial_masks)


def sparsity_of(mask: masks.Masks) -> float:
    """Return the share of weights that masks leave out."""
    return 1 - sum(masks.counts_of(mask).values()) / sum(m.numel() for m in mask.values())


PLUGINS = {"dadpfl": DADPFL}
