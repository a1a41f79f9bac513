"""Grid of Flower over simulated time: messages are calls to devices, and time passes only where the app waits."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from hashlib import blake2b, sha256
from math import inf
from typing import Any

from edgesim.core.app import AppClock, Call, Reply
from edgesim.core.errors import EdgesimError
from edgesim.flower import compat
from edgesim.flower.app_time import EPOCH_S, ClockOfApp
from edgesim.flower.scores import Scores

# Keys of configurations that name a round. They do not change the price of a call.
_ROUND_KEYS = {"round", "server_round", "current_round", "rnd", "epoch_global", "timestamp"}
_ROUND = "server-round"  # key of strategies of the newer API, which have no groups
_EXPIRED = "expired"


class ServerClock(ClockOfApp):
    """Simulated clock as the server part reads it."""

    def __init__(self, clock: AppClock, away: Callable[[], AbstractContextManager[None]]) -> None:
        self._clock, self._away = clock, away

    def seconds(self) -> float:
        """Return simulated seconds."""
        return self._clock.now_s

    def sleep(self, seconds: float) -> None:
        """Let simulated time pass."""
        with self._away():
            self._clock.sleep(seconds)


class SimulatedGrid(compat.Grid):
    """Grid of a run.

    `away`: leaves the app's modules and generators while others of this process run. `node_ids`: by device.
    Replies that are taken together come in the order of their messages.
    """

    def __init__(
        self,
        clock: AppClock,
        run: Any,
        node_ids: Sequence[int],
        scores: Scores,
        away: Callable[[], AbstractContextManager[None]],
        warn: Callable[[str], None],
    ) -> None:
        self._clock, self._run, self._node_ids = clock, run, tuple(node_ids)
        self._scores, self._away, self._warn = scores, away, warn
        self._devices = {node_id: device for device, node_id in enumerate(node_ids)}
        self._sent: dict[str, tuple[int, Any]] = {}  # id of a message -> its number and metadata, until it is pulled
        self._ids: list[str] = []  # by number
        self._trainings = 0  # batches of messages that train
        self._sent_to = [0] * len(self._node_ids)
        self._arrived: dict[int, Reply] = {}  # answers that have not been pulled, by number
        self._empty_at_s = -inf  # time of the last pull without messages
        self._thread = threading.get_ident()

    def set_run(self, run: Any) -> None:
        """Do nothing: the run is set from the start."""
        self._check_thread()

    @property
    def run(self) -> Any:
        """Description of the run."""
        return self._run

    def create_message(
        self, content: Any, message_type: str, dst_node_id: int, group_id: str, ttl: float | None = None
    ) -> Any:
        """Return a message to a node. `ttl`: simulated seconds."""
        self._check_thread()
        return compat.Message(content, dst_node_id, message_type, ttl=ttl, group_id=group_id)

    def get_node_ids(self) -> list[int]:
        """Return the nodes that can be reached now, ascending, which is an order of devices drawn by the run's key."""
        self._check_thread()
        return sorted(self._node_ids[device] for device in self._clock.reachable())

    def push_messages(self, messages: Iterable[Any]) -> list[str]:
        """Send messages now; return their ids. Messages to unknown nodes are not sent, as Flower does."""
        self._check_thread()
        messages = list(messages)
        self._trainings += any(_trains(message) for message in messages)
        serialised: dict[int, tuple[Any, bytes]] = {}  # one for all receivers of the same records
        calls = []
        for message in messages:
            device = self._devices.get(message.metadata.dst_node_id)
            if device is None:
                self._warn(f"a message to the unknown node {message.metadata.dst_node_id} was not sent")
                continue
            records = message.content
            if id(records) not in serialised:
                serialised[id(records)] = records, compat.content_to_bytes(records)
            calls.append(self._call(message, device, serialised[id(records)][1]))
        del serialised
        if calls:
            with self._away():
                self._clock.send(calls)
        return [self._ids[call.number] for call in calls]

    def pull_messages(self, message_ids: Iterable[str]) -> list[Any]:
        """Return the replies that have arrived.

        The second pull in a row that finds nothing at one instant lets time pass until the next answer of any node, so
        that an app that polls without pause comes to an end.
        """
        self._check_thread()
        ids = list(dict.fromkeys(message_ids))
        unknown = [each for each in ids if each not in self._sent]
        waiting = {self._sent[each][0] for each in ids if each in self._sent}
        self._take(self._clock.now_s, waiting)
        if waiting and not unknown and not waiting & self._arrived.keys():
            if self._empty_at_s == self._clock.now_s:
                self._take(inf, None)
            self._empty_at_s = self._clock.now_s
        created_at = EPOCH_S + self._clock.now_s
        return self._ready(waiting) + [compat.unknown_message(each, self._run.run_id, created_at) for each in unknown]

    def send_and_receive(self, messages: Iterable[Any], *, timeout: float | None = None) -> list[Any]:
        """Send messages and wait for all replies, or for `timeout` simulated seconds."""
        start_s = self._clock.now_s
        ids = self.push_messages(messages)
        numbers = {self._sent[each][0] for each in ids}
        until_s = inf if timeout is None else start_s + timeout
        if until_s > start_s:
            self._take(until_s, numbers)
        replies = self._ready(numbers)
        if len(replies) < len(ids):
            self._warn(
                f"at {self._clock.now_s:g} s the server part stopped waiting for {len(ids) - len(replies)} of "
                f"{len(ids)} replies: the timeout of its send_and_receive is {timeout:g} simulated seconds"
            )
        return replies

    def _call(self, message: Any, device: int, content: bytes) -> Call:
        """Return the call of a message, which gets its id. What the device reads does not depend on time."""
        number = len(self._ids)
        self._sent_to[device] += 1
        name = f"{self._run.run_id} {self._node_ids[device]} {self._sent_to[device]}"
        message_id = sha256(name.encode()).hexdigest()
        configs = message.content.config_records.values()
        rounds = (config[_ROUND] for config in configs if _ROUND in config)
        kind, ttl = message.metadata.message_type, message.metadata.ttl
        if ttl <= 0:
            raise ValueError(f"Invalid message: {message}")
        compat.set_metadata(message, message_id=message_id, created_at=EPOCH_S)
        header = compat.metadata_to_bytes(message.metadata)
        compat.set_metadata(message, created_at=EPOCH_S + self._clock.now_s)
        self._ids.append(message_id)
        self._sent[message_id] = number, message.metadata
        return Call(
            number,
            device,
            kind,
            message.metadata.group_id or str(next(rounds, self._trainings)),
            header + content,
            trains=_trains(message),
            signature=_signature(message.content),
            expires_s=self._clock.now_s + ttl,
        )

    def _take(self, until_s: float, numbers: set[int] | None) -> None:
        """Take answers from the clock, for which time may pass. `numbers`: see `AppClock.wait`."""
        outstanding = {number for number, _ in self._sent.values()} - self._arrived.keys()
        asked = outstanding if numbers is None else outstanding & numbers
        if asked:
            with self._away():
                replies = self._clock.wait(until_s, None if numbers is None else sorted(asked))
            self._arrived |= {reply.call.number: reply for reply in replies}

    def _ready(self, numbers: set[int]) -> list[Any]:
        """Return the replies that have arrived to these calls, once, in the order of sending.

        Flower promises no order. This one lets sums of strategies depend on who answered, and not on who was first.
        """
        found = [self._arrived.pop(number) for number in sorted(self._arrived.keys() & numbers)]
        return self._scores.seen([self._message(each) for each in found], found[-1].call.group if found else "")

    def _message(self, reply: Reply) -> Any:
        """Return an answer as the message that the app gets."""
        message_id = self._ids[reply.call.number]
        _, sent = self._sent.pop(message_id)
        if reply.content is None:
            code = compat.EXPIRED if reply.reason == _EXPIRED else compat.GONE
            message = compat.unavailable(sent, code, reply.reason)
        else:
            message = compat.message_from_bytes(reply.content)
        left_s = max(reply.call.expires_s - reply.arrived_s, 0.0)
        compat.set_metadata(
            message,
            message_id=sha256(f"reply {message_id}".encode()).hexdigest(),
            created_at=EPOCH_S + reply.arrived_s,
            ttl=left_s,
        )
        return message

    def _check_thread(self) -> None:
        if threading.get_ident() != self._thread:
            raise EdgesimError(
                "the Grid was called from a thread of the app's own; call it only from the function of the ServerApp"
            )


def _trains(message: Any) -> bool:
    return message.metadata.message_type.partition(".")[0] == "train"


def _signature(records: Any) -> str:
    """Digest the records that decide the price of a call: configurations without the round, and shapes of arrays."""
    found = blake2b(digest_size=8)
    for name, record in records.items():
        if isinstance(record, compat.ConfigRecord):
            items = [item for item in sorted(record.items()) if item[0].replace("-", "_").lower() not in _ROUND_KEYS]
            found.update(f"{name}{items}".encode())
        elif isinstance(record, compat.ArrayRecord):
            found.update(f"{name}{[(key, each.shape) for key, each in record.items()]}".encode())
        else:
            found.update(f"{name}{sorted(record)}".encode())
    return found.hexdigest()
