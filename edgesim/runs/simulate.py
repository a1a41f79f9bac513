"""Run a scenario and write its run folder."""

from __future__ import annotations

import shutil
import sys
import tempfile
import time
import weakref
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgesim.config.scenario import Scenario
from edgesim.core.errors import ConfigError
from edgesim.execution.interrupts import Interrupts, interrupts
from edgesim.execution.processes import is_loading_main
from edgesim.files.atomic import checkpoint_of, remove_checkpoint
from edgesim.files.code_identity import named_files_digest
from edgesim.files.loaded_code import Unidentified
from edgesim.learning.train.torch_settings import plain_torch, plain_where_loaded
from edgesim.records.manifest import FINISHED, read_manifest
from edgesim.records.writer import check_writable, taken
from edgesim.reports.load import Run, open_run
from edgesim.runs.assembly import Build, Load, build_network, load_data
from edgesim.runs.recording import Recording, provenance
from edgesim.runs.simulation import Silent, Simulation
from edgesim.runs.training import assemble_all, open_backends

if TYPE_CHECKING:
    from edgesim.execution.checkpoint import Checkpoint
    from edgesim.execution.result_cache import Answers


def simulate(
    scenario: Scenario,
    out: Path | None = None,
    observer: Any = None,
    checkpoint: Checkpoint | None = None,
    *,
    answers: Answers | None = None,
    overwrite: bool = False,
    command: Sequence[str] | None = None,
    load: Load = load_data,
    build: Build = build_network,
    warnings: Sequence[str] = (),
) -> Run:
    """Run a scenario and return its run folder; `out` None: a temporary one, removed with the Run that is returned.

    The folder exists from the start and grows, and no other run can use it meanwhile. Ctrl-C, SIGTERM and SIGHUP still
    write it, with the tables up to the last finished round and the status "interrupted". A second signal ends the
    process at once. With a checkpoint the run saves itself to its file at intervals, or continues from an existing
    file, also in the folder of the run that was cut off. If that run had not saved itself yet, the run starts again
    in its folder.
    `overwrite`: replace an existing run, and remove a checkpoint that does not fit. `answers`: cached results, which
    are not computed again and to which new ones are added. `command`: the words of the command line, for the manifest.
    `load` and `build`: as for `check`. `warnings`: about the scenario, for the manifest.
    Raises FolderBusy if another process is writing the folder. Raises ConfigError or DataError before anything is
    written, except for errors of writing itself.
    """
    if is_loading_main():
        sys.exit(1)  # the parent process reports the reason
    if out is None:
        scratch = tempfile.mkdtemp(prefix="edgesim-")
        remove = partial(shutil.rmtree, scratch, ignore_errors=True)
        try:
            run = simulate(scenario, Path(scratch) / "run", observer, checkpoint, answers=answers)
        except BaseException:
            remove()
            raise
        weakref.finalize(run, remove)
        return run
    observer = observer or Silent()
    goes_on = checkpoint is not None and _goes_on(scenario, out, checkpoint, overwrite)
    settings = plain_torch() if scenario.backend.value.trains else plain_where_loaded()
    with settings, interrupts() as signals, closing(observer), ExitStack() as backends:
        check_writable(out, overwrite, goes_on)
        started_s, facts = time.perf_counter(), provenance(command)
        scenario.backend.value.prepare()
        named_files = None
        kept = (answers is not None or checkpoint is not None) and scenario.backend.value.trains
        if kept and scenario.app is None:  # which may hold all its data
            with suppress(Unidentified):  # files that cannot be read: `facts_of` raises the error later
                named_files = named_files_digest(scenario.canonical())
        first, *more = all_parts = tuple(
            replace(parts, named_files=named_files) for parts in assemble_all(scenario, load, build)
        )
        backend, *others = open_backends(all_parts, backends)
        with signals.leaving(), backends, taken(out, overwrite, goes_on) as folder:
            if checkpoint and overwrite and not goes_on:
                checkpoint.remove()
            recording = Recording(folder, observer, {**facts, "warnings": list(warnings)}, started_s)
            also = list(zip(more, others, strict=True))
            _run(lambda: Simulation(first, backend, recording, checkpoint, answers, also), recording, signals)
            run = open_run(out)
            if backend.trains and run.manifest["status"] == FINISHED:
                remove_checkpoint(checkpoint_of(out))
    return run


def _goes_on(scenario: Scenario, out: Path, checkpoint: Checkpoint, overwrite: bool) -> bool:
    """Return True if an existing unfinished run may be continued: it is the same run, or has saved itself."""
    if overwrite or checkpoint.file.exists():
        return checkpoint.file.exists() and not (overwrite and checkpoint.is_unfit())
    with suppress(ConfigError):  # there is no run
        return bool(read_manifest(out)["digest"] == scenario.digest())
    return False


def _run(prepare: Callable[[], Simulation], recording: Recording, signals: Interrupts) -> None:
    """Run and record a simulation; if it stops while it repeats a checkpoint, leave the folder unchanged."""
    with signals.writing():
        with signals.working():
            simulation = prepare()
        recording.begin(simulation)
        status, reason = "failed", None
        try:
            with signals.working():
                simulation.run()
            status = FINISHED
        except KeyboardInterrupt:
            if simulation.repeats:
                raise
            status, reason = "interrupted", signals.reason
        finally:
            if status == FINISHED or not simulation.repeats:  # a repeating run has nothing new
                recording.write(status, reason)
