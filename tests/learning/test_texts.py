"""Texts as data: samples, vocabulary and users; a made-up source with a known entropy rate; what is refused."""

from __future__ import annotations

import math
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import edgesim
from edgesim.core.errors import EdgesimError
from edgesim.learning.data.dataset import Dataset
from edgesim.learning.data.sources.texts import MarkovText, TextFiles, stationary
from edgesim.reports.load import open_run
from edgesim.runs.assembly import assemble
from tests.conftest import digits_scenario
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
        ({"length": 5, "skip_short": True}, "FOLDER: no user has the 11 characters of two samples of 5"),
        ({"length": 2, "users": 3}, "data.users: FOLDER has 2 users with two samples of 2, found 3"),
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
