"""Methods of the FedDHAD paper that cannot work with their settings, model or data are refused in one line."""

from __future__ import annotations

from pathlib import Path

import pytest

import edgesim
from tests.calling import call
from tests.conftest import digits_scenario
from tests.end_to_end.test_bad_input import Bad, check
from tests.end_to_end.test_bad_physics import settings
from tests.sizes import thinned

BELOW, UP_TO = "must be less than", "must be less than or equal to"
ABOVE, FROM = "must be greater than", "must be greater than or equal to"


def method(says: str, keys: str, *more: str) -> Bad:
    """Keys of a method that cannot be."""
    return Bad(f"method.{says}", [f"method={{{keys}}}", *more])


SHARES = {
    f"{name} {key} {value}": method(f"{key}{place}: {says}, got {value}", f"name='{name}', {key}={given}")
    for name, key, place, value, given, says in [
        ("afd", "rate", "", "1", "1", f"{BELOW} 1"),
        ("afd", "rate", "", "-0.1", "-0.1", f"{FROM} 0"),
        ("fjord", "widths", ".0", "0", "[0, 1]", f"{ABOVE} 0"),
        ("fjord", "widths", ".1", "1.5", "[0.5, 1.5]", f"{UP_TO} 1"),
        ("heterofl", "rates", ".0", "0", "[0, 1]", f"{ABOVE} 0"),
        ("heterofl", "rates", ".1", "2", "[0.5, 2]", f"{UP_TO} 1"),
        ("fedrolex", "rates", ".0", "-1", "[-1, 1]", f"{ABOVE} 0"),
        ("feddst", "sparsity", "", "1", "1", f"{BELOW} 1"),
        ("feddst", "alpha", "", "1.5", "1.5", f"{UP_TO} 1"),
        ("prunefl", "reconsidered", "", "1", "1", f"{BELOW} 1"),
        ("gossipfl", "share", "", "0", "0", f"{ABOVE} 0"),
        ("fedjs", "q_max", "", "1.5", "1.5", f"{UP_TO} 1"),
        ("feddh", "decay_v", "", "0", "0", f"{ABOVE} 0"),
        *(
            (name, key, "", value, value, says)
            for name in ("fedad", "feddhad")
            for key, value, says in [
                ("fixed_ratio", "0", f"{ABOVE} 0"),
                ("fixed_ratio", "1.5", f"{UP_TO} 1"),
                ("ratio_min", "-0.5", f"{FROM} 0"),
                ("keep_min", "0", f"{ABOVE} 0"),
                ("keep_min", "1.25", f"{UP_TO} 1"),
                ("drop_cap", "1", f"{BELOW} 1"),
                ("drop_cap", "0", f"{ABOVE} 0"),
            ]
        ),
    ]
}
TOGETHER = {
    "feddrop keeps none": method("keep: shares must be in (0, 1], found [0.0, 0.0]", "name='feddrop', keep=0"),
    "feddrop keeps more": method("keep: shares must be in (0, 1], found [0.5, 1.5]", "name='feddrop', keep=[0.5, 1.5]"),
    "fjord without the whole": method(
        "widths: must rise to 1, the whole model; found [0.25, 0.5]", "name='fjord', widths=[0.25, 0.5]"
    ),
    "fjord falls": method("widths: must rise to 1, the whole model; found [1.0, 0.5]", "name='fjord', widths=[1, 0.5]"),
    "heterofl falls": method("rates: must rise, found [1.0, 0.5]", "name='heterofl', rates=[1, 0.5]"),
    "fedrolex twice": method("rates: must rise, found [0.5, 0.5]", "name='fedrolex', rates=[0.5, 0.5]"),
    "nothing dropped literally": method(
        "time_map: 'exact' is for method.rate_convention 'keep'",
        "name='fedad', time_map='exact', rate_convention='literal'",
    ),
    "unknown cost of zeros": Bad(
        "cost.sparse: must be 'dense' or 'ideal', got 'free'", ["cost={name='x3', sparse='free'}"]
    ),
    "cost of another": Bad("cost.ratios: unknown key (allowed: sparse)", ["cost={name='x3', ratios=[1]}"]),
}

NOTHING = "has no unit that method.channels {} could leave out (channel groups: none)"
THINNER = {  # how the line about a model goes on that has nothing to leave out
    "'afd'": f"model.name: {{}} {NOTHING.format(repr('inner'))}; method.rate",
    "'fjord'": f"model.name: {{}} {NOTHING.format(repr('inner'))}; method.w",
    "'fedad'": f"model.name: {{}} {NOTHING.format(repr('inner'))}; choose",
    "'feddhad', channels='all'": f"model.name: {{}} {NOTHING.format(repr('all'))}",
    "'heterofl'": "model.name: {} has no hidden unit to leave out; method.rates must be [1.0]",
    "'fedrolex'": "model.name: {} has no hidden unit to leave out; method.rates must be [1.0]",
    "'feddrop', keep=0.5, channels='all'": "method.channels: 'all' finds no unit to leave out in {} (channel groups: ",
}
MODELS = {
    f"{name} {network}": Bad(
        says.format(f"tests.plugins.hard_to_slice:{network}"),
        [f"method={{name={name}}}", f"model=tests.plugins.hard_to_slice:{network}"],
    )
    for name, says in THINNER.items()
    for network in ("Recurrent", "UsedTwice", "Tied")
}


def server(says: str, keys: str) -> Bad:
    """More samples for the server than there are; TINY trains on 200."""
    return Bad(f"method.server_samples: the server asks for {says}", [f"method={{{keys}}}"])


ON_SAMPLES = "gradient='server_set', server_samples="
SERVER_SETS = {
    "feddh takes all": server("200 train samples, allowed are 1 to 199", f"name='feddh', {ON_SAMPLES}200"),
    "feddhad takes more": server("500 train samples, allowed are 1 to 199", f"name='feddhad', {ON_SAMPLES}500"),
    "feddhe takes all": server("200 train samples, allowed are 1 to 199", "name='feddhe', server_samples=200"),
    "feddhe of a rare class": server(
        "190 train samples, equally many of each of 10 classes; allowed are multiples of 10 up to 180",
        "name='feddhe', server_samples=190",
    ),
    "feddh takes none": method(
        "server_samples: must be greater than or equal to 1, got 0", "name='feddh', server_samples=0"
    ),
}

GROUPED = "tests.plugins.networks:Grouped"
SPLITS = (
    f"of the 8 units of conv would stay, which {GROUPED}'s group normalisation cannot split into 2 groups; needed is"
)
NORMED = "tests.plugins.networks:NormedUnits"
TWO = "must be at least 2, as the batch normalisation of"
NORMALISED = {
    "fjord": method(f"widths: at 0.3: 3 {SPLITS}", "name='fjord', widths=[0.3, 1]", f"model={GROUPED}"),
    "heterofl": method(f"rates: at 0.3: 3 {SPLITS}", "name='heterofl', rates=[0.3, 1]", f"model={GROUPED}"),
    "afd": method(f"rate: at 0.4: 5 {SPLITS}", "name='afd', rate=0.4", f"model={GROUPED}"),
    "feddrop": method(f"keep: at 0.4: 3 {SPLITS}", "name='feddrop', keep=0.4, channels='all'", f"model={GROUPED}"),
    "feddrop by chance": method(
        f"keep: at 0.5: any number {SPLITS}",
        "name='feddrop', keep=0.5, channels='all', draw='bernoulli'",
        f"model={GROUPED}",
    ),
    "fedad": Bad(f"model.name: any number {SPLITS}", ["method=fedad", f"model={GROUPED}"]),
    "fedas": method(f"align_batch: {TWO} {NORMED}", "name='fedas', align_batch=1", f"model={NORMED}"),
    "augfl": method(f"teacher_batch: {TWO} resnet18_bn", "name='augfl', teacher_batch=1, server_samples=10"),
}
TABLES = {"normalised": NORMALISED, "share": SHARES, "together": TOGETHER, "model": MODELS, "server set": SERVER_SETS}
REFUSED = {f"{table}: {name}": bad for table, cases in TABLES.items() for name, bad in cases.items()}


@pytest.mark.parametrize("bad", REFUSED.values(), ids=REFUSED)
def test_what_cannot_work_is_one_line(here: Path, bad: Bad) -> None:
    """The key, what was found and what is allowed; nothing is written."""
    check(here, ["run", "scenario.toml", "--out", "run", *settings(bad.overrides)], bad.says)


@pytest.mark.parametrize("name", thinned(["fedad", "feddhad"], ["feddhad"]))
def test_a_spectrum_that_does_not_converge_is_no_error(tmp_path: Path, name: str) -> None:
    """Two steps of Lanczos' method miss the largest eigenvalue by over a millionth; the notes say what stands in."""
    method = {"name": name, "check_every": 1, "force_first_at": 1, "lanczos_steps": 2, "residual": 1e-6}
    run = edgesim.run(digits_scenario(method={**method, "fallback": "fixed", "fixed_ratio": 0.8}), out=tmp_path / "run")
    noted = run.metrics.groupby("name")["value"].agg(set)
    assert run.manifest["status"] == "finished"
    assert (noted["fallback"], noted["rho"]) == ({1.0}, {0.8})


@pytest.mark.parametrize("keys", ["name='fjord', widths=[0.25, 1]", "name='feddrop', keep=0.5, channels='all'"])
def test_thinner_groups_of_equal_size_can_be_normalised(here: Path, keys: str) -> None:
    """Two and four of eight channels split into two groups."""
    words = ["run", "scenario.toml", "--out", "run", "--quiet", *settings([f"method={{{keys}}}", f"model={GROUPED}"])]
    assert call(*words).code == 0
