"""Checks that outages of links are few enough to be simulated one by one, and long enough for floating point."""

from __future__ import annotations

import numpy as np

from edgesim.config.scenario import Scenario
from edgesim.core.arrays import Arr
from edgesim.core.errors import ConfigError
from edgesim.core.job import Prices
from edgesim.core.limits import check_steps
from edgesim.core.peer_graph import PeerGraph
from edgesim.core.task import Payload, Submodel, Task
from edgesim.core.update import SERVER
from edgesim.core.view import Setting
from edgesim.engine.pricing import Pricer
from edgesim.runs.selection_checks import asked_at_most
from edgesim.world.contention.network import SharedNetwork
from edgesim.world.fleet import Fleet
from edgesim.world.processes.on_off import LAST_CELL, OnOff


def check_outages(
    scenario: Scenario,
    fleet: Fleet,
    links: OnOff,
    setting: Setting,
    shared: SharedNetwork | None,
    peers: PeerGraph | None,
) -> None:
    """Raise ConfigError if links go down too often, or for too short a time, to simulate their outages.

    `shared`: None if each device has links of its own; `peers`: the peer graph of the first round, None with a server.
    """
    if peers is not None:
        messages = np.bincount(np.concatenate([peers.sources, peers.targets]), minlength=len(fleet))
        # with shared links as many messages flow at a time, so that each takes so many times as long
        at_a_time = 1 if shared is None else messages
        steps = messages * at_a_time * _model_bits(setting) / np.minimum(fleet.up_bps, fleet.down_bps) / links.mean_on_s
        device = int(steps.argmax())
        what = f"a round in which device {device} exchanges {messages[device]} messages"
        check_steps("failures.up", float(steps[device]), what)
        if shared is not None:
            _check_told_apart(links.mean_off_s, 2.0 * fleet.latency_s)
    elif shared is not None:
        _check_shared(scenario, fleet, links, setting, shared)
    prices = check_prices(fleet, setting)  # of the whole model on each device's own link
    _check_told_apart(links.mean_off_s, prices.down_s + prices.compute_s + prices.up_s)
    air_s = np.maximum(prices.down_s - prices.down_latency_s, prices.up_s - prices.up_latency_s)
    up_s = links.mean_on_s
    device = int(np.argmax(air_s / up_s))
    link = f"the link of device {device}, up for {up_s[device]:g} s at a time,"
    check_steps(
        "failures.up", float(air_s[device] / up_s[device]), f"a model that takes {air_s[device]:g} s over {link}"
    )


def check_prices(fleet: Fleet, setting: Setting) -> Prices[Arr]:
    """Return the prices of the whole model on each device, for links that never go down.

    Raises ConfigError if a job of some device spans more changes of load than a run can simulate.
    """
    whole_model = Task(local_sgd=(setting.training.local_sgd(0),))
    return Pricer(fleet, setting).of_devices(whole_model, np.arange(len(fleet)))


def _check_shared(scenario: Scenario, fleet: Fleet, links: OnOff, setting: Setting, shared: SharedNetwork) -> None:
    """Raise ConfigError if a round has more outages than a run can simulate, one by one for every job.

    A model takes as long as on the slowest link of its path without contention. Checked are, in each fleet block, the
    devices whose links go down most often or for the shortest time, and the first and the last device.
    """
    model_bits = _model_bits(setting)
    asked = asked_at_most(scenario, setting.level, setting.members)
    latency_s = np.zeros(len(fleet))
    for block in fleet.blocks:
        own = slice(block.first, block.first + block.count)
        worst = np.array([0, links.mean_on_s[own].argmin(), links.mean_off_s[own].argmin(), block.count - 1])
        for device in (block.first + np.unique(worst)).tolist():
            down, up = (SERVER, 1 + device), (1 + device, SERVER)
            latency_s[device] = shared.paths.latency_s(*down) + shared.paths.latency_s(*up)
            slowest_bps = min(shared.alone_bps(*down), shared.alone_bps(*up))
            steps = asked * model_bits / slowest_bps / float(links.mean_on_s[device])
            what = f"a round in which {asked} devices have outages as device {device}"
            check_steps("failures.up", steps, what)
    _check_told_apart(links.mean_off_s, latency_s)


def _check_told_apart(down_s: Arr, job_s: Arr) -> None:
    """Raise ConfigError if an outage is so short that it vanishes in the floating-point time at the end of a job."""
    if (late := job_s > LAST_CELL * down_s).any():
        device = int(late.argmax())
        raise ConfigError(
            f"failures.down: {down_s[device]:g} s is too short to be told from nothing at the end of a job of "
            f"{job_s[device]:g} s, as device {device} has"
        )


def _model_bits(setting: Setting) -> float:
    return 8.0 * float(setting.cost_profile.nbytes(Payload(), Submodel()))
