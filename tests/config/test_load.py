"""Scenario files: TOML, extends, overrides, fleets from CSV, relative paths."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import toy_parts

from edgesim.config.load import load_scenario
from edgesim.core.errors import ConfigError

Write = Callable[[str, str], Path]


def refused(source: Path, *overrides: str) -> str:
    with pytest.raises(ConfigError) as caught:
        load_scenario(source, overrides)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_file_is_read(base_file: Path) -> None:
    scenario = load_scenario(base_file)
    assert load_scenario(str(base_file)) == scenario
    assert scenario.network.value == toy_parts.Link(up=20e6, latency=0.02)
    assert scenario.stop.sim_time == 7200.0
    assert [(block.name, block.count) for block in scenario.fleet] == [("block0", 4), ("fast", 1)]
    assert scenario.fleet[1].cpu.flops_per_s == 147.6e6


def test_a_file_that_cannot_be_read_is_named_with_its_line(write: Write, tmp_path: Path) -> None:
    missing = tmp_path / "missing.toml"
    assert refused(missing) == f"{missing}: cannot be read: No such file or directory"
    broken = write("broken.toml", "seed = 1\nname = [\n\nmodel = = 3\n")
    assert refused(broken).startswith(f"{broken}: not valid TOML: ")
    assert "line 4" in refused(broken)
    binary = tmp_path / "binary.toml"
    binary.write_bytes(b"name = '\xff'")
    assert refused(binary).startswith(f"{binary}: not UTF-8 text: byte 0xff")


# --- extends ----------------------------------------------------------------------------------------------


def test_tables_merge_key_by_key_and_other_values_are_replaced(base_file: Path, write: Write) -> None:
    top = write(
        "top.toml",
        """
        extends = "base.toml"
        seed = 8
        training = { batch = 50 }
        network = { up = { uniform = [1, 2] } }
        method = { name = "proximal" }
        [[fleet]]
        cpu = { flops_per_s = 5 }
        """,
    )
    scenario, base = load_scenario(top), load_scenario(base_file)
    assert (scenario.seed, scenario.training.batch, scenario.training.lr) == (8, 50, 0.05)
    assert scenario.network.args == {**base.network.args, "up": {"uniform": [1.0, 2.0]}}
    assert scenario.method == base.method  # the same name, so mu = 0.5 stays
    assert [block.cpu.flops_per_s for block in scenario.fleet] == [5.0]
    assert scenario.stop == base.stop


def test_an_inner_table_is_replaced_as_a_whole(base_file: Path, write: Write) -> None:
    write("middle.toml", 'extends = "base.toml"\nnetwork = { up = { uniform = [1, 2] } }')
    top = write("top.toml", 'extends = "middle.toml"\nnetwork = { up = { log_uniform = [1, 2] } }')
    assert load_scenario(top).network.args["up"] == {"log_uniform": [1.0, 2.0]}


@pytest.mark.parametrize("section", ['{ name = "averaging", momentum = 1 }', '"averaging"'])
def test_a_part_of_another_name_replaces_its_section(base_file: Path, write: Write, section: str) -> None:
    top = write("top.toml", f'extends = "base.toml"\nmethod = {section}')
    assert load_scenario(top).method.name == "averaging"


def test_keys_without_a_name_add_to_a_part_that_was_a_bare_name(base_file: Path, write: Write) -> None:
    write("middle.toml", 'extends = "base.toml"\nmethod = "averaging"')
    top = write("top.toml", 'extends = "middle.toml"\nmethod = { momentum = 2 }')
    assert load_scenario(top).method.value == toy_parts.Averaging(momentum=2.0)


def test_a_bare_name_means_the_defaults(base_file: Path, write: Write) -> None:
    top = write("top.toml", 'extends = "base.toml"\nmethod = "proximal"')
    assert load_scenario(top).method.value == toy_parts.Proximal(mu=0.1)


def test_a_circle_of_files_is_refused(write: Write) -> None:
    one = write("one.toml", 'extends = "two.toml"')
    write("two.toml", 'extends = "one.toml"')
    assert refused(one) == "extends: one.toml -> two.toml -> one.toml never ends"
    assert refused(write("three.toml", "extends = 3")) == "extends: must be the name of a scenario file, got 3"


# --- overrides --------------------------------------------------------------------------------------------


def test_overrides_are_toml_or_else_text(base_file: Path) -> None:
    overrides = ["network.up=5 Mbit/s", "stop.rounds=3", "name=a run", "evaluation.targets=[0.5, 0.6]", "seed = 9"]
    scenario = load_scenario(base_file, overrides)
    assert scenario.network.args["up"] == 5e6
    assert (scenario.stop.rounds, scenario.name, scenario.seed) == (3, "a run", 9)
    assert scenario.evaluation.targets == (0.5, 0.6)


def test_an_override_may_make_a_section_or_reach_a_block(base_file: Path) -> None:
    scenario = load_scenario(base_file, ["server.busy=5 W", "fleet.1.count=7", "fleet.0.cpu.cores=4"])
    assert (scenario.server.busy, scenario.fleet[1].count, scenario.fleet[0].cpu.cores) == (5.0, 7, 4)


@pytest.mark.parametrize("override", ["method=averaging", "method.name=averaging", 'method={name = "averaging"}'])
def test_another_name_replaces_the_section(base_file: Path, override: str) -> None:
    assert load_scenario(base_file, [override]).method.value == toy_parts.Averaging()


def test_the_order_of_overrides_of_different_depth_does_not_matter(base_file: Path) -> None:
    overrides = ["fleet.0.network.up=5", "fleet.0.network.name=fixed", "network.up=3", "network=fixed"]
    for given in (overrides, overrides[::-1]):
        scenario = load_scenario(base_file, given)
        assert scenario.network.value == toy_parts.Link(up=3.0)
        own = scenario.fleet[0].network
        assert own is not None and own.value == toy_parts.Link(up=5.0)


def test_the_last_of_equal_overrides_wins(base_file: Path) -> None:
    assert load_scenario(base_file, ["seed=2", "seed=3"]).seed == 3


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("network.upp=5", "network.upp: unknown key; did you mean 'up'? (allowed: up, down, latency)"),
        ("trainin.lr=5", "trainin: unknown key; did you mean 'training'? (`edgesim schema` lists all 35)"),
        ("stop.round=5", "stop.round: unknown key; did you mean 'rounds'? (allowed: rounds, accuracy"),
        ("method.name=proximate", "method.name: unknown method 'proximate'; did you mean 'proximal'?"),
        ("seed", "override 'seed': write key=value, such as stop.rounds=3"),
        ("=3", "override '=3': write key=value, such as stop.rounds=3"),
        ("stop..rounds=3", "override 'stop..rounds=3': write key=value, such as stop.rounds=3"),
        ("fleet.2.count=3", "fleet.2: the list has 2, numbered from 0"),
        ("fleet.count=3", "fleet.count: the list has 2, numbered from 0"),
        ("name=2020-01-01", "name: a number, string, list or table is needed, got datetime.date(2020, 1, 1)"),
        ("seed.x=1", "seed: must be a whole number, got {'x': 1}"),
    ],
)
def test_a_wrong_override_is_refused(base_file: Path, override: str, message: str) -> None:
    assert refused(base_file, override).startswith(message)


# --- fleets from CSV --------------------------------------------------------------------------------------

HEADER = "network.up,network.name,count,level,name,cpu.flops_per_s\n"


def test_each_row_of_a_csv_file_is_a_block(base_file: Path, write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write("fleets/phones.csv", HEADER + "5 Mbit/s,fixed,3,2,old,1 GFLOP/s\n,,,,,2e9\n").parent
    monkeypatch.chdir(folder)
    old, new = load_scenario(base_file, ["fleet=phones.csv"]).fleet
    assert (old.count, old.level, old.name, old.cpu.flops_per_s) == (3, 2, "old", 1e9)
    assert old.network is not None and old.network.value == toy_parts.Link(up=5e6)
    assert (new.count, new.level, new.name, new.cpu.flops_per_s, new.network) == (1, 1, "block1", 2e9, None)


def test_the_csv_file_lies_beside_the_scenario(base_file: Path, write: Write) -> None:
    write("deep/phones.csv", "cpu.flops_per_s\n5\n6\n")
    top = write("deep/top.toml", 'extends = "../base.toml"\nfleet = "phones.csv"')
    scenario = load_scenario(top)
    assert [block.cpu.flops_per_s for block in scenario.fleet] == [5.0, 6.0]
    assert load_scenario(scenario.canonical()) == scenario


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            HEADER + "5,fixed,1,1,a,1e9\n5,fixed,0,1,a,1e9\n",
            " line 3: count: must be greater than or equal to 1, got 0",
        ),
        (HEADER + "5 MHz,fixed,1,1,a,1e9\n", " line 2: network.up: '5 MHz' is not a data rate;"),
        (HEADER + "5,fixd,1,1,a,1e9\n", " line 2: network.name: unknown network 'fixd'"),
        (HEADER + "5,fixed\n", " line 2: has not as many values as the header has names"),
        (HEADER + "5,fixed,1,1,a,1e9,7\n", " line 2: has not as many values as the header has names"),
        ("cpu.flop_per_s\n5\n", " line 2: cpu.flop_per_s: unknown key; did you mean 'flops_per_s'?"),
        ("count\n5\n", " line 2: cpu: is missing"),
        ("count,count\n5,5\n", ": the header needs distinct, non-empty names, got count, count"),
        ('count\n"5\n', " line 2: not valid CSV: unexpected end of data"),
    ],
)
def test_a_wrong_row_is_named_with_file_and_line(base_file: Path, write: Write, text: str, message: str) -> None:
    table = write("phones.csv", text)
    top = write("top.toml", 'extends = "base.toml"\nfleet = "phones.csv"')
    assert refused(top).startswith(f"{table}{message}")


def test_a_missing_or_empty_csv_file_is_refused(write: Write, base_file: Path, tmp_path: Path) -> None:
    top = write("top.toml", 'extends = "base.toml"\nfleet = "phones.csv"')
    assert refused(top) == f"{tmp_path / 'phones.csv'}: cannot be read: No such file or directory"
    write("phones.csv", "cpu.flops_per_s\n")
    assert refused(top) == "fleet: needs at least one block of devices"


# --- paths ------------------------------------------------------------------------------------------------


def test_paths_are_meant_from_the_file_that_holds_them(
    base_file: Path, write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write("shared/data.toml", 'extends = "../base.toml"\ndata = { name = "files", root = "sets" }')
    top = write("mine/top.toml", 'extends = "../shared/data.toml"\nmodel = { init_from = "../start.safetensors" }')
    scenario = load_scenario(top)
    assert scenario.data is not None and scenario.data.value == toy_parts.Files(root=tmp_path / "shared" / "sets")
    assert scenario.model.args == {"init_from": str(tmp_path / "start.safetensors")}
    assert load_scenario(scenario.canonical()) == scenario
    monkeypatch.chdir(tmp_path)
    data = load_scenario(top, ["data.root=other"]).data
    assert data is not None and data.args == {"root": str(tmp_path / "other")}


def test_an_absolute_path_stays(base_file: Path, write: Write, tmp_path: Path) -> None:
    data = load_scenario(base_file, ["data=files", f"data.root={tmp_path / 'sets'}"]).data
    assert data is not None and data.value == toy_parts.Files(root=tmp_path / "sets")
