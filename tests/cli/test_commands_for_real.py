"""Every command, and the same from a script, on real runs of the digits; nothing is replaced by a stand-in."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pandas as pd
import pytest
from PIL import Image

import edgesim
from edgesim.config.plugins import PACKAGES, plugins_of
from edgesim.config.scenario import Scenario
from edgesim.core.errors import ConfigError, DataError, EdgesimError
from edgesim.reports.load import Run
from tests.calling import TINY, Done, call
from tests.sizes import full

TARGETS = "evaluation.targets=[0.05, 0.99]"
CIFAR10_SUFFIXES = [5_553_600, 5_859_600, 6_959_600, 10_319_600, 14_761_200]  # training FLOPs of the last 1 to 5 layers


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, Done]]:
    """Two runs of two methods: the folder and what `run --json` printed."""
    here = tmp_path_factory.mktemp("runs")
    (here / "tiny.toml").write_text(TINY)
    done = {}
    for method in ("fedavg", "fedpmt"):
        words = ["--json", "--out", here / method, "--set", f"method={method}", "--set", "stop.rounds=3"]
        done[method] = (here / method, call("run", here / "tiny.toml", *words, "--set", TARGETS))
    return done


def test_run_prints_its_summary_as_json(runs: dict[str, tuple[Path, Done]]) -> None:
    folder, (code, out, err) = runs["fedavg"]
    found = json.loads(out)
    run = edgesim.open(folder)
    last = run.rounds.iloc[-1]
    assert code == 0
    assert err.splitlines()[-1] == f"run folder: {folder}"
    assert found.keys() == {
        *("method", "status", "rounds", "accuracy", "best_accuracy", "sim_time_s", "energy_j"),
        *("active_j", "idle_j", "participant_j", "energy_network_j", "energy_server_j"),
        *("up_bytes", "down_bytes", "flops", "host_s", "diverged", "targets"),
    }
    assert (found["method"], found["rounds"], found["host_s"]) == ("fedavg", 3, run.manifest["host_s"])
    assert found["accuracy"] == run.evals["accuracy"].iloc[-1]
    assert found["best_accuracy"] == run.evals["accuracy"].max()
    # 3 rounds x 2 devices, each receives and sends all 6,090 parameters of 4 bytes
    assert found["up_bytes"] == found["down_bytes"] == 3 * 2 * 6090 * 4
    assert found["flops"] == run.jobs["flops"].sum() == last["total_flops"]
    assert (found["sim_time_s"], found["energy_j"]) == (last["now_s"], last["total_energy_j"])
    assert found["targets"].keys() == {"0.05", "0.99"}
    assert found["targets"]["0.05"]["round"] >= 1 and found["targets"]["0.99"] is None


def test_table_shows_both_runs(runs: dict[str, tuple[Path, Done]]) -> None:
    code, out, err = call("table", *(folder for folder, _ in runs.values()))
    rows = [line.split() for line in out.splitlines() if line.split()[:1] in (["fedavg"], ["fedpmt"])]
    assert (code, err) == (0, "")
    assert [row[:4] for row in rows] == [
        *([name, "finished", name, "3"] for name in ("fedavg", "fedpmt")),
        *([name, "finished", name, target] for name in runs for target in ("0.05", "0.99")),
    ]


@full
def test_plot_draws_both_runs(runs: dict[str, tuple[Path, Done]], tmp_path: Path) -> None:
    (tmp_path / "figures").mkdir()
    png, svg = tmp_path / "figures" / "both.png", tmp_path / "figures" / "both.svg"
    done = call("plot", *(folder for folder, _ in runs.values()), "--out", tmp_path / "figures" / "both")
    assert done == (0, f"{png}\n{svg}\n", "")
    with Image.open(png) as image:
        assert len(set(image.convert("L").tobytes())) > 10  # not one empty sheet
    text = "".join(ElementTree.parse(svg).getroot().itertext()).lower()
    assert all(word in text for word in ("fedavg", "fedpmt", "test accuracy", "simulated time", "energy", "round"))


def test_diff_tells_runs_apart(runs: dict[str, tuple[Path, Done]]) -> None:
    (fedavg, _), (fedpmt, _) = runs.values()
    assert call("diff", fedavg, fedavg) == (0, "identical\n", "")
    code, out, err = call("diff", fedavg, fedpmt)
    assert (code, err) == (1, "")
    assert "up_bytes" in out and "weights final" in out and "best" in out


def test_a_script_gets_what_the_command_gets(runs: dict[str, tuple[Path, Done]], tmp_path: Path) -> None:
    table: dict[str, Any] = tomllib.loads(TINY)
    scenario = edgesim.load(table, ["stop.rounds=3", TARGETS])
    assert isinstance(scenario, edgesim.Scenario) and scenario.stop.rounds == 3
    run = edgesim.run(scenario, out=tmp_path / "mine")
    assert run.folder == tmp_path / "mine"
    commanded = edgesim.open(runs["fedavg"][0])
    assert call("diff", run.folder, commanded.folder) == (0, "identical\n", "")
    assert run.manifest["digest"] == commanded.manifest["digest"] == scenario.digest()
    assert edgesim.load(run.manifest["scenario"]) == scenario
    assert {name: array.size for name, array in run.weights("best").items() if "bias" in name} == {
        "conv1.bias": 16, "conv2.bias": 32, "fc1.bias": 10
    }  # fmt: skip


def test_a_script_may_give_a_file_or_a_mapping_and_no_folder(tmp_path: Path) -> None:
    (tmp_path / "tiny.toml").write_text(TINY)
    from_file = edgesim.run(tmp_path / "tiny.toml", ["training.lr=0.2"])
    from_mapping = edgesim.run({**tomllib.loads(TINY), "training": {"batch": 16, "lr": 0.2}})
    assert from_file.folder != from_mapping.folder
    for name in ("jobs", "rounds", "evals", "devices"):
        pd.testing.assert_frame_equal(from_file.table(name), from_mapping.table(name))
    with pytest.raises(ConfigError, match="already exists"):
        edgesim.run(tmp_path / "tiny.toml", out=tmp_path)
    with pytest.raises(ConfigError, match="not a run folder"):
        edgesim.open(tmp_path)


@full
def test_overrides_are_laid_over_whatever_is_given(tmp_path: Path) -> None:
    """A file, a mapping and an object."""
    (tmp_path / "tiny.toml").write_text(TINY)
    overrides = ["stop.rounds=3", "fleet.0.count=3", "method=fedprox", TARGETS]
    for source in (tmp_path / "tiny.toml", tomllib.loads(TINY), edgesim.load(tmp_path / "tiny.toml")):
        run = edgesim.run(source, overrides, tmp_path / type(source).__name__)
        assert (len(run.rounds), run.manifest["scenario"]["method"]["name"]) == (3, "fedprox")
        assert run.jobs["device"].max() <= 4 and len(run.devices) == 3 + 2 + 1
        assert edgesim.load(source, overrides).digest() == run.manifest["digest"]


@pytest.mark.parametrize(
    "overrides",
    [
        {
            "stop.rounds": 3,
            "training": {"batch": 16, "lr": 0.05},
            "method.mu": 0.25,
            "method": "fedprox",
            "network.up": "2 Mbit/s",
        },
        {"method": {"name": "fedprox", "mu": 0.25}, "stop": {"rounds": 3}, "training.lr": 0.05, "network.up": 2e6},
    ],
    ids=["dotted", "tables"],
)
def test_overrides_may_be_a_mapping_in_all_of_python(overrides: dict[str, Any]) -> None:
    texts = ["stop.rounds=3", "training.lr=0.05", "method.mu=0.25", "method=fedprox", "network.up=2 Mbit/s"]
    timing = {**tomllib.loads(TINY), "backend": "null"}
    expected = edgesim.load(timing, texts).digest()
    assert edgesim.load(timing, overrides).digest() == expected
    assert edgesim.run(timing, overrides).manifest["digest"] == expected
    [cell] = edgesim.study(timing, {"seed": [1]}, overrides=overrides, columns=["sim_time_s"]).run().runs.values()
    assert cell.manifest["digest"] == expected


def test_one_override_needs_no_list() -> None:
    assert edgesim.load(tomllib.loads(TINY), "stop.rounds=3").stop.rounds == 3


@pytest.mark.parametrize("overrides", [Path("run"), 3, [3]], ids=repr)
def test_overrides_are_texts_or_a_mapping(overrides: Any) -> None:
    says = r"^overrides: must be a list such as \['stop.rounds=3'\] or a mapping such as \{'stop.rounds': 3\}, got "
    with pytest.raises(edgesim.ConfigError, match=says):
        edgesim.run(tomllib.loads(TINY), overrides)


@pytest.mark.parametrize(
    ("overrides", "says"),
    [
        ({"seed": object()}, "^seed: a number, string, list or table is needed, got <object"),
        ({"training.lr": float("nan")}, "^training.lr: a number, string, list or table is needed, got nan"),
        ({"a..b": 1}, "^override 'a..b': write key=value, such as stop.rounds=3"),
        ({3: 1}, "^override 3: write key=value"),
    ],
)
def test_a_bad_mapping_of_overrides_is_one_line(overrides: Any, says: str) -> None:
    with pytest.raises(edgesim.ConfigError, match=says):
        edgesim.load(tomllib.loads(TINY), overrides)


def test_errors_are_there_under_the_package_s_name() -> None:
    assert (edgesim.ConfigError, edgesim.DataError, edgesim.EdgesimError) == (ConfigError, DataError, EdgesimError)


def test_a_run_says_what_it_is(tmp_path: Path) -> None:
    run = edgesim.run(tomllib.loads(TINY), {"stop.rounds": 2}, tmp_path / "mine")
    assert repr(run) == f"<run 'mine': fedavg, seed 1, finished after 2 rounds; in {tmp_path / 'mine'}>"
    (tmp_path / "mine" / "manifest.json").unlink()
    assert repr(Run(tmp_path / "mine")).startswith("<run 'mine' that cannot be read: ")


def test_workers_do_not_make_a_run_train_that_trains_nothing(tmp_path: Path) -> None:
    (tmp_path / "tiny.toml").write_text(TINY + "[backend]\nname = 'null'\n")
    says = "error: --workers: backend 'null' does not train, so it needs no workers\n"
    assert call("run", tmp_path / "tiny.toml", "--workers", 2, "--out", tmp_path / "run") == (2, "", says)
    assert not (tmp_path / "run").exists()


def test_validate_trains_and_writes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def train(*_: object) -> None:
        raise AssertionError("validate must not train")

    monkeypatch.setattr("edgesim.learning.train.trainer.Trainer.run", train)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tiny.toml").write_text(TINY)
    assert call("validate", "tiny.toml", "--set", "seed=7") == (0, "tiny.toml: ok\n", "")
    assert [path.name for path in tmp_path.iterdir()] == ["tiny.toml"]


def test_list_has_every_part() -> None:
    code, out, err = call("list")
    assert (code, err) == (0, "")
    first_words = {line.split()[0] for line in out.splitlines() if line.strip()}
    for kind in PACKAGES:
        assert {kind, *plugins_of(kind)} <= first_words
        assert {kind, *plugins_of(kind)} <= {
            line.split()[0] for line in call("list", kind).out.splitlines() if line.strip()
        }
    assert "fixed" not in call("list", "method").out


def test_card_has_the_published_costs() -> None:
    found = json.loads(call("model", "cnn_cifar10", "--json").out)
    assert found["params"] == 567_858
    assert [suffix["train_flops"] for suffix in found["suffixes"]] == CIFAR10_SUFFIXES
    code, shown, err = call("model", "cnn_cifar10")
    assert (code, err) == (0, "")
    assert all(str(flops) in shown for flops in CIFAR10_SUFFIXES)


def test_card_takes_another_input() -> None:
    found = json.loads(call("model", "mlr", "--input", "1x8x8", "--classes", "3", "--json").out)
    assert (found["params"], found["forward_flops"]) == (64 * 3 + 3, 2 * 64 * 3)


@full
def test_a_model_may_be_a_table_of_keys() -> None:
    """Adapters of rank 4 on one layer from 32 to 96 numbers, in each of two blocks."""
    table = '{ name = "hf", config = "tiny-gpt2", lora = { r = 4 } }'
    assert json.loads(call("flops", table, "--input", "8", "--json").out)["params"] == 2 * 4 * (32 + 96)
    assert call("model", "{ name = }")[::2] == (
        2,
        "error: model: not valid TOML: Invalid value (at line 1, column 18)\n",
    )


@full
def test_schema_describes_scenario_files() -> None:
    schema = json.loads(call("schema").out)
    assert schema["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    assert schema["type"] == "object" and schema["additionalProperties"] is False
    assert schema["properties"].keys() == {*Scenario.model_fields, "extends"}
    assert tomllib.loads(TINY).keys() <= schema["properties"].keys()
    named = json.dumps(schema["properties"]["method"]) + json.dumps(schema.get("$defs", {}))
    assert all(f'"{name}"' in named for name in plugins_of("method"))
    for path in references(schema):
        node: Any = schema
        for key in path.removeprefix("#/").split("/"):
            node = node[key]


def references(node: Any) -> list[str]:
    """Return every $ref of a JSON Schema."""
    if isinstance(node, list):
        return [path for item in node for path in references(item)]
    if not isinstance(node, dict):
        return []
    own = [node["$ref"]] if isinstance(node.get("$ref"), str) else []
    return own + [path for item in node.values() for path in references(item)]
