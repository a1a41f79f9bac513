"""Data sets and a language model in Hugging Face's caches, where offline apps find them by the names that they ask for.

The names and columns are those of the hub. Images of CIFAR-10, MNIST and FashionMNIST are the first ones of the real
sets, and so is iris. The others are random numbers and words of the same types.
"""

from __future__ import annotations

import gzip
import io
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq

TRAIN, TEST = 2000, 500  # samples of an image set
ROWS = 2000  # of a made-up table
WORDS = tuple(f"word{number}" for number in range(200))
METRIC = """import datasets
import evaluate


class Accuracy(evaluate.Metric):
    def _info(self):
        features = {"predictions": datasets.Value("int32"), "references": datasets.Value("int32")}
        return evaluate.MetricInfo("Share of right answers.", "", datasets.Features(features))

    def _compute(self, predictions, references):
        return {"accuracy": sum(map(int.__eq__, map(int, predictions), map(int, references))) / len(references)}
"""
Columns = Mapping[str, Any]
Splits = Mapping[str, Columns]


def environment(caches: Path) -> dict[str, str]:
    """Return the variables with which `datasets` and `transformers` read these caches and never the network."""
    offline = dict.fromkeys(("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE", "TRANSFORMERS_OFFLINE"), "1")
    return {"HF_HOME": str(caches), "HF_DATASETS_CACHE": str(caches / "datasets"), **offline}


def _png(pixels: np.ndarray) -> dict[str, Any]:
    from PIL import Image

    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "png")
    return {"bytes": file.getvalue(), "path": None}


def _cifar10(root: Path) -> Splits:
    tables = {"train": TRAIN, "test": TEST}
    files = {split: next((root / "cifar10").glob(f"{split}-*.parquet")) for split in tables}
    read = {split: pq.ParquetFile(file).read().slice(0, tables[split]) for split, file in files.items()}
    return {
        split: {"img": table["img"].to_pylist(), "label": table["label"].to_pylist()} for split, table in read.items()
    }


def _idx(folder: Path, splits: Mapping[str, str]) -> Splits:
    found = {}
    for split, prefix in splits.items():
        images, labels = (next(folder.rglob(f"{prefix}-{kind}*")) for kind in ("images", "labels"))
        count = TRAIN if split == "train" else TEST
        pixels = np.frombuffer(_content(images), np.uint8, offset=16).reshape(-1, 28, 28)[:count]
        classes = np.frombuffer(_content(labels), np.uint8, offset=8)[:count]
        found[split] = {"image": [_png(image) for image in pixels], "label": classes.tolist()}
    return found


def _content(file: Path) -> bytes:
    return gzip.decompress(file.read_bytes()) if file.suffix == ".gz" else file.read_bytes()


def _iris(names: tuple[str, ...], species: str, kinds: tuple[Any, ...]) -> Splits:
    from sklearn.datasets import load_iris

    numbers, classes = load_iris(return_X_y=True)
    columns = {name: numbers[:, place].tolist() for place, name in enumerate(names)}
    return {"train": {**columns, species: [kinds[number] for number in classes]}}


def _census() -> Splits:
    draw = np.random.default_rng(0)
    words = {
        "workclass": 8, "education": 16, "marital.status": 7, "occupation": 14, "relationship": 6, "race": 5, "sex": 2,
        "native.country": 40,
    }  # fmt: skip
    numbers = {"age": 90, "fnlwgt": 10**6, "education.num": 16, "capital.gain": 10**4, "capital.loss": 4000}
    numbers["hours.per.week"] = 99
    columns: dict[str, list[Any]] = {name: draw.integers(1, most, ROWS).tolist() for name, most in numbers.items()}
    for name, count in words.items():
        columns[name] = [f"{name} {number}" for number in draw.integers(0, count, ROWS)]
    order = (
        "age", "workclass", "fnlwgt", "education", "education.num", "marital.status", "occupation", "relationship",
        "race", "sex", "capital.gain", "capital.loss", "hours.per.week", "native.country",
    )  # fmt: skip
    rich = (np.array(columns["age"]) + draw.normal(size=ROWS) * 10) > 50
    return {"train": {**{name: columns[name] for name in order}, "income": np.where(rich, ">50K", "<=50K").tolist()}}


def _higgs() -> Splits:
    draw, weights = np.random.default_rng(0), np.random.default_rng(1).normal(size=28)
    found = {}
    for split, rows in (("train", ROWS + 500_000), ("test", TEST)):  # an app tests on 500,000 rows of "train"
        inputs = draw.normal(size=(rows, 28)).astype(np.float32)
        found[split] = {"label": (inputs @ weights > 0).astype(np.float32), "inputs": inputs}
    return found


def _titanic() -> Splits:
    draw, rows = np.random.default_rng(0), 887
    titles = ("Mr", "Mrs", "Miss", "Master", "Dr")
    sex = draw.choice(["male", "female"], rows)
    survived = (draw.random(rows) < np.where(sex == "female", 0.74, 0.19)).astype(int)
    return {
        "train": {
            "Survived": survived.tolist(),
            "Pclass": draw.integers(1, 4, rows).tolist(),
            "Name": [f"{draw.choice(titles)}. {draw.choice(WORDS)} {draw.choice(WORDS)}" for _ in range(rows)],
            "Sex": sex.tolist(),
            "Age": draw.integers(1, 80, rows).astype(float).tolist(),
            "Siblings/Spouses Aboard": draw.integers(0, 4, rows).tolist(),
            "Parents/Children Aboard": draw.integers(0, 3, rows).tolist(),
            "Fare": draw.gamma(2, 16, rows).tolist(),
        }
    }


def _reviews() -> Splits:
    draw, found = np.random.default_rng(0), {}
    for split, rows in (("train", TEST), ("test", TEST)):
        labels = draw.integers(0, 2, rows)
        texts = [
            " ".join(WORDS[number] for number in draw.integers(100 * label, 100 * label + 100, 40)) for label in labels
        ]
        found[split] = {"text": texts, "label": labels.tolist()}
    return found


def sets(root: Path, fashion: Path) -> dict[tuple[str, str], Callable[[], Splits]]:
    """Return what makes each data set, by its name at the hub and the name of its configuration."""
    idx = {"train": "train", "test": "t10k"}
    short, long = (
        ("setosa", "versicolor", "virginica"),
        ("SepalLengthCm", "SepalWidthCm", "PetalLengthCm", "PetalWidthCm"),
    )
    flower = ("sepal_length", "sepal_width", "petal_length", "petal_width")
    return {
        ("uoft-cs/cifar10", "plain_text"): lambda: _cifar10(root),
        ("cifar10", "plain_text"): lambda: _cifar10(root),
        ("ylecun/mnist", "mnist"): lambda: _idx(root / "MNIST", idx),
        ("zalando-datasets/fashion_mnist", "fashion_mnist"): lambda: _idx(fashion, idx),
        ("scikit-learn/iris", "default"): lambda: _iris(long, "Species", tuple(f"Iris-{name}" for name in short)),
        ("hitorilabs/iris", "default"): lambda: _iris(flower, "species", (0, 1, 2)),
        ("scikit-learn/adult-census-income", "default"): _census,
        ("jxie/higgs", "default"): _higgs,
        ("julien-c/titanic-survival", "default"): _titanic,
        ("stanfordnlp/imdb", "plain_text"): _reviews,
    }


def write_set(caches: Path, name: str, config: str, splits: Splits) -> None:
    """Write one data set as `datasets` keeps what it has downloaded."""
    from datasets import ClassLabel, Dataset, Features, Image, NamedSplit
    from datasets.data_files import DataFilesDict
    from datasets.packaged_modules.parquet.parquet import Parquet

    made = {split: Dataset.from_dict(dict(columns)) for split, columns in splits.items()}
    features = dict(next(iter(made.values())).features)
    if image := {"img", "image"} & set(features):
        features.update({next(iter(image)): Image(), "label": ClassLabel(num_classes=10)})
    elif name.endswith("imdb"):
        features["label"] = ClassLabel(names=["neg", "pos"])
    files = {}
    for split, rows in made.items():
        files[split] = [str(caches / "made" / f"{name.replace('/', '-')}-{split}.parquet")]
        Path(files[split][0]).parent.mkdir(parents=True, exist_ok=True)
        rows.cast(Features(features)).to_parquet(files[split][0])
    builder = Parquet(
        cache_dir=str(caches / "prepared"),
        dataset_name=name.rpartition("/")[2],
        config_name=config,
        hash="0" * 40,
        features=Features(features),
        data_files=DataFilesDict({NamedSplit(split): paths for split, paths in files.items()}),
    )
    builder.download_and_prepare()
    (prepared,) = (caches / "prepared" / name.rpartition("/")[2]).iterdir()  # named by configuration and files
    shutil.move(prepared, caches / "datasets" / name.replace("/", "___") / config)
    shutil.rmtree(caches / "prepared")


def write_language_model(caches: Path, name: str = "prajjwal1/bert-tiny") -> None:
    """Write a BERT of random weights, with the two layers of width 128 of bert-tiny, as the hub's client keeps it."""
    import torch
    from transformers import BertConfig, BertForSequenceClassification, BertTokenizerFast

    folder, revision = caches / "hub" / f"models--{name.replace('/', '--')}", "0" * 40
    snapshot = folder / "snapshots" / revision
    snapshot.mkdir(parents=True, exist_ok=True)
    (folder / "refs").mkdir(exist_ok=True)
    (folder / "refs" / "main").write_text(revision)
    vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS]
    (snapshot / "vocab.txt").write_text("\n".join(vocabulary) + "\n")
    shape = {"hidden_size": 128, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 512}
    torch.manual_seed(0)
    BertForSequenceClassification(BertConfig(vocab_size=len(vocabulary), **shape)).save_pretrained(snapshot)
    BertTokenizerFast(vocab=str(snapshot / "vocab.txt")).save_pretrained(snapshot)


def write_metric(folder: Path) -> None:
    """Write the metric "accuracy" where `evaluate.load` looks first: in the folder that an app runs in."""
    (folder / "accuracy").mkdir(exist_ok=True)
    (folder / "accuracy" / "accuracy.py").write_text(METRIC)


def write_all(caches: Path, root: Path, fashion: Path = Path("/usr/share/datasets/fashion-mnist")) -> None:
    """Write all data sets and the language model. `root`: the folder with CIFAR-10 and MNIST."""
    for (name, config), make in sets(root, fashion).items():
        write_set(caches, name, config, make())
    write_language_model(caches)
