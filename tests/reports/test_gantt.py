"""The picture of a round: which bars are drawn, and what is written beside them."""

import math
import re

import pytest

from edgesim.core.errors import ConfigError
from edgesim.reports.figure_numbers import round_bars
from edgesim.reports.pictures import plot_round
from tests.records.written import new_tables, write
from tests.sizes import full


@pytest.fixture
def make_run(tmp_path):
    """Return a maker of runs of two rounds, 0 to 20 s and 20 to 50 s, the second with 2 s of server work.

    Of n devices, device i answers in the second round after 1 + 4 + (3 + i / 4) s, but device 0 is late after 28 s.
    """

    def make(n=3, deadline_s=math.inf, closed_by="all"):
        tables = new_tables()
        price = (1e6, 10, 20, 0, 0.5, 2.0, 1.0, 0.0, 0.0)
        tables["jobs"].append((0, 1, 0, 0, "train", "full", 0.0, 5.0, 8.5, 5.0, 0.0, 0.0, 20.0, "ok", 0.0, *price))
        tables["jobs"].append((1, 0, 1, 1, "train", "full", 20.0, 3.0, 25.0, 0.0, 0.0, 0.0, 48.0, "late", 9.0, *price))
        for i in range(1, n):
            up_s = 3 + i / 4
            tables["jobs"].append(
                (1 + i, i, 1, 1, "train", "full", 20.0, 1.0, 4.0, up_s, 0.0, 0.0, 25 + up_s, "ok", 0.0, *price)
            )
        tables["rounds"].append((0, 1, 0.0, 20.0, 1, 1, 0, closed_by, deadline_s, 0.0, 0.0, *([0] * 14)))
        tables["rounds"].append((1, 2, 20.0, 50.0, n, n - 1, 1, closed_by, deadline_s, 0.0, 2.0, *([0] * 14)))
        for device in range(-1, n):
            tables["devices"].append(
                (device, "Pi" if device else "Nano", 1, 1, 1, 8.0, 10, 20, 1.0, 1.0, 2.0, 0.5, 0.0)
            )
        return write(tmp_path / "run", tables, {"scenario": {}})

    return make


def test_bars_are_seconds_since_the_start_of_the_round(make_run):
    bars = round_bars(make_run(), 2).bars
    assert bars.drop(columns="job").to_numpy().tolist() == [
        [0, "download", 0.0, 3.0, "late"],
        [0, "compute", 3.0, 28.0, "late"],
        [1, "download", 0.0, 1.0, "ok"],
        [1, "compute", 1.0, 5.0, "ok"],
        [1, "upload", 5.0, 8.25, "ok"],
        [2, "download", 0.0, 1.0, "ok"],
        [2, "compute", 1.0, 5.0, "ok"],
        [2, "upload", 5.0, 8.5, "ok"],
    ]


def labels(svg, kind):
    """Return the texts "KIND  device" of a picture in the order of the rows, from the bottom."""
    return [int(line.split(f">{kind}  ")[1].split("<")[0]) for line in svg.splitlines() if f">{kind}  " in line]


def test_what_stands_beside_the_bars(make_run, tmp_path):
    png, svg = plot_round(make_run(deadline_s=40.0), 2, tmp_path / "new" / "round.2")
    assert png.name == "round.2.png" and png.read_bytes()[:4] == b"\x89PNG"
    drawn = svg.read_text()
    assert "Round 2: 30 s, device 0 was the last, 2 of 3 merged" in drawn
    for name in ("download", "compute", "upload", "waiting", "late", "server", "deadline", "end of the round"):
        assert f">{name}<" in drawn
    assert "time since the start of the round (s)" in drawn
    assert (labels(drawn, "Nano"), labels(drawn, "Pi")) == ([0], [1, 2])  # the fastest at the bottom
    assert re.search(r"font(-weight)?: 700.*>Nano  0<", drawn) and not re.search(r"font(-weight)?: 700.*>Pi", drawn)


def test_only_what_there_is_has_a_legend(make_run, tmp_path):
    drawn = plot_round(make_run(), 1, tmp_path / "x")[1].read_text()
    assert "Round 1: 20 s, device 1 was the last, 1 of 1 merged" in drawn
    assert not any(f">{name}" in drawn for name in ("late", "server", "deadline"))


def test_a_round_that_ends_at_its_deadline_has_one_line(make_run, tmp_path):
    drawn = plot_round(make_run(deadline_s=20.0), 1, tmp_path / "x")[1].read_text()
    assert ">end of the round, at its deadline<" in drawn and ">deadline<" not in drawn


def test_nobody_is_blamed_for_a_round_that_its_deadline_ended(make_run, tmp_path):
    """Device 0 was late; then the server needed 2 s."""
    drawn = plot_round(make_run(deadline_s=28.0, closed_by="deadline"), 2, tmp_path / "x")[1].read_text()
    assert "Round 2: 30 s, ended by its deadline with 1 late, 2 of 3 merged" in drawn
    assert ">deadline<" in drawn and ">end of the round<" in drawn
    assert not re.search(r"font(-weight)?: 700.*>(Nano|Pi)", drawn)


@full
def test_of_many_devices_the_slowest_are_drawn(make_run, tmp_path):
    drawn = plot_round(make_run(n=71), 2, tmp_path / "x")[1].read_text()
    assert "11 faster devices not shown" in drawn
    assert labels(drawn, "Pi") + labels(drawn, "Nano") == [*range(12, 71), 0]


def test_the_same_round_is_the_same_file(make_run, tmp_path):
    run = make_run()
    files = [plot_round(run, 2, tmp_path / name)[1].read_bytes() for name in ("x", "y")]
    assert files[0] == files[1]


def test_a_round_that_did_not_close_is_refused(make_run, tmp_path):
    with pytest.raises(ConfigError, match="rounds 1 to 2, found 3"):
        plot_round(make_run(), 3, tmp_path / "x")
