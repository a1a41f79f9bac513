"""Instructions with answers, and texts with a class, from a user's own files of records."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import numpy as np
from annotated_types import Ge, Gt, Lt

from edgesim.config.toml_file import ScenarioPath
from edgesim.core.arrays import Ids
from edgesim.core.errors import ConfigError, DataError
from edgesim.core.limits import Count
from edgesim.core.rng import Key, Purpose
from edgesim.files.reading import check_room, quoted
from edgesim.learning.data.dataset import DataPart, Dataset
from edgesim.learning.data.held_out import codes_of, held_out
from edgesim.learning.data.text_records import Record, columns_of, read_records
from edgesim.learning.data.texts import BYTES_PER_TOKEN, next_token_dataset
from edgesim.learning.data.tokenizers import PADDING, Tokenizer, TokenizerKey, tokenizer_of

_FORMS = "instruction and output, prompt and completion, or messages"


@dataclass(frozen=True, kw_only=True)
class RecordSource(DataPart):
    """Keys common to records of texts. All other fields that every record has serve the partition `by_column`."""

    tokenizer: TokenizerKey = "bytes"  # or "characters", or the path of a tokenizer.json, which needs edgesim[llm]
    length: Count = 128  # tokens of a sample
    end: str | None = None  # token of the tokenizer's file after a text, such as "</s>"
    pad: str | None = None  # token of the tokenizer's file in padding. Unset: `end`
    test_share: Annotated[float, Gt(0), Lt(1)] = 0.2  # share of the records, chosen at random, for the test
    split_seed: Annotated[int, Ge(0)] = 1  # of this split alone: runs with different seeds of their own share it

    def as_instructions(
        self, name: str, origin: str, records: Sequence[Record], user: str | None, skip_long: bool = False
    ) -> Dataset:
        """Return the data set of instructions. Records whose prompt fills a sample are errors, or left out."""
        tokenizer = tokenizer_of(self.tokenizer, self.end, self.pad, marks=True)
        check_room(BYTES_PER_TOKEN * len(records) * self.length, origin)
        kept: list[Record] = []
        made: list[tuple[Ids, np.ndarray]] = []  # tokens of a record, and which of them are of answers
        for record in records:
            tokens, answers = _encoded(record, tokenizer)
            if answers[1 : self.length + 1].any():
                kept.append(record)
                made.append((tokens[: self.length + 1], answers[: self.length + 1]))
            elif not skip_long:
                raise DataError(
                    f"{record.where}: has {int(answers.argmax())} {tokenizer.unit} before its answer, data.length is "
                    f"{self.length}; make it longer, or data.skip_long = true leaves such records out"
                )
        if not kept:
            raise DataError(f"{origin}: no record has an answer within {self.length} {tokenizer.unit}")
        rows = np.full((len(kept), self.length + 1), PADDING, dtype=np.int64)
        counted = np.zeros(rows.shape, dtype=bool)
        for place, (tokens, answers) in enumerate(made):
            rows[place, : len(tokens)], counted[place, : len(tokens)] = tokens, answers
        train, test = self._sides(kept, user, None)
        texts = {"instruction", "input", "output", "prompt", "completion", "messages"}
        columns = {key: (values[train], values[test]) for key, values in columns_of(kept, texts).items()}
        numbered = tokenizer.numbered(rows[train], rows[test], origin)
        return next_token_dataset(name, numbered, columns, (counted[train], counted[test]))

    def as_classes(
        self, name: str, origin: str, records: Sequence[Record], user: str | None, text: str, label: str
    ) -> Dataset:
        """Return the data set of records whose text and class have these fields."""
        tokenizer = tokenizer_of(self.tokenizer, self.end, self.pad, marks=True)
        check_room(BYTES_PER_TOKEN * len(records) * self.length, origin)
        rows = np.full((len(records), self.length), PADDING, dtype=np.int64)
        for row, record in zip(rows, records, strict=True):
            own = tokenizer.encode(record.text(text))[: self.length]
            row[: len(own)] = own
        y, classes = _classes([record.text(label) for record in records])
        train, test = self._sides(records, user, y)
        numbered = tokenizer.numbered(rows[train], rows[test], origin)
        columns = {key: (values[train], values[test]) for key, values in columns_of(records, {text, label}).items()}
        x_train, x_test = (np.where(each == PADDING, numbered.pad, each) for each in numbered[:2])
        return Dataset(
            name, x_train, y[train], x_test, y[test], classes, (self.length,),
            columns=columns, vocabulary=numbered.size,
        )  # fmt: skip

    def _sides(self, records: Sequence[Record], user: str | None, groups: Ids | None) -> tuple[Ids, Ids]:
        """Return the records for training and for the test: a share of each user's, or else of each group's."""
        of = groups if user is None else np.array([record.text(user) for record in records])
        codes = np.zeros(len(records), dtype=np.int64) if of is None else codes_of(of)
        return held_out(codes, self.test_share, Key(self.split_seed).at(Purpose.DATA))


@dataclass(frozen=True, kw_only=True)
class Instructions(RecordSource):
    """Instructions with answers, from JSON lines. Each record is one sample, padded. Only answers count in the loss.

    Forms of a record: `instruction`, maybe `input`, and `output`; `prompt` and `completion`; or `messages`, a list of
    tables with `role` and `content`, of which the contents of the role "assistant" are answers.

    The template is plain. It has a line "Instruction:", the instruction, an empty line, the same for the input if there
    is one, a line "Answer:" and the output. A prompt and its completion stand as they are, one after the other. A
    message is a line with its role and a colon, then its content, then an empty line unless it is an answer. The end
    token follows each answer and counts. Parts are encoded one by one, so that no token is of a prompt and an answer.

    The end of a longer record is cut off. A record of whose answer nothing is left is an error, or left out with
    `skip_long`.
    """

    path: ScenarioPath  # of the file
    user: str | None = None  # field with the author. If it is set, each author has a share of the test
    skip_long: bool = False  # leave out records whose prompt fills a whole sample

    def load(self) -> Dataset:
        """Return the data set. Raises DataError or ConfigError if file and keys do not fit."""
        path = self.path.expanduser()
        return self.as_instructions(path.stem, str(self.path), read_records(path), self.user, self.skip_long)


def parts_of(record: Record) -> list[tuple[str, bool]]:
    """Return the parts of a record in the template, each with whether it is an answer. Raises DataError."""
    fields = record.fields
    if "messages" in fields:
        messages = fields["messages"]
        if not isinstance(messages, list) or not all(isinstance(each, dict) for each in messages):
            raise DataError(f"{record.where}: field 'messages' must be a list of tables, found {quoted(messages)}")
        parts: list[tuple[str, bool]] = []
        for number, message in enumerate(messages, 1):
            own = Record(f"{record.where} message {number}", {k: v for k, v in message.items() if v is not None})
            role, content = own.text("role"), own.text("content")
            answer = role == "assistant"
            parts += [(f"{role}:\n", False), (content, True)] if answer else [(f"{role}:\n{content}\n\n", False)]
        if not any(answer for _, answer in parts):
            raise DataError(f"{record.where}: no message has the role 'assistant'")
        return parts
    if "prompt" in fields:
        return [(record.text("prompt"), False), (record.text("completion"), True)]
    if "instruction" not in fields:
        known = ", ".join(map(quoted, fields)) or "none"
        raise DataError(f"{record.where}: needs the fields {_FORMS}, it has {known}")
    prompt = f"Instruction:\n{record.text('instruction')}\n\n"
    if fields.get("input", "") != "":
        prompt += f"Input:\n{record.text('input')}\n\n"
    return [(f"{prompt}Answer:\n", False), (record.text("output"), True)]


def _encoded(record: Record, tokenizer: Tokenizer) -> tuple[Ids, np.ndarray]:
    """Return the tokens of a record, with an end after each answer, and a boolean that marks those of answers."""
    tokens: list[Ids] = []
    for text, answer in parts_of(record):
        own = tokenizer.encode(text)
        tokens.append(np.append(own, tokenizer.end) if answer else own)
    answers = [np.full(len(own), answer) for own, (_, answer) in zip(tokens, parts_of(record), strict=True)]
    return np.concatenate(tokens), np.concatenate(answers)


@dataclass(frozen=True, kw_only=True)
class TextClasses(RecordSource):
    """Texts with a class, from CSV or JSON lines, for the objective `classification`. Each record is one sample.

    Inputs are tokens, padded at their end. The end of a longer text is cut off. Labels are integers from 0, or texts,
    which count in ascending order. A share `test_share` of each class is for the test unless `user` is set.
    """

    path: ScenarioPath  # of the file, CSV if its name ends in .csv, otherwise JSON lines
    text: str = "text"  # field with the text
    label: str = "label"  # field with the class
    user: str | None = None  # field with the author. If it is set, each author has a share of the test

    def load(self) -> Dataset:
        """Return the data set. Raises DataError or ConfigError if file and keys do not fit."""
        path = self.path.expanduser()
        if self.text == self.label:
            raise ConfigError(f"data.label: must be another field than data.text, found {quoted(self.label)}")
        return self.as_classes(path.stem, str(self.path), read_records(path), self.user, self.text, self.label)


def _classes(labels: Sequence[str]) -> tuple[Ids, int]:
    """Return classes and their number: integers from 0 as they are, texts in ascending order."""
    values, places = np.unique(np.array(labels), return_inverse=True)
    if all(value.isascii() and value.isdigit() and len(value) < 7 for value in values.tolist()):
        numbers = np.array([int(label) for label in labels], dtype=np.int64)
        return numbers, int(numbers.max()) + 1
    return places.astype(np.int64), len(values)


PLUGINS = {"instructions": Instructions, "text_classes": TextClasses}
