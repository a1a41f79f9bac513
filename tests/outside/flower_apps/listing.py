"""The public apps: where they come from, what they need, and with which of their own run options they are run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

REPOSITORY = "adap/flower"
REVISION = "fdef7afb1dca3030553be302366cfd285ed6632c"  # 2026-03-29
PLAIN = "plain"  # data: the app makes or ships its own


@dataclass(frozen=True)
class PublicApp:
    """A Flower app in a folder of REPOSITORY at REVISION."""

    name: str
    folder: str
    data: str  # the set that a cache offers in place of the hub, or PLAIN
    packages: tuple[str, ...] = ()  # needed beside flwr, torch, torchvision and flwr-datasets
    devices: int = 10
    config: Mapping[str, str | int | float | bool] = field(default_factory=dict)  # its own options, made smaller
    host_seconds: bool = False  # its training is not torch's, so that its FLOPs cannot be counted
    without: str = ""  # a record that is not compared, `why` says why
    why: str = ""

    def path(self, checkout: Path) -> Path:
        """Return its folder in a checkout of the repository. Raises FileNotFoundError if it is not there."""
        found = checkout / self.folder
        if not (found / "pyproject.toml").is_file():
            raise FileNotFoundError(f"{self.name} is not in {checkout}: fetch {REPOSITORY} at {REVISION[:10]}")
        return found


def _example(name: str, data: str, *packages: str, **others: object) -> PublicApp:
    return PublicApp(name, f"examples/{name}", data, packages, **others)  # type: ignore[arg-type]


_SECRET = {
    "without": "secaggplus_configs",
    "why": "SecAgg+ draws keys and masks from the operating system, so its own record is not compared. The models "
    "are. Each of its four stages counts as a round.",
}
_OLD = {"why": "That name is in no flwr from 1.38 on."}
_PERCENT = {"why": "Its accuracy is in percent."}
_ONE = {"num-server-rounds": 1}
_HOST = {"host_seconds": True}
_HALF = {"fraction-train": 0.5, "fraction-evaluate": 0.5}
_SMALL_VFL = {"num-server-rounds": 20}
APPS = (
    _example("quickstart-numpy", PLAIN),
    _example("quickstart-pytorch", "uoft-cs/cifar10"),
    _example("quickstart-pytorch-lightning", "ylecun/mnist", "pytorch-lightning"),
    _example(
        "quickstart-sklearn",
        "hitorilabs/iris",
        "scikit-learn",
        config={"num-server-rounds": 5},
        devices=3,
        host_seconds=True,
    ),
    _example("quickstart-pandas", "scikit-learn/iris", "pandas"),
    _example("quickstart-huggingface", "stanfordnlp/imdb", "transformers", "evaluate", config={"fraction-train": 0.2}),
    _example(
        "quickstart-xgboost",
        "jxie/higgs",
        "xgboost",
        config=_HALF,
        host_seconds=True,
    ),
    _example("quickstart-catboost", "scikit-learn/adult-census-income", "catboost", devices=3, host_seconds=True),
    _example("quickstart-fastai", "ylecun/mnist", "fastai", devices=4),
    _example(
        "quickstart-jax", "ylecun/mnist", "jax", "flax", devices=4, config={"num-server-rounds": 3}, host_seconds=True
    ),
    _example("quickstart-pennylane", "uoft-cs/cifar10", "pennylane", devices=4, config=_ONE, **_PERCENT),
    _example("custom-mods", "uoft-cs/cifar10", "tensorboard", "wandb", **_OLD),
    _example("advanced-pytorch", "zalando-datasets/fashion_mnist", "wandb", config={"num-server-rounds": 4}, **_OLD),
    _example("opacus", "uoft-cs/cifar10", "opacus", devices=4),
    _example("fl-dp-sa", "ylecun/mnist", devices=20, **_SECRET),
    _example("fl-tabular", "scikit-learn/adult-census-income", "scikit-learn", devices=5),
    _example("federated-vae", "uoft-cs/cifar10", devices=4),
    _example("federated-kaplan-meier-fitter", PLAIN, "lifelines", devices=2),
    _example("flower-secure-aggregation", "uoft-cs/cifar10", devices=5, **_SECRET),
    _example("vertical-fl", "julien-c/titanic-survival", "scikit-learn", devices=3, config=_SMALL_VFL),
    _example("xgboost-comprehensive", "jxie/higgs", "xgboost", devices=5, host_seconds=True),
    PublicApp(
        "simulation-step-by-step",
        "examples/flower-simulation-step-by-step-pytorch/my-awesome-app",
        "zalando-datasets/fashion_mnist",
        ("wandb",),
    ),
    PublicApp("baseline-template", "baselines/dev/baseline", "uoft-cs/cifar10"),
    PublicApp(
        "fedprox",
        "baselines/fedprox",
        "ylecun/mnist",
        ("easydict",),
        config={
            "algorithm.num-clients": 10,
            "algorithm.num-server-rounds": 3,
            "algorithm.fraction-fit": 0.5,
            "algorithm.min-available-clients": 10,
            "algorithm.local-epochs": 2,
        },
    ),
    PublicApp(
        "floco",
        "baselines/floco",
        "uoft-cs/cifar10",
        ("scikit-learn", "torchmetrics"),
        devices=4,  # of 500 images each
        config={"num-server-rounds": 3, "local-epochs": 1, "fraction-fit": 0.5},
    ),
    PublicApp(
        "fedrep",
        "baselines/fedrep",
        "cifar10",
        config={"num-server-rounds": 2, "num-local-epochs": 1, "fraction-fit": 0.3},
        **_OLD,  # type: ignore[arg-type]
    ),
)
