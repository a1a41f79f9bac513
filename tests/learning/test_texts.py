"""Texts as data: samples, vocabulary and users; a made-up source with a known entropy rate; what is refused."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import edgesim
from edgesim.core.errors import EdgesimError
from edgesim.core.rng import Key
from edgesim.files.code_identity import named_files_digest
from edgesim.learning.data.dataset import Dataset
from edgesim.learning.data.sources.texts import MarkovText, TextFiles, stationary
from edgesim.learning.data.texts import packed, padded
from edgesim.learning.data.tokenizers import PADDING, Bytes
from edgesim.learning.models.build import build_model
from edgesim.learning.models.transformer import TransformerChar
from edgesim.learning.objectives.next_token import NextToken
from edgesim.reports.load import open_run
from edgesim.runs.assembly import assemble
from edgesim.runs.cache_identity import facts_of
from tests.conftest import digits_scenario
from tests.learning.bpe import END, trained
from tests.sizes import full

WROTE = {"ann": "abcabcabd", "bob": "aabbaabbz"}  # windows of two: four for each, the last for the test


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a file for each user."""
    for user, text in WROTE.items():
        (tmp_path / f"{user}.txt").write_text(text, encoding="utf-8")
    return tmp_path


def samples(data: Dataset, split: str) -> list[tuple[str, str, str]]:
    """Return user, characters and labels of the samples of a split, ? for the unknown."""
    x, y = getattr(data, f"x_{split}").numpy(), getattr(data, f"y_{split}").numpy()
    users = data.columns["user"][split == "test"]
    letters = np.array(list("abcd?") if data.classes == 5 else list("abc?"))
    return [
        (str(user), "".join(letters[a.astype(int)]), "".join(letters[b]))
        for user, a, b in zip(users, x, y, strict=True)
    ]


def test_windows_follow_one_another_and_the_last_are_for_the_test(folder: Path) -> None:
    data = TextFiles(path=folder, length=2).load()
    assert samples(data, "train") == [
        ("ann", "ab", "bc"), ("ann", "ca", "ab"), ("ann", "bc", "ca"),
        ("bob", "aa", "ab"), ("bob", "bb", "ba"), ("bob", "aa", "ab"),
    ]  # fmt: skip
    assert samples(data, "test") == [("ann", "ab", "b?"), ("bob", "bb", "b?")]  # d and z: in no training sample
    assert (data.kind, data.classes, data.input_shape) == ("tokens", 4, (2,))


def test_labels_count_for_the_vocabulary_and_a_share_for_the_test(folder: Path) -> None:
    (folder / "ann.txt").write_text("abcabcdbd", encoding="utf-8")  # d is a label of the third sample, no more
    assert TextFiles(path=folder, length=2).load().classes == 5
    halved = TextFiles(path=folder, length=2, test_share=0.5).load()
    assert [user for user, *_ in samples(halved, "test")] == ["ann", "ann", "bob", "bob"]
    assert halved.classes == 4


def test_one_file_has_all_users(tmp_path: Path) -> None:
    play, rows = tmp_path / "play.txt", tmp_path / "rows.csv"
    play.write_text("Act I\nann:\nabc\nbob:\naab\nann:\nabd\n", encoding="utf-8")
    rows.write_text("who,said\nann,abc\nbob,aab\nann,abd\n", encoding="utf-8")
    of_play = TextFiles(path=play, marker=":", length=1).load()
    of_rows = TextFiles(path=rows, user="who", text="said", length=1).load()
    for data in of_play, of_rows:
        assert Counter(data.columns["user"][0].tolist()) == {"ann": 6, "bob": 2}  # of "abc\nabd\n" and "aab\n"
        assert data.classes == 6  # the line break, a, b, c, d (a label), and one for all others
    assert of_play.x_train.equal(of_rows.x_train) and of_play.y_test.equal(of_rows.y_test)
    assert TextFiles(path=play, length=1).load().columns["user"][0].tolist()[0] == "play"


def test_users_with_short_texts_may_be_left_out(folder: Path) -> None:
    (folder / "cyd.txt").write_text("abab", encoding="utf-8")
    (folder / "dee.txt").write_text("abababababab", encoding="utf-8")
    found = TextFiles(path=folder, length=2, skip_short=True).load().columns["user"][0]
    assert sorted(set(found)) == ["ann", "bob", "dee"]
    assert set(TextFiles(path=folder, length=2, users=2).load().columns["user"][1]) == {"ann", "dee"}


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"length": 5}, "FOLDER: user 'ann' has 9 characters, needed are 11 for two samples of 5; "
                        "data.skip_short = true leaves such users out"),
        ({"length": 5, "skip_short": True}, "FOLDER: no user has enough for two samples: the longest has 9 characters, "
                                            "needed are 11 for two samples of 5"),
        ({"length": 2, "users": 3}, "data.users: FOLDER has 2 users with two samples, found 3"),
        ({"path": "ann.txt", "marker": ":"}, "FOLDER/ann.txt: no line ends with data.marker, ':'"),
        ({"path": "ann.txt", "marker": " "}, "data.marker: must have a character that is seen, found ' '"),
        ({"path": "empty"}, "FOLDER/empty: has no file that ends in .txt"),
        ({"path": "rows.csv"}, "data: FOLDER/rows.csv has no column 'user' (it has who, said)"),
        ({"path": "rows.csv", "user": "who", "text": "said"}, "FOLDER/rows.csv: column 'said' is empty in row 2"),
        ({"path": "none.txt"}, "FOLDER/none.txt: cannot be read: No such file or directory"),
        ({"path": "bytes.bin"}, "FOLDER/bytes.bin: not UTF-8 text: byte 0xff (invalid start byte)"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_one_line(folder: Path, keys: dict[str, Any], message: str) -> None:
    (folder / "empty").mkdir()
    (folder / "rows.csv").write_text("who,said\nann,abc\nbob,\n", encoding="utf-8")
    (folder / "bytes.bin").write_bytes(b"ab\xff")
    data = {"name": "text", **keys, "path": str(folder / keys.get("path", ""))}
    with pytest.raises(EdgesimError) as caught:
        assemble(digits_scenario(data=data, model="lstm_char", objective="next_token"))
    assert str(caught.value) == message.replace("FOLDER", str(folder))


# --- packing and padding ----------------------------------------------------------------------------------------


def random_documents(count: int) -> list[str]:
    """Return texts of 1 to 60 characters of several alphabets."""
    generator = Key(11).numpy()
    letters = np.array(list("abc xyz.,\nüß漢字🙂"))
    return ["".join(generator.choice(letters, int(generator.integers(1, 61)))) for _ in range(count)]


def test_a_thousand_documents_come_back_from_packed_and_from_padded_rows() -> None:
    documents, tokenizer, length = random_documents(1000), Bytes(), 48
    ended = [np.append(tokenizer.encode(each), tokenizer.end) for each in documents]
    rows = packed(ended, length)
    assert len(rows) == (sum(map(len, ended)) - 1) // length
    whole = whole_documents([*rows[:, :-1].ravel().tolist(), int(rows[-1, -1])])
    assert whole == documents[: len(whole)] and len(whole) >= len(documents) - length  # the rest is left out
    rows, found = padded(ended, length), list[list[int]]()
    begins = True
    for row in rows.tolist():
        own = [token for token in row if token != PADDING]
        found.append(own) if begins else found[-1].extend(own[1:])  # the last token of a row is in the next one too
        begins = own[-1] == tokenizer.end
    assert [each[-1] for each in found] == [tokenizer.end] * 1000
    assert [bytes(each[:-1]).decode() for each in found] == documents


def whole_documents(tokens: Sequence[int]) -> list[str]:
    """Return the texts that end in a row of bytes, without the rest after the last end."""
    found, last = list[str](), 0
    for place, token in enumerate(tokens):
        if token == Bytes.end:
            found.append(bytes(tokens[last:place]).decode())
            last = place + 1
    return found


def pieces(folder: Path, texts: Mapping[str, Sequence[str]]) -> Path:
    """Write the texts of authors as JSON lines, author after author in turn."""
    lines = [json.dumps({"author": user, "text": text}) for user, own in texts.items() for text in own]
    (folder / "pieces.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return folder / "pieces.jsonl"


AUTHORS = {
    "ann": ["a short line", "another line of ann that is somewhat longer", "x", "ann again", "more of ann"],
    "bob": ["bob", "bob and bob", "a line of bob that is much longer than a sample may be", "ok", "fine", "so"],
}


def transformer(data: Dataset, length: int) -> torch.nn.Module:
    """Return a small transformer for a data set of text."""
    plugin = TransformerChar(layers=1, width=16, heads=2)
    return build_model(plugin, (length,), data.classes, Key(5), objective=NextToken(), vocabulary=data.vocabulary)


def by_hand(module: torch.nn.Module, rows: Sequence[Sequence[int]]) -> torch.Tensor:
    """Return the mean cross-entropy over all tokens that follow one, run sequence by sequence without padding."""
    losses = []
    for row in rows:
        logits = module(torch.tensor([row[:-1]]))
        losses.append(torch.nn.functional.cross_entropy(logits[0].T, torch.tensor(row[1:]), reduction="sum"))
    return torch.stack(losses).sum() / sum(len(row) - 1 for row in rows)


@pytest.mark.parametrize("packing", [True, False])
def test_the_loss_and_its_gradient_are_those_of_sequences_without_padding(tmp_path: Path, packing: bool) -> None:
    length = 24
    path = pieces(tmp_path, AUTHORS)
    data = TextFiles(path=path, user="author", tokenizer="bytes", length=length, packing=packing).load()
    rows = []
    for _, own in sorted(AUTHORS.items()):
        ended = [[*text.encode(), 256] for text in own]
        if packing:
            ended = [[token for each in ended for token in each]]
            ended = [ended[0][: (len(ended[0]) - 1) // length * length + 1]]
        mine = [each[s : s + length + 1] for each in ended for s in range(0, len(each) - 1, length)]
        rows += mine[: len(mine) - max(1, round(0.2 * len(mine)))]
    module = transformer(data, length)
    loss = NextToken().loss(module(data.x_train), data.y_train)
    own = torch.autograd.grad(loss, list(module.parameters()))
    expected = by_hand(module, rows)
    assert len(rows) == len(data.y_train)
    assert float(loss.detach()) == pytest.approx(float(expected.detach()), rel=1e-6)
    for one, other in zip(own, torch.autograd.grad(expected, list(module.parameters())), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)
    losses, counted = NextToken().losses(module(data.x_train), data.y_train), NextToken().counted(data.y_train)
    mean = (losses * counted).sum() / counted.sum()
    assert float(mean.detach()) == pytest.approx(float(expected.detach()), rel=1e-6)


def padded_scenario(path: Path, **changes: Any) -> edgesim.Scenario:
    """Two authors, a device each, whose padded documents train a network that refuses tokens of another type."""
    base: dict[str, Any] = {
        "data": {"name": "text", "path": str(path), "user": "author", "tokenizer": "bytes", "length": 24,
                 "packing": False},
        "model": {"name": "tests.plugins.texts:NextTokens", "tokens": 258},
        "objective": "next_token", "partition": {"name": "by_column", "column": "author"}, "selection": "all",
        "training": {"batch": 3, "lr": 0.5, "local_epochs": 2}, "stop": {"rounds": 2},
        "fleet": [{"count": 2, "cpu": {"flops_per_s": "20 MFLOP/s"}}],
    }  # fmt: skip
    return digits_scenario(**{**base, **changes})


def test_devices_train_on_integers_of_their_own_author(tmp_path: Path) -> None:
    parts = assemble(padded_scenario(pieces(tmp_path, AUTHORS)))
    assert parts.data is not None and parts.split is not None and parts.split.test is not None
    for user, own, tests in zip(["ann", "bob"], parts.split.train, parts.split.test, strict=True):
        assert set(parts.data.columns["author"][0][own]) == {user} == set(parts.data.columns["author"][1][tests])
        for split, rows in ("train", own), ("test", tests):
            x, _ = parts.data.batch(split, torch.from_numpy(rows))
            assert x.dtype == torch.int64
            for row in x.tolist():
                text = bytes(token for token in row if token < 256).decode()
                assert any(text in each for each in AUTHORS[user])


@pytest.mark.parametrize("backend", ["serial", "cohort", pytest.param("workers", marks=[pytest.mark.workers, full])])
def test_a_run_on_padded_documents_scores_the_tokens_that_count(tmp_path: Path, backend: str) -> None:
    """Serial, stacked and in two processes; the last model's loss is that of plain torch, sequence by sequence."""
    chosen: Any = {"name": "workers", "workers": 2} if backend == "workers" else backend
    scenario = padded_scenario(pieces(tmp_path, AUTHORS), backend=chosen, evaluation={"every": 1})
    edgesim.run(scenario, out=tmp_path / "run")
    run = open_run(tmp_path / "run")
    parts = assemble(scenario)
    assert parts.data is not None
    module = parts.module
    module.load_state_dict(load_file(tmp_path / "run" / "final.safetensors"))
    y = parts.data.y_test
    rows = [
        [*x[: int((t != -100).sum())].tolist(), int(t[t != -100][-1])]
        for x, t in zip(parts.data.x_test, y, strict=True)
    ]
    curve = run.accuracy_curve()
    assert curve["loss"].iloc[-1] == pytest.approx(float(by_hand(module, rows).detach()), rel=1e-5)
    hits = (module(parts.data.x_test).argmax(1) == y).sum() / (y != -100).sum()
    assert curve["accuracy"].iloc[-1] == pytest.approx(float(hits))
    if backend == "cohort":
        edgesim.run(padded_scenario(pieces(tmp_path, AUTHORS), evaluation={"every": 1}), out=tmp_path / "serial")
        assert open_run(tmp_path / "serial").accuracy_curve()["loss"].tolist() == pytest.approx(curve["loss"].tolist())


@full
def test_a_text_and_its_tokenizer_are_part_of_the_identity(tmp_path: Path) -> None:
    path, tokenizer = pieces(tmp_path, AUTHORS), tmp_path / "tokenizer.json"

    def identity(**data: Any) -> tuple[bytes, str]:
        own = {"path": str(path), "user": "author", "length": 24, "packing": False, **data}
        model = {"name": "transformer_char", "layers": 1, "width": 8, "heads": 1}
        parts = assemble(padded_scenario(path, data={"name": "text", **own}, model=model))
        return facts_of(parts), named_files_digest(parts.scenario.canonical())

    found = [identity(), identity(tokenizer="bytes")]
    for size in 270, 280:
        trained(AUTHORS["ann"], tokenizer, size)
        found.append(identity(tokenizer=str(tokenizer), end=END))
    pieces(tmp_path, {**AUTHORS, "bob": AUTHORS["bob"][::-1]})
    found.append(identity())
    facts, files = zip(*found, strict=True)
    assert len(set(facts)) == 5
    assert files[0] == files[1] and len(set(files)) == 4


@pytest.mark.parametrize(
    ("keys", "content", "message"),
    [
        ({}, '{"author": "a", "text": "b"}\n{"text": "c"}\n', "FILE line 2: has no field 'author' (it has text)"),
        ({}, '{"author": "a", "text": " "}\n', "FILE line 1: field 'text' is empty"),
        ({}, '{"author": "a", "text": ["b"]}\n', "FILE line 1: field 'text' must be a text, found ['b']"),
        ({}, '\n["a"]\n', "FILE line 2: must be a table of fields, found ['a']"),
        ({}, '{"author": \n', "FILE line 1: not valid JSON: Expecting value: line 1 column 12 (char 11)"),
        ({}, "\n", "FILE: has no records"),
        ({}, '{"author": "a", "text": "b"}\n', "FILE: user 'a' has 2 bytes, needed are two documents or more for two "
                                               "samples of 24; data.skip_short = true leaves such users out"),
        ({"model": {"name": "tests.plugins.texts:NextTokens", "tokens": 200}}, None,
         "model.name: NextTokens knows 200 tokens, the data have 258"),
        ({"model": {"name": "tests.plugins.texts:NextTokens", "tokens": 200, "width": 9000}}, None,
         "model.name: NextTokens knows 200 tokens, the data have 258"),  # too large to be tried with numbers
        ({"objective": "classification"}, None,
         "objective.name: classification is for classes as labels, those of data pieces are tokens; use next_token"),
    ],
)  # fmt: skip
def test_records_that_do_not_fit_are_one_line(
    tmp_path: Path, keys: dict[str, Any], content: str | None, message: str
) -> None:
    path = pieces(tmp_path, AUTHORS)
    if content is not None:
        path.write_text(content, encoding="utf-8")
    with pytest.raises(EdgesimError) as caught:
        assemble(padded_scenario(path, **keys))
    assert str(caught.value) == message.replace("FILE", str(path))


# --- the made-up text -------------------------------------------------------------------------------------------


def test_two_letters_have_the_entropy_rate_of_the_textbook() -> None:
    """Stay with 1 - p or 1 - q: pi = (q, p) / (p + q), and the rate is that of two coins, weighted by pi."""
    source = MarkovText(letters=2, styles=1, concentration=1.0, seed=5)
    [table] = source.transitions()
    p, q = table[0, 1], table[1, 0]
    coin = [-x * math.log(x) - (1 - x) * math.log(1 - x) for x in (p, q)]
    assert stationary(table) == pytest.approx([q / (p + q), p / (p + q)])
    assert source.floor_of(3) == pytest.approx(math.exp((q * coin[0] + p * coin[1]) / (p + q)))


def test_texts_have_the_transitions_of_their_users_style() -> None:
    source = MarkovText(users=2, styles=2, letters=4, own=0.7, concentration=1.0, samples_per_user=2000)
    data = source.load()
    tables = source.transitions()
    np.testing.assert_allclose(tables.sum(2), 1)
    x, y = data.x_train.numpy().astype(int), data.y_train.numpy()
    for user, table in enumerate(tables):
        mine = data.columns["user"][0] == str(user)
        counts = np.zeros((4, 4))
        np.add.at(counts, (x[mine].ravel(), y[mine].ravel()), 1)
        found, error = counts / counts.sum(1, keepdims=True), np.sqrt(table * (1 - table) / counts.sum(1)[:, None])
        assert (np.abs(found - table) < 4.5 * error + 1e-9).all()
    assert np.abs(tables[0] - tables[1]).max() > 0.1
    alike = MarkovText(own=0.0, styles=3).transitions()
    assert (alike == alike[0]).all()
    assert data.classes == 4 and len(data.y_test) == 800


def test_a_user_writes_the_same_whoever_else_does() -> None:
    few, many = MarkovText(users=2).load(), MarkovText(users=12).load()
    assert few.x_train[:40].equal(many.x_train[:40]) and few.x_train[40:].equal(many.x_train[40:80])
    assert not MarkovText(users=2, seed=2).load().x_train.equal(few.x_train)


@full
@pytest.mark.parametrize(
    "model",
    [
        {"name": "lstm_char", "hidden": 12, "layers": 1},
        pytest.param({"name": "transformer_char", "layers": 1, "width": 8, "heads": 2}, marks=full),
    ],
    ids=lambda model: model["name"],
)
def test_perplexity_comes_down_to_the_entropy_rate(tmp_path: Path, model: dict[str, Any]) -> None:
    """From above, and never below it by more than a test set deviates by chance."""
    source = MarkovText(users=4, styles=1, letters=5, samples_per_user=120, test_share=0.3)
    scenario = digits_scenario(
        data={"name": "markov_text", "users": 4, "styles": 1, "letters": 5, "samples_per_user": 120, "test_share": 0.3},
        objective="next_token", partition="by_column", selection="all",
        model=model,
        training={"batch": 8, "lr": 0.5, "local_epochs": 1}, stop={"rounds": 15},
        fleet=[{"count": 4, "cpu": {"flops_per_s": "20 MFLOP/s"}}],
    )  # fmt: skip
    edgesim.run(scenario, out=tmp_path / "run")
    loss = open_run(tmp_path / "run").accuracy_curve()["loss"]
    data, [table] = source.load(), source.transitions()
    surprise = -np.log(table[data.x_test.numpy().astype(int).ravel(), data.y_test.numpy().ravel()])
    by_chance = surprise.std() / math.sqrt(surprise.size)
    rate = math.log(source.floor_of(0))
    assert surprise.mean() == pytest.approx(rate, abs=4 * by_chance)
    assert loss.min() > rate - 4 * by_chance
    assert loss.iloc[0] > rate + 0.2 and loss.iloc[-1] < rate + 0.04
    perplexity = open_run(tmp_path / "run").accuracy_curve()["perplexity"].iloc[-1]
    assert perplexity == pytest.approx(math.exp(loss.iloc[-1]))
