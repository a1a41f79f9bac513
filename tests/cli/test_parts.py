"""`list`: what it says of parts is what their classes are, and it needs no torch to name them."""

from __future__ import annotations

import inspect
import subprocess
import sys
import tomllib

import pytest

from edgesim.cli.parts import kind_of
from edgesim.config.describe import describe
from edgesim.config.plugin_fields import PartOf
from edgesim.config.plugins import PACKAGES, places_of, plugins_of
from edgesim.core.errors import ConfigError
from tests.calling import call
from tests.sizes import spread

MEMBER = {"torchvision:": "torchvision:resnet18", "timm:": "timm:resnet18"}  # a member of each family
PLUGINS = [(kind, MEMBER.get(name, name)) for kind in PACKAGES for name in places_of(kind)]
every_part = pytest.mark.parametrize(("kind", "name"), PLUGINS, ids=[f"{kind}-{name}" for kind, name in PLUGINS])
some_parts = pytest.mark.parametrize(("kind", "name"), spread(PLUGINS, 80))


@pytest.mark.parametrize("kind", PACKAGES)
def test_what_is_read_from_the_source_is_what_loading_gives(kind: str) -> None:
    loaded, read = plugins_of(kind), places_of(kind)
    assert read and list(read) == sorted(loaded)
    for name, cls in loaded.items():
        assert (cls.__module__, cls.__qualname__) == read[name][:2]
        assert read[name].summary == (inspect.getdoc(cls) or "").partition("\n")[0]


@some_parts
def test_no_description_ends_in_mid_sentence(kind: str, name: str) -> None:
    """Nor does that of a key; and each has a type and a meaning."""
    found = describe(kind, name)
    assert found.what.endswith(".")
    assert [key.key for key in found.keys if not (key.type and key.meaning.endswith("."))] == []
    place = places_of(kind).get(name)
    assert place is None or place.summary.endswith(".")


@some_parts
def test_an_example_is_accepted(kind: str, name: str) -> None:
    """The line of the part, and each key laid over it."""
    found = describe(kind, name)
    [table] = tomllib.loads(found.example).values()
    PartOf(kind).read(table)
    others = {key.key: key.example for key in found.keys if key.key not in table}
    for key, example in others.items():
        if (name, key) not in INSTEAD:
            beside = BESIDE.get((name, key), {})
            PartOf(kind).read({**table, **beside, **tomllib.loads(f"{key} = {example}")})


# Keys that others have to stand beside.
BESIDE = {
    ("cell", "access"): {"blocks": 4},
    ("cell", "power_control"): {"target_snr_db": 3.0},
    ("cell", "on_outage"): {"waterfall": 1.0},
}
# Keys that are given instead of the one in the example, and not beside it, or that stand beside another.
INSTEAD = {
    ("crash", "mean_time"),
    ("server_restart", "at"),
    ("parquet", "train"),
    ("parquet", "test"),
    ("cell", "blocks"),
    ("cell", "target_snr_db"),
    ("cell", "cutoff_db"),
}


@pytest.mark.parametrize(
    ("word", "kind"),
    [
        *(("method", "method"), ("methods", "method"), ("data", "data"), ("peers", "peers"), ("peer", "peers")),
        *(("batteries", "battery"), ("energies", "energy"), ("topologies", "topology"), ("Failures", "failure")),
        *(("device", "devices"), ("devices", "devices"), ("availabilities", "availability")),
    ],
)
def test_kinds_may_be_singular_or_plural(word: str, kind: str) -> None:
    assert kind_of(word) == kind


def test_an_unknown_kind_gets_the_nearest() -> None:
    with pytest.raises(ConfigError, match=r"^unknown kind 'metod'; did you mean 'method'\?$"):
        kind_of("metod")
    assert call("list", "mehtods") == (2, "", call("list", "mehtods").err)
    assert call("list", "method", "fedpmd").err.startswith("error: method.name: unknown method 'fedpmd'; did you mean")


def test_a_part_is_told_with_every_key() -> None:
    code, out, err = call("list", "methods", "fedpmt", "fedprox")
    assert (code, err) == (0, "")
    assert 'method = { name = "fedpmt" }' in out and "Source: H. Wu and P. Wang" in out
    rule = next(line for line in out.splitlines() if line.startswith("rule "))
    assert '"fixed" | "deadline"' in rule and "the largest width that it finishes in time." in rule
    assert any(line.split()[:2] == ["mu", "0.01"] for line in out.splitlines())
    fixed = call("list", "network", "fixed").out
    up = next(line for line in fixed.splitlines() if line.startswith("up "))
    assert "required" in up and "bit/s" in up and '"20 Mbit/s"' in up and up.rstrip().endswith("to the server.")
    assert 'network = { name = "fixed", up = "20 Mbit/s", down = "20 Mbit/s" }' in fixed
    assert "It has no keys." in call("list", "protocol", "sync").out
    assert call("list", "device", "raspberry_pi_4").out == call("device", "raspberry_pi_4").out


def test_a_class_from_outside_is_told_too() -> None:
    """A module of torch, which is no dataclass, and a method that builds on one of ours."""
    out = call("list", "model", "tests.plugins.one_number:OneNumber").out
    assert 'model = { name = "tests.plugins.one_number:OneNumber" }' in out and "Multiplies its input" in out
    out = call("list", "method", "tests.plugins.one_number:MovingAvg").out
    assert any(line.startswith("aggregate_over ") for line in out.splitlines())
    assert any(line.startswith("moves ") for line in out.splitlines())


def test_list_loads_next_to_nothing() -> None:
    code = "import sys\nsys.argv = ['edgesim', 'list']\nfrom edgesim.cli.main import main\n"
    heavy = ("torch", "pandas", "numpy", "simpy", "scipy", "sklearn", "pint")
    check = f"try: main()\nfinally: print([m for m in {heavy} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code + check], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"
    assert "fedpmt" in done.stdout
