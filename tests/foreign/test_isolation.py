"""A user's code changes the process, and all is as before when it has ended."""

from __future__ import annotations

import builtins
import gc
import json
import logging
import os
import signal
import sys
import tempfile
import threading
import time
import warnings

import pytest
import torch

from edgesim.core.errors import EdgesimError
from edgesim.foreign.isolation import NamesKept, name_of, put_back, text_of
from tests.fuzz.process_facts import differences, process_facts


def settings():
    """Change what a process has one of."""
    os.environ["HOSTILE"] = "1"
    os.chdir(tempfile.gettempdir())
    os.umask(0o777)
    sys.path.clear()
    sys.setrecursionlimit(150)
    sys.setswitchinterval(1.0)
    sys.settrace(lambda *_: None)
    sys.excepthook = lambda *_: None
    threading.excepthook = lambda *_: None
    gc.disable()
    warnings.simplefilter("error")
    tempfile.tempdir = "/nowhere"


def handlers():
    """Change logging and signals."""
    logging.disable(1000)
    logging.getLogger().handlers.clear()
    logging.getLogger("edgesim").setLevel(100)
    for name in ("SIGALRM", "SIGINT", "SIGTERM"):
        signal.signal(getattr(signal, name), signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    signal.alarm(1000)


def streams():
    """Close and replace streams."""
    sys.stdout.close()
    sys.stderr.close()
    sys.stdin.close()
    sys.stdout = None


def names():
    """Replace functions of Python, and remove modules."""
    builtins.open = json.dumps = time.sleep = os.environ = threading.Thread = None
    sys.modules["json"] = None
    sys.modules.pop("decimal", None)
    del builtins.isinstance


@pytest.mark.parametrize("hostile", [settings, handlers, streams, names])
def test_all_is_put_back(hostile):
    before = process_facts()
    with put_back(), NamesKept():
        hostile()
    assert differences(before, process_facts()) == ""
    print("can still be written")
    assert not sys.stdout.closed


def test_a_process_that_cannot_be_put_back_is_one_line(tmp_path, monkeypatch):
    """A working folder that the code has removed, for one."""
    folder = tmp_path / "gone"
    folder.mkdir()
    monkeypatch.chdir(folder)
    alarm = signal.getsignal(signal.SIGALRM)
    with pytest.raises(EdgesimError, match="has broken its process: FileNotFoundError"), put_back():
        os.chdir(tmp_path)
        folder.rmdir()
        signal.signal(signal.SIGALRM, signal.SIG_IGN)
        sys.setrecursionlimit(5000)
    assert signal.getsignal(signal.SIGALRM) is alarm and sys.getrecursionlimit() != 5000  # the rest is put back


@pytest.mark.parametrize("name", ["get_num_threads", "is_grad_enabled", "get_default_dtype"])
def test_a_process_that_cannot_be_read_is_one_line(monkeypatch, name):
    """An earlier call has removed a function of torch, which calls may do, and settings were still as before."""
    monkeypatch.setattr(torch, name, None)
    with pytest.raises(EdgesimError, match="has broken its process: TypeError"), put_back():
        raise AssertionError("not entered")


@pytest.mark.parametrize(("name", "sent"), [("REAL", "SIGALRM"), ("VIRTUAL", "SIGVTALRM"), ("PROF", "SIGPROF")])
def test_a_timer_of_the_code_does_not_end_the_process(name, sent):
    """By default its signal would; after the block the timer goes on as before, and so does the handler."""
    timer, number = getattr(signal, f"ITIMER_{name}"), getattr(signal, sent)
    before = signal.signal(number, signal.SIG_DFL)  # pytest-timeout may have one, and a timer
    left_s, again_s = signal.getitimer(timer)
    try:
        with put_back():
            signal.setitimer(timer, 0.002, 0.002)
            until_s = time.process_time() + 0.02
            while time.process_time() < until_s:
                pass
        assert signal.getitimer(timer) == pytest.approx((left_s, again_s), abs=10.0)
        assert (signal.getitimer(timer)[0] > 0) == (left_s > 0) and signal.getsignal(number) == signal.SIG_DFL
    finally:
        signal.signal(number, before)


def test_exceptions_without_a_text_have_a_line():
    class Odd(Exception):
        def __str__(self):
            raise SystemExit(3)

    assert text_of(Odd()) == "(its text cannot be had)"
    assert text_of(ValueError("two\nlines")) == "two lines"


def test_a_class_that_hides_its_name_has_one():
    class Nameless(type):
        @property
        def __name__(cls) -> str:
            raise ValueError("no name")

    assert name_of(Nameless("Odd", (ValueError,), {})()) == "Odd"


def test_the_precision_of_products_is_put_back():
    before = torch.get_float32_matmul_precision(), torch.backends.mkldnn.matmul.fp32_precision
    with put_back():
        torch.set_float32_matmul_precision("medium")
    assert (torch.get_float32_matmul_precision(), torch.backends.mkldnn.matmul.fp32_precision) == before
