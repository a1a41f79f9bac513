"""Image models of timm: sizes as timm's own results list them, weights, and bad input."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from edgesim.config.plugins import find
from edgesim.core.errors import ConfigError
from edgesim.core.rng import Key
from edgesim.learning.models.build import build_model, model_state_of
from edgesim.learning.models.timm_family import TimmModel
from tests.sizes import full, thinned

# Millions of parameters in timm's results-imagenet.csv, which rounds to two digits.
MILLIONS = {"resnet18": 11.69, "vit_tiny_patch16_224": 5.72, "mobilenetv3_small_100": 2.54, "efficientnet_b0": 5.29}


def of(name: str) -> TimmModel:
    cls, fixed = find("model", f"timm:{name}")
    found = cls(**fixed)
    assert isinstance(found, TimmModel)
    return found


@pytest.mark.parametrize("name", thinned(MILLIONS, {"mobilenetv3_small_100"}))
def test_models_have_the_listed_sizes(name: str) -> None:
    with torch.device("meta"):
        module = of(name).build((3, 224, 224), 1000)
    assert round(sum(value.numel() for value in module.parameters()) / 1e6, 2) == MILLIONS[name]


@pytest.mark.parametrize("name", ["resnet10t", "vit_tiny_patch16_224"])
def test_images_of_the_data_fit_whatever_their_size(name: str) -> None:
    """A convolutional network takes any size, and a vision transformer gets as many positions as there are patches."""
    module = build_model(of(name), (1, 32, 32), 7, Key(1))
    assert module(torch.zeros(2, 1, 32, 32)).shape == (2, 7)


@full
def test_weights_follow_from_the_seed_or_from_a_file(tmp_path: Path) -> None:
    import timm

    one, same, other = (build_model(of("resnet10t"), (3, 32, 32), 4, Key(seed)).state_dict() for seed in (1, 1, 2))
    assert all(torch.equal(one[name], same[name]) for name in one)
    assert not torch.equal(one["fc.weight"], other["fc.weight"])
    theirs = timm.create_model("resnet10t", pretrained=False, num_classes=4)
    save_file(theirs.state_dict(), tmp_path / "theirs.safetensors")
    loaded = build_model(
        TimmModel(member="resnet10t", init_from=tmp_path / "theirs.safetensors"), (3, 32, 32), 4, Key(1)
    )
    assert all(torch.equal(value, theirs.state_dict()[name]) for name, value in loaded.state_dict().items())


def test_a_head_alone_trains(tmp_path: Path) -> None:
    """2048 pooled features would be ResNet-50's; ResNet-10-T has 512, and four classes with a bias."""
    part = TimmModel(member="resnet10t", freeze=("conv1", "bn1", "layer*"))
    trained = model_state_of(build_model(part, (3, 32, 32), 4, Key(1)))["params"]
    assert {name: value.numel() for name, value in trained.items()} == {"fc.weight": 4 * 512, "fc.bias": 4}


@pytest.mark.parametrize(
    ("name", "shape", "says"),
    [
        ("resnet19", (3, 32, 32), "model.name: timm has no model 'resnet19'; did you mean 'resnet1"),
        ("hf-hub:timm/resnet18", (3, 32, 32), "model.name: timm has no model 'hf-hub:timm/resnet18'"),
        ("resnet18", (60,), "model.name: timm:resnet18 reads images, data gives 60"),
        ("vit_tiny_patch16_224", (3, 0, 0), "model.name: timm:vit_tiny_patch16_224 cannot be built: "),
    ],
)
def test_bad_input_is_one_line(name: str, shape: tuple[int, ...], says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        of(name).build(shape, 10)
    assert str(caught.value).startswith(says)
    assert "\n" not in str(caught.value)


def test_without_the_extra_one_line_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "timm", None)  # which `import` answers with ImportError
    with pytest.raises(ConfigError, match=r'^model.name: timm:resnet18 needs timm; pip install "edgesim\[timm\]"'):
        of("resnet18").build((3, 32, 32), 10)
