"""Whole apps over the clock of an app: both APIs, and Flower's own simulation beside it."""

from __future__ import annotations

import importlib
import os
import sys
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from edgesim.core.errors import ConfigError, EdgesimError
from edgesim.core.rng import Key
from edgesim.flower import compat
from edgesim.flower.app import FlowerApp, app_folder
from edgesim.flower.app_modules import AppModules
from edgesim.flower.process_state import put_back, seed_all, single_thread
from tests.flower.fake_clock import FakeClock
from tests.flower.running import APPS, HEAD, app_of, ran
from tests.sizes import full


def test_fedavg_of_the_newer_api():
    """Rounds of a training and an evaluation; the server part's own evaluation is the main score."""
    clock = ran("torch_fedavg").clock
    assert [(call.kind, call.group) for call in clock.calls[::3]] == [(kind, group) for group in "12"
                                                                      for kind in ("train", "evaluate")]  # fmt: skip
    assert clock.now_s == 4.0  # each of them takes a second of every device
    assert [(at_s, split) for at_s, split, _, _ in clock.scores] == [
        *((0.0, "test"), (2.0, "devices"), (2.0, "test"), (4.0, "devices"), (4.0, "test")),
    ]
    assert all(set(metrics) == {"loss", "accuracy"} for _, _, metrics, _ in clock.scores)
    assert clock.notes[:2] == [{"spread": 0.5}, {"train_loss": pytest.approx(1.1, abs=0.2)}]
    assert not any(called.failure or called.warnings for called in clock.called)
    # a pass over 40 samples: forward 2 m k n a layer, backward twice that but not for the first layer's inputs
    assert clock.called[0].work.flops == 40 * (4 * 8 * 16 + 6 * 16 * 3)


def test_without_evaluation_at_the_server_the_clients_means_are_the_score():
    """Metrics of clients, weighted by their samples."""
    clock = ran("torch_fedavg", {"server-evaluates": False, "rounds": 1}).clock
    assert [(split, samples) for _, split, _, samples in clock.scores] == [("test", 120)]


def test_fedadam_of_the_older_api():
    """The host threads of the older API are gone: all messages of a round leave at one instant."""
    clock = ran("legacy_fedadam", takes_s=lambda call: 1.0 + call.device).clock
    assert clock.now_s == 12.0  # four times the slowest device, which takes 3 s
    assert [score[1:] for score in clock.scores] == [
        ("test", {"loss": pytest.approx(loss, rel=1e-4), "accuracy": 0.5}, 30) for loss in (2.2274, 4.7970)
    ]
    assert clock.notes == [{"moved": 1.0}] * 2


def test_a_strategy_and_clients_with_state():
    """A strategy of the app's own; clients count their calls; what they do to a message stays with them."""
    result = ran("strategies")
    assert result.context.state["result"]["x"].numpy().tolist() == [10.0] * 4  # two halves of steps of 10
    assert result.clock.notes == [{"calls": 1.0}, {"calls": 2.0}]
    assert [score[1:] for score in result.clock.scores] == [("test", {"accuracy": 0.5}, 12)] * 2


def test_differential_privacy_clips_at_the_client():
    """A mod of Flower scales updates of norm 20 to norm 1, and the strategy takes half a step of that."""
    result = ran("strategies", {"private": True, "rounds": 1})
    assert np.linalg.norm(result.context.state["result"]["x"].numpy()) == pytest.approx(0.5)


def test_secure_aggregation():
    """SecAgg+ in four exchanges: the server gets the mean, up to its quantisation."""
    result = ran("secure_aggregation")
    assert result.context.state["mean"]["x"].numpy() == pytest.approx(1.0, abs=1e-3)
    assert [call.kind for call in result.clock.calls] == ["train"] * 12
    assert not any(called.failure for called in result.clock.called)


def test_an_asynchronous_loop():
    """A loop without pauses sees every reply when it arrives; one with pauses at its next look."""
    takes = {"takes_s": lambda call: 1.0 + call.device}
    times = ran("asynchronous", **takes).context.state["times"]
    start_s = times["at"][0] - 1.0
    assert [at_s - start_s for at_s in times["at"]] == [1.0, 2.0, 2.0, 3.0, 3.0, 4.0, 4.0]
    assert times["partitions"] == [0, 1, 0, 2, 0, 1, 0]  # of one instant in the order of sending
    slower = ran("asynchronous", {"pause": 0.75}, **takes).context.state["times"]
    assert [at_s - start_s for at_s in slower["at"]] == [1.5, 2.25, 3.0, 3.0, 4.5, 4.5]


def test_runs_repeat_and_leave_the_process_as_it_was():
    """Equal keys give equal messages; generators, modules and the clock of the process are its own again."""
    before = np.random.get_state()[1].tolist(), set(sys.modules)  # noqa: NPY002
    first, second = (ran("torch_fedavg", {"rounds": 1}).clock for _ in range(2))
    assert [call.content for call in first.calls] == [call.content for call in second.calls]
    assert [called.content for called in first.called] == [called.content for called in second.called]
    assert np.random.get_state()[1].tolist() == before[0]  # noqa: NPY002
    assert not {name for name in set(sys.modules) - before[1] if name.startswith(("small", "app"))}
    assert np.allclose(first.now_s, second.now_s)


def test_the_server_part_has_a_folder_and_settings_of_its_own(tmp_path):
    """Devices and the event loop do not see what it sets, and it finds that again after it has waited."""
    root = 'root=int(__import__("os").getcwd() == "/")'
    source = (
        HEAD.replace('partition=context.node_config["partition-id"]', root)
        + """
@server.main()
def main(grid, context):
    import os, random
    os.chdir("/"); os.environ["EDGESIM_X"] = "1"
    first = random.random()
    replies = grid.send_and_receive(messages(grid.get_node_ids()))
    kept = {"root": [reply.content["metrics"]["root"] for reply in replies], "drawn": [first, random.random()]}
    context.state["kept"] = MetricRecord({**kept, "found": int(os.getcwd() == "/" and "EDGESIM_X" in os.environ)})
"""
    )
    folder = os.getcwd()  # noqa: PTH109
    kept = [ran(app_of(tmp_path, source), seed=seed).context.state["kept"] for seed in (1, 1, 2)]
    assert kept[0]["root"] == [0, 0, 0]
    assert kept[0]["found"] == 1
    assert kept[0]["drawn"] == kept[1]["drawn"] != kept[2]["drawn"]
    assert (os.getcwd(), "EDGESIM_X" in os.environ) == (folder, False)  # noqa: PTH109


def test_an_error_of_the_server_part_is_one_line(tmp_path):
    """It names the line of the app."""
    source = HEAD + "@server.main()\ndef main(grid, context):\n    time.sleep(2)\n    raise KeyError('lost')\n"
    with pytest.raises(
        EdgesimError, match=r"^the server part of the app failed at 2 s: KeyError: 'lost' \(app.py:24\)$"
    ):
        ran(app_of(tmp_path, source))


@pytest.mark.parametrize(("source", "said"), [
    ("import nothing_like_it", r"ModuleNotFoundError: No module named 'nothing_like_it' \(app.py:1\)"),
    ("client = server = 3", "app:server in .* is no ServerApp"),
    ("import sys; sys.exit(3)", r"SystemExit: 3 \(app.py:1\)"),
])  # fmt: skip
def test_an_app_that_cannot_be_loaded(tmp_path, source, said):
    """One line names the file and its error."""
    with pytest.raises(ConfigError, match=said):
        FlowerApp(path=str(app_of(tmp_path, source))).open(2, Key(0))


def test_the_older_api_waits_for_nodes_in_simulated_time():
    """A client manager that lacks clients asks again every 5 simulated seconds."""
    clock = ran("legacy_fedadam", {"rounds": 1}, reachable=lambda now_s: range(3 if now_s > 7 else 1)).clock
    assert clock.now_s == 10.0 + 2.0


def test_the_newer_api_waits_for_nodes_in_simulated_time():
    """A strategy that lacks nodes asks again every simulated second."""
    clock = ran("strategies", {"rounds": 1}, reachable=lambda now_s: range(3 if now_s > 7 else 1)).clock
    assert clock.now_s == 8.0 + 2.0


@full
def test_equal_to_the_simulation_of_flower(tmp_path, monkeypatch):
    """At equal node ids, seeds and orders of nodes and replies, Flower's own simulation gives the same, bit by bit."""
    import torch

    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    ours.mkdir()
    theirs.mkdir()
    config = app_of_fedavg(tmp_path)
    app = FlowerApp(path=str(config), config={"folder": str(ours)})
    code, serve = app.open(3, Key(4))
    clock = FakeClock(code, 3, seed=_seed)
    serve(clock)
    metrics = run_with_flower(config, {"folder": str(theirs)}, code, monkeypatch)
    expected, found = (torch.load(folder / "final.pt") for folder in (theirs, ours))
    assert set(expected) == set(found)
    assert max(float((expected[name] - found[name]).abs().max()) for name in expected) == 0.0
    sent = [sum(each.device == call.device for each in clock.calls[:place]) for place, call in enumerate(clock.calls)]
    in_order = sorted(range(len(sent)), key=lambda place: (sent[place], clock.calls[place].device))
    assert metrics == [_metrics(clock.called[place].content) for place in in_order]


def _seed(device: int, nth: int) -> int:
    return 1000 * device + nth


def _metrics(content: bytes) -> dict[str, float]:
    return dict(compat.message_from_bytes(content).content["metrics"])


def app_of_fedavg(folder: Any) -> Any:
    """Copy the app with a place for its results."""
    import shutil

    copied = shutil.copytree(APPS / "torch_fedavg", folder / "app")
    file = copied / "pyproject.toml"
    file.write_text(file.read_text().replace("rounds = 2", 'rounds = 2\nfolder = ""'))
    return copied


def run_with_flower(folder: Any, overrides: dict[str, Any], code: Any, monkeypatch: Any) -> list[dict[str, float]]:
    """Run an app in Flower's simulation with a serial backend; return the clients' metrics in the order of calls."""
    from flwr.server.superlink.fleet.vce.backend.backend import Backend
    from flwr.server.superlink.linkstate import in_memory_linkstate

    run_simulation = importlib.import_module("flwr.simulation.run_simulation")  # whose function hides it
    from flwr.supercore.constant import NOOP_FEDERATION_ID
    from flwr.superlink.grid import InMemoryGrid

    found = app_folder(folder)
    ids = iter(code.node_ids)
    device_of = {node_id: device for device, node_id in enumerate(code.node_ids)}
    calls: list[tuple[int, int, dict[str, float]]] = []
    client_modules, server_modules = AppModules(folder), AppModules(folder)

    class Serial(Backend):
        """One call after the other, seeded by device and number."""

        def __init__(self, config: Any) -> None:
            self._sent = [0] * 3

        def build(self, app_fn: Any) -> None:
            self._app = app_fn()

        @property
        def num_workers(self) -> int:
            return 1

        def is_worker_idle(self) -> bool:
            return True

        def terminate(self) -> None:
            pass

        def process_message(self, message: Any, context: Any) -> Any:
            device = device_of[context.node_id]
            with put_back():  # as if in a process of its own
                seed_all(_seed(device, self._sent[device]))
                reply = self._app(message, context)
            calls.append((self._sent[device], device, dict(reply.content["metrics"])))
            self._sent[device] += 1
            return reply, context

    def in_order(self: Any, messages: Any, *, timeout: Any = None) -> Any:
        messages = list(messages)
        places = {message.metadata.dst_node_id: place for place, message in enumerate(messages)}
        return sorted(plain(self, messages, timeout=timeout), key=lambda reply: places[reply.metadata.src_node_id])

    plain, nodes = InMemoryGrid.send_and_receive, InMemoryGrid.get_node_ids
    monkeypatch.setenv("FLWR_TELEMETRY_ENABLED", "0")
    monkeypatch.setattr(InMemoryGrid, "send_and_receive", in_order)
    monkeypatch.setattr(InMemoryGrid, "get_node_ids", lambda self: sorted(nodes(self)))
    monkeypatch.setattr(in_memory_linkstate, "generate_rand_int_from_bytes", lambda *args, **kwargs: next(ids))
    monkeypatch.setattr(run_simulation, "event", lambda *args, **kwargs: None)
    backend = ModuleType("raybackend")
    backend.RayBackend = Serial  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "flwr.server.superlink.fleet.vce.backend.raybackend", backend)
    with client_modules.entered():
        client_app = client_modules.attribute(found.clientapp, compat.ClientApp)
    run = compat.new_run(code.run_id, overrides)
    run.primary_task_id, run.federation_id = 1, NOOP_FEDERATION_ID
    context = compat.Context(run_id=code.run_id, node_id=1, node_config={}, state=compat.RecordDict(),
                             run_config={**found.config, **overrides})  # fmt: skip
    with put_back(), compat.task_identity(code.run_id), server_modules.entered():
        single_thread()
        run_simulation._run_simulation(
            num_supernodes=3,
            exit_event=None,
            client_app=client_app,
            server_app=server_modules.attribute(found.serverapp, compat.ServerApp),
            backend_name="serial",
            server_app_context=context,
            app_dir=str(folder),
            run=run,
            is_app=True,
        )
    return [metrics for _, _, metrics in sorted(calls)]
