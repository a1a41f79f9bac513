"""Decoded images that are kept: equal bits, decoded anew when a file changes, mapped by all processes."""

from __future__ import annotations

import contextlib
import os
import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from edgesim.core.errors import DataError
from edgesim.files import user_cache
from edgesim.learning.data.dataset import Dataset
from edgesim.learning.data.normalise import PRESETS
from edgesim.learning.data.sources import files
from tests.learning.made_up_data import load, pixels, write_idx_set, write_parquet, write_parquet_pair
from tests.sizes import full


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache folder."""
    folder = tmp_path / "cache"
    monkeypatch.setenv(user_cache.VARIABLE, str(folder))
    return folder / user_cache.DECODED


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of parquet files as they are decoded."""
    names: list[str] = []
    real = files.read_parquet
    monkeypatch.setattr(files, "read_parquet", lambda paths, *rest: names.extend(map(str, paths)) or real(paths, *rest))
    return names


def by_formula(images: np.ndarray, preset: str) -> np.ndarray:
    """Return (pixel - 255 mean) / (255 deviation) in float32, image by image."""
    moments = PRESETS[preset]  # type: ignore[index]
    shift, scale = (np.float32(255) * np.array(numbers, np.float32) for numbers in (moments.mean, moments.std))
    return (images.astype(np.float32) - shift) / scale


# --- equal ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("preset", ["none", "cifar10", "cifar10_half"])
def test_mapped_images_are_those_of_the_files_bit_for_bit(
    tmp_path: Path, cache: Path, reads: list[str], preset: str
) -> None:
    write_parquet_pair(tmp_path / "data")
    fresh = load("parquet", root=tmp_path / "data", normalise=preset)
    mapped = load("parquet", root=tmp_path / "data", normalise=preset)
    assert len(reads) == 3  # train-0, train-1 and test-0, once
    rows = torch.tensor([5, 0, 3, 0])
    images = np.concatenate([pixels(4, 6, 6, 3), pixels(2, 6, 6, 3)])
    expected = by_formula(images, preset)[rows.numpy()].transpose(0, 3, 1, 2)
    for data in (fresh, mapped):
        x, y = data.batch("train", rows)
        assert np.array_equal(x.numpy(), expected) and y.tolist() == [5, 0, 9, 0]
        assert x.is_contiguous(memory_format=torch.channels_last) and x.dtype == torch.float32
        assert np.array_equal(data.x_test.numpy(), by_formula(pixels(3, 6, 6, 3), preset))
    assert fresh.digest == mapped.digest


def test_the_digest_is_the_same_without_a_cache_and_another_for_other_batches(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_parquet_pair(tmp_path / "data")
    write_parquet_pair(tmp_path / "other")
    write_parquet(tmp_path / "other" / "test-0.parquet", pixels(3, 6, 6, 3), [1, 2, 4])
    kept_ = [load("parquet", root=tmp_path / "data").digest for _ in range(2)]
    other = load("parquet", root=tmp_path / "other").digest
    limited = load("parquet", root=tmp_path / "data", train_limit=5).digest
    scaled = load("parquet", root=tmp_path / "data", normalise="cifar10").digest
    monkeypatch.setenv(user_cache.VARIABLE, "/proc/nowhere")
    assert {load("parquet", root=tmp_path / "data").digest, *kept_} == {kept_[0]}
    assert len({kept_[0], other, limited, scaled}) == 4


def test_other_numbers_than_pixels_are_not_kept(tmp_path: Path, cache: Path) -> None:
    x, y = np.linspace(0, 1, 12).reshape(4, 3), np.array([0, 1, 0, 1])
    np.savez(tmp_path / "own.npz", x_train=x, y_train=y, x_test=x, y_test=y)
    data = load("npz", file=tmp_path / "own.npz", normalise={"mean": [0.25], "std": [3.0]})
    expected = (x.astype(np.float32) - np.float32(0.25)) / np.float32(3)
    assert np.array_equal(data.batch("test", torch.arange(4))[0].numpy(), expected)
    assert not cache.exists()


# --- found by content -------------------------------------------------------------------------------------------


def test_a_file_that_changed_is_decoded_anew(tmp_path: Path, cache: Path) -> None:
    """Also one of the same name, size and time, by its content."""
    write_idx_set(tmp_path / "data")
    before = load("idx", root=tmp_path / "data")
    file = tmp_path / "data" / "train-images-idx3-ubyte"
    content, times = bytearray(file.read_bytes()), file.stat()
    content[-1] ^= 255
    file.write_bytes(content)
    os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns))
    after = load("idx", root=tmp_path / "data")
    assert (before.x_train != after.x_train).nonzero().tolist() == [[5, 4, 3, 0]]
    assert before.digest != after.digest


def test_the_same_files_elsewhere_are_not_decoded_again(tmp_path: Path, cache: Path, reads: list[str]) -> None:
    write_parquet_pair(tmp_path / "data")
    first = load("parquet", root=tmp_path / "data").digest
    (tmp_path / "data").rename(tmp_path / "moved")
    again = load("parquet", train=tmp_path / "moved/train-0.parquet", test=tmp_path / "moved/test-0.parquet").digest
    assert again != first and len(reads) == 5  # other files, hence other samples
    held = len(list(cache.glob("*.npy")))
    load("parquet", root=tmp_path / "moved", image="img")  # other keys: decoded again, into the same arrays
    assert len(reads) == 8 and len(list(cache.glob("*.npy"))) == held


def test_an_image_that_moves_to_another_class_counts_there(tmp_path: Path, cache: Path) -> None:
    from PIL import Image

    for split, name in (
        ("train", "ant/1"),
        ("train", "ant/2"),
        ("train", "bee/3"),
        ("test", "ant/4"),
        ("test", "bee/5"),
    ):
        path = tmp_path / "data" / split / f"{name}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels(1, 4, 4, 3)[0] // int(name[-1])).save(path)
    assert load("image_folder", root=tmp_path / "data").y_train.tolist() == [0, 0, 1]
    (tmp_path / "data/train/ant/2.png").rename(tmp_path / "data/train/bee/2.png")
    assert load("image_folder", root=tmp_path / "data").y_train.tolist() == [0, 1, 1]
    (tmp_path / "data/train/bee").rename(tmp_path / "bees")
    (tmp_path / "data/train/bee").symlink_to(tmp_path / "bees")
    assert load("image_folder", root=tmp_path / "data").y_train.tolist() == [0, 1, 1]
    (tmp_path / "bees" / "2.png").unlink()
    assert load("image_folder", root=tmp_path / "data").y_train.tolist() == [0, 1]


# --- damaged, or nowhere to keep it -----------------------------------------------------------------------------


def flip(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)


DAMAGES = {
    "a flipped bit": flip,
    "cut off": lambda file: file.write_bytes(file.read_bytes()[:-1]),
    "empty": lambda file: file.write_bytes(b""),
    "no array": lambda file: file.write_text("no array"),
    "missing": lambda file: file.unlink(),
    "a folder": lambda file: (file.unlink(), file.mkdir()),
}


@pytest.mark.parametrize("ending", [".npy", ".json"])
@pytest.mark.parametrize("damage", DAMAGES)
def test_what_is_damaged_is_decoded_anew(
    tmp_path: Path, cache: Path, reads: list[str], damage: str, ending: str
) -> None:
    write_parquet_pair(tmp_path / "data")
    whole = load("parquet", root=tmp_path / "data")
    expected = whole.x_train.clone()
    file = max(cache.glob(f"*{ending}"), key=lambda path: path.stat().st_size)
    name = file.name
    DAMAGES[damage](file)
    again = load("parquet", root=tmp_path / "data")
    assert torch.equal(again.x_train, expected) and len(reads) == 6
    if damage != "a folder":
        load("parquet", root=tmp_path / "data")
        assert len(reads) == 6 and (cache / name).is_file()  # it was kept again


def test_without_a_folder_to_write_in_nothing_is_kept(
    tmp_path: Path, reads: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(user_cache.VARIABLE, "/proc/nowhere")
    write_parquet_pair(tmp_path / "data")
    data = [load("parquet", root=tmp_path / "data") for _ in range(2)]
    assert torch.equal(data[0].x_train, data[1].x_train) and len(reads) == 6


# --- several processes ------------------------------------------------------------------------------------------


def test_a_worker_is_sent_the_path_and_maps_the_same_file(tmp_path: Path, cache: Path) -> None:
    images = np.tile(pixels(1, 32, 32, 3), (50, 1, 1, 1))
    arrays = {"x_train": images, "x_test": images[:10], "y_train": np.arange(50) % 10, "y_test": np.arange(10)}
    np.savez_compressed(tmp_path / "own.npz", **arrays)
    data = load("npz", file=tmp_path / "own.npz", normalise="cifar10")
    sent = pickle.dumps(data)
    assert len(sent) < 3_000 < images.nbytes
    got: Dataset = pickle.loads(sent)
    rows = torch.arange(0, 50, 7)
    assert torch.equal(got.batch("train", rows)[0], data.batch("train", rows)[0])
    maps = Path("/proc/self/maps").read_text() if sys.platform == "linux" else str(cache)
    assert str(cache) in maps


_KEEP = """
import numpy as np
from edgesim.files.user_cache import keep_array, keep_table, kept_array
array = (np.arange(200_000) % 251).astype(np.uint8)
for turn in range(60):
    keep_table("profiles", "common", list(range(2_000)))
    path = kept_array("decoded", keep_array("decoded", array))
    if path is not None and turn % 7 == {number}:
        path.unlink(missing_ok=True)
"""


@full
def test_several_processes_may_keep_the_same_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each reader finds all of it or nothing, also while somebody removes it, and nothing half-written is left."""
    monkeypatch.setenv(user_cache.VARIABLE, str(tmp_path))
    commands = [[sys.executable, "-c", _KEEP.format(number=each)] for each in range(2)]
    writers = [subprocess.Popen(command, stderr=subprocess.PIPE, text=True) for command in commands]
    array, tables, files = (np.arange(200_000) % 251).astype(np.uint8), set(), set()
    while any(writer.poll() is None for writer in writers):
        table = user_cache.kept_table(user_cache.PROFILES, "common")
        tables.add(table is None or table == list(range(2_000)))
        for path in tmp_path.rglob("[!.]*.npy"):
            with contextlib.suppress(DataError):  # it was removed meanwhile
                files.add(np.array_equal(user_cache.mapped(path), array))
    for writer in writers:
        assert writer.communicate()[1] == "" and writer.returncode == 0
    assert tables == files == {True}
    assert user_cache.kept_table(user_cache.PROFILES, "common") == list(range(2_000))
    assert not list(tmp_path.rglob("*.growing"))
