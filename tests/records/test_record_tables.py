"""Column buffers: rows come back in order, typed as the schema says."""

import numpy as np
import pandas as pd
import pytest

from edgesim.errors import ConfigError
from edgesim.records.schema import TABLES, conform
from edgesim.records.table import Table, new_tables

EVAL = (3, 2, 12.5, "test", 0.7, 0.25, 100)


def eval_columns(rounds):
    rest = {"version": 0, "now_s": 1.5, "split": "test", "loss": 0.5, "accuracy": 0.1, "samples": 10}
    return {"round": np.array(rounds), **rest}


def test_types_follow_the_schema_with_and_without_rows():
    for name, empty in new_tables().items():
        row = tuple({"int64": 1, "float64": 0.5, "str": "x"}[dtype] for dtype in TABLES[name].values())
        filled = Table(name)
        filled.append(row)
        for frame, rows in ((empty.frame(), []), (filled.frame(), [row])):
            assert frame.dtypes.astype(str).to_dict() == TABLES[name]
            assert list(frame.itertuples(index=False, name=None)) == rows


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


def test_extend_keeps_its_own_copy():
    columns = eval_columns([1, 2])
    table = Table("evals")
    table.extend(columns)
    columns["round"][:] = 9
    assert table.frame()["round"].tolist() == [1, 2]


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
    frame = pd.DataFrame([EVAL], columns=list(TABLES["evals"]))
    mixed = frame[frame.columns[::-1]].astype({"round": "int32", "loss": "float32"}).assign(extra=1)
    assert list(conform("evals", mixed, "here").columns) == list(TABLES["evals"])
    assert conform("evals", mixed, "here")["round"].dtype == np.int64
    with pytest.raises(ConfigError, match=r"^here: table 'evals' lacks now_s, loss$"):
        conform("evals", frame.drop(columns=["loss", "now_s"]), "here")
