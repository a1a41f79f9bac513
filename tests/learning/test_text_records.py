"""Instructions and texts with a class: what counts, what devices hold, what is refused."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file

import edgesim
from edgesim.core.errors import EdgesimError
from edgesim.core.rng import Key
from edgesim.learning.data.dataset import Dataset
from edgesim.learning.data.sources.made_text import MadeText
from edgesim.learning.data.sources.text_records import Instructions, TextClasses
from edgesim.learning.models.build import build_model
from edgesim.learning.models.transformer import TransformerChar
from edgesim.learning.objectives.next_token import NextToken
from edgesim.reports.load import open_run
from edgesim.runs.assembly import assemble
from tests.conftest import digits_scenario
from tests.learning.bpe import END, PAD, trained
from tests.sizes import full

FORMS: Sequence[Mapping[str, Any]] = [
    {"instruction": "Add.", "input": "1 2", "output": "3", "task": "sum"},
    {"instruction": "Greet.", "output": "Hello", "task": "talk"},
    {"instruction": "Greet.", "input": "", "output": "Hi", "task": "talk"},
    {"prompt": "a b c ", "completion": "d", "task": "talk"},
    {"messages": [{"role": "user", "content": "Two?"}, {"role": "assistant", "content": "2"},
                  {"role": "user", "content": "Three?"}, {"role": "assistant", "content": "3"}], "task": "sum"},
]  # fmt: skip
WRITTEN = [  # in the template, with | around answers
    "Instruction:\nAdd.\n\nInput:\n1 2\n\nAnswer:\n|3|",
    "Instruction:\nGreet.\n\nAnswer:\n|Hello|",
    "Instruction:\nGreet.\n\nAnswer:\n|Hi|",
    "a b c |d|",
    "user:\nTwo?\n\nassistant:\n|2|user:\nThree?\n\nassistant:\n|3|",
]


def write(path: Path, records: Sequence[Any]) -> Path:
    """Write JSON lines."""
    path.write_text("".join(json.dumps(each) + "\n" for each in records), encoding="utf-8")
    return path


def both(data: Dataset) -> tuple[list[list[int]], list[list[int]]]:
    """Return inputs and labels of both splits."""
    return torch.cat([data.x_train, data.x_test]).tolist(), torch.cat([data.y_train, data.y_test]).tolist()


def test_answers_of_every_form_count_and_nothing_else(tmp_path: Path) -> None:
    data = Instructions(path=write(tmp_path / "ask.jsonl", FORMS), length=60).load()
    found = set()
    for x, y in zip(*both(data), strict=True):
        text = bytes(token for token in x if token < 256).decode()
        answers = [token for token in y if token != -100]
        found.add((text, bytes(answers).decode() if 256 not in answers else str([*answers])))
        assert len(y) == 60 and all(label in (-100, following) for label, following in zip(y, x[1:], strict=False))
    expected = set()
    for written in WRITTEN:
        parts = written.split("|")
        answers = [[*text.encode(), 256] for text in parts[1::2]]
        expected.add(("".join(parts), str([token for answer in answers for token in answer])))
    assert found == expected
    assert set(data.columns) == {"task"} and (data.kind, data.classes, data.vocabulary) == ("tokens", 258, 258)


def test_a_record_of_a_tokenizer_file_is_encoded_part_by_part(tmp_path: Path) -> None:
    path = trained([each.replace("|", "") for each in WRITTEN], tmp_path / "tokenizer.json", 300)
    data = Instructions(path=write(tmp_path / "ask.jsonl", FORMS), length=60, tokenizer=path, end=END, pad=PAD).load()
    from tokenizers import Tokenizer

    library = Tokenizer.from_file(str(path))
    answers = {library.decode([t for t in y if t != -100], skip_special_tokens=False) for y in both(data)[1]}
    assert answers == {f"3{END}", f"Hello{END}", f"Hi{END}", f"d{END}", f"2{END}3{END}"}
    assert {x[-1] for x in both(data)[0]} == {library.token_to_id(PAD)}


def test_the_loss_of_answers_is_that_of_plain_torch(tmp_path: Path) -> None:
    data = Instructions(path=write(tmp_path / "ask.jsonl", FORMS * 3), length=60).load()
    plugin = TransformerChar(layers=1, width=16, heads=2)
    module = build_model(plugin, (60,), 258, Key(5), objective=NextToken(), vocabulary=258)
    losses = []
    for x, y in zip(data.x_train, data.y_train, strict=True):
        last = int((y != -100).nonzero().max()) + 1  # without the padding after it
        scores = module(x[None, :last])[0].T.log_softmax(1)
        losses += [-scores[place, y[place]] for place in range(last) if y[place] != -100]
    loss = NextToken().loss(module(data.x_train), data.y_train)
    expected = torch.stack(losses).mean()
    assert float(loss.detach()) == pytest.approx(float(expected.detach()), rel=1e-6)
    pairs = zip(*(torch.autograd.grad(each, list(module.parameters())) for each in (loss, expected)), strict=True)
    for one, other in pairs:
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)


def test_long_records_lose_their_end_or_are_left_out(tmp_path: Path) -> None:
    long = {"prompt": "p" * 20, "completion": "c" * 30, "task": "x"}
    path = write(tmp_path / "ask.jsonl", [long, long, {"prompt": "p" * 50, "completion": "c", "task": "x"}])
    data = Instructions(path=path, length=30, skip_long=True, test_share=0.5).load()
    assert [sum(label != -100 for label in y) for y in both(data)[1]] == [11, 11]
    with pytest.raises(EdgesimError) as caught:
        Instructions(path=path, length=30).load()
    assert str(caught.value) == (
        f"{path} line 3: has 50 bytes before its answer, data.length is 30; make it longer, or "
        "data.skip_long = true leaves such records out"
    )


def test_classes_of_csv_and_of_json_lines_are_alike(tmp_path: Path) -> None:
    rows = [{"text": f"text {n}", "label": "good" if n % 3 else "bad", "by": f"u{n % 2}"} for n in range(30)]
    lines, table = write(tmp_path / "rows.jsonl", rows), tmp_path / "rows.csv"
    table.write_text("text,label,by\n" + "".join(f"{r['text']},{r['label']},{r['by']}\n" for r in rows))
    one, other = (TextClasses(path=path, length=5, tokenizer="characters").load() for path in (lines, table))
    assert one.x_train.equal(other.x_train) and one.y_test.equal(other.y_test)
    assert one.x_train.dtype == torch.int64 and (one.kind, one.classes, one.input_shape) == ("classes", 2, (5,))
    assert one.y_test.tolist().count(0) == 2 and len(one.y_test) == 6  # a fifth of each class
    assert one.columns["by"][0].tolist() == other.columns["by"][0].tolist()
    by_user = TextClasses(path=lines, length=5, user="by").load()
    assert sorted(by_user.columns["by"][1].tolist()) == ["u0"] * 3 + ["u1"] * 3
    numbers = write(tmp_path / "numbers.jsonl", [{"text": "a", "label": n} for n in (0, 2, 2, 0)])
    assert TextClasses(path=numbers, test_share=0.5).load().classes == 3


@full
def test_text_classes_train(tmp_path: Path) -> None:
    """The loss falls, and the last one is that of plain torch on the test set."""
    data = MadeText(records="classes", authors=4, length=40)
    made = data.load()
    scenario = digits_scenario(
        data={"name": "made_text", "records": "classes", "authors": 4, "length": 40},
        model={"name": "tests.plugins.texts:BagOfTokens", "tokens": made.vocabulary, "classes": made.classes},
        partition={"name": "by_column", "column": "author"}, selection="all",
        training={"batch": 8, "lr": 2.0, "local_epochs": 3}, stop={"rounds": 5},
        fleet=[{"count": 4, "cpu": {"flops_per_s": "20 MFLOP/s"}}],
    )  # fmt: skip
    edgesim.run(scenario, out=tmp_path / "run")
    curve = open_run(tmp_path / "run").accuracy_curve()
    module = assemble(scenario).module
    before = float(F.cross_entropy(module(made.x_test), made.y_test).detach())
    module.load_state_dict(load_file(tmp_path / "run" / "final.safetensors"))
    after = float(F.cross_entropy(module(made.x_test), made.y_test).detach())
    assert curve["loss"].iloc[-1] == pytest.approx(after, rel=1e-5)
    assert after < before - 0.5


@pytest.mark.parametrize(
    ("source", "record", "message"),
    [
        ("instructions", {"output": "a"},
         "FILE line 1: needs the fields instruction and output, prompt and completion, or messages, it has 'output'"),
        ("instructions", {"instruction": "a"}, "FILE line 1: has no field 'output' (it has instruction)"),
        ("instructions", {"prompt": "a", "completion": ""}, "FILE line 1: field 'completion' is empty"),
        ("instructions", {"messages": "a"}, "FILE line 1: field 'messages' must be a list of tables, found 'a'"),
        ("instructions", {"messages": [{"role": "user", "content": "a"}]},
         "FILE line 1: no message has the role 'assistant'"),
        ("instructions", {"messages": [{"role": "user"}]},
         "FILE line 1 message 1: has no field 'content' (it has role)"),
        ("instructions", {"prompt": "a", "completion": "b"},
         "data.test_share: must leave samples in both splits, 0.2 of 1 are 0"),
        ("text_classes", {"text": "a"}, "FILE line 1: has no field 'label' (it has text)"),
        ("text_classes", {"text": "", "label": 1}, "FILE line 1: field 'text' is empty"),
    ],
)  # fmt: skip
def test_records_that_do_not_fit_are_one_line(
    tmp_path: Path, source: str, record: Mapping[str, Any], message: str
) -> None:
    path = write(tmp_path / "bad.jsonl", [record])
    with pytest.raises(EdgesimError) as caught:
        (Instructions if source == "instructions" else TextClasses)(path=path).load()
    assert str(caught.value) == message.replace("FILE", str(path))


def test_rows_of_csv_are_named_as_rows(tmp_path: Path) -> None:
    path = tmp_path / "bad.csv"
    path.write_text("text,label\na,1\n,0\n")
    with pytest.raises(EdgesimError) as caught:
        TextClasses(path=path).load()
    assert str(caught.value) == f"{path} row 2: has no field 'text' (it has label)"
    with pytest.raises(EdgesimError) as caught:
        TextClasses(path=path, label="text").load()
    assert str(caught.value) == "data.label: must be another field than data.text, found 'text'"


# --- the made-up text -------------------------------------------------------------------------------------------


def test_authors_prefer_subjects_of_their_own() -> None:
    """Shares of subjects differ between authors by far more than chance, and hardly if authors are alike."""

    def spread(alike: float) -> float:
        records = MadeText(records="instructions", authors=4, documents_per_author=200, alike=alike).made()
        subjects = sorted({each["instruction"] for each in records})
        counts = np.zeros((4, len(subjects)))
        for each in records:
            counts[int(each["author"][-1]), subjects.index(each["instruction"])] += 1
        shares, mean = counts / 200, counts.sum(0) / 800
        return float(200 * ((shares - mean) ** 2 / mean).sum())  # chi-squared, 21 degrees of freedom: 99.9 % below 47

    assert spread(0.5) > 200
    assert spread(1e6) < 47


def test_an_author_writes_the_same_whoever_else_does() -> None:
    few, many = MadeText(authors=2).made(), MadeText(authors=9).made()
    assert few == many[: len(few)] and MadeText(authors=2, seed=2).made() != few
