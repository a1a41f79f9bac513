"""The page of the documentation about public Flower apps."""

from __future__ import annotations

from collections.abc import Mapping
from math import isfinite
from typing import Any

from tests.outside.flower_apps.listing import APPS, PLAIN, REPOSITORY, REVISION, PublicApp

Row = Mapping[str, Any]

HEAD = """# Public Flower apps that run unmodified

`python -m tests.outside.flower_apps CHECKOUT WORK --write docs/reference/flower_apps.md` wrote this page. It
ran {count} examples and baselines of [{repository}](https://github.com/{repository}) at revision `{revision}`
with `edgesim flower run`, with flwr {flwr} and torch {torch}. No file of an app was changed. {ran} of them ran
to their end, and {equal} were equal to Flower's own simulation in every array and metric.

## Set-up

- **Fleet**: the given number of devices, half Raspberry Pi 4 and half Raspberry Pi 5, at the
  108 and 186 Mbit/s of their profiles, without latency.
- **Data**: the apps ask the Hugging Face Hub for data sets by name. The tests have no network, so the script
  writes data sets of the same names and columns into Hugging Face's cache folder
  (`tests/outside/flower_apps/stand_ins.py`). CIFAR-10, MNIST and FashionMNIST are the first 2,000 training and
  500 test images of the real sets. Iris is the real set. Census, Higgs, Titanic and IMDb are random numbers and
  words, so their accuracy says nothing. `prajjwal1/bert-tiny` is a BERT of the same shape with random weights,
  and the metric `accuracy` of `evaluate` is a file of ten lines.
- **Options**: some apps got values of their own `--run-config`, to run for seconds instead of hours. The table
  names them.
- **Comparison**: the script notes every message that the server part sends and gets. It then runs the app on
  Flower's own in-process simulation (`flwr.simulation`), in which one serial backend replaces Ray's actors. The
  node ids, the order of the replies and the seed of each client call are those that edgesim had. *Difference*
  is the largest absolute difference of all numbers in all arrays and metrics of all messages.

## Results

"""
TABLE = """| app | devices | rounds | simulated time | energy | accuracy | difference | numbers compared |
|---|---:|---:|---:|---:|---:|---:|---:|
"""
CHANGES = """
## What each app needed

*Packages* are beside flwr, flwr-datasets, torch and torchvision.

| app | folder | packages | data in the cache | options |
|---|---|---|---|---|
"""


def page(rows: Mapping[str, Row], versions: Mapping[str, str]) -> str:
    """Return the page as Markdown. `rows`: by name of the app, as `__main__.run_app` returns them."""
    shown = [(app, rows[app.name]) for app in APPS if app.name in rows]
    ended = [row for _, row in shown if not row["failed"]]
    head = HEAD.format(
        count=len(shown),
        repository=REPOSITORY,
        revision=REVISION[:10],
        ran=len(ended),
        equal=sum(row.get("largest") == 0.0 for row in ended),
        **versions,
    )
    results = "".join(_result(app, row) for app, row in shown)
    return head + TABLE + results + _remarks(shown) + CHANGES + "".join(_needs(app) for app, _ in shown)


def _result(app: PublicApp, row: Row) -> str:
    if row["failed"]:
        return f"| {app.name} | {app.devices} | failed | | | | | |\n"
    accuracy = f"{row['accuracy']:.3f}" if "accuracy" in row else "-"
    cells = (app.name, app.devices, row["rounds"], f"{row['sim_time_s']:.3g} s", f"{row['energy_j']:.3g} J", accuracy)
    return f"| {' | '.join(map(str, cells))} | {_difference(row)} | {row.get('numbers', 0):,} |\n"


def _difference(row: Row) -> str:
    if "largest" not in row:
        return "not compared"
    largest = float(row["largest"])
    return "messages differ" if not isfinite(largest) else f"{largest:.3g}" if largest else "0.0"


def _remarks(shown: list[tuple[PublicApp, Row]]) -> str:
    remarks = []
    for app, row in shown:
        if row["failed"]:
            remarks.append(f"- **{app.name}** failed: {row['failed']}. {app.why}".rstrip())
        if row.get("errors"):
            remarks.append(
                f"- **{app.name}**: {row['errors']} client calls raised an exception, as under Flower's simulation."
            )
        if app.why and not row["failed"]:
            remarks.append(f"- **{app.name}**: {app.why}")
    priced = [app.name for app, row in shown if app.host_seconds and not row["failed"]]
    free = [app.name for app, row in shown if not row["failed"] and not row["flops"]]
    if priced:
        remarks.append(
            f"- **{', '.join(priced)}** train outside torch, where FLOPs cannot be counted. They ran with "
            "`--host-seconds`, so their times depend on the host."
        )
    if free:
        remarks.append(f"- **{', '.join(free)}** count 0 FLOPs. Their simulated time is that of links and sleeping.")
    return "\n" + "\n".join(remarks) + "\n" if remarks else ""


def _needs(app: PublicApp) -> str:
    link = f"[{app.folder}](https://github.com/{REPOSITORY}/tree/{REVISION}/{app.folder})"
    options = ", ".join(f"`{key}={value}`" for key, value in app.config.items()) or "none"
    data = "its own" if app.data == PLAIN else f"`{app.data}`"
    return f"| {app.name} | {link} | {', '.join(app.packages) or 'none'} | {data} | {options} |\n"
