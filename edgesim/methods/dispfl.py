"""DisPFL: peers with their own sparse models average each weight over the devices that have it and move their masks.

Source: R. Dai, L. Shen, F. He, X. Tian and D. Tao, "DisPFL: Towards Communication-Efficient Personalized Federated
Learning via Decentralized Sparse Training" (ICML 2022); as a baseline of the DA-DPFL paper.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, ClassVar

from annotated_types import Ge, Lt

from edgesim.core.limits import Count, Share
from edgesim.core.method import Aggregate, Finished, LocalPhase, LocalRule, LocalState, Method, Needs, ServerContext
from edgesim.core.rng import Key
from edgesim.core.task import Plan, Task
from edgesim.core.update import ModelState, Update
from edgesim.core.view import Setting, View
from edgesim.learning.submodel import masks
from edgesim.learning.train.context import Context
from edgesim.methods.decentralised import sparse as sparse_peers
from edgesim.methods.decentralised.base import plan_at_once
from edgesim.methods.decentralised.sparse import FirstMasks, Growth, Initial, Maskable


@dataclass(frozen=True, kw_only=True)
class DisPFL(Method):
    """Peers without a server train personal sparse models: each device has its own mask over a share of the weights.

    A mask leaves out a share `sparsity` of the weights, the same number of each layer in every round. A device averages
    its model with the received ones, each weight over the devices that have it, under its mask, and trains. Then it
    moves the mask for the next round. The smallest weights go, a share `alpha` that falls to 0 along a cosine until
    `end_round`. As many grow, from the neighbours' value or from 0, by the gradient of one batch or at "random"
    (`growth`). `initial_masks`: a random mask for each device, or one for all. `maskable`: all tensors of two
    dimensions or more, or without those of shortcuts ("authors").

    The mask of a message is its nonzero weights, as in the released code. A kept weight that is exactly zero counts as
    missing on its device; one that the encoding rounds to zero does not. It is the mask under which the model was
    trained, not the one for the next round, so that weights that just grew are not averaged with zeros. A device that
    never trained has the first model under a first mask, which all devices can draw from a seed. The number of weights
    of a layer is always the same. So prices are known before the first round, and runs without training have the right
    times. The gradient of one batch costs one training step of the whole model. Zeros save FLOPs with `cost = { name =
    "measured", sparse = "ideal" }`. A mask always changes, so that `encoding.up = { zeros = "bitmap" }` always sends
    it. `"known"` gives the bytes of the paper's table, which counts only values. The evaluated model is the mean of
    each weight over the devices that have it.

    Family: peers. Formula: `w_i <- m_i (sum_j m_j w_j) / (sum_j m_j) over own and received models, then masked SGD`.
    Paper: arXiv 2206.00187.
    """

    sparsity: Annotated[float, Ge(0), Lt(1)] = 0.5
    """The share of zeros. The paper once uses the word for the share of nonzeros, but prints 0.00 for dense models."""
    maskable: Maskable = "2d"
    """All tensors of two dimensions or more. The authors choose by name and leave out the convolutions of shortcuts:
    `"authors"`. They also mask normalisation in VGG, which has no price here and stays whole.
    """
    initial_masks: Initial = "per_device"
    """Dai et al. In the code released with DA-DPFL all devices share one: `"shared"`."""
    alpha: Share = 0.5
    """Dai et al.; the cosine starts at round 1 and is 0 after `end_round`."""
    end_round: Count = 500
    """All rounds of the DA-DPFL comparison."""
    growth: Growth = "gradient"
    """As in the papers. The scripts that were run grow at random: `"random"`, which needs no gradient and pays for
    none.
    """
    needs: ClassVar[Needs] = Needs(protocols=frozenset({"sync"}), device_state="computed", peers="any")
    uses_kept_model: ClassVar[bool] = True

    def init(self, setting: Setting, key: Key) -> Any:
        """Return the number of weights that every device keeps. Raises ConfigError for a model that no mask fits."""
        super().init(setting, key)
        first = self._first()
        return {"kept": first.counts(first.shapes(setting.cost_profile)), "seed": key.exact_word()}

    def plan(self, state: Any, view: View, key: Key) -> Plan:
        """Ask every reachable device to mix, train and move its mask."""
        orders = plan_at_once(view, Task(start="device")).orders
        share = sparse_peers.share_at(self.alpha, view.round + 1, self.end_round)
        kept = dict.fromkeys(view.idle.tolist(), state["kept"])
        config = sparse_peers.config_of(state["seed"], share)
        return Plan(sparse_peers.sparse_orders(orders, view, kept, config, self.growth))

    def local(self, task: Task) -> LocalRule:
        """Return SGD under a mask from the mix, after which the mask moves for the next round."""

        def finish(local: LocalState, context: Context) -> Finished:
            mask = sparse_peers.moved(local.weights, local.scratch.mask, context, self.growth)
            return Finished(local.weights, sparse_peers.memory(local.weights, mask))

        phase = LocalPhase(adjust_gradients=masks.masked_gradients)
        start = partial(sparse_peers.mixed, first=self._first())
        return LocalRule((phase,), on_start=start, on_finish=finish)

    def aggregate(
        self, state: Any, global_model: ModelState, updates: Sequence[Update], server: ServerContext, key: Key
    ) -> Aggregate:
        """Return the mean of each weight over the devices that have it."""
        return sparse_peers.mean_of_sparse(state, global_model, updates)[0]

    def _first(self) -> FirstMasks:
        return FirstMasks(self.sparsity, self.maskable, self.initial_masks)


PLUGINS = {"dispfl": DisPFL}
