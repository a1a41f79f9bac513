"""Capacities and availability of clients as FedScale publishes them, in JSON instead of pickles.

Source: Lai et al., "FedScale: Benchmarking Model and System Performance of Federated Learning at Scale" (ICML 2022);
its files client_device_capacity and client_behave_trace, and ClientMetadata, which reads them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import ceil, inf
from pathlib import Path

from edgesim.files.traces.clients import Client, read_clients
from edgesim.files.traces.columns import Columns, append

_KBIT_S = 1e3  # bit/s; FedScale counts a kilobit as 1024 bit
_MS = 1e-3


def fleet_of(path: Path, forward_flops: float, most: int | None = None) -> Columns:
    """Return the columns of a fleet, a row a client, from {client: {"computation": ms, "communication": kbit/s}}.

    "computation" is what a forward pass of a sample takes, of a model with `forward_flops`; "communication" is the rate
    of uploads and downloads. Raises DataError that names the file, the client and the key.
    """
    fleet: Columns = {name: [] for name in ("name", "cpu.flops_per_s", "network.name", "network.up", "network.down")}
    for client in read_clients(path, most):
        seconds = client.number("computation", above=True) * _MS
        rate = f"{client.number('communication', above=True) * _KBIT_S!r} bit/s"
        append(fleet, f"client {client.name}", f"{forward_flops / seconds!r} FLOP/s", "fixed", rate, rate)
    return fleet


def availability_of(path: Path, length_s: float | None = None, most: int | None = None) -> Columns:
    """Return the columns device, start and end, a row an interval, the clients as devices 0, 1, ... of their order.

    The file is {client: {"active": [s, ...], "inactive": [s, ...], "finish_time": s}}: a client is there from each
    active to the inactive of the same place. Like FedScale, a trace begins anew after its finish_time, up to
    `length_s`; None: it does not. Raises DataError that names the file, the client and the key.
    """
    columns: Columns = {"device": [], "start": [], "end": []}
    for device, client in enumerate(read_clients(path, most)):
        period_s = client.number("finish_time", above=True)
        ends_s = period_s if length_s is None else length_s
        for start_s, end_s in _repeated(list(_intervals(client)), period_s, ends_s):
            append(columns, device, start_s, end_s)
    return columns


def _repeated(
    intervals: Sequence[tuple[float, float]], period_s: float, ends_s: float
) -> Iterator[tuple[float, float]]:
    """Yield intervals of which those of a period begin anew after it, until they end."""
    for turn in range(ceil(ends_s / period_s) if intervals else 0):
        begins_s = turn * period_s
        for start_s, end_s in intervals:
            if begins_s + start_s < ends_s:
                yield begins_s + start_s, min(begins_s + end_s, ends_s)


def _intervals(client: Client) -> Iterator[tuple[float, float]]:
    """Yield the intervals of a client that have a length. Raises DataError if they are not in order."""
    active, inactive = client.numbers("active"), client.numbers("inactive")
    if len(active) != len(inactive):
        raise client.refuse("inactive", f"as long as active, {len(active)}", len(inactive))
    last_s, finish_s = -inf, client.number("finish_time", above=True)
    for place, (start_s, end_s) in enumerate(zip(active, inactive, strict=True)):
        if start_s < last_s:
            raise client.refuse(f"active[{place}]", f"at least inactive[{place - 1}], {last_s:g}", start_s)
        if not start_s <= end_s <= finish_s:
            needs = f"from active[{place}], {start_s:g}, to finish_time, {finish_s:g}"
            raise client.refuse(f"inactive[{place}]", needs, end_s)
        last_s = end_s
        if end_s > start_s:
            yield start_s, end_s
