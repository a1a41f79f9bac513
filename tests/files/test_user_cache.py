"""Cost profiles that are kept: equal to measured ones, found by what they follow from, and never trusted blindly."""

from __future__ import annotations

import json
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgesim.config.plugin_fields import PartOf
from edgesim.config.plugins import places_of
from edgesim.core.errors import ConfigError
from edgesim.core.price_list import CostProfile
from edgesim.core.rng import Key
from edgesim.files import code_identity, user_cache
from edgesim.learning.models.build import model_state_of
from edgesim.runs import network
from edgesim.runs.network import cost_profile_of, network_of
from tests.calling import call
from tests.sizes import full, thinned

MODELS = [name for name in places_of("model") if not name.endswith(":")] + ["torchvision:resnet18"]
KEY = Key(7)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache folder."""
    folder = tmp_path / "cache"
    monkeypatch.setenv(user_cache.VARIABLE, str(folder))
    return folder / user_cache.PROFILES


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Names of the networks that are measured from then on."""
    names: list[str] = []
    real = network.measured

    def watched(module: Any, name: str, *rest: Any) -> CostProfile:
        names.append(name)
        return real(module, name, *rest)

    monkeypatch.setattr(network, "measured", watched)
    yield names


def asked(model: Any, shape: tuple[int, ...] | None = None, classes: int | None = None) -> network.Network:
    """Return a network as a scenario asks for it."""
    return network_of(PartOf("model").read(model), shape, classes, KEY)


# --- equal ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", thinned(MODELS, {"lenet5"}))
def test_a_kept_profile_equals_a_measured_one(cache: Path, measured: list[str], name: str) -> None:
    """Of every model in the catalogue; and the network that is then built without a trial has the same weights."""
    first, again = asked(name), asked(name)
    chosen = PartOf("model").read(name)
    module, profile = cost_profile_of(chosen.value, name, None, None, KEY)
    assert first.cost_profile == again.cost_profile == profile
    assert measured == [name, name]  # by the first and by us
    states = [model_state_of(each) for each in (module, first.module, again.module)]
    for kind, tensors in states[0].items():
        for tensor_name, tensor in tensors.items():
            assert all(state[kind][tensor_name].equal(tensor) for state in states)
            assert again.module.state_dict()[tensor_name].stride() == module.state_dict()[tensor_name].stride()


# --- found by what it follows from --------------------------------------------------------------------------------


@full
def test_each_input_has_its_own(cache: Path, measured: list[str]) -> None:
    asks: list[tuple[Any, ...]] = [
        ("cnn_m",),
        ({"name": "cnn_m", "conv_dropout": 0.0},),
        ("cnn_m", (1, 32, 32)),
        ("cnn_m", None, 62),
        ("cnn_mnist",),
    ]
    profiles = [asked(*each).cost_profile for each in asks]
    assert len(measured) == len(list(cache.iterdir())) == 5
    assert [asked(*each).cost_profile for each in asks] == profiles
    assert len(measured) == 5


@pytest.mark.parametrize("changed", ["torch", "code"])
def test_another_version_or_other_code_is_measured(
    cache: Path, measured: list[str], monkeypatch: pytest.MonkeyPatch, changed: str
) -> None:
    asked("mlr")
    if changed == "torch":
        monkeypatch.setattr(code_identity, "version_of", lambda name: f"another {name}")
    else:
        monkeypatch.setattr(code_identity, "source_digest", lambda *folders: "other code")
    asked("mlr")
    assert measured == ["mlr", "mlr"]


def test_weights_to_start_from_are_looked_at_though_the_profile_is_kept(cache: Path, measured: list[str]) -> None:
    asked("mlr")
    with pytest.raises(ConfigError, match=r"/nowhere\.safetensors: cannot be read"):
        asked({"name": "mlr", "init_from": "/nowhere.safetensors"})
    assert measured == ["mlr"]


def test_a_network_without_room_is_refused_though_its_profile_is_kept(
    cache: Path, measured: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked("cnn_a")
    for module in ("edgesim.core.limits", "edgesim.runs.network"):
        monkeypatch.setattr(f"{module}.memory_bytes", lambda: 2.0 * 4 * 582_026 - 1)  # the parameters, and a copy
    with pytest.raises(ConfigError, match=r"model: CnnA with 5\.82e\+05 numbers, beside a copy of them, would take"):
        asked("cnn_a")


OWN = """
from torch import nn

from {helper} import WIDTH

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1 = nn.Linear(4, WIDTH)
        self.fc2 = nn.Linear(WIDTH, 2)

    def forward(self, x):
        return self.fc2(self.fc1(x){more})
"""


def test_code_of_ones_own_is_part_of_what_a_profile_follows_from(
    cache: Path, measured: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file of the network, and every module of the user's that it imports."""

    def profile(width: int, more: str = "") -> CostProfile:
        (tmp_path / "helper_of_net.py").write_text(f"WIDTH = {width}\n")
        (tmp_path / "own_net.py").write_text(textwrap.dedent(OWN.format(helper="helper_of_net", more=more)))
        for name in ("helper_of_net", "own_net"):
            sys.modules.pop(name, None)
        return asked("own_net:Net", (4,), 2).cost_profile

    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    narrow = profile(3)
    assert profile(3) == narrow and len(measured) == 1
    assert profile(5).params > narrow.params and len(measured) == 2
    same_layers = profile(3, more=" @ self.fc1.weight @ self.fc1.weight.T")  # no parameter tells
    assert same_layers.train_flops() > narrow.train_flops() and len(measured) == 3


def test_a_network_whose_code_lies_in_no_file_is_known_by_what_it_does(cache: Path, measured: list[str]) -> None:
    """As in a notebook: the class is defined again, and one that is changed is measured again."""
    from types import ModuleType

    from torch import nn

    def typed_in(width: int) -> CostProfile:
        module = ModuleType("typed_in")
        vars(module).update(nn=nn, WIDTH=width)
        exec("class Net(nn.Linear):\n  def __init__(self):\n    super().__init__(4, WIDTH)", vars(module))
        sys.modules["typed_in"] = module
        return asked("typed_in:Net", (4,), width).cost_profile

    try:
        first = typed_in(2)
        assert typed_in(2) == first and len(measured) == 1
        assert typed_in(3) != first and len(measured) == 2
    finally:
        del sys.modules["typed_in"]


# --- damaged ----------------------------------------------------------------------------------------------------


def smaller_number(text: str) -> str:
    entry = json.loads(text)
    entry["content"]["layers"][0]["params"] -= 1
    return json.dumps(entry)


def other_identity(text: str) -> str:
    entry = json.loads(text)
    entry["follows_from"]["classes"] = 3
    return json.dumps(entry)


DAMAGES = {
    "empty": lambda text: "",
    "cut off": lambda text: text[: len(text) // 2],
    "no table": lambda text: "[]",
    "null": lambda text: "null",
    "binary": lambda text: "\0\1\2",
    "deep": lambda text: "[" * 100_000,
    "one number": smaller_number,
    "of something else": other_identity,
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_entry_is_measured_anew(cache: Path, measured: list[str], damage: str) -> None:
    whole = asked("mlr").cost_profile
    [file] = cache.iterdir()
    text = file.read_text()
    file.write_text(DAMAGES[damage](text))
    assert asked("mlr").cost_profile == whole
    assert measured == ["mlr", "mlr"] and file.read_text() == text  # and it is whole again


def test_a_folder_in_the_place_of_an_entry_is_no_obstacle(cache: Path, measured: list[str]) -> None:
    whole = asked("mlr").cost_profile
    [file] = cache.iterdir()
    file.unlink()
    file.mkdir()
    assert asked("mlr").cost_profile == whole and measured == ["mlr", "mlr"]
    assert [path.name for path in cache.iterdir()] == [file.name]  # nothing half-written is left


def test_without_a_folder_to_write_in_nothing_is_kept(
    tmp_path: Path, measured: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("no folder")
    for place in (tmp_path / "file", Path("/proc/nowhere")):
        monkeypatch.setenv(user_cache.VARIABLE, str(place))
        assert asked("mlr").cost_profile == asked("mlr").cost_profile
    assert measured == ["mlr"] * 4


def test_files_of_the_users_stay_when_what_is_kept_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The folder may be one that has folders of these names already, such as the user's home."""
    monkeypatch.setenv(user_cache.VARIABLE, str(tmp_path))
    mine = [tmp_path / name for name in ("profiles/phone.toml", "decoded/talk.txt", "decoded/deep/a.npy", "data.csv")]
    for path in mine:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("mine")
    user_cache.keep_table(user_cache.PROFILES, {"model": "mlr"}, {"flops": 1})
    user_cache.keep_array(user_cache.DECODED, np.arange(3, dtype=np.uint8))
    user_cache.keep_file(user_cache.PROGRAMS, f"{'a' * 64}.so", lambda path: path.touch())  # with a lock beside it
    (tmp_path / "decoded" / ".0123456789abcdef.ab_1xyz9.growing").write_text("cut off")
    assert {kind: held.files for kind, held in user_cache.held().items()} == {
        "profiles": 1,
        "decoded": 2,
        "programs": 2,
    }
    assert call("cache", "--user", "--prune").code == 0
    assert sorted(path for path in tmp_path.rglob("*") if path.is_file()) == sorted(mine)
    assert {kind: held.files for kind, held in user_cache.held().items()} == dict.fromkeys(user_cache.KINDS, 0)
