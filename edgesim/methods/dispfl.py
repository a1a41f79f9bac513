"""DisPFL: peers with sparse models of their own, which average each weight over who has it and move their masks.

Source: R. Dai, L. Shen, F. He, X. Tian and D. Tao, "DisPFL: Towards Communication-Efficient Personalized Federated
Learning via Decentralized Sparse Training" (ICML 2022); as a baseline of the DA-DPFL paper.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, ClassVar

from annotated_types import Ge, Lt

from edgesim.contracts import Bundle, LocalPhase, LocalRule, Merged, Message, Needs, Plan, Setting, Task, View
from edgesim.learning import masks, sparse_peers
from edgesim.learning.context import Context
from edgesim.learning.peers import plan_at_once
from edgesim.learning.rules import cross_entropy
from edgesim.learning.sparse_peers import FirstMasks, Growth, Initial, Maskable
from edgesim.numbers import Share
from edgesim.rng import Key


@dataclass(frozen=True, kw_only=True)
class DisPFL:
    """Every device has a mask of its own, which leaves out a share `sparsity` of the weights, always as many a layer.

    It averages its model with those that it hears, each weight over who has it, under its mask; trains; and moves the
    mask for the next round: the smallest weights go, a share `alpha` that falls to 0 along a cosine until `end_round`,
    and as many come, from what the neighbours have there or from 0, by the gradient of one batch or at "random"
    (`growth`). `initial_masks`: a random one for each device, or one for all. `maskable`: all tensors of two dimensions
    or more, or not those of shortcuts ("authors").
    """

    sparsity: Annotated[float, Ge(0), Lt(1)] = 0.5
    maskable: Maskable = "2d"
    initial_masks: Initial = "per_device"
    alpha: Share = 0.5
    end_round: Annotated[int, Ge(1)] = 500
    growth: Growth = "gradient"
    needs: ClassVar[Needs] = Needs(coordinators=frozenset({"sync"}), keep="computed", peers=True)

    def init(self, setting: Setting, key: Key) -> Any:
        """Return how many weights every device keeps. Raises ConfigError for a model that no mask fits."""
        setting.cost.check(widths=0)
        first = self._first()
        return {"kept": first.counts(first.shapes(setting.card)), "seed": key.exact_word()}

    def plan(self, state: Any, view: View, key: Key) -> Plan:
        """Ask every device that is there to mix, train and move its mask."""
        orders = plan_at_once(view, Task(home="self")).orders
        share = sparse_peers.share_at(self.alpha, view.round + 1, self.end_round)
        kept = dict.fromkeys(view.idle.tolist(), state["kept"])
        knobs = sparse_peers.knobs_of(state["seed"], share)
        return Plan(sparse_peers.sparse_orders(orders, view, kept, knobs, self.growth))

    def local(self, task: Task) -> LocalRule:
        """Return SGD under a mask from the mix, after which the mask moves."""
        phase = LocalPhase(loss=cross_entropy, adjust=masks.masked_gradients)
        start = partial(sparse_peers.mixed, first=self._first())
        return LocalRule((phase,), start=start, finish=partial(_finish, growth=self.growth))

    def personal(self, base: Bundle, own: Bundle | None) -> Bundle:
        """Return the model that a device trained last, the first one if it never trained."""
        return base if own is None else sparse_peers.plain(own)

    def merge(self, state: Any, base: Bundle, got: Sequence[Message], view: View, tools: Any, key: Key) -> Merged:
        """Return the mean of each weight over the devices that have it."""
        return sparse_peers.mean_of_sparse(state, base, got)[0]

    def _first(self) -> FirstMasks:
        return FirstMasks(self.sparsity, self.maskable, self.initial_masks)


def _finish(w: Bundle, context: Context, growth: Growth) -> tuple[Bundle, Bundle, dict[str, Any]]:
    """Return the trained model, which is sent and kept, and for oneself the mask of the next round."""
    model = sparse_peers.plain(w)
    return model, sparse_peers.memory(model, sparse_peers.moved(model, masks.masks_in(w), context, growth)), {}


PARTS = {"dispfl": DisPFL}
