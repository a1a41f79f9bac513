"""How runs and tables look in a notebook (HTML) and in a terminal (rich)."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import TYPE_CHECKING

from edgesim.core.metrics import ACCURACY
from edgesim.files.reading import visible
from edgesim.reports.readable import divergence, text

if TYPE_CHECKING:
    from rich.table import Table

    from edgesim.reports.load import Run

Rows = Sequence[Sequence[str]]


def facts_of(run: Run) -> list[tuple[str, str]]:
    """Return what a run reached, and what that took, as pairs of words; its targets come last."""
    from edgesim.reports.stats import summary

    found = summary(run)
    facts = [("method", run.method), ("status", found["status"]), ("rounds", str(found["rounds"]))]
    if found["accuracy"] is not None:
        facts.append(("test accuracy", f"{found['accuracy']:.4f}, at best {found['best_accuracy']:.4f}"))
    for metric in run.better:
        if found.get(f"best_{metric}") is not None and metric != ACCURACY:
            facts.append((f"test {metric}", f"{found[metric]:.4g}, at best {found[f'best_{metric}']:.4g}"))
    facts.append(("simulated time", text("sim_time_s", found["sim_time_s"])))
    facts.append(("energy", f"{text('energy_j', found['energy_j'])}, {text('active_j', found['active_j'])} above idle"))
    facts.append(("up, down", f"{text('up_bytes', found['up_bytes'])}, {text('down_bytes', found['down_bytes'])}"))
    if found["diverged"]:
        facts.append(("training", divergence(found["diverged"])))
    for target, spent in found["targets"].items():
        took = "not reached"
        if spent is not None:
            costs = (text(name, spent[name]) for name in ("sim_time_s", "energy_j"))
            took = f"{', '.join(costs)}, {spent['round']} rounds"
        facts.append((f"accuracy {target}" if ":" not in target else target.replace(":", " "), took))
    return facts


def html_table(title: str, headings: Sequence[str], rows: Rows, note: str = "") -> str:
    """Return a table as HTML; what stands in it is text, and no tag."""
    head = f"<thead><tr>{''.join(f'<th>{escape(each)}</th>' for each in headings)}</tr></thead>" if headings else ""
    body = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in rows)
    below = f"<p>{escape(note)}</p>" if note else ""
    return f"<table><caption>{escape(title)}</caption>{head}<tbody>{body}</tbody></table>{below}"


def rich_table(title: str, headings: Sequence[str], rows: Rows, note: str = "") -> Table:
    """Return a table that rich prints; what stands in it is text, and no markup."""
    from rich.table import Table
    from rich.text import Text

    table = Table(title=Text(visible(title)), caption=Text(note) if note else None, show_header=bool(headings))
    for heading in headings or [""] * max(map(len, rows), default=0):
        table.add_column(Text(visible(heading)))
    for row in rows:
        table.add_row(*(Text(visible(cell)) for cell in row))
    return table
