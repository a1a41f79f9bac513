"""A clock of apps without an engine: every call takes a second of its device, one after the other."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from math import inf

from edgesim.core.app import AppClock, Call, Called, DeviceCode, Reply


class FakeClock(AppClock):
    """Devices that answer by `code`. `fate`: why a call gets no answer, or ""; `takes_s`: seconds of a call."""

    def __init__(
        self,
        code: DeviceCode,
        devices: int,
        takes_s: Callable[[Call], float] = lambda call: 1.0,
        fate: Callable[[Call], str] = lambda call: "",
        seed: Callable[[int, int], int] = lambda device, nth: 1000 * nth + device,
        reachable: Callable[[float], Sequence[int]] | None = None,
    ) -> None:
        self._now_s, self._code, self._devices, self._takes_s, self._fate = 0.0, code, devices, takes_s, fate
        self._reachable = reachable or (lambda now_s: range(devices))
        self._seed = seed
        self._free_s, self._states = [0.0] * devices, [b""] * devices
        self._waiting: list[Reply] = []
        self.calls: list[Call] = []
        self.called: list[Called] = []
        self.scores: list[tuple[float, str, dict[str, float], int]] = []
        self.notes: list[dict[str, float]] = []

    @property
    def now_s(self) -> float:
        return self._now_s

    @property
    def devices(self) -> int:
        return self._devices

    def reachable(self) -> Sequence[int]:
        return list(self._reachable(self._now_s))

    def send(self, calls: Sequence[Call]) -> None:
        for call in calls:
            nth = sum(each.device == call.device for each in self.calls)
            self.calls.append(call)
            at_s = max(self._free_s[call.device], self._now_s) + self._takes_s(call)
            self._free_s[call.device] = at_s
            reason = self._fate(call)
            if at_s > call.expires_s:
                self._waiting.append(Reply(call, None, call.expires_s, "expired"))
            elif reason:
                self._waiting.append(Reply(call, None, at_s, reason))
            else:
                called = self._code.call(call, self._states[call.device], self._seed(call.device, nth))
                self._states[call.device] = called.state
                self.called.append(called)
                self._waiting.append(Reply(call, called.content, at_s))
        self._waiting.sort(key=lambda reply: (reply.arrived_s, reply.call.device, reply.call.number))

    def wait(self, until_s: float = inf, calls: Collection[int] | None = None) -> Sequence[Reply]:
        asked = [reply for reply in self._waiting if calls is None or reply.call.number in calls]
        assert asked or until_s < inf, "the app waits for ever"
        ends_s = [reply.arrived_s for reply in asked]
        end_s = (min if calls is None else max)(ends_s) if asked else until_s
        self._now_s = max(self._now_s, min(until_s, end_s))
        found = [reply for reply in asked if reply.arrived_s <= self._now_s]
        self._waiting = [reply for reply in self._waiting if reply not in found]
        return found

    def sleep(self, seconds: float) -> None:
        self._now_s += seconds

    def score(self, split: str, metrics: Mapping[str, float], samples: int) -> None:
        self.scores.append((self._now_s, split, dict(metrics), samples))

    def note(self, metrics: Mapping[str, float]) -> None:
        self.notes.append(dict(metrics))
