"""The command line: every command, in the groups that `edgesim --help` shows.

A command imports the modules that it needs when it runs, so that `edgesim table` never loads torch.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Annotated, Any

import typer

from edgesim.cli import decisions, figures, flower, import_trace, keep, look, parts, run, scenarios, study, watch
from edgesim.cli.options import with_groups

DECIDE = "Compare and decide"
RUN = "Run scenarios"
KEEP = "Keep, check and exchange results"
Commands = Mapping[str, Callable[..., None]]
PANELS: Mapping[str, Commands] = {
    RUN: {
        "new": scenarios.new, "run": run.run, "replay": run.replay, "validate": scenarios.validate,
        "show": scenarios.show, "estimate": scenarios.estimate, "watch": watch.watch,
    },
    "Look at runs": {
        "table": look.table, "plot": figures.plot, "trace": look.trace, "gantt": figures.gantt,
        "explain": look.explain, "energy": look.energy, "cost": look.cost, "devices": look.devices,
    },
    "Look up parts, devices and keys": {
        "list": parts.list_parts, "model": parts.model, "flops": parts.flops, "device": parts.device,
        "link": parts.link, "calibrate": parts.calibrate, "schema": parts.schema,
    },
    DECIDE: {"diff": look.diff, "report": decisions.report},
    KEEP: {"check": keep.check, "export": keep.export, "cache": keep.cache},
}  # fmt: skip
OF_STUDIES: Commands = {
    "plan": study.plan, "run": study.run, "optimise": study.optimise, "table": study.table,
    "plot": figures.plot_study, "compare": decisions.compare, "front": decisions.front, "cheapest": decisions.cheapest,
    "budget": decisions.budget, "theta": decisions.theta, "sensitivity": decisions.sensitivity,
    "break-even": decisions.break_even, "claims": decisions.claims,
}  # fmt: skip
OF_FLOWER: Commands = {"run": flower.run_app}
OF_TRACES: Commands = {
    "fedscale-capacity": import_trace.fedscale_capacity, "fedscale-behaviour": import_trace.fedscale_behaviour,
    "flash": import_trace.flash, "google-cluster": import_trace.google_cluster,
}  # fmt: skip


def _print_version(asked: bool) -> None:
    if asked:
        from importlib.metadata import version

        print(f"edgesim {version('edgesim')}")
        raise typer.Exit()


Version = Annotated[bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")]


@functools.cache
def command_line() -> typer.core.TyperGroup:
    """Return all commands with their groups."""

    def before_all(version: Version = False) -> None:
        pass

    app = typer.Typer(
        help="A discrete-event simulator of federated learning at the edge: real training, simulated time and energy.",
        pretty_exceptions_enable=False,
    )
    app.callback()(before_all)
    for panel, commands in PANELS.items():
        _add(app, commands, panel)
    studies = typer.Typer(help="Run a study, many scenarios with one question, and print its table.")
    traces = typer.Typer(help="Convert published traces to files that scenarios name.", no_args_is_help=True)
    apps = typer.Typer(help="Run Flower apps, unchanged, under the simulated clock.", no_args_is_help=True)
    _add(apps, OF_FLOWER)
    _add(studies, OF_STUDIES)
    _add(traces, OF_TRACES)
    app.add_typer(apps, name="flower", rich_help_panel=RUN)
    app.add_typer(studies, name="study", rich_help_panel=DECIDE)
    app.add_typer(traces, name="import-trace", rich_help_panel=KEEP)
    group = typer.main.get_command(app)
    assert isinstance(group, typer.core.TyperGroup)
    _flags_without_value(group)
    return group


def _flags_without_value(command: Any) -> None:
    """Give each flag an empty placeholder: newer versions of typer show <bool>, though a flag takes no value."""
    for parameter in command.get_params(typer.Context(command)):  # --help included
        if parameter.param_type_name == "option" and parameter.is_flag:
            parameter.metavar = ""
    if isinstance(command, typer.core.TyperGroup):
        for each in command.commands.values():
            _flags_without_value(each)


def _add(app: typer.Typer, commands: Commands, panel: str | None = None) -> None:
    for name, command in commands.items():
        paragraphs = (inspect.getdoc(command) or "").split("\n\n")  # newer versions of typer keep the breaks inside
        text = "\n\n".join(" ".join(each.split()) for each in paragraphs)
        app.command(name, rich_help_panel=panel, help=text)(with_groups(command))
