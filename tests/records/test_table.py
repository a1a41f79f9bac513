"""Column buffers: rows come back in order, typed as the schema says."""

import numpy as np
import pandas as pd
import pytest

from edgesim.core.errors import ConfigError
from edgesim.records.schema import DERIVED, TABLES, conform, recorded
from edgesim.records.table import Table, new_tables
from tests.sizes import full

EVAL = (3, 2, 12.5, "test", 0.7, 0.25, 100)


def eval_columns(rounds):
    rest = {"version": 0, "now_s": 1.5, "split": "test", "loss": 0.5, "accuracy": 0.1, "samples": 10}
    return {"round": np.array(rounds), **rest}


def test_types_follow_the_schema_with_and_without_rows():
    for name, empty in new_tables().items():
        row = tuple({"int64": 1, "float64": 0.5, "str": "x"}[dtype] for dtype in recorded(name).values())
        filled = Table(name)
        filled.append(row)
        for frame, rows in ((empty.frame(), []), (filled.frame(), [row])):
            assert frame.dtypes.astype(str).to_dict() == recorded(name)
            assert list(frame.itertuples(index=False, name=None)) == rows


def test_only_the_merges_have_columns_that_no_row_carries():
    """They stand after server_s, with which they add up to the length of a round."""
    own = {name: {column: dtype for column, dtype in TABLES[name].items() if column != "session"} for name in TABLES}
    assert [name for name in TABLES if recorded(name) != own[name]] == ["rounds"]
    assert [name for name in TABLES if list(TABLES[name])[-1] != "session"] == ["devices"]
    rounds = list(TABLES["rounds"])
    place = rounds.index("server_s") + 1
    assert set(rounds[place : place + len(DERIVED)]) == DERIVED


def test_rows_keep_their_order_across_chunks_and_extends():
    table = Table("evals")
    for i in range(10_000):  # more than one chunk
        table.append((i, *EVAL[1:]))
    table.extend(eval_columns([10_000, 10_001, 10_002]))
    table.append((10_003, *EVAL[1:]))
    assert len(table) == 10_004
    frame = table.frame()
    assert frame["round"].tolist() == list(range(10_004))
    assert frame["now_s"].tolist() == [12.5] * 10_000 + [1.5] * 3 + [12.5]


def test_only_committed_rows_survive_on_request():
    table = Table("evals")
    table.append(EVAL)
    assert len(table.frame(committed_only=True)) == 0
    table.mark()
    table.append((4, *EVAL[1:]))
    assert table.frame(committed_only=True)["round"].tolist() == [3]
    assert table.frame()["round"].tolist() == [3, 4]


def test_some_of_the_rows_are_committed():
    """As the event loop may have written rows of later rounds when a round is committed."""
    table = Table("evals")
    for i in range(5):
        table.append((i, *EVAL[1:]))
    table.mark(2)
    assert (table.committed, len(table)) == (2, 5)
    assert table.frame(committed_only=True)["round"].tolist() == [0, 1]
    table.mark(4)
    assert table.frame(committed_only=True, since=1)["round"].tolist() == [1, 2, 3]
    for rows in (3, 6):
        with pytest.raises(ValueError, match=f"{rows} of 5 rows, of which 4 are committed"):
            table.mark(rows)
    table.mark()
    assert table.committed == 5


@pytest.mark.parametrize("rows", [1, 2047, 2048, 2049, 5000])
def test_released_rows_are_gone_and_the_others_keep_their_indices(rows):
    table = Table("evals")
    for i in range(5000):
        table.append((i, *EVAL[1:]))
    with pytest.raises(ValueError, match=f"{rows} rows, of which 0 are committed"):
        table.release(rows)
    table.mark()
    whole = table.frame()
    table.release(rows)
    assert (table.append((5000, *EVAL[1:])), len(table)) == (5000, 5001)
    table.amend(5000, "loss", 9.0)
    assert table.column("loss", since=rows).tolist() == [0.7] * (5000 - rows) + [9.0]
    pd.testing.assert_frame_equal(table.frame(since=rows, until=5000), whole[rows:].reset_index(drop=True))
    for ask in (table.frame, lambda: table.column("loss", since=rows - 1), lambda: table.amend(rows - 1, "loss", 1.0)):
        with pytest.raises(IndexError, match="released"):
            ask()


def test_extend_keeps_its_own_copy():
    columns = eval_columns([1, 2])
    table = Table("evals")
    table.extend(columns)
    columns["round"][:] = 9
    assert table.frame()["round"].tolist() == [1, 2]


@full
def test_one_value_of_an_earlier_row_can_be_changed():
    """In rows that wait for their chunk, in packed ones, in extended ones, whichever comes first."""
    table = Table("evals")
    indices = [table.append((i, *EVAL[1:])) for i in range(8191)]
    table.amend(5, "split", "waiting")
    indices.append(table.append((8191, *EVAL[1:])))  # this one fills the first chunk
    table.extend(eval_columns([8192, 8193]))
    indices.append(table.append((8194, *EVAL[1:])))
    assert indices == [*range(8192), 8194]
    before = table.frame()
    for row, column, value in ((0, "loss", 2), (8191, "split", "lost"), (8193, "now_s", 9.5), (8194, "samples", 7)):
        table.amend(row, column, value)
    expected = before.copy()
    expected.loc[0, "loss"], expected.loc[8191, "split"] = 2.0, "lost"
    expected.loc[8193, "now_s"], expected.loc[8194, "samples"] = 9.5, 7
    pd.testing.assert_frame_equal(table.frame(), expected)
    assert expected["split"].tolist()[:8] == ["test"] * 5 + ["waiting"] + ["test"] * 2
    assert (before["loss"][0], before["split"][8191], before["now_s"][8193]) == (0.7, "test", 1.5)


def test_a_committed_row_can_be_changed():
    table = Table("evals")
    row = table.append(EVAL)
    table.mark()
    table.amend(row, "accuracy", 0.5)
    assert table.frame(committed_only=True)["accuracy"].tolist() == [0.5]


@pytest.mark.parametrize(
    ("row", "column", "value", "error"),
    [
        (1, "loss", 0.5, IndexError),
        (-1, "loss", 0.5, IndexError),
        (0, "lost", 0.5, KeyError),
        (0, "round", 2.5, TypeError),
        (0, "loss", None, TypeError),
    ],
)
@pytest.mark.parametrize("packed", [True, False])
def test_what_cannot_be_changed_is_refused(row, column, value, error, packed):
    table = Table("evals")
    table.append(EVAL)
    if packed:
        table.frame()
    with pytest.raises(error):
        table.amend(row, column, value)
    assert list(table.frame().itertuples(index=False, name=None)) == [EVAL]


def test_extend_of_single_values_is_one_row_and_of_empty_arrays_none():
    table = Table("evals")
    table.extend(eval_columns([]))
    table.extend(eval_columns(7))
    assert table.frame()["round"].tolist() == [7]


@pytest.mark.parametrize(
    ("row", "error", "message"),
    [
        (EVAL[:-1], ValueError, "shorter"),
        ((*EVAL, 1), ValueError, "longer"),
        ((3.7, *EVAL[1:]), TypeError, "column 'round' takes int64"),
        ((*EVAL[:2], None, *EVAL[3:]), TypeError, "column 'now_s' takes float64"),
    ],
)
def test_rows_that_do_not_fit_are_refused(row, error, message):
    table = Table("evals")
    table.append(row)
    with pytest.raises(error, match=message):
        table.frame()


def test_extend_refuses_other_columns_and_lengths():
    table = Table("evals")
    with pytest.raises(ValueError, match="loss"):
        table.extend({name: 1 for name in TABLES["evals"] if name != "loss"})
    with pytest.raises(ValueError, match=r"\[2, 3\]"):
        table.extend(eval_columns([1, 2]) | {"version": np.zeros(3, dtype=int)})
    assert len(table) == 0


def test_conform_orders_casts_and_names_what_is_missing():
    frame = pd.DataFrame([(*EVAL, "a")], columns=list(TABLES["evals"]))
    mixed = frame[frame.columns[::-1]].astype({"round": "int32", "loss": "float32"}).assign(extra=1)
    assert list(conform("evals", mixed, "here").columns) == list(TABLES["evals"])
    assert conform("evals", mixed, "here")["round"].dtype == np.int64
    with pytest.raises(ConfigError, match=r"^here: table 'evals' lacks now_s, loss; if an earlier"):
        conform("evals", frame.drop(columns=["loss", "now_s"]), "here")
