"""Small files in the formats of data sets, for tests."""

import gzip
import io
import json
import struct
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image
from pydantic import TypeAdapter

from edgesim.config.plugins import plugins_of
from edgesim.learning.data.dataset import Dataset

SOURCES = plugins_of("data")


def load(name: str, **keys: object) -> Dataset:
    """As a scenario does: validated by pydantic, then loaded."""
    return TypeAdapter(SOURCES[name]).validate_python(keys).load()


def pixels(n: int, *shape: int) -> np.ndarray:
    return (np.arange(n * int(np.prod(shape))) * 7 % 256).astype(np.uint8).reshape(n, *shape)


def idx_bytes(array: np.ndarray) -> bytes:
    header = bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape)
    return header + array.astype(np.uint8).tobytes()


def write_idx_set(
    folder: Path, names: tuple[str, str] = ("train", "t10k"), first: int = 0, zipped: bool = False
) -> None:
    folder.mkdir(parents=True)
    for name, n in zip(names, (6, 4), strict=True):
        for kind, array in (("images-idx3", pixels(n, 5, 4)), ("labels-idx1", first + np.arange(n) % 3)):
            content = idx_bytes(array)
            path = folder / f"{name}-{kind}-ubyte{'.gz' if zipped else ''}"
            path.write_bytes(gzip.compress(content, mtime=0) if zipped else content)


def png(image: np.ndarray) -> bytes:
    out = io.BytesIO()
    Image.fromarray(image).save(out, "PNG")
    return out.getvalue()


def write_parquet(path: Path, images: np.ndarray, labels: list[int], image: str = "img", label: str = "label") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    cells = [{"bytes": png(one), "path": None} for one in images]
    pq.write_table(pa.table({image: cells, label: labels}), path)


def write_parquet_pair(folder: Path) -> None:
    write_parquet(folder / "train-0.parquet", pixels(4, 6, 6, 3), [0, 1, 2, 9])
    write_parquet(folder / "train-1.parquet", pixels(2, 6, 6, 3), [5, 5])
    write_parquet(folder / "test-0.parquet", pixels(3, 6, 6, 3), [1, 2, 3])


def write_images(folder: Path, classes: tuple[str, ...] = ("ant", "bee")) -> None:
    for split in ("train", "test"):
        for row, name in enumerate(classes):
            (folder / split / name).mkdir(parents=True)
            for n in range(3):
                image = np.full((8, 4, 3), 10 * n + 100 * row, dtype=np.uint8)
                Image.fromarray(image).save(folder / split / name / f"{n}.png")


def write_arrow(path: Path, table: pa.Table) -> None:
    """Write a stream of record batches, as `datasets` does."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with pa.ipc.new_stream(path, table.schema) as stream:
        stream.write_table(table, max_chunksize=3)


def write_saved(folder: Path, tables: Mapping[str, pa.Table]) -> None:
    """Write what `save_to_disk` of `datasets` does: a DatasetDict, or a Dataset if the only name is empty."""
    for split, table in tables.items():
        write_arrow(folder / split / "data-00000-of-00001.arrow", table)
        state = {"_data_files": [{"filename": "data-00000-of-00001.arrow"}], "_split": split or None}
        (folder / split / "state.json").write_text(json.dumps(state))
    if "" not in tables:
        (folder / "dataset_dict.json").write_text(json.dumps({"splits": list(tables)}))
