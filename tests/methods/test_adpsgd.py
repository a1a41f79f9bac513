"""AD-PSGD and the protocol of peers without rounds against a schedule of three devices, worked out on paper.

Source: Lian et al. (2018), algorithm 1: both devices of a trade keep the average of their models, then the device that
asked for it steps by a gradient that it took before.

The model is one number that starts at 0, the gradient of device k at x is x - (k + 1), and the learning rate 0.5.
Devices 0, 1 and 2 compute for 1, 2 and 5 s. A message has 4 bytes: 1 s at the sender's 32 bit/s, 0.5 s at the
receiver's 64 bit/s, so 1 s after twice 0.25 s of latency; a trade takes 1.5 s, as both ways pass at once. Devices 0 and
2 always trade with 1; device 1 with 2, and then with 0.

    1.0  0 has computed; it trades with 1 until 2.5
    2.0  1 has computed, and waits, as it is in that trade
    2.5  X0 = X1 = 0; X0 = 0 - 0.5 (0 - 1) = 0.5. 0 computes again until 3.5; 1 trades with 2 until 4.0
    3.5  0 has computed at 0.5, and waits for 1
    4.0  X1 = X2 = 0; X1 = 0 - 0.5 (0 - 2) = 1. 1 computes again until 6.0; 0 trades with 1 until 5.5
    5.0  2 has computed, and waits for 1
    5.5  X0 = X1 = (0.5 + 1) / 2 = 0.75; X0 = 0.75 - 0.5 (0.5 - 1) = 1. 2 trades with 1 until 7.0
    6.0  1 has computed at 1, and waits, as it is in that trade;  6.5  0 has computed at 1, and waits for 1
    7.0  X2 = X1 = (0 + 0.75) / 2 = 0.375; X2 = 0.375 - 0.5 (0 - 3) = 1.875. 1, who asked first, trades with 0 until 8.5
    8.5  X1 = X0 = (0.375 + 1) / 2 = 0.6875; X1 = 0.6875 - 0.5 (1 - 2) = 1.1875
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch

import edgesim
from edgesim.core.errors import ConfigError, ContractError
from edgesim.core.task import Order
from edgesim.execution.backends.serial import SerialBackend
from edgesim.methods.adpsgd import ADPSGD
from edgesim.runs.assembly import assemble
from edgesim.runs.simulation import Silent, Simulation
from tests.conftest import frames
from tests.contracts.support import mixed_scenario, prepare
from tests.plugins.one_number import numbers, scenario

LINKS = {"name": "fixed", "up": "32 bit/s", "down": "64 bit/s", "latency": "0.25 s"}
POWER = {"name": "power", "idle": "2 W", "busy": "5 W", "transmit": "1 W", "receive": "0.5 W"}
PARTNERS = ((1,), (2, 0), (1,))  # of the jobs of each device, the last one of all that follow
LR = 0.5


@dataclass(frozen=True, kw_only=True)
class Scripted(ADPSGD):
    """AD-PSGD with given partners, whose device k has the loss (x - (k + 1))^2 / 2."""

    partners: tuple[tuple[int, ...], ...] = PARTNERS

    def next_order(self, state: Any, turn: Any, key: Any) -> Order:
        """Return the order with the partner that the script says, if it is there."""
        script, order = self.partners[turn.device], super().next_order(state, turn, key)
        partner = script[min(turn.nth, len(script) - 1)]
        return order._replace(inputs=(partner,) if partner in turn.neighbours else ())

    def local(self, task: Any) -> Any:
        """Return AD-PSGD's rule with the gradient of that loss."""
        rule = super().local(task)

        def gradient(local: Any, batch: Any, context: Any) -> list[torch.Tensor]:
            return [local.weights["params"]["layer.weight"] - (context.device + 1.0)]

        return replace(rule, phases=(replace(rule.phases[0], gradient=gradient),))


def schedule(**changes: Any) -> edgesim.Scenario:
    """Return the scenario of the schedule above."""
    base = {
        "method": f"{__name__}:Scripted",
        "protocol": {"name": "gossip", "every": 5},
        "peers": "full",
        "network": LINKS,
        "energy": POWER,
        "training": {"batch": 3, "lr": LR},
        "stop": {"rounds": 1},
        "backend": "serial",
    }
    return scenario([1.0, 2.0, 5.0], **{**base, **changes})


def models(simulation: Simulation) -> list[float]:
    """Return what the devices have."""
    return [float(model["params"]["layer.weight"]) for _, model in sorted(simulation.learner.memory.items())]


@pytest.mark.parametrize("network", [LINKS, {**LINKS, "name": "shared"}], ids=["own links", "shared links"])
def test_the_schedule(network):
    """Instants, waits, bytes, joules and staleness, and the number of every device."""
    simulation, seen = numbers(schedule(network=network))
    tables = frames(simulation)
    ended = tables["jobs"][tables["jobs"]["outcome"] == "ok"]
    assert ended["device"].tolist() == [0, 1, 0, 2, 1]
    assert ended["sent_s"].tolist() == pytest.approx([0, 0, 2.5, 0, 4])
    assert ended["compute_s"].tolist() == pytest.approx([1, 2, 1, 5, 2])
    assert ended["up_s"].tolist() == pytest.approx([1.5, 2, 2, 2, 2.5])
    assert ended["link_wait_s"].tolist() == pytest.approx([0, 0.5, 0.5, 0.5, 1])
    assert ended["end_s"].tolist() == pytest.approx([2.5, 4, 5.5, 7, 8.5])
    for column in ("down_bytes", "up_bytes", "peer_bytes"):
        assert ended[column].tolist() == [4] * 5
    assert ended["compute_j"].tolist() == pytest.approx([3, 6, 3, 15, 6])  # 5 W - 2 W
    assert ended["down_j"].tolist() == pytest.approx([_receiving_j(network)] * 5)
    assert ended["up_j"].tolist() == pytest.approx([1] * 5)  # 1 W for 1 s
    assert ended["peer_j"].tolist() == pytest.approx([1 + _receiving_j(network)] * 5)  # the peer sends and receives
    (row,) = tables["rounds"].to_dict("records")
    assert (row["now_s"], row["used"], row["closed_by"]) == (pytest.approx(8.5), 5, "updates")
    assert (row["total_down_bytes"], row["total_up_bytes"]) == (40, 40)  # two messages a trade
    assert row["staleness_mean"] == pytest.approx((0 + 1 + 0 + 1 + 2) / 5)
    assert models(simulation) == pytest.approx([0.6875, 1.1875, 1.875])
    assert seen == [(pytest.approx(8.5), pytest.approx((0.6875 + 1.1875 + 1.875) / 3))]


def _receiving_j(network: dict[str, Any]) -> float:
    """Return 0.5 W for 0.5 s; over shared links a radio is on as long as the message passes, which is 1 s."""
    return 0.5 if network["name"] == "shared" else 0.25


def test_both_ends_are_charged():
    """Device 0 takes part in 3 trades, 1 in all 5, 2 in 2: each sends 4 bytes for 1 J and receives them for 0.25 J."""
    simulation = prepare(schedule())
    simulation.run()
    devices = simulation.devices()
    assert list(devices["down_bytes"][:3]) == list(devices["up_bytes"][:3]) == [12, 20, 8]
    assert list(devices["up_j"][:3]) == pytest.approx([3, 5, 2])
    assert list(devices["down_j"][:3]) == pytest.approx([0.75, 1.25, 0.5])


def test_a_round_is_so_many_updates():
    """With every = 1 each update closes a round, and the mean of all devices is the model."""
    _, seen = numbers(schedule(protocol={"name": "gossip", "every": 1}, stop={"rounds": 5}))
    assert [at_s for at_s, _ in seen] == pytest.approx([2.5, 4, 5.5, 7, 8.5])
    sums = [0.5, 0.5 + 1, 1 + 0.75 + 0, 1 + 0.375 + 1.875, 0.6875 + 1.1875 + 1.875]
    assert [number for _, number in seen] == pytest.approx([total / 3 for total in sums])


def test_as_many_updates_as_devices_unless_it_is_given():
    """Three devices: the first round closes with the third update."""
    simulation, _ = numbers(schedule(protocol="gossip"))
    assert frames(simulation)["rounds"]["now_s"].tolist() == pytest.approx([5.5])


def test_several_steps_a_job():
    """Two steps from 0 by 0.5 (0 - 1) and 0.5 (0.5 - 1) move device 0 by 0.75, once it has computed twice as long."""
    method = {"name": f"{__name__}:Scripted", "steps": 2}
    simulation, _ = numbers(schedule(method=method, protocol={"name": "gossip", "every": 1}))
    assert frames(simulation)["rounds"]["now_s"].tolist() == pytest.approx([2 + 1.5])
    assert models(simulation)[0] == pytest.approx(0.75)


def test_a_peer_that_leaves_in_mid_trade(tmp_path):
    """Device 1 leaves at 2 s for good: 0 goes on without the average, and half of a second on air has passed.

    The trade is on air from 1.5 s on; what moved in 0.5 s of 1 s is 2 of 4 bytes, both ways.
    """
    trace = tmp_path / "there.csv"
    trace.write_text("device,start,end\n0,0,100\n1,0,2\n2,0,100\n")
    there = {"name": "trace", "file": str(trace)}
    simulation, _ = numbers(schedule(availability=there, protocol={"name": "gossip", "every": 1}))
    jobs = frames(simulation)["jobs"].set_index("device")
    first = jobs.loc[[0]].iloc[0]
    assert (first["end_s"], first["outcome"]) == (pytest.approx(2), "ok")
    assert (first["down_bytes"], first["up_bytes"]) == (2, 2)
    assert (first["up_j"], first["down_j"]) == (pytest.approx(0.5), pytest.approx(0.125))
    assert jobs.loc[1, "outcome"] == "offline"
    assert models(simulation)[0] == pytest.approx(0.5)  # 0 - 0.5 (0 - 1), averaged with nobody


def test_a_neighbour_that_is_not_there_is_not_asked(tmp_path):
    """Device 1 is never there: 0 and 2 hear nobody, and go their own way."""
    trace = tmp_path / "there.csv"
    trace.write_text("device,start,end\n0,0,100\n1,90,100\n2,0,100\n")
    simulation, _ = numbers(schedule(availability={"name": "trace", "file": str(trace)}))
    jobs = frames(simulation)["jobs"]
    delivered = jobs[jobs["outcome"] == "ok"]
    assert delivered["end_s"].tolist() == pytest.approx([1, 2, 3, 4, 5, 5])
    assert sorted(delivered["device"]) == [0, 0, 0, 0, 0, 2]
    assert simulation.learner.memory.keys() == {0}  # of the two at 5 s the first is the fifth update, and ends the run
    assert delivered["down_bytes"].sum() == 0
    x = 0.0
    for _ in range((delivered["device"] == 0).sum()):
        x -= LR * (x - 1)
    assert models(simulation)[0] == pytest.approx(x)


def test_partners_depend_on_device_and_count_alone():
    """Ten times slower links move all instants; who trades with whom, job by job, stays."""

    def partners(latency: str) -> dict[int, list[int | None]]:
        network = {"name": "fixed", "up": "1 Mbit/s", "down": "1 Mbit/s", "latency": latency}
        fleet = {"count": 6, "cpu": {"flops_per_s": {"uniform": ["10 MFLOP/s", "50 MFLOP/s"]}}}
        changes = {"method": "adpsgd", "peers": "full", "network": network, "fleet": [fleet]}
        simulation = prepare(mixed_scenario(**changes, backend="null", stop={"rounds": 8}))
        sent: dict[int, list[Any]] = {}
        really = simulation.session.dispatch

        def dispatch(plan: Any, to: Any) -> Any:
            for order in plan.orders:
                sent.setdefault(order.device, []).append(order.inputs)
            return really(plan, to)

        simulation.session.dispatch = dispatch
        simulation.run()
        return sent

    quick, slow = partners("0.01 s"), partners("0.3 s")
    for device, chosen in quick.items():
        both = min(len(chosen), len(slow[device]))
        assert both > 1
        assert chosen[:both] == slow[device][:both]
    assert len({partner for chosen in quick.values() for partner in chosen}) > 3


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"encoding": {"up": {"values": "int8"}}}, "encoding.up: adpsgd averages models as they are"),
        ({"protocol": "sync"}, "protocol.name: adpsgd runs on gossip, found sync"),
        ({"method": "dpsgd", "protocol": "gossip"}, "protocol.name: dpsgd runs on sync, found gossip"),
        ({"peers": None}, "peers: adpsgd needs to know who hears whom"),
        ({"protocol": {"name": "gossip", "every": 0}}, "protocol.every: must be greater than or equal to 1"),
    ],
)
def test_what_does_not_fit_is_refused(changes, says):
    """One line with the key, what was found and what is allowed."""
    with pytest.raises(ConfigError) as caught:
        prepare(schedule(**{"method": "adpsgd", **changes}))
    assert str(caught.value).startswith(says)


def test_peers_that_do_not_hear_each_other_are_refused():
    """Of six devices in an exponential graph 1 hears 0, and 0 hears 2, 4 and 5."""
    with pytest.raises(ConfigError, match=r"peers\.name: adpsgd needs peers that hear each other"):
        prepare(mixed_scenario(method="adpsgd", peers="exponential"))


@dataclass(frozen=True, kw_only=True)
class Astray(ADPSGD):
    """Names a peer that it does not hear."""

    def next_order(self, state: Any, turn: Any, key: Any) -> Order:
        """Return an order with oneself as the partner."""
        return super().next_order(state, turn, key)._replace(inputs=(turn.device,))


def test_a_stranger_is_no_partner():
    """A method that breaks the promise is named."""
    parts = assemble(schedule(method=f"{__name__}:Astray"))
    simulation = Simulation(parts, SerialBackend(parts.make_trainer("cpu")), Silent())
    with pytest.raises(ContractError, match=r"Astray.next_order\(\) names device 0, which is no neighbour"):
        simulation.run()


# The test of each key of the methods, here or in another file.
OPTIONS = {
    "adpsgd": {
        "steps": "test_several_steps_a_job",
    },
}
