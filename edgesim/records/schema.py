"""The tables of a run: every column in order with its type. All that writes or reads a run follows this."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from edgesim.errors import ConfigError

if TYPE_CHECKING:
    import pandas as pd

INT, REAL, TEXT = "int64", "float64", "str"

_CRITICAL = {
    "critical_device": INT,
    "critical_down_s": REAL,
    "critical_compute_s": REAL,
    "critical_up_s": REAL,
    "critical_link_wait_s": REAL,
    "critical_wait_s": REAL,
}
DERIVED = frozenset(_CRITICAL)  # follow from the finished tables: edgesim.analysis.critical_path.attributed

DELIVERED = frozenset({"ok", "partial"})  # outcomes in the jobs table, those of edgesim.contracts: an update to merge

# What closed a round or filled a merge; "other": a protocol from outside that does not say.
CLOSED_BY = ("all", "deadline", "minimum", "enough", "buffer", "other")

# Rounds, versions, jobs and devices count from 0; -1 stands for "none", and device -1 for the server.
TABLES: Mapping[str, Mapping[str, str]] = {
    # One row a job. An aborted job shows the seconds, bytes, FLOPs and joules it really spent. link_wait_s: what others
    # on the links cost of down_s and up_s; wait_s: from download to computing, until messages of peers were there;
    # lacked_s: what it still needed when it was broken off; peer_j: what peers spent on sending to it; link_j: what the
    # network spent on carrying its bytes.
    "jobs": {
        "job": INT,
        "device": INT,
        "round": INT,
        "base_version": INT,
        "task": TEXT,
        "part": TEXT,
        "sent_s": REAL,
        "down_s": REAL,
        "compute_s": REAL,
        "up_s": REAL,
        "link_wait_s": REAL,
        "wait_s": REAL,
        "end_s": REAL,
        "outcome": TEXT,
        "lacked_s": REAL,
        "flops": REAL,
        "down_bytes": INT,
        "up_bytes": INT,
        "down_j": REAL,
        "compute_j": REAL,
        "up_j": REAL,
        "peer_j": REAL,
        "link_j": REAL,
    },
    # One row a closed round; total_*: of fleet, network and server from the start until now_s, jobs in flight included;
    # the others what was spent since the row before. energy_j = active_j + idle_j; participant_j: energy_j without the
    # idle power of devices that were never asked.
    # closed_by: what the server waited for last, one of CLOSED_BY; deadline_s: since the round was sent out, inf: none.
    # critical_*: the device whose job ended last, and the seconds that, with server_s, add up to the round's length.
    "merges": {
        "round": INT,
        "version": INT,
        "start_s": REAL,
        "now_s": REAL,
        "asked": INT,
        "used": INT,
        "late": INT,
        "closed_by": TEXT,
        "deadline_s": REAL,
        "staleness_mean": REAL,
        "server_s": REAL,
        **_CRITICAL,
        "flops": REAL,
        "down_bytes": INT,
        "up_bytes": INT,
        "energy_j": REAL,
        "active_j": REAL,
        "idle_j": REAL,
        "participant_j": REAL,
        "total_flops": REAL,
        "total_down_bytes": INT,
        "total_up_bytes": INT,
        "total_energy_j": REAL,
        "total_active_j": REAL,
        "total_idle_j": REAL,
        "total_participant_j": REAL,
    },
    # One row an evaluation and split. Evaluating takes no simulated time.
    "evals": {
        "round": INT,
        "version": INT,
        "now_s": REAL,
        "split": TEXT,
        "loss": REAL,
        "accuracy": REAL,
        "samples": INT,
    },
    # One row a device over the whole run; bytes are those it received and sent, none for the server.
    "devices": {
        "device": INT,
        "kind": TEXT,
        "level": INT,
        "jobs": INT,
        "ok_jobs": INT,
        "busy_s": REAL,
        "down_bytes": INT,
        "up_bytes": INT,
        "down_j": REAL,
        "compute_j": REAL,
        "up_j": REAL,
        "idle_j": REAL,
        "sleep_j": REAL,
    },
    # What a method had to say about a round.
    "notes": {
        "round": INT,
        "name": TEXT,
        "device": INT,
        "value": REAL,
    },
}


def recorded(table: str) -> dict[str, str]:
    """Return the columns that the rows of a table have while a run goes on, in order with their types."""
    return {name: dtype for name, dtype in TABLES[table].items() if name not in DERIVED}


def conform(table: str, frame: pd.DataFrame, where: str) -> pd.DataFrame:
    """Return the frame with exactly the columns, order and types of a table.

    Raises ConfigError that names `where` and the columns if some are missing.
    """
    columns = TABLES[table]
    missing = [name for name in columns if name not in frame]
    if missing:
        raise ConfigError(f"{where}: table {table!r} lacks {', '.join(missing)}")
    return frame[list(columns)].astype(dict(columns))
