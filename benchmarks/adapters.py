"""How much faster do devices train LoRA adapters together on one base? Rounds of FedAvg by cohort against serial.

The network is GPT-2's architecture with random weights, small, with adapters of peft on its attention. It reads random
images as tokens. Each run is a process of its own with one thread, whose largest memory is noted. The first round of
each run does not count. How far the weights of both lie apart is given as a share of the largest.

Run: python benchmarks/adapters.py [--devices N] [--samples N] [--batch N] [--width N] [--vocabulary N] [--rounds N]
"""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from statistics import median
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

import edgesim
from edgesim.runs.simulate import simulate
from laps import Laps
from rows import Figures, Found, LeftOut, alone, compared, in_turns, of

HERE = Path(__file__).stem  # the module's name where scenarios look for classes
PIXELS = 6  # of a side; an image has 36 tokens
MIB = 2**20
QUICK = {"devices": 3, "samples": 4, "batch": 2, "rounds": 2}
BACKENDS = {"serial": {"name": "serial"}, "cohort": {"name": "cohort", "workers": 1}}


class Adapted(nn.Module):
    """GPT-2 of 2 layers with adapters of rank 8, whose last position has the logits of ten classes."""

    def __init__(self, width: int = 64, vocabulary: int = 256) -> None:
        from peft import LoraConfig, get_peft_model
        from transformers import GPT2Config, GPT2LMHeadModel

        super().__init__()
        config = GPT2Config(
            n_layer=2, n_embd=width, n_head=4, vocab_size=vocabulary, n_positions=PIXELS**2, use_cache=False,
            attn_implementation="eager", bos_token_id=None, eos_token_id=None,
            **dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0),
        )  # fmt: skip
        lora = LoraConfig(r=8, lora_alpha=16, target_modules=["c_attn"], fan_in_fan_out=True)
        self.network = get_peft_model(GPT2LMHeadModel(config), lora)

    def forward(self, x: Tensor) -> Tensor:
        """Return logits, shape (batch, 10), of images with values in [0, 1]."""
        tokens = (255 * x.flatten(1)).long()
        places = tokens.shape[1]
        hidden = torch.full((places, places), -1e9, device=x.device).triu(1).expand(len(x), 1, places, places)
        order = torch.arange(places, device=x.device)[None]
        logits: Tensor = self.network(input_ids=tokens, attention_mask=hidden, position_ids=order).logits
        return logits[:, -1, :10]


class Ran(NamedTuple):
    """Seconds of each round after the first, the process's largest memory, and the final weights."""

    seconds: list[float]
    peak_bytes: int
    weights: dict[str, np.ndarray]


def rows(
    devices: int = 8,
    samples: int = 32,
    batch: int = 4,
    width: int = 64,
    vocabulary: int = 256,
    rounds: int = 4,
    repeats: int = 3,
) -> Iterator[Found]:
    """Yield seconds of a round, peaks of memory, and how far weights lie apart."""
    try:
        import peft  # noqa: F401
        import transformers  # noqa: F401
    except ImportError as error:
        yield LeftOut("adapters", f"{error.name} is not installed")
        return
    weights: dict[str, Mapping[str, np.ndarray]] = {}
    os.environ["OMP_NUM_THREADS"] = "1"  # of the processes to come

    def trained(name: str) -> Figures:
        given = (name, devices, samples, batch, width, vocabulary, rounds)
        with ProcessPoolExecutor(1, get_context("spawn")) as process:
            ran = process.submit(run, *given).result()
        weights[name] = ran.weights
        apart = max(
            float(abs(own - ran.weights[each]).max() / max(abs(own).max(), 1e-30))
            for each, own in weights["serial"].items()
        )
        return {"s": median(ran.seconds), "mib": ran.peak_bytes / MIB, "apart": apart}

    found = in_turns({"serial": lambda: trained("serial"), "cohort": lambda: trained("cohort")}, repeats)
    note = f"A round of {devices} adapters x {samples} samples in batches of {batch}, {width} wide."
    yield from compared(of(found, "s"), "serial", "s", note, about="seconds", fit=min)
    note = "Largest memory of the process; serial trains one adapter at a time."
    yield from compared(of(found, "mib"), "serial", "MiB", note, about="memory")
    note = "The largest difference of a weight from serial's, as a share of its tensor's largest number."
    yield from compared({"cohort, weights apart": of(found, "apart")["cohort"]}, "", "", note)


def run(name: str, devices: int, samples: int, batch: int, width: int, vocabulary: int, rounds: int) -> Ran:
    """Return what a run of a backend takes, in this process."""
    clock = Laps()
    chosen = edgesim.load(
        {
            "data": {
                "name": "noise:RandomImages",
                "train": devices * samples,
                "test": 10,
                "pixels": PIXELS,
                "channels": 1,
            },
            "partition": {"name": "iid", "samples_per_device": samples},
            "model": {"name": f"{HERE}:Adapted", "width": width, "vocabulary": vocabulary},
            "method": "fedavg",
            "training": {"batch": batch, "lr": 0.05},
            "selection": "all",
            "backend": BACKENDS[name],
            "evaluation": {"every": rounds},
            "stop": {"rounds": rounds},
            "fleet": [{"count": devices, "cpu": {"flops_per_s": "1 GFLOP/s"}}],
        }
    )
    found = simulate(chosen, observer=clock)
    peak_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return Ran(clock.seconds, peak_bytes, found.weights())


if __name__ == "__main__":
    alone(rows, QUICK)
