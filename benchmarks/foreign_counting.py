"""What does counting the work of a user's loop cost? Loops by hand, as they are and under edgesim's counter.

One process, one thread, in turns: an epoch of 19 SGD steps on batches of 32, in CPU time. The counter runs at every
operation of torch, so that the ratio is the larger the smaller the network. The transformer has two blocks of width 64
and reads 64 tokens, with torch's own attention. Data are random and cut into batches before. A data loader
takes samples one by one, and each of them is several operations.

Run: python benchmarks/foreign_counting.py [--repeats N]
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from edgesim.foreign.counting import Counter
from edgesim.learning.train.torch_settings import plain_torch
from networks import Mlp, SmallCnn
from rows import Figures, Found, alone, compared, in_turns, of

STEPS, BATCH, TOKENS, WIDTH, VOCABULARY = 19, 32, 64, 64, 80
WARM_UPS = 1
QUICK = {"steps": 2}


class SmallTransformer(nn.Module):
    """Logits (batch, vocabulary, tokens) of the tokens that follow."""

    def __init__(self) -> None:
        super().__init__()
        block = nn.TransformerEncoderLayer(WIDTH, 4, 4 * WIDTH, 0.0, batch_first=True, norm_first=True)
        self.tokens, self.blocks = (
            nn.Embedding(VOCABULARY, WIDTH),
            nn.TransformerEncoder(block, 2, nn.LayerNorm(WIDTH), False),
        )
        self.head = nn.Linear(WIDTH, VOCABULARY)
        self.mask = nn.Transformer.generate_square_subsequent_mask(TOKENS)

    def forward(self, x: Tensor) -> Tensor:
        """Return logits of tokens (batch, tokens)."""
        outputs: Tensor = self.head(self.blocks(self.tokens(x), self.mask, is_causal=True))
        return outputs.transpose(1, 2)


def rows(steps: int = STEPS, repeats: int = 15) -> Iterator[Found]:
    """Yield CPU seconds of an epoch of so many steps, counted and not."""
    samples = steps * BATCH
    images = torch.randn(samples, 1, 28, 28), torch.randint(10, (samples,))
    texts = torch.randint(VOCABULARY, (samples, TOKENS)), torch.randint(VOCABULARY, (samples, TOKENS))
    with plain_torch():
        for name, network, data in (
            ("SmallCnn", SmallCnn(), images),
            ("Mlp", Mlp(), images),
            ("transformer", SmallTransformer(), texts),
        ):
            yield from _ratios(name, network, list(zip(*(each.split(BATCH) for each in data), strict=True)), repeats)
        yield from _ratios("SmallCnn, data loader", SmallCnn(), DataLoader(TensorDataset(*images), BATCH), repeats)


def _ratios(name: str, network: nn.Module, batches: Iterable[tuple[Tensor, Tensor]], repeats: int) -> Iterator[Found]:
    optimizer = torch.optim.SGD(network.parameters(), lr=1e-3)

    def epoch() -> None:
        for x, y in batches:
            optimizer.zero_grad()
            F.cross_entropy(network(x), y).backward()  # type: ignore[no-untyped-call]
            optimizer.step()

    def measured(counter: Callable[[], Counter | nullcontext[None]]) -> Callable[[], Figures]:
        def turn() -> Figures:
            start_s = time.thread_time()
            with counter():
                epoch()
            return {"ms": 1e3 * (time.thread_time() - start_s)}

        return turn

    contestants = {
        "plain": measured(nullcontext),
        "counted": measured(Counter),
        "counted, kinds of work": measured(lambda: Counter(kinds=True)),
    }
    found = in_turns(contestants, repeats, WARM_UPS)
    note = f"An epoch in batches of {BATCH}, on one thread, in CPU time."
    yield from compared(of(found, "ms"), "plain", "ms", note, about=name)


if __name__ == "__main__":
    alone(rows, QUICK)
