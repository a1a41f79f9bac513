"""The command line. Commands are thin, and import what they need when called: `edgesim table` never loads torch."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from edgesim.cli.checkpoint import Every, Fresh, seconds
from edgesim.cli.formats import AsCsv, AsJson, AsLatex, AsMarkdown, SortBy, one_of
from edgesim.cli.plugins import kinds, names_of_kind

if TYPE_CHECKING:
    from edgesim.config.scenario import Scenario

app = typer.Typer(
    help="A discrete-event simulator of federated learning at the edge: real training, simulated time and energy.",
    pretty_exceptions_enable=False,
)

ScenarioFile = Annotated[Path, typer.Argument(metavar="SCENARIO", help="A scenario file (TOML).")]
Overrides = Annotated[
    list[str] | None, typer.Option("--set", metavar="K=V", help="Override a key of the scenario; may be repeated.")
]
OneRun = Annotated[Path, typer.Argument(metavar="RUN", help="A run folder.")]
InSession = Annotated[str | None, typer.Option("--session", metavar="NAME", help="Which session, of a run of several.")]
RoundNumber = Annotated[int, typer.Option("--round", min=1, help="Which round, 1 for the first.")]
Folders = Annotated[list[Path], typer.Argument(metavar="RUN...", help="Run folders, folders of them, or patterns.")]


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


@app.command()
def new(
    name: Annotated[
        Path | None, typer.Argument(metavar="[NAME]", help="The folder to make, with a scenario and a study.")
    ] = None,
    template: Annotated[str, typer.Option(help="What it starts from; --list shows them.")] = "quickstart",
    show_list: Annotated[bool, typer.Option("--list", help="Show the templates and make nothing.")] = False,
) -> None:
    """Make a folder with a scenario and a study that run at once, and say in comments which numbers are to change."""
    from edgesim.cli.new import print_templates, write_new
    from edgesim.core.errors import ConfigError

    if show_list:
        print_templates()
    elif name is None:
        raise ConfigError("new: needs the name of a folder, or --list")
    else:
        write_new(name, template)


@app.command()
def run(
    scenario: ScenarioFile,
    set_: Overrides = None,
    workers: Annotated[int | None, typer.Option(min=1, help="Train on this many worker processes.")] = None,
    out: Annotated[
        Path | None, typer.Option(help="Run folder; default runs/SCENARIO-METHOD-SEED and what --set changes.")
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace a run that is in the run folder.")] = False,
    as_json: AsJson = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="Show no progress, and print only the run folder.")] = False,
    checkpoint: Every = None,
    fresh: Fresh = False,
    live: Annotated[
        bool, typer.Option("--live", help="Show fleet, jobs, accuracy and energy as it goes, on a terminal.")
    ] = False,
) -> None:
    """Run a scenario and keep its tables, weights and manifest in a run folder.

    What runs in the same place have trained before is not trained again.
    """
    from edgesim.execution.preload import warm_up_for

    warm_up_for(scenario, set_ or [], workers)
    from edgesim.cli.run import run_scenario

    run_scenario(scenario, set_ or [], workers, out, overwrite, as_json, quiet, seconds(checkpoint), fresh, live)


@app.command()
def replay(
    run: OneRun,
    set_: Overrides = None,
    out: Annotated[Path | None, typer.Option(help="Run folder; default beside RUN, with what --set changes.")] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace a run that is in the run folder.")] = False,
    fresh: Fresh = False,
    as_json: AsJson = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="Show no progress, and print only the run folder.")] = False,
) -> None:
    """Run again with other values, such as another network; say what had to be trained for it, and why."""
    from edgesim.cli.replay import replay_run

    replay_run(run, set_ or [], out, overwrite, fresh, as_json, quiet)


@app.command()
def cache(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="A folder of runs.")] = Path("runs"),
    prune: Annotated[bool, typer.Option("--prune", help="Remove it; runs stay as they are.")] = False,
    of_user: Annotated[
        bool, typer.Option("--user", help="Of all runs of this user: cost profiles and decoded data sets.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Show what runs keep for those after them: the answers and models of a folder, or what all runs share."""
    from edgesim.cli.cache import show_cache, show_user_cache

    if of_user:
        show_user_cache(prune, as_json)
    else:
        show_cache(folder, prune, as_json)


@app.command()
def validate(scenario: ScenarioFile, set_: Overrides = None) -> None:
    """Check a scenario: build everything it names, train nothing; warn of what has no effect or is hardly meant."""
    from edgesim.cli.scenario import checked, warn

    warnings = checked(scenario, set_ or [])[2]
    print(f"{scenario}: ok")
    warn(warnings)


@app.command()
def show(scenario: ScenarioFile, set_: Overrides = None, as_json: AsJson = False) -> None:
    """Show the values of a scenario that are in effect, each with where it comes from; warn as `validate` does."""
    from edgesim.cli.scenario import checked, print_scenario

    print_scenario(*checked(scenario, set_ or []), as_json)


@app.command()
def estimate(scenario: ScenarioFile, set_: Overrides = None, as_json: AsJson = False) -> None:
    """Say what a scenario will cost: FLOPs, bytes, seconds and joules of each kind's jobs, and host resources."""
    from edgesim.cli.estimate import print_estimate
    from edgesim.runs.estimate import estimate as estimate_scenario

    print_estimate(estimate_scenario(_load(scenario, set_)), as_json)


@app.command()
def schema() -> None:
    """Print the JSON Schema of scenario files, for editors."""
    from edgesim.config.schema import json_schema

    print(json.dumps(json_schema(), indent=1, ensure_ascii=False, allow_nan=False))


@app.command("list")
def list_parts(
    kind: Annotated[
        str | None, typer.Argument(help="One kind only, such as method or devices.", autocompletion=kinds)
    ] = None,
    names: Annotated[
        list[str] | None, typer.Argument(metavar="[NAME...]", help="Every key of these.", autocompletion=names_of_kind)
    ] = None,
) -> None:
    """List the parts that scenarios can name; a name that ends with ":" is a family, as in torchvision:resnet18."""
    from edgesim.cli.plugins import print_parts

    print_parts(kind, names or [])


@app.command()
def model(
    name: Annotated[str, typer.Argument(metavar="MODEL", help="A model's name, as in scenarios.")],
    shape: Annotated[str | None, typer.Option("--input", metavar="CxHxW", help="Default: the model's own.")] = None,
    classes: Annotated[int | None, typer.Option(min=2, help="Default: the model's own.")] = None,
    as_json: AsJson = False,
) -> None:
    """Show the parameters and FLOPs of a model's layers, and of training only its last layers."""
    from edgesim.cli import model as view
    from edgesim.cli import show

    found = view.measured(name, view.parse_shape(shape) if shape else None, classes)
    if as_json:
        show.print_json(view.describe(found))
    else:
        view.print_profile(found)


@app.command()
def table(
    runs: Folders,
    as_csv: AsCsv = False,
    as_markdown: AsMarkdown = False,
    as_latex: AsLatex = False,
    as_json: AsJson = False,
    sort: SortBy = None,
) -> None:
    """Print what runs reached, and what each target accuracy took."""
    from edgesim.cli.table import print_runs_as

    print_runs_as(runs, one_of(csv=as_csv, markdown=as_markdown, latex=as_latex, json=as_json), sort)


@app.command()
def plot(
    runs: Folders,
    kind: Annotated[
        str,
        typer.Option(metavar="KIND", help="accuracy, or targets, pareto, energy, rounds, lorenz, topology."),
    ] = "accuracy",
    out: Annotated[
        Path | None, typer.Option(help="The file; without an ending, a PNG and an SVG; default: the kind.")
    ] = None,
    against: Annotated[
        str | None,
        typer.Option(
            "--x",
            metavar="AXES",
            help="Of time, energy, active, participants, bytes, rounds, ...; with commas. Default: time,energy,rounds.",
        ),
    ] = None,
    formats: Annotated[
        str | None, typer.Option("--format", metavar="FORMATS", help="Of png, svg, pdf; with commas.")
    ] = None,
    width: Annotated[
        str | None, typer.Option(help="Of the whole figure, such as 8.5cm, or single or double, columns of a journal.")
    ] = None,
    labels: Annotated[str | None, typer.Option(metavar="A,B,...", help="Instead of what settings differ in.")] = None,
    title: Annotated[str, typer.Option(help="Above the figure.")] = "",
) -> None:
    """Draw runs, by default their accuracy against time, energy and rounds: of several seeds mean and range."""
    from edgesim.cli.figures import plot as draw

    for path in draw(runs, kind, out, against, formats, width, labels, title):
        print(path)


@app.command()
def trace(
    run: OneRun,
    out: Annotated[Path, typer.Option(help="The JSON file to write.")] = Path("trace.json"),
    rounds: Annotated[str | None, typer.Option(metavar="A:B", help="Only these rounds, counted from 1.")] = None,
    devices: Annotated[int | None, typer.Option(min=1, help="Only so many devices: those longest at work.")] = None,
    session: InSession = None,
) -> None:
    """Write a run as a timeline for ui.perfetto.dev or chrome://tracing (trace-event format)."""
    from edgesim.cli.explain import parse_rounds
    from edgesim.cli.open_runs import one_session
    from edgesim.cli.out import check_file
    from edgesim.reports.timeline import write_trace

    check_file(out)
    print(write_trace(one_session(run, session), out, parse_rounds(rounds) if rounds else None, devices))


@app.command()
def gantt(
    run: OneRun,
    number: RoundNumber,
    out: Annotated[Path, typer.Option(help="File name without its ending; a PNG and an SVG are written.")] = Path(
        "round"
    ),
    session: InSession = None,
) -> None:
    """Draw one round: what each device did when, and who was waited for."""
    from edgesim.cli.figures import gantt as draw

    for path in draw(run, number, out, session):
        print(path)


@app.command()
def explain(run: OneRun, number: RoundNumber, session: InSession = None) -> None:
    """Say why a round took as long as it did: what ended it, and where its seconds went."""
    from edgesim.cli.open_runs import one_session
    from edgesim.reports.critical_path import explain as in_words

    print(in_words(one_session(run, session), number))


@app.command()
def energy(
    run: OneRun,
    by: Annotated[
        str,
        typer.Option(metavar="KEYS", help="Of account, device, kind, component, activity, job, round; with commas."),
    ] = "component,activity",
    as_json: AsJson = False,
    session: InSession = None,
) -> None:
    """Say what joules of devices, network and server were spent on: sums, and shares of each account."""
    from edgesim.cli.energy import print_energy
    from edgesim.cli.open_runs import one_session

    print_energy(one_session(run, session), by, as_json)


@app.command()
def cost(
    run: OneRun,
    by: Annotated[str, typer.Option(metavar="KEY", help="Of item, round, device, kind: one.")] = "item",
    as_json: AsJson = False,
    session: InSession = None,
) -> None:
    """Say what a run cost in money and carbon, by the scenario's prices: sums and shares."""
    from edgesim.cli.cost import print_cost
    from edgesim.cli.open_runs import one_session

    print_cost(one_session(run, session), by, as_json)


@app.command()
def devices(
    run: OneRun,
    each: Annotated[bool, typer.Option("--each", help="A row for each device instead of each kind.")] = False,
    as_json: AsJson = False,
    session: InSession = None,
) -> None:
    """Say who took part in a run: jobs, how many were late, mean times, bytes and joules of each kind of device."""
    from edgesim.cli.devices import print_participation
    from edgesim.cli.open_runs import one_session

    print_participation(one_session(run, session), each, as_json)


@app.command()
def device(
    name: Annotated[str, typer.Argument(help="A device, or a profile file (.toml).")], as_json: AsJson = False
) -> None:
    """Show every number of a device of the catalogue with its source."""
    from edgesim.cli.device import print_device

    print_device(name, as_json)


@app.command()
def link(name: Annotated[str, typer.Argument(help="A named link, such as lte.")], as_json: AsJson = False) -> None:
    """Show every number of a link of the catalogue with its source."""
    from edgesim.cli.link import print_link

    print_link(name, as_json)


@app.command()
def calibrate(
    out: Annotated[Path | None, typer.Option(help="Profile file to write, NAME.toml.")] = None,
    models: Annotated[list[str] | None, typer.Option(help="A model; may be repeated. Default: all.")] = None,
    batch: Annotated[list[int] | None, typer.Option(help="A batch size; may be repeated. Default: 10 and 32.")] = None,
    seconds: Annotated[float, typer.Option(min=0, help="How long to measure; models left over are named.")] = 30.0,
    as_json: AsJson = False,
) -> None:
    """Measure the training speed of this host and write a device profile."""
    from edgesim.cli.calibrate import run as measure

    measure(models or [], batch or [10, 32], seconds, out, as_json)


@functools.cache
def command_line() -> typer.core.TyperGroup:
    """Return all commands, with those of groups; added here, as a module only defines names when it is loaded."""
    from edgesim.cli.analysis_commands import add_to
    from edgesim.cli.ci_output import COMMANDS
    from edgesim.cli.import_trace import commands as trace_commands
    from edgesim.cli.report import report
    from edgesim.cli.study import commands as study_commands

    for command in COMMANDS:
        app.command()(command)
    add_to(study_commands)
    app.command()(report)
    app.add_typer(study_commands, name="study")
    app.add_typer(trace_commands, name="import-trace")
    group = typer.main.get_command(app)
    assert isinstance(group, typer.core.TyperGroup)
    return group


def _load(scenario: Path, overrides: list[str] | None) -> Scenario:
    from edgesim.config.load import load_scenario

    return load_scenario(scenario, overrides or [])
