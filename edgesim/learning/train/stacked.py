"""One network run for many devices at once, each with weights of its own.

The samples of all devices go through the network as one batch, device after device. Only layers with tensors of their
own have to know where one device's samples end: those run stacked, through torch.func; the rest of the network's code
stays as it is.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor, nn
from torch.autograd import Function
from torch.func import functional_call, vmap

from edgesim.core.update import ModelState
from edgesim.learning.models.build import own_tensors
from edgesim.learning.train.loop import gradients

Rows: TypeAlias = Mapping[str, Tensor]  # tensors of many devices, stacked along dimension 0, by name

_MUCH = 2**14  # numbers of a matrix, from which on a call of oneDNN is worth its time
_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)


class Descent(NamedTuple):
    """A step of plain SGD that a linear layer takes in the backward pass: w <- decay w - lr g."""

    lr: float
    decay: float = 1.0


class StackedNetwork:
    """A copy of a network that runs for many devices in one call."""

    def __init__(self, module: nn.Module) -> None:
        whole = copy.deepcopy(module)
        self._inner = list(whole.named_modules())
        self.params = [name for name, _ in whole.named_parameters()]
        self.buffers = [name for name, buffer in whole.named_buffers() if buffer.is_floating_point()]
        self._trainable = frozenset(self.params)
        self.names = [*self.params, *self.buffers]
        tensors = {**dict(whole.named_parameters()), **dict(whole.named_buffers())}
        names = {id(tensors[name]): name for name in self.names}
        layers = {id(unit): _stacked(unit, names) for unit in _units(whole)}
        for _, parent in self._inner:
            for name, child in parent.named_children():
                if id(child) in layers:
                    setattr(parent, name, layers[id(child)])
        self._whole = layers.get(id(whole), whole)
        self._chain = _Chain.of(self._whole)
        self._layers = list(layers.values())
        users = [name for layer in self._layers for name in set(layer.names.values())]
        self._shared = {name for name in users if users.count(name) > 1}
        # What layers depend on that take no gradients, so that the backward pass reaches them.
        self._tick = torch.zeros((), device=next(module.parameters()).device, requires_grad=True)
        self._leaves: list[Tensor] = []
        self._left: list[str] = []  # their names

    def learn_uses(self) -> None:
        """Note which linear layers the passes since the last binding went through once: those may descend."""
        for layer in self._layers:
            layer.descends = layer.calls == 1

    def bind(self, tensors: Rows, trained: Sequence[str], frozen: frozenset[str], descent: Descent | None) -> list[str]:
        """Use these weights; return those of `trained` of which `gradients` gives gradients, in that order.

        `frozen`: layers that run as in a test. `descent`: linear layers update their weights in place in every
        backward pass, and give no gradients.
        """
        for name, layer in self._inner:
            layer.training = name not in frozen
        descending: set[str] = set()
        for layer in self._layers:
            own = set(layer.names.values())
            alone = layer.descends and own <= set(trained) and not own & self._shared
            if descent and alone and isinstance(layer, _StackedLinear):
                layer.descent = descent
                descending |= own
            else:
                layer.descent = None
        self._left = left = [name for name in trained if name not in descending]
        leaves = {name: tensors[name].detach().requires_grad_() for name in left}
        self._leaves = list(leaves.values())
        for layer in self._layers:
            layer.bind({own: leaves.get(name, tensors[name]) for own, name in layer.names.items()}, self._tick)
        return left

    def own(self, name: str, weights: ModelState) -> Tensor:
        """Return a device's tensor of this name."""
        tensor: Tensor = weights["params" if name in self._trainable else "buffers"][name]
        return tensor

    def __call__(self, x: Tensor) -> Tensor:
        """Return logits (devices x batch, classes) of samples (devices x batch, ...), device after device."""
        logits: Tensor = self._chain(x) if self._chain else self._whole(x)
        return logits

    def gradients(self, logits: Tensor, slopes: Tensor) -> list[Tensor]:
        """Return stacked gradients of the sum of all devices' losses: each device's own, as they share no weights.

        `logits`: what the network gave last; `slopes`: the gradients of that sum by them.
        """
        if self._chain:
            found = self._chain.gradients(slopes, self._left)
            return [found[name] for name in self._left]
        return gradients(logits, [self._tick, *self._leaves], shares=slopes)[1:]


class _StackedLayer(nn.Module):
    """A layer of any kind, or a part of a network with tensors of its own, run for all devices by torch.func.vmap."""

    def __init__(self, layer: nn.Module, names: Mapping[str, str]) -> None:
        super().__init__()
        self.layer = layer
        self.names = names  # of its tensors in the layer -> in the network
        self.descent: Descent | None = None
        self.descends = False  # whether it may: a layer that is used twice needs its weights as they were
        self.calls = 0  # since it was bound
        self.tensors: dict[str, Tensor] = {}
        self.tick: Tensor | None = None

    def bind(self, tensors: dict[str, Tensor], tick: Tensor) -> None:
        """Use these tensors, stacked, by their names in the layer."""
        self.tensors, self.tick, self.calls = tensors, tick, 0

    @property
    def devices(self) -> int:
        """How many devices' weights are bound."""
        return len(next(iter(self.tensors.values())))

    def forward(self, *inputs: Tensor) -> Tensor:
        """Return what the layer gives, the devices' samples one after another as they came."""
        apart = [self._apart(each) for each in inputs]
        out: Tensor = vmap(self._of_one)(self.tensors, *apart)
        return out.flatten(0, 1)

    def _apart(self, x: Tensor) -> Tensor:
        return x.reshape(self.devices, -1, *x.shape[1:])

    def _of_one(self, tensors: dict[str, Tensor], *inputs: Tensor) -> Any:
        return functional_call(self.layer, tensors, inputs, tie_weights=False)


class _StackedConvolution(_StackedLayer):
    """A convolution: on a CPU one device after another, as one in groups is up to three times slower there."""

    def forward(self, *inputs: Tensor) -> Tensor:
        """Return what the layer gives."""
        [x] = inputs
        if x.device.type != "cpu":
            return super().forward(x)
        own = (self._apart(x).unbind(), *(each.unbind() for each in self.tensors.values()))
        bias = () if "bias" in self.tensors else (None,)
        convolve: Any = self.layer._conv_forward
        return torch.cat([convolve(*each, *bias) for each in zip(*own, strict=True)])


class _StackedLinear(_StackedLayer):
    """A linear layer: one product of stacked matrices, which may update the weights in the backward pass."""

    def among(self, wanted: Sequence[str]) -> list[str]:
        """Return which of its tensors are among these of the network, by their names in the layer."""
        return [own for own, name in self.names.items() if name in wanted]

    def forward(self, *inputs: Tensor) -> Tensor:
        """Return what the layer gives."""
        [x] = inputs
        self.calls += 1
        weight, bias = self.tensors["weight"], self.tensors.get("bias")
        out: Tensor = _Affine.apply(x.reshape(self.devices, -1, x.shape[-1]), weight, bias, self.tick, self.descent)
        return out.reshape(*x.shape[:-1], -1)


class _Affine(Function):
    """y = x w' + b of every device: x (devices, n, in), w (devices, out, in), b (devices, out) or None."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, tick: Tensor, descent: Descent | None
    ) -> Tensor:
        ctx.save_for_backward(x, weight, bias)
        ctx.descent = descent
        return _affine(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, bias = ctx.saved_tensors
        to_x = torch.bmm(grad, weight) if ctx.needs_input_grad[0] else None
        if ctx.descent is None:
            to_weight = torch.bmm(grad.mT, x) if ctx.needs_input_grad[1] else None
            return to_x, to_weight, grad.sum(1) if ctx.needs_input_grad[2] else None, None, None
        _step(ctx.descent, x, grad, weight, bias)
        return to_x, None, None, grad.new_zeros(()), None


def _affine(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    product = torch.bmm(x, weight.mT)
    return product if bias is None else product.add_(bias[:, None])  # baddbmm would copy it out first


def _step(descent: Descent, x: Tensor, grad: Tensor, weight: Tensor, bias: Tensor | None) -> None:
    """Take a step with the weights of a layer, given its inputs and the gradients of its outputs."""
    lr, decay = descent
    weight.baddbmm_(grad.mT, x, beta=decay, alpha=-lr)
    if bias is not None:
        (bias if decay == 1.0 else bias.mul_(decay)).sub_(grad.sum(1), alpha=lr)


class _Chain:
    """Linear layers and ReLUs, one after another, each used once: a perceptron.

    It is run forwards and backwards without autograd, whose bookkeeping takes a sixth of the time of so small layers.
    """

    def __init__(self, steps: Sequence[_StackedLinear | None]) -> None:
        """`steps`: None stands for a ReLU."""
        self._steps = steps
        self._made: list[Tensor] = []  # what each step was given

    @staticmethod
    def of(network: nn.Module) -> _Chain | None:
        """Return a stacked network as a chain; None if it is none."""
        layers = list(_in_turn(network))
        linear = [layer for layer in layers if isinstance(layer, _StackedLinear)]
        others = [layer for layer in layers if not isinstance(layer, _StackedLinear)]
        flat = isinstance(layers[0], nn.Flatten) and (layers[0].start_dim, layers[0].end_dim) == (1, -1)
        names = [name for layer in linear for name in layer.names.values()]
        plain = all(type(each) is nn.ReLU for each in others[1:]) and not any(map(_is_hooked, others))
        if not (flat and plain and names) or len(set(names)) < len(names):
            return None
        return _Chain([each if isinstance(each, _StackedLinear) else None for each in layers[1:]])

    def __call__(self, x: Tensor) -> Tensor:
        """Return logits, as `StackedNetwork` does."""
        devices = next(step for step in self._steps if step).devices
        x, self._made = x.reshape(devices, len(x) // devices, -1), []
        with torch.no_grad():
            for step in self._steps:
                self._made.append(x)
                if step is None:
                    x = torch.relu(x)
                else:
                    step.calls += 1
                    x = _affine(x, step.tensors["weight"], step.tensors.get("bias"))
        return x.flatten(0, 1)

    def gradients(self, slopes: Tensor, wanted: Sequence[str]) -> dict[str, Tensor]:
        """Return the gradients of these weights, by name; layers that descend take their steps."""
        found: dict[str, Tensor] = {}
        with torch.no_grad():
            grad = slopes.view(len(self._made[-1]), -1, slopes.shape[-1])
            ends = [at for at, step in enumerate(self._steps) if step and (step.descent or step.among(wanted))]
            for at in range(len(self._steps) - 1, min(ends, default=len(self._steps)) - 1, -1):
                step, x = self._steps[at], self._made[at]
                if step is None:
                    grad = torch.ops.aten.threshold_backward(grad, x, 0)
                    continue
                weight, bias = step.tensors["weight"], step.tensors.get("bias")
                above, grad = grad, torch.bmm(grad, weight) if at > ends[0] else grad
                if step.descent:
                    _step(step.descent, x, above, weight, bias)
                for own in step.among(wanted):
                    found[step.names[own]] = above.sum(1) if own == "bias" else torch.bmm(above.mT, x)
        self._made = []
        return found


def _in_turn(network: nn.Module) -> Iterator[nn.Module]:
    """Yield the layers that a network runs one after another, itself if more than that may happen."""
    if type(network).forward is not nn.Sequential.forward or _is_hooked(network):
        yield network
        return
    for child in network.children():
        yield from _in_turn(child)


class QuickLinear(nn.Linear):
    """A linear layer for tests, without gradients: oneDNN multiplies, where that is worth it."""

    def forward(self, input: Tensor) -> Tensor:
        """Return x w' + b."""
        if input.ndim == 2 and _by_onednn(input, self.weight):
            product: Tensor = torch.ops.mkldnn._linear_pointwise(
                input.contiguous(), self.weight, self.bias, "none", [], None
            )
            return product
        return super().forward(input)


def quick(module: nn.Module) -> nn.Module:
    """Return a copy of a network that is tested faster, with the same tensors under the same names."""
    result = copy.deepcopy(module)
    for layer in result.modules():
        if type(layer) is nn.Linear:
            layer.__class__ = QuickLinear
    return result


def _by_onednn(x: Tensor, weight: Tensor) -> bool:
    """Whether oneDNN is there and faster: on some CPUs twice as fast as MKL, which torch takes."""
    return x.device.type == "cpu" and weight.numel() >= _MUCH and hasattr(torch.ops.mkldnn, "_linear_pointwise")


def _is_product(layer: nn.Module) -> bool:
    return type(layer) is nn.Linear and not _is_hooked(layer)


def _is_hooked(layer: nn.Module) -> bool:
    return bool(layer._forward_hooks or layer._forward_pre_hooks)


def _units(module: nn.Module) -> Iterator[nn.Module]:
    """Yield the outermost parts of a network that have tensors of their own, each once."""
    if next(own_tensors(module), None) is not None:
        yield module
        return
    for child in module.children():
        yield from _units(child)


def _stacked(layer: nn.Module, names: Mapping[int, str]) -> _StackedLayer:
    """Return what runs a layer for many devices; `names`: of the network's tensors, by their ids."""
    own = {
        f"{path}.{name}" if path else name: names[id(tensor)]
        for path, inner in layer.named_modules()
        for name, tensor in own_tensors(inner)
        if id(tensor) in names
    }
    if _is_product(layer):
        return _StackedLinear(layer, own)
    if type(layer) in _CONVOLUTIONS and not _is_hooked(layer):
        return _StackedConvolution(layer, own)
    return _StackedLayer(layer, own)
