"""A user's own class of the wrong shape, or that raises: one line that names it, then the frames of own code alone."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from edgesim.config.plugins import PACKAGES, places_of
from tests.calling import TINY, call
from tests.sizes import spread

CELL = "network={{name='cell',bandwidth='1 MHz',distance_m=100,allocator='{}'}}"
JOINT = (
    "network={{name='cell',bandwidth='1 MHz',distance_m=100,efficiency=1}}",
    "energy='cpu'",
    "fleet=[{{count=2,cpu={{frequency='1 GHz',flops_per_cycle=1}}}}]",
)
GIVEN = "shared', up = '1 Mbit/s', down = '8 Mbit/s"


class Seam(NamedTuple):
    """A kind: the shipped part that an own class extends, its functions, and how a scenario chooses it."""

    part: str
    functions: tuple[str, ...]
    chosen: tuple[str, ...]


SEAMS = {
    "data": Seam("digits", ("load",), ("data={{name='{}',train_limit=200,test_limit=50}}",)),
    "partition": Seam("iid", ("split",), ("partition='{}'",)),
    "cost": Seam("x3", ("check", "flops"), ("cost='{}'",)),
    "network": Seam("fixed", ("build",), ("network={{name='{}',up='1 Mbit/s',down='8 Mbit/s'}}",)),
    "discipline": Seam("fair", ("links",), (f"network={{{{name='{GIVEN}',discipline='{{}}'}}}}",)),
    "allocator": Seam("equal", ("divide", "claims"), (CELL,)),
    "resources": Seam("fedl", ("choose",), ("resources='{}'", *JOINT)),
    "energy": Seam("power", ("columns",), ("energy={{name='{}',idle='1 W',busy='4 W'}}",)),
    "slowdown": Seam("log_normal", ("build",), ("slowdown={{name='{}',sigma=0.5}}",)),
    "battery": Seam("rechargeable", ("build",), ("fleet.0.battery={{name='{}',capacity='10 kJ'}}",)),
    "tariff": Seam("constant", ("steps",), ("prices.electricity={{name='{}',price='0.3 EUR/kWh'}}",)),
    "governor": Seam(
        "max", ("check", "choose"), ("fleet.0.cpu={{cores=1,frequency='1 GHz',flops_per_cycle=1,governor='{}'}}",)
    ),
    "clock": Seam("flops", ("build",), ("fleet.0.cpu={{flops_per_s='1 GFLOP/s',clock='{}'}}",)),
    "availability": Seam("sessions", ("build",), ("availability={{name='{}',on='100 s',off='10 s'}}",)),
    "failure": Seam("crash", ("build",), ("failures=[{{name='{}',probability=0.1}}]",)),
    "peers": Seam("ring", ("check", "graph"), ("method=dfedavg", "peers='{}'")),
    "topology": Seam("star", ("paths",), (f"network={{{{name='{GIVEN}'}}}}", "topology='{}'")),
    "selection": Seam("uniform", ("check", "choose"), ("selection={{name='{}',count=2}}",)),
    "server_optimizer": Seam("sgd", ("step",), ("server_optimizer={{name='{}',lr=1.0}}",)),
    "objective": Seam("classification", ("hits",), ("objective='{}'",)),
    "method": Seam(
        "fedavg",
        ("init", "plan", "task", "local", "aggregate", "combine", "update_weights", "merge_flops"),
        ("method='{}'",),
    ),
    "protocol": Seam("sync", ("check", "run"), ("protocol='{}'",)),
    "controller": Seam(
        "pi_deadline",
        ("check", "adapt"),
        ("controller={{name='{}',start=3.0,shortest=1.0,longest=9.0}}", "protocol={{name='deadline',deadline=3.0}}"),
    ),
    "backend": Seam("serial", ("open",), ("backend='{}'",)),
}
NEEDS = {"claims": ("network.access='ofdma'", "network.blocks=4")}  # settings under which a function is called
FUNCTIONS = [(kind, function) for kind, seam in SEAMS.items() for function in seam.functions]


def test_every_kind_has_its_own_here() -> None:
    """Models are classes of torch, moves need edge servers, and apps ask devices: these have tests of their own."""
    assert PACKAGES.keys() - SEAMS.keys() == {"model", "mobility", "app"}


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The current folder, with a scenario."""
    (tmp_path / "scenario.toml").write_text(TINY)
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    sys.modules.pop("odd", None)


def fails(here: Path, kind: str, body: str, *more: str) -> list[str]:
    """Run a scenario with an own class of a kind that extends a shipped one; return the lines on stderr."""
    base = places_of(kind)[SEAMS[kind].part]
    (here / "odd.py").write_text(
        f"from dataclasses import dataclass\nfrom {base.module} import {base.attribute}\n\n"
        f"@dataclass(frozen=True, kw_only=True)\nclass Odd({base.attribute}):\n{body}"
    )
    given = [*(text.format("odd:Odd") for text in SEAMS[kind].chosen), *more]
    code, out, err = call("run", "scenario.toml", "--quiet", "--out", "run", *(w for o in given for w in ("--set", o)))
    assert (code, out) == (2, "")
    return err.splitlines()


@pytest.mark.parametrize(("kind", "function"), spread(FUNCTIONS, 12))
def test_an_error_in_own_code_comes_with_its_frames_alone(here: Path, kind: str, function: str) -> None:
    wrong = "    def wrong(self):\n        return 1 / 0\n"
    body = f"    def {function}(self, *given, **named):\n        return self.wrong()\n{wrong}"
    first, *frames = fails(here, kind, body, *NEEDS.get(function, ()))
    assert "odd:Odd" in first and f"{function}() fails: ZeroDivisionError: division by zero" in first
    assert frames == [
        f'  File "{here}/odd.py", line 7, in {function}',
        "    return self.wrong()",
        f'  File "{here}/odd.py", line 9, in wrong',
        "    return 1 / 0",
    ]


@pytest.mark.parametrize(("kind", "function"), FUNCTIONS)
def test_a_function_that_takes_something_else_is_named(here: Path, kind: str, function: str) -> None:
    [line] = fails(here, kind, f"    def {function}(self, this, that=1, *, other):\n        return None\n")
    assert f".name: odd:Odd must have {function}(self" in line
    assert line.endswith(f", found {function}(self, this, that=1, *, other)")


@pytest.mark.parametrize(
    ("kind", "function"), spread([each for each in FUNCTIONS if each[1] not in ("check", "init")], 8)
)
def test_a_function_that_gives_something_else_is_one_line_on_its_class(here: Path, kind: str, function: str) -> None:
    body = f"    def {function}(self, *given):\n        return 'odd'\n"
    lines = fails(here, kind, body, *NEEDS.get(function, ()))
    assert len(lines) == 1 and "Odd" in lines[0]
    assert "Traceback" not in lines[0] and "site-packages" not in lines[0]


def test_a_value_where_a_function_has_to_be(here: Path) -> None:
    [line] = fails(here, "selection", "    @property\n    def choose(self):\n        return []\n")
    assert line == "error: selection.name: odd:Odd.choose must be a function, found property"


def test_a_constructor_that_raises(here: Path) -> None:
    lines = fails(here, "selection", "    def __post_init__(self):\n        [][0]\n")
    assert lines[0] == "error: odd:Odd.__post_init__() fails: IndexError: list index out of range"
    assert lines[1:] == [f'  File "{here}/odd.py", line 7, in __post_init__', "    [][0]"]


def test_a_refusal_of_an_own_class_is_one_line(here: Path) -> None:
    """What own code says in edgesim's words needs no frames."""
    body = (
        "    def check(self, level):\n        from edgesim.core.errors import ConfigError\n"
        "        try:\n            1 / 0\n        except ZeroDivisionError as error:\n"
        "            raise ConfigError('selection.count: too many') from error\n"
    )
    assert fails(here, "selection", body) == ["error: selection.count: too many"]


@pytest.mark.workers
@pytest.mark.parametrize("fault", ["1 / 0", "raise Own(1, 2)"])
def test_frames_come_home_from_a_worker_process(here: Path, fault: str) -> None:
    """Also with an error whose class another process cannot make again."""
    body = (
        f"    def local(self, task):\n        {fault}\n\nclass Own(Exception):\n"
        "    def __init__(self, a, b):\n        super().__init__(f'{a}, {b}')\n"
    )
    first, *frames = fails(here, "method", body, "backend={name='workers',workers=1}")
    assert first.startswith("error: odd:Odd.local() fails: ")
    assert first.endswith(": 1, 2" if "Own" in fault else "ZeroDivisionError: division by zero")
    assert frames == [f'  File "{here}/odd.py", line 7, in local', f"    {fault}"]


@pytest.mark.parametrize(
    ("body", "says", "frames"),
    [
        ("__init__(self):\n        {}[0]", "model: cannot make Net: KeyError 0", "{}[0]"),
        ("forward(self, x):\n        {}[0]", "model.name: Net cannot take inputs of 1x8x8: KeyError 0", "{}[0]"),
        ("forward(self):\n        pass", "model.name: Net cannot take inputs of 1x8x8: Net.forward() takes 1 ", ""),
    ],
)
def test_a_network_that_raises(here: Path, body: str, says: str, frames: str) -> None:
    start = (
        ""
        if "__init__" in body
        else "    p = nn.Linear(1, 1)\n    def parameters(self, *a): return iter([self.p.weight])\n"
    )
    (here / "odd.py").write_text(f"from torch import nn\nclass Net(nn.Module):\n{start}    def {body}\n")
    code, _, err = call("run", "scenario.toml", "--set", "model=odd:Net")
    first, *rest = err.splitlines()
    assert code == 2 and first.startswith(f"error: {says}")
    assert [line.strip() for line in rest[1::2]] == ([frames] if frames else [])


def test_a_network_that_raises_as_it_trains(here: Path) -> None:
    (here / "odd.py").write_text(
        "from torch import nn\nclass Net(nn.Linear):\n    def __init__(self):\n        super().__init__(64, 10)\n"
        "    def forward(self, x):\n        assert len(x) < 16, 'too many'\n"
        "        return super().forward(x.flatten(1))\n"
    )
    code, _, err = call("run", "scenario.toml", "--quiet", "--set", "model=odd:Net")
    assert (code, err.splitlines()) == (
        2,
        [
            "error: odd:Net.forward() fails: AssertionError: too many",
            f'  File "{here}/odd.py", line 6, in forward',
            "    assert len(x) < 16, 'too many'",
        ],
    )


def test_a_module_that_raises_as_it_is_loaded(here: Path) -> None:
    (here / "odd.py").write_text("import math\nROOT = math.sqrt(-1)\n")
    code, _, err = call("validate", "scenario.toml", "--set", "method=odd:Own")
    assert (code, err) == (2, "error: method.name: cannot import 'odd:Own': math domain error (odd.py, line 2)\n")


def test_a_cell_of_a_study_with_own_code_that_raises(here: Path) -> None:
    (here / "study.toml").write_text(
        "name = 'own'\nbase = 'scenario.toml'\ncolumns = ['sim_time_s']\noverrides = ['method=odd:Odd']\n"
        "[axes]\nseed = [1]\n"
    )
    (here / "odd.py").write_text(
        "from edgesim.methods.fedavg import FedAvg\n\n"
        "class Odd(FedAvg):\n    def combine(self, *given):\n        1 / 0\n"
    )
    code, _, err = call("study", "run", "study.toml")
    lines = err.splitlines()
    place = lines.index(f'  File "{here}/odd.py", line 5, in combine')
    assert code != 0 and lines[place + 1] == "    1 / 0"
    assert any("odd:Odd.combine() fails: ZeroDivisionError: division by zero" in line for line in lines)
    assert "Traceback" not in err and "simpy" not in err


def test_a_fault_of_edgesims_own_keeps_its_traceback(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("edgesim.config.load.merged", None)
    (here / "more.toml").write_text("extends = 'scenario.toml'\n")
    with pytest.raises(TypeError, match="'NoneType' object is not callable"):
        call("validate", "more.toml")
