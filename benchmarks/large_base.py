"""How long does a run without training take with a base that memory could not hold? Phones with adapters on a Llama.

The run prices a transformer and simulates rounds in which phones fetch, tune and send adapters of rank 8. It makes no
weights: a base of 8 billion numbers has 16 GB in bfloat16. Each run is a process of its own with one thread. The first
measures the price, and the next ones take it from the cache.

Run: python benchmarks/large_base.py [--config NAME] [--phones N] [--rounds N] [--tokens N] [--repeats N]
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import programs
from programs import python
from rows import Figures, Found, LeftOut, alone, compared, in_turns, of

MIB = 2**20
QUICK = {"config": "tiny-llama", "phones": 20, "rounds": 2, "tokens": 12}
SCENARIO = """
seed      = 1
data      = {{ name = "markov_text", users = {phones}, samples_per_user = 20, letters = 8, length = {tokens} }}
objective = "next_token"
partition = "by_column"
model     = {{ name = "hf", config = "{config}", dtype = "bfloat16", lora = {{ r = 8 }} }}
training  = {{ local_epochs = 1, batch = 4, lr = 0.1 }}
network   = {{ name = "fixed", up = "5 Mbit/s", down = "20 Mbit/s" }}
energy    = {{ name = "power", idle = "0.5 W", busy = "6 W", transmit = "1 W" }}
selection = "all"
method    = "fedavg"
backend   = "null"
stop      = {{ rounds = {rounds} }}
fleet     = [{{ count = {phones}, cpu = {{ flops_per_s = "1 TFLOP/s" }} }}]
"""


def rows(
    config: str = "llama-3.1-8b", phones: int = 1000, rounds: int = 20, tokens: int = 128, repeats: int = 1
) -> Iterator[Found]:
    """Yield seconds and memory of a run that measures the price, and of one that knows it."""
    try:
        import peft  # noqa: F401
        import transformers  # noqa: F401
    except ImportError as error:
        yield LeftOut("large base", f"{error.name} is not installed")
        return
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "scenario.toml")
        file.write_text(SCENARIO.format(config=config, phones=phones, rounds=rounds, tokens=tokens))

        def seconds(cache: str) -> Figures:
            return {"s": programs.run(words, {"OMP_NUM_THREADS": "1", "EDGESIM_CACHE": cache}).seconds}

        def memory(cache: str) -> Figures:  # in runs of their own, which looking at the memory slows down
            ran = programs.run(words, {"OMP_NUM_THREADS": "1", "EDGESIM_CACHE": cache}, memory=True)
            return {"mib": ran.peak_bytes / MIB}

        def without_price(measured: Callable[[str], Figures]) -> Callable[[], Figures]:
            def measuring() -> Figures:
                with tempfile.TemporaryDirectory() as cache:
                    return measured(cache)

            return measuring

        words = python("-m", "edgesim", "run", str(file), "--out", f"{folder}/run", "--overwrite", "--quiet")
        known = f"{folder}/cache"
        seconds(known)  # so that the price is there
        found = {}
        for name, of_run in {"seconds": seconds, "memory": memory}.items():
            ways = {"price measured": without_price(of_run), "price known": partial(of_run, known)}
            found[name] = in_turns(ways, repeats)
    note = f"Whole command: {rounds} rounds of {phones} phones with adapters on {config}."
    yield from compared(of(found["seconds"], "s"), "price measured", "s", note, about="seconds")
    yield from compared(
        of(found["memory"], "mib"), "price measured", "MiB", "Largest memory of the process.", about="memory"
    )


if __name__ == "__main__":
    alone(rows, QUICK)
