"""Studies in notebooks and scripts: made from Python values or a study file, with results as data frames."""

from __future__ import annotations

import shutil
import tempfile
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import pandas as pd

from edgesim.config.describe import toml
from edgesim.config.load import Overrides, load_scenario, scenario_file
from edgesim.config.scenario import Scenario
from edgesim.config.toml_file import located, read_toml
from edgesim.core.errors import ConfigError
from edgesim.reports.format import html_table, rich_table
from edgesim.reports.load import Run
from edgesim.studies.decision import label_of
from edgesim.studies.runs import Planned, claim, folder_of, owner_of, plan
from edgesim.studies.study import USUAL, Study, StudyCell, load_study, study_of, with_trials
from edgesim.studies.values import compared, pivoted, summarised, tabulate, values_of

if TYPE_CHECKING:
    from rich.table import Table

    from edgesim.reports.figures import Drawing
    from edgesim.studies.optimise import Trial

Axis: TypeAlias = Mapping[str, Overrides] | Iterable[Any]
_SPENT = ("sim_time_s", "energy_j", "traffic_bytes")  # columns of every run


class StudyInPython:
    """A study that can be planned, run and searched. `study`: its contents.

    For `size` of all methods None means "quick", or the first size if there is no "quick".
    """

    def __init__(
        self, study: Study, file: Path, folder: Callable[[str], Path | None], owner: Callable[[Path], str]
    ) -> None:
        """`file`: study file, which need not exist. `folder`: returns the folder of a size, None for a temporary one.

        `owner`: returns the name of the study for a folder of runs.
        """
        self.study = study
        self._owner = owner
        self._file = file
        self._folder_of = folder
        self._folders: dict[str, _Folder] = {}

    @property
    def sizes(self) -> tuple[str, ...]:
        """Names of the sizes."""
        return tuple(self.study.sizes)

    def __repr__(self) -> str:
        axes = ", ".join(f"{axis}: {', '.join(labels)}" for axis, labels in self.study.axes.items())
        search = f"; searches {', '.join(self.study.search.space)}" if self.study.search else ""
        return f"<study {self.study.name!r}; {axes or 'no axes'}; columns {', '.join(self.study.columns)}{search}>"

    def plan(self, size: str | None = None, only: Sequence[str] = ()) -> pd.DataFrame:
        """Build all cells and train nothing. Return a row for each cell: cell, state, fault, host_s, disk_bytes.

        `only`: cells such as "method=fedavg,seed=1". Raises ConfigError.
        """
        from edgesim.studies.plan import outlook

        folder = self._folder(size)
        cells = outlook(self._planned(size, only, folder), costs=True)
        return pd.DataFrame([{"cell": each.planned.cell.name, **each.told()} for each in cells])

    def run(
        self,
        workers: int = 1,
        size: str | None = None,
        only: Sequence[str] = (),
        on_cell: Callable[[StudyCell, Run], None] | None = None,
        fresh: bool = False,
    ) -> StudyResult:
        """Run the missing cells and return all cells.

        `workers`: number of cells to run in parallel, each in its own process. A script then needs
        `if __name__ == "__main__":`. `on_cell`: called with each cell and its run when it ends. `fresh`: run all cells
        again and replace existing runs. Raises ConfigError, and EdgesimError if cells cannot be run or have failed.
        """
        from edgesim.studies.plan import outlook, run_missing

        folder = self._folder(size)
        planned = self._planned(size, only, folder)
        claim(folder.path, self._owner(folder.path))
        for step in run_missing(outlook(planned), workers, fresh=fresh):
            run = folder.opened(step.ended) if on_cell and step.ended and not step.elsewhere else None
            if on_cell and step.ended and run is not None:
                on_cell(step.ended.cell, run)
        return StudyResult(with_trials(self.study, folder.path), planned, folder)

    def optimise(
        self, trials: int, workers: int = 1, size: str | None = None, on_trial: Callable[[Trial], None] | None = None
    ) -> StudyResult:
        """Search the space until there are `trials` trials, including existing ones, and return them as cells.

        `on_trial`: called with each `edgesim.studies.optimise.Trial`. Raises as `run`, and ConfigError without a
        search or without optuna.
        """
        from edgesim.studies.optimise import Optimisation, Trial

        folder = self._folder(size)
        search = Optimisation(self.study, self._file, self._size(size), folder.path, self._owner(folder.path))
        for each in search.run(trials, workers):
            if on_trial and isinstance(each, Trial):
                on_trial(each)
        planned = self._planned(size, (), folder)
        return StudyResult(with_trials(self.study, folder.path), planned, folder, search.best)

    def open(self, size: str | None = None, only: Sequence[str] = ()) -> StudyResult:
        """Return the cells that have runs. Raises ConfigError if there are none."""
        folder = self._folder(size)
        result = StudyResult(with_trials(self.study, folder.path), self._planned(size, only, folder), folder)
        if not result.runs:
            raise ConfigError(f"{folder.path}: no cell has been run")
        return result

    def _size(self, size: str | None) -> str:
        if size is None:
            return USUAL if USUAL in self.sizes else self.sizes[0]
        return size

    def _folder(self, size: str | None) -> _Folder:
        """Return the folder of a size. It stays the same for the lifetime of this object."""
        name = self._size(size)
        if name not in self._folders:
            self._folders[name] = _Folder(self._folder_of(name))
        return self._folders[name]

    def _planned(self, size: str | None, only: Sequence[str], folder: _Folder) -> list[Planned]:
        return plan(self.study, self._file, self._size(size), only, folder.path)


class StudyResult:
    """The runs of a study. `best`: the best trials of a search, else empty.

    Notebooks and rich show the table of means over the seeds.
    """

    def __init__(self, study: Study, planned: Sequence[Planned], folder: _Folder, best: Sequence[Trial] = ()) -> None:
        self.study = study
        self.folder = folder.path
        self.best = list(best)
        self._cells = [(each.cell, run) for each in planned if (run := folder.opened(each)) is not None]
        self._missing = len(planned) - len(self._cells)

    @property
    def runs(self) -> dict[str, Run]:
        """Runs by the names of their cells, such as "method=fedavg,seed=1"."""
        return {cell.name: run for cell, run in self._cells}

    def frame(self) -> pd.DataFrame:
        """Return a row for each run: the labels of its axes, and each column of the study.

        If all labels of an axis are numbers, or true and false, they become such values. NaN: the run did not reach
        the target. Do not leave such runs out of a mean: `values` tells the amount that they spent.
        """
        values = self.values()
        by_run = values.groupby(values.index // len(self.study.columns), sort=False)  # rows of a run are adjacent
        wide = [
            {**cell.labels, **dict(zip(part["column"], part["value"].where(part["observed"]), strict=True))}
            for (cell, _), (_, part) in zip(self._cells, by_run, strict=True)
        ]
        found = pd.DataFrame(wide, columns=[*self.study.axes, *self.study.columns])
        for axis in self.study.axes if len(found) else ():
            as_numbers = pd.to_numeric(found[axis], errors="coerce")
            if found[axis].isin(["true", "false"]).all():
                found[axis] = found[axis] == "true"
            elif as_numbers.notna().all():
                found[axis] = as_numbers
        return found

    def values(self) -> pd.DataFrame:
        """Return a row for each run and column, including censored values: see `values_of`."""
        return values_of(self.study, self._cells)

    def summary(self) -> pd.DataFrame:
        """Return statistics over the seeds: see `edgesim.studies.values.summarised`."""
        return summarised(self.values())

    def compare(self, baseline: Mapping[str, str], column: str) -> pd.DataFrame:
        """Return differences to a baseline, paired by seed: see `edgesim.studies.values.compared`."""
        return compared(self.values(), baseline, column)

    def table(self) -> pd.DataFrame:
        """Return means over the seeds and published numbers, as `edgesim study table` prints them."""
        return tabulate(self.study, self._cells)

    def plot(self, against: Sequence[str] = ("time", "energy", "rounds"), title: str = "") -> Drawing:
        """Return a figure of accuracy against each of `against`, with mean and range over seeds."""
        from edgesim.reports.pictures import draw_runs

        names = {run: label_of(self.study, cell) for cell, run in self._cells}
        return draw_runs(list(names), against, names=names, title=title)

    def __len__(self) -> int:
        return len(self._cells)

    def __repr__(self) -> str:
        return f"<{len(self)} runs of the study {self.study.name!r} in {self.folder}>"

    def __rich__(self) -> Table:
        return rich_table(*self._shown())

    def _repr_html_(self) -> str:
        return html_table(*self._shown())

    def _shown(self) -> tuple[str, list[str], list[list[str]], str]:
        table = pivoted(self.table()) if self._cells else pd.DataFrame()
        rows = [list(map(str, row)) for row in table.itertuples(index=False, name=None)]
        missing = f"{self._missing} of {self._missing + len(self)} cells are missing" if self._missing else ""
        return self.study.name, list(map(str, table.columns)), rows, missing


class _Folder:
    """A folder of runs. A temporary folder is removed once no object refers to it or its runs."""

    def __init__(self, path: Path | None) -> None:
        if path is None:
            path = Path(tempfile.mkdtemp(prefix="edgesim-"))
            weakref.finalize(self, partial(shutil.rmtree, path, ignore_errors=True))
        self.path = path

    def opened(self, planned: Planned) -> Run | None:
        """Return the run of a cell, which keeps the folder alive; None if it is missing."""
        run = planned.kept()
        if run is not None:
            vars(run)["_kept_in"] = self
        return run


def make_study(
    base: str | Path | Mapping[str, Any] | Scenario,
    axes: Mapping[str, Axis] | None = None,
    columns: Sequence[str] = (),
    overrides: Overrides = (),
    search: Mapping[str, Any] | None = None,
    out: str | Path | None = None,
    name: str = "study",
) -> StudyInPython:
    """Return a study from Python values or a study file: see `edgesim.study`. Raises ConfigError."""
    given = None if out is None else Path(out)
    if isinstance(base, str | Path) and (file := Path(base)).is_file() and "columns" in read_toml(file):
        if axes or columns or overrides or search:
            raise ConfigError(f"{file}: is a study, which has axes, columns and overrides of its own")
        loaded = load_study(file)
        return StudyInPython(loaded, file, lambda size: given or folder_of(file, size), partial(owner_of, file))
    texts = _texts(overrides)
    scenario = load_scenario(base, texts)
    usual = list(_SPENT)  # default columns: the best accuracy, the amounts spent, and the amounts until each target
    if scenario.backend.value.trains:
        until = [f"{column}@{target:g}" for target in scenario.evaluation.targets for column in _SPENT[:2]]
        usual = ["best_accuracy", *until, *_SPENT]
    given_axes: dict[str, Any] = {}
    for axis, values in (axes or {}).items():
        if isinstance(values, Mapping):
            given_axes[axis] = {str(label): _texts(each) for label, each in values.items()}
        else:
            given_axes[axis] = list(values)
    table: dict[str, Any] = {
        "name": name,
        "base": str(scenario_file(base).absolute()) if isinstance(base, str | Path) else scenario.canonical(),
        "axes": given_axes,
        "columns": list(columns) or usual,
        "overrides": texts,
    }
    if search:
        table["search"] = dict(search)
    made, owner = study_of(table, Path.cwd()), f"{name} (Python)"
    return StudyInPython(made, Path.cwd() / "study.toml", lambda size: given, lambda folder: owner)


def _texts(overrides: Overrides) -> list[str]:
    """Return overrides as texts, key=value."""
    if isinstance(overrides, str):
        return [overrides]
    if isinstance(overrides, Mapping):
        return [f"{key}={toml(located(value, Path.cwd(), str(key)))}" for key, value in overrides.items()]
    return list(overrides)
