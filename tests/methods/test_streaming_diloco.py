"""Streaming DiLoCo against seconds and joules on paper, and against whole runs in a few lines of PyTorch.

Source: Douillard et al. (2025), algorithm 2.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from torch.nn.functional import cross_entropy

from edgesim.core.errors import ConfigError
from edgesim.core.task import Payload, Task
from edgesim.methods.streaming_diloco import StreamingDiLoCo
from tests.conftest import frames, simulate_null, timing_scenario
from tests.contracts.support import mixed_scenario, run
from tests.contracts.whole_runs import check_whole_runs
from tests.engine.spent import charged_j
from tests.methods.hand_made import KEY, message_of, model_of, server_of, setting_of, view_of
from tests.methods.plain_torch import flat, layer, mean, network_of, rounds_of, three_devices, weights_of
from tests.methods.recorded import close_to, record
from tests.sizes import full

# Parameters of cnn_cifar10 by layer: conv1, conv2, fc1, fc2, fc3. Two strided fragments.
FIRST, SECOND = 1216 + 400500 + 3010, 12832 + 150300
BITS = 32 * FIRST, 32 * SECOND
POWER = {"name": "power", "idle": "2 W", "busy": "5 W", "transmit": "1 W", "receive": "0.5 W"}
SPEED = 7.3806e8  # FLOP/s with which a device trains cnn_cifar10 on 25 batches of 20 in 10 s
TIMES = ["sent_s", "down_s", "compute_s", "up_s", "end_s", "down_bytes", "up_bytes", "down_j", "compute_j", "up_j"]
ACCESS = {"name": "shared", "up": "1 Mbit/s", "down": "4 Mbit/s", "latency": "0.1 s"}


def streaming(**changes: Any) -> Any:
    """Two devices, the second half as fast as the first: 10 s and 20 s of computing a round; timing only."""
    base: dict[str, Any] = {
        "method": {"name": "streaming_diloco", "fragments": 2},
        "training": {"batch": 20, "local_steps": 25},
        "network": ACCESS,
        "energy": POWER,
        "stop": {"rounds": 3},
        "fleet": [{"cpu": {"flops_per_s": speed}} for speed in (SPEED, SPEED / 2)],
    }
    return timing_scenario(**{**base, **changes})


def jobs_of(**changes: Any) -> Any:
    """Return the jobs of a timing-only run, by round and device."""
    return frames(simulate_null(streaming(**changes)))["jobs"].sort_values(["round", "device"], ignore_index=True)


# --- seconds, bytes and joules ------------------------------------------------------------------------------------


def test_an_overlapped_round_by_hand() -> None:
    """A server that receives 1 Mbit/s: both upload the first fragment at half of it, while they compute 10 s and 20 s.

    The uploads last 26.0 s, longer than both compute. In the next round the second fragment takes 10.5 s up while the
    first one comes down in 3.3 s: the slower device ends the round by computing.
    """
    limits = {"name": "star", "server_down": "1 Mbit/s"}
    simulation = simulate_null(streaming(topology=limits))
    tables = frames(simulation)
    jobs = tables["jobs"].sort_values(["round", "device"], ignore_index=True)
    first, second, third = (jobs[jobs["round"] == round_] for round_ in range(3))
    whole_s = 0.1 + 32 * (FIRST + SECOND) / 4e6
    assert first["down_s"].tolist() == pytest.approx([whole_s] * 2)  # no overlap in the first round
    assert first["up_s"].tolist() == pytest.approx([0.1] * 2)  # an empty message
    assert (first["end_s"] - first["sent_s"]).tolist() == pytest.approx([whole_s + 10.1, whole_s + 20.1])
    # the second round: each gets half of the server's link
    up_s = 0.1 + BITS[0] / 0.5e6
    assert up_s > 20
    assert (second["end_s"] - second["sent_s"]).tolist() == pytest.approx([up_s] * 2)
    assert second["compute_s"].tolist() == pytest.approx([10, 20])
    assert second["up_s"].tolist() == pytest.approx([up_s - 10, up_s - 20])
    assert second["down_s"].tolist() == [0, 0]
    assert second["up_bytes"].tolist() == [BITS[0] / 8] * 2 and second["down_bytes"].tolist() == [0, 0]
    assert second["up_j"].tolist() == pytest.approx([BITS[0] / 0.5e6] * 2)  # 1 W while bits flow
    assert second["compute_j"].tolist() == pytest.approx([3 * 10, 3 * 20])
    # the third: 3 FLOPs for each number mixed in; transfers are covered by the slower device's computing
    up_s, down_s, mixing_s = 0.1 + BITS[1] / 0.5e6, 0.1 + BITS[0] / 4e6, 3 * FIRST / SPEED
    assert down_s < 10 < up_s < 20
    assert third["compute_s"].tolist() == pytest.approx([10 + mixing_s, 20 + 2 * mixing_s])
    assert third["up_s"].tolist() == pytest.approx([up_s - 10 - mixing_s, 0])
    assert (third["end_s"] - third["sent_s"]).tolist() == pytest.approx([up_s, 20 + 2 * mixing_s])
    assert third["down_bytes"].tolist() == [BITS[0] / 8] * 2 and third["up_bytes"].tolist() == [BITS[1] / 8] * 2
    assert third["down_j"].tolist() == pytest.approx([0.5 * BITS[0] / 4e6] * 2)
    # all joules: 2 W idle on two devices for the whole run, and what the jobs say
    spent_j = jobs[["down_j", "compute_j", "up_j"]].sum().sum()
    now_s = simulation.session.now_s
    assert charged_j(simulation.ledger, now_s) == pytest.approx(spent_j + 2 * 2 * now_s, rel=1e-9)
    assert tables["rounds"]["total_energy_j"].iloc[-1] == pytest.approx(spent_j + 2 * 2 * now_s, rel=1e-9)


def test_without_a_common_bottleneck_they_are_fixed_links() -> None:
    """One timeout for a job of known lengths gives what three flows give."""
    shared, fixed = jobs_of(), jobs_of(network={**ACCESS, "name": "fixed"})
    assert shared[TIMES].to_numpy() == pytest.approx(fixed[TIMES].to_numpy(), rel=1e-9)


@pytest.mark.parametrize("after_s", [0.05, 5.0, 11.0, 18.0])
@pytest.mark.parametrize("kind", ["shared", "fixed"])
def test_a_run_that_stops_in_mid_round_charges_what_has_passed(kind: str, after_s: float) -> None:
    """So many seconds into the second round: the share of each phase by itself, all of them from the start.

    Over shared links a latency that no bit has followed yet counts as a whole in `lacked_s`.
    """
    begin_s = jobs_of().query("round == 1")["sent_s"].iloc[0]
    stop = {"sim_time": begin_s + after_s, "rounds": 3}
    simulation = simulate_null(streaming(network={**ACCESS, "name": kind}, stop=stop))
    jobs = frames(simulation)["jobs"].query("round == 1").sort_values("device")
    up_s = BITS[0] / 1e6
    shares = [min(1.0, max(0.0, after_s - 0.1) / up_s)] * 2
    assert jobs["up_bytes"].tolist() == pytest.approx([share * BITS[0] / 8 for share in shares], abs=1.001)
    assert jobs["up_j"].tolist() == pytest.approx([share * up_s for share in shares])
    assert jobs["compute_j"].tolist() == pytest.approx([3 * min(after_s, 10), 3 * min(after_s, 20)])
    ends_s = [min(after_s, 0.1 + up_s), after_s]
    assert jobs[["down_s", "compute_s", "up_s"]].sum(axis=1).tolist() == pytest.approx(ends_s)
    assert (jobs["end_s"] - jobs["sent_s"]).tolist() == pytest.approx(ends_s)
    up_lacks_s = up_s + 0.1 if kind == "shared" and after_s < 0.1 else max(0.0, 0.1 + up_s - after_s)
    lacks_s = [max(0.0, 10 - after_s, up_lacks_s), 20 - after_s]
    assert jobs["lacked_s"].tolist() == pytest.approx(lacks_s)


def test_a_fragment_goes_up_every_second_round() -> None:
    """With every = 2 a fragment goes up in rounds 2, 4, 6 and comes down a round later; in others nothing passes."""
    jobs = jobs_of(method={"name": "streaming_diloco", "fragments": 2, "every": 2}, stop={"rounds": 8})
    of_one = jobs[jobs["device"] == 0]
    assert of_one["up_bytes"].tolist() == [n // 8 for n in (0, 0, BITS[0], 0, BITS[1], 0, BITS[0], 0)]
    whole = sum(BITS)
    assert of_one["down_bytes"].tolist() == [n // 8 for n in (whole, 0, 0, BITS[0], 0, BITS[1], 0, BITS[0])]


def test_runs_of_layers() -> None:
    """Sequential: conv1, conv2 and then the three linear layers."""
    jobs = jobs_of(method={"name": "streaming_diloco", "fragments": 2, "pattern": "sequential"})
    assert jobs[jobs["device"] == 0]["up_bytes"].tolist() == [0, 4 * (1216 + 12832), 4 * (400500 + 150300 + 3010)]


# --- values -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("alpha", "inner_state"), [(0.5, "keep"), (0.0, "keep"), (0.25, "reset")])
def test_six_rounds_in_plain_torch(alpha: float, inner_state: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three workers that never stop, a server with Nesterov momentum for each fragment, and two rounds of delay."""
    jobs, settings = record(monkeypatch), {"lr": 2e-3, "weight_decay": 0.1}
    method = {"name": "streaming_diloco", "fragments": 2, "alpha": alpha, "inner_state": inner_state}
    training = {"batch": 16, "local_steps": 3, "optimizer": "adamw", **settings}
    made = run(three_devices(method, training=training, selection="all", stop={"rounds": 6}))
    x: Any = flat(jobs[0].assignment.global_model)
    fragments = [("conv1", "fc1"), ("conv2",)]
    outer_weights = {name: torch.nn.Parameter(tensor.double()) for name, tensor in x.items()}
    outer = [
        torch.optim.SGD([w for n, w in outer_weights.items() if layer(n) in names], lr=0.7, momentum=0.9, nesterov=True)
        for names in fragments
    ]
    networks = [network_of(job, x) for job in jobs[:3]]
    inner = [torch.optim.AdamW(network.parameters(), **settings) for network in networks]
    for nth, round_ in enumerate(rounds_of(jobs)):
        sent = [weights_of(network) for network in networks]
        got = dict(x)
        for worker, job in enumerate(round_):
            if inner_state == "reset":
                inner[worker] = torch.optim.AdamW(networks[worker].parameters(), **settings)
            for batch_x, batch_y in job.batches():
                inner[worker].zero_grad()
                cross_entropy(networks[worker](batch_x), batch_y).backward()
                inner[worker].step()
        if nth >= 1:  # the server has the fragment that was sent at the start of the round
            place = (nth - 1) % 2
            middle = mean(sent, [1, 1, 1])
            for name, weight in outer_weights.items():
                weight.grad = (x[name] - middle[name]).double() if layer(name) in fragments[place] else None
            outer[place].step()
            x = {name: weight.detach().float() for name, weight in outer_weights.items()}
        if nth >= 2:  # what the server made in the round before arrives
            for network in networks:
                with torch.no_grad():
                    for name, parameter in network.named_parameters():
                        if layer(name) in fragments[(nth - 2) % 2]:
                            parameter.copy_(alpha * parameter + (1 - alpha) * got[name])
    close_to(flat(made.learner.weights()), x, atol=1e-5)


def test_only_the_fragment_steps() -> None:
    """Layer b does not arrive: its weights and its velocity stay."""
    method = StreamingDiLoCo(fragments=2)
    server = server_of(view_of(setting_of([1, 1], {"a": 2, "b": 1})))
    model = model_of({"a": [1.0, 2.0], "b": [3.0]})
    state = method.init(server.setting, KEY)
    state = {**state, "moments": {"b.weight": {"velocity": torch.ones(1)}}}
    task = Task(up=Payload(layers=frozenset({"a"})))
    updates = [message_of(k, 1, {"a": [2.0, 2.0]})._replace(task=task) for k in range(2)]
    made = method.aggregate(state, model, updates, server, KEY)
    assert made.model is not None
    assert made.model["params"]["a.weight"].tolist() == pytest.approx([1.0 + 1.33, 2.0])
    assert made.model["params"]["b.weight"].tolist() == [3.0]
    assert made.state["moments"]["b.weight"]["velocity"].tolist() == [1.0]
    assert method.merge_flops_of([task], server.setting) == 2 * 7


def test_a_diverged_worker_is_left_out() -> None:
    method = StreamingDiLoCo(fragments=2)
    server = server_of(view_of(setting_of([1, 1], {"a": 1, "b": 1})))
    updates = [message_of(0, 1, {"a": [2.0]}), message_of(1, 1, {"a": [float("nan")]})]
    made = method.aggregate(method.init(server.setting, KEY), model_of({"a": [1.0], "b": [3.0]}), updates, server, KEY)
    assert made.model is not None
    assert made.model["params"]["a.weight"].tolist() == pytest.approx([2.33])
    assert made.metrics["left_out"] == 1


def test_four_bits() -> None:
    """Outer gradients of 4 bits a weight take less than a fifth of the bytes, and training stays finite."""
    encoding = {"up": {"values": "qsgd", "bits": 4, "update": True}}
    short, long = (
        run(mixed_scenario(method="streaming_diloco", stop={"rounds": 4}, **changes))
        for changes in ({"encoding": encoding}, {})
    )
    sent = [int(each.tables["jobs"].frame()["up_bytes"].sum()) for each in (short, long)]
    assert sent[0] < 0.2 * sent[1]
    assert all(t.isfinite().all() for t in short.learner.weights()["params"].values())


@full
def test_whole_runs_are_answered_and_resumed(tmp_path: Any) -> None:
    check_whole_runs(partial(mixed_scenario, method="streaming_diloco"), tmp_path)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"method": {"name": "streaming_diloco", "fragments": 9}}, r"method\.fragments: must be at most .* found 9"),
        ({"method": {"name": "streaming_diloco", "fragments": 1}}, r"method\.fragments: fragments x every must be at"),
        ({"selection": {"name": "uniform", "count": 1}}, r"selection\.name: streaming_diloco needs every device"),
        ({"availability": "diurnal"}, r"availability: streaming_diloco needs every device .* found 'diurnal'"),
        ({"failures": [{"name": "crash", "probability": 0.1}]}, r"failures: streaming_diloco sends .* found 'crash'"),
        ({"protocol": {"name": "deadline", "deadline": "9 s"}}, r"protocol\.name: streaming_diloco runs on sync"),
        (
            {"fleet": [{"cpu": {"flops_per_s": 1e9}, "battery": {"capacity": "20 J"}}]},
            r"fleet\.battery: streaming_diloco sends",
        ),
        ({"server_optimizer": "adam"}, r"server_optimizer: streaming_diloco steps by an optimiser of its own"),
    ],
)
def test_bad_settings_end_in_a_line(changes: Any, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        simulate_null(streaming(**changes))


# The test of each key of the method, here or in another file.
OPTIONS = {
    "streaming_diloco": {
        "fragments": "test_an_overlapped_round_by_hand",
        "pattern": "test_runs_of_layers",
        "every": "test_a_fragment_goes_up_every_second_round",
        "alpha": "test_six_rounds_in_plain_torch",
        "inner_state": "test_six_rounds_in_plain_torch",
        "lr": "test_diloco.py::test_the_outer_step_is_that_of_torch",
        "momentum": "test_diloco.py::test_the_outer_step_is_that_of_torch",
        "nesterov": "test_diloco.py::test_the_outer_step_is_that_of_torch",
        "weights": "test_diloco.py::test_the_outer_step_is_that_of_torch",
    }
}
