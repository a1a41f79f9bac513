"""Data sources: found, read, normalised, and refused with one clear line."""

import os
import pickle
import urllib.request
from pathlib import Path
from urllib.error import URLError

import numpy as np
import pytest
import scipy.io
import torch
from pydantic import ValidationError
from sklearn.datasets import load_digits
from torchvision import datasets

from edgesim.core.errors import ConfigError, DataError
from edgesim.files import user_cache
from edgesim.learning.data import source
from edgesim.learning.data.dataset import Dataset
from edgesim.learning.data.normalise import PRESETS
from tests.learning.made_up_data import load, pixels, write_idx_set, write_parquet, write_parquet_pair
from tests.sizes import full


@pytest.fixture
def nowhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """No data folder is set; the cache lies in an empty home; nothing may open a URL."""

    def refuse(*args: object, **kwargs: object) -> None:
        raise URLError("no route to host")

    for variable in (source.VARIABLE, user_cache.VARIABLE, "XDG_CACHE_HOME"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setattr(source, "SYSTEM", tmp_path / "system")
    monkeypatch.setattr(urllib.request, "urlopen", refuse)
    return tmp_path


# --- digits, and what all sources share ---------------------------------------------------------------------


def test_digits_are_split_by_every_sixth_sample_of_a_class() -> None:
    data = load("digits")
    images, labels = load_digits(return_X_y=True)
    assert (data.classes, data.input_shape) == (10, (1, 8, 8))
    assert torch.bincount(data.y_test).tolist() == [count // 6 for count in np.bincount(labels)]
    assert len(data.y_train) + len(data.y_test) == len(labels)
    sevens = torch.from_numpy(images[labels == 7] / 16).float().reshape(-1, 8, 8, 1)
    assert torch.equal(data.x_test[data.y_test == 7], sevens[5::6])
    kept = np.arange(len(sevens)) % 6 != 5
    assert torch.equal(data.x_train[data.y_train == 7], sevens[kept])


def test_a_batch_is_a_channels_last_view_of_the_rows_asked_for(nowhere: Path) -> None:
    write_parquet_pair(nowhere)
    data = load("parquet", root=nowhere)
    x, y = data.batch("train", torch.tensor([3, 0, 3]))
    expected = pixels(4, 6, 6, 3)[[3, 0, 3]].transpose(0, 3, 1, 2) / np.float32(255)
    assert x.is_contiguous(memory_format=torch.channels_last) and x.dtype == torch.float32
    assert np.allclose(x.numpy(), expected, atol=1e-6)
    assert y.tolist() == [9, 0, 9] and y.dtype == torch.int64
    assert torch.equal(data.batch("test", torch.tensor([2]))[1], torch.tensor([3]))
    assert data.input_shape == (3, 6, 6) and data.x_train.is_contiguous()


@pytest.mark.parametrize("most", [0, 3 * 64 * 4, 2**30])
def test_batches_are_what_they_are_one_by_one(monkeypatch: pytest.MonkeyPatch, most: int) -> None:
    monkeypatch.setattr("edgesim.learning.data.dataset._GATHERED_BYTES", most)
    data, rows = load("digits"), torch.split(torch.tensor([7, 3, 3, 0, 9, 11, 2, 5]), 3)
    gathered = list(data.batches("test", iter(rows)))
    assert [len(y) for _, y in gathered] == [3, 3, 2] and not list(data.batches("test", []))
    for (x, y), own in zip(gathered, rows, strict=True):
        one_x, one_y = data.batch("test", own)
        assert torch.equal(x, one_x) and torch.equal(y, one_y) and x.stride() == one_x.stride()


def test_a_limit_takes_the_first_samples_and_keeps_the_classes(nowhere: Path) -> None:
    write_parquet_pair(nowhere)
    whole, part = load("parquet", root=nowhere), load("parquet", root=nowhere, train_limit=5, test_limit=1)
    assert torch.equal(part.x_train, whole.x_train[:5]) and part.y_train.tolist() == [0, 1, 2, 9, 5]
    assert len(part.x_test) == len(part.y_test) == 1
    assert whole.classes == part.classes == 10
    assert len(load("parquet", root=nowhere, train_limit=2).x_train) == 2


def test_normalise_is_shift_and_scale_of_pixels_in_0_1(nowhere: Path) -> None:
    write_parquet_pair(nowhere)
    mean, std = [0.1, 0.2, 0.3], [0.5, 0.25, 2.0]
    plain = load("parquet", root=nowhere).x_train.double()
    scaled = load("parquet", root=nowhere, normalise={"mean": mean, "std": std}).x_train
    assert float(plain.min()) == 0 and 0.9 < float(plain.max()) <= 1
    assert torch.allclose(
        scaled.double(), (plain - torch.tensor(mean).double()) / torch.tensor(std).double(), atol=1e-5
    )
    half = load("parquet", root=nowhere, normalise="cifar10_half").x_train
    assert torch.allclose(half.double(), 2 * plain - 1, atol=1e-6)


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"normalise": "cifar10"}, "data.normalise: mean has 3 numbers, the data set needs 1$"),
        ({"normalise": {"mean": [0.0], "std": [1.0, 1.0]}}, "std has 2 numbers"),
    ],
)
def test_moments_that_do_not_fit_are_refused(keys: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load("digits", **keys)


@pytest.mark.parametrize(
    "keys",
    [
        {"normalise": "nonsense"},
        {"normalise": {"mean": [0.0], "std": [0.0]}},
        {"normalise": {"mean": [0.0], "std": [1.0], "more": 1}},
        {"augment": {"crop": -1}},
        {"augment": {"crop": 4, "flop": True}},
        {"train_limit": 0},
    ],
)
def test_keys_out_of_range_are_refused(keys: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        load("digits", **keys)


# --- published sets: where they are found -------------------------------------------------------------------


@pytest.mark.parametrize(
    "place", ["data/MNIST/raw", "data/mnist", "home/.cache/edgesim/mnist", "system/mnist", "other"]
)
def test_mnist_is_found(nowhere: Path, monkeypatch: pytest.MonkeyPatch, place: str) -> None:
    write_idx_set(nowhere / place, zipped="raw" not in place)
    monkeypatch.setenv(source.VARIABLE, os.pathsep.join([str(nowhere / "absent"), str(nowhere / "data")]))
    data = load("mnist", root=nowhere / "other")
    assert (data.classes, data.input_shape, data.name) == (10, (1, 5, 4), "mnist")
    assert float(data.x_train.min()) == pytest.approx(-0.1307 / 0.3081, abs=1e-6)


def test_the_root_of_the_scenario_comes_first(nowhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_idx_set(nowhere / "data" / "mnist")
    write_idx_set(nowhere / "own" / "MNIST" / "raw", first=4)
    monkeypatch.setenv(source.VARIABLE, str(nowhere / "data"))
    assert load("mnist", root=nowhere / "own").y_train.tolist() == [4, 5, 6, 4, 5, 6]
    assert load("mnist").y_train.tolist() == [0, 1, 2, 0, 1, 2]


def test_files_in_a_folder_of_another_name_are_not_taken(nowhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_idx_set(nowhere / "mnist")
    monkeypatch.setenv(source.VARIABLE, str(nowhere / "mnist"))
    assert load("mnist").classes == 10
    with pytest.raises(DataError, match="fashion_mnist not found"):
        load("fashion_mnist")


def test_emnist_letters_count_from_zero(nowhere: Path) -> None:
    write_idx_set(nowhere / "EMNIST" / "raw", ("emnist-letters-train", "emnist-letters-test"), first=1)
    data = load("emnist", root=nowhere, split="letters")
    assert data.classes == 26 and data.y_train.tolist() == [0, 1, 2, 0, 1, 2]


def test_emnist_as_parquet_is_the_split_that_its_labels_say(nowhere: Path) -> None:
    letters = np.arange(1, 27)
    write_parquet(nowhere / "emnist" / "train-0.parquet", pixels(26, 6, 6, 1)[..., 0], letters)
    write_parquet(nowhere / "emnist" / "test-0.parquet", pixels(2, 6, 6, 1)[..., 0], [26, 1])
    data = load("emnist", root=nowhere, split="letters")
    assert (data.classes, data.y_train.tolist(), data.y_test.tolist()) == (26, [*range(26)], [25, 0])
    with pytest.raises(DataError, match=r"emnist: its training set has 26 classes, data\.split 'balanced' has 47"):
        load("emnist", root=nowhere)


def test_cifar10_is_found_as_parquet(nowhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_parquet_pair(nowhere / "cifar10")
    monkeypatch.setenv(source.VARIABLE, str(nowhere))
    data = load("cifar10", augment={"crop": 4, "flip": True}, normalise="none")
    assert (data.classes, data.y_train.tolist()) == (10, [0, 1, 2, 9, 5, 5])
    assert np.allclose(data.x_train[:4].numpy() * 255, pixels(4, 6, 6, 3), atol=1e-4)
    assert data.augment is not None and data.augment.crop == 4


def test_cifar10_is_read_in_the_layout_of_torchvision(nowhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = nowhere / "cifar-10-batches-py"
    folder.mkdir()
    flat = pixels(2, 3, 32, 32)  # published with channels first
    for name in [f"data_batch_{i}" for i in range(1, 6)] + ["test_batch"]:
        (folder / name).write_bytes(pickle.dumps({"data": flat.reshape(2, -1), "labels": [3, 8]}))
    with pytest.raises(
        DataError, match="not a readable folder of CIFAR10, truncated or damaged: "
    ):  # checksums are not those published
        load("cifar10", root=nowhere)
    monkeypatch.setattr(datasets.CIFAR10, "_check_integrity", lambda self: True)
    monkeypatch.setattr(datasets.CIFAR10, "_load_meta", lambda self: None)
    for root in (nowhere, folder):
        data = load("cifar10", root=root, normalise="none")
        assert data.y_train.tolist() == [3, 8] * 5 and data.y_test.tolist() == [3, 8]
        assert np.allclose(data.batch("train", torch.tensor([0, 1]))[0].numpy() * 255, flat, atol=1e-4)


def test_svhn_is_read_in_the_layout_of_torchvision(nowhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    images = pixels(4, 32, 32, 3)
    for split in ("train", "test"):
        label = np.array([[1], [10], [9], [3]])  # published with 10 for the digit 0
        scipy.io.savemat(nowhere / f"{split}_32x32.mat", {"X": images.transpose(1, 2, 3, 0), "y": label})
    monkeypatch.setattr(datasets.SVHN, "_check_integrity", lambda self: True)
    data = load("svhn", root=nowhere, normalise="none")
    assert data.y_train.tolist() == [1, 0, 9, 3]
    assert np.allclose(data.x_train.numpy() * 255, images, atol=1e-4)


PUBLISHED = ["mnist", "fashion_mnist", "emnist", "cifar10", "cifar100", "svhn"]


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_missing_set_says_where_it_was_looked_for_and_what_to_do(
    nowhere: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv(source.VARIABLE, str(nowhere / "data"))
    with pytest.raises(DataError) as caught:
        load(name, root=nowhere / "own")
    message = str(caught.value)
    for folder in ("own", "data", "home/.cache/edgesim", "system"):
        assert str(nowhere / folder) in message
    for remedy in ("put its files there", "EDGESIM_DATA", "data.root", "data.download = true"):
        assert remedy in message
    assert "\n" not in message


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_failed_download_says_what_to_do_instead(nowhere: Path, name: str) -> None:
    with pytest.raises(DataError, match=r"data\.download: cannot download .* EDGESIM_DATA .* digits") as caught:
        load(name, download=True)
    assert str(nowhere / "home/.cache/edgesim") in str(caught.value)
    assert "\n" not in str(caught.value)
    assert list((nowhere / "home/.cache/edgesim").iterdir()) == []


@pytest.mark.parametrize(("root", "folder"), [(None, "home/.cache/edgesim"), ("own", "own")])
def test_a_download_is_read_from_root_or_the_cache(
    nowhere: Path, monkeypatch: pytest.MonkeyPatch, root: str | None, folder: str
) -> None:
    def write(reader: datasets.MNIST) -> None:
        if not Path(reader.raw_folder).exists():
            write_idx_set(Path(reader.raw_folder))

    monkeypatch.setattr(datasets.MNIST, "download", write)
    found = load("mnist", download=True, root=None if root is None else nowhere / root)
    assert found.y_train.tolist() == [0, 1, 2, 0, 1, 2]
    assert {path.name for path in (nowhere / folder).iterdir()} - {user_cache.DECODED} == {"MNIST"}


# --- the real thing, where it is at hand --------------------------------------------------------------------


def real(name: str, remedy: str, **keys: object) -> Dataset:
    try:
        return load(name, **keys)
    except DataError as error:
        pytest.skip(f"{remedy}: {error}")


def test_real_mnist() -> None:
    data = real("mnist", "set EDGESIM_DATA to a folder with MNIST")
    # label counts of the test set as published
    assert torch.bincount(data.y_test).tolist() == [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]
    assert len(data.x_train) == 60000 and data.input_shape == (1, 28, 28)
    assert abs(float(data.x_train.mean())) < 1e-3 and abs(float(data.x_train.std()) - 1) < 1e-3


@full
def test_real_fashion_mnist() -> None:
    data = real("fashion_mnist", "install the Debian package dataset-fashion-mnist or set EDGESIM_DATA")
    assert torch.bincount(data.y_train).tolist() == [6000] * 10
    assert torch.bincount(data.y_test).tolist() == [1000] * 10
    assert abs(float(data.x_train.mean())) < 1e-3 and abs(float(data.x_train.std()) - 1) < 1e-3


def test_real_cifar10() -> None:
    data = real("cifar10", "set EDGESIM_DATA to a folder with CIFAR-10", train_limit=2000, test_limit=1000)
    assert data.input_shape == (3, 32, 32) and data.classes == 10
    # the preset's means are those of all 50000 images; 2000 of them, whose own means spread by about 0.6 of a pixel's
    # deviation, are off by about 0.6 / sqrt(2000) = 0.013
    assert float(data.x_train.mean((0, 1, 2)).abs().max()) < 5 * 0.013


def test_moments_of_the_real_cifar10() -> None:
    """`cifar10` has the deviations of the channels, `cifar10_per_image` the mean of those of single images."""
    pixels = real("cifar10", "set EDGESIM_DATA to a folder with CIFAR-10", normalise="none", test_limit=1).x_train
    assert pixels.shape == (50_000, 32, 32, 3)
    channels = [pixels[..., channel].double().flatten(1) for channel in range(3)]
    whole, per_image = PRESETS["cifar10"], PRESETS["cifar10_per_image"]
    assert whole.mean == per_image.mean == tuple(round(float(channel.mean()), 4) for channel in channels)
    assert whole.std == tuple(round(float(channel.std()), 4) for channel in channels)
    assert per_image.std == tuple(round(float(channel.std(dim=1).mean()), 4) for channel in channels)
