"""The tables of a run: every column in order with its type. All that writes or reads a run follows this."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from edgesim.core.errors import ConfigError
from edgesim.core.job import ONE_SESSION

if TYPE_CHECKING:
    import pandas as pd

INT, REAL, TEXT = "int64", "float64", "str"

_CRITICAL = {
    # whose job ended last; of jobs cut off together the lowest. It decided how long the round took unless
    # `closed_by` is `deadline`
    "critical_device": INT,
    # of the round's length, the seconds in which that device downloaded; with several exchanges those of each
    "critical_down_s": REAL,
    "critical_compute_s": REAL,  # the seconds in which it computed
    "critical_up_s": REAL,  # the seconds in which it uploaded
    "critical_link_wait_s": REAL,  # the seconds in which it waited for shared links
    # all else: waits for peers, for the deadline, for devices to be there; the five and `server_s` are the round
    "critical_wait_s": REAL,
}
# Money and carbon by the scenario's section `prices`; 0 without it. Low and high differ where prices are bands.
COSTS = {
    "cost_low": REAL,  # in the currency of the prices, all of them low
    "cost": REAL,  # all of them typical
    "cost_high": REAL,  # all of them high
    "co2e_low_g": REAL,  # grams of CO2 equivalent, all intensities low
    "co2e_g": REAL,  # all of them typical
    "co2e_high_g": REAL,  # all of them high
}
_TOTAL_COSTS = {
    "total_cost_low": REAL,  # money since the start, all prices low
    "total_cost": REAL,  # all of them typical
    "total_cost_high": REAL,  # all of them high
    "total_co2e_low_g": REAL,  # grams of CO2 equivalent since the start, all intensities low
    "total_co2e_g": REAL,  # all of them typical
    "total_co2e_high_g": REAL,  # all of them high
}
_SESSION = {
    # of which training: its name in the scenario, `session1` of a scenario without sections `[[session]]`
    "session": TEXT,
}
DERIVED = frozenset(_CRITICAL)  # follow from the finished tables: edgesim.reports.critical_path.attributed

SERVER_ROW = -1  # the server's device id in the tables; in other columns -1 is nobody
FIRST_EDGE_ROW = -2  # that of the first edge server; those of the others lie below

# What closed a round or filled a merge. The comments of this file are the reference of columns in the documentation.
CLOSED_BY = (
    "all",  # all jobs had ended
    "deadline",  # the deadline: jobs were late
    "minimum",  # after the deadline, the last of the `minimum` updates, or that no job was left that could bring it
    "enough",  # the last of the updates that `over_selection` keeps
    "buffer",  # the update that filled the buffer
    "updates",  # the last of the updates that `gossip` calls a round
    "other",  # a protocol from outside that does not say
)

# Rounds, versions, jobs and devices count from 0; -1 stands for "none", and device -1 for the server.
TABLES: Mapping[str, Mapping[str, str]] = {
    # One row a job. An aborted job shows the seconds, bytes, FLOPs and joules it really spent.
    "jobs": {
        "job": INT,  # number of the job in its session, in the order of asking
        "device": INT,  # who was asked
        "round": INT,  # rounds that were closed when it was asked
        "base_version": INT,  # global models so far when it was asked: that which it starts from; 0 among peers
        "task": TEXT,  # what the method calls it: `train`, or such as `norm`, `fetch`
        "submodel": TEXT,  # which part of the model it trains, in the method's words; `full`
        "sent_s": REAL,  # when it was asked
        # seconds of the download: latency and transfer; among peers of fetching the messages that are there already
        "down_s": REAL,
        "compute_s": REAL,  # seconds of computing, with slow-downs
        "up_s": REAL,  # seconds of the upload; 0 among peers, where it is the other's download
        "link_wait_s": REAL,  # of `down_s` and `up_s`, what others on shared links cost
        # between download and computing, until fresh messages of peers were there, their transfer included
        "wait_s": REAL,
        "end_s": REAL,  # when it ended: `sent_s` and the seconds above but `link_wait_s`
        "outcome": TEXT,  # how, see below
        # if it was broken off, the seconds that it still needed, had nothing happened to it; over shared links with
        # them to itself; else 0
        "lacked_s": REAL,
        "flops": REAL,  # FLOPs computed
        "down_bytes": INT,  # bytes received; among peers of all messages fetched
        # bytes that the device sent to the server in this job, or in a trade of models to its peer; else 0 among peers
        "up_bytes": INT,
        "peer_bytes": INT,  # of `down_bytes`, those that peers sent to it; 0 of a job of the server
        "down_j": REAL,  # joules of the device's radio in receiving
        "compute_j": REAL,  # joules of computing
        "up_j": REAL,  # joules of the device's radio in sending that; see `peer_j`
        "peer_j": REAL,  # joules of peers in sending to it, and in a trade of models in receiving from it
        "link_j": REAL,  # joules of the network in carrying its bytes
        "edge": INT,  # the edge server that asked; -1: the server itself
        **_SESSION,
    },
    # One row a closed round; total_*: from the start until now_s, jobs in flight included; the others what was spent
    # since the row before. Joules stand in three accounts, of which none contains another: `energy_j` (devices),
    # `energy_network_j` and `energy_server_j`. energy_j = active_j + idle_j.
    # critical_*: the device whose job ended last, and the seconds that, with server_s, add up to the round's length.
    "rounds": {
        "round": INT,  # number of the round
        "version": INT,  # global models after it, unchanged if nothing was merged; among peers rounds
        "start_s": REAL,  # when the one before was closed
        "now_s": REAL,  # when it was closed, the server's work included
        "asked": INT,  # jobs that ended in it
        "used": INT,  # of these, those that were merged
        "late": INT,  # of these, those with the outcome `late`
        "closed_by": TEXT,  # what the server waited for last, see below
        # the round's deadline, fixed or learnt, in seconds since the round was sent out; `inf`: none
        "deadline_s": REAL,
        "staleness_mean": REAL,  # of the merged: global models between being asked and being taken
        "server_s": REAL,  # seconds of the server's work on the merge
        **_CRITICAL,
        "flops": REAL,  # FLOPs of devices, since the row before, as all down to `energy_server_j`
        "down_bytes": INT,  # bytes to devices
        "up_bytes": INT,  # bytes that devices sent: `up_bytes` and `peer_bytes` of jobs
        "energy_j": REAL,  # joules of the devices, idle power included
        "active_j": REAL,  # of these, what jobs added to idle power
        "idle_j": REAL,  # the others: idle and sleeping power of the devices
        "participant_j": REAL,  # joules of the devices without idle and sleeping power of those never asked so far
        "energy_network_j": REAL,  # joules of the network in carrying bytes (`network.energy_per_bit`)
        "energy_server_j": REAL,  # joules of the server and of edge servers, idle power included
        "total_flops": REAL,  # the same since the start
        "total_down_bytes": INT,  # the same since the start
        "total_up_bytes": INT,  # the same since the start
        "total_energy_j": REAL,  # the same since the start
        "total_active_j": REAL,  # the same since the start
        "total_idle_j": REAL,  # the same since the start
        "total_participant_j": REAL,  # the same since the start
        "total_energy_network_j": REAL,  # the same since the start
        "total_energy_server_j": REAL,  # the same since the start
        **_TOTAL_COSTS,
        **_SESSION,
    },
    # One row an evaluation and split. Evaluating takes no simulated time.
    "evals": {
        "round": INT,  # round after which it was tested
        "version": INT,  # model that was tested
        "now_s": REAL,  # when
        "split": TEXT,  # on what
        "loss": REAL,  # mean cross-entropy
        "accuracy": REAL,  # share of right answers
        "samples": INT,  # test samples; of personal splits the sum over devices
        **_SESSION,
    },
    # One row a device over the whole run; bytes are those it received and sent, none for the server.
    "devices": {
        "device": INT,  # which; -2, -3, ...: edge servers
        "kind": TEXT,  # name of its fleet block; `edge`, `server`
        "level": INT,  # the scenario's capability label
        "jobs": INT,  # jobs that it was asked to do
        "ok_jobs": INT,  # of these, those with the outcome `ok` or `partial`
        "busy_s": REAL,  # seconds of downloading, computing and uploading
        "down_bytes": INT,  # bytes received; the server's are not counted
        "up_bytes": INT,  # bytes sent, to peers too
        "down_j": REAL,  # joules of receiving
        "compute_j": REAL,  # joules of computing; of the server, its work on merges
        "up_j": REAL,  # joules of sending, to peers too
        "idle_j": REAL,  # joules of idle power, all the time that it was neither off nor asleep
        # joules while it could not be reached and slept; 0 of a device without sleeping power of its own, which idles
        "sleep_j": REAL,
        **COSTS,  # of the device's electricity, data, hours and jobs; of the server, its electricity and hours
    },
    # What a method had to say about a round.
    "metrics": {
        "round": INT,  # round
        "name": TEXT,  # what
        "device": INT,  # whose; -1 for a number of the whole round
        "value": REAL,  # how much
        **_SESSION,
    },
    # What money and carbon went to: one row an item and closed round, of all since the row before; none without prices.
    "costs": {
        "round": INT,  # number of the round; -1: after the last closed one
        "item": TEXT,  # on what, see below
        **COSTS,
        **_SESSION,
    },
    # One row an order of the server to an edge server: to take its model, train it over its devices, and send it back.
    "edges": {
        "order": INT,  # number of the order, in the order of asking
        "edge": INT,  # which edge server
        "round": INT,  # rounds that were closed when it was asked
        "base_version": INT,  # global models so far when it was asked
        "sent_s": REAL,  # when it was asked
        "down_s": REAL,  # seconds until it had the model: latency and transfer
        "work_s": REAL,  # seconds of its rounds, and of its own work on them
        "up_s": REAL,  # seconds of the upload
        "link_wait_s": REAL,  # of `down_s` and `up_s`, what others on shared links cost
        "end_s": REAL,  # when the order ended
        "outcome": TEXT,  # how, as that of a job
        "rounds": INT,  # rounds that it closed
        "asked": INT,  # jobs of devices that ended in them
        "used": INT,  # of these, those that were merged
        "late": INT,  # of these, those with the outcome `late`
        "samples": INT,  # training samples behind the merged updates: what its model counts
        "server_s": REAL,  # of `work_s`, seconds of its own work on merges
        "down_bytes": INT,  # bytes that it received
        "up_bytes": INT,  # bytes that it sent
        "link_j": REAL,  # joules of its links in carrying these
        **_SESSION,
    },
}

# What runs of earlier versions lack: they knew neither prices nor edge servers, and had one training. These tables are
# empty, and columns have these values.
LATER_TABLES = frozenset({"costs", "edges"})
LATER_COLUMNS: Mapping[str, float | str] = {
    **dict.fromkeys(COSTS | _TOTAL_COSTS, 0.0),
    "edge": -1,
    **dict.fromkeys(_SESSION, ONE_SESSION),
}


def recorded(table: str) -> dict[str, str]:
    """Return the columns that the rows of a table have while a run goes on, in order with their types."""
    return {name: dtype for name, dtype in TABLES[table].items() if name not in DERIVED and name not in _SESSION}


def conform(table: str, frame: pd.DataFrame, where: str) -> pd.DataFrame:
    """Return the frame with exactly the columns, order and types of a table.

    Raises ConfigError that names `where` and the columns if some are missing.
    """
    columns = TABLES[table]
    frame = frame.assign(
        **{name: LATER_COLUMNS[name] for name in columns if name in LATER_COLUMNS and name not in frame}
    )
    missing = [name for name in columns if name not in frame]
    if missing:
        raise ConfigError(
            f"{where}: table {table!r} lacks {', '.join(missing)}; if an earlier version wrote the run, run it again"
        )
    return typed(frame[list(columns)], columns)


def typed(frame: pd.DataFrame, columns: Mapping[str, str]) -> pd.DataFrame:
    """Return the frame with these types; only columns of another one are converted, as that takes its time for each."""
    found = frame.dtypes
    other = {name: dtype for name, dtype in columns.items() if found[name] != dtype}
    return frame.astype(other) if other else frame  # astype copies every column, whatever it converts
