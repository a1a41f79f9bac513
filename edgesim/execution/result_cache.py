"""Cached results of earlier runs by identity, so that no run computes the same value twice.

Runs of one folder share an SQLite file of answers, with the weights in safetensors files beside it.
"""

from __future__ import annotations

import fcntl
import io
import os
import shutil
import sqlite3
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from copy import copy
from functools import partial
from math import inf
from pathlib import Path
from typing import IO, Any, NamedTuple, Protocol

import numpy as np
from safetensors import SafetensorError

from edgesim.core.errors import ConfigError, DataError
from edgesim.core.method import Method
from edgesim.execution.checkpoint import Checkpoint, Saved, records_of
from edgesim.execution.graph import Graph, Node
from edgesim.execution.identity import Digests
from edgesim.execution.memo import FOLDER, Memo
from edgesim.execution.serialization import Records, read_tree, write_tree
from edgesim.files.atomic import growing_file
from edgesim.files.reading import check_regular, in_short
from edgesim.files.user_cache import warn_once

ROWS = "answers.sqlite"
_COLUMNS = "answers (id blob primary key, answer blob)"
_NAME = "name"
_GENERATION = b"generation of "
_SNAPSHOTS = "snapshots"
_MOST_ANSWER_BYTES = 2**20
_MOST_BYTES = 2**29  # of a snapshot, as the states of many devices could fill the disk
_WEIGHTS = "weights"
_MOST_STEPS = 10**8  # of SQLite for one statement, some seconds: pages of a forged file may form an endless loop
_PATIENCE_S = 60.0  # longest wait for other processes that write
_DAMAGES = (OSError, DataError, SafetensorError, ValueError, LookupError, TypeError, AttributeError, RuntimeError)


class AnswersHeld(NamedTuple):
    """Contents of a folder of answers: counts, and total size in bytes."""

    answers: int
    models: int
    snapshots: int
    nbytes: int


class ByteRows(Protocol):
    """Rows of bytes by identity."""

    def get(self, id_: bytes) -> bytes | None:
        """Return a row, None if there is none. Raises ConfigError if they cannot be used."""

    def put(self, id_: bytes, row: bytes) -> None:
        """Keep a row. Raises ConfigError if it cannot be written."""

    def close(self) -> None:
        """Release the rows. May be called twice."""


class Answers:
    """Answers by identity, shared by all processes that use the folder; a killed process leaves it intact.

    They save time and are never needed: a damaged answer is computed again, and one that cannot be written is dropped.
    A line on stderr reports it.
    """

    def __init__(self, folder: Path, reads: bool = True, rows: ByteRows | None = None) -> None:
        """Use the answers of the runs in a folder, created with the first one. `reads` False: they are replaced.

        `rows`: store of small answers; None: an SQLite file of the folder, which only processes of one machine may use.
        """
        self.folder = folder / FOLDER
        self._reads = reads
        self._writes = True
        self._rows = FileRows(self.folder / ROWS) if rows is None else rows
        self._records = records_of(None)
        self._facts: bytes | None = None  # facts whose generation is not looked up yet
        self._generation = b""  # part of the name of each answer

    def of(self, facts: bytes) -> Answers:
        """Return the answers of runs with equal facts, as of the newest run that did not read them.

        Such a run starts a generation, and stores all its results under the generation's name. Starting it is one
        write, so no run finds an answer from before it, wherever a process is killed. A run that finds no generation
        finds no answers. The generation starts when the first answer is asked for or stored, so a run that is refused
        before leaves nothing.
        """
        same = copy(self)
        same._facts = facts
        return same

    def get(self, id_: bytes) -> Any:
        """Return the answer of an identity, None if there is none that can be read."""
        name = self._name(id_)
        try:
            row = self._rows.get(name) if self._reads else None
        except ConfigError as error:
            self._reads = self._writes = False
            warn_once(f"{error}; this run computes everything, and keeps nothing for later ones", self.folder)
            return None
        return None if row is None else self._part(row, name, "answer", self._records, self.folder / ROWS)

    def put(self, id_: bytes, answer: Any) -> None:
        """Store an answer, unless it is large or of a type that no file can hold."""
        name = self._name(id_)
        row = _sealed(name, {"answer": answer}, self._records, _MOST_ANSWER_BYTES)
        if row is not None:
            self._keep(self._rows.put, name, row)

    def has_weights(self, id_: bytes | None) -> bool:
        """Return True if the arrays of a model were stored and can be read."""
        return self.weights(id_) is not None

    def weights(self, id_: bytes | None) -> dict[str, np.ndarray] | None:
        """Return the arrays of a model by name, None if they were not stored or cannot be read."""
        assert id_ is not None
        weights: dict[str, np.ndarray] | None = self._part_of_file(id_, _WEIGHTS, "weights", self._records)
        return weights

    def put_weights(self, id_: bytes | None, arrays: Mapping[str, np.ndarray]) -> None:
        """Keep the arrays of a model."""
        assert id_ is not None
        self._put_file(id_, _WEIGHTS, {"weights": dict(arrays)}, self._records, inf)

    def snapshot(self, id_: bytes, method: Method) -> Mapping[bytes, Any] | None:
        """Return the values stored when a node was computed, by identity, read at the first access.

        None if they were not stored or cannot be read.
        """
        records = records_of(method)
        names = self._part_of_file(id_, _SNAPSHOTS, "names", records)
        return None if names is None else _Values(self._path(id_, _SNAPSHOTS), records, names)

    def put_snapshot(self, id_: bytes, values: Mapping[bytes, Any], method: Method) -> None:
        """Store values, unless they are very large or of a type that no file can hold."""
        parts = {"names": [value_id.hex() for value_id in values], "values": list(values.values())}
        self._put_file(id_, _SNAPSHOTS, parts, records_of(method), _MOST_BYTES)

    def remove_snapshot(self, id_: bytes) -> None:
        """Delete a snapshot."""
        with suppress(OSError):  # a file that cannot be removed does no harm
            self._path(id_, _SNAPSHOTS).unlink(missing_ok=True)

    def held(self) -> AnswersHeld:
        """Return the number of answers, models and snapshots, and their size."""
        with closing(FileRows(self.folder / ROWS)) as rows:
            answers = rows.count() if (self.folder / ROWS).exists() else 0
        nbytes: dict[Path, int] = {}
        for path in self.folder.rglob("*"):
            with suppress(FileNotFoundError):  # SQLite removes its own files, and runs remove old snapshots
                if path.is_file():
                    nbytes[path] = path.stat().st_size
        models, snapshots = (sum(path.parent.name == kind for path in nbytes) for kind in (_WEIGHTS, _SNAPSHOTS))
        return AnswersHeld(answers, models, snapshots, sum(nbytes.values()))

    def remove(self) -> None:
        """Remove the folder."""
        self.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    def close(self) -> None:
        """Close the file. May be called twice."""
        self._rows.close()

    def _name(self, id_: bytes) -> bytes:
        """Return the name of an answer in its generation."""
        if self._facts is not None:
            name, self._facts = _GENERATION + self._facts, None
            generation = self.get(name)
            if generation is None:
                generation = os.urandom(16)
                self.put(name, generation)
            self._generation = generation
        return self._generation + id_

    def _path(self, id_: bytes, kind: str) -> Path:
        return self.folder / kind / f"{self._name(id_).hex()}.safetensors"

    def _put_file(self, id_: bytes, kind: str, parts: Mapping[str, Any], records: Records, most_bytes: float) -> None:
        content = _sealed(self._name(id_), parts, records, most_bytes)
        if content is not None:
            self._keep(_write, self._path(id_, kind), content)

    def _part_of_file(self, id_: bytes, kind: str, part: str, records: Records) -> Any:
        path = self._path(id_, kind)
        found = self._reads and os.access(path, os.F_OK)  # False also where permission is missing
        return self._part(path, self._name(id_), part, records, path) if found else None

    def _part(self, source: Path | bytes, name: bytes, part: str, records: Records, file: Path) -> Any:
        """Return a part of the content sealed under a name, None if it is damaged; `file`: its path for the warning."""
        try:
            found, value = read_tree(source, records, _NAME, part)
            if found != name.hex():
                raise ValueError("it belongs to another name")
        except _DAMAGES as error:
            warn_once(f"{file}: is damaged; what it held is computed again: {in_short(error)}")
            return None
        return value

    def _keep(self, put: Callable[..., None], *what: Any) -> None:
        """Write something, unless a write has failed before in this run."""
        if self._writes:
            try:
                put(*what)
            except ConfigError as error:
                self._writes = False
                warn_once(f"{error}; this run goes on, and keeps nothing more for later ones", self.folder)


class FileRows:
    """Rows in an SQLite file, created with the first row. Only processes of one machine may use it at a time."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._opened: sqlite3.Connection | None = None

    def get(self, id_: bytes) -> bytes | None:
        """Return a row, None if there is none. Raises ConfigError if the file cannot be used."""
        if self._opened is None and not os.access(self._file, os.F_OK):
            return None
        found = self._first("select answer from answers where id = ?", id_)
        return None if found is None else found[0]

    def put(self, id_: bytes, row: bytes) -> None:
        """Keep a row. Raises ConfigError if it cannot be written."""
        self._first("insert or replace into answers values (?, ?)", id_, row)

    def close(self) -> None:
        """Close the file. May be called twice."""
        if self._opened is not None:
            self._opened.close()
            self._opened = None

    def count(self) -> int:
        """Return the number of answers."""
        counted = self._first("select count(*) from answers where instr(id, ?) != 1", _GENERATION)
        return counted[0] if counted else 0

    def _first(self, statement: str, *values: Any) -> Any:
        """Return the first row that a statement gives, None if it gives none."""
        try:
            if self._opened is None:
                self._opened = self._open()
            return self._opened.execute(statement, values).fetchone()
        except sqlite3.Error as error:
            raise ConfigError(f"{self._file}: cannot be used; remove it to begin anew: {error}") from error

    def _open(self) -> sqlite3.Connection:
        folder, log = self._file.parent, self._file.with_name(f"{self._file.name}-wal")
        for own in (self._file, log, *(log.with_name(f"{self._file.name}-{end}") for end in ("shm", "journal"))):
            if os.access(own, os.F_OK):  # SQLite would block on a named pipe
                check_regular(own, ConfigError)
        if os.access(self._file, os.F_OK) and not os.access(folder, os.W_OK, effective_ids=True) and not log.exists():
            # SQLite needs to write its log to read a file, unless the file is declared immutable
            uri = f"{self._file.absolute().as_uri()}?immutable=1"
            return self._checked(_connected(uri, uri=True))
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(f"{folder}: cannot be made: {error.strerror}") from error
        for growing in folder.rglob(growing_file(Path("*")).name):  # of writers that were killed
            if not growing.is_file():  # opening a named pipe would block
                continue
            with suppress(OSError), growing.open("ab") as file:
                if _is_ours(file, growing):
                    growing.unlink()
        connection = _connected(self._file)
        connection.execute("pragma trusted_schema = off")  # no code in the file is run
        connection.execute(f"create table if not exists {_COLUMNS}")
        self._checked(connection)
        with suppress(sqlite3.OperationalError):  # another process is doing so now
            connection.execute("pragma journal_mode = wal")  # many readers and one writer, intact after a kill
        connection.execute("pragma synchronous = normal")
        return connection

    def _checked(self, connection: sqlite3.Connection) -> sqlite3.Connection:
        """Return the connection. Raises ConfigError unless the file holds only the table of answers.

        A view or a trigger may never end.
        """
        found = connection.execute("select sql from sqlite_master where sql is not null limit 2").fetchall()
        if found != [(f"CREATE TABLE {_COLUMNS}",)]:
            raise ConfigError(f"{self._file}: holds more or other than answers; remove it to begin anew")
        return connection


class _Values(Mapping[bytes, Any]):
    """The values of a snapshot; the file is read at the first access."""

    def __init__(self, path: Path, records: Records, names: Sequence[str]) -> None:
        self._path = path
        self._records = records
        self._names = {bytes.fromhex(name) for name in names}
        self._read: dict[bytes, Any] | None = None

    def __getitem__(self, id_: bytes) -> Any:
        if self._read is None:
            try:
                names, values = read_tree(self._path, self._records, "names", "values")
            except _DAMAGES as error:  # since its names were read
                raise DataError(f"{self._path}: cannot be read; remove it: {in_short(error)}") from error
            self._read = dict(zip(map(bytes.fromhex, names), values, strict=True))
        return self._read[id_]

    def __contains__(self, id_: object) -> bool:
        return id_ in self._names

    def __iter__(self) -> Iterator[bytes]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


def _sealed(name: bytes, parts: Mapping[str, Any], records: Records, most_bytes: float) -> bytes | None:
    """Return the bytes of a file with parts and their name, None if they are too large or of an unknown type."""
    file = io.BytesIO()
    try:
        write_tree(file, {_NAME: name.hex(), **parts}, records, most_bytes=most_bytes)
    except (TypeError, OverflowError):
        return None
    return file.getvalue()


def _write(path: Path, content: bytes) -> None:
    """Write a file, unless another process is writing it now: the content would be the same."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        growing = growing_file(path)
        if growing.exists():
            check_regular(growing, ConfigError)
        with growing.open("ab") as file:
            if not _is_ours(file, growing):
                return
            try:
                file.truncate(0)  # drop the bytes of a process that was killed
                file.write(content)
                file.flush()
                growing.replace(path)
            except BaseException:
                growing.unlink(missing_ok=True)
                raise
    except OSError as error:
        raise ConfigError(f"{path}: cannot be written: {error}") from error


def _is_ours(file: IO[bytes], growing: Path) -> bool:
    """Lock a temporary file; return False if another process is writing it or has renamed it."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # until it is closed, or its process dies
        return os.path.samestat(os.fstat(file.fileno()), growing.stat())
    except (BlockingIOError, FileNotFoundError):
        return False


def _connected(file: Path | str, uri: bool = False) -> sqlite3.Connection:
    connection = sqlite3.connect(file, timeout=_PATIENCE_S, isolation_level=None, uri=uri)
    connection.set_progress_handler(lambda: True, _MOST_STEPS)
    return connection


SNAPSHOT_S = 60.0
_MOST_SNAPSHOTS = 8


class SavedMemo(Memo):
    """Answers of earlier runs and of this run, and the values saved in its checkpoint.

    `facts`: the hash of everything that learning depends on beside the graph, see edgesim.runs.cache_identity. It is
    part of every identity. `world`: the hash of the whole scenario. `answers`: the cache of all runs of a folder, with
    snapshots of values as often as the checkpoint is saved, or once a minute. `checkpoint`: the file in which this run
    is saved, or from which it continues.
    """

    keeps = True

    def __init__(
        self,
        facts: bytes,
        world: bytes,
        method: Method,
        answers: Answers | None,
        checkpoint: Checkpoint | None,
    ) -> None:
        """Load the checkpoint. Raises ConfigError or DataError if it does not fit or cannot be read."""
        super().__init__()
        saved = checkpoint.load(method) if checkpoint else None
        self._facts = facts
        self._world = world
        self._digests = Digests()
        self._answers = answers and answers.of(facts)
        self._checkpoint = checkpoint
        self._told: dict[bytes, Any] = {}  # all answers of this run, for its checkpoint
        self._saved: Mapping[bytes, Any] = saved.answers if saved else {}
        self._values: Mapping[bytes, Any] = saved.values if saved else {}
        self.repeats = saved is not None
        self.host_s = saved.host_s if saved else 0.0
        self._started_s = self._looked_s = self._kept_s = time.perf_counter()
        self._snapshot_s = checkpoint.every_s if checkpoint else SNAPSHOT_S
        self._snapshots: list[bytes] = []  # of this run

    def name(self, *parts: Any) -> bytes:
        """Return the identity of a value made from these parts and the facts."""
        try:
            return self._digests.of(self._facts, *parts)
        except TypeError:  # such as an object of a method's own class: its identity equals no other
            return os.urandom(16)

    def name_of_plan(self, *parts: Any) -> bytes:
        """Return the identity of a plan, which may depend on the whole world, selection included."""
        return self.name("plan", self._world, *parts)

    def look_up(self, id_: bytes | None) -> Any:
        """Return the answer of an identity, None if it is not cached."""
        assert id_ is not None
        known = self._saved.get(id_)
        if known is None and self._answers is not None:
            known = self._answers.get(id_)
        self.known += known is not None
        if known is not None and self._checkpoint is not None:
            self._told[id_] = known
        return known

    def keep(self, id_: bytes | None, answer: Any, round_: int) -> None:
        """Store a computed answer; `round_`: the round that asked for it."""
        assert id_ is not None
        self.found_from = round_ if self.found_from is None else min(round_, self.found_from)
        self.found += 1
        self.repeats = False
        if self._answers is not None:
            self._answers.put(id_, answer)
        if self._checkpoint is not None:
            self._told[id_] = answer

    def small(self, node: Node, graph: Graph) -> Any:
        """Return the value of a node; a small value is stored with the answers and looked up there."""
        if self._answers is None or node.id is None:
            return graph.value(node)
        known = None if node.is_made else self._answers.get(node.id)
        if known is None:
            known = graph.value(node)
            self._answers.put(node.id, known)
        return known

    def reuse(self, id_: bytes | None, nodes: Callable[[], Sequence[Node]], method: Method) -> None:
        """Let nodes read their values from a snapshot or the checkpoint; `nodes`: returns the nodes.

        `id_`: the newest aggregation when the snapshot was stored.
        """
        assert id_ is not None
        snapshot = None if self._answers is None else self._answers.snapshot(id_, method)
        values = self._values if snapshot is None else snapshot
        if values:
            for node in nodes():
                if not node.is_made and node.id is not None and node.id in values:
                    node.found(partial(values.__getitem__, node.id))

    def is_due(self) -> bool:
        """Return True if it is time to save the checkpoint or a snapshot."""
        return self.found > 0 and (self._is_checkpoint_due() or self._is_snapshot_due())

    def save(self, id_: bytes | None, nodes: Sequence[Node], graph: Graph, method: Method) -> None:
        """Save the values that later nodes may use, in the checkpoint or as a snapshot, whichever is due.

        Beyond _MOST_SNAPSHOTS, every second snapshot is deleted and snapshots become half as frequent.
        """
        assert id_ is not None
        if self._checkpoint is not None and self._is_checkpoint_due():
            host_s = self.host_s + time.perf_counter() - self._started_s
            self._checkpoint.save(Saved(dict(self._told), _values(nodes, graph), host_s), method)
            self._looked_s = time.perf_counter()
        if self._answers is not None and self._is_snapshot_due():
            self._answers.put_snapshot(id_, _values(nodes, graph), method)
            self._snapshots.append(id_)
            if len(self._snapshots) > _MOST_SNAPSHOTS:
                for old in self._snapshots[-2::-2]:
                    self._answers.remove_snapshot(old)
                self._snapshots = self._snapshots[-1::-2][::-1]
                self._snapshot_s *= 2
            self._kept_s = time.perf_counter()

    def has_weights(self, node: Node) -> bool:
        """Return True if `weights` computes nothing: the model is at hand, or earlier runs have stored it."""
        return node.is_at_hand or (self._answers is not None and self._answers.has_weights(node.id))

    def weights(self, node: Node, graph: Graph, flat: Callable[[Any], dict[str, Any]]) -> dict[str, Any]:
        """Return the arrays of a model by name, as `flat` makes them, or as earlier runs have stored them."""
        known = None if self._answers is None or node.is_made else self._answers.weights(node.id)
        if known is not None:
            return known
        arrays = flat(graph.value(node))
        if self._answers is not None:
            self._answers.put_weights(node.id, arrays)
        return arrays

    def _is_checkpoint_due(self) -> bool:
        return self._checkpoint is not None and time.perf_counter() - self._looked_s >= self._checkpoint.every_s

    def _is_snapshot_due(self) -> bool:
        return self._answers is not None and time.perf_counter() - self._kept_s >= self._snapshot_s


def _values(nodes: Sequence[Node], graph: Graph) -> dict[bytes, Any]:
    """Return the values of nodes by identity."""
    graph.make(nodes)
    return {node.id: graph.value(node) for node in nodes if node.id is not None}
