"""Datasets of torch as a user would write them."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch.utils.data import Dataset, IterableDataset, TensorDataset


class Points(Dataset):
    """Points of two classes, and the user who has measured each."""

    def __init__(self, count: int = 12, train: bool = True, shift: float = 0.0) -> None:
        self.x = torch.arange(3.0 * count).reshape(count, 3) + (0 if train else 100) + shift
        self.y = torch.arange(count) % 2
        self.columns = {"user_id": ["ann", "bob", "cleo"] * (count // 3), "day": list(range(count))}

    def __len__(self) -> int:
        return len(self.y)

    def __getitem__(self, row: int) -> tuple[torch.Tensor, torch.Tensor]:
        return self.x[row], self.y[row]


class Made(Dataset):
    """Samples of a list."""

    def __init__(self, samples: list[Any], columns: Any = None) -> None:
        self.samples = samples
        if columns is not None:
            self.columns = columns

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, row: int) -> Any:
        return self.samples[row]


class Stream(IterableDataset):
    def __iter__(self) -> Any:
        return iter([(torch.zeros(2), 0)])


def both(as_table: bool = False) -> Any:
    sets = Points(6), Points(6, train=False)
    return dict(zip(("train", "test"), sets, strict=True)) if as_table else sets


def noisy() -> Dataset:
    """Features of torch's generator."""
    return Made([(torch.randn(2), row % 2) for row in range(8)])


def pictures(kind: str) -> Dataset:
    """Pictures of 2 x 3 pixels in red, green and blue, as each library has them."""
    pixels = (np.arange(4 * 2 * 3 * 3) * 5 % 256).astype(np.uint8).reshape(4, 2, 3, 3)
    as_kind = {
        "array": lambda each: each,
        "tensor": lambda each: torch.from_numpy(each).permute(2, 0, 1),
        "float": lambda each: torch.from_numpy(each).permute(2, 0, 1).float() / 255,
        "pillow": Image.fromarray,
    }
    return Made([(as_kind[kind](each), np.int32(row % 2)) for row, each in enumerate(pixels)])


def of_file(path: str) -> Dataset:
    numbers = torch.tensor([float(word) for word in Path(path).read_text().split()])
    return TensorDataset(numbers[:, None], torch.arange(len(numbers)) % 2)


def wrong(case: str) -> Any:
    """Return what does not fit."""
    zero = torch.zeros(2)
    cases = {
        "list": lambda: [1, 2, 3],
        "table": lambda: {"train": Points()},
        "stream": Stream,
        "empty": lambda: Made([]),
        "triple": lambda: Made([(zero, 0, 1)]),
        "text": lambda: Made([("a text", 0)]),
        "shapes": lambda: Made([(zero, 0), (torch.zeros(3), 1)]),
        "types": lambda: Made([(zero, 0), (torch.zeros(2).int(), 1)]),
        "float": lambda: Made([(zero, 0), (zero, 0.5)]),
        "vector": lambda: Made([(zero, torch.tensor([0, 1]))]),
        "negative": lambda: Made([(zero, row % 3 - 1) for row in range(12)]),
        "nan": lambda: Made([(zero / zero, row % 2) for row in range(6)]),
        "short": lambda: Made([(zero, row % 2) for row in range(6)], {"user": ["a"]}),
        "columns": lambda: Made([(zero, row % 2) for row in range(6)], ["user"]),
        "raises": lambda: random.choice([]),
    }
    return cases[case]()
