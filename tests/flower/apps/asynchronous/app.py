"""Asynchronous training: every reply is mixed in at once, and its node gets the new model."""

import time

import numpy as np
from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp

client = ClientApp()
server = ServerApp()
log = []


@client.train()
def train(message, context):
    value = message.content["model"]["x"].numpy()
    metrics = MetricRecord({"partition": context.node_config["partition-id"], "num-examples": 1})
    record = ArrayRecord({"x": Array(value + 1)})
    return Message(RecordDict({"model": record, "metrics": metrics}), reply_to=message)


@server.main()
def main(grid, context):
    model = np.zeros(4)

    def ask(nodes):
        records = RecordDict({"model": ArrayRecord({"x": Array(model)})})
        return set(grid.push_messages([Message(records, node, "train", group_id="1") for node in nodes]))

    log.clear()
    waiting = ask(grid.get_node_ids())
    while len(log) < context.run_config["updates"]:
        for reply in grid.pull_messages(waiting):
            waiting.discard(reply.metadata.reply_to_message_id)
            model = 0.5 * model + 0.5 * reply.content["model"]["x"].numpy()
            log.append((time.time(), int(reply.content["metrics"]["partition"])))
            waiting |= ask([reply.metadata.src_node_id])
        if context.run_config["pause"]:
            time.sleep(context.run_config["pause"])
    context.state["model"] = ArrayRecord({"x": Array(model)})
    context.state["times"] = MetricRecord({"at": [at for at, _ in log], "partitions": [part for _, part in log]})
