"""Time as an app sees it."""

from __future__ import annotations

import threading
import time

from edgesim.flower.app_time import EPOCH_S, ClockOfApp, app_time, plain_time, unix_s


class Steps(ClockOfApp):
    """Clock that sleep moves."""

    def __init__(self) -> None:
        self.at_s = 0.0

    def seconds(self) -> float:
        return self.at_s

    def sleep(self, seconds: float) -> None:
        self.at_s += seconds


def of_app(source: str, folder: str = "/app/"):
    """Return the value of an expression of a file in a folder."""
    return eval(compile(source, f"{folder}code.py", "eval"), {**vars(time), "time": time})


def test_code_of_the_app_reads_simulated_time():
    """All clocks of `time`, in the app's files and this thread alone, until the block ends."""
    plain = time.sleep
    with app_time(Steps(), "/app/"):
        assert of_app("sleep(7200) or (time.time(), time.monotonic(), time.perf_counter())") == (
            *(EPOCH_S + 7200, 7200.0, 7200.0),
        )
        assert of_app("(time_ns(), monotonic_ns())") == (int((EPOCH_S + 7200) * 1e9), 7200 * 10**9)
        assert unix_s() == EPOCH_S + 7200
        elsewhere = []
        other = threading.Thread(target=lambda: elsewhere.append(of_app("time.time()")))
        other.start()
        other.join()
        for found in (of_app("time.time()", "/elsewhere/"), time.time(), *elsewhere):
            assert abs(found - EPOCH_S) > 1e6
        with plain_time():
            assert of_app("time.time()") > EPOCH_S + 1e6
    assert time.sleep is plain


def test_blocks_lie_in_each_other():
    """The device part runs while the server part waits."""
    outer, inner = Steps(), Steps()
    with app_time(outer, "/app/"):
        with app_time(inner, "/app/"):
            of_app("sleep(3)")
        of_app("sleep(4)")
    assert (outer.at_s, inner.at_s) == (4.0, 3.0)
