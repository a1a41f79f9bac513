"""Server part of a Flower app: its ServerApp runs in the thread of its caller, over the simulated clock."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

from edgesim.core.app import AppClock, DeviceCode
from edgesim.core.errors import EdgesimError
from edgesim.flower import compat
from edgesim.flower.app import AppFolder
from edgesim.flower.app_modules import AppModules
from edgesim.flower.app_time import ClockOfApp, app_sleep, app_time, unix_s
from edgesim.flower.client import FlowerDevices
from edgesim.flower.code_digest import digest_of_app
from edgesim.flower.grid import ServerClock, SimulatedGrid
from edgesim.flower.process_state import StateOfPart, exception_line, put_back, seed_all
from edgesim.flower.scores import Scores

_log = logging.getLogger("edgesim.flower")


def opened(
    app: AppFolder,
    run_id: int,
    node_ids: Sequence[int],
    seed: int,
    overrides: Mapping[str, Any],
    call_timeout_s: float,
    host_flops_per_s: float | None,
) -> tuple[DeviceCode, Callable[[AppClock], None]]:
    """Load both parts of an app. Returns its device part and the function that runs its server part.

    Raises ConfigError if one cannot be loaded.
    """
    devices = FlowerDevices(
        app.folder,
        app.clientapp,
        run_id,
        tuple(node_ids),
        app.config,
        call_timeout_s,
        host_flops_per_s,
        digest_of_app(app.folder, app.config),
    )
    compat.log_plainly()
    part = _ServerPart(app, seed)
    part.load()
    devices.load()

    def serve(clock: AppClock) -> None:
        part.run(clock, compat.new_run(run_id, overrides), node_ids)

    return devices, serve


class _ServerPart:
    """ServerApp of a folder, with modules, state of the process and clock of its own."""

    def __init__(self, app: AppFolder, seed: int) -> None:
        self._app, self._seed = app, seed
        self._modules, self._state = AppModules(app.folder), StateOfPart(seed)
        self._folders = (f"{app.folder}/", *compat.WAITING_FOLDERS)
        self._server_app: Any = None
        self._inside = ExitStack()

    def load(self) -> None:
        """Load the ServerApp. Raises ConfigError if that fails."""
        with_torch = "torch" in sys.modules
        self._load()
        if not with_torch and "torch" in sys.modules:  # its generator was not seeded
            self._load()

    def _load(self) -> None:
        self._modules = AppModules(self._app.folder)
        with put_back(), app_time(_Start(), *self._folders), self._modules.entered():
            seed_all(self._seed)
            self._server_app = self._modules.attribute(self._app.serverapp, compat.ServerApp)

    def run(self, clock: AppClock, run: Any, node_ids: Sequence[int]) -> None:
        """Run the ServerApp until its end. Raises EdgesimError, in one line, if its code raises an exception."""
        scores, warned = Scores(clock), set[str]()
        app_clock = ServerClock(clock, self._away)
        self._clock: ClockOfApp = app_clock

        def warn(text: str) -> None:
            kind = text.rpartition(":")[2]
            if kind not in warned:
                _log.warning("%s", text)
            warned.add(kind)

        grid = SimulatedGrid(clock, run, node_ids, scores, self._away, warn)
        context = compat.Context(
            run_id=run.run_id,
            node_id=compat.SERVER_NODE,
            node_config={},
            state=compat.RecordDict(),
            run_config=dict(self._app.config),
        )
        patches = {
            **compat.dates(unix_s),
            **compat.waits(app_sleep),
            **compat.without_threads(app_sleep, app_clock.seconds),
            **scores.patches(),
        }
        with put_back(), compat.task_identity(run.run_id), compat.patched(patches):
            self._enter()
            try:
                self._server_app(grid=grid, context=context)
            except (Exception, SystemExit) as error:
                if not isinstance(error, SystemExit) or error.code:
                    line = exception_line(error, f"{self._app.folder}/")
                    raise EdgesimError(f"the server part of the app failed at {clock.now_s:g} s: {line}") from error
            finally:
                self._inside.close()

    def _enter(self) -> None:
        """Enter the app's modules, state and clock."""
        self._inside.enter_context(self._state.entered())
        self._inside.enter_context(app_time(self._clock, *self._folders))
        self._inside.enter_context(self._modules.entered())

    @contextmanager
    def _away(self) -> Iterator[None]:
        """Leave them for a block in which the event loop and devices run."""
        self._inside.close()
        try:
            yield
        finally:
            self._enter()


class _Start(ClockOfApp):
    """Clock while an app is loaded: no time passes."""

    def seconds(self) -> float:
        return 0.0

    def sleep(self, seconds: float) -> None:
        pass
