"""`edgesim new`: every template runs at once, its study too, and nothing that is there is touched."""

from __future__ import annotations

from pathlib import Path

import pytest

import edgesim
from edgesim.cli.scenarios import templates
from edgesim.config.device_profiles import Profile
from edgesim.studies.study import load_study
from tests.calling import call, names
from tests.sizes import full, spread

TEMPLATES = ["quickstart", "jetson-factory", "peers", "phones-lte", "pi-classroom", "solar-sensors"]


@pytest.fixture
def at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_which_templates_there_are(at: Path) -> None:
    assert list(templates()) == TEMPLATES
    code, out, err = call("new", "--list")
    assert (code, err) == (0, "") and all(name in out for name in TEMPLATES)
    assert "How many phones a round?" in " ".join(out.split())
    assert names(at) == []


@full
@pytest.mark.parametrize("template", spread(TEMPLATES, 1))
def test_a_template_runs_at_once(at: Path, template: str) -> None:
    """Its scenario warns of nothing, and trains; its study can be planned, and each of its cells times a round."""
    code, out, err = call("new", "mine", "--template", template)
    assert (code, err) == (0, "") and out.startswith(f"mine: {template}; next:\n  cd mine")
    assert names(at / "mine") == ["scenario.toml", "study.toml"]
    assert call("validate", "mine/scenario.toml") == (0, "mine/scenario.toml: ok\n", "")
    assert call("run", "mine/scenario.toml", "--set", "stop.rounds=2", "--out", "run", "--quiet").code == 0
    run = edgesim.open("run")
    assert run.finished and len(run.rounds) == 2 and run.rounds["used"].sum() > 0
    assert run.evals["accuracy"].max() > 0
    assert call("study", "plan", "mine/study.toml").code == 0
    study = edgesim.study("mine/study.toml")
    assert {"quick", "full"} == set(study.sizes) and len(study.study.axes["seed"]) == 3
    file = Path("mine/study.toml")
    for cell in load_study(file).cells("full"):
        scenario = load_study(file).scenario(file.parent, cell, "full")
        timing = ["backend=null", "stop={ rounds = 1 }", "weights=none"]
        assert edgesim.run(scenario, timing).rounds["energy_j"].sum() > 0, cell.name


@pytest.mark.parametrize("template", TEMPLATES)
def test_a_template_says_what_to_change(template: str) -> None:
    for file in ("scenario", "study"):
        lines = templates()[template].joinpath(f"{file}.toml").read_text(encoding="utf-8").splitlines()
        assert lines[0].startswith("# ") and max(map(len, lines)) <= 140
    scenario = templates()[template].joinpath("scenario.toml").read_text(encoding="utf-8")
    assert "# Change first: " in scenario


def test_numbers_of_profiles_are_those_of_the_catalogue() -> None:
    """Where a comment names a device, the number that it speaks of is the device's."""
    from edgesim.config.device_profiles import find

    laptop, phone, sensor = (find(name) for name in ("laptop", "phone_mid", "microcontroller"))
    assert all(isinstance(each, Profile) for each in (laptop, phone, sensor))
    classroom = edgesim.load(str(templates()["pi-classroom"].joinpath("scenario.toml")))
    server = classroom.server
    assert (server.flops_per_s, server.idle, server.busy) == tuple(
        laptop.si[key] for key in ("flops_per_s", "idle", "busy")
    )
    rates = [each.network.value.up for each in classroom.fleet]
    assert rates == [find(name).si["up"] for name in ("raspberry_pi_4", "raspberry_pi_5")]
    energy = edgesim.load(str(templates()["phones-lte"].joinpath("scenario.toml"))).fleet[1].energy.value
    assert [energy.idle, energy.busy, energy.transmit, energy.receive] == [
        *(find("phone_high").si[key] for key in ("idle", "busy")),
        *(phone.si[key] for key in ("transmit", "receive")),
    ]
    assert sensor.si["idle"] == 0.066


def test_what_is_there_is_not_touched(at: Path) -> None:
    (at / "mine").mkdir()
    assert call("new", "mine") == (2, "", "error: mine: exists already; choose another name\n")
    assert names(at / "mine") == []
    (at / "file").write_text("x")
    assert call("new", "file") == (2, "", "error: file: exists already; choose another name\n")
    code, _, err = call("new", "file/below")
    assert code == 2 and err.startswith("error: file/below: cannot be created: ") and err.count("\n") == 1


def test_bad_words(at: Path) -> None:
    assert call("new") == (2, "", "error: new: needs the name of a folder, or --list\n")
    code, _, err = call("new", "mine", "--template", "phone-lte")
    assert code == 2 and err.startswith(
        "error: --template: unknown 'phone-lte'; did you mean 'phones-lte'? (known: quick"
    )
    assert names(at) == []


def test_folders_above_are_made(at: Path) -> None:
    assert call("new", "a/b/c").code == 0
    assert names(at / "a" / "b") == ["c"]
