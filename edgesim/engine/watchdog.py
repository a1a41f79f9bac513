"""Rules that end runs without a future, for every protocol."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from edgesim.core.job import DELIVERED, Completion
from edgesim.core.limits import MOST_LOOKS

NOBODY_LEFT = "no device can take part any more: none is there and on, and none will ever be again"
NOBODY_FITS = "no device of the fleet has the memory to train what the method asks for"
MOST_ROUNDS = 1_000  # in a row without an update: then none will ever come
MOST_TRIES = 1_000  # in a row without any time passing: then it will never pass
MOST_FILLS = 1_000  # times the jobs of all places or of the buffer, that took time, without filling the buffer


class Watchdog:
    """Counts fruitless steps of a session, and ends it with a reason once they cannot lead anywhere."""

    def __init__(self, give_up: Callable[[str], None]) -> None:
        """`give_up`: called with the reason; see `Rounds.give_up`."""
        self._give_up = give_up
        self._looks = 0  # in a row without finding a device
        self._failed_rounds = FailedRounds()
        self._tries = 0  # in a row, at one instant, at which all devices that are there failed
        self._jobs = 0  # that took time, since the last buffer was full

    def check_memory(self, nobody_fits: bool) -> None:
        """End the run if no device has the memory for what was asked."""
        if nobody_fits:
            self._give_up(NOBODY_FITS)

    def look(self, found: bool) -> None:
        """Count a look for devices that can be asked or are at work; end the run after too many without any."""
        self._looks = 0 if found else self._looks + 1
        if self._looks >= MOST_LOOKS:
            self._give_up(f"no device was reachable and on at any of {self._looks} looks in a row")

    def nobody_comes(self, failing: bool = False) -> None:
        """Take note that no device can be asked now and none will come.

        `failing`: some are there, and failed at the instant of being asked: they may be asked again, a number of times.
        """
        if not failing:
            self._give_up(NOBODY_LEFT)
        elif self._tries >= MOST_TRIES:
            self._give_up(
                f"{MOST_TRIES} times in a row all devices that are there failed at the instant of being asked"
            )
        else:
            self._tries += 1

    def time_passed(self) -> None:
        """Forget failures at an instant that has passed."""
        self._tries = 0

    def close_round(self, now_s: float, used: Sequence[Completion]) -> bool:
        """Count a round that was closed now; return whether it brought nothing and took no time.

        Ends the run after too many rounds in a row without an update.
        """
        failed = self._failed_rounds
        failed.count(now_s, used)
        if failed.rounds >= MOST_ROUNDS:
            self._give_up(failed.reason)
        return failed.at_once > 0

    def take_job(self, took_time: bool, places: int, full: bool) -> None:
        """Count a job that the server took; end the run if too many of those that took time did not fill the buffer.

        `places`: as many jobs, at least, would have filled it; `full`: it is.
        """
        self._jobs += took_time
        if not full and self._jobs >= MOST_FILLS * places:
            self._give_up(f"{self._jobs} jobs in a row did not fill the buffer")

    def buffer_emptied(self) -> None:
        """Start to count jobs anew, as the buffer was aggregated."""
        self._jobs = 0


class FailedRounds:
    """Rounds in a row that brought no update."""

    def __init__(self) -> None:
        self.rounds = 0
        self.at_once = 0  # of the last of them, those that took no time either
        self._until_s = 0.0

    def count(self, now_s: float, used: Sequence[Completion]) -> None:
        """Take note of a round that has just been closed."""
        self.rounds = 0 if any(each.outcome in DELIVERED for each in used) else self.rounds + 1
        self.at_once = self.at_once + 1 if self.rounds and now_s == self._until_s else 0
        self._until_s = now_s

    @property
    def reason(self) -> str:
        """Why a run ends after them."""
        took_no_time = " took no time and" if self.at_once == self.rounds else ""
        return f"{self.rounds} rounds in a row{took_no_time} brought no update"
