"""Data sets that are damaged on purpose: what they promise is doubted before anything is allocated."""

import gzip
import io
import os
import struct
import zipfile
import zlib
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from safetensors.numpy import save_file

import edgesim
from edgesim.core.errors import ConfigError, DataError
from edgesim.learning.data.file_formats import read_idx
from tests.conftest import digits_scenario
from tests.learning.made_up_data import load, pixels, png, write_idx_set, write_images, write_parquet_pair

# --- idx ----------------------------------------------------------------------------------------------------


def idx_header(*shape: int, code: int = 8) -> bytes:
    return bytes([0, 0, code, len(shape)]) + struct.pack(f">{len(shape)}I", *shape)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (idx_header(2**32 - 1, 2**32 - 1, 2**32 - 1) + b"xy", r"found 18 bytes, its header .* promises 7922816\d+$"),
        (
            idx_header(2**31, 2**31, 4) + b"xy",
            r"found 18 bytes, its header .* promises 18446744073709551632$",
        ),  # 0 in 64 bits, but for the header
        (idx_header(0, 2**32 - 1, 2**32 - 1), r"not a readable idx file, truncated or damaged: "),
        (idx_header() + b"x", r"not an idx file: starts with 00000800"),
        (bytes([0, 0, 8, 255]) + bytes(4 * 255), r"not an idx file: starts with 000008ff"),
    ],
)
def test_idx_headers_with_absurd_shapes_are_refused(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "a").write_bytes(content)
    with pytest.raises(DataError, match=rf"^{tmp_path}/a: {message}"):
        read_idx(tmp_path / "a")


def test_a_packed_idx_file_cannot_promise_more_than_it_can_hold(tmp_path: Path) -> None:
    path = tmp_path / "a.gz"
    path.write_bytes(gzip.compress(idx_header(60_000, 28, 28) + b"xy", mtime=0))
    with pytest.raises(DataError, match=r"a\.gz: damaged: \d\d bytes cannot hold the 47040000 that they promise$"):
        read_idx(path)
    path.write_bytes(gzip.compress(idx_header(2, 3) + bytes(10**6), mtime=0))
    with pytest.raises(DataError, match=r"a\.gz: found more, its header \(2, 3\) promises 18$"):
        read_idx(path)


# --- npz ----------------------------------------------------------------------------------------------------


def npz(path: Path, **replace: np.ndarray) -> Path:
    arrays = {"x_train": np.eye(4), "y_train": np.arange(4), "x_test": np.eye(4)[:2], "y_test": np.arange(2)}
    np.savez(path, **{**arrays, **replace})
    return path


@pytest.mark.parametrize(
    ("replace", "message"),
    [
        ({"y_train": np.array(3)}, r"labels have type int64 and shape \(\), expected integers"),
        ({"y_train": np.zeros((4, 1), dtype=int)}, r"labels have type int64 and shape \(4, 1\)"),
        ({"y_test": np.zeros((2, 2), dtype=int)}, r"labels have type int64 and shape \(2, 2\)"),
        ({"y_train": np.arange(4) + 10**12}, r"labels lie in \[0, 1000000000003\], expected \[0, 999999\]"),
        ({"y_test": np.array([0, 2**64 - 1], dtype=np.uint64)}, r"labels lie in \[0, 18446744073709551615\]"),
        ({"x_train": np.float64(3)}, r"train has shape \(\) of float64"),
        ({"x_train": np.eye(4) * 1e39}, r"train sample 0 has a number that float32 cannot hold"),
        ({"x_test": np.array([[0, 0, 0, 0], [0, 0, -1e300, 0]])}, r"test sample 1 has a number that float32 cannot"),
        (
            {"x_train": np.zeros((4, 0)), "x_test": np.zeros((2, 0))},
            r"train has 4 samples of shape \(0,\) and 4 labels",
        ),
        ({"x_train": np.array([None] * 4)}, r"not a readable \.npz archive of plain arrays, .*: Object arrays cannot"),
    ],
)
def test_npz_arrays_that_cannot_be_are_refused(tmp_path: Path, replace: dict[str, np.ndarray], message: str) -> None:
    with pytest.raises(DataError, match=rf"^{tmp_path}/a\.npz: {message}"):
        load("npz", file=npz(tmp_path / "a.npz", **replace))


def test_moments_that_blow_numbers_up_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"train sample 0 has a number that float32 cannot hold, normalised$"):
        load("npz", file=npz(tmp_path / "a.npz"), normalise={"mean": [0.0], "std": [1e-40]})


def test_an_npz_bomb_is_not_lit(tmp_path: Path) -> None:
    """The header of an array asks for 11 GiB; the directory of the archive says that it holds 300 kB of zeros."""
    header = io.BytesIO()
    shape = {"descr": "<f4", "fortran_order": False, "shape": (3_000_000_000,)}
    np.lib.format.write_array_header_1_0(header, shape)
    path = npz(tmp_path / "a.npz")
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in {**members, "x_train.npy": header.getvalue() + bytes(300_000)}.items():
            archive.writestr(name, content)
    with pytest.raises(DataError, match=r"a\.npz: x_train\.npy: holds 300000 bytes, its header .* 12000000000$"):
        load("npz", file=path)


def test_an_archive_whose_directory_lies_is_refused(tmp_path: Path) -> None:
    path = npz(tmp_path / "a.npz")
    data = bytearray(path.read_bytes())
    place = data.find(b"PK\x01\x02")  # the first entry of the directory: sizes at 20 and 24
    data[place + 24 : place + 28] = struct.pack("<I", 2**31)
    path.write_bytes(data)
    with pytest.raises(DataError, match=r"a\.npz: x_train\.npy: damaged: \d+ bytes cannot hold the 2147483648"):
        load("npz", file=path)


# --- images -------------------------------------------------------------------------------------------------


def bomb(side: int) -> bytes:
    """A PNG file of so many pixels a side, almost all of them missing."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    about = struct.pack(">IIBBBBB", side, side, 8, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", about) + chunk(b"IDAT", zlib.compress(bytes(9))) + chunk(b"IEND", b"")


@pytest.mark.parametrize("side", [10_000, 30_000])  # Pillow warns of the one, and refuses the other
def test_images_of_too_many_pixels_are_refused(tmp_path: Path, side: int) -> None:
    write_images(tmp_path)
    file = tmp_path / "train" / "bee" / "0.png"
    file.write_bytes(bomb(side))
    with pytest.raises(DataError, match=r"0\.png: not a readable image, truncated or damaged: Image size \(\d+ pixels"):
        load("image_folder", root=tmp_path)
    pq.write_table(pa.table({"img": [bomb(side)], "label": [0]}), tmp_path / "a.parquet")
    with pytest.raises(DataError, match=r"a\.parquet: image 0: not a readable image.*: Image size \(\d+ pixels"):
        load("parquet", train=tmp_path / "a.parquet", test=tmp_path / "a.parquet")


def test_postscript_is_not_run(tmp_path: Path) -> None:
    """Pillow would hand it to Ghostscript, whatever the file is called."""
    write_images(tmp_path)
    (tmp_path / "train" / "bee" / "0.png").write_bytes(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 4 8\nshowpage\n")
    with pytest.raises(DataError, match=r"0\.png: not a readable image, .*: cannot identify image file"):
        load("image_folder", root=tmp_path)


def test_images_together_have_to_fit_into_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_images(tmp_path)
    monkeypatch.setattr("os.sysconf", lambda name: {"SC_PAGE_SIZE": 1, "SC_PHYS_PAGES": 500}[name])
    with pytest.raises(DataError, match=r"needs 0\.0 GiB of memory"):
        load("image_folder", root=tmp_path)


def test_doubled_columns_are_refused(tmp_path: Path) -> None:
    images = pa.array([png(pixels(1, 4, 4)[0])])
    table = pa.Table.from_arrays([images, pa.array([0]), pa.array([1])], ["img", "label", "label"])
    pq.write_table(table, tmp_path / "a.parquet")
    with pytest.raises(DataError, match=r"a\.parquet: has several columns of the name label$"):
        load("parquet", train=tmp_path / "a.parquet", test=tmp_path / "a.parquet")


# --- no files at all ----------------------------------------------------------------------------------------


def in_place_of(path: Path) -> Path:
    path.unlink()
    os.mkfifo(path)
    return path


def test_a_named_pipe_is_not_waited_for(tmp_path: Path) -> None:
    write_idx_set(tmp_path / "idx")
    write_parquet_pair(tmp_path / "parquet")
    write_images(tmp_path / "images")
    save_file({"w": np.zeros(1)}, tmp_path / "w.safetensors")
    pipes = {
        in_place_of(tmp_path / "idx" / "t10k-labels-idx1-ubyte"): ("idx", {"root": tmp_path / "idx"}),
        in_place_of(tmp_path / "parquet" / "train-0.parquet"): ("parquet", {"root": tmp_path / "parquet"}),
        in_place_of(tmp_path / "images/test/bee/2.png"): ("image_folder", {"root": tmp_path / "images"}),
        in_place_of(npz(tmp_path / "a.npz")): ("npz", {"file": tmp_path / "a.npz"}),
    }
    for path, (name, keys) in pipes.items():
        with pytest.raises(DataError, match=rf"^{path}: cannot be read: is a named pipe, a regular file is needed$"):
            load(name, **keys)
    model = {"name": "cnn_digits", "init_from": str(in_place_of(tmp_path / "w.safetensors"))}
    with pytest.raises(ConfigError, match=r"w\.safetensors: cannot be read: is a named pipe"):
        edgesim.run(digits_scenario(model=model))
