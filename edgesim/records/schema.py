"""The tables of a run: every column in order with its type. All code that writes or reads a run follows it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from edgesim.core.errors import ConfigError
from edgesim.core.job import ONE_SESSION

if TYPE_CHECKING:
    import pandas as pd

INT, REAL, TEXT = "int64", "float64", "str"

_CRITICAL = {
    # device whose job ended last, or the lowest of the devices cut off together. It held up the round unless
    # `closed_by` is `deadline`
    "critical_device": INT,
    # seconds of the round's length in which that device downloaded; with several exchanges, the sum over the last
    # device of each
    "critical_down_s": REAL,
    "critical_compute_s": REAL,  # seconds in which it computed
    "critical_up_s": REAL,  # seconds in which it uploaded
    "critical_link_wait_s": REAL,  # seconds in which it waited for shared links
    # remaining seconds: waits for peers, the deadline or reachable devices; the five and `server_s` add up to the round
    "critical_wait_s": REAL,
}
# Money and carbon from the scenario's section `prices`; 0 without it. Low and high differ if prices are bands.
COSTS = {
    "cost_low": REAL,  # money in the currency of the prices, at low prices
    "cost": REAL,  # money at typical prices
    "cost_high": REAL,  # money at high prices
    "co2e_low_g": REAL,  # grams of CO2 equivalent, at low intensities
    "co2e_g": REAL,  # grams of CO2 equivalent, at typical intensities
    "co2e_high_g": REAL,  # grams of CO2 equivalent, at high intensities
}
_TOTAL_COSTS = {
    "total_cost_low": REAL,  # money since the start, at low prices
    "total_cost": REAL,  # money since the start, at typical prices
    "total_cost_high": REAL,  # money since the start, at high prices
    "total_co2e_low_g": REAL,  # grams of CO2 equivalent since the start, at low intensities
    "total_co2e_g": REAL,  # grams of CO2 equivalent since the start, at typical intensities
    "total_co2e_high_g": REAL,  # grams of CO2 equivalent since the start, at high intensities
}
_SESSION = {
    # name of the training in the scenario; `session1` in a scenario without sections `[[session]]`
    "session": TEXT,
}
DERIVED = frozenset(_CRITICAL)  # columns computed from the finished tables: edgesim.reports.critical_path.attributed

PART_ROWS = 65_536  # of a row group, and of a part: the most rows of a table in memory, about 10 MB of jobs
SERVER_ROW = -1  # the server's device id in the tables; in other columns -1 means none
FIRST_EDGE_ROW = -2  # the device id of the first edge server; the next ones are -3, -4, ...

# Causes that close a round or fill a merge. The documentation's reference of columns is made from the comments here.
CLOSED_BY = (
    "all",  # all jobs had ended
    "deadline",  # the deadline: jobs were late
    "minimum",  # after the deadline, the last of the `minimum` updates, or no job was left that could bring one
    "enough",  # the last of the updates that `over_selection` keeps
    "buffer",  # the update that filled the buffer
    "updates",  # the last of the updates that `gossip` counts as a round
    "tier",  # the last job of a tier of `tiers`
    "other",  # a protocol from outside edgesim that gives no cause
)

# Rounds, versions, jobs and devices count from 0; -1 stands for "none", and device -1 for the server.
TABLES: Mapping[str, Mapping[str, str]] = {
    # One row per job. An aborted job has the seconds, bytes, FLOPs and joules that it spent.
    "jobs": {
        "job": INT,  # number of the job in its session, in the order of requests
        "device": INT,  # device that was asked
        "round": INT,  # rounds that were closed when it was asked
        "base_version": INT,  # global models so far when it was asked, the last of which it starts from; 0 among peers
        # the method's name for the job: `train`, or for example `norm` or `fetch`; `test`: by `evaluation.on_devices`
        "task": TEXT,
        "submodel": TEXT,  # the part of the model that it trains, in the method's words, or `full`
        "sent_s": REAL,  # when it was asked
        # seconds of the download: latency and transfer; among peers, of fetching the messages that are already there
        "down_s": REAL,
        "compute_s": REAL,  # seconds of computing, slow-downs included
        "up_s": REAL,  # seconds of the upload; 0 among peers, where it counts as the receiver's download
        "link_wait_s": REAL,  # seconds of `down_s` and `up_s` lost to other traffic on shared links
        # seconds between download and computing, until fresh messages of peers had arrived, their transfer included
        "wait_s": REAL,
        "end_s": REAL,  # when it ended: `sent_s` plus the seconds above without `link_wait_s`
        "outcome": TEXT,  # how it ended, see below
        # seconds that a job that was broken off still needed, undisturbed and alone on shared links; else 0
        "lacked_s": REAL,
        "flops": REAL,  # FLOPs computed
        "down_bytes": INT,  # bytes received; among peers, of all messages fetched
        # bytes that the device sent to the server, or to its peer in a trade of models; else 0 among peers
        "up_bytes": INT,
        "peer_bytes": INT,  # bytes of `down_bytes` that peers sent to it; 0 for a job of the server
        "down_j": REAL,  # joules of the device's radio for receiving
        "compute_j": REAL,  # joules of computing
        "up_j": REAL,  # joules of the device's radio for sending `up_bytes`; see `peer_j`
        "peer_j": REAL,  # joules of peers for sending to it, and in a trade of models for receiving from it
        "link_j": REAL,  # joules of the network for carrying its bytes
        "edge": INT,  # the edge server that asked; -1: the server itself
        **_SESSION,
    },
    # One row per closed round. Columns total_* count from the start until now_s, jobs in flight included. The others
    # count from the row before. Joules are in three accounts, none of which contains another: `energy_j` (devices),
    # `energy_network_j` and `energy_server_j`. energy_j = active_j + idle_j.
    # critical_*: the device whose job ended last, and the seconds that, with server_s, add up to the round's length.
    "rounds": {
        "round": INT,  # number of the round
        "version": INT,  # global models after it, unchanged if nothing was merged; among peers the number of rounds
        "start_s": REAL,  # when the round before was closed
        "now_s": REAL,  # when it was closed, the server's work included
        "asked": INT,  # jobs that ended in it
        "used": INT,  # jobs of these that were merged
        "late": INT,  # jobs of these with the outcome `late`
        "closed_by": TEXT,  # last thing that the server waited for, see below
        # the round's deadline, fixed or learnt, in seconds after the round was sent out; `inf`: none
        "deadline_s": REAL,
        "staleness_mean": REAL,  # mean over merged jobs of the global models made between request and merge
        "server_s": REAL,  # seconds of the server's work on the merge, and of the framework
        **_CRITICAL,
        "flops": REAL,  # FLOPs of devices since the row before, as all columns down to `energy_server_j`
        "down_bytes": INT,  # bytes to devices
        "up_bytes": INT,  # bytes that devices sent: `up_bytes` and `peer_bytes` of jobs
        "energy_j": REAL,  # joules of the devices, idle power included
        "active_j": REAL,  # joules of these that jobs added to idle power
        "idle_j": REAL,  # the other joules: idle and sleeping power of the devices
        "participant_j": REAL,  # joules of the devices without idle and sleeping power of devices never asked so far
        "energy_network_j": REAL,  # joules of the network for carrying bytes (`network.energy_per_bit`)
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
    # One row per evaluation and split. Evaluating takes no simulated time.
    "evals": {
        "round": INT,  # round after which the model was tested
        "version": INT,  # version of the model
        "now_s": REAL,  # when it was tested
        "split": TEXT,  # data on which it was tested
        "loss": REAL,  # mean cross-entropy
        "accuracy": REAL,  # share of correct answers
        "samples": INT,  # test samples; for personal splits the sum over devices
        **_SESSION,
    },
    # One row per device over the whole run. Bytes are those received and sent; the server has none.
    "devices": {
        "device": INT,  # id of the device; -2, -3, ...: edge servers, then the servers of the tiers above them
        "kind": TEXT,  # name of its fleet block, `edge`, `tier2` (servers that ask edge servers), ..., or `server`
        "level": INT,  # the scenario's capability label
        "jobs": INT,  # jobs that it was asked to do
        "ok_jobs": INT,  # jobs of these with the outcome `ok` or `partial`
        "busy_s": REAL,  # seconds of downloading, computing and uploading
        "down_bytes": INT,  # bytes received; not counted for the server
        "up_bytes": INT,  # bytes sent, to peers too
        "down_j": REAL,  # joules of receiving
        "compute_j": REAL,  # joules of computing; for the server, of its work on merges
        "up_j": REAL,  # joules of sending, to peers too
        "idle_j": REAL,  # joules of idle power while it was neither off nor asleep
        # joules while it was unreachable and slept; 0 for a device without sleeping power of its own, which idles
        "sleep_j": REAL,
        **COSTS,  # for the device's electricity, data, hours and jobs; for the server, its electricity and hours
    },
    # Metrics that a method reports about a round.
    "metrics": {
        "round": INT,  # number of the round
        "name": TEXT,  # name of the metric
        "device": INT,  # device of the value; -1 for a value of the whole round
        "value": REAL,  # value of the metric
        **_SESSION,
    },
    # Money and carbon by item: one row per item and closed round, counted from the row before; none without prices.
    "costs": {
        "round": INT,  # number of the round; -1: after the last closed one
        "item": TEXT,  # item of spending, see below
        **COSTS,
        **_SESSION,
    },
    # One row per order to an edge server to take a model, train it over its devices and send it back. Servers of tiers
    # above get orders too, and train the model over the servers below them.
    "edges": {
        "order": INT,  # number of the order, in the order of requests
        "edge": INT,  # number of the edge server; servers of tiers above have the next numbers
        "tier": INT,  # tier of this server: 1 for edge servers, 2 for the servers that ask them, and so on
        "asked_by": INT,  # number of the server of the tier above that asked; -1: the server itself
        "round": INT,  # rounds of the server itself that were closed when it was asked
        "base_version": INT,  # models of the server that asked so far, the last of which it starts from
        "sent_s": REAL,  # when it was asked
        "down_s": REAL,  # seconds until it had the model: latency and transfer
        "work_s": REAL,  # seconds of its rounds, and of its own work on them
        "up_s": REAL,  # seconds of the upload
        "link_wait_s": REAL,  # seconds of `down_s` and `up_s` lost to other traffic on shared links
        "end_s": REAL,  # when the order ended
        "outcome": TEXT,  # how it ended, as for a job
        "rounds": INT,  # rounds that it closed
        "asked": INT,  # jobs of devices that ended in them
        "used": INT,  # jobs of these that were merged
        "late": INT,  # jobs of these with the outcome `late`
        "samples": INT,  # training samples behind the merged updates: the weight of its model
        "server_s": REAL,  # seconds of `work_s` for its own work on merges
        "down_bytes": INT,  # bytes that it received
        "up_bytes": INT,  # bytes that it sent
        "link_j": REAL,  # joules of its links for carrying these bytes
        **_SESSION,
    },
}

# Tables and columns that runs of earlier versions lack, as they had no prices, no edge servers and one training. The
# tables are then empty, and the columns have these values.
LATER_TABLES = frozenset({"costs", "edges"})
LATER_COLUMNS: Mapping[str, float | str] = {
    **dict.fromkeys(COSTS | _TOTAL_COSTS, 0.0),
    "edge": -1,
    "tier": 1,
    "asked_by": -1,
    **dict.fromkeys(_SESSION, ONE_SESSION),
}


def recorded(table: str) -> dict[str, str]:
    """Return the columns that a table has while the run is running, in order with their types."""
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
    """Return the frame with these types. Only columns of another type are converted, as each conversion takes time."""
    found = frame.dtypes
    other = {name: dtype for name, dtype in columns.items() if found[name] != dtype}
    if not other:
        return frame
    converted = frame[list(other)].astype(other)  # astype of the whole frame would copy every column
    return frame.assign(**{str(name): column for name, column in converted.items()})
