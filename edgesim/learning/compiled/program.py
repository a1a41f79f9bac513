"""Programs that PyTorch's AOTInductor makes of steps, kept in the user's cache folder.

A program is a library of machine code. Making it takes a C++ compiler and some ten seconds, loading it milliseconds:
nothing of torch's compiler is imported. It is found by the hash of all operations of its step, of the versions of torch
and the compiler, and of the processor, so that a changed network never gets an old program.
"""

from __future__ import annotations

import hashlib
import logging
import os
import shutil
import subprocess
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import RLock
from typing import Any
from zipfile import ZipFile

import torch
from torch import Tensor, nn

from edgesim.core.rng import Key
from edgesim.files.user_cache import PROGRAMS, keep_file, keep_table, kept_table
from edgesim.learning.compiled.recording import NotRecorded, record
from edgesim.learning.models.build import reason_of
from edgesim.learning.models.seeding import seeded
from edgesim.learning.train.torch_settings import processors

# Distances between results of a program and of its step, relative to their norms. In deep networks with normalisations
# both are up to a hundredth from the results of float64, and more in a batch in which rounding moves a number to the
# other side of a ReLU's corner.
_CLOSE, _NEAR = 0.02, 0.1
_NOTHING = 1e-3  # of the largest norm: smaller results may be rounding alone

Step = Callable[..., list[Tensor]]  # of inputs whose last two, samples and labels, have the batch as first dimension


class CannotCompile(Exception):
    """A step cannot be compiled. The message says why."""


@cache
def compiler() -> str:
    """Return the C++ compiler that torch uses, with its version, or "" if there is none."""
    name = os.environ.get("CXX", "g++")
    path = shutil.which(name)
    if path is None:
        return ""
    told = subprocess.run([path, "--version"], capture_output=True, text=True, check=False).stdout
    return f"{name}: {next(iter(told.splitlines()), '')}"


class Program:
    """A compiled step. It takes tensors of the shapes and layouts of its example, in batches of two samples or more."""

    def __init__(self, path: Path) -> None:
        """Load a program. Raises CannotCompile if it cannot be loaded."""
        try:
            load: Any = torch._C._aoti.AOTIModelContainerRunnerCpu  # torch's own function imports its compiler, for 1 s
            self._runner = load(str(path), 1)
        except (AttributeError, RuntimeError) as error:
            raise CannotCompile(f"the program {path} cannot be loaded: {reason_of(error)}") from error

    def __call__(self, inputs: list[Tensor]) -> list[Tensor]:
        """Return the results of the step for these inputs."""
        found: list[Tensor] = self._runner.run(inputs)
        return found


def program_of(step: Step, inputs: Sequence[Tensor], module: nn.Module) -> Program:
    """Return the program of a step of a network, made now if it has not been made before.

    One process makes it, others wait and load it. Raises CannotCompile.
    """
    if not compiler():
        raise CannotCompile("there is no C++ compiler on this machine")
    try:
        with seeded(Key(0)):
            operations = record(step, inputs, module)
    except NotRecorded as error:
        raise CannotCompile(f"the network: {error}") from error
    except Exception as error:  # any error of a user's own network in a batch of another size
        raise CannotCompile(f"the network: {reason_of(error)}") from error
    facts = [version("edgesim"), torch.__version__, compiler(), *processors(), operations]
    digest = hashlib.sha256("\n".join(facts).encode()).hexdigest()

    def make(path: Path) -> None:
        told = kept_table(PROGRAMS, {"step": digest})  # steps that could not be compiled
        why_not = told["why_not"] if told else _made(step, inputs, path)
        if why_not:
            keep_table(PROGRAMS, {"step": digest}, {"why_not": why_not})
            raise CannotCompile(why_not)

    try:
        return Program(keep_file(PROGRAMS, f"{digest}.so", make))
    except OSError as error:
        raise CannotCompile(f"its program cannot be kept: {reason_of(error)}") from error


def _made(step: Step, inputs: Sequence[Tensor], path: Path) -> str | None:
    """Make a program that gives what its step gives. Return the reason if there is none."""
    with TemporaryDirectory() as folder, _quiet():
        try:
            exported = _exported(step, inputs)
        except Exception as error:  # torch raises errors of many kinds
            return f"the network: torch cannot trace it: {reason_of(error)}"
        try:
            library = _compiled(exported, Path(folder))
        except Exception as error:  # of the compiler, which another day may be installed as it should
            raise CannotCompile(f"torch's compiler fails: {reason_of(error)}") from error
        program = Program(library)
        samples = len(inputs[-1])
        found = [_distance(program, step, inputs, each) for each in range(samples - 2, samples + 1)]
        if not (min(found) <= _CLOSE and max(found) <= _NEAR):
            return "the network: compiled it gives other numbers"
        shutil.copyfile(library, path)
    return None


def _exported(step: Step, inputs: Sequence[Tensor]) -> torch.export.ExportedProgram:
    """Return the operations of a step for batches of any size from two on."""
    from torch.fx.experimental.proxy_tensor import make_fx

    hub: Any = torch.hub
    with suppress(AttributeError):  # of torch's own bar, which it has where tqdm is not installed
        hub.tqdm.set_lock(RLock())  # instead of one for processes, which a killed one leaves behind
    batch = torch.export.Dim("batch", min=2)
    sizes: list[Any] = [None] * (len(inputs) - 2) + [{0: batch}] * 2
    graph = make_fx(step, tracing_mode="symbolic")(*inputs)
    return torch.export.export(graph, tuple(inputs), dynamic_shapes=tuple(sizes))


def _compiled(exported: torch.export.ExportedProgram, folder: Path) -> Path:
    """Return the library of these operations, in this folder."""
    from torch._inductor import aoti_compile_and_package, config
    from torch._inductor.utils import fresh_cache

    # Dropout then draws from torch's own stream, as it does when it is not compiled.
    with fresh_cache(dir=str(folder)), config.patch(compile_threads=1, fallback_random=True):
        package = aoti_compile_and_package(exported, package_path=str(folder / "step.pt2"))
    with ZipFile(package) as parts:
        [library] = (name for name in parts.namelist() if name.endswith(".so"))
        return Path(parts.extract(library, folder))


def _distance(program: Program, step: Step, inputs: Sequence[Tensor], samples: int) -> float:
    """Return the largest distance between a result of the program and of the step in a batch of so many samples."""
    given = [*inputs[:-2], *(each[:samples] for each in inputs[-2:])]
    with seeded(Key(0)):
        found = [each.double().nan_to_num() for each in program(given)]
    with seeded(Key(0)):
        wanted = [each.double().nan_to_num() for each in step(*given)]
    norms = [float(each.norm()) for each in wanted]
    nothing = _NOTHING * max(norms) + 1e-30
    apart = [float((one - other).norm()) for one, other in zip(found, wanted, strict=True)]
    return max(far / (norm + nothing) for far, norm in zip(apart, norms, strict=True))


@contextmanager
def _quiet() -> Iterator[None]:
    """Show no warnings of torch's compiler, which are for its authors."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)
