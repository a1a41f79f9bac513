"""The page of `edgesim watch --web`: a run, or the cells of a study, in the browsers of this machine."""

from __future__ import annotations

import time
from collections import Counter
from contextlib import suppress
from pathlib import Path

from edgesim.cli.options import StudyFolder
from edgesim.core.errors import ConfigError
from edgesim.files.reading import one_line, visible
from edgesim.records.manifest import FINISHED, RUNNING
from edgesim.reports.format import count, text
from edgesim.reports.html.content import Cell, ReportTable, Section
from edgesim.reports.html.live_page import DRAWN, Progress, assets_of_page, live_page, notes_of, sections_of
from edgesim.reports.html.local_server import Resource, serving
from edgesim.reports.html.words import number
from edgesim.reports.load import open_run
from edgesim.runs.progress import READING, SHOWN, Glance, facts_of, glance_of
from edgesim.studies.followed import FollowedRun
from edgesim.studies.study import load_study, with_trials


def serve(shown: RunOnPage | CellsOnPage, every_s: float, port: int) -> None:
    """Serve a page to browsers of this machine until Ctrl-C. Raises ConfigError if the port cannot be used."""
    served = assets_of_page()
    served["/"] = shown.page() or live_page(shown.title, every_s)
    wait_s = every_s  # much of the first time was spent on imports
    with suppress(KeyboardInterrupt), serving(served, port) as address:
        print(f"{address}  (Ctrl-C ends it)", flush=True)
        while True:
            time.sleep(wait_s)
            began_s = time.perf_counter()
            if (page := shown.page()) is not None:
                served["/"] = page
            wait_s = max(every_s, READING * (time.perf_counter() - began_s))


class RunOnPage:
    """A run as the page of a browser."""

    def __init__(self, folder: Path, session: str | None, every_s: float) -> None:
        """Raises ConfigError if nothing is there, or the run lacks the session."""
        self.title = visible(folder.resolve().name)
        self._session = session
        self._every_s = every_s
        self._followed = FollowedRun(folder, DRAWN)
        there = folder.is_dir() or self._followed.waits or self._followed.place.is_dir()
        if not there or (session is not None and not self._followed.waits):
            run = open_run(self._followed.place, ())
            if session is not None:
                run.session(session)

    def page(self) -> Resource | None:
        """Return the page if it has changed. A folder that cannot be read gives one line, as it may come back."""
        if self._followed.waits:
            return live_page(self.title, self._every_s, notes=["Waiting for the run to begin."])
        try:
            whole = self._followed.changed()
            if whole is None:
                return None
            views = whole.views if self._session is None else (whole.session(self._session),)
            progress = []
            for view in views:
                glance = glance_of(view)
                facts = facts_of(glance)
                if glance.accuracies:
                    facts["accuracy"] = f"{_percent(glance.accuracies[-1])}, best {_percent(max(glance.accuracies))}"
                status = f"{glance.method}, {glance.rounds}, {glance.status}"
                progress.append(Progress(title=view.chosen or "", status=status, share=glance.share, facts=facts))
            return live_page(self.title, self._every_s, progress, sections_of(views, self.title), notes_of(whole))
        except ConfigError as error:
            return live_page(self.title, self._every_s, notes=[one_line(str(error))])


class CellsOnPage:
    """The cells of a study as the page of a browser."""

    def __init__(self, file: Path, place: StudyFolder, every_s: float) -> None:
        """Raises ConfigError if the study cannot be read, or has no size of this name."""
        folder = place.folder_of(file)
        study = with_trials(load_study(file), folder)
        names = [cell.name for cell in study.cells(place.size)]
        self.title = visible(f"{study.name}, {place.size}")
        self._every_s = every_s
        self._cells = {name: FollowedRun(folder / name, SHOWN) for name in names}
        self._glances: dict[str, Glance | None] = dict.fromkeys(names)

    def page(self) -> Resource:
        """Return the page. A cell without a run that can be read counts as waiting."""
        for name, followed in self._cells.items():
            try:
                if (run := followed.changed()) is not None:
                    self._glances[name] = glance_of(run.views[0])
            except ConfigError:
                self._glances[name] = None
        status = {name: glance.status if glance else "waiting" for name, glance in self._glances.items()}
        rows = []
        for name in sorted(status, key=lambda name: status[name] != RUNNING):  # those at work come first
            glance = self._glances[name]
            row = [name, status[name], "–", "–", "–", "–"]
            if glance and glance.done:
                costs = (text(column, glance.done[column]) for column in ("now_s", "energy_j"))
                row[2:5] = [glance.rounds.removeprefix("round "), *costs]
            if glance and glance.accuracies:
                row[5] = _percent(glance.accuracies[-1])
            rows.append([Cell(each) for each in row])
        head = ["cell", "status", "rounds", "simulated time", "energy", "accuracy"]
        table = ReportTable(caption="Cells, those at work first", head=head, rows=rows, numbers=4)
        counts = Counter(status.values())
        shares = [glance.share or 0.0 for glance in self._glances.values() if glance and glance.status == RUNNING]
        progress = Progress(
            title="",
            status=f"{counts[FINISHED]} of {count(len(rows), 'cell')} finished",
            share=(counts[FINISHED] + sum(shares)) / len(rows),
            facts={each: count(number, "cell") for each, number in counts.items()},
        )
        section = Section(name="cells", title="Cells", tables=[table])
        return live_page(self.title, self._every_s, [progress], [section])


def _percent(accuracy: float) -> str:
    return number("accuracy", accuracy)
