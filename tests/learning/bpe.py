"""A tokenizer of Hugging Face that a test trains itself."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

END, PAD = "</s>", "<pad>"


def trained(texts: Sequence[str], path: Path, size: int = 120) -> Path:
    """Train byte pair encoding on texts and write its tokenizer.json."""
    from tokenizers import Tokenizer
    from tokenizers.decoders import ByteLevel as Decoder
    from tokenizers.models import BPE
    from tokenizers.pre_tokenizers import ByteLevel
    from tokenizers.trainers import BpeTrainer

    tokenizer = Tokenizer(BPE())
    tokenizer.pre_tokenizer = ByteLevel(add_prefix_space=False)
    tokenizer.decoder = Decoder()
    trainer = BpeTrainer(
        vocab_size=size, special_tokens=[END, PAD], initial_alphabet=ByteLevel.alphabet(), show_progress=False
    )
    tokenizer.train_from_iterator(list(texts), trainer)
    tokenizer.save(str(path))
    return path
