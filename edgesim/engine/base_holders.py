"""Devices that have the base of their network: the frozen parameters, which the server may have to send once."""

from __future__ import annotations

import numpy as np

from edgesim.core.arrays import Arr, Ids
from edgesim.core.job import Job
from edgesim.core.price_list import profile_of
from edgesim.core.task import Task
from edgesim.core.view import Setting
from edgesim.engine.accounting import Usage


class BaseHolders:
    """Devices, or edge servers, that have received the base of their network from an aggregator of one training.

    The first download of a model brings it. A device that breaks this download off has to get the whole base again. A
    device keeps the base for the whole run, whether it can be reached or not.
    """

    def __init__(self, setting: Setting, receivers: int) -> None:
        self._setting = setting
        self._lacking = np.full(receivers, setting.base == "once" and setting.cost_profile.base_bytes > 0)
        self._all_have_it = not self._lacking.any()

    def lack(self, ids: Ids) -> bool:
        """Return True if any of these has no base yet."""
        return not self._all_have_it and bool(self._lacking[ids].any())

    def nbytes(self, task: Task, ids: Ids) -> Arr | float:
        """Return the bytes of the base that come with the model of a task to each of these, shape (k,); 0.0: to none.

        They come with a task that trains or whose model has numbers.
        """
        if self._all_have_it or task.start != "server" or task.down is None:
            return 0.0
        profile = profile_of(self._setting.cost_profile, task.submodel)
        if not task.local_sgd and not profile.numbers(task.down, task.submodel):
            return 0.0
        return np.where(self._lacking[ids], float(profile.base_bytes), 0.0)

    def ended(self, job: Job, usage: Usage) -> None:
        """Note that a device has the base, if a job that has ended brought it."""
        if self._all_have_it or usage.shares[0] < 1.0 or not self._lacking[job.device]:
            return
        if np.any(self.nbytes(job.task, np.array([job.device]))):
            self._lacking[job.device] = False
            self._all_have_it = not self._lacking.any()
