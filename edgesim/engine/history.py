"""Knowledge of the server about its devices, kept only for selection rules that use it.

Devices have their places among those that the training may ask, because its rule knows no others.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from edgesim.core.arrays import Arr, Ids
from edgesim.core.backend import REPORT_BYTES, REPORT_NUMBERS, Reports
from edgesim.core.job import DELIVERED, Completion
from edgesim.core.learner import Answer
from edgesim.core.rng import Draws, Key
from edgesim.core.selection import CellState, Expected, Informed, Known, Reported, StoredEnergy
from edgesim.core.task import Payload, Submodel, Task
from edgesim.core.view import Setting
from edgesim.core.workload import amount, clock_work, flops_of, full_speed_s, moved_bytes
from edgesim.engine.world import World
from edgesim.world.fleet import Fleet

_MOST_CLOSED = 64  # rounds that wait for the next choice of devices


class _Now(NamedTuple):
    """Snapshot of time, round, channel, battery and cell, as far as the rule needs it."""

    now_s: float
    round: int
    up_bps: Arr | None
    battery: StoredEnergy | None
    cell: CellState | None


class _Closed(NamedTuple):
    """Closed round whose reports may still be computed."""

    now: _Now  # as it was closed
    round: int
    completions: Sequence[Completion]
    reports: Answer[Reports]


class History:
    """Jobs and reports of all devices so far, and what a rule makes of them round by round."""

    def __init__(self, rule: Informed, world: World, setting: Setting, draws_of_device: Ids) -> None:
        """`draws_of_device`: which those of each device's next job are, shape (devices,), kept up to date."""
        n = setting.devices
        self._ids = setting.ids
        self._place_of = np.zeros(len(setting.samples), dtype=np.int64)
        self._place_of[self._ids] = np.arange(n)
        self._draws_of_device = draws_of_device
        self._rule = rule
        self._world = world
        self._setting = setting = setting.of_members()
        self._closed: deque[_Closed] = deque()  # and not looked at yet
        self._asked, self._delivered = np.zeros(n, dtype=np.int64), np.zeros(n, dtype=np.int64)
        self._last_asked, self._last_delivered = np.full(n, -1), np.full(n, -1)
        self._seconds = np.full(n, np.nan)
        self._reported = np.full((len(REPORT_NUMBERS), n), np.nan)
        self._last: Ids = np.zeros(0, dtype=np.int64)
        self._expected = expected_of(world.fleet, setting, self._ids)
        self._facts: dict[str, Any] = {}  # copies of all that, as long as it stays
        self._state: Any = None
        self._state = rule.start(self._known(self._moment(0)))

    def close_round(self, round_: int, completions: Sequence[Completion], reports: Answer[Reports]) -> None:
        """Take note of a round that is being closed; its reports are asked for when a choice depends on them."""
        self._closed.append(_Closed(self._moment(round_ + 1), round_, completions, reports))
        if len(self._closed) > _MOST_CLOSED:  # no rule chooses: plans are looked up
            self._learn(self._closed.popleft())

    def use(self, rule: Informed) -> None:
        """Choose by another rule from now on, such as the same one with another count."""
        self._rule = rule

    def choose(self, idle: Ids, round_: int, key: Key) -> Ids:
        """Return the places in `idle` that the rule asks now; waits for the reports of all closed rounds."""
        return self._rule.choose(idle, self._now_known(round_), key)

    @property
    def weighs(self) -> bool:
        """True if the rule weights updates."""
        return self._rule.weighs

    def weights(self, idle: Ids, round_: int) -> Arr:
        """Return the weight that an update of each place in `idle` would have."""
        return self._rule.weights(idle, self._now_known(round_))

    def _now_known(self, round_: int) -> Known:
        while self._closed:
            self._learn(self._closed.popleft())
        return self._known(self._moment(round_))

    def _learn(self, closed: _Closed) -> None:
        for each in sorted(closed.completions, key=lambda each: each.job.id):
            place = self._place_of[each.job.device]
            self._asked[place] += 1
            self._last_asked[place] = closed.round
            if each.outcome in DELIVERED:
                self._delivered[place] += 1
                self._last_delivered[place] = closed.round
                self._seconds[place] = each.ended_s - each.job.sent_s
        reports = closed.reports.get()
        numbers = np.array(reports[1:])
        self._reported[:, self._place_of[reports.device]] = np.where(np.isfinite(numbers), numbers, np.nan)
        ended = np.array([each.job.device for each in closed.completions], dtype=np.int64)
        self._last = np.unique(self._place_of[ended])
        self._facts = {}
        self._state = self._rule.learn(self._known(closed.now))

    def _known(self, now: _Now) -> Known:
        if not self._facts:
            reports = "reports" in self._rule.needs
            self._facts = {
                "asked": _kept(self._asked),
                "delivered": _kept(self._delivered),
                "last_asked": _kept(self._last_asked),
                "last_delivered": _kept(self._last_delivered),
                "seconds": _kept(self._seconds),
                "last": self._last,
                "reported": Reported(*_kept(self._reported)) if reports else None,
            }
        return Known(setting=self._setting, expected=self._expected, state=self._state, **now._asdict(), **self._facts)

    def _moment(self, round_: int) -> _Now:
        fleet, ids, now_s, needs = self._world.fleet, self._ids, self._world.now_s, self._rule.needs
        up_bps, battery, cell = None, None, None
        shared = self._world.shared
        if shared is not None and not needs.isdisjoint({"cell", "channel"}):
            cell = shared.cell_of(ids, fleet.transmit_w)
        if "channel" in needs and cell is not None:  # of a device that had the band to itself
            up_bps = cell.band.alone_bps(cell.up_snr_hz, True)
        elif "channel" in needs:  # bits a second at which each device's next job would send the model, if sent now
            model_bytes = np.full(len(ids), float(_model_bytes(self._setting, up=True)))
            draws = Draws(self._world.job_key, ids, self._draws_of_device[ids])
            _, air_s = fleet.transfer_s(ids, model_bytes, True, np.full(len(ids), now_s), draws)
            up_bps = np.divide(8.0 * model_bytes, air_s, out=np.full(len(ids), np.inf), where=air_s > 0)
        if "battery" in needs:
            stored_j, capacity_j = self._world.batteries.stored_j(now_s)
            battery = StoredEnergy(stored_j[ids], capacity_j[ids])
        return _Now(now_s, round_, up_bps, battery, cell)


def _kept(column: Arr) -> Arr:
    """Return a read-only copy, because rules may keep it."""
    copy: Arr = column.copy()
    copy.setflags(write=False)
    return copy


def expected_of(fleet: Fleet, setting: Setting, ids: Ids) -> Expected:
    """Return the expected prices of a job that trains the whole model at full speed.

    `setting`: of no other devices than `ids`, which are those of the fleet, ascending.
    """
    task, places = Task(local_sgd=(setting.training.local_sgd(0),)), np.arange(len(ids))
    compute_s = full_speed_s(task, setting, places)
    samples, steps = amount(task, setting, places)
    air_s = [8.0 * _model_bytes(setting, up) / bps for up, bps in ((False, setting.down_bps), (True, setting.up_bps))]
    flops, amounts = clock_work(task, setting, places, samples, steps, flops_of(task, setting, samples, steps))
    compute_j = fleet.full_speed_w(ids, flops, amounts, moved_bytes(task, setting)) * compute_s
    joules = compute_j + fleet.receive_w[ids] * air_s[0] + fleet.transmit_w[ids] * air_s[1]
    seconds = air_s[0] + setting.latency_s, compute_s, air_s[1] + setting.latency_s
    return Expected(*seconds, joules, compute_j, _model_bytes(setting, up=True))


def _model_bytes(setting: Setting, up: bool) -> int:
    encoding = setting.encoding_up if up else setting.encoding_down
    nbytes: int = setting.cost_profile.nbytes(Payload(), Submodel(), encoding)
    return nbytes + REPORT_BYTES * (up and setting.reports)
