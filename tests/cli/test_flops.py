"""The command `flops`."""

import json

from edgesim.config import device_profiles
from tests.calling import call


def test_the_command_prints_the_same():
    code, out, err = call("flops", "lenet5", "--train", "fc3,fc2", "--batch", "8", "--json")
    found = json.loads(out)
    assert (code, err, found["trained"], found["batch"]) == (0, "", ["fc2", "fc3"], 8)
    assert found["work"]["flops"] == 8 * found["train_flops"]
    assert found["trained_params"] == 120 * 84 + 84 + 84 * 10 + 10
    seconds = [row["seconds"] for row in found["devices"]]
    assert min(seconds) > 0 and len(seconds) == len(device_profiles.all())
    code, out, _ = call("flops", "lenet5")
    assert code == 0 and "seconds of the step" in out and "raspberry_pi_5" in out


def test_the_command_takes_networks_of_users(tmp_path, monkeypatch):
    """The number of outputs need not be told."""
    text = "from torch import nn\ndef net() -> nn.Module:\n    return nn.Sequential(nn.Flatten(), nn.Linear(12, 7))\n"
    (tmp_path / "users_own_net.py").write_text(text)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    code, out, _ = call("flops", "users_own_net:net", "--input", "3x2x2", "--json")
    assert (code, json.loads(out)["forward_flops"]) == (0, 2 * 12 * 7)
    assert call("flops", "users_own_net:net", "--input", "3x").code == 2
    assert call("flops", "users_own_net:net").code == 2
    assert call("flops", "lenet5", "--train", "conv9").code == 2
