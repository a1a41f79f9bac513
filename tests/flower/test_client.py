"""Calls of a ClientApp on a device."""

from __future__ import annotations

import os
import pickle
import random
import sys
import warnings

import numpy as np
import pytest

from edgesim.core.app import Call
from edgesim.core.rng import Key
from edgesim.files.loaded_code import Unidentified
from edgesim.flower import compat
from edgesim.flower.app import FlowerApp
from tests.flower.running import HEAD, app_of
from tests.sizes import full, spread


def device_part(folder, body, **settings):
    """Return the device part of an app whose function of training is `body`, for two devices."""
    lines = "".join(f"    {line}\n" for line in body.strip().splitlines())
    source = HEAD.replace('    return reply(message, partition=context.node_config["partition-id"])\n', lines)
    return FlowerApp(path=str(app_of(folder, source, "rate = 0.5")), **settings).open(2, Key(3))[0]


def call_of(code, device=0, nth=1):
    """Return a call that trains."""
    with compat.task_identity(code.run_id):
        message = compat.Message(compat.RecordDict(), code.node_ids[device], "train")
    compat.set_metadata(message, message_id=str(nth), created_at=1.7e9)
    return Call(nth, device, "train", "1", compat.message_to_bytes(message))


def answer(called):
    """Return the reply of a call."""
    return compat.message_from_bytes(called.content)


def test_what_a_client_sees(tmp_path):
    """Partition by device, the fused configuration, its node, and the state that it kept."""
    code = device_part(tmp_path, """
count = context.state["kept"]["count"] + 1 if "kept" in context.state else 1
context.state["kept"] = MetricRecord({"count": count})
config = {**context.node_config, **context.run_config, "node": context.node_id, "count": count}
return reply(message, **{name: value for name, value in config.items()})
""", config={"rate": 0.25})  # fmt: skip
    first = code.call(call_of(code, 1), b"", 0)
    second = pickle.loads(pickle.dumps(code)).call(call_of(code, 1, 2), first.state, 0)
    expected = {"partition-id": 1, "num-partitions": 2, "rate": 0.25, "node": code.node_ids[1]}
    assert dict(answer(first).content["metrics"]) == {**expected, "count": 1}
    assert dict(answer(second).content["metrics"]) == {**expected, "count": 2}
    assert answer(second).metadata.reply_to_message_id == "2"
    assert (first.work.down_bytes, first.work.up_bytes) == (len(call_of(code, 1).content), len(first.content))


@pytest.mark.parametrize(("body", "failure", "code_of_error"), [
    ("raise ValueError('too\\nbad')", "ValueError: too bad (app.py:19)", 2),
    ("import sys; sys.exit(4)", "SystemExit: 4 (app.py:19)", 2),
    ("raise KeyboardInterrupt", "KeyboardInterrupt (app.py:19)", 2),
    ("raise MemoryError", "MemoryError (app.py:19)", 2),
    ("return train(message, context)", "RecursionError: maximum recursion depth exceeded", 2),
    ("return 7", "TypeError: the ClientApp returned int, not a Message", 2),
    ("context.run_config['rate'] = 3\nreturn reply(message)", "ChangedRunConfig: The `run_config` field", 0),
    ("context.state = 3\nreturn reply(message)", "AttributeError: 'int' object has no attribute 'items'", 2),
])  # fmt: skip
def test_an_exception_is_an_error_reply(tmp_path, body, failure, code_of_error):
    """As in Flower's simulation; the device keeps the state that it had."""
    code = device_part(tmp_path, body)
    called = code.call(call_of(code), compat.records_to_bytes(compat.RecordDict()), 0)
    assert called.failure.startswith(failure)
    assert "\n" not in called.failure
    assert answer(called).error.code == code_of_error
    assert called.state == b""


def test_a_call_changes_nothing_in_the_process(tmp_path):
    """Generators, folder, environment, warnings, and settings of torch are put back."""
    code = device_part(tmp_path, """
import os, random, warnings, logging, torch
os.environ["EDGESIM_X"] = "1"; os.chdir("/"); warnings.simplefilter("error"); logging.disable(50)
torch.set_default_dtype(torch.float64); torch.set_grad_enabled(False); torch.use_deterministic_algorithms(True)
return reply(message, drawn=[random.random(), float(np.random.rand()), float(torch.rand(()))])
""")  # fmt: skip
    import torch

    def state():
        return (
            *(random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()),  # noqa: NPY002
            *(os.getcwd(), "EDGESIM_X" in os.environ, list(warnings.filters), torch.get_default_dtype()),  # noqa: PTH109
            *(torch.is_grad_enabled(), torch.are_deterministic_algorithms_enabled(), torch.get_num_threads()),
        )

    before = state()
    draws = [answer(code.call(call_of(code), b"", seed)).content["metrics"]["drawn"] for seed in (5, 5, 6)]
    assert state() == before
    assert draws[0] == draws[1] != draws[2]


def test_sleep_is_idle_time(tmp_path):
    """It does not sleep, and clocks of the app are put forward."""
    code = device_part(tmp_path, """
from time import sleep
start = time.time()
sleep(1000); time.sleep(500)
return reply(message, took=time.time() - start)
""")  # fmt: skip
    called = code.call(call_of(code), b"", 0)
    assert called.work.idle_s == 1500.0
    assert answer(called).content["metrics"]["took"] == pytest.approx(1500.0, abs=5.0)


def test_flops_bytes_and_a_training_without_flops(tmp_path):
    """Operations of torch are counted. A training of NumPy warns."""
    numpy = device_part(tmp_path / "numpy", "return reply(message, x=float(np.ones((9, 9)).sum()))")
    (warning,) = numpy.call(call_of(numpy), b"", 0).warnings
    assert warning.startswith("0 FLOPs: the training takes no simulated time")
    torch = device_part(
        tmp_path / "torch", "import torch\nreturn reply(message, x=float((torch.ones(4, 5) @ torch.ones(5, 6)).sum()))"
    )
    called = torch.call(call_of(torch), b"", 0)
    assert (called.work.flops, called.warnings) == (2 * 4 * 5 * 6, ())
    assert called.work.memory_bytes >= 4 * (20 + 30 + 24)


def test_host_seconds_price_other_libraries(tmp_path):
    """CPU seconds of this host, at a calibrated ratio."""
    body = "start = time.process_time()\nwhile time.process_time() < start + 0.05: pass\nreturn reply(message)"
    code = device_part(tmp_path, body, host_seconds=True, host_flops_per_s=1e9)
    called = code.call(call_of(code), b"", 0)
    assert 0.05e9 <= called.work.flops < 1e9
    assert (dict(called.work.amounts), called.warnings) == ({}, ())


@full
def test_a_call_that_catches_everything_ends_too(tmp_path):
    """The signals come faster, until one arrives where nothing catches it."""
    body = "while True:\n    try:\n        while True: pass\n    except: pass"
    code = device_part(tmp_path, body, call_timeout=0.1)
    assert code.call(call_of(code), b"", 0).failure.startswith("CallTimeout")


def test_a_call_ends_at_its_limit(tmp_path):
    """Code that catches exceptions does not catch that."""
    body = "while True:\n    try:\n        while True: pass\n    except Exception: pass"
    code = device_part(tmp_path, body, call_timeout=0.1)
    called = code.call(call_of(code), b"", 0)
    assert called.failure.startswith("CallTimeout: the call took longer than 0.1 s of this host (app.call_timeout)")


@pytest.mark.parametrize("made", [
    "part = type('Part', (), {'__del__': forever})()",
    "part = type('Part', (), {})(); reference = weakref.ref(part, forever)",
])  # fmt: skip
def test_a_call_ends_whose_cleanup_is_interrupted(tmp_path, made, monkeypatch):
    """Python drops an exception of a destructor or of a reference's callback, so a second signal ends the call."""
    code = device_part(tmp_path, f"""
import weakref
def forever(self):
    while True: pass
{made}
del part
while True: pass
""", call_timeout=0.1)  # fmt: skip
    dropped = []
    monkeypatch.setattr(sys, "unraisablehook", lambda told: dropped.append(told.exc_type))
    assert code.call(call_of(code), b"", 0).failure.startswith("CallTimeout")
    assert dropped == []


@pytest.mark.parametrize("end", spread(["pass", "return reply(message)", "raise ValueError('late')"], 1))
def test_a_call_that_is_ended_is_charged_its_messages_alone(tmp_path, end):
    """How far it came depends on the host, so neither its price nor its reply tells, whatever its code does then."""
    line = "    torch.ones(8, 8) @ torch.ones(8, 8)\n"
    body = f"import torch\ntry:\n  while True:\n{line}{line}{line}except BaseException:\n    {end}\nwhile True: pass"
    code = device_part(tmp_path, body, call_timeout=0.1)
    called = code.call(call_of(code), b"", 0)
    assert (called.work.flops, called.work.idle_s, dict(called.work.amounts)) == (0.0, 0.0, {})
    reason = compat.message_from_bytes(called.content).error.reason
    assert "the call took longer than 0.1 s of this host" in reason and "late" not in reason


def test_identity_changes_with_code_and_configuration(tmp_path):
    """It covers the folder's code, and there is none once that has changed."""
    code = device_part(tmp_path, "return reply(message)")
    assert code.identity() == device_part(tmp_path, "return reply(message)").identity()
    other = device_part(tmp_path, "return reply(message)", config={"rate": 1.0})
    assert other.identity() != code.identity()
    (tmp_path / "more.py").write_text("x = 1")
    with pytest.raises(Unidentified, match="has changed since the run began"):
        code.identity()


def test_apps_do_not_share_modules(tmp_path):
    """Two apps in one process may have modules of one name."""
    codes = [device_part(tmp_path / name, f"import part\nreturn reply(message, x=part.X, n={n})", )
             for n, name in enumerate(("one", "two"))]  # fmt: skip
    for n, name in enumerate(("one", "two")):
        (tmp_path / name / "part.py").write_text(f"X = {n}")
    for n in (0, 1, 0):
        metrics = answer(codes[n].call(call_of(codes[n]), b"", 0)).content["metrics"]
        assert dict(metrics) == {"x": n, "n": n}
