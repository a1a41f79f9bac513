"""Devices of torch, and the global settings of torch during a run. Functions load torch when they need it."""

from __future__ import annotations

import platform
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from edgesim.core.errors import ConfigError
from edgesim.files.c_library import c_function
from edgesim.files.reading import in_short, quoted

_SUBNORMAL = 1e-310  # a float64 that becomes 0 if the CPU flushes subnormal numbers
_AUTOCAST = ("cpu", "cuda")
# Options of malloc.h: thresholds in bytes for returning free memory and for mapping a block of its own.
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3


def check_device(name: str) -> None:
    """Raise ConfigError unless torch can compute on the device of this name here, such as "cpu" or "cuda:0"."""
    if name == "cpu":
        return
    import torch

    try:
        torch.ones(1, device=name).item()
    except (RuntimeError, AssertionError, ValueError) as error:
        reason, *_ = str(error).partition(". ")  # torch goes on for a paragraph
        here = ", ".join(["cpu", *(f"cuda:{i}" for i in range(torch.cuda.device_count()))])
        raise ConfigError(
            f"backend.device: cannot compute on {quoted(name)} here: {in_short(reason)} (found: {here})"
        ) from error


@cache
def processors() -> list[str]:
    """Return torch's instruction set, and the name and instruction sets of this machine's processor."""
    import torch

    own = torch.backends.cpu.get_cpu_capability()
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return [own, platform.processor()]
    return [own, *sorted({line for line in lines if line.startswith(("model name", "flags", "Features"))})]


@contextmanager
def plain_torch() -> Iterator[None]:
    """Compute with torch's initial settings, but on one thread. Restore the caller's settings afterwards.

    Results then depend neither on settings of a notebook or a plug-in, nor on the number of threads of the host. Nested
    uses must end in reverse order, so it suits functions and with-blocks but not objects of arbitrary lifetime.
    """
    import torch

    _keep_freed_memory()
    with ExitStack() as stack:
        stack.enter_context(plain_numpy())
        for context in (torch.inference_mode(False), torch.enable_grad(), torch.autograd.set_detect_anomaly(False)):
            stack.enter_context(context)
        for device in filter(torch.is_autocast_enabled, _AUTOCAST):
            stack.enter_context(torch.autocast(device, enabled=False))
        if torch.get_default_device() != torch.device("cpu"):  # only if needed: this context slows every call
            stack.enter_context(torch.device("cpu"))
        for switch in _switches():
            before = switch.read()
            if before != switch.value:
                switch.write(switch.value)
                stack.callback(switch.write, before)
        yield


@contextmanager
def restored_torch() -> Iterator[None]:
    """Restore torch's global settings after a block of a user's code, which may change any of them."""
    import torch

    def reset(switch: _Switch, value: Any) -> None:
        if switch.read() != value:
            switch.write(value)

    usual_device = _Switch(torch.get_default_device, lambda _: torch.set_default_device(None), None)
    grad = _Switch(torch.is_grad_enabled, torch.set_grad_enabled, True)
    # set as a whole it sets those of all operations too, so that they are reset after it
    precision = _Switch(torch.get_float32_matmul_precision, torch.set_float32_matmul_precision, None)
    with ExitStack() as stack, torch.autograd.set_detect_anomaly(torch.is_anomaly_enabled()):
        for switch in (*_switches(), usual_device, grad, precision):
            stack.callback(reset, switch, switch.read())
        yield


@contextmanager
def plain_where_loaded() -> Iterator[None]:
    """Enter `plain_torch` if torch is loaded. If not, code in the block that needs torch must enter `plain_torch`."""
    with plain_torch() if "torch" in sys.modules else plain_numpy():
        yield


@contextmanager
def plain_numpy() -> Iterator[None]:
    """Compute with NumPy's initial settings for warnings. Restore the caller's settings afterwards."""
    with np.errstate(divide="warn", over="warn", under="ignore", invalid="warn"):
        yield


@cache
def _keep_freed_memory() -> None:
    """Let the C library (glibc) keep some of the memory that tensors free, for later tensors.

    By default it may return the memory of a layer's output after every batch and fetch it again page by page. That can
    double the time of a forward pass.
    """
    mallopt = c_function("mallopt") if sys.platform == "linux" else None
    if mallopt is not None:
        mallopt(_MMAP_THRESHOLD, 32 * 2**20)  # bytes, the maximum that glibc allows
        mallopt(_TRIM_THRESHOLD, 64 * 2**20)


class _Switch(NamedTuple):
    """A global setting of torch, and its value in a run."""

    read: Callable[[], Any]
    write: Callable[[Any], Any]
    value: Any


def _switches() -> Iterator[_Switch]:
    import torch
    from torch import backends

    def flushes_subnormals() -> bool:
        """Return True if numbers too small for a full mantissa become 0. Torch cannot read this setting."""
        return bool((torch.full((1,), _SUBNORMAL, dtype=torch.float64) * 1.0 == 0).item())

    yield _Switch(torch.get_num_threads, torch.set_num_threads, 1)
    yield _Switch(torch.get_default_dtype, torch.set_default_dtype, torch.float32)
    yield _Switch(torch.get_deterministic_debug_mode, torch.set_deterministic_debug_mode, 0)
    yield _Switch(flushes_subnormals, torch.set_flush_denormal, False)
    yield _Switch(backends.mha.get_fastpath_enabled, backends.mha.set_fastpath_enabled, True)
    yield _attribute(backends.mkldnn, "enabled", True)
    yield _attribute(backends.mkldnn, "deterministic", False)
    yield _attribute(backends.cudnn, "enabled", True)
    yield _attribute(backends.cudnn, "benchmark", False)
    yield _attribute(backends.cudnn, "deterministic", False)
    attention = backends.cuda  # these choose kernels on every device, the CPU too
    yield _Switch(attention.flash_sdp_enabled, attention.enable_flash_sdp, True)
    yield _Switch(attention.mem_efficient_sdp_enabled, attention.enable_mem_efficient_sdp, True)
    yield _Switch(attention.math_sdp_enabled, attention.enable_math_sdp, True)
    # The precision of float32 products.
    if not hasattr(backends, "fp32_precision"):  # torch before 2.9
        yield _Switch(torch.get_float32_matmul_precision, torch.set_float32_matmul_precision, "highest")
        yield _attribute(backends.cudnn, "allow_tf32", True)
        return
    mkldnn: Any = backends.mkldnn
    cudnn: Any = backends.cudnn
    for operations in (mkldnn.matmul, mkldnn.conv, mkldnn.rnn, backends.cuda.matmul):
        yield _attribute(operations, "fp32_precision", "ieee")
    for operations in (cudnn.conv, cudnn.rnn):
        yield _attribute(operations, "fp32_precision", "tf32")


def _attribute(holder: Any, name: str, value: Any) -> _Switch:
    return _Switch(partial(getattr, holder, name), partial(setattr, holder, name), value)
