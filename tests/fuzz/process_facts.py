"""Facts of this process that a user's code could change, to compare before and after."""

from __future__ import annotations

import builtins
import decimal
import faulthandler
import gc
import locale
import logging
import os
import random
import signal
import socket
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch

_SIGNALS = ("SIGALRM", "SIGINT", "SIGTERM", "SIGHUP", "SIGUSR1", "SIGCHLD")
_NAMES = (builtins, time, os, random, threading, signal, np, np.random, torch, torch.nn.functional, torch.Tensor)


def process_facts() -> dict[str, Any]:
    """Return the facts by name."""
    found: dict[str, Any] = {}
    for name, fact in _FACTS.items():
        try:
            found[name] = fact()
        except Exception as error:  # the function itself may be gone
            found[name] = f"{type(error).__name__}: {error}"
    for owner in _NAMES:
        found[f"names of {owner.__name__}"] = {name: each for name, each in vars(owner).items() if callable(each)}
    return found


def differences(before: Mapping[str, Any], after: Mapping[str, Any]) -> str:
    """Return what has changed, "" if nothing."""
    changed = []
    for name, was in before.items():
        now = after[name]
        if isinstance(was, dict):
            names = [each for each in was if each not in now or now[each] is not was[each]]
            if names:
                changed.append(f"{name}: {', '.join(map(str, names[:5]))}")
        elif was != now:
            changed.append(f"{name}: {str(was)[:60]} -> {str(now)[:60]}")
    return "; ".join(changed)


def _handlers() -> Any:
    root = logging.getLogger()
    flwr, own = logging.getLogger("flwr"), logging.getLogger("edgesim")
    return [(each.level, tuple(map(id, each.handlers))) for each in (root, own, flwr)], logging.root.manager.disable


def _umask() -> int:
    os.umask(before := os.umask(0))
    return before


def _open_files() -> int:
    gc.collect()
    return len(os.listdir("/proc/self/fd"))  # noqa: PTH208


_FACTS: Mapping[str, Callable[[], Any]] = {
    "random": random.getstate,
    "np.random": lambda: str(np.random.get_state()[1:]),  # noqa: NPY002
    "torch generator": lambda: torch.get_rng_state().sum().item(),
    "torch threads": torch.get_num_threads,
    "torch gradients": torch.is_grad_enabled,
    "torch inference": torch.is_inference_mode_enabled,
    "torch dtype": torch.get_default_dtype,
    "torch deterministic": torch.get_deterministic_debug_mode,
    "torch device": lambda: str(torch.get_default_device()),
    "torch anomaly": torch.is_anomaly_enabled,
    "torch mkldnn": lambda: torch.backends.mkldnn.enabled,
    "torch precision": torch.get_float32_matmul_precision,
    "NumPy errors": np.geterr,
    "NumPy printing": lambda: str(np.get_printoptions()),
    "environment": lambda: sorted(os.environ.items()),
    "folder": os.getcwd,
    "path": lambda: list(sys.path),
    "umask": _umask,
    "recursion limit": sys.getrecursionlimit,
    "warnings": lambda: (list(warnings.filters), warnings.showwarning),
    "logging": _handlers,
    "signal handlers": lambda: [signal.getsignal(getattr(signal, name)) for name in _SIGNALS],
    "signal mask": lambda: signal.pthread_sigmask(signal.SIG_BLOCK, []),
    "timer": lambda: signal.getitimer(signal.ITIMER_REAL)[0] > 0,
    "garbage collection": lambda: (gc.isenabled(), gc.get_threshold()),
    "hooks": lambda: (sys.excepthook, sys.unraisablehook, sys.displayhook, threading.excepthook),
    "tracing": lambda: (sys.gettrace(), sys.getprofile(), threading.gettrace()),
    "streams": lambda: (sys.stdout, sys.stderr, sys.stdin, sys.__stdout__, sys.__stderr__),
    "closed streams": lambda: (sys.stdin.closed,),
    "locale": lambda: locale.setlocale(locale.LC_ALL),
    "decimal precision": lambda: decimal.getcontext().prec,
    "switch interval": sys.getswitchinterval,
    "digits of integers": sys.get_int_max_str_digits,
    "socket timeout": socket.getdefaulttimeout,
    "folder for temporary files": lambda: tempfile.tempdir,
    "faulthandler": faulthandler.is_enabled,
    "import hooks": lambda: (list(sys.meta_path), list(sys.path_hooks)),
    "modules of edgesim": lambda: {name: each for name, each in sys.modules.items() if name.startswith("edgesim")},
    "modules": lambda: {name: sys.modules.get(name) for name in ("json", "random", "decimal", "flwr", "numpy")},
}
