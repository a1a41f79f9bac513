"""The Grid of Flower over simulated time."""

from __future__ import annotations

import pytest

from edgesim.core.errors import EdgesimError
from edgesim.flower import compat
from tests.flower.running import HEAD, app_of, ran

MAIN = HEAD + "@server.main()\ndef main(grid, context):\n    nodes = list(grid.get_node_ids())\n"


def run_of(folder, main, **fates):
    """Run an app whose server part is `main`, and return what it kept: one list of numbers by name."""
    lines = "".join(f"    {line}\n" for line in main.strip().splitlines())
    source = MAIN + "    kept = {}\n" + lines + "    context.state['kept'] = MetricRecord(kept)\n"
    result = ran(app_of(folder, source), **fates)
    return dict(result.context.state["kept"]), result.clock


def late_third(call):
    """One second for all devices but device 2, which takes 10."""
    return 10.0 if call.device == 2 else 1.0


def test_a_timeout_is_in_simulated_seconds_and_late_replies_can_be_pulled(tmp_path, caplog):
    """The app goes on at the timeout, which is said once; the late reply is there when it is pulled later."""
    kept, clock = run_of(tmp_path, """
sent = messages(nodes)
first = grid.send_and_receive(sent, timeout=4)
kept["first"] = sorted(reply.content["metrics"]["partition"] for reply in first)
kept["at"] = time.time()
late = [message.metadata.message_id for message in sent
        if message.metadata.message_id not in {reply.metadata.reply_to_message_id for reply in first}]
kept["early"] = len(grid.pull_messages(late))
time.sleep(20)
kept["late"] = [reply.content["metrics"]["partition"] for reply in grid.pull_messages(late)]
kept["again"] = [reply.error.code for reply in grid.pull_messages(late)]
grid.send_and_receive(messages(nodes), timeout=4)
""", takes_s=late_third)  # fmt: skip
    assert kept["first"] == [0, 1]
    assert kept["at"] == 1_700_000_004.0
    assert (kept["early"], kept["late"], kept["again"]) == (0, [2], [compat.ErrorCode.MESSAGE_UNAVAILABLE])
    assert clock.now_s == 28.0
    assert [text for text in caplog.messages if "stopped waiting" in text] == [
        "at 4 s the server part stopped waiting for 1 of 3 replies: the timeout of its send_and_receive is 4 simulated "
        "seconds"
    ]


def test_an_expired_message_and_a_failed_device_give_error_replies(tmp_path):
    """Time to live is in simulated seconds. Codes are those of Flower's SuperLink."""
    kept, clock = run_of(tmp_path, """
replies = grid.send_and_receive(messages(nodes, ttl=5.0))
replies.sort(key=lambda reply: (reply.metadata.created_at, reply.has_error()))
kept["codes"] = [reply.error.code if reply.has_error() else -1 for reply in replies]
kept["at"] = [reply.metadata.created_at for reply in replies]
""", takes_s=late_third, fate=lambda call: "crashed" if call.device == 1 else "")  # fmt: skip
    assert kept["codes"] == [-1, compat.ErrorCode.NODE_UNAVAILABLE, compat.ErrorCode.MESSAGE_UNAVAILABLE]
    assert kept["at"] == [1_700_000_000.0 + at_s for at_s in (1, 1, 5)]
    assert clock.now_s == 5.0


def test_polling_without_pause_comes_to_an_end(tmp_path):
    """No time passes at the first empty pull of an instant; the second waits for the next reply."""
    kept, _ = run_of(tmp_path, """
ids = grid.push_messages(messages(nodes[:1]))
kept["empty"] = [len(grid.pull_messages(ids))]
kept["at"] = [time.monotonic()]
kept["empty"] += [len(grid.pull_messages(ids))]
kept["at"] += [time.monotonic()]
""")  # fmt: skip
    assert kept == {"empty": [0, 1], "at": [0.0, 1.0]}


def test_unknown_nodes_and_ids(tmp_path):
    """As in Flower: a message to an unknown node is not sent, and an unknown id is answered by an error."""
    kept, clock = run_of(tmp_path, """
kept["sent"] = len(grid.push_messages(messages([12345])))
kept["codes"] = [reply.error.code for reply in grid.pull_messages(["no such id"])]
kept["none"] = len(grid.send_and_receive([]))
""")  # fmt: skip
    assert kept == {"sent": 0, "codes": [compat.ErrorCode.MESSAGE_UNAVAILABLE], "none": 0}
    assert clock.calls == []


def test_all_other_methods(tmp_path):
    """Runs, nodes and messages as apps create them."""
    kept, clock = run_of(tmp_path, """
kept["nodes"] = [int([node.node_id for node in grid.get_nodes()] == sorted(nodes)), len(set(nodes))]
grid.set_run(grid.run)
message = grid.create_message(RecordDict(), "query", nodes[1], "7", ttl=3.0)
kept["error"] = [reply.error.code for reply in grid.send_and_receive([message])]
kept["run"] = int(message.metadata.run_id == grid.run.run_id == context.run_id)
""")  # fmt: skip
    assert kept["nodes"] == [1, 3]
    assert kept["run"] == 1
    assert kept["error"] == [compat.ErrorCode.CLIENT_APP_RAISED_EXCEPTION]  # it has no function for queries
    (call,) = clock.calls
    assert (call.kind, call.group, call.trains, call.expires_s) == ("query", "7", False, 3.0)
    assert clock.called[0].failure == "ValueError: No query function registered with name 'default'"


def test_nodes_that_cannot_be_reached_are_not_there(tmp_path):
    """As Flower leaves out nodes without a heartbeat."""
    kept, _ = run_of(tmp_path, 'kept["count"] = len(nodes)', reachable=lambda now_s: [1, 2])
    assert kept == {"count": 2}


def test_threads_of_the_app_may_not_use_the_grid(tmp_path):
    """They would run beside simulated time."""
    with pytest.raises(EdgesimError, match="the Grid was called from a thread of the app's own"):
        run_of(tmp_path, """
from concurrent.futures import ThreadPoolExecutor
with ThreadPoolExecutor() as pool:
    pool.submit(lambda: list(grid.get_node_ids())).result()
""")  # fmt: skip


def test_contents_do_not_depend_on_time_or_on_other_devices(tmp_path):
    """Bytes of the n-th message to a device are the same in a slower fleet, so that answers can be kept."""
    twice = "for kind in ('train', 'train'):\n    grid.send_and_receive(messages(nodes, kind))\n    time.sleep(3)"
    _, fast = run_of(tmp_path / "one", twice)
    _, slow = run_of(tmp_path / "one", twice, takes_s=late_third)
    assert [call.content for call in fast.calls] == [call.content for call in slow.calls]
    assert len({call.content for call in fast.calls}) == 6
    assert len({call.signature for call in fast.calls}) == 1
    assert len({len(call.content) for call in fast.calls}) == 1


def test_the_signature_is_of_configurations_without_the_round(tmp_path):
    """Calls that differ by their round alone have one price; calls of another configuration have their own."""
    _, clock = run_of(tmp_path, """
for config in ({"epochs": 1, "server-round": 1}, {"epochs": 1, "server-round": 2}, {"epochs": 2, "server-round": 3}):
    grid.push_messages([Message(RecordDict({"config": ConfigRecord(config)}), nodes[0], "train")])
""")  # fmt: skip
    first, second, third = (call.signature for call in clock.calls)
    assert first == second != third
    assert [call.group for call in clock.calls] == ["1", "2", "3"]


def test_rounds_of_a_loop_without_groups(tmp_path):
    """A training begins a round; evaluations after it belong to it, and its score is their mean."""
    source = (
        HEAD
        + """
@client.evaluate()
def evaluate(message, context):
    return reply(message, loss=float(context.node_config["partition-id"]) + message.content["config"]["rate"])

@server.main()
def main(grid, context):
    for _ in range(2):
        for kind in ("train", "evaluate"):
            grid.send_and_receive(messages(grid.get_node_ids(), kind))
"""
    )
    clock = ran(app_of(tmp_path, source)).clock
    assert [call.group for call in clock.calls] == ["1"] * 6 + ["2"] * 6
    assert [(at_s, metrics) for at_s, _, metrics, _ in clock.scores] == [
        (at_s, {"loss": pytest.approx(1.1)}) for at_s in (2.0, 4.0)
    ]
