"""What `explain` says of runs of every protocol, and whether "without it" is what a run without it gives."""

import re

import pytest

import edgesim
from edgesim.reports.critical_path import explain
from edgesim.reports.pictures import plot_round
from tests.conftest import timing_scenario
from tests.sizes import thinned

SPEEDS = (1.0, 0.5, 0.25)  # GFLOP/s of devices 0, 1 and 2: a job of 7.3806 GFLOP takes 7.38, 14.8 and 29.5 s


def fleet(speeds):
    return [{"name": f"kind{i}", "cpu": {"flops_per_s": f"{speed} GFLOP/s"}} for i, speed in enumerate(speeds)]


@pytest.fixture
def run(tmp_path):
    """Return a maker of runs of one round that only time, with a device of each of the speeds."""

    def make(speeds=SPEEDS, name="run", **changes):
        return edgesim.run(
            timing_scenario(fleet=fleet(speeds), **{"stop": {"rounds": 1}, **changes}), out=tmp_path / name
        )

    return make


def lines(done, number=1):
    """Return what is said about a round, without the lines of the kinds."""
    return [line for line in explain(done, number).splitlines() if not line.startswith("kind")]


def deadline(seconds, **more):
    return {"name": "deadline", "deadline": f"{seconds} s", **more}


def test_the_last_device_of_a_round_that_waits_for_all(run):
    assert lines(run()) == [
        "Round 1 took 29.5 s; 3 of 3 jobs merged.",
        "All jobs had ended; device 2 (kind2) was the last: compute 29.5 s. "
        "Without it the round would have taken 14.8 s, 14.8 s less (device 1 (kind1)).",
    ]


def test_one_late_device_and_what_it_lacked(run):
    assert lines(run(protocol=deadline(20))) == [
        "Round 1 took 20 s; 2 of 3 jobs merged.",
        "The deadline of 20 s ended it, with 1 job late: device 2 (kind2) lacked 9.52 s after 20 s of computing. "
        "Without it the round would have taken 14.8 s, 5.24 s less (device 1 (kind1)).",
    ]


def test_several_late_devices_are_not_to_blame_one_by_one(run):
    """The case of the report: the deadline ended the round, and taking one device away changes nothing."""
    assert lines(run(protocol=deadline(10))) == [
        "Round 1 took 10 s; 1 of 3 jobs merged.",
        "The deadline of 10 s ended it, with 2 jobs late: device 1 (kind1) lacked 4.76 s after 10 s of computing; "
        "device 2 (kind2) lacked 19.5 s after 10 s of computing. "
        "Without any one of them it would have taken as long.",
    ]


def test_late_devices_that_go_on(run):
    """Devices 1 and 2 are at work at the first deadline; 1 delivers in the second round, 2 is cancelled at its end."""
    done = run(protocol=deadline(10, late="keep"), stop={"rounds": 2})
    told = lines(done)[1]
    assert "device 1 (kind1) lacked 4.76 s" in told and "device 2 (kind2) lacked 19.5 s" in told
    assert lines(done)[2:] == ["2.62 s passed in waiting for the deadline."]


def test_a_deadline_that_is_learnt(run):
    """The first round has none and takes 29.5 s; the median of its jobs, 14.8 s, is that of the second."""
    learnt = {"name": "deadline", "rule": "quantile", "quantile": 0.5}
    done = run(protocol=learnt, stop={"rounds": 2})
    assert done.rounds["closed_by"].tolist() == ["all", "deadline"]
    assert done.rounds["deadline_s"].tolist() == pytest.approx([float("inf"), 14.7612])
    assert lines(done, 2)[1].startswith(
        "The deadline of 14.8 s ended it, with 1 job late: device 2 (kind2) lacked 14.8 s"
    )


def test_the_minimum_of_updates(run):
    assert lines(run(protocol=deadline(5, minimum=2))) == [
        "Round 1 took 14.8 s; 2 of 3 jobs merged.",
        "After its deadline of 5 s it went on for the minimum; device 1 (kind1) was the last: "
        "compute 14.8 s. Next would have been device 2 (kind2), which lacked 14.8 s.",
        "Late: device 2 (kind2) after 14.8 s of computing.",
    ]


def test_the_kth_of_more_than_are_kept(run):
    """Device 0 is cancelled as device 1 brings the second update."""
    done = run(speeds=SPEEDS[::-1], protocol={"name": "over_selection", "keep": 2})
    assert lines(done) == [
        "Round 1 took 14.8 s; 2 of 3 jobs merged.",
        "It had the 2 updates that it keeps; device 1 (kind1) brought the last of them: compute 14.8 s. "
        "Next would have been device 0 (kind0), which lacked 14.8 s.",
        "Late: device 0 (kind0) after 14.8 s of computing.",
    ]
    assert done.rounds["critical_device"].tolist() == [1]


def test_a_full_buffer(run):
    done = run(method="fedbuff", protocol={"name": "buffered", "concurrency": 3, "buffer": 2})
    assert lines(done)[1].startswith("The buffer was full; device 0 (kind0) brought the last update: compute 7.38 s.")


def test_a_tier(run):
    done = run(method={"name": "fedat", "mu": 0.0}, protocol={"name": "tiers", "tiers": 2})
    assert lines(done)[1].startswith("All jobs of a tier had ended; device ")
    assert done.rounds["closed_by"].tolist() == ["tier"] * len(done.rounds)
    assert "Without" not in explain(done, 1)


def test_the_work_of_the_server(run):
    told = lines(run(server={"flops_per_s": "1 MFLOP/s"}))
    assert "Without it the devices would have taken 14.8 s, 14.8 s less" in told[1]
    assert re.fullmatch(r"The server's work took [\d.]+ s\.", told[2])


def test_waiting_for_somebody_to_come(run, tmp_path):
    (tmp_path / "there.csv").write_text("device,start,end\n0,100,1000\n1,100,1000\n2,100,1000\n", encoding="utf-8")
    told = lines(run(availability={"name": "trace", "file": str(tmp_path / "there.csv")}))
    assert told[:2] == ["Round 1 took 2.16 min; 3 of 3 jobs merged.", "Nobody could be asked for the first 100 s."]
    assert "Without" not in told[2] and len(told) == 3


def test_peers_wait_for_each_other(run):
    """Without a device the graph is another, so nothing is said of the round without it."""
    done = run(
        method={"name": "dfedavg", "reuse": 2}, peers="full", selection="all", protocol="sync",
        network={"name": "fixed", "up": "1 Mbit/s", "down": "8 Mbit/s"},
    )  # fmt: skip
    told = lines(done)
    last = done.jobs.loc[done.jobs["end_s"].idxmax(), "device"]
    assert told[1].startswith(f"All jobs had ended; device {last} (kind{last}) was the last:")
    assert "Without" not in told[1] and "Next to end was device" in told[1]
    assert any("passed in waiting for messages of peers" in line for line in told)


def test_shared_links_would_be_faster_without_it(run):
    network = {"name": "shared", "up": "1 Mbit/s", "down": "4 Mbit/s"}
    topology = {"name": "star", "server_up": "1 Mbit/s", "server_down": "1 Mbit/s"}
    told = lines(run(network=network, topology=topology))
    assert "Next to end was device" in told[1] and "Without" not in told[1]


@pytest.mark.parametrize("protocol", ["sync", deadline(100), deadline(20), deadline(15)])
@pytest.mark.parametrize("speeds", thinned([SPEEDS, [0.25, 0.4, 1.0], [0.3, 0.3]], [SPEEDS]))
def test_without_it_is_what_a_run_without_it_takes(run, protocol, speeds):
    """The device that is named is taken out of the fleet, and the scenario run again."""
    told = explain(run(speeds, protocol=protocol), 1)
    found = re.search(r"device (\d)[^.]*[\d.]*.*Without it the round would have taken (as long|[\d.]+ s)", told)
    if found is None:
        assert "Without any one of them it would have taken as long." in told
        return
    rest = [speed for device, speed in enumerate(speeds) if device != int(found[1])]
    again = run(rest, name="again", protocol=protocol).rounds["now_s"].item()
    before = run(speeds, name="before", protocol=protocol).rounds["now_s"].item()
    expected = before if found[2] == "as long" else float(found[2].removesuffix(" s"))
    assert again == pytest.approx(expected, rel=5e-3)  # of three digits


def test_a_line_for_each_kind(run):
    assert [line for line in explain(run(protocol=deadline(20)), 1).splitlines() if line.startswith("kind")] == [
        "kind0: 1 job (1 delivered); mean download 0 s, compute 7.38 s, upload 0 s.",
        "kind1: 1 job (1 delivered); mean download 0 s, compute 14.8 s, upload 0 s.",
        "kind2: 1 job (1 late).",
    ]


def test_the_picture_names_the_deadline(run, tmp_path):
    drawn = plot_round(run(protocol=deadline(10)), 1, tmp_path / "round")[1].read_text()
    assert "Round 1: 10 s, ended by its deadline with 2 late, 1 of 3 merged" in drawn
