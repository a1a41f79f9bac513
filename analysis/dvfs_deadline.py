"""How slowly may a CPU run before a deadline? Usage: python analysis/dvfs_deadline.py [SCENARIO] [--deadline TIME]...

Dynamic voltage and frequency scaling (DVFS): runs a scenario without training for each governor and deadline.
"""

from pathlib import Path
from typing import Annotated

import seaborn
import typer

import edgesim
from edgesim.cli.main import run_script
from edgesim.reports.figures import PALETTE, figure, save

SCENARIO = Path(__file__).parents[1] / "scenarios" / "frequencies.toml"
GOVERNORS = ("max", "just_in_time", "energy_optimal")


def main(
    scenario: Annotated[Path, typer.Argument()] = SCENARIO,
    deadline: Annotated[list[str], typer.Option()] = ["1 s", "1.5 s", "2 s", "4 s"],  # noqa: B006
    out: Path = Path("dvfs_deadline"),
) -> None:
    """Print CSV, a row for each governor and deadline, and draw joules of a merged update and the share of late jobs.

    The joules are those above idle power, late jobs included: a late update costs energy and brings nothing.
    """
    blocks = range(len(edgesim.load(scenario).fleet))
    study = edgesim.study(
        scenario,
        axes={
            "governor": {name: {f"fleet.{block}.cpu.governor": name for block in blocks} for name in GOVERNORS},
            "protocol.deadline": deadline,
        },
        columns=["round_s", "active_j", "rounds.asked", "rounds.used", "rounds.late"],
        overrides={"backend": "null", "protocol": {"name": "deadline", "deadline": deadline[0]}},
    )
    result = study.run()
    table = result.frame()
    table["deadline_s"] = [run.manifest["scenario"]["protocol"]["deadline"] for run in result.runs.values()]
    table["late_share"] = table["rounds.late"] / table["rounds.asked"]
    table["joules_per_update"] = table["active_j"] / table["rounds.used"]  # inf where no update was in time
    shown = table[["governor", "deadline_s", "round_s", "late_share", "joules_per_update"]]
    print(shown.to_csv(index=False, float_format="%.6g"), end="")

    labels = {"joules_per_update": "J above idle of a merged update", "late_share": "share of late jobs"}
    with figure(6.8, 2.8) as drawn:
        for axis, (column, label) in zip(drawn.subplots(1, 2), labels.items(), strict=True):
            seaborn.lineplot(
                shown.replace(float("inf"), float("nan")), x="deadline_s", y=column, hue="governor", style="governor",
                markers=True, palette=PALETTE, ax=axis,
            )  # fmt: skip
            axis.set(xlabel="deadline (s)", ylabel=label, ylim=(0, None))
        for path in save(drawn, out):
            print(path)


if __name__ == "__main__":
    run_script(main)
