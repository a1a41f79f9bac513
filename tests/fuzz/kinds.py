"""Every kind of file that edgesim reads: small ones, and how the program reads them."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pyarrow as pa
import torch
from PIL import Image
from safetensors.numpy import save_file

import edgesim
from edgesim.config.device_profiles import find, to_toml
from edgesim.config.plugin_fields import PartOf
from edgesim.core.errors import ConfigError
from edgesim.core.rng import Key
from edgesim.execution.backends.serial import SerialBackend
from edgesim.execution.checkpoint import Checkpoint
from edgesim.execution.result_cache import Answers
from edgesim.learning.models.build import build_model
from edgesim.learning.train.torch_settings import plain_torch
from edgesim.runs.assembly import assemble
from edgesim.runs.recording import flat
from edgesim.runs.simulate import simulate
from edgesim.runs.simulation import Silent, Simulation
from edgesim.studies.claims.claim import load_claims, read_results
from edgesim.studies.golden import load_golden, read_numbers
from edgesim.studies.runs import check_owner
from edgesim.studies.study import Search, load_study, read_trials, write_trials
from tests.calling import TINY, call
from tests.conftest import simulate_null
from tests.fuzz.damage import damage, edited
from tests.learning.made_up_data import load, pixels, png, write_idx_set, write_images, write_parquet_pair, write_saved

GOLDEN = Path(__file__).parents[2] / "golden" / "quickstart"
_IN_FOLDER = ("scenario.toml", ["backend=null", "stop.rounds=2", "stop.sim_time='1000 s'", "failures=[]"])


class Kind(NamedTuple):
    """Files that are read in one way.

    `make` writes into an empty folder and returns the files to damage; `read` reads them, in a case's own way, and
    returns what there is to compare. `sealed`: a digest tells that a file was damaged, so no other answer is right.
    `damage`: damages a file of a case and seed, and returns how.
    """

    make: Callable[[Path], Sequence[Path]]
    read: Callable[[Path, int], Any]
    sealed: Callable[[Path], bool] = lambda folder: False
    damage: Callable[[Path, int, int], str] = damage


def text(name: str, content: str) -> Callable[[Path], Sequence[Path]]:
    """Return a maker of one text file."""

    def make(folder: Path) -> Sequence[Path]:
        (folder / name).write_text(content, encoding="utf-8")
        return [folder / name]

    return make


def asked(*words: object) -> str:
    """Return what a command prints; raise ConfigError with its line if it ends with exit code 2."""
    code, out, err = call(*words)
    if code == 2:
        raise ConfigError(err.removeprefix("error: ").removesuffix("\n"))
    return out


# --- texts ------------------------------------------------------------------------------------------------------

STUDY = """
name = "two methods"
base = "base.toml"
columns = ["best_accuracy", "sim_time_s"]
published = [{ cell = { method = "fedavg" }, column = "sim_time_s", value = 12.5 }]
[axes]
seed = [1, 2]
[axes.method]
fedavg = []
fedprox = ["method=fedprox", "method.mu=0.1"]
[sizes.quick]
overrides = ["stop.rounds=5"]
"""


def _study(folder: Path) -> Sequence[Path]:
    (folder / "base.toml").write_text(TINY)
    return text("study.toml", STUDY)(folder)


def _published(folder: Path) -> Sequence[Path]:
    (folder / "base.toml").write_text(TINY)
    inline = next(line for line in STUDY.splitlines() if line.startswith("published"))
    (folder / "study.toml").write_text(STUDY.replace(inline, 'published = "published.csv"'))
    return text("published.csv", "method,column,value,source\nfedavg,sim_time_s,12.5,Table 1\n,best_accuracy,0.9,\n")(
        folder
    )


CLAIMS = """
paper = "A paper"
source = "Nobody (2026)."
[[claims]]
id = "published"
where = "Table 1"
says = "Both take 12.5 s."
study = "study.toml"
size = "quick"
number = { columns = ["sim_time_s"], within = 0.1 }
[[claims]]
id = "higher"
where = "Figure 1"
says = "FedProx is higher."
study = "study.toml"
size = "quick"
order = { column = "best_accuracy", first = { method = "fedprox" }, than = { method = "fedavg" }, first_is = "higher" }
"""
RESULTS = """study,size,cell,seed,column,value,observed,revision,date,source
study,quick,method=fedavg,1,sim_time_s,12.5,yes,58054948,2026-11-25,
study,quick,method=fedprox,1-3,rounds@0.9,300,no,,,page.md
"""


def _claims(folder: Path) -> Sequence[Path]:
    _study(folder)
    return text("claims.toml", CLAIMS)(folder)


def _trials(folder: Path) -> Sequence[Path]:
    (folder / "base.toml").write_text(TINY)
    search = 'search = { maximise = ["best_accuracy"], space = { seed = [1, 2] } }\n'
    plain = "\n".join(line for line in STUDY.partition("[axes]")[0].splitlines() if not line.startswith("published"))
    (folder / "study.toml").write_text(f"{plain}\n{search}")
    write_trials(_searched(folder), {"0": ("seed=1",), "1": ("seed=2",)}, folder / "runs")
    return [folder / "runs" / "trials.json"]


def _searched(folder: Path) -> Search:
    search = load_study(folder / "study.toml").search
    assert search is not None
    return search


def _read_study(folder: Path, case: int) -> Any:
    study = load_study(folder / "study.toml")
    for size in study.sizes:
        for cell in study.cells(size):
            study.scenario(folder, cell, size)
    return study


def _golden(folder: Path) -> Sequence[Path]:
    files = [folder / "kept" / name for name in ("golden.toml", "cells.csv", "jobs.csv")]
    shutil.copytree(GOLDEN, folder / "kept")
    study = GOLDEN.parent / "../scenarios/studies/quickstart.toml"
    settings = files[0].read_text().replace("../../scenarios/studies/quickstart.toml", str(study.resolve()))
    files[0].write_text(settings)
    return files


def _of_profile(folder: Path, case: int) -> Any:
    profile = [f"fleet.0={{ profile = {json.dumps(str(folder / 'phone.toml'))}, count = 2 }}"]
    return edgesim.load(_scenario(folder), profile)


# --- fleets, traces and graphs, in a scenario ---------------------------------------------------------------------


def _scenario(folder: Path) -> Path:
    path = folder / "scenario.toml"
    path.write_text(TINY)
    return path


def simulated(*overrides: str) -> Callable[[Path, int], Any]:
    """Return a reader that times a scenario, with these overrides; {here} is the folder."""

    def read(folder: Path, case: int) -> Any:
        given = [each.replace("{here}", str(folder)) for each in overrides]
        limits = ["backend=null", "stop={ rounds = 2, sim_time = '1000 s' }", "partition.samples_per_device=50"]
        without_data = {"data": None, "partition": {"name": "sizes", "samples_per_device": 50}}
        table = edgesim.load(_scenario(folder), limits[:2]).canonical() | without_data
        return simulate_null(edgesim.load(table, given)).tables["jobs"].frame().to_dict("records")

    return read


FLEET = "count,level,cpu.flops_per_s,network.name,network.up,network.down\n" + 4 * "2,1,5e7,fixed,1e6,8 Mbit/s\n"
SEEN = "device,start,end\n" + "".join(f"{i % 4},{100 * (i // 4)},{100 * (i // 4) + 60.5}\n" for i in range(40))
RATES = "time_s,up_bps,down_bps,device\n" + "".join(
    f"{5 * i},{1e6 + i},2000000,{d}\n" for d in (0, 1) for i in range(9)
)
SPEEDS = "time_s,speed\n" + "".join(f"{3 * i},{1 - 0.1 * (i % 5):.2f}\n" for i in range(20))
LINKS = "a,b,bps_ab,bps_ba,latency_s\n" + "".join(f"{i},{i + 1},20 Mbit/s,1e7,0.01\n" for i in range(4))
PEERS = "source,target\n" + "".join(f"{i},{(i + s) % 4}\n" for i in range(4) for s in (1, 2))


def parquet(name: str, content: str) -> Callable[[Path], Sequence[Path]]:
    """Return a maker of one parquet file with the table of a CSV text."""

    def make(folder: Path) -> Sequence[Path]:
        [path] = text("made.csv", content)(folder)
        pd.read_csv(path).to_parquet(folder / name, index=False)
        return [folder / name]

    return make


# --- data sets ----------------------------------------------------------------------------------------------------


def _idx(zipped: bool) -> Callable[[Path], Sequence[Path]]:
    def make(folder: Path) -> Sequence[Path]:
        write_idx_set(folder / "idx", zipped=zipped)
        return sorted((folder / "idx").iterdir())

    return make


def _npz(folder: Path) -> Sequence[Path]:
    arrays = {"x_train": np.linspace(-1, 1, 24).reshape(8, 3), "y_train": np.arange(8) % 3}
    arrays |= {"x_test": np.zeros((2, 3), dtype=np.float32), "y_test": np.array([2, 0], dtype=np.uint8)}
    np.savez(folder / "plain.npz", **arrays)
    np.savez_compressed(folder / "packed.npz", **arrays)
    return [folder / "plain.npz", folder / "packed.npz"]


def _parquet_set(folder: Path) -> Sequence[Path]:
    write_parquet_pair(folder / "set")
    return sorted((folder / "set").iterdir())


def _hf(folder: Path) -> Sequence[Path]:
    """A data set as `save_to_disk` of `datasets` writes it."""
    cells = [{"bytes": png(one), "path": None} for one in pixels(6, 6, 6, 3)]
    noted = {"info": {"features": {"label": {"_type": "ClassLabel", "names": ["ant", "bee", "cat"]}}}}
    table = pa.table({"img": cells, "label": [0, 1, 2] * 2, "user": [*"abcabc"], "size": [[1.5, 2.5]] * 6})
    table = table.replace_schema_metadata({"huggingface": json.dumps(noted)})
    write_saved(folder / "set", {"train": table, "test": table})
    return sorted(path for path in (folder / "set").rglob("*") if path.is_file())


def _read_hf(folder: Path, case: int) -> Any:
    data = load("hf", path=folder / "set", **({} if case % 2 else {"features": "size"}))
    return [data.x_train, data.y_train, data.x_test, data.y_test, dict(data.columns)]


def _images(folder: Path) -> Sequence[Path]:
    """One of each format that an image folder takes."""
    write_images(folder / "set")
    files = []
    for ending in ("png", "jpg", "bmp", "ppm", "tif", "webp"):
        file = folder / "set" / "train" / "ant" / f"9.{ending}"
        Image.fromarray(pixels(1, 8, 4, 3)[0]).save(file)
        files.append(file)
    return files


def learned(name: str, **keys: Any) -> Callable[[Path, int], Any]:
    """Return a reader of a data set; {here} is the folder."""

    def read(folder: Path, case: int) -> Any:
        here = {key: value.replace("{here}", str(folder)) for key, value in keys.items() if isinstance(value, str)}
        data = load(name, **{**keys, **here})
        return [data.x_train, data.y_train, data.x_test, data.y_test]

    return read


def _both_npz(folder: Path, case: int) -> Any:
    return [learned("npz", file=f"{{here}}/{name}.npz")(folder, case) for name in ("plain", "packed")]


TABLE = "user,height,width,kind,late,lost,part\n" + "".join(
    f"u{i % 4},{1.5 * i},{10 - i},{'xyz'[i % 3]},{i % 2},{int(i % 3 == 0)},{'train' if i % 4 else 'test'}\n"
    for i in range(24)
)
# Ways of reading it, by what its labels are.
TABLE_KEYS: Sequence[Mapping[str, Any]] = (
    {"label": "kind", "user": "user"},
    {"label": "width", "labels": "numbers", "scale_labels": True, "split": "part"},
    {"label": ("late", "lost"), "labels": "flags", "features": ("height", "width")},
    {"label": "height", "labels": "numbers", "standardise": False, "test_share": 0.25},
)
SAID = "who,said\n" + "".join(f"{'ann' if i % 2 else 'bob'},words {i} of mine\n" for i in range(8))
PLAY = "".join(f"{'ann' if i % 2 else 'bob'}:\nwords {i} of mine\n" for i in range(8))


def tabled(name: str) -> Callable[[Path, int], Any]:
    """Return a reader of a table, in one way after the other."""

    def read(folder: Path, case: int) -> Any:
        data = load("table", path=str(folder / name), **TABLE_KEYS[case % len(TABLE_KEYS)])
        return [data.x_train, data.y_train, data.x_test, data.y_test, data.columns]

    return read


def _weights(folder: Path) -> Sequence[Path]:
    save_file(
        {"fc1.weight": np.ones((10, 64), np.float32), "fc1.bias": np.ones(10, np.float32)}, folder / "w.safetensors"
    )
    return [folder / "w.safetensors"]


def _started(folder: Path, case: int) -> Any:
    path = json.dumps(str(folder / "w.safetensors"))
    return assemble(edgesim.load(_scenario(folder), [f"model={{ name = 'mlr', init_from = {path} }}"])).module


def _transformer(folder: Path) -> Sequence[Path]:
    """A folder as transformers writes it, with a config.json and weights."""
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(1)
    config = GPT2Config(vocab_size=10, n_positions=64, n_embd=8, n_layer=1, n_head=2, bos_token_id=0, eos_token_id=0)
    GPT2LMHeadModel(config).save_pretrained(folder / "model")
    return [folder / "model" / "config.json", folder / "model" / "model.safetensors"]


def _transformed(folder: Path, case: int) -> Any:
    plugin = PartOf("model").read({"name": "hf", "config": str(folder / "model")}).value
    return build_model(plugin, (6,), 10, Key(1), objective=plugin.native_objective)


# --- run folders --------------------------------------------------------------------------------------------------


def _run(folder: Path) -> Sequence[Path]:
    prices = "prices.electricity='0.1 EUR/kWh'"
    edgesim.run(_scenario(folder), ["stop.rounds=3", "evaluation={ targets = [0.1] }", prices], out=folder / "run")
    shutil.copytree(folder / "run", folder / "whole")
    return sorted(path for path in (folder / "run").iterdir() if path.suffix in {".json", ".parquet", ".safetensors"})


def _edited(folder: Path) -> Sequence[Path]:
    """The manifest of a run and its tables."""
    return [file for file in _run(folder) if file.suffix != ".safetensors"]


def _checkpoint(folder: Path) -> Sequence[Path]:
    """The file of a run that was broken off after two rounds, of a method with a state of its own."""
    kept = _kept(folder)
    simulate(_scaffold(folder), folder / "run", _CtrlC(rounds=2), kept)
    return [kept.file]


def _scaffold(folder: Path) -> edgesim.Scenario:
    return edgesim.load(_scenario(folder), ["method=scaffold", "stop.rounds=3"])


def _kept(folder: Path) -> Checkpoint:
    return Checkpoint.beside(folder / "run", 1e-9, {"kind": "for damage"})


def _answers(folder: Path) -> Sequence[Path]:
    """The answers and weights of a run, and its snapshots."""
    with closing(Answers(folder)) as answers:
        simulate(_scaffold(folder), folder / "run", checkpoint=_kept(folder), answers=answers)
    return sorted(path for path in answers.folder.rglob("*") if path.is_file())


def _answered(folder: Path, case: int) -> Any:
    """A run that asks for them, and what it is without; some are not found in a damaged file, and computed anew."""
    parts = assemble(_scaffold(folder))
    with closing(Answers(folder)) as answers, plain_torch():
        simulation = Simulation(parts, SerialBackend(parts.make_trainer("cpu")), Silent(), None, answers)
        simulation.run()
        weights = simulation.learner.memo.weights(
            simulation.learner.saved_models()["final"], simulation.learner.graph, flat
        )
    return [
        simulation.tables["evals"].frame().to_csv(),
        {name: array.tobytes() for name, array in sorted(weights.items())},
    ]


class _CtrlC(Silent):
    """Presses Ctrl-C after some rounds."""

    def __init__(self, rounds: int) -> None:
        self._left = rounds

    def round_closed(self, info: Mapping[str, Any]) -> None:
        self._left -= 1
        if not self._left:
            raise KeyboardInterrupt


def _resumed(folder: Path, case: int) -> Any:
    saved = _kept(folder).load(_scaffold(folder).method.value)
    return saved and torch.utils._pytree.tree_map(_in_full, saved._asdict())


def _in_full(value: Any) -> Any:
    return (value.shape, value.numpy().tobytes()) if isinstance(value, torch.Tensor) else value


COMMANDS: Sequence[Sequence[str]] = (
    ("table", "{run}"),
    ("explain", "{run}", "--round", "2"),
    ("energy", "{run}", "--by", "device,activity"),
    ("trace", "{run}", "--out", "{here}/trace.json"),
    ("diff", "{run}", "{here}/whole"),
    ("gantt", "{run}", "--round", "1", "--out", "{here}/round"),
    ("plot", "{run}", "--out", "{here}/plot"),
    ("report", "{run}", "--out", "{here}/report.html"),
    ("devices", "{run}"),
    ("watch", "{run}"),
    ("export", "{run}", "--to", "csv", "--out", "{here}/tables"),
    ("cost", "{run}"),
    ("cache", "{here}"),
)
_TIMED = ("--set", "backend=null", "--set", "stop={ rounds = 1, sim_time = '1000 s' }")
REPLAY = ("replay", "{run}", "--out", "{here}/again", "--overwrite", "--quiet", *_TIMED)


def told(*commands: Sequence[str]) -> Callable[[Path, int], str]:
    """Return a reader of a run folder: the output of one of the commands."""

    def read(folder: Path, case: int) -> str:
        words = commands[np.random.default_rng(case).integers(len(commands))]  # each with each file
        return asked(*(word.replace("{run}", str(folder / "run")).replace("{here}", str(folder)) for word in words))

    return read


KINDS: dict[str, Kind] = {
    "scenario": Kind(text("top.toml", TINY), lambda folder, case: assemble(edgesim.load(folder / "top.toml")).setting),
    "study": Kind(_study, _read_study),
    "study mark": Kind(text(".study", "study.toml"), lambda folder, case: check_owner(folder, "study.toml")),
    "published": Kind(_published, _read_study),
    "claims": Kind(_claims, lambda folder, case: load_claims(folder / "claims.toml")),
    "results": Kind(text("results.csv", RESULTS), lambda folder, case: read_results(folder / "results.csv")),
    "trials": Kind(_trials, lambda folder, case: read_trials(_searched(folder), folder / "runs")),
    "golden": Kind(_golden, lambda folder, case: read_numbers(load_golden(folder / "kept"))),
    "profile": Kind(text("phone.toml", to_toml(find("raspberry_pi_4"))), _of_profile),
    "fleet": Kind(text("fleet.csv", FLEET), simulated("fleet={here}/fleet.csv")),
    "availability": Kind(text("seen.csv", SEEN), simulated("availability={name='trace', file='{here}/seen.csv'}")),
    "availability parquet": Kind(
        parquet("seen.parquet", SEEN), simulated("availability={name='trace', file='{here}/seen.parquet'}")
    ),
    "rates": Kind(text("rates.csv", RATES), simulated("network={name='trace', file='{here}/rates.csv'}")),
    "rates parquet": Kind(
        parquet("rates.parquet", RATES), simulated("network={name='trace', file='{here}/rates.parquet'}")
    ),
    "speeds": Kind(text("speeds.csv", SPEEDS), simulated("slowdown={name='replay', file='{here}/speeds.csv'}")),
    "topology": Kind(
        text("links.csv", LINKS),
        simulated(
            "network={name='shared', up='5 Mbit/s', down='20 Mbit/s'}",
            "topology={name='file', file='{here}/links.csv'}",
        ),
    ),
    "peers": Kind(
        text("peers.csv", PEERS),
        simulated("method=dfedavg", "selection=all", "peers={name='file', file='{here}/peers.csv'}"),
    ),
    "idx": Kind(_idx(zipped=False), learned("idx", root="{here}/idx")),
    "idx packed": Kind(_idx(zipped=True), learned("idx", root="{here}/idx")),
    "npz": Kind(_npz, _both_npz),
    "parquet": Kind(_parquet_set, learned("parquet", root="{here}/set")),
    "hf": Kind(_hf, _read_hf),
    "images": Kind(_images, learned("image_folder", root="{here}/set")),
    "table": Kind(text("rows.csv", TABLE), tabled("rows.csv")),
    "table parquet": Kind(parquet("rows.parquet", TABLE), tabled("rows.parquet")),
    "text rows": Kind(
        text("rows.csv", SAID), learned("text", path="{here}/rows.csv", user="who", text="said", length=5)
    ),
    "text play": Kind(text("play.txt", PLAY), learned("text", path="{here}/play.txt", marker=":", length=5)),
    "weights": Kind(_weights, _started),
    "transformer": Kind(_transformer, _transformed),
    "run folder": Kind(_run, told(*COMMANDS), lambda folder: True),
    "edited run": Kind(_edited, told(*COMMANDS, REPLAY), damage=edited),
    "checkpoint": Kind(_checkpoint, _resumed, lambda folder: True),
    "answers": Kind(_answers, _answered, lambda folder: True),
}
