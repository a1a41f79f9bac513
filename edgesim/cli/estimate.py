"""The `estimate` command: what a scenario will cost."""

from __future__ import annotations

from typing import TYPE_CHECKING

from edgesim.cli.show import print_frame, print_json, print_table, without_silent
from edgesim.reports.format import heading

if TYPE_CHECKING:
    from edgesim.runs.estimate import Estimate


def print_estimate(found: Estimate, as_json: bool) -> None:
    """Print the cost of a job of each kind of device and of the whole run; accounts that spend nothing are left out."""
    blocks, totals = found.blocks, found.totals
    if as_json:
        print_json({"blocks": blocks.to_dict("records"), "totals": totals, "notes": list(found.notes)})
        return
    print_frame(blocks if blocks["link_j"].any() else blocks.drop(columns="link_j"), "one job of each kind of device")
    print_table([totals], without_silent({name: heading(name) for name in totals}, [totals]), "the whole run")
    for note in found.notes:
        print(note)
