"""Tables of values as a study's runs would give them, from texts of numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import SimpleNamespace

import pandas as pd

from edgesim.reports.html.answer import answer
from edgesim.reports.html.content import FirstScreen
from edgesim.studies.column import parse_column
from edgesim.studies.decision import ComparedSettings, level, seeds_needed, with_setting
from edgesim.studies.report import with_middle
from edgesim.studies.study import Size, Study
from edgesim.studies.values import axes_of, summarised

_COMMAND = "edgesim study run it.toml --size quick"


def values(axes: tuple[str, ...], numbers: Mapping[tuple[str, ...], str]) -> pd.DataFrame:
    """Return a table as `values_of` does: for the labels of the axes and a column, the numbers of seeds 1, 2, ...

    A number with a + was spent without getting there, and with a ! by a run that would never have; "nan" is no number
    at all, and "-" a run that is not there.
    """
    rows = [
        (*key[:-1], str(seed), key[-1], float(word.rstrip("+!")), word[-1] not in "+!n", word.endswith("!"))
        for key, words in numbers.items()
        for seed, word in enumerate(words.split(), 1)
        if word != "-"
    ]
    return pd.DataFrame(rows, columns=[*axes, "seed", "column", "value", "observed", "never"])


def first_screen(values: pd.DataFrame, seeds: Sequence[int] = ()) -> FirstScreen:
    """Return the first screen of a report on a table of values. `seeds`: those of a size `full` of the study."""
    axes = axes_of(values)
    columns = tuple(dict.fromkeys(map(str, values["column"])))
    several = {axis: dict.fromkeys(map(str, values[axis]), ()) for axis in axes}
    sizes = {"quick": Size(only=("seed=1",)), "full": Size()} if seeds else {"quick": Size()}
    all_axes = {**several, "seed": dict.fromkeys(map(str, seeds or (1,)), ())}
    study = Study.model_construct(name="made up", axes=all_axes, columns=columns, sizes=sizes, only=(), where=())
    summary = with_setting(with_middle(summarised(values), columns), study)
    groups = {
        row["setting"]: {axis: str(row[axis]) for axis in axes}
        for row in summary.drop_duplicates("setting").to_dict("records")
    }
    found = ComparedSettings(
        study, values, summary, groups, {name: parse_column(name).better == "lower" for name in columns}
    )
    contests, base = found.contests(), next(iter(groups))
    of_first, compared = found.against(base, contests[0].of), pd.concat(found.against(base, name) for name in columns)
    needed = seeds_needed(study, of_first, _COMMAND)
    findings = SimpleNamespace(
        axes={axis: {label: level(axis, label) for label in map(str, values[axis])} for axis in axes},
        settings=tuple(groups), baseline=base, contests=contests, choice=found.choice(contests, needed.needed),
        effects=found.effects(contests[0].of, base, of_first), seeds=needed, compared=compared, levels={},
        currency="EUR",
    )  # fmt: skip
    return answer(findings)  # type: ignore[arg-type]
