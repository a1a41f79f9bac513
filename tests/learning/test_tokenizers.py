"""Tokenizers: what they encode, what they refuse."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from edgesim.core.errors import ConfigError, EdgesimError
from edgesim.learning.data.sources.made_text import MadeText
from edgesim.learning.data.tokenizers import PADDING, Bytes, Characters, FromFile, tokenizer_of
from tests.learning.bpe import END, PAD, trained

TEXTS = [record["text"] for record in MadeText().made()]


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tokenizer.json."""
    return trained(TEXTS, tmp_path_factory.mktemp("bpe") / "tokenizer.json", 300)


def test_characters_are_numbered_by_the_rows_for_training() -> None:
    tokenizer = Characters(marks=True)
    train = np.array([[*tokenizer.encode("cab"), tokenizer.end], [*tokenizer.encode("a\U0001f600"), *[PADDING] * 2]])
    test = np.array([tokenizer.encode("abzc")])
    found = tokenizer.numbered(train, test, "here")
    assert found.train.tolist() == [[2, 0, 1, 5], [0, 3, -1, -1]]  # a, b, c, a face, then others, end, padding
    assert found.test.tolist() == [[0, 1, 4, 2]]
    assert (found.size, found.pad) == (7, 6)
    assert Characters(marks=False).numbered(train[:, :2], test, "here").size == 4  # a, c, the face, others


def test_bytes_are_those_of_utf_8() -> None:
    assert bytes(Bytes().encode("naïve").tolist()).decode() == "naïve"


def test_a_file_of_hugging_face_encodes_as_its_library_does(file: Path) -> None:
    from tokenizers import Tokenizer

    library, tokenizer = Tokenizer.from_file(str(file)), FromFile(file, END, PAD)
    for text in TEXTS[:50]:
        found = tokenizer.encode(text)
        assert found.dtype == np.int64
        assert library.decode(found.tolist()) == text
        assert found.tolist() == library.encode(text).ids
    empty = np.zeros((0, 2), dtype=np.int64)
    numbered = tokenizer.numbered(empty, empty, "here")
    assert numbered.size == library.get_vocab_size() and numbered.pad == library.token_to_id(PAD)
    assert FromFile(file, END, None).numbered(empty, empty, "here").pad == library.token_to_id(END)


def test_what_is_no_tokenizer_is_one_line(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    damaged = tmp_path / "damaged.json"
    damaged.write_text('{"model": 3}', encoding="utf-8")
    cases = {
        (damaged, END, None): f"{damaged}: not a readable tokenizer.json of Hugging Face, truncated or damaged: ",
        (tmp_path / "none.json", END, None): f"{tmp_path}/none.json: cannot be read: No such file or directory",
        (file, None, None): f"data.end: name the token of {file} that ends a document (special tokens: </s>, <pad>)",
        (file, "<eos>", None): f"data.end: {file} has no token '<eos>' (special tokens: </s>, <pad>)",
        (file, END, "<p>"): f"data.pad: {file} has no token '<p>' (special tokens: </s>, <pad>)",
    }
    for given, message in cases.items():
        with pytest.raises(EdgesimError) as caught:
            tokenizer_of(*given, marks=True)
        assert str(caught.value).startswith(message) and "\n" not in str(caught.value)
    with pytest.raises(ConfigError, match=r"^data\.end: is for a tokenizer of a file, bytes have"):
        tokenizer_of("bytes", END, None, marks=True)
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(ConfigError) as caught:
        tokenizer_of(file, END, None, marks=True)
    assert str(caught.value) == 'data.tokenizer: tokenizers is not installed; pip install "edgesim[llm]"'
