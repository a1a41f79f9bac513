"""Controllers at work: the history that they see, and how their choices take effect."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import nan
from typing import Any, NamedTuple

from edgesim.config.scenario import Stop
from edgesim.core.controller import Choice, ClosedRound, Controller, RoundHistory, checked
from edgesim.core.errors import ConfigError, ContractError
from edgesim.core.job import DELIVERED, Completion
from edgesim.engine.accounting import Totals
from edgesim.engine.session import Session


class _Since(NamedTuple):
    """Totals of a run when the newest round closed."""

    now_s: float = 0.0
    totals: Totals = Totals()
    device_j: float = 0.0


class Steering:
    """One controller of one session, with the history of its rounds."""

    def __init__(self, controller: Controller, session: Session, stop: Stop) -> None:
        self.waits = bool(controller.needs)  # for the results of closed rounds
        self._controller = controller
        self._session = session
        self._budgets = stop.budgets
        self._closed: list[ClosedRound] = []
        self._choice = Choice()
        self._before = _Since(now_s=session.now_s)

    @property
    def watches_devices(self) -> bool:
        """True if the joules of each device count, so that `close` needs them."""
        return "device_energy" in self._budgets

    def close(self, completions: Sequence[Completion], totals: Totals, device_j: float) -> None:
        """Add a round that has just closed. `device_j`: joules of the device that has spent the most, or 0."""
        before, now_s = self._before, self._session.now_s
        spent = totals.since(before.totals)
        used = [each.job.prices for each in completions if each.outcome in DELIVERED]
        tally = self._session.tally(completions)
        self._closed.append(
            ClosedRound(
                choice=self._choice,
                seconds=now_s - before.now_s,
                joules=spent.energy_j,
                idle_joules=spent.idle_j,
                device_joules=device_j - before.device_j,
                bytes=spent.moved_bytes,
                cost=spent.cost,
                asked=tally.asked,
                used=tally.used,
                late=tally.late,
                compute_s=max((each.compute_s for each in used), default=0.0),
                compute_j=sum(each.compute_j for each in used),
                loss=nan,
                metrics={},
            )
        )
        self._before = _Since(now_s, totals, device_j)

    def settle(self, round_: int, loss: float, metrics: Mapping[str, Any]) -> None:
        """Add the results of a closed round, if the controller waits for results."""
        if self.waits:
            single = {name: value for name, value in metrics.items() if isinstance(value, float | int)}
            self._closed[round_] = self._closed[round_]._replace(loss=loss, metrics=single)

    def adapt(self) -> None:
        """Ask the controller, and let its choice hold from now on. Raises ContractError if it cannot hold."""
        session, before = self._session, self._before
        if self.waits and not session.learner.trains:
            return  # a trial run without training, as of an estimate
        totals = before.totals
        amounts = {
            "sim_time": session.now_s,
            "energy": totals.energy_j,
            "device_energy": before.device_j,
            "cost": totals.cost,
            "bytes": float(totals.moved_bytes),
        }
        spent = {key: amounts[key] for key in self._budgets}
        left = {key: max(0.0, limit - spent[key]) for key, limit in self._budgets.items()}
        seen = RoundHistory(session.setting, tuple(self._closed), session.now_s, spent, left, self._choice.state)
        choice = checked(self._controller, self._controller.adapt(seen), session.setting.devices)
        if choice[:-1] != self._choice[:-1]:
            try:
                session.steer(choice)
            except ConfigError as error:
                raise ContractError(f"{type(self._controller).__name__}.adapt() returned {choice}: {error}") from error
        self._choice = choice
