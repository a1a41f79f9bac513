"""All that edgesim uses of Flower. No other module imports flwr, names its private modules or depends on its version.

Supported versions: 1.38 and later (`edgesim.flower.app` says so). Importing this module raises ImportError where flwr
is missing, or where it has moved a name.
"""

from __future__ import annotations

import datetime
import logging
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import flwr
from flwr import app as _app
from flwr.app.message import message as _message_module
from flwr.clientapp import ClientApp as ClientApp
from flwr.clientapp.client_app import ClientAppException as _ClientAppException
from flwr.clientapp.client_app import LoadClientAppError as _LoadClientAppError
from flwr.common import serde as _serde
from flwr.common.constant import NUM_PARTITIONS_KEY, PARTITION_ID_KEY, SUPERLINK_NODE_ID
from flwr.common.constant import ErrorCode as ErrorCode
from flwr.common.serde_utils import metadata_to_proto as _metadata_to_proto
from flwr.compat.common import recorddict_compat as _legacy_records
from flwr.proto.message_pb2 import Message as _ProtoMessage
from flwr.proto.recorddict_pb2 import RecordDict as _ProtoRecordDict
from flwr.server import server as _server_module
from flwr.server.compat import app as _grid_app
from flwr.server.compat import app_utils as _client_managers
from flwr.server.compat.grid_client_proxy import GridClientProxy as GridClientProxy
from flwr.server.history import History as History
from flwr.server.workflow import default_workflows as _workflows
from flwr.serverapp import Grid as Grid
from flwr.serverapp import ServerApp as ServerApp
from flwr.serverapp.strategy import Strategy as Strategy
from flwr.serverapp.strategy import strategy_utils as _strategy_utils
from flwr.supercore.constant import SYSTEM_MESSAGE_TYPE
from flwr.supercore.logger import ConsoleHandler as _ConsoleHandler
from flwr.supercore.run import Run as Run
from flwr.supercore.task_identity import TaskIdentity as _TaskIdentity

from edgesim.core.errors import ConfigError
from edgesim.foreign.isolation import text_of

Message, Context, RecordDict = _app.Message, _app.Context, _app.RecordDict
ArrayRecord, ConfigRecord, MetricRecord = _app.ArrayRecord, _app.ConfigRecord, _app.MetricRecord
Error, Metadata = _app.Error, _app.Metadata
VERSION = version("flwr")
_FOLDER = Path(flwr.__file__).parent
# Code of Flower's server side whose waiting is an app's waiting.
WAITING_FOLDERS = (f"{_FOLDER}/serverapp/", f"{_FOLDER}/server/strategy/", f"{_FOLDER}/server/workflow/")
SERVER_NODE = SUPERLINK_NODE_ID
EXPIRED, GONE = ErrorCode.MESSAGE_UNAVAILABLE, ErrorCode.NODE_UNAVAILABLE
_ABSENT = object()
# As Flower's SuperLink says it. Its own texts are in a module that takes seconds to load.
_REASONS = {
    EXPIRED: "Error: Message Unavailable - it expired, or it was delivered or deleted before, or never existed.",
    GONE: "Error: Node Unavailable - the destination node did not answer.",
}


def log_plainly() -> None:
    """Let Flower log without colours, which would show as codes beside a line of progress."""
    for handler in logging.getLogger("flwr").handlers:
        if isinstance(handler, _ConsoleHandler):
            handler.colored = False


# --- messages and contexts --------------------------------------------------------------------------------------------


def content_to_bytes(content: Any) -> bytes:
    """Return the field of a serialised message that holds its records. It is the same for all receivers."""
    return bytes(_ProtoMessage(content=_serde.recorddict_to_proto(content)).SerializeToString(deterministic=True))


def metadata_to_bytes(metadata: Any) -> bytes:
    """Return the field of a serialised message that holds its metadata. The message is both fields in a row."""
    return bytes(_ProtoMessage(metadata=_metadata_to_proto(metadata)).SerializeToString(deterministic=True))


def message_to_bytes(message: Any) -> bytes:
    """Return a message with content or error as it is sent."""
    return bytes(_serde.message_to_proto(message).SerializeToString(deterministic=True))


def message_from_bytes(content: bytes) -> Any:
    """Return the message that was serialised, in new objects."""
    return _serde.message_from_proto(_ProtoMessage.FromString(content))


def records_to_bytes(records: Any) -> bytes:
    """Return a RecordDict as bytes, b"" if it is empty."""
    return bytes(_serde.recorddict_to_proto(records).SerializeToString(deterministic=True))


def records_from_bytes(content: bytes) -> Any:
    """Return the RecordDict of `records_to_bytes`."""
    return _serde.recorddict_from_proto(_ProtoRecordDict.FromString(content))


def set_metadata(message: Any, **fields: Any) -> None:
    """Set fields of a message's metadata, those too that Flower alone sets."""
    vars(message.metadata).update({f"_{name}": value for name, value in fields.items()})


def unavailable(sent: Any, code: int, cause: str) -> Any:
    """Return the error reply of Flower's SuperLink to a message whose metadata is `sent`. `cause` joins the reason."""
    metadata = Metadata(
        run_id=sent.run_id, message_id="", src_node_id=SERVER_NODE, dst_node_id=SERVER_NODE,
        reply_to_message_id=sent.message_id, group_id=sent.group_id, message_type=sent.message_type,
        created_at=sent.created_at, ttl=0.0,
    )  # fmt: skip
    metadata.delivered_at = ""
    return _message_module.make_message(metadata=metadata, error=Error(code, f"{_REASONS[code]} ({cause})"))


class ChangedRunConfig(ValueError):
    """Raised if a ClientApp has changed the run_config of its context."""


def _text(error: BaseException) -> str:
    """Return the text of an exception as it can be sent, also if its class cannot say it."""
    try:
        return str(error).encode(errors="replace").decode()
    except BaseException:  # its __str__ may raise anything
        return text_of(error)


def told(error: BaseException) -> Any:
    """Return the Error that Flower's simulation sends if a ClientApp raises an exception or cannot be loaded."""
    if isinstance(error, ConfigError):
        return Error(ErrorCode.LOAD_CLIENT_APP_EXCEPTION, f"{_LoadClientAppError}:<'{error}'>")
    if isinstance(error, ChangedRunConfig):
        return Error(ErrorCode.UNKNOWN, f"{ValueError}:<'{error}'>")
    said = _ClientAppException(_text(error))
    return Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, f"{type(said)}:<'{said}'>")


def unknown_message(message_id: str, run_id: int, created_at: float) -> Any:
    """Return the error reply of Flower's SuperLink to a pull of a message that it does not have."""
    metadata = Metadata(run_id, message_id, SERVER_NODE, SERVER_NODE, "", "", created_at, 0.0, SYSTEM_MESSAGE_TYPE)
    return unavailable(metadata, EXPIRED, "it was pulled before, or never sent")


def node_config(partition: int, partitions: int) -> dict[str, int]:
    """Return the configuration of a node in Flower's simulation."""
    return {PARTITION_ID_KEY: partition, NUM_PARTITIONS_KEY: partitions}


def new_run(run_id: int, config: Mapping[str, Any]) -> Any:
    """Return the description of a run. `config`: what overrides the app's own configuration."""
    run = Run.create_empty(run_id)
    run.override_config = dict(config)
    return run


# --- one run in this process ------------------------------------------------------------------------------------------


@contextmanager
def patched(replaced: Mapping[tuple[Any, str], Any]) -> Iterator[None]:
    """Give attributes of modules, classes or objects other values in a block."""
    before = {(owner, name): vars(owner).get(name, _ABSENT) for owner, name in replaced}
    for (owner, name), value in replaced.items():
        setattr(owner, name, value)
    try:
        yield
    finally:
        for (owner, name), value in before.items():
            if value is _ABSENT:
                delattr(owner, name)
            else:
                setattr(owner, name, value)


@contextmanager
def task_identity(run_id: int, node_id: int = SERVER_NODE) -> Iterator[None]:
    """Let Flower create messages of this node in a block, by default of the server part."""
    names = {"_task_id": 1, "_run_id": run_id, "_node_id": node_id}
    with patched({(_TaskIdentity, name): value for name, value in names.items()}):
        yield


def dates(unix_s: Callable[[], float]) -> dict[tuple[Any, str], Any]:
    """Return patches with which messages are created at `unix_s()`, in seconds since 1970."""
    return {(_message_module, "now"): lambda: datetime.datetime.fromtimestamp(unix_s(), tz=datetime.UTC)}


def waits(sleep: Callable[[float], None]) -> dict[tuple[Any, str], Any]:
    """Return patches with which strategies wait for nodes by `sleep`."""
    return {(_strategy_utils, "sleep"): sleep}


# --- the older API: its host threads, one after the other -------------------------------------------------------------


def without_threads(sleep: Callable[[float], None], now_s: Callable[[], float]) -> dict[tuple[Any, str], Any]:
    """Return patches with which apps of the older API use no threads. All messages of a round leave at once."""
    following = partial(_follow_nodes, sleep, now_s)
    return {
        (_grid_app, "start_update_client_manager_thread"): following,
        (_workflows, "start_update_client_manager_thread"): following,
        (_server_module, "fit_clients"): partial(_ask_all, "fit", _server_module.fit_client),
        (_server_module, "evaluate_clients"): partial(_ask_all, "evaluate", _server_module.evaluate_client),
        (_server_module, "reconnect_clients"): lambda client_instructions, max_workers, timeout: ([], []),
    }


def _follow_nodes(sleep: Callable[[float], None], now_s: Callable[[], float], grid: Any, manager: Any) -> Any:
    """Keep the client manager up to date whenever it is asked. Replaces the thread that does so every 5 s."""
    stop, done = threading.Event(), threading.Event()
    stop.set()
    _client_managers._update_client_manager(grid, manager, stop, done)  # which wraps methods, and ends

    def wait_for(num_clients: int, timeout: float = 86400) -> bool:
        until_s = now_s() + timeout
        while manager.num_available() < num_clients:
            if now_s() >= until_s:
                return False
            sleep(min(5.0, until_s - now_s()))
        return True

    manager.wait_for = wait_for
    ended = threading.Thread(target=lambda: None)  # Flower joins it at the end
    ended.start()
    return ended, stop, done


_CONVERTERS = {
    "fit": (partial(_legacy_records.fitins_to_recorddict, keep_input=True), "train",
            partial(_legacy_records.recorddict_to_fitres, keep_input=False)),
    "evaluate": (partial(_legacy_records.evaluateins_to_recorddict, keep_input=True), "evaluate",
                 _legacy_records.recorddict_to_evaluateres),
}  # fmt: skip


def _ask_all(
    kind: str, alone: Any, client_instructions: Any, max_workers: Any, timeout: float | None, group_id: int
) -> tuple[list[Any], list[Any]]:
    """Send all instructions of a round now; return results in the order of arrival, and failures.

    Clients of other classes than Flower's own are asked one after the other, by `alone`.
    """
    results: list[Any] = []
    failures: list[Any] = []
    to_records, message_type, to_result = _CONVERTERS[kind]
    asked: dict[str, Any] = {}
    messages = []
    for client, instruction in client_instructions:
        if type(client) is GridClientProxy:
            group = str(group_id) if group_id else ""
            records = to_records(instruction)
            messages.append(Message(records, client.node_id, message_type, ttl=timeout, group_id=group))
            asked[str(client.node_id)] = client
        else:
            _note_answer(partial(alone, client, instruction, timeout, group_id), results, failures)

    def answer(client: Any, reply: Any) -> tuple[Any, Any]:
        if reply.has_error():
            raise ValueError(
                f"Message contains an Error (reason: {reply.error.reason}). "
                "It originated during client-side execution of a message."
            )
        return client, to_result(reply.content)

    if messages:
        grid = next(iter(asked.values())).grid
        replies = grid.send_and_receive(messages)
        of_message = {message.metadata.message_id: asked[str(message.metadata.dst_node_id)] for message in messages}
        for reply in replies:
            client = of_message[reply.metadata.reply_to_message_id]
            _note_answer(partial(answer, client, reply), results, failures)
    return results, failures


def _note_answer(asking: Callable[[], tuple[Any, Any]], results: list[Any], failures: list[Any]) -> None:
    try:
        answer = asking()
    except Exception as error:  # as Flower's threads do
        failures.append(error)
    else:
        (results if answer[1].status.code == _server_module.Code.OK else failures).append(answer)
