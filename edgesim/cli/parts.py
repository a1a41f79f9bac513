"""Commands that look up what scenarios can name, from `list` to `schema`."""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from edgesim.cli.options import AsJson, check_file, write_text
from edgesim.cli.printing import GridColumn, print_grid, print_json, print_note, print_prose, print_table
from edgesim.config.plugins import PACKAGES, meant, places_of
from edgesim.core.errors import ConfigError
from edgesim.files.reading import quoted
from edgesim.reports.format import text

if TYPE_CHECKING:
    from edgesim.config.device_profiles import Profile
    from edgesim.config.link_profiles import LinkProfile
    from edgesim.core.price_list import CostProfile

_DEVICES, _LINKS = "devices", "links"  # kinds from the catalogues
_ASKED = 'A block has a battery if it asks for one: battery = "rechargeable", or { charge = "5 W", windows = [...] }.'
_SHOWN = ("memory", "idle", "busy", "battery", "up", "down")  # quantities of a device
_REMEDY = "give --input and --classes, such as --input 3x32x32 --classes 10"
_IDLE_S = 10.0  # before timing, to see the idle power
_LAYER = ("name", "kind", "params", "forward_flops", "weight_grad_flops", "input_grad_flops")


def kinds() -> list[str]:
    """Return the kinds of parts, for shell completion."""
    return [*PACKAGES, _DEVICES, _LINKS]


def names_of_kind(context: typer.Context) -> list[str]:
    """Return the names of the kind on the command line, for shell completion."""
    kind = context.params.get("kind")
    return list(places_of(kind)) if kind in PACKAGES else []


def list_parts(
    kind: Annotated[
        str | None,
        typer.Argument(metavar="KIND", help="Only this kind, such as method or devices.", autocompletion=kinds),
    ] = None,
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="NAME...", help="Show every key of these parts.", autocompletion=names_of_kind),
    ] = None,
) -> None:
    """List the parts that scenarios can name. A name that ends with ":" is a family, as in torchvision:resnet18."""
    wanted = None if kind is None else kind_of(kind)
    catalogues = {_DEVICES: (device, print_devices), _LINKS: (link, print_links)}
    if wanted in catalogues:
        one, every = catalogues[wanted]
        for name in names or ():
            one(name)
        if not names:
            every()
    elif wanted and names:
        for name in names:
            print_part(wanted, name)
    else:
        for each in [wanted] if wanted else PACKAGES:
            places = places_of(each)
            summaries = [place.summary for place in places.values()]
            print_grid([GridColumn(each, list(places)), GridColumn("what it is", summaries)])


def kind_of(word: str) -> str:
    """Return the kind of part for a word in singular or plural. Raises ConfigError that offers the nearest."""
    forms: dict[str, str] = {}
    for kind in kinds():
        plural = f"{kind[:-1]}ies" if kind.endswith("y") else f"{kind}s"
        forms |= dict.fromkeys((kind, kind[:-1] if kind.endswith("s") else plural), kind)
    if word.lower() not in forms:
        hint = meant(word.lower(), forms) or f" (known: {', '.join(kinds())})"
        raise ConfigError(f"unknown kind {quoted(word)}{hint}")
    return forms[word.lower()]


def print_part(kind: str, name: str) -> None:
    """Print a part: its description, source and example, and a row for each of its keys."""
    from edgesim.config.describe import describe as described

    found = described(kind, name)
    print_prose(f"{kind} {name}: {found.what}\n\n")
    if found.source:
        print_prose(f"Source: {found.source}\n\n")
    print(f"{found.example}\n")
    if found.keys:
        headings = ("key", "default", "unit", "type", "example", "meaning")
        rows = list(map(asdict, found.keys))
        print_grid([GridColumn(head, [row[head] for row in rows]) for head in headings])
        for key in found.keys:
            if key.background:
                print_prose(f"{key.key}: {key.background}")
        print()
    else:
        print("It has no keys.\n")


def schema() -> None:
    """Print the JSON Schema of scenario files, for editors."""
    from edgesim.config.schema import json_schema

    print(json.dumps(json_schema(), indent=1, ensure_ascii=False, allow_nan=False))


# --- the catalogues of devices and links -------------------------------------------------------------------------


def device(
    name: Annotated[str, typer.Argument(metavar="DEVICE", help="Name of a device, or a profile file (.toml).")],
    as_json: AsJson = False,
) -> None:
    """Show every number of a device of the catalogue with its source."""
    from edgesim.config.device_profiles import find

    profile = find(name)
    _print_quantities(profile, as_json)
    if "battery" in profile.quantities and not as_json:
        print_prose(_ASKED)


def link(
    name: Annotated[str, typer.Argument(metavar="LINK", help="Name of a link, such as lte.")], as_json: AsJson = False
) -> None:
    """Show every number of a link of the catalogue with its source."""
    from edgesim.config.link_profiles import find

    _print_quantities(find(name), as_json)


def print_devices() -> None:
    """Print the catalogue of devices: name, trust, 90 % interval of seconds, speed, memory, powers, battery, link."""
    from edgesim.config import device_profiles
    from edgesim.core.work import interval_factor

    rows = []
    for profile in device_profiles.all():
        speed = f"{text('flops', profile.flops_per_s)}/s"
        interval = f"x/: {interval_factor(profile.spread):.2g}"
        row = {"device": profile.name, "what it is": profile.title, "trust": profile.trust, "seconds": interval}
        rows.append(row | {"attained": speed} | _texts(profile, _SHOWN))
    print_table(rows, {heading: heading for heading in rows[0]})
    print_prose(_ASKED)


def print_links() -> None:
    """Print the catalogue of links: name, rates, latency, jitter, loss and energy of each."""
    from edgesim.config import link_profiles

    rows = [
        {"link": each.name, "what it is": each.title} | _texts(each, link_profiles.QUANTITIES)
        for each in link_profiles.all()
    ]
    print_table(rows, {heading: heading.replace("_", " ") for heading in rows[0]})


def describe(entry: Profile | LinkProfile) -> dict[str, Any]:
    """Return an entry of a catalogue as plain values: title, trust and speed of a device, and quantities by name.

    A quantity has a value with its unit, an SI number, year, source, and `estimate`: the derivation of a number that
    the source does not give.
    """
    from edgesim.config.device_profiles import Profile

    speed = {"trust": entry.trust, "flops_per_s": entry.flops_per_s} if isinstance(entry, Profile) else {}
    quantities = {
        key: {
            "value": str(quantity.text),
            "si": entry.si[key],
            "year": str(quantity.year),
            "source": quantity.source,
            "estimate": quantity.derived,
        }
        for key, quantity in entry.quantities.items()
    }
    return {"title": entry.title, **speed, "quantities": quantities}


def _texts(entry: Profile | LinkProfile, keys: Iterable[str]) -> dict[str, Any]:
    return {key: entry.quantities[key].text if key in entry.quantities else None for key in keys}


def _print_quantities(entry: Profile | LinkProfile, as_json: bool) -> None:
    described = describe(entry)
    if as_json:
        print_json(described)
        return
    rows = [{"quantity": key, **row} for key, row in described["quantities"].items()]
    headings = ("quantity", "value", "year", "source", "estimate")
    trust = f" ({described['trust']})" if "trust" in described else ""
    print_table(rows, {heading: heading for heading in headings}, f"{entry.name}: {entry.title}{trust}")


# --- models ------------------------------------------------------------------------------------------------------


def model(
    name: Annotated[str, typer.Argument(metavar="MODEL", help="A model, as in scenarios: its name, or a table.")],
    shape: Annotated[
        str | None, typer.Option("--input", metavar="CxHxW", help="Input shape. Default: the model's own.")
    ] = None,
    classes: Annotated[int | None, typer.Option(min=2, help="Number of classes. Default: the model's own.")] = None,
    as_json: AsJson = False,
) -> None:
    """Show parameters and FLOPs of the layers of a model, and of training only its last layers."""
    facts = numbers_of(measured(name, _sizes(shape), classes))
    if as_json:
        print_json(facts)
        return

    def print_whole(rows: Sequence[dict[str, Any]], title: str) -> None:
        """Print numbers as text, so that FLOPs stay plain integers to compare with a paper digit by digit."""
        texts = [{key: str(value) for key, value in row.items()} for row in rows]
        print_table(texts, {key: key for key in rows[0]}, title)

    title = f"{facts['model']}: {facts['params']} parameters, {facts['forward_flops']} FLOPs forward per sample"
    if facts["base"]:
        title += f", {facts['model_bytes']} bytes that are sent"
        title += f", base: {facts['base']} frozen parameters, {facts['base_bytes']} bytes, not sent"
    if facts["step_flops"]:
        title += f", {facts['step_flops']} a training step whatever its batch"
    print_whole(facts["layers"], title)
    print_whole(facts["suffixes"], "training FLOPs per sample if only the last layers are trained")
    coverage = facts["coverage"] | {"left_at_zero": ", ".join(facts["coverage"]["left_at_zero"]) or "nothing"}
    print_whole([coverage], "training FLOPs per sample; the default cost charges those counted, include = 'all' both")
    groups = facts["groups"] or [{"group": "none: the network cannot be thinned", "channels": "-"}]
    print_whole(groups, "units that can be left out")


def _sizes(shape: str | None) -> tuple[int, ...] | None:
    if shape and not re.fullmatch(r"[1-9]\d*(x[1-9]\d*)*", shape):
        raise ConfigError(f"--input: {shape!r} is not a shape; write for example 3x32x32")
    return tuple(int(size) for size in shape.split("x")) if shape else None


def flops(
    name: Annotated[
        str,
        typer.Argument(
            metavar="MODULE",
            help='A model, as in scenarios: torchvision:resnet50, my_file:MyNet, or { name = "hf", config = "gpt2" }.',
        ),
    ],
    shape: Annotated[
        str | None, typer.Option("--input", metavar="CxHxW", help="Input shape. Default: the model's own.")
    ] = None,
    train: Annotated[
        str | None, typer.Option(metavar="LAYERS", help="Layers or modules to train, as in layer4,fc. Default: all.")
    ] = None,
    batch: Annotated[int, typer.Option(min=1, help="Samples of a step.")] = 1,
    classes: Annotated[int | None, typer.Option(min=2, help="Number of classes. Default: the model's own.")] = None,
    as_json: AsJson = False,
) -> None:
    """Show FLOPs, work by kind, memory and seconds on every catalogue device of a training step of any network."""
    from edgesim.config import device_profiles
    from edgesim.config.plugin_fields import Foreign
    from edgesim.core.work import KINDS
    from edgesim.cost import of_users, step_cost
    from edgesim.runs.network import model_named

    sizes, plugin = _sizes(shape), model_named(name).value
    chosen = None if train is None else [layer.strip() for layer in train.split(",")]
    if isinstance(plugin, Foreign) and sizes and classes is None:  # which is asked, not told, how many outputs it has
        of = of_users(plugin, sizes, chosen, batch)
    else:
        of = step_cost(measured(name, sizes, classes, kinds=True), chosen, batch)
    devices = [
        {"device": each.name, "seconds": of.seconds(each.name), "trust": each.trust} for each in device_profiles.all()
    ]
    facts = {
        "model": of.profile.model,
        "input": list(of.profile.input_shape),
        "batch": batch,
        "trained": list(of.trained),
        "params": of.profile.params,
        "trained_params": of.trained_params,
        "forward_flops": _whole(of.forward_flops),
        "train_flops": _whole(of.train_flops),
        "work": {kind: _whole(amount) for kind, amount in of.work.items()},
        "memory_bytes": {**of.memory._asdict(), "total": of.memory.total},
        "devices": devices,
    }
    if as_json:
        print_json(facts)
        return
    size = "x".join(map(str, of.profile.input_shape))
    title = f"{of.profile.model}, input {size}: {of.profile.params} parameters, {of.trained_params} of them trained"
    per_sample = {"forward": facts["forward_flops"], "training": facts["train_flops"]}
    print_table(
        [{"pass": key, "FLOPs": str(value)} for key, value in per_sample.items()],
        {"pass": "pass", "FLOPs": "FLOPs per sample"},
        title,
    )
    work = [{"kind": kind, "amount": str(_whole(of.work[kind])), "meaning": KINDS[kind]} for kind in of.work]
    print_table(work, {key: key for key in work[0]}, f"work of a step on {batch} samples")
    memory = [{"part": part, "bytes": str(nbytes)} for part, nbytes in facts["memory_bytes"].items()]
    print_table(memory, {key: key for key in memory[0]}, "memory at the peak of the step, with SGD")
    rows = [{**each, "seconds": f"{each['seconds']:.3g}"} for each in devices]
    print_table(rows, {key: key for key in rows[0]}, "seconds of the step")


def measured(name: str, shape: tuple[int, ...] | None, classes: int | None, kinds: bool = False) -> CostProfile:
    """Return the cost profile of a model by its name in scenarios; shape and classes default to the model's own.

    `kinds`: with the kinds of work beside FLOPs. Raises ConfigError if there is no such model or it does not fit.
    """
    from edgesim.core.rng import Key
    from edgesim.runs.network import model_named, network_of

    return network_of(
        model_named(name), shape, classes, Key(0), remedy=_REMEDY, kinds=kinds, weights=False
    ).cost_profile


def numbers_of(cost_profile: CostProfile) -> dict[str, Any]:
    """Return a cost profile as plain numbers, per sample except `step_flops`, which is per training step.

    Keys: model, params, model_bytes of what is sent, base and base_bytes of the frozen parameters, forward_flops,
    step_flops, layers (in forward order), suffixes: the training FLOPs if only the last 1, 2, ... all layers are
    trained and those before them are frozen; coverage: training FLOPs that PyTorch counts, those by formula, and
    operations that have neither; groups: the units that can be left out.
    """
    layers = [{key: _whole(own[key]) for key in _LAYER} for own in map(asdict, cost_profile.layers)]
    suffixes = [
        {
            "trained_layers": count,
            "first_trained": cost_profile.layer_names[-count],
            "train_flops": _whole(cost_profile.train_flops(cost_profile.before_last(count))),
        }
        for count in range(1, len(cost_profile.layers) + 1)
    ]
    return {
        "model": cost_profile.model,
        "params": cost_profile.params,
        "model_bytes": cost_profile.sizes.nbytes,
        "base": cost_profile.base,
        "base_bytes": cost_profile.base_bytes,
        "forward_flops": _whole(cost_profile.forward_flops()),
        "step_flops": _whole(cost_profile.step_flops()),
        "layers": layers,
        "suffixes": suffixes,
        "coverage": {key: _whole(value) for key, value in cost_profile.coverage._asdict().items()},
        "groups": [{"group": group.name, "channels": group.size} for group in cost_profile.groups],
    }


def _whole(value: Any) -> Any:
    return int(value) if isinstance(value, float) else value


# --- this host ---------------------------------------------------------------------------------------------------


def calibrate(
    out: Annotated[Path | None, typer.Option(help="The profile file to write, NAME.toml.")] = None,
    models: Annotated[
        list[str] | None,
        typer.Option(
            metavar="MODEL[@CxHxW]",
            help="A network to time, with the shape of its inputs. Repeatable. Default: eight networks that show all "
            "kinds of work.",
        ),
    ] = None,
    batch: Annotated[list[int] | None, typer.Option(help="A batch size. Repeatable. Default: 4 and 16.")] = None,
    seconds: Annotated[
        float | None,
        typer.Option(
            min=0, help="Seconds of measuring. Networks without a measurement are named. Default: 240, 60 with --quick."
        ),
    ] = None,
    threads: Annotated[int, typer.Option(min=1, help="Threads that train.")] = 1,
    quick: Annotated[bool, typer.Option("--quick", help="Time three networks and scale an existing profile.")] = False,
    base: Annotated[
        str | None,
        typer.Option(
            metavar="PROFILE", help="The profile to scale. Default with --quick: the one that fits the steps best."
        ),
    ] = None,
    power: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Fit watts that a meter writes meanwhile: CSV, or tegrastats of a Jetson."),
    ] = None,
    share: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write steps and profile as CSV, for the catalogue.")
    ] = None,
    cpu_time: Annotated[
        bool, typer.Option("--cpu-time", help="Count CPU seconds of one thread, where other processes compute.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Measure the training speed of this host and write a device profile."""
    from edgesim.config.device_profiles import find, to_toml
    from edgesim.runs import calibrate as measuring
    from edgesim.runs import power_log

    seconds = (60.0 if quick else 240.0) if seconds is None else seconds
    if not math.isfinite(seconds):
        raise ConfigError(f"--seconds: must be finite, got {seconds}")
    if cpu_time and threads > 1:
        raise ConfigError(f"--cpu-time: counts one thread, got --threads {threads}")
    if out is not None:
        if out.suffix != ".toml":
            raise ConfigError(f"--out: {out} must end with .toml, so that scenarios can name it as a profile")
        check_file(out)
    if share is not None:
        check_file(share, "--share")
    scaled = None if base is None else find(base)
    if scaled is not None:
        measuring.terms_of(scaled)  # refuses a profile without terms before it times
    clocks = measuring.CPU_CLOCKS if cpu_time else measuring.CLOCKS
    idle = None
    if power is not None:
        power_log.read_power_log(power)
        print_note(f"this host stays idle for {_IDLE_S:g} s, to measure its power")
        idle = measuring.rest(_IDLE_S)
    networks = models or (measuring.QUICK if quick else measuring.NETWORKS)
    timed = measuring.time_steps(networks, batch or measuring.BATCHES, seconds, threads, clocks, print_note)
    if timed.waiting > measuring.MOST_WAITING:
        print_note(
            f"warning: steps took {timed.waiting:.2g} times their CPU seconds, because other processes compute; "
            "measure again when this host is idle, or with --cpu-time"
        )
    if quick and scaled is None:
        scaled = measuring.nearest_base(timed.timings)
    found = measuring.calibrate(timed.timings, measuring.peak_rate(threads, clocks.wall), scaled)
    powers = None
    if power is not None and idle is not None:
        share_of_cores = threads / (os.cpu_count() or threads)
        powers = power_log.powers_of(power_log.read_power_log(power), idle, timed.span, share_of_cores)
    title = f"This host, {'one thread' if threads == 1 else f'{threads} threads'}"
    profile = found.profile(out.stem if out else "host", title, date.today().year, powers and powers.quantities)
    rows = [
        {
            "network": each.network,
            "batch": str(each.batch),
            "measured": f"{each.seconds * 1e3:.3f} ms",
            "predicted": f"{left_out_s * 1e3:.3f} ms",
            "error": f"{error:+.1%}",
        }
        for each, left_out_s, error in zip(found.timings, found.left_out_s, found.errors, strict=True)
    ]
    mean, low, high = abs(found.errors).mean(), 1.0 + found.errors.min(), 1.0 + found.errors.max()
    if as_json:
        summary = {"left_out_ratio": [low, high], "mean_error": mean, "base": found.base, "residuals": rows}
        print_json({"profile": describe(profile), **summary, "powers": powers and powers._asdict()})
    else:
        print_table(rows, {name: name for name in rows[0]}, "one SGD step, predicted by a fit without the network")
        print(
            f"networks left out: mean error {mean:.0%}, predictions {low:.2f} to {high:.2f} times the measured seconds"
        )
        print("Networks of another kind may be further off: time your own where seconds matter.")
        if found.base:
            print(f"scaled from {found.base}")
        if powers is not None:
            line = f"{powers.idle_w:.3g} W + {powers.slope_w:.3g} W x utilisation"
            print(f"power: {line}; training kept {powers.busy_utilisation:.0%} of the cores busy")
        quantities = [{"quantity": key, "value": str(q.text)} for key, q in profile.quantities.items()]
        print_table(quantities, {"quantity": "quantity", "value": "value"}, profile.title)
    if out:
        write_text(out, to_toml(profile))
        print_note(f"profile: {out}")
    if share:
        write_text(share, measuring.contribution(found.timings, profile), "--share")
        print_note(f"steps and profile for the catalogue: {share}")
