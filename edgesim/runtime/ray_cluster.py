"""A Ray cluster: one that runs, or one of this machine alone that ends with this process."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from time import monotonic

import numpy as np
import torch
from torch import Tensor

from edgesim.core.errors import ConfigError
from edgesim.files.reading import in_short, quoted
from edgesim.learning.data.dataset import Numbers

_ADDRESS = "RAY_ADDRESS"  # the environment variable that Ray's own programs read
PATIENCE_S = 10.0  # for a machine that answers
_TRY_S = 1.0  # between two looks whether Ray answers, and for the answer
_QUIET = {"log_to_driver": False, "logging_level": "error"}
_UNTOLD = {"RAY_USAGE_STATS_ENABLED": "0"}  # nothing is sent to anybody


def check_installed(key: str) -> None:
    """Raise ConfigError that names `key` where Ray is not installed. It is not loaded."""
    spec = find_spec("ray")
    if spec is None or spec.origin is None:  # a folder of that name is no module
        raise ConfigError(f'{key}: ray is not installed; pip install "edgesim[ray]"')


class RayCluster:
    """The connection of this process to a cluster."""

    def __init__(self, key: str, workers: int, address: str | None = None) -> None:
        """Connect to `address`, else to RAY_ADDRESS, else start a cluster of so many CPUs here.

        In a process that is connected already that connection is used, and left open. `key`: what errors name. Raises
        ConfigError if Ray is not installed, or nobody is at the address.
        """
        check_installed(key)
        address = address or os.environ.get(_ADDRESS)
        if address and "://" in address:
            raise ConfigError(
                f"{key}: a Ray address is HOST:PORT or auto, and this a machine of it, got {quoted(address)}"
            )
        if address:
            _check_answers(key, address)
        self._folder: Path | None = None
        self._is_open = True
        with _handlers_kept(), _told_nobody():
            import ray  # takes half a second

            self._owns = not ray.is_initialized()
            try:
                if self._owns and address:
                    ray.init(address=address, **_QUIET)
                elif self._owns:
                    self._start_here(workers)
            except (ConnectionError, RuntimeError, ValueError, OSError, ray.exceptions.RayError) as error:
                self.close()
                where = f"cannot connect to {quoted(address)}" if address else "cannot start here"
                raise ConfigError(f"{key}: Ray {where}: {in_short(str(error))}") from error
            except BaseException:
                self.close()
                raise
        travel_as_arrays()

    def close(self) -> None:
        """Leave the cluster, which ends what this process has running there; end one that was started.

        May be called twice.
        """
        if not self._is_open:
            return
        self._is_open = False
        if self._owns:
            import ray

            with _handlers_kept():
                ray.shutdown()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)

    def _start_here(self, workers: int) -> None:
        import ray

        self._folder = Path(tempfile.mkdtemp(prefix="edgesim-ray-"))  # else its logs are left
        ray.init(address="local", num_cpus=workers, include_dashboard=False, _temp_dir=str(self._folder), **_QUIET)


def services() -> tuple[Service, ...]:
    """Return the Ray processes without which this process cannot use the cluster that it is connected to."""
    import ray

    context = ray.get_runtime_context()
    (here,) = (node for node in ray.nodes() if node["NodeID"] == context.get_node_id())
    raylet = f"{here['NodeManagerAddress']}:{here['NodeManagerPort']}"
    return Service("head", context.gcs_address), Service("raylet on this machine", raylet)


class Service:
    """A Ray process at an address, which is gone when it does not answer there any more.

    A process that cannot be reached from this machine at first is never gone: Ray has other ways to it.
    """

    def __init__(self, name: str, address: str) -> None:
        """`name`: for messages. `address`: HOST:PORT."""
        self.name = name
        self.address = address
        self._in_reach = self._answers()
        self._tried_s = monotonic()
        self._silent_since_s: float | None = None

    def is_gone(self) -> bool:
        """Return whether it has answered no try for PATIENCE_S. It is tried once a second, for a second."""
        now_s = monotonic()
        if not self._in_reach or now_s - self._tried_s < _TRY_S:
            return False
        self._tried_s = now_s
        if self._answers():
            self._silent_since_s = None
            return False
        if self._silent_since_s is None:
            self._silent_since_s = now_s
        return now_s - self._silent_since_s >= PATIENCE_S

    def _answers(self) -> bool:
        try:
            _connect(self.address, _TRY_S)
        except OSError:
            return False
        return True


def _connect(address: str, patience_s: float) -> None:
    """Connect to HOST:PORT and hang up. Raises OSError, ValueError or OverflowError if there is no answer."""
    host, _, port = address.rpartition(":")
    socket.create_connection((host.strip("[]"), int(port)), timeout=patience_s).close()


def _check_answers(key: str, address: str) -> None:
    """Raise ConfigError if nobody is at HOST:PORT, for which Ray would wait minutes."""
    if ":" not in address:
        return  # as "auto" says where by itself
    try:
        _connect(address, PATIENCE_S)
    except (OSError, ValueError, OverflowError) as error:
        raise ConfigError(f"{key}: nobody answers at the Ray address {quoted(address)}: {error}") from error


def travel_as_arrays() -> None:
    """Let tensors and data sets that this process sends lie in Ray's memory as arrays, which no process unpacks.

    A tensor that comes is a copy, as who gets it may write; the data set is not: all processes of a machine read one.
    """
    from ray.util import register_serializer

    register_serializer(Tensor, serializer=_array, deserializer=_tensor)
    register_serializer(Numbers, serializer=_sent_numbers, deserializer=_numbers)


def _array(tensor: Tensor) -> np.ndarray:
    array: np.ndarray = tensor.detach().cpu().numpy()
    return array


def _tensor(array: np.ndarray) -> Tensor:
    return torch.from_numpy(array.copy(order="K"))


def _sent_numbers(numbers: Numbers) -> tuple[np.ndarray, str]:
    return numbers.array, numbers.digest  # not as the name of a file, which other machines do not have


def _numbers(sent: tuple[np.ndarray, str]) -> Numbers:
    array, digest = sent
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")  # and nobody writes
        return Numbers(torch.from_numpy(array), digest=digest)


@contextmanager
def _handlers_kept() -> Iterator[None]:
    """Give SIGTERM back to who handled it: Ray takes it."""
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        if signal.getsignal(signal.SIGTERM) is not before:
            signal.signal(signal.SIGTERM, before)


@contextmanager
def _told_nobody() -> Iterator[None]:
    """Let Ray start with its reports to its makers switched off."""
    before = {name: os.environ.get(name) for name in _UNTOLD}
    os.environ.update(_UNTOLD)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
