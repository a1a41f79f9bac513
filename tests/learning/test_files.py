"""Sources of a user's own files: read, and refused with one clear line."""

import gzip
import struct
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image
from pydantic import ValidationError

import edgesim
from edgesim.core.errors import ConfigError, DataError
from edgesim.learning.data.file_formats import read_idx
from tests.conftest import digits_scenario
from tests.learning.made_up_data import (
    idx_bytes,
    load,
    pixels,
    png,
    write_idx_set,
    write_images,
    write_parquet,
    write_parquet_pair,
)

# --- npz ----------------------------------------------------------------------------------------------------


def npz(path: Path, **replace: np.ndarray | None) -> Path:
    arrays = {
        "x_train": np.linspace(-1, 1, 12).reshape(4, 3),
        "y_train": np.array([0, 1, 2, 1]),
        "x_test": np.zeros((2, 3)),
        "y_test": np.array([2, 0]),
    }
    np.savez(path, **{key: value for key, value in {**arrays, **replace}.items() if value is not None})
    return path


def test_npz_of_vectors_is_kept_as_it_is(tmp_path: Path) -> None:
    data = load("npz", file=npz(tmp_path / "a.npz"))
    assert (data.classes, data.input_shape) == (3, (3,))
    x, y = data.batch("train", torch.tensor([1]))
    assert np.allclose(x.numpy(), np.linspace(-1, 1, 12).reshape(4, 3)[1:2]) and y.tolist() == [1]


@pytest.mark.parametrize(
    ("replace", "message"),
    [
        ({"x_test": None, "y_test": None}, "lacks x_test, y_test; it has x_train, y_train"),
        ({"y_train": np.array([0, 1])}, r"train has 4 samples of shape \(3,\) and 2 labels"),
        ({"y_train": np.array([0, -1, 2, 1])}, r"labels lie in \[-1, 2\]"),
        ({"y_test": np.array([0.0, 1.5])}, "labels have type float64"),
        ({"x_test": np.zeros((2, 4))}, "training samples have shape"),
        ({"x_test": np.zeros(2)}, r"test has shape \(2,\)"),
        ({"x_train": np.array([[0.0], [1.0], [np.nan], [0.0]])}, "train sample 2 has a number that is not finite"),
    ],
)
def test_npz_that_does_not_fit_is_refused(tmp_path: Path, replace: dict[str, np.ndarray | None], message: str) -> None:
    with pytest.raises(DataError, match=message):
        load("npz", file=npz(tmp_path / "a.npz", **replace))


def test_npz_truncated_or_missing_is_refused(tmp_path: Path) -> None:
    path = npz(tmp_path / "a.npz")
    path.write_bytes(path.read_bytes()[:300])
    with pytest.raises(DataError, match=r"a\.npz: not a readable"):
        load("npz", file=path)
    with pytest.raises(DataError, match=r"b\.npz: cannot be read: No such file"):
        load("npz", file=tmp_path / "b.npz")
    np.save(tmp_path / "one.npy", np.ones(3))
    with pytest.raises(DataError, match=r"one\.npy: not a readable"):
        load("npz", file=tmp_path / "one.npy")


def test_vectors_cannot_be_cropped(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"data\.augment: needs images, npz holds vectors of 3 features"):
        load("npz", file=npz(tmp_path / "a.npz"), augment={"crop": 1})


# --- idx ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("zipped", [False, True])
def test_idx_folder(tmp_path: Path, zipped: bool) -> None:
    write_idx_set(tmp_path / "mine", zipped=zipped)
    data = load("idx", root=tmp_path / "mine")
    assert (data.classes, data.input_shape, data.y_train.tolist()) == (3, (1, 5, 4), [0, 1, 2, 0, 1, 2])
    assert np.allclose(data.x_test.numpy()[..., 0], pixels(4, 5, 4) / np.float32(255), atol=1e-6)


def test_idx_reads_wider_numbers(tmp_path: Path) -> None:
    path = tmp_path / "wide"
    path.write_bytes(bytes([0, 0, 0x0B, 1]) + struct.pack(">I3h", 3, -1, 2, 300))
    assert read_idx(path).tolist() == [-1, 2, 300]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a", idx_bytes(pixels(2, 3))[:-1], r"a: found 17 bytes, its header \(2, 3\) promises 18"),
        ("a", idx_bytes(pixels(2, 3)) + b"x", "found 19 bytes"),
        ("a", b"\x89PNG....", "not an idx file: starts with 89504e47"),
        ("a", b"", "starts with nothing"),
        ("a", bytes([0, 0, 8, 3, 0, 0]), "truncated: found 6 bytes, the header alone needs 16"),
        (
            "a.gz",
            gzip.compress(idx_bytes(pixels(2, 3)), mtime=0)[:-9],
            r"a\.gz: not a readable idx file, truncated or damaged: ",
        ),
        ("a.gz", idx_bytes(pixels(2, 3)), r"a\.gz: not a readable idx file"),
    ],
)
def test_damaged_idx_is_refused(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=message):
        read_idx(tmp_path / name)


def test_idx_folder_without_its_files_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"data\.root: .* needs train-images"):
        load("idx", root=tmp_path)


# --- parquet ------------------------------------------------------------------------------------------------


def test_parquet_by_file_and_column_name(tmp_path: Path) -> None:
    grey = pixels(3, 4, 4)
    for split in ("a", "b"):
        write_parquet(tmp_path / split, grey, [0, 1, 1], image="picture", label="kind")
    data = load("parquet", train=tmp_path / "a", test=tmp_path / "b", image="picture", label="kind")
    assert data.input_shape == (1, 4, 4) and data.y_train.tolist() == [0, 1, 1]
    assert np.allclose(data.x_train.numpy()[..., 0] * 255, grey, atol=1e-4)


def test_parquet_without_the_column_names_those_it_has(tmp_path: Path) -> None:
    write_parquet_pair(tmp_path)
    with pytest.raises(DataError, match=r"train-0\.parquet: no image column photo; its columns are img, label"):
        load("parquet", root=tmp_path, image="photo")
    with pytest.raises(DataError, match=r"train-0\.parquet: no label column kind; its columns are img, label"):
        load("parquet", root=tmp_path, label="kind")


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"img": [1, 2], "label": [0, 1]}, "column 'img' is int64, expected encoded images"),
        ({"img": [b"x", None], "label": [0, 1]}, "expected encoded images without gaps"),
        ({"img": [b"x", b"y"], "label": ["cat", "dog"]}, "column 'label' is string, expected integers"),
        ({"img": [b"x", b"y"], "label": [0, 1]}, r"train\.parquet: image 0: not a readable image"),
        ({"img": [png(pixels(1, 4, 4)[0]), png(pixels(1, 5, 4)[0])], "label": [0, 1]}, "image 1 has shape"),
        ({"img": pa.array([], pa.binary()), "label": pa.array([], pa.int64())}, "found no images"),
    ],
)
def test_parquet_that_does_not_fit_is_refused(tmp_path: Path, columns: dict[str, object], message: str) -> None:
    pq.write_table(pa.table(columns), tmp_path / "train.parquet")
    with pytest.raises(DataError, match=message):
        load("parquet", train=tmp_path / "train.parquet", test=tmp_path / "train.parquet")


def test_parquet_truncated_or_missing_is_refused(tmp_path: Path) -> None:
    write_parquet_pair(tmp_path)
    path = tmp_path / "test-0.parquet"
    path.write_bytes(path.read_bytes()[:-50])
    with pytest.raises(DataError, match=r"test-0\.parquet: not a readable parquet file"):
        load("parquet", root=tmp_path)
    path.unlink()
    with pytest.raises(DataError, match=r"has no test\*\.parquet"):
        load("parquet", root=tmp_path)


@pytest.mark.parametrize(
    "keys", [{}, {"train": "a"}, {"root": "a", "train": "b", "test": "c"}, {"root": "a", "test": "c"}]
)
def test_parquet_files_are_named_in_one_way(keys: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match=r"data\.root: parquet needs either root"):
        load("parquet", **keys)


# --- folders of images --------------------------------------------------------------------------------------


def test_image_folder_reads_classes_in_the_order_of_their_names(tmp_path: Path) -> None:
    write_images(tmp_path)
    data = load("image_folder", root=tmp_path)
    assert (data.classes, data.input_shape, data.y_train.tolist()) == (2, (3, 8, 4), [0, 0, 0, 1, 1, 1])
    assert [round(255 * float(x.max())) for x in data.x_train] == [0, 10, 20, 100, 110, 120]
    assert load("image_folder", root=tmp_path, resize=6, train_limit=2).x_train.shape == (2, 6, 6, 3)
    assert load("image_folder", root=tmp_path, resize=[3, 5]).input_shape == (3, 3, 5)


def test_image_folder_refuses_what_does_not_fit(tmp_path: Path) -> None:
    write_images(tmp_path)
    odd = tmp_path / "train" / "bee" / "9.png"
    Image.fromarray(pixels(1, 5, 5, 3)[0]).save(odd)
    with pytest.raises(DataError, match=r"image 6 has shape \(5, 5, 3\), image 0 has \(8, 4, 3\)"):
        load("image_folder", root=tmp_path)
    odd.write_bytes(odd.read_bytes()[:60])
    with pytest.raises(DataError, match=r"9\.png: not a readable image"):
        load("image_folder", root=tmp_path, resize=4)
    odd.unlink()
    (tmp_path / "train" / "bee").rename(tmp_path / "train" / "wasp")
    with pytest.raises(DataError, match=r"training classes \['ant', 'wasp'\], test classes \['ant', 'bee'\]"):
        load("image_folder", root=tmp_path)
    with pytest.raises(DataError, match="needs train/<class>"):
        load("image_folder", root=tmp_path / "none")


def write_classes(folder: Path, counts: dict[str, int]) -> None:
    """One folder a class; every image has a colour of its own."""
    colours = iter(range(1, 256))
    for name, count in counts.items():
        (folder / name).mkdir(parents=True)
        for n in range(count):
            Image.fromarray(np.full((4, 4, 3), next(colours), dtype=np.uint8)).save(folder / name / f"{n}.png")


def test_image_folder_may_hold_out_a_share_of_each_class(tmp_path: Path) -> None:
    write_classes(tmp_path, {"ant": 10, "bee": 23, "cat": 4})
    data = load("image_folder", root=tmp_path, test_share=0.2)
    assert torch.bincount(data.y_train).tolist() == [8, 18, 3]  # of each class 80 %, rounded
    assert torch.bincount(data.y_test).tolist() == [2, 5, 1]
    colours = [round(255 * float(x.max())) for x in torch.cat([data.x_train, data.x_test])]
    labels = torch.cat([data.y_train, data.y_test]).tolist()
    assert sorted(zip(colours, labels, strict=True)) == list(
        zip(range(1, 38), [0] * 10 + [1] * 23 + [2] * 4, strict=True)
    )
    assert data.y_train.tolist() != sorted(data.y_train.tolist())  # so that a limit takes all classes
    again, other = (load("image_folder", root=tmp_path, test_share=0.2, seed=seed) for seed in (1, 2))
    assert torch.equal(again.x_train, data.x_train) and not torch.equal(other.x_test, data.x_test)
    limited = load("image_folder", root=tmp_path, test_share=0.2, train_limit=5)
    assert torch.equal(limited.x_train, data.x_train[:5]) and len(limited.x_test) == 8


def test_replicated_images_train_as_arrays_that_hold_them_several_times(tmp_path: Path) -> None:
    write_images(tmp_path / "images")
    folder = load("image_folder", root=tmp_path / "images")
    rows = np.repeat(np.arange(6), [3, 3, 3, 2, 2, 2])  # three ants count three times, three bees twice
    x = (folder.x_train.numpy() * 255).round().astype(np.uint8)
    y, tests = folder.y_train.numpy(), {"x_test": x, "y_test": folder.y_train.numpy()}
    np.savez(tmp_path / "copies.npz", x_train=x[rows], y_train=y[rows], **tests)
    sources = (
        {"name": "image_folder", "root": str(tmp_path / "images"), "replicate": [3, 2]},
        {"name": "npz", "file": str(tmp_path / "copies.npz")},
    )
    runs = [
        edgesim.run(digits_scenario(data=source, training={"batch": 1, "lr": 0.01}, stop={"rounds": 1}))
        for source in sources
    ]
    assert all(np.array_equal(weights, runs[1].weights()[name]) for name, weights in runs[0].weights().items())
    assert (
        runs[0]
        .jobs.drop(columns="host_s", errors="ignore")
        .equals(runs[1].jobs.drop(columns="host_s", errors="ignore"))
    )


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"replicate": [3]}, r"data\.replicate: needs a number for each of the 2 classes, got 1$"),
        ({"test_share": 0.2}, r"data\.test_share: .* has its own train and test folders; leave it out"),
    ],
)
def test_image_folder_refuses_options_that_do_not_fit(tmp_path: Path, keys: dict[str, object], message: str) -> None:
    write_images(tmp_path)
    with pytest.raises(ConfigError, match=message):
        load("image_folder", root=tmp_path, **keys)


@pytest.mark.parametrize("share", [0.1, 0.9])
def test_a_share_that_leaves_a_split_empty_is_refused(tmp_path: Path, share: float) -> None:
    write_classes(tmp_path, {"ant": 3, "bee": 3})
    with pytest.raises(ConfigError, match=rf"data\.test_share: must leave samples in both splits, {share} of 6 are"):
        load("image_folder", root=tmp_path, test_share=share)


@pytest.mark.parametrize("keys", [{"replicate": [0, 1]}, {"test_share": 0}, {"test_share": 1}, {"seed": -1}])
def test_options_of_an_image_folder_out_of_range_are_refused(tmp_path: Path, keys: dict[str, object]) -> None:
    write_images(tmp_path)
    with pytest.raises(ValidationError):
        load("image_folder", root=tmp_path, **keys)
