"""Tests of the global model on devices: jobs between two rounds, which take seconds, bytes and joules.

They give no scores. `evaluation.personal` scores models on the test sets of devices.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import numpy as np

from edgesim.core.rng import Purpose
from edgesim.core.task import Pass, Payload, Plan, Task
from edgesim.engine.session import Session

RESULT_BYTES = 8  # loss and number of hits
_RESULT = Payload(collections=frozenset(), layers=frozenset(), extra_bytes=RESULT_BYTES)


def tested_on_devices(session: Session, wanted: int | float) -> Generator[Any, Any, None]:
    """Let idle devices test the global model on their own samples, and wait until all are through.

    Each gets the model, runs it forward on all its samples and sends its result. `wanted`: a number of devices, or a
    share of all (a float). The jobs belong to the round that follows.
    """
    setting, idle = session.setting, session.view().idle
    count = wanted if isinstance(wanted, int) else max(1, round(wanted * setting.devices))
    if not len(idle):
        return
    numbers = session.key.at(Purpose.TESTS, session.round).numpy()
    devices = np.sort(numbers.choice(idle, min(count, len(idle)), replace=False)).tolist()
    plan = Plan.by_kind(devices, setting.samples[devices].tolist(), _task)
    inbox = session.new_inbox()
    jobs = session.dispatch(setting.routed(plan), to=inbox)
    yield inbox.until(len(jobs))
    session.server_buffer.release(inbox.take())


def _task(samples: int) -> Task:
    return Task(name="test", up=_RESULT, passes=(Pass("forward", samples=samples),))
