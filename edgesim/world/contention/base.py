"""Interface of disciplines by which transfers share links, and the checks that all of them make.

A discipline is a dataclass with `links`, listed in the PLUGINS of a module of this package, or named from outside as
"module:Class". It gives a state machine that owns no clock: transfers are admitted, dropped and finished at times that
only grow, and it says when the next one will be through if nothing changes before.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Collection, Hashable, Mapping, Sequence
from typing import Any, TypeAlias

from edgesim.core.errors import ConfigError, ContractError

Link: TypeAlias = Hashable
_NOTHING: Mapping[int, float] = {}


class SharedLinks(ABC):
    """Shared links of any discipline, as the event loop sees them. Seconds are absolute and never go back."""

    @abstractmethod
    def admit(self, flow: int, path: Sequence[Link], nbytes: float, now_s: float) -> None:
        """Start a transfer of `nbytes` over the links of `path`, all of them at once.

        Raises ContractError if `flow` is under way, a link comes twice, `nbytes` is negative or time goes back;
        ConfigError if a link does not exist.
        """

    def reserve(self, flow: int, hertz: float, power_w: float) -> None:
        """Give the upload that starts next as `flow` hertz of its own. Raises ContractError where there is no band."""
        raise ContractError(f"transfer {flow} cannot have {hertz:g} Hz at {power_w:g} W, its links share no band")

    @abstractmethod
    def drop(self, flow: int, now_s: float) -> float:
        """Abort a transfer; return the bytes it has moved. Raises ContractError if it is not under way."""

    @abstractmethod
    def next_done(self) -> tuple[float, int] | None:
        """Return second and flow of the next end if nothing changes before; None if no transfer moves.

        Of several ends at one second, that of the lowest flow comes first.
        """

    @abstractmethod
    def finish(self, flow: int, now_s: float) -> None:
        """End a transfer at the second that `next_done` gave.

        Raises ContractError if it is not under way or due more than 1e-9 s (relative, after the first second) from now.
        """

    @abstractmethod
    def moved_bytes(self, flow: int, now_s: float) -> float:
        """Return the bytes that a transfer has moved by `now_s`, not earlier than the last change."""

    def is_silent(self, flow: int, path: Sequence[Link]) -> bool:
        """Return True if a transfer cannot start, as the channel of its sender is too weak."""
        return False

    def radio_changes(self) -> Mapping[int, float]:
        """Return the shares of time or power of radios, by flow, that have changed since the last call.

        A radio is on for the whole of a transfer with its usual power if it never has a change.
        """
        return _NOTHING


class DisciplinePart(ABC):
    """A discipline of shared links as a scenario names it: a frozen dataclass."""

    @abstractmethod
    def links(self, capacity_bps: Mapping[Any, float]) -> SharedLinks:
        """Return links of these speeds, in bit/s, without a transfer.

        A mapping may be computed when it is asked: of a large fleet only the links that transfers cross are looked up.
        """


class Capacities:
    """Bits per second of links, looked up when first needed, with the changes made since."""

    def __init__(self, bps: Mapping[Any, float]) -> None:
        self._bps = bps
        self._changed: dict[Link, float] = {}

    def __getitem__(self, link: Link) -> float:
        """Return the speed of a link. Raises ConfigError if there is no such link or its speed is impossible."""
        if link in self._changed:
            return self._changed[link]
        try:
            bps = self._bps[link]
        except KeyError as error:
            raise ConfigError(f"topology: link {link!r} does not exist") from error
        return _possible(link, bps)

    def change(self, link: Link, bps: float) -> None:
        """Set the speed of a link. Raises ConfigError as reading does."""
        if self[link] != bps:
            self._changed[link] = _possible(link, bps)


def _possible(link: Link, bps: float) -> float:
    if not bps >= 0:
        raise ConfigError(f"topology: the capacity of link {link!r} must be at least 0 bit/s, got {bps!r}")
    return float(bps)


def check_order(before_s: float, now_s: float) -> None:
    """Raise ContractError if time goes back."""
    if not now_s >= before_s:
        raise ContractError(f"links were asked about {now_s!r} s after they had come to {before_s!r} s")


def check_start(flow: int, under_way: Collection[int], path: Sequence[Link], nbytes: float) -> None:
    """Raise ContractError if a transfer cannot start."""
    if flow in under_way:
        raise ContractError(f"transfer {flow} is under way already")
    if len(set(path)) < len(path):
        raise ContractError(f"transfer {flow} crosses a link twice: {list(path)}")
    if not 0 <= nbytes < math.inf:
        raise ContractError(f"transfer {flow} must have at least 0 bytes, got {nbytes!r}")


def check_under_way(flow: int, under_way: Collection[int]) -> None:
    """Raise ContractError if there is no such transfer."""
    if flow not in under_way:
        raise ContractError(f"transfer {flow} is not under way")


def check_end(flow: int, due_s: float, now_s: float) -> None:
    """Raise ContractError unless a transfer that ends now is due, within 1e-9 relative."""
    if not abs(due_s - now_s) <= 1e-9 * max(1.0, abs(now_s)):
        raise ContractError(f"transfer {flow} was ended at {now_s!r} s but is due at {due_s!r} s")
