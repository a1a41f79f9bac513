"""Bytes on links: transfers over shared links, and messages between devices over these or over links of their own.

A message stands still while the link of its sender or of its receiver is down. While bits flow both radios are on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import inf
from typing import Protocol, TypeAlias

import numpy as np
import simpy

from edgesim.core.arrays import Arr, Ids
from edgesim.core.errors import ConfigError
from edgesim.core.limits import check_steps
from edgesim.core.rng import Draws, Key
from edgesim.engine.battery_loads import BatteryLoads
from edgesim.world.contention.base import SharedLinks
from edgesim.world.contention.network import SharedNetwork
from edgesim.world.failures.base import stretched_s
from edgesim.world.fleet import Fleet
from edgesim.world.processes.on_off import BothOn, OnOff
from edgesim.world.topology.base import Hop

There: TypeAlias = Callable[["Flow"], None]
_FETCHED, _AWAITED, _SENDER, _RECEIVER = 1, 2, 0, 1  # streams; never renumber
_WHOLE = 1e-9  # what is missing from a transfer by less than this share of its bytes is what rounding leaves


def unless_whole(moved_bytes: float, nbytes: float) -> float:
    """Return the bytes of a transfer that have moved: all of them if what is missing is due to rounding."""
    return nbytes if nbytes - moved_bytes <= _WHOLE * nbytes else moved_bytes


class Transfers:
    """Starts and ends transfers and keeps the clock informed of the next one to end."""

    def __init__(self, env: simpy.Environment, links: SharedLinks) -> None:
        self._env = env
        self._links = links
        self._done: dict[int, Callable[[], None]] = {}  # flows on the links
        self._radios: dict[int, Callable[[float], None]] = {}  # of those that ask for changes
        self._armed: tuple[float, int] | None = None

    def start(
        self,
        flow: int,
        path: Sequence[Hop],
        nbytes: float,
        on_done: Callable[[], None],
        on_radio: Callable[[float], None] | None = None,
    ) -> None:
        """Begin a transfer now; `on_done` is called at its end unless it is dropped before.

        `on_radio`: is told the share of its power that the radio draws on average, 1 at first, whenever it changes.
        """
        self._done[flow] = on_done
        if on_radio is not None:
            self._radios[flow] = on_radio
        self._links.admit(flow, path, nbytes, self._env.now)
        self._arm()

    def drop(self, flow: int) -> float:
        """Break off a transfer now; return the bytes it moved, 0 if it was not on a link."""
        if self._done.pop(flow, None) is None:
            return 0.0
        self._radios.pop(flow, None)
        moved_bytes = self._links.drop(flow, self._env.now)
        self._arm()
        return moved_bytes

    def moved_bytes(self, flow: int) -> float:
        """Return the bytes that a transfer has moved so far, 0 if it is not on a link; asking changes nothing."""
        return self._links.moved_bytes(flow, self._env.now) if flow in self._done else 0.0

    def settle(self, within_s: float) -> None:
        """End now the transfers that would end within `within_s` seconds."""
        while (due := self._links.next_done()) is not None and due[0] <= self._env.now + within_s:
            self._end(due[1])

    def _arm(self) -> None:
        due = self._links.next_done()
        for flow, share in self._links.radio_changes().items():
            if flow in self._radios:
                self._radios[flow](share)
        if due is not None and due == self._armed:
            return
        self._armed = due
        if due is None:
            if self._done:  # what is under way moves, but no float can hold when it ends
                raise ConfigError("network, topology: a transfer over shared links takes inf s, must be finite")
            return
        timer = self._env.timeout(max(0.0, due[0] - self._env.now))
        timer.callbacks.append(lambda _: self._end(due[1]) if self._armed is due else None)

    def _end(self, flow: int) -> None:
        self._armed = None
        self._links.finish(flow, self._env.now)
        self._radios.pop(flow, None)
        on_done = self._done.pop(flow)
        self._arm()
        on_done()


@dataclass(slots=True, eq=False)
class Flow:
    """A message on its way from device `source` to device `target`."""

    source: int
    target: int
    nbytes: float
    begins_s: float  # on air, after its latency
    ends_s: float  # inf: not known yet
    up_air_s: float = 0.0  # of the sender's radio, as far as this message has it on
    down_air_s: float = 0.0  # of the receiver's
    fresh: bool = False  # did not exist when the round started
    sendings: float = 1.0  # how often a byte crosses shared links on average, as packets get lost
    moved_bytes: float = 0.0  # once it has ended, was broken off or a link went down
    over: bool = False

    @property
    def ends(self) -> tuple[int, int]:
        """The devices at its ends."""
        return self.source, self.target

    def stop(self, now_s: float, share: float) -> None:
        """End or break off a flow whose end is known, of which this share has moved; so it is of its time on air."""
        self.over = True
        self.moved_bytes = share * self.nbytes
        if now_s < self.ends_s:
            self.up_air_s *= share
            self.down_air_s *= share
            self.ends_s = now_s


class Flows(Protocol):
    """Starts flows and returns them. `there` is called at the end of each flow whose end is unknown at its start."""

    def together(self, sources: Ids, targets: Ids, sizes: Arr, occasion: int, there: There) -> list[Flow]:
        """Start flows of existing messages now, of arrays of shape (k,); those to one target share its link."""

    def one(self, source: int, target: int, nbytes: float, occasion: int, there: There) -> Flow:
        """Start the flow of a fresh message now."""

    def stop(self, flows: Iterable[Flow]) -> None:
        """End the flows that still run; book the bytes that they moved."""

    def so_far(self, flows: Iterable[Flow]) -> list[Flow]:
        """Return these flows as they would be if they were broken off now; asking changes nothing."""


class DedicatedFlows:
    """Flows over the devices' own links, without contention but for the inputs of one device among themselves.

    A message passes at the speed of the slower of the sender's uplink and the receiver's downlink, after both
    latencies.
    """

    def __init__(
        self, env: simpy.Environment, fleet: Fleet, key: Key, loads: BatteryLoads, links_up: OnOff | None
    ) -> None:
        """`links_up`: of each device; None: links never fail."""
        self._env = env
        self._fleet = fleet
        self._key = key
        self._loads = loads
        self._links_up = None if links_up is None else BothOn(links_up)
        self._drawing: dict[Flow, tuple[float, float]] = {}  # to come or on air -> watts of sender and receiver
        # the same numbers: one of them costs a third this way, and most flows are started one by one
        self._latency_s, self._up_bps, self._down_bps = fleet.latency_s.data, fleet.up_bps.data, fleet.down_bps.data

    def together(self, sources: Ids, targets: Ids, sizes: Arr, occasion: int, there: There) -> list[Flow]:
        """Start flows now; the inputs of one device share its downlink."""
        total_bytes = np.bincount(targets, weights=sizes, minlength=len(self._fleet))
        who = np.unique(targets)
        key = self._key.at(_FETCHED)
        n = len(self._fleet)
        up = self._fleet_leg(sources, sizes, True, Draws(key.at(_SENDER), sources, occasion * n + targets))
        into = self._fleet_leg(who, total_bytes[who], False, Draws(key.at(_RECEIVER), who, np.full(len(who), occasion)))
        place = np.searchsorted(who, targets)
        latency_s, air_s = up[0] + into[0][place], np.maximum(up[1], into[1][place])
        share = np.divide(sizes, total_bytes[targets], out=np.zeros(len(sizes)), where=total_bytes[targets] > 0)
        begins_s = self._env.now + latency_s
        lasts_s = self._with_pauses_s(np.stack([sources, targets], axis=1), air_s, begins_s)
        columns = (sources, targets, sizes, begins_s, begins_s + lasts_s, up[1], into[1][place] * share)
        flows = [Flow(*row) for row in zip(*(column.tolist() for column in columns), strict=True)]
        if self._loads:
            for flow, seconds in zip(flows, air_s.tolist(), strict=True):
                self._draw(flow, seconds)
        return flows

    def one(self, source: int, target: int, nbytes: float, occasion: int, there: There) -> Flow:
        """Start the flow of a fresh message now."""
        if not self._fleet.steady:
            ids = np.array([source]), np.array([target])
            key, first = self._key.at(_AWAITED), occasion * len(self._fleet)  # each end tells the other ends apart
            up = self._fleet_leg(ids[0], np.array([nbytes]), True, Draws(key.at(_SENDER), ids[0], first + ids[1]))
            into = self._fleet_leg(ids[1], np.array([nbytes]), False, Draws(key.at(_RECEIVER), ids[1], first + ids[0]))
            latency_s, up_air_s, down_air_s = float(up[0][0] + into[0][0]), float(up[1][0]), float(into[1][0])
        else:
            latency_s = self._latency_s[source] + self._latency_s[target]
            up_air_s, down_air_s = 8.0 * nbytes / self._up_bps[source], 8.0 * nbytes / self._down_bps[target]
        begins_s, air_s = self._env.now + latency_s, max(up_air_s, down_air_s)
        lasts_s = air_s
        if self._links_up is not None:
            lasts_s = float(self._with_pauses_s(np.array([[source, target]]), np.array([air_s]), begins_s)[0])
        flow = Flow(source, target, nbytes, begins_s, begins_s + lasts_s, up_air_s, down_air_s, fresh=True)
        if self._loads:
            self._draw(flow, air_s)
        return flow

    def stop(self, flows: Iterable[Flow]) -> None:
        """End the flows that still run; book the bytes that they moved."""
        now_s = self._env.now
        for flow in flows:
            if not flow.over:
                flow.stop(now_s, 1.0 if now_s >= flow.ends_s else self._moved_share(flow, now_s))
                if self._drawing:
                    self._off_air(flow)

    def so_far(self, flows: Iterable[Flow]) -> list[Flow]:
        """Return these flows as they would be if they were broken off now; asking changes nothing."""
        now_s, copies = self._env.now, [replace(flow) for flow in flows]
        for flow in copies:
            if not flow.over:
                flow.stop(now_s, 1.0 if now_s >= flow.ends_s else self._moved_share(flow, now_s))
        return copies

    def _moved_share(self, flow: Flow, now_s: float) -> float:
        """Return the share of a running flow that has moved up to now: nothing moves while a link is down."""
        if now_s <= flow.begins_s:
            return 0.0
        if self._links_up is None:
            return (now_s - flow.begins_s) / (flow.ends_s - flow.begins_s)
        pair = np.array([flow.ends])
        so_far_s, all_s = (
            float(self._links_up.on_s(pair, until_s, flow.begins_s)[0]) for until_s in (now_s, flow.ends_s)
        )
        return min(1.0, so_far_s / all_s) if all_s > 0 else 0.0

    def _with_pauses_s(self, pairs: Ids, air_s: Arr, begins_s: Arr | float) -> Arr:
        """Return seconds from first to last bit, shape (k,), of flows between pairs of devices, shape (k, 2)."""
        if self._links_up is None:
            return air_s
        spans = air_s * (1.0 / self._links_up.each.mean_on_s[pairs]).sum(axis=1)
        check_steps("failures.up", float(spans.max(initial=0.0)), "a message over links that are up for so short")
        lasts_s = stretched_s(self._links_up, pairs, air_s, begins_s)
        if not np.isfinite(lasts_s).all():
            raise link_outage_is_too_short(self._env.now)
        return lasts_s

    # --- batteries ----------------------------------------------------------------------------------------------

    def _draw(self, flow: Flow, air_s: float) -> None:
        """Let both ends of a flow, on air for so many seconds, draw their power as long as it flows."""
        if air_s > 0 and any(device in self._loads for device in flow.ends):
            transmit_w, receive_w = self._fleet.transmit_w[flow.source], self._fleet.receive_w[flow.target]
            # a radio that is faster than the other end is on for a share of the time
            up_w, down_w = float(transmit_w) * flow.up_air_s / air_s, float(receive_w) * flow.down_air_s / air_s
            self._drawing[flow] = (up_w, down_w)
            self._at(flow.begins_s, lambda: self._on_air(flow))
            self._at(flow.ends_s, lambda: self._off_air(flow))

    def _on_air(self, flow: Flow) -> None:
        """Let a flow draw from now on if both links are up, and look again when that changes."""
        if flow not in self._drawing:
            return
        up = True
        if self._links_up is not None:
            pair = np.array([flow.ends])
            up = bool(self._links_up.on(pair, self._env.now)[0])
            changes_s = float(self._links_up.next_change_s(pair, self._env.now)[0])
            if changes_s < flow.ends_s:
                self._at(changes_s, lambda: self._on_air(flow))
        for device, watts in zip(flow.ends, self._drawing[flow], strict=True):
            if up:
                self._loads.begin(device, flow, watts)
            else:
                self._loads.end(device, flow)

    def _off_air(self, flow: Flow) -> None:
        if self._drawing.pop(flow, None) is not None:
            for device in flow.ends:
                self._loads.end(device, flow)

    def _at(self, at_s: float, then: Callable[[], None]) -> None:
        self._env.timeout(max(0.0, at_s - self._env.now)).callbacks.append(lambda _: then())

    def _fleet_leg(self, ids: Ids, sizes: Arr, up: bool, draws: Draws) -> tuple[Arr, Arr]:
        """Return latencies and seconds on air, both of shape (k,), of one direction of transfers that start now."""
        seconds, air_s = self._fleet.transfer_s(ids, sizes, up, np.full(len(ids), self._env.now), draws)
        return seconds - air_s, air_s


class SharedFlows:
    """Flows over shared links, from sender to receiver; a packet lost at either end is sent again all the way."""

    def __init__(
        self,
        env: simpy.Environment,
        network: SharedNetwork,
        transfers: Transfers,
        fleet: Fleet,
        key: Key,
        loads: BatteryLoads,
        links_up: OnOff | None,
    ) -> None:
        """`links_up`: of each device; None: links never fail."""
        self._env = env
        self._fleet = fleet
        self._key = key
        self._network = network
        self._transfers = transfers
        self._links_up = None if links_up is None else BothOn(links_up)
        self._on_air: dict[Flow, int] = {}  # flows on the links, and their numbers there
        self._started = 0
        self._sending = _Radios(env, loads, fleet.transmit_w)
        self._receiving = _Radios(env, loads, fleet.receive_w)

    def together(self, sources: Ids, targets: Ids, sizes: Arr, occasion: int, there: There) -> list[Flow]:
        """Start flows of existing messages now."""
        rows = zip(sources.tolist(), targets.tolist(), sizes.tolist(), strict=True)
        return [self._start(source, target, nbytes, occasion, False, there) for source, target, nbytes in rows]

    def one(self, source: int, target: int, nbytes: float, occasion: int, there: There) -> Flow:
        """Start the flow of a fresh message now."""
        return self._start(source, target, nbytes, occasion, True, there)

    def stop(self, flows: Iterable[Flow]) -> None:
        """End the flows that still run; book the bytes that they moved."""
        for flow in flows:
            if flow in self._on_air:
                moved_bytes = flow.moved_bytes + self._transfers.drop(self._on_air[flow]) / flow.sendings
                self._land(flow, unless_whole(moved_bytes, flow.nbytes))
            elif not flow.over:
                flow.over, flow.ends_s = True, self._env.now

    def so_far(self, flows: Iterable[Flow]) -> list[Flow]:
        """Return these flows as they would be if they were broken off now; asking changes nothing."""
        return [self._as_of_now(flow) if flow in self._on_air else flow for flow in flows]

    def _as_of_now(self, flow: Flow) -> Flow:
        moved_bytes = flow.moved_bytes + self._transfers.moved_bytes(self._on_air[flow]) / flow.sendings
        return replace(
            flow,
            moved_bytes=unless_whole(moved_bytes, flow.nbytes),
            up_air_s=flow.up_air_s + self._sending.so_far_s(flow.source),
            down_air_s=flow.down_air_s + self._receiving.so_far_s(flow.target),
        )

    def _start(self, source: int, target: int, nbytes: float, occasion: int, fresh: bool, there: There) -> Flow:
        latency_s, sendings = self._network.paths.latency_s(1 + source, 1 + target), 1.0
        if self._fleet.impaired:
            key = self._key.at(_AWAITED if fresh else _FETCHED)
            for up, end, device, other in ((True, _SENDER, source, target), (False, _RECEIVER, target, source)):
                ids, nth = np.array([device]), np.array([occasion * len(self._fleet) + other])
                draws = Draws(key.at(end), ids, nth)
                late_s = self._fleet.delay_s(ids, up, draws) - self._fleet.latency_s[ids]
                latency_s = max(0.0, latency_s + float(late_s[0]))
                if nbytes:
                    sendings *= float(self._fleet.air_bytes(ids, np.array([float(nbytes)]), up, draws)[0]) / nbytes
        flow = Flow(source, target, nbytes, self._env.now + latency_s, inf, fresh=fresh, sendings=sendings)
        self._env.timeout(latency_s).callbacks.append(lambda _: self._look(flow, there))
        return flow

    def _look(self, flow: Flow, there: There) -> None:
        """Let a flow go on or stand still, as the links of its ends are up or not, and look again when that changes."""
        if flow.over:
            return
        up = self._are_up(flow, there)
        if up and flow not in self._on_air:
            self._go_on(flow, there)
        elif not up and flow in self._on_air:
            flow.moved_bytes += self._transfers.drop(self._on_air[flow]) / flow.sendings
            self._take_off(flow)

    def _are_up(self, flow: Flow, there: There) -> bool:
        if self._links_up is None:
            return True
        pair, now_s = np.array([flow.ends]), self._env.now
        up, changes_s = bool(self._links_up.on(pair, now_s)[0]), float(self._links_up.next_change_s(pair, now_s)[0])
        if changes_s < inf:
            self._env.timeout(changes_s - now_s).callbacks.append(lambda _: self._look(flow, there))
        elif not up:
            raise link_outage_is_too_short(now_s)
        return up

    def _go_on(self, flow: Flow, there: There) -> None:
        """Put what is left of a flow on the links."""
        self._started += 1
        number = self._on_air[flow] = -self._started  # those of jobs are positive
        flow.up_air_s -= self._sending.each_s(flow.source, 1)
        flow.down_air_s -= self._receiving.each_s(flow.target, 1)
        path = self._network.limits(1 + flow.source, 1 + flow.target)
        left_bytes = max(0.0, flow.sendings * (flow.nbytes - flow.moved_bytes))
        self._transfers.start(number, path, left_bytes, partial(self._arrived, flow, there))

    def _arrived(self, flow: Flow, there: There) -> None:
        self._land(flow, flow.nbytes)
        there(flow)

    def _land(self, flow: Flow, moved_bytes: float) -> None:
        """End a flow on the links, through or broken off."""
        self._take_off(flow)
        flow.moved_bytes, flow.over, flow.ends_s = moved_bytes, True, self._env.now

    def _take_off(self, flow: Flow) -> None:
        """Take a flow off the links, with its share of the time for which the radios were on."""
        del self._on_air[flow]
        flow.up_air_s += self._sending.each_s(flow.source, -1)
        flow.down_air_s += self._receiving.each_s(flow.target, -1)


def link_outage_is_too_short(now_s: float) -> ConfigError:
    """Return the error of links that are down for less time than a float can hold."""
    return ConfigError(f"failures.down: is too short to be told from nothing after {now_s:g} s")


_OFF = (0, 0.0, 0.0)  # a radio with no message


class _Radios:
    """Time on air of devices in one direction: a radio is on once, however many messages pass; they share its time."""

    def __init__(self, env: simpy.Environment, loads: BatteryLoads, watts: Arr) -> None:
        """`watts`: of each device while its radio is on, above idle."""
        self._env = env
        self._loads = loads
        self._watts = watts
        self._on: dict[int, tuple[int, float, float]] = {}  # device -> messages, seconds of each so far, until when

    def each_s(self, device: int, change: int) -> float:
        """Change the number of active messages by 1 or -1; return the air time of each since the radio turned on."""
        each_s = self.so_far_s(device)
        before = self._on.pop(device, _OFF)[0]
        messages = before + change
        if messages:
            self._on[device] = (messages, each_s, self._env.now)
        if not before:
            self._loads.begin(device, self, float(self._watts[device]))
        elif not messages:
            self._loads.end(device, self)
        return each_s

    def so_far_s(self, device: int) -> float:
        """Return the air time of each message up to now, without side effects."""
        messages, each_s, until_s = self._on.get(device, _OFF)
        return each_s + (self._env.now - until_s) / messages if messages else each_s
