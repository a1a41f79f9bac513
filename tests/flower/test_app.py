"""Flower apps as a scenario names them."""

from __future__ import annotations

import subprocess
import sys

import pytest

from edgesim.core.errors import ConfigError
from edgesim.flower import app as app_module
from edgesim.flower.app import FlowerApp, app_folder
from tests.flower.running import APPS, app_of

TORCH_APP = str(APPS / "torch_fedavg")


def test_the_folder_of_an_app():
    """References of both parts, and the flat configuration, which `config` overrides."""
    found = app_folder(APPS / "torch_fedavg")
    assert (found.serverapp, found.clientapp) == ("small.server:app", "small.client:app")
    assert found.config == {"rounds": 2, "server-evaluates": True, "optimiser.rate": 0.1}
    FlowerApp(path=TORCH_APP, config={"rounds": 5, "optimiser": {"rate": 0.2}}).check()


@pytest.mark.parametrize(("settings", "said"), [
    ({"config": {"round": 3}}, "app.config: the app in .* has no key 'round'; did you mean 'rounds'?"),
    ({"config": {"zzz": 3}}, r"has no key 'zzz' \(known: optimiser.rate, rounds, server-evaluates\)"),
    ({"config": {"rounds": [3]}}, "app.config.rounds: must be a text, a number, true or false"),
    ({"call_timeout": 0.0}, "app.call_timeout: must be above 0, got 0"),
    ({"host_flops_per_s": -1.0}, "app.host_flops_per_s: must be above 0, got -1"),
])  # fmt: skip
def test_settings_that_cannot_be(settings, said):
    """One line names the key."""
    with pytest.raises(ConfigError, match=said):
        FlowerApp(path=TORCH_APP, **settings).check()


@pytest.mark.parametrize(("content", "said"), [
    (None, "app.path: .* has no pyproject.toml, so it is no Flower app"),
    ("x = [", "app.path: .*pyproject.toml cannot be read: "),
    ("x = 1", r'\[tool.flwr.app.components\] must have serverapp = "package.module:name"'),
    ('[tool.flwr.app.components]\nserverapp = "a:b"\nclientapp = "a"', "must have clientapp"),
    ('[tool.flwr]\napp = 3', "app of .tool.flwr.app. must be a table"),
])  # fmt: skip
def test_folders_that_hold_no_app(tmp_path, content, said):
    """One line names the file."""
    if content is not None:
        (tmp_path / "pyproject.toml").write_text(content)
    with pytest.raises(ConfigError, match=said):
        FlowerApp(path=str(tmp_path)).check()


def test_flower_is_missing_or_old(monkeypatch):
    """One line names the extra and the versions."""
    monkeypatch.setattr(app_module, "version", lambda name: "1.9.0")
    with pytest.raises(ConfigError, match=r'needs flwr >= 1.38; pip install "edgesim\[flower\]" \(found: 1.9.0\)'):
        FlowerApp(path=TORCH_APP).check()

    def missing(name):
        raise app_module.PackageNotFoundError(name)

    monkeypatch.setattr(app_module, "version", missing)
    with pytest.raises(ConfigError, match=r'^app.name = "flower" needs flwr >= 1.38; pip install "edgesim\[flower\]"$'):
        FlowerApp(path=TORCH_APP).check()


@pytest.mark.process
def test_checking_loads_neither_flower_nor_torch(tmp_path):
    """Nor the app's code."""
    app_of(tmp_path, "raise ValueError")
    code = (
        "import sys; from edgesim.flower.app import FlowerApp; FlowerApp(path=sys.argv[1]).check(); "
        "assert not {'flwr', 'torch', 'app'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=True)
