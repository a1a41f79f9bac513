"""Secure aggregation: devices mask their updates, and the server learns only the sum of the updates.

Source: Bonawitz et al., "Practical Secure Aggregation for Privacy-Preserving Machine Learning" (CCS 2017), the
protocol against an honest but curious server: rounds 0 to 2 and 4 of its figure, without signatures and consistency
check.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar, Literal

import torch
from annotated_types import Ge, Le, Lt
from torch import Tensor

from edgesim.core.encoding import Chain, Contents, EncodingStep
from edgesim.core.errors import ConfigError
from edgesim.core.job import DELIVERED
from edgesim.core.limits import Count, CountOrZero, NonNegativeFactor, PositiveFactor
from edgesim.core.method import Aggregate, LocalRule, Method, Needs, ServerContext
from edgesim.core.rng import Key
from edgesim.core.task import Pass, Payload, Plan, Task
from edgesim.core.update import ModelState, Update
from edgesim.core.view import Setting, View
from edgesim.learning.aggregate.mean import not_below_0
from edgesim.learning.privacy.field import field_bits, field_sum, levels, quantised

_QUANTISING_FLOPS = 6.0  # of a number: the difference, two comparisons, the product, the random number's sum, rounding
_DEQUANTISING_FLOPS = 2.0  # of a number: the product, the sum with the old model
_KEYS, _SHARES, _MASKED, _UNMASK = "keys", "shares", "masked", "unmask"


@dataclass(frozen=True)
class FieldNumbers(EncodingStep):
    """Numbers of a finite field under masks that hide them. The method models rounding."""

    bits: int  # of a number

    def nbytes(self, held: Contents, rest: Callable[[Contents], int]) -> int:
        """Return the bytes of these numbers."""
        return math.ceil(held.numbers * self.bits / 8)


@dataclass(frozen=True, kw_only=True)
class SecureFedAvg(Method):
    """FedAvg whose devices mask their updates, so that the server learns only their sum: the masks cancel in it.

    The new model is w + clip x sum_k q_k / sum_k c_k. q_k are the moves of device k as integers: cut off at `clip`,
    times n_k by the largest n in the fleet, rounded to `bits` bits. c_k is n_k in the same unit. The integers are
    summed modulo 2^R with R = bits + ceil(log2 n), n being the number of devices that send them. Every round has four
    exchanges. The first asks n devices, each later one the devices that answered the one before. (1) Each device sends
    two public keys. (2) It receives the keys of all others, and sends shares of two secrets for each of them. (3) It
    receives the model and its shares, trains, and sends the masked integers. (4) It receives the list of senders, and
    sends shares that unmask the sum. Each exchange takes latency, bytes and FLOPs. Masks are not drawn, because any
    masks cancel exactly.
    With fewer than t = floor(threshold x n) + 1 answers in any exchange the round brings no new model. Devices
    whose numbers are not finite send zeros and count as if they had no data. Weights of updates above 1 count as 1.
    Metrics: `aborted` (1 or 0), `survivors` (devices whose moves are in the sum), `field_bits` = R, and `clipped`, the
    share of their numbers that was cut off, which a real server could not see.
    Differs: there is no key infrastructure, and encrypting, decrypting and ids are free. The server knows data sizes.

    Family: privacy. Formula: `w <- w + clip sum_k q_k / sum_k c_k, where masks cancel in both sums`. Paper: doi
    10.1145/3133956.3133982.
    """

    needs: ClassVar[Needs] = Needs(protocols=frozenset({"sync"}))  # a deadline would be spent on keys

    bits: Annotated[int, Ge(2), Le(32)] = 16  # bits of the integer of a move, including its sign
    """The abstract of the paper has values of 16 bits."""
    clip: PositiveFactor = 1.0  # largest move of a number; larger moves are cut off
    """The paper does not specify this, as it sums integers. Chosen here: in small networks few numbers move by more in
    a round.
    """
    rounding: Literal["stochastic", "nearest"] = "stochastic"  # rounding of moves to integers
    """The paper does not specify this. Stochastic rounding keeps the mean unbiased with any number of bits."""
    threshold: Annotated[float, Ge(0), Lt(1)] = 2 / 3  # share of the asked devices; more than this have to answer
    """From memory of the paper, not confirmed: floor(2n/3) + 1 where the server may collude with a third of devices."""
    key_bytes: Count = 32  # bytes of a public key
    """256 bits for keys and shares give the expansions in the abstract of the paper, 1.73 and 1.98."""
    share_bytes: Count = 32  # bytes of a share of a secret, as long as the secret
    """See `key_bytes`."""
    cipher_bytes: CountOrZero = 28  # bytes beside the two shares in a message from device to device
    """AES-GCM with a nonce of 96 bits and a tag of 128 (NIST SP 800-38D). The paper's byte count does not include it.
    """
    prg_flops: NonNegativeFactor = 8.0  # FLOPs of drawing a number of a mask and adding it
    """Chosen here: 4 bytes of AES in counter mode at 2 cycles a byte, with a processor's AES instructions."""
    key_flops: NonNegativeFactor = 2e5  # FLOPs of making a key pair, or of agreeing on a secret
    """Chosen here: the order of a product on a curve of 256 bits, in cycles of a 64-bit core."""
    share_flops: NonNegativeFactor = 100.0  # FLOPs of a product and a sum of Shamir's shares, numbers of 256 bits
    """Chosen here: 16 products of 64 bits, their carries and the reduction."""

    def init(self, setting: Setting, key: Key) -> Any:
        """Return an empty state. Raises ConfigError if the scenario encodes models."""
        written = (setting.encoding_up.values, setting.encoding_down.values)
        if written != ("float32", "float32") or setting.encoding_up.of_update:
            raise ConfigError(
                "encoding: secure_fedavg writes numbers as integers of its own, see method.bits, and moves start from "
                f"an exact model; leave encoding out, found {' up, '.join(written)} down"
            )
        return super().init(setting, key)

    # --- exchanges ------------------------------------------------------------------------------------------------

    def plan(self, state: Any, view: View, key: Key) -> Plan:
        """Ask the selected devices for keys, then the devices that answered for more. Too few devices end the round."""
        if not view.exchange:  # round 0 of the paper: two key pairs, whose public keys go up
            devices = view.choose(key).tolist()
            asked = len(devices)
            least = min(asked, math.floor(self.threshold * asked + 1e-9) + 1)
            task = Task(
                _KEYS,
                down=None,
                up=_signal(2 * self.key_bytes),
                passes=(Pass("flops", times=2 * self.key_flops),),
                config={"least": float(least)},
            )
            return Plan.of_one_task(devices, task, more=True)
        before = view.last[0].job.task
        answered = {completion.job.device for completion in view.last if completion.outcome in DELIVERED}
        devices = sorted(answered & set(view.idle.tolist()))
        least, n = int(before.config["least"]), len(devices)
        if n < least:
            return Plan(())
        message_bytes = 2 * self.share_bytes + self.cipher_bytes  # device to device: encrypted shares of two secrets
        if before.name == _KEYS:  # round 1: a common secret with each other device, and shares of two secrets for it
            flops = (n - 1) * self.key_flops + 2 * n * least * self.share_flops
            task = Task(
                _SHARES,
                down=_signal(2 * (n - 1) * self.key_bytes),
                up=_signal((n - 1) * message_bytes),
                passes=(Pass("flops", times=flops),),
                config={"least": float(least)},
            )
            return Plan.of_one_task(devices, task, more=True)
        if before.name == _SHARES:  # round 2: training, and integers under a mask for each pair and one of the device
            numbers = view.setting.cost_profile.numbers(Payload()) + 1
            flops = (n - 1) * self.key_flops + numbers * (n * self.prg_flops + _QUANTISING_FLOPS)
            training, bits = super().task(view), field_bits(self.bits, n)
            task = replace(
                training,
                name=_MASKED,
                down=Payload(extra_bytes=(n - 1) * message_bytes),
                up=Payload(encoding=Chain((FieldNumbers(bits),)), extra_bytes=-(-bits // 8)),  # the extra number is c_k
                passes=(*training.passes, Pass("flops", times=flops)),
                config={"least": float(least)},
            )
            return Plan.of_one_task(devices, task, more=True)
        # last round: a bit for each device that has sent or not, and a share of a secret of each
        n = len(view.last)
        task = Task(
            _UNMASK,
            down=_signal(-(-n // 8)),
            up=_signal(n * self.share_bytes),
            passes=(),
            config={"least": float(least), "devices": float(n), "survivors": float(len(answered))},
        )
        return Plan.of_one_task(devices, task)

    def local(self, task: Task) -> LocalRule:
        """Return plain SGD, or no training in the exchanges of keys and shares."""
        return super().local(task) if task.local_sgd else LocalRule()

    # --- the server -----------------------------------------------------------------------------------------------

    def aggregate(
        self, state: Any, global_model: ModelState, updates: Sequence[Update], server: ServerContext, key: Key
    ) -> Aggregate:
        """Return the model moved by the mean from the sum of integers, or no model if too few shares unmask it."""
        sent = [update for update in updates if update.task.name == _MASKED]
        usable, left_out = server.finite(sent)
        shares = [update.task for update in updates if update.task.name == _UNMASK]
        if not shares or len(shares) < shares[0].config["least"]:
            return Aggregate(state, None, metrics={"aborted": 1.0, **left_out})
        if not usable:
            return Aggregate(state, None, metrics={"aborted": 0.0, "survivors": 0.0, **left_out})
        bits = field_bits(self.bits, int(shares[0].config["devices"]))
        most = float(server.setting.samples[server.setting.ids].max())
        old, vectors, cut_off = _flat(global_model), [], 0.0
        for update in usable:
            moves = _flat(update.body) - old
            weight = update.samples * min(update.weight, 1.0) / most
            generator = None
            if self.rounding == "stochastic":
                generator = torch.Generator().manual_seed(key.at(update.device).word())
            count = torch.tensor([round(weight * levels(self.bits))])  # the last integer: how much the moves count
            vectors.append(torch.cat([quantised(moves, self.clip, weight, self.bits, generator), count]))
            cut_off += float((moves.abs() > self.clip).double().mean()) / len(usable)
        total = field_sum(vectors, bits)
        metrics = {"aborted": 0.0, "survivors": float(len(usable)), "field_bits": float(bits), "clipped": cut_off}
        counted = int(total[-1])
        model = _like(global_model, old + self.clip * total[:-1].double() / counted) if counted else None
        return Aggregate(state, model, metrics={**metrics, **left_out})

    def merge_flops_of(self, tasks: Sequence[Task], setting: Setting) -> float:
        """Return the FLOPs of unmasking: a mask for each survivor, and one for each pair of a survivor and a drop-out.

        Each secret is rebuilt from t shares, with Lagrange coefficients common to all secrets. The secrets of drop-outs
        are agreed upon again with each survivor. Zero where too few shares have arrived.
        """
        shares = [task for task in tasks if task.name == _UNMASK]
        if not shares or len(shares) < shares[0].config["least"]:
            return 0.0
        least, devices, survivors = (shares[0].config[name] for name in ("least", "devices", "survivors"))
        pairs = (devices - survivors) * survivors
        numbers = setting.cost_profile.numbers(Payload()) + 1
        secrets = (least**2 + devices * least) * self.share_flops + pairs * self.key_flops
        return secrets + numbers * ((survivors + pairs) * self.prg_flops + _DEQUANTISING_FLOPS)


def _signal(nbytes: int) -> Payload:
    return Payload(collections=frozenset(), extra_bytes=nbytes)


def _flat(model: ModelState) -> Tensor:
    """Return all numbers of a model in the order of the names, float64."""
    return torch.cat([model[kind][name].double().flatten() for kind in sorted(model) for name in sorted(model[kind])])


def _like(model: ModelState, numbers: Tensor) -> ModelState:
    """Return a model with the shapes of another one; `numbers` in the order of `_flat`. Variances stay at least 0."""
    names = [(kind, name) for kind in sorted(model) for name in sorted(model[kind])]
    pieces = torch.split(numbers, [model[kind][name].numel() for kind, name in names])
    made: dict[str, dict[str, Tensor]] = {kind: {} for kind in model}
    for (kind, name), piece in zip(names, pieces, strict=True):
        old = model[kind][name]
        made[kind][name] = not_below_0(name, piece).reshape(old.shape).to(old.dtype)
    return {kind: {name: made[kind][name] for name in tensors} for kind, tensors in model.items()}


PLUGINS = {"secure_fedavg": SecureFedAvg}
