"""States of phones over time, as FLASH publishes them, and the intervals in which a phone may train.

Source: Yang et al., "Characterizing Impacts of Heterogeneity in Federated Learning upon Large-Scale Smartphone Data"
(WWW 2021); its file of state traces, and its class Timer, which reads them.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from math import inf
from pathlib import Path

import numpy as np

from edgesim.core.errors import DataError
from edgesim.files.reading import quoted
from edgesim.files.traces.clients import Client, read_clients
from edgesim.files.traces.columns import Columns, append

STATES = ("locked", "screen_off", "wifi", "charged")
USUAL = ("locked", "wifi", "charged")  # what FLASH asks of a phone

_EVENTS: Mapping[str, tuple[str, bool] | None] = {
    "battery_charged_on": ("charged", True),
    "battery_charged_off": ("charged", False),
    "wifi": ("wifi", True),
    **{name: ("wifi", False) for name in ("unknown", "2g", "3g", "4g", "5g")},
    "screen_off": ("screen_off", True),
    "screen_on": ("screen_off", False),
    "screen_lock": ("locked", True),
    "screen_unlock": ("locked", False),
    **{name: None for name in ("battery_low", "battery_okay", "phone_on", "phone_off")},  # which decide nothing
}
_LEVEL = re.compile(r"[0-9]+(\.[0-9]+)?%")
_DATE = re.compile(r"([0-9]{4}-[0-9]{2}-[0-9]{2}) ([0-9]{2}:[0-9]{2}:[0-9]{2})")


def availability_of(
    path: Path,
    needs: Collection[str] = USUAL,
    start: str | None = None,
    length_s: float | None = None,
    most: int | None = None,
) -> Columns:
    """Return the columns device, start and end, a row an interval, the clients as devices 0, 1, ... of their order.

    The file is {client: {"messages": "YYYY-MM-DD HH:MM:SS<tab>event<newline>..."}}. A phone is there while all states
    of `needs` hold; before its first message none does, and after its last it is not there. Time 0 is `start`, such a
    date; None: the first message of all. Intervals end at `length_s` at the latest; None: at any time.
    Raises DataError that names the file, the client, the line of its messages and what is allowed.
    """
    phones = [_intervals(client, needs) for client in read_clients(path, most)]
    zero_s = min(first_s for first_s, _ in phones) if start is None else date_s(start)
    if zero_s is None:
        raise DataError(f"{path}: the start must be a date such as 2020-01-31 23:23:40, got {quoted(start)}")
    columns: Columns = {"device": [], "start": [], "end": []}
    for device, (_, intervals) in enumerate(phones):
        for start_s, end_s in intervals:
            start_s, end_s = max(0.0, start_s - zero_s), min(end_s - zero_s, inf if length_s is None else length_s)
            if start_s < end_s:
                append(columns, device, start_s, end_s)
    return columns


def date_s(text: str) -> float | None:
    """Return the seconds since 1970 of a date such as "2020-01-31 23:23:40", None if it is none."""
    match = _DATE.fullmatch(text.strip())
    try:
        return float(np.datetime64(f"{match[1]}T{match[2]}", "s").astype(np.int64)) if match else None
    except ValueError:
        return None


def _intervals(client: Client, needs: Collection[str]) -> tuple[float, list[tuple[float, float]]]:
    """Return when the first message of a phone came, and in which intervals all its states hold."""
    messages = sorted(_messages(client), key=lambda message: message[0])  # those of one instant stay in their order
    if not messages:
        raise client.refuse("messages", "lines of a date, a tab and an event", client.text("messages"))
    holds = dict.fromkeys(STATES, False)
    intervals, since_s = [], inf
    for at_s, change in messages:
        if change is not None:
            holds[change[0]] = change[1]
        there = all(holds[state] for state in needs)
        if not there and since_s < at_s:
            intervals.append((since_s, at_s))
        since_s = min(since_s, at_s) if there else inf
    if since_s < messages[-1][0]:
        intervals.append((since_s, messages[-1][0]))
    return messages[0][0], intervals


def _messages(client: Client) -> Iterator[tuple[float, tuple[str, bool] | None]]:
    """Yield the time of each message, in seconds since 1970, and the state that it changes, None: none of STATES."""
    for number, line in enumerate(client.text("messages").splitlines(), 1):
        if not line.strip():
            continue
        date, _, event = line.partition("\t")
        event = event.strip().lower()
        at_s = date_s(date)
        if at_s is None:
            raise client.refuse(
                f"messages line {number}", "a date such as 2020-01-31 23:23:40, a tab and an event", line
            )
        if event not in _EVENTS and not _LEVEL.fullmatch(event):
            raise client.refuse(f"messages line {number}", f"one of {', '.join(_EVENTS)} or a level such as 87%", event)
        yield at_s, _EVENTS.get(event)
