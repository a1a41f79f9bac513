"""What a caller has switched in torch changes nothing in a run, and is as it was afterwards."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import backends

import edgesim
from edgesim.learning.train.torch_settings import plain_torch
from edgesim.reports.compare import diff
from edgesim.reports.load import Run
from tests.calling import TINY
from tests.sizes import full, spread


class Setting(NamedTuple):
    """A state that a caller may be in: how it is entered, how it shows, and what shows in a run."""

    enter: Callable[[], AbstractContextManager[Any]]
    look: Callable[[], Any]
    in_a_run: Any


@contextmanager
def assigned(holder: Any, name: str, value: Any) -> Iterator[None]:
    """Set an attribute for a while."""
    before = getattr(holder, name)
    setattr(holder, name, value)
    yield
    setattr(holder, name, before)


@contextmanager
def told(write: Callable[[Any], Any], value: Any, before: Any) -> Iterator[None]:
    """Call a function that sets something, and again with what was."""
    write(value)
    yield
    write(before)


@contextmanager
def everywhere(precision: str) -> Iterator[None]:
    """Set how exactly float32 is multiplied wherever no operation has a setting of its own."""
    with assigned(backends.mkldnn.conv, "fp32_precision", "none"), assigned(backends, "fp32_precision", precision):
        yield


def attribute(holder: Any, name: str, value: Any, in_a_run: Any) -> Setting:
    """Return the setting of an attribute."""
    return Setting(lambda: assigned(holder, name, value), lambda: getattr(holder, name), in_a_run)


def by_call(write: Callable[[Any], Any], value: Any, before: Any, look: Callable[[], Any]) -> Setting:
    """Return the setting of a function; a run has what was `before`."""
    return Setting(lambda: told(write, value, before), look, before)


SETTINGS = {
    "no_grad": Setting(torch.no_grad, torch.is_grad_enabled, True),
    "inference_mode": Setting(torch.inference_mode, torch.is_inference_mode_enabled, False),
    "anomaly": Setting(torch.autograd.detect_anomaly, torch.is_anomaly_enabled, False),
    "autocast": Setting(lambda: torch.autocast("cpu"), lambda: torch.is_autocast_enabled("cpu"), False),
    "device": Setting(lambda: torch.device("meta"), lambda: str(torch.get_default_device()), "cpu"),
    "default device": by_call(torch.set_default_device, "meta", "cpu", lambda: str(torch.get_default_device())),
    "dtype": by_call(torch.set_default_dtype, torch.float64, torch.float32, torch.get_default_dtype),
    "threads": by_call(torch.set_num_threads, 3, 1, torch.get_num_threads),
    "deterministic": by_call(
        torch.use_deterministic_algorithms, True, False, torch.are_deterministic_algorithms_enabled
    ),
    "flush_denormal": by_call(torch.set_flush_denormal, True, False, lambda: bool((torch.tensor([1e-39]) * 1 == 0)[0])),
    "matmul": by_call(
        torch.set_float32_matmul_precision, "medium", "highest", lambda: backends.mkldnn.matmul.fp32_precision == "bf16"
    )._replace(in_a_run=False),
    "attention": by_call(backends.cuda.enable_math_sdp, False, True, backends.cuda.math_sdp_enabled),
    "fastpath": by_call(backends.mha.set_fastpath_enabled, False, True, backends.mha.get_fastpath_enabled),
    "mkldnn": attribute(backends.mkldnn, "enabled", False, True),
    "mkldnn deterministic": attribute(backends.mkldnn, "deterministic", True, False),
    "convolutions": attribute(backends.mkldnn.conv, "fp32_precision", "bf16", "ieee"),
    "everything": Setting(lambda: everywhere("bf16"), lambda: backends.mkldnn.conv.fp32_precision, "ieee"),
    "cudnn": attribute(backends.cudnn, "enabled", False, True),
    "cudnn benchmark": attribute(backends.cudnn, "benchmark", True, False),
    "cudnn deterministic": attribute(backends.cudnn, "deterministic", True, False),
    "numpy": Setting(lambda: np.errstate(all="raise"), lambda: np.geterr()["under"], "ignore"),
}


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run of a caller who has switched nothing."""
    return run(tmp_path_factory.mktemp("plain"))


def run(folder: Path) -> Run:
    """Run two rounds."""
    (folder / "scenario.toml").write_text(TINY)
    return edgesim.run(folder / "scenario.toml", ["stop.rounds=2"], out=folder / "run")


@pytest.mark.parametrize("setting", spread(SETTINGS.values(), 6), ids=SETTINGS)
def test_a_run_knows_no_setting_of_its_caller(setting: Setting, plain: Run, tmp_path: Path) -> None:
    with setting.enter():
        shown = setting.look()
        with plain_torch():
            assert setting.look() == setting.in_a_run != shown
        found = run(tmp_path)
        assert setting.look() == shown
    assert diff(plain, found).empty


def test_it_is_given_back_after_an_error() -> None:
    with torch.no_grad(), told(torch.set_default_dtype, torch.float64, torch.float32):
        with pytest.raises(ZeroDivisionError), plain_torch():
            raise ZeroDivisionError
        assert (torch.is_grad_enabled(), torch.get_default_dtype()) == (False, torch.float64)


SCRIPT = """
import sys
import torch, edgesim

torch.set_default_dtype(torch.float64)  # processes that this one starts load the script too, and set it again
torch.set_grad_enabled(False)
torch.backends.mkldnn.enabled = False

if __name__ == "__main__":
    backend = "backend={ name = 'workers', workers = 1 }"
    edgesim.run("scenario.toml", ["stop.rounds=2", backend], out="run")
"""


@full
@pytest.mark.workers
@pytest.mark.process
def test_worker_processes_know_none_either(plain: Run, tmp_path: Path) -> None:
    (tmp_path / "scenario.toml").write_text(TINY)
    (tmp_path / "script.py").write_text(SCRIPT)
    done = subprocess.run([sys.executable, "script.py"], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert diff(plain, edgesim.open(tmp_path / "run")).empty
