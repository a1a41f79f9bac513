"""Calls the command line in this process."""

from __future__ import annotations

import io
import sys
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import NamedTuple
from unittest import mock

import pytest

from edgesim.cli.main import main
from edgesim.execution.result_cache import FOLDER


class Done(NamedTuple):
    """How a command ended."""

    code: int
    out: str
    err: str


def call(*words: object) -> Done:
    """Run `edgesim WORDS` in the current folder."""
    out, err = io.StringIO(), io.StringIO()
    argv, path = ["edgesim", *map(str, words)], list(sys.path)
    with (
        mock.patch.object(sys, "argv", argv),
        mock.patch.object(sys, "path", path),
        redirect_stdout(out),
        redirect_stderr(err),
        pytest.raises(SystemExit) as end,
    ):
        main()
    return Done(int(end.value.code or 0), out.getvalue(), err.getvalue())


def names(folder: Path) -> list[str]:
    """Return what lies in a folder, but for what runs in it keep for each other and the mark of their study."""
    return sorted(path.name for path in folder.iterdir() if path.name not in (FOLDER, ".study"))


# 4 devices of 2 levels, 200 samples of 8x8 pixels, a model of 3 layers: trains in well under a second.
TINY = """
seed = 1
data = { name = "digits", train_limit = 200, test_limit = 50 }
partition = { name = "iid" }
model = { name = "cnn_digits" }
training = { batch = 16, lr = 0.1 }
network = { name = "fixed", up = "1 Mbit/s", down = "8 Mbit/s" }
energy = { name = "power", idle = "1 W", busy = "4 W" }
selection = { name = "uniform", count = 2 }
method = { name = "fedavg" }
stop = { rounds = 1 }

[[fleet]]
count = 2
level = 1
cpu = { flops_per_s = "50 MFLOP/s" }

[[fleet]]
count = 2
level = 2
cpu = { flops_per_s = "100 MFLOP/s" }
"""
