"""Bad input through the command line: one clear line on stderr, exit code 2, and nothing left behind."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple
from urllib.error import URLError

import numpy as np
import pytest
from matplotlib.figure import Figure
from safetensors.numpy import save_file

from edgesim.core.errors import ConfigError
from edgesim.reports.figures import save
from tests.calling import TINY, call
from tests.learning.made_up_data import pixels, write_idx_set, write_parquet


class Bad(NamedTuple):
    """A mistake in a scenario, made by overrides or in its text, and how the line about it starts."""

    says: str  # {here}: the current folder
    overrides: Sequence[str] = ()
    text: str = TINY
    prepare: Callable[[Path], object] = lambda here: None


def cut_idx(here: Path) -> None:
    write_idx_set(here / "cut", zipped=True)
    images = here / "cut" / "train-images-idx3-ubyte.gz"
    images.write_bytes(images.read_bytes()[:-10])


def other_columns(here: Path) -> None:
    write_parquet(here / "odd.parquet", pixels(3, 6, 6, 3), [0, 1, 2], image="picture")


def vectors(here: Path) -> None:
    labels = np.arange(200) % 2
    np.savez(here / "vectors.npz", x_train=np.ones((200, 4)), y_train=labels, x_test=np.ones((2, 4)), y_test=[0, 1])


def words(here: Path) -> None:
    text = np.array([["a", "b"]])
    np.savez(here / "words.npz", x_train=text, y_train=[0], x_test=text, y_test=[0])


def other_weights(here: Path) -> None:
    save_file({"conv1.weight": np.zeros((2, 2), dtype=np.float32)}, here / "other.safetensors")


def fleet_file(text: str) -> Callable[[Path], object]:
    return lambda here: (here / "fleet.csv").write_text(text)


RATE = "give a number in bit/s or a string such as '20 Mbit/s'"
SPEED = "give a number in FLOP/s or a string such as '147.6 MFLOP/s'"
UNTRAINED = ("backend=null", "partition={name='sizes', samples_per_device=50}")
STRATIFIED = "selection={name='stratified', count="
MANY = ("fleet.0.count=50", "fleet.1.count=50")
EXPANDER = "peers={name='expander', degree="
CUT = "{name='link_outage', up='9 s', down='1 s'}"
OUTSIDE = "edgesim.world.links.analytic:Ideal"

KEYS = {
    "unknown key": Bad("networc: unknown key; did you mean 'network'? (`edgesim schema` lists all 3", ["networc.up=5"]),
    "nested key": Bad("stop.round: unknown key; did you mean 'rounds'? (allowed: rounds, accuracy", ["stop.round=3"]),
    "key of a part": Bad(
        "network.upp: unknown key; did you mean 'up'? (allowed: energy_per_bit, latency", ["network.upp=5"]
    ),
    "key of a block": Bad(
        "fleet.0.cout: unknown key; did you mean 'count'? (`edgesim schema` lists all 15)", ["fleet.0.cout=3"]
    ),
    "key of another part": Bad("network.up: unknown key (allowed: none)", ["network={name='ideal', up=5}"]),
    "wrong type": Bad("seed: must be a whole number, got 'one'", ["seed=one"]),
    "fraction": Bad("stop.rounds: must be a whole number, got 2.5", ["stop.rounds=2.5"]),
    "truth as a number": Bad("training.lr: must be a number, got True", ["training.lr=true"]),
    "word for a table": Bad("data.augment: must be a table, got 'flip'", ["data.augment=flip"]),
    "method": Bad(
        "method.name: unknown method 'fedag'; did you mean 'fedavg'? (`edgesim list method` lists all ",
        ["method=fedag"],
    ),
    "model": Bad(
        "model.name: unknown model 'cnn_digit'; did you mean 'cnn_digits'? (`edgesim list model` lists all ",
        ["model=cnn_digit"],
    ),
    "data set": Bad(
        "data.name: unknown data 'digit'; did you mean 'digits'? (`edgesim list data` lists all ", ["data=digit"]
    ),
    "torchvision model": Bad(
        "model.name: torchvision has no classification model 'resnet'; did you mean 'resnet",
        ["model=torchvision:resnet"],
    ),
    "no module": Bad("model.name: cannot import 'nowhere:Net': No module named 'nowhere'", ["model=nowhere:Net"]),
    "no class": Bad("model.name: cannot import 'math:Net': module 'math' has no attribute 'Net'", ["model=math:Net"]),
    "model of another kind": Bad(f"model.name: {OUTSIDE} must be a torch.nn.Module or", [f"model={OUTSIDE}"]),
    "data of another kind": Bad(
        f"data.name: {OUTSIDE} must be a dataclass that extends edgesim.learning.data.dataset.DataPart",
        [f"data={OUTSIDE}"],
    ),
    "no dataclass": Bad(
        "method.name: torch.nn:Identity must be a dataclass that extends edgesim.core.method.Method",
        ["method=torch.nn:Identity"],
    ),
    "override of an unknown key": Bad("a: unknown key; did you mean 'app'? (`edgesim schema`", ["a.b=3"]),
    "override without a value": Bad("override 'seed': write key=value, such as stop.rounds=3", ["seed"]),
    "override without a key": Bad("override '=3': write key=value, such as stop.rounds=3", ["=3"]),
    "override of a missing block": Bad("fleet.2: the list has 2, numbered from 0", ["fleet.2.count=3"]),
}

VALUES = {
    "no unit": Bad(f"network.up: '20' has no unit; {RATE}", ["network.up='20'"]),
    "wrong unit": Bad(
        "network.latency: '20 W' is not a time; give a number in s or a string", ["network.latency=20 W"]
    ),
    "hertz": Bad(f"network.up: '20 MHz' is not a data rate; {RATE}", ["network.up=20 MHz"]),
    "millibits": Bad("network.up: '20 mbit/s' has a prefix below one on bit; write Mbit", ["network.up=20 mbit/s"]),
    "bits, not a rate": Bad(f"network.up: '20 Mbit' is not a data rate; {RATE}", ["network.up=20 Mbit"]),
    "bytes for joules": Bad("stop.energy: '20 kB' is not an energy; give a number in J", ["stop.energy=20 kB"]),
    "bits for FLOPs": Bad(
        f"fleet.0.cpu.flops_per_s: '9 Mbit/s' is not a computing speed; {SPEED}", ["fleet.0.cpu.flops_per_s=9 Mbit/s"]
    ),
    "negative rate": Bad("network.up: must be above 0 bit/s, got '-1 Mbit/s'", ["network.up=-1 Mbit/s"]),
    "zero rate": Bad("network.up: must be above 0 bit/s, got '0 Mbit/s'", ["network.up=0 Mbit/s"]),
    "zero speed": Bad("fleet.1.cpu.flops_per_s: must be above 0 FLOP/s, got 0", ["fleet.1.cpu.flops_per_s=0"]),
    "unknown distribution": Bad(
        "network.up: a distribution has one of uniform, log_uniform, normal, log_normal, choice",
        ["network.up={unform=['1 Mbit/s', '2 Mbit/s']}"],
    ),
    "distribution upside down": Bad(
        "network.up: uniform needs [low, high] with low <= high, got ['2 Mbit/s', '1 Mbit/s']",
        ["network.up={uniform=['2 Mbit/s', '1 Mbit/s']}"],
    ),
    "negative draw": Bad(
        "network.up: a value drawn from normal = [1000000.0, 10000000.0] must be above 0 bit/s, got -",
        ["network.up={normal=['1 Mbit/s', '10 Mbit/s']}", *MANY],
    ),
    "no speed": Bad("fleet.0.cpu: needs flops_per_s, or frequency and flops_per_cycle", ["fleet.0.cpu={cores=2}"]),
    "too busy": Bad("energy.busy: must be at least idle, found a device 0.5 W below it", ["energy.busy=0.5 W"]),
    "energy without a frequency": Bad(
        "energy.name: the energy of a CPU needs cpu.frequency in every fleet block that uses it", ["energy=cpu"]
    ),
    "no workers": Bad(
        "backend.workers: must be greater than or equal to 1, got 0", ["backend={name='workers', workers=0}"]
    ),
    "target in percent": Bad("evaluation.targets.0: must be less than 1, got 50", ["evaluation.targets=[50]"]),
    "failure without a law": Bad("failures.0: crash needs probability or mean_time, and not", ["failures=['crash']"]),
    "two laws": Bad(
        "failures.1: server_restart needs mean_time or at, and not both",
        ["failures=[{name='crash', mean_time='9 s'}, {name='server_restart', mean_time='1 s', at=['2 s']}]"],
    ),
    "certainty and more": Bad(
        "failures.0.probability: must be less than or equal to 1, got 1.5",
        ["failures=[{name='partial_work', probability=1.5}]"],
    ),
    "unknown failure": Bad(
        "failures.0.name: unknown failure 'crsh'; did you mean 'crash'? (known: ", ["failures=[{name='crsh'}]"]
    ),
    "availability in percent": Bad(
        "availability.p: must be less than or equal to 1, got 80", ["availability={name='bernoulli', p=80}"]
    ),
    "buffer of none": Bad(
        "protocol.buffer: must be greater than or equal to 1, got 0",
        ["method=fedbuff", "protocol={name='buffered', concurrency=2, buffer=0}"],
    ),
    "batches of one for batch normalisation": Bad(
        "training.batch: must be at least 2, as the batch normalisation of resnet18_bn needs two samples",
        ["model=resnet18_bn", "training.batch=1"],
    ),
    "floor above the rate": Bad(
        "training.lr_floor: must be at most training.lr, 0.1, got 0.5", ["training.lr_floor=0.5"]
    ),
    "steps of one sample": Bad(
        "method.batch_size: must be at least 2, as the batch normalisation of resnet18_bn needs two samples",
        ["model=resnet18_bn", "method={name='fedsgd', batch_size=1}"],
    ),
    "level beyond bounds": Bad("fleet.0.level: must be less than or equal to 100000000", ["fleet.0.level=200000000"]),
    "more devices than fit": Bad(
        "fleet.0.count: must be less than or equal to 100000000", ["fleet.0.count=10000000000"]
    ),
    "batch beyond bounds": Bad(
        "training.batch: must be less than or equal to 2147483647", ["training.batch=3000000000"]
    ),
    "block named as the server": Bad("fleet.0.name: is the name of the server in tables", ["fleet.0.name=server"]),
    "profile that is a list": Bad(
        "fleet: profile: must be the name of a device or of a file, got ['raspberry_pi_4']",
        ["fleet.0.profile=['raspberry_pi_4']"],
    ),
    "no stop": Bad("stop: needs at least one of rounds, accuracy, metric, sim_time, energy", ["stop={}"]),
    "no end without training": Bad("stop: would never end, as the null backend", [*UNTRAINED, "stop={accuracy=0.5}"]),
    "no end without energy": Bad("stop: would never end, as the null", ["stop={energy='1 J'}", "energy=none"]),
}

TOGETHER = {
    "too many asked": Bad(
        "selection.count: must be at most the 4 devices of the fleet, found 5", ["selection.count=5"]
    ),
    "too many of all levels": Bad(
        "selection.count: must be at most the 4 devices of the fleet, found 6", [STRATIFIED + "6}"]
    ),
    "too many of one level": Bad(
        "selection.count: 4 needs 2 devices a level, level 1 has 1",
        [STRATIFIED + "4}", "fleet.0.count=1", "fleet.1.count=5"],
    ),
    "no equal shares": Bad("selection.count: must be a multiple of the 2 levels, found 3", [STRATIFIED + "3}"]),
    "too few samples": Bad(
        "partition.samples_per_device: needs 400 training samples for 4 devices, the data set has 200",
        ["partition.samples_per_device=100"],
    ),
    "too few classes": Bad(
        "partition.n_cls: needs 11 classes, the data set has 10", ["partition={name='pathological', n_cls=11}"]
    ),
    "images too small": Bad(
        "model.name: Lenet5 needs images of at least 16x16 pixels, data gives 1x8x8", ["model=lenet5"]
    ),
    "images of one colour": Bad("model.name: ResNet cannot take inputs of 1x8x8: ", ["model=torchvision:resnet18"]),
    "vectors for images": Bad(
        "model.name: CnnDigits needs images of at least 4x4 pixels, data gives 4",
        ["data={name='npz', file='vectors.npz'}"],
        prepare=vectors,
    ),
    "wrong number of ratios": Bad(
        "cost.ratios: the method has 3 widths, found 2 ratios",
        ["method=fedpmt", "cost={name='table', ratios=[0.5, 1]}"],
    ),
    "deadline rule without a deadline": Bad(
        "method.rule: 'deadline' needs a protocol with a deadline", ["method={name='fedpmt', rule='deadline'}"]
    ),
    "deadline left out": Bad(
        "protocol.deadline: rule 'fixed' needs one, in seconds; or use 'quantile' or 'mad'", ["protocol=deadline"]
    ),
    "more updates than devices asked": Bad(
        "protocol.minimum: must be at most the 2 devices asked a round, found 3",
        ["protocol={name='deadline', deadline='1 s', minimum=3}"],
    ),
    "more kept than asked": Bad(
        "protocol.keep: must be at most the 2 devices asked a round, found 3",
        ["protocol={name='over_selection', keep=3}"],
    ),
    "renamed option": Bad(
        "method.units: unknown key; it is called 'channels' now (allowed: ", ["method={name='feddrop', units='all'}"]
    ),
    "renamed value": Bad(
        "method.absent: must be 'average_over_holders' or 'include_absent', got 'keep_old'; "
        "it is called 'include_absent' now",
        ["method={name='afd', absent='keep_old'}"],
    ),
    "more at work than devices": Bad(
        "protocol.concurrency: must be at most the 4 devices of the fleet, found 5",
        ["method=fedbuff", "protocol={name='buffered', concurrency=5}"],
    ),
    "method without rounds in rounds": Bad("protocol.name: fedbuff runs on buffered, found sync", ["method=fedbuff"]),
    "method of rounds without rounds": Bad(
        "protocol.name: fedavg runs on deadline, sync, found buffered",
        ["protocol={name='buffered', concurrency=2}"],
    ),
    "peers left out": Bad("peers: dfedavg needs to know who hears whom, such as peers = 'ring'", ["method=dfedavg"]),
    "peers of a server": Bad(
        "peers: fedavg has a server, its devices exchange nothing among themselves", ["peers=ring"]
    ),
    "too few peers": Bad("peers.degree: must be below the 4 devices, got 4", ["method=dfedavg", EXPANDER + "4}"]),
    "odd degree": Bad("peers.degree: must be a multiple of 2, got 3", ["method=dfedavg", EXPANDER + "3}"]),
    "batteries that sleep among peers": Bad(
        "energy.sleep: a device with a battery draws idle power while it is on; leave sleep out",
        ["method=dfedavg", "peers=ring", "fleet.0.battery.capacity='5 Wh'", "energy.sleep='0.1 W'"],
    ),
    "links cut twice": Bad("failures: only one of them may cut the links, found 2", [f"failures=[{CUT}, {CUT}]"]),
    "leaves before it joins": Bad(
        "availability.leave: must be after join; device 0 joins at 9 s and leaves at 5 s",
        ["availability={name='lifetime', join='9 s', leave='5 s'}"],
    ),
    "no availability": Bad("availability: an empty list; give at least one", ["availability=[]"]),
    "levels above the widths": Bad(
        "fleet.level: method.rule 'fixed' needs levels up to the 3 widths, found 4",
        ["method=fedpmt", "fleet.1.level=4"],
    ),
    "widths beyond the model": Bad(
        "method.widths: must rise to the model's 3 layers, as the last width is the full model; found [1, 4]",
        ["method={name='fedpmt', widths=[1, 4]}"],
    ),
    "training without samples": Bad(
        "backend.name: serial trains, but partition sizes gives sizes without samples; use the null", UNTRAINED[1:]
    ),
    "no CUDA": Bad("backend.device: cannot compute on 'cuda:99' here: ", ["backend={name='serial', device='cuda:99'}"]),
    "no such device": Bad("backend.device: cannot compute on 'gpu' here: ", ["backend={name='workers', device='gpu'}"]),
}

FILES = {
    "malformed TOML": Bad(
        "scenario.toml: not valid TOML: Invalid value (at line 2, column 5)", text="seed = 1\nx = = 3"
    ),
    "empty TOML": Bad("partition: is missing (and 4 more: model, method, stop, fleet)", text=""),
    "no data set": Bad("data: partition iid needs a data set", text=TINY.replace("data =", "# data =")),
    "extends itself": Bad("extends: scenario.toml -> scenario.toml never ends", text="extends = 'scenario.toml'"),
    "extends nothing": Bad("{here}/base.toml: cannot be read: No such file or directory", text="extends = 'base.toml'"),
    "no data folder": Bad("data.root: {here}/none needs train-images", ["data={name='idx', root='none'}"]),
    "no data file": Bad("{here}/none.npz: cannot be read: No such file", ["data={name='npz', file='none.npz'}"]),
    "truncated data file": Bad(
        "{here}/cut/train-images-idx3-ubyte.gz: not a readable idx file, truncated or damaged: Compressed file",
        ["data={name='idx', root='cut'}"],
        prepare=cut_idx,
    ),
    "parquet of other columns": Bad(
        "{here}/odd.parquet: no image column img or image; its columns are picture, label",
        ["data={name='parquet', train='odd.parquet', test='odd.parquet'}"],
        prepare=other_columns,
    ),
    "words for numbers": Bad(
        "{here}/words.npz: train has shape (1, 2) of <U1, expected numbers (n, features) or (n, h, w[, c])",
        ["data={name='npz', file='words.npz'}"],
        prepare=words,
    ),
    "home of nobody": Bad("'~nosuchuser/devices.csv' is no path: ", ["fleet=~nosuchuser/devices.csv"]),
    "one array": Bad(
        "{here}/one.npy: not a readable .npz archive of plain arrays, truncated or damaged: ",
        ["data={name='npz', file='one.npy'}"],
        prepare=lambda here: np.save(here / "one.npy", np.ones(3)),
    ),
    "no such fleet file": Bad("{here}/fleet.csv: cannot be read: No such file", ["fleet=fleet.csv"]),
    "bad cell of a fleet file": Bad(
        f"{{here}}/fleet.csv line 3: cpu.flops_per_s: 'fast' is not a computing speed; {SPEED}",
        ["fleet=fleet.csv"],
        prepare=fleet_file("count,cpu.flops_per_s\n2,5e7\n2,fast\n"),
    ),
    "unknown profile in a fleet file": Bad(
        "{here}/fleet.csv line 2: profile: unknown device 'phon_mid'; did you mean 'phone_mid'?",
        ["fleet=fleet.csv"],
        prepare=fleet_file("profile,count\nphon_mid,2\n"),
    ),
    "no such availability": Bad("{here}/none.csv: cannot be read: ", ["availability={name='trace', file='none.csv'}"]),
    "no such peers": Bad(
        "{here}/none.csv: cannot be read: No such file",
        ["method=dfedavg", "peers={name='file', file='none.csv'}"],
    ),
    "peer left alone": Bad(
        "{here}/peers.csv: leaves device 1 alone: it is the target of no line",
        ["method=dfedavg", "peers={name='file', file='peers.csv'}"],
        prepare=lambda here: (here / "peers.csv").write_text("source,target\n1,0\n0,2\n0,3\n"),
    ),
    "no such weights": Bad(
        "{here}/none.safetensors: cannot be read: No such file", ["model.init_from=none.safetensors"]
    ),
    "weights that are none": Bad(
        "model.init_from: {here}/scenario.toml: not a readable safetensors file, truncated or damaged: ",
        ["model.init_from=scenario.toml"],
    ),
    "weights of another model": Bad(
        "model.init_from: {here}/other.safetensors does not fit: conv1.bias is missing; ",
        ["model.init_from=other.safetensors"],
        prepare=other_weights,
    ),
}


def check(here: Path, words: Sequence[object], says: str) -> None:
    """A command must fail with one line and leave no file behind."""
    before = sorted(here.rglob("*"))
    code, out, err = call(*words)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert err.startswith("error: " + says.format(here=here.resolve()))
    assert sorted(here.rglob("*")) == before


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty current folder."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


ALL = KEYS | VALUES | TOGETHER | FILES


@pytest.mark.parametrize("bad", ALL.values(), ids=ALL)
def test_a_bad_scenario_is_one_line(here: Path, bad: Bad) -> None:
    (here / "scenario.toml").write_text(bad.text)
    bad.prepare(here)
    overrides = [word for override in bad.overrides for word in ("--set", override)]
    check(here, ["run", "scenario.toml", "--out", "run", *overrides], bad.says)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["run", "none.toml"], "none.toml: cannot be read: No such file or directory"),
        (["run", "."], ".: cannot be read: is a folder"),
        (["run", "scenario.toml", "--out", "taken"], "taken: already exists; remove it or choose another run folder"),
        (
            ["run", "scenario.toml", "--out", "scenario.toml/run"],
            "scenario.toml/run: cannot be made, as {here}/scenario.toml is not a writable folder",
        ),
        (["run", "scenario.toml", "--out", "x" * 300], "x" * 300 + ": cannot be made: File name too long"),
        (["calibrate", "--out", "folder.toml"], "--out: folder.toml cannot be written"),
        (["calibrate", "--seconds", "inf"], "--seconds: must be finite, got inf"),
        (["calibrate", "--base", "laptop"], "calibrate: laptop has no terms, so that it cannot be a base"),
        (["calibrate", "--power", "nothing.csv"], "nothing.csv: "),
        (["model", "os:path"], "model.name: 'os:path' must be the name of a class, found <module"),
        (
            ["model", "numpy:array"],
            "model.name: 'numpy:array' must be the name of a class, found <built-in function array>",
        ),
        (["run", "scenario.toml", "--what"], "No such option"),
        (["run", "scenario.toml", "--workers", "0"], "Invalid value for '--workers': "),
        (["run"], "Missing argument 'SCENARIO' (see edgesim run --help)"),
        (["rum"], "No such command 'rum'. Did you mean 'run'? (see edgesim --help)"),
        (["validate", "scenario.toml", "--set", "seed=one"], "seed: must be a whole number, got 'one'"),
        (["estimate", "scenario.toml", "--set", "seed=one"], "seed: must be a whole number, got 'one'"),
        (
            ["model", "cnn_digit"],
            "model.name: unknown model 'cnn_digit'; did you mean 'cnn_digits'? (`edgesim list model` lists all ",
        ),
        (["model", "lenet5", "--input", "1x8x8"], "model.name: Lenet5 needs images of at least 16x16 pixels"),
        (["list", "metod"], "unknown kind 'metod'; did you mean 'method'?"),
        (["table", "taken"], "taken: not a run folder: no manifest.json, jobs.parquet"),
        (["plot", "taken"], "taken: not a run folder: no manifest.json, jobs.parquet"),
        (["diff", "taken", "taken"], "taken: not a run folder: no manifest.json, jobs.parquet"),
    ],
)
def test_a_bad_command_is_one_line(here: Path, words: Sequence[str], says: str) -> None:
    (here / "scenario.toml").write_text(TINY)
    (here / "taken").mkdir()
    (here / "folder.toml").mkdir()
    check(here, words, says)


@pytest.mark.parametrize("name", [".", "", "/", ".."])
def test_a_picture_needs_a_file_name(here: Path, name: str) -> None:
    with pytest.raises(ConfigError, match=f"^--out: '{Path(name)}' is no file name"):
        save(Figure(), Path(name))


def test_a_download_that_fails_says_what_to_do(
    here: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    def offline(*_: object, **__: object) -> None:
        raise URLError("no network")

    home = tmp_path_factory.mktemp("home")
    monkeypatch.setenv("HOME", str(home))
    for variable in ("EDGESIM_DATA", "EDGESIM_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setattr("torchvision.datasets.mnist.download_and_extract_archive", offline)
    (here / "scenario.toml").write_text(TINY)
    words = ["run", "scenario.toml", "--out", "run", "--set", "data={name='mnist', download=true}"]
    check(here, words, "data.download: cannot download mnist (Error downloading train-images-idx3-ubyte.gz: ")
    advice = f"put its files in {home}/.cache/edgesim/mnist, or let EDGESIM_DATA name a folder that has them, or choose"
    assert advice in call(*words).err
