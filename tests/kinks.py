"""Networks as smooth functions, for tests that compare trainings which round differently."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F


def without_kinks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let PyTorch give GELU for ReLU, and means for maxima, so that rounding moves a gradient by no more than rounding.

    Where a ReLU's input is 0 but for rounding, or two of a maximum's are equal but for it, rounding says which way the
    gradient goes; and rounding is the CPU's own, so a comparison that holds on one machine may fail on the next.
    """

    def mean(x: torch.Tensor, kernel: Any, stride: Any = None, padding: Any = 0, *_: Any, **__: Any) -> torch.Tensor:
        return F.avg_pool2d(x, kernel, stride, padding)

    monkeypatch.setattr(F, "relu", lambda x, inplace=False: F.gelu(x))
    monkeypatch.setattr(F, "max_pool2d", mean)
