"""The command line. Commands are thin and import their code when called, so that `edgesim table` never loads torch."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Annotated

import typer

from edgesim.cli.checkpoint import Every, Fresh, seconds
from edgesim.cli.formats import AsCsv, AsJson, AsLatex, AsMarkdown, SortBy, one_of
from edgesim.cli.plugins import kinds, names_of_kind

# panels of `edgesim --help`
RUN = "Run scenarios"
LOOK = "Look at runs"
DECIDE = "Compare and decide"
DESCRIBE = "Look up parts, devices and keys"
KEEP = "Keep, check and exchange results"

app = typer.Typer(
    help="A discrete-event simulator of federated learning at the edge: real training, simulated time and energy.",
    pretty_exceptions_enable=False,
)

ScenarioFile = Annotated[Path, typer.Argument(metavar="SCENARIO", help="A scenario file (TOML).")]
Overrides = Annotated[
    list[str] | None, typer.Option("--set", metavar="K=V", help="Override a key of the scenario. Repeatable.")
]
OneRun = Annotated[Path, typer.Argument(metavar="RUN", help="A run folder.")]
InSession = Annotated[
    str | None, typer.Option("--session", metavar="NAME", help="The session to show, if the run has several.")
]
RoundNumber = Annotated[int, typer.Option("--round", min=1, help="The round to show, from 1.")]
Folders = Annotated[
    list[Path], typer.Argument(metavar="RUN...", help="Run folders, folders with run folders, or patterns.")
]


def _print_version(asked: bool) -> None:
    if asked:
        from importlib.metadata import version

        print(f"edgesim {version('edgesim')}")
        raise typer.Exit()


@app.callback()
def _before_all(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass


@app.command(rich_help_panel=RUN)
def new(
    name: Annotated[Path | None, typer.Argument(metavar="[NAME]", help="The folder to create.")] = None,
    template: Annotated[str, typer.Option(help="The template to copy. --list shows all.")] = "quickstart",
    show_list: Annotated[bool, typer.Option("--list", help="List the templates and create nothing.")] = False,
) -> None:
    """Create a folder with a scenario and a study that run as they are. Comments mark the numbers to change."""
    from edgesim.cli.new import print_templates, write_new
    from edgesim.core.errors import ConfigError

    if show_list:
        print_templates()
    elif name is None:
        raise ConfigError("new: needs the name of a folder, or --list")
    else:
        write_new(name, template)


@app.command(rich_help_panel=RUN)
def run(
    scenario: ScenarioFile,
    set_: Overrides = None,
    workers: Annotated[int | None, typer.Option(min=1, help="Number of worker processes for training.")] = None,
    out: Annotated[
        Path | None, typer.Option(help="Run folder. Default: runs/SCENARIO-METHOD-SEED and the changes by --set.")
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace a run that is in the run folder.")] = False,
    as_json: AsJson = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="Show no progress, and print only the run folder.")] = False,
    checkpoint: Every = None,
    fresh: Fresh = False,
    live: Annotated[
        bool, typer.Option("--live", help="Show fleet, jobs, accuracy and energy live on a terminal.")
    ] = False,
) -> None:
    """Run a scenario and write tables, weights and manifest to a run folder.

    Training results of earlier runs in the same place are reused.
    """
    from edgesim.execution.preload import warm_up_for

    warm_up_for(scenario, set_ or [], workers)
    from edgesim.cli.run import run_scenario

    run_scenario(scenario, set_ or [], workers, out, overwrite, as_json, quiet, seconds(checkpoint), fresh, live)


@app.command(rich_help_panel=RUN)
def replay(
    run: OneRun,
    set_: Overrides = None,
    out: Annotated[
        Path | None, typer.Option(help="Run folder. Default: beside RUN, named after the changes by --set.")
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace a run that is in the run folder.")] = False,
    fresh: Fresh = False,
    as_json: AsJson = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="Show no progress, and print only the run folder.")] = False,
) -> None:
    """Run a run again with other values, such as another network. Report what had to be retrained, and why."""
    from edgesim.cli.replay import replay_run

    replay_run(run, set_ or [], out, overwrite, fresh, as_json, quiet)


@app.command(rich_help_panel=RUN)
def validate(scenario: ScenarioFile, set_: Overrides = None) -> None:
    """Build a scenario without training. Warn about keys that have no effect or look like mistakes."""
    from edgesim.cli.scenario import checked, warn

    warnings = checked(scenario, set_ or [])[2]
    print(f"{scenario}: ok")
    warn(warnings)


@app.command(rich_help_panel=RUN)
def show(scenario: ScenarioFile, set_: Overrides = None, as_json: AsJson = False) -> None:
    """Show the effective values of a scenario and their origin. Warn as `validate` does."""
    from edgesim.cli.scenario import checked, print_scenario

    print_scenario(*checked(scenario, set_ or []), as_json)


@app.command(rich_help_panel=RUN)
def estimate(scenario: ScenarioFile, set_: Overrides = None, as_json: AsJson = False) -> None:
    """Estimate FLOPs, bytes, seconds and joules of the jobs of each device kind, and host resources."""
    from edgesim.cli.estimate import print_estimate
    from edgesim.config.load import load_scenario
    from edgesim.runs.estimate import estimate as estimate_scenario

    print_estimate(estimate_scenario(load_scenario(scenario, set_ or [])), as_json)


@app.command(rich_help_panel=LOOK)
def table(
    runs: Folders,
    as_csv: AsCsv = False,
    as_markdown: AsMarkdown = False,
    as_latex: AsLatex = False,
    as_json: AsJson = False,
    sort: SortBy = None,
) -> None:
    """Print the results of runs, and the cost of each target accuracy."""
    from edgesim.cli.table import print_runs_as

    print_runs_as(runs, one_of(csv=as_csv, markdown=as_markdown, latex=as_latex, json=as_json), sort)


@app.command(rich_help_panel=LOOK)
def plot(
    runs: Folders,
    kind: Annotated[
        str,
        typer.Option(metavar="KIND", help="accuracy, targets, pareto, energy, rounds, lorenz or topology."),
    ] = "accuracy",
    out: Annotated[
        Path | None, typer.Option(help="The file. Without an ending, a PNG and an SVG. Default: the kind.")
    ] = None,
    against: Annotated[
        str | None,
        typer.Option(
            "--x",
            metavar="AXES",
            help="One or more of time, energy, active, participants, bytes, rounds, ... Default: time,energy,rounds.",
        ),
    ] = None,
    formats: Annotated[
        str | None, typer.Option("--format", metavar="FORMATS", help="One or more of png, svg, pdf, with commas.")
    ] = None,
    width: Annotated[
        str | None, typer.Option(help="Width of the figure, such as 8.5cm, or single or double columns of a journal.")
    ] = None,
    labels: Annotated[
        str | None, typer.Option(metavar="A,B,...", help="Labels of the settings. Default: their differences.")
    ] = None,
    title: Annotated[str, typer.Option(help="Title above the figure.")] = "",
) -> None:
    """Plot runs: by default accuracy against time, energy and rounds, with mean and range over seeds."""
    from edgesim.cli.figures import plot as draw

    for path in draw(runs, kind, out, against, formats, width, labels, title):
        print(path)


@app.command(rich_help_panel=LOOK)
def trace(
    run: OneRun,
    out: Annotated[Path, typer.Option(help="The JSON file to write.")] = Path("trace.json"),
    rounds: Annotated[str | None, typer.Option(metavar="A:B", help="Show only these rounds, counted from 1.")] = None,
    devices: Annotated[int | None, typer.Option(min=1, help="Show only the N busiest devices.")] = None,
    session: InSession = None,
) -> None:
    """Write a run as a timeline for ui.perfetto.dev or chrome://tracing (trace-event format)."""
    from edgesim.cli.explain import parse_rounds
    from edgesim.cli.open_runs import one_session
    from edgesim.cli.out import check_file
    from edgesim.reports.timeline import write_trace

    check_file(out)
    print(write_trace(one_session(run, session), out, parse_rounds(rounds) if rounds else None, devices))


@app.command(rich_help_panel=LOOK)
def gantt(
    run: OneRun,
    number: RoundNumber,
    out: Annotated[Path, typer.Option(help="File name without ending. A PNG and an SVG are written.")] = Path("round"),
    session: InSession = None,
) -> None:
    """Draw a timeline of one round, with the devices that held it up."""
    from edgesim.cli.figures import gantt as draw

    for path in draw(run, number, out, session):
        print(path)


@app.command(rich_help_panel=LOOK)
def explain(run: OneRun, number: RoundNumber, session: InSession = None) -> None:
    """Explain the length of a round: its end, and the time spent in each step."""
    from edgesim.cli.open_runs import one_session
    from edgesim.reports.critical_path import explain as in_words

    print(in_words(one_session(run, session), number))


@app.command(rich_help_panel=LOOK)
def energy(
    run: OneRun,
    by: Annotated[
        str,
        typer.Option(
            metavar="KEYS", help="One or more of account, device, kind, component, activity, job, round, with commas."
        ),
    ] = "component,activity",
    as_json: AsJson = False,
    session: InSession = None,
) -> None:
    """Print the energy of devices, network and server: sums and shares of each account."""
    from edgesim.cli.energy import print_energy
    from edgesim.cli.open_runs import one_session

    print_energy(one_session(run, session), by, as_json)


@app.command(rich_help_panel=LOOK)
def cost(
    run: OneRun,
    by: Annotated[str, typer.Option(metavar="KEY", help="One of item, round, device, kind.")] = "item",
    as_json: AsJson = False,
    session: InSession = None,
) -> None:
    """Print the money and carbon that a run cost by the prices of its scenario: sums and shares."""
    from edgesim.cli.cost import print_cost
    from edgesim.cli.open_runs import one_session

    print_cost(one_session(run, session), by, as_json)


@app.command(rich_help_panel=LOOK)
def devices(
    run: OneRun,
    each: Annotated[bool, typer.Option("--each", help="Print a row for each device instead of each kind.")] = False,
    as_json: AsJson = False,
    session: InSession = None,
) -> None:
    """Print participation by device kind: jobs, late jobs, mean times, bytes and joules."""
    from edgesim.cli.devices import print_participation
    from edgesim.cli.open_runs import one_session

    print_participation(one_session(run, session), each, as_json)


@app.command("list", rich_help_panel=DESCRIBE)
def list_parts(
    kind: Annotated[
        str | None, typer.Argument(help="Only this kind, such as method or devices.", autocompletion=kinds)
    ] = None,
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="[NAME...]", help="Show every key of these parts.", autocompletion=names_of_kind),
    ] = None,
) -> None:
    """List the parts that scenarios can name. A name that ends with ":" is a family, as in torchvision:resnet18."""
    from edgesim.cli.plugins import print_parts

    print_parts(kind, names or [])


@app.command(rich_help_panel=DESCRIBE)
def model(
    name: Annotated[str, typer.Argument(metavar="MODEL", help="Name of a model, as in scenarios.")],
    shape: Annotated[
        str | None, typer.Option("--input", metavar="CxHxW", help="Input shape. Default: the model's own.")
    ] = None,
    classes: Annotated[int | None, typer.Option(min=2, help="Number of classes. Default: the model's own.")] = None,
    as_json: AsJson = False,
) -> None:
    """Show parameters and FLOPs of the layers of a model, and of training only its last layers."""
    from edgesim.cli import model as view
    from edgesim.cli import show

    found = view.measured(name, view.parse_shape(shape) if shape else None, classes)
    if as_json:
        show.print_json(view.describe(found))
    else:
        view.print_profile(found)


@app.command(rich_help_panel=DESCRIBE)
def device(
    name: Annotated[str, typer.Argument(help="Name of a device, or a profile file (.toml).")], as_json: AsJson = False
) -> None:
    """Show every number of a device of the catalogue with its source."""
    from edgesim.cli.device import print_device

    print_device(name, as_json)


@app.command(rich_help_panel=DESCRIBE)
def link(name: Annotated[str, typer.Argument(help="Name of a link, such as lte.")], as_json: AsJson = False) -> None:
    """Show every number of a link of the catalogue with its source."""
    from edgesim.cli.link import print_link

    print_link(name, as_json)


@app.command(rich_help_panel=DESCRIBE)
def calibrate(
    out: Annotated[Path | None, typer.Option(help="The profile file to write, NAME.toml.")] = None,
    models: Annotated[list[str] | None, typer.Option(help="A model to time. Repeatable. Default: all.")] = None,
    batch: Annotated[list[int] | None, typer.Option(help="A batch size. Repeatable. Default: 10 and 32.")] = None,
    seconds: Annotated[
        float, typer.Option(min=0, help="Seconds of measuring. Models without a measurement are named.")
    ] = 30.0,
    as_json: AsJson = False,
) -> None:
    """Measure the training speed of this host and write a device profile."""
    from edgesim.cli.calibrate import run as measure

    measure(models or [], batch or [10, 32], seconds, out, as_json)


@app.command(rich_help_panel=DESCRIBE)
def schema() -> None:
    """Print the JSON Schema of scenario files, for editors."""
    from edgesim.config.schema import json_schema

    print(json.dumps(json_schema(), indent=1, ensure_ascii=False, allow_nan=False))


def cache(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="A folder of runs.")] = Path("runs"),
    prune: Annotated[bool, typer.Option("--prune", help="Delete the cached results. Runs stay unchanged.")] = False,
    of_user: Annotated[
        bool,
        typer.Option("--user", help="Use the cache of all runs of this user: cost profiles and decoded data sets."),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Show or delete cached results that later runs reuse."""
    from edgesim.cli.cache import show_cache, show_user_cache

    if of_user:
        show_user_cache(prune, as_json)
    else:
        show_cache(folder, prune, as_json)


@functools.cache
def command_line() -> typer.core.TyperGroup:
    """Return all commands with their groups. They are added here, because loading a module only defines names."""
    from edgesim.cli.analysis_commands import add_to
    from edgesim.cli.ci_output import COMMANDS
    from edgesim.cli.import_trace import commands as trace_commands
    from edgesim.cli.report import report
    from edgesim.cli.study import commands as study_commands

    panels = {"watch": RUN, "diff": DECIDE}
    for command in (*COMMANDS, cache):
        app.command(rich_help_panel=panels.get(command.__name__, KEEP))(command)
    add_to(study_commands)
    app.command(rich_help_panel=DECIDE)(report)
    app.add_typer(study_commands, name="study", rich_help_panel=DECIDE)
    app.add_typer(trace_commands, name="import-trace", rich_help_panel=KEEP)
    group = typer.main.get_command(app)
    assert isinstance(group, typer.core.TyperGroup)
    return group
