"""Whether outages of links are few enough to be gone through one by one, and long enough to be told from nothing."""

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
    """Raise ConfigError if links go down too often, or for too short, for a run to go through their outages.

    `shared`: None if every device has links of its own; `peers`: who hears whom in the first round, None with a server.
    """
    if shared is not None and peers is not None:
        _check_among_peers(peers, fleet, links, setting)
    elif shared is not None:
        _check_shared(scenario, fleet, links, setting, shared)
    _check_alone(fleet, links, setting)


def check_prices(fleet: Fleet, setting: Setting) -> Prices[Arr]:
    """Return what the whole model costs each device, whose link never goes down.

    Raises ConfigError if it takes some device more changes of load than can be gone through.
    """
    whole_model = Task(local_sgd=(setting.training.local_sgd(0),))
    return Pricer(fleet, setting).of_devices(whole_model, np.arange(len(fleet)))


def _check_alone(fleet: Fleet, links: OnOff, setting: Setting) -> None:
    """Raise ConfigError if the whole model takes some device more outages than can be gone through."""
    prices = check_prices(fleet, setting)
    _check_told_apart(links.mean_off_s, prices.down_s + prices.compute_s + prices.up_s)
    air_s = np.maximum(prices.down_s - prices.down_latency_s, prices.up_s - prices.up_latency_s)
    up_s = links.mean_on_s
    device = int(np.argmax(air_s / up_s))
    link = f"the link of device {device}, up for {up_s[device]:g} s at a time,"
    check_steps(
        "failures.up", float(air_s[device] / up_s[device]), f"a model that takes {air_s[device]:g} s over {link}"
    )


def _check_shared(scenario: Scenario, fleet: Fleet, links: OnOff, setting: Setting, shared: SharedNetwork) -> None:
    """Raise ConfigError if a round has more outages than can be gone through, one by one for every job.

    A model takes as long as the slowest link of its path lets it if it has the link to itself. Of each fleet block
    those devices are asked whose links go down most often or for the shortest time, and the first and last.
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


def _check_among_peers(peers: PeerGraph, fleet: Fleet, links: OnOff, setting: Setting) -> None:
    """Raise ConfigError if the messages of a device have more outages in a round than can be gone through.

    As many flow at a time as it hears and is heard by in the first round, and share its own access to the links.
    """
    messages = np.bincount(np.concatenate([peers.sources, peers.targets]), minlength=len(fleet))
    steps = messages**2 * _model_bits(setting) / np.minimum(fleet.up_bps, fleet.down_bps) / links.mean_on_s
    device = int(steps.argmax())
    what = f"a round in which device {device} exchanges {messages[device]} messages"
    check_steps("failures.up", float(steps[device]), what)
    _check_told_apart(links.mean_off_s, 2.0 * fleet.latency_s)


def _check_told_apart(down_s: Arr, job_s: Arr) -> None:
    """Raise ConfigError if an outage is too short to end: at the end of a job floats cannot tell it from nothing."""
    if (late := job_s > LAST_CELL * down_s).any():
        device = int(late.argmax())
        raise ConfigError(
            f"failures.down: {down_s[device]:g} s is too short to be told from nothing at the end of a job of "
            f"{job_s[device]:g} s, as device {device} has"
        )


def _model_bits(setting: Setting) -> float:
    return 8.0 * float(setting.cost_profile.nbytes(Payload(), Submodel()))
