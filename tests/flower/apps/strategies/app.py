"""A strategy of the app's own, perhaps wrapped by one of Flower's for differential privacy; clients with state."""

import numpy as np
from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.clientapp.mod import fixedclipping_mod
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import DifferentialPrivacyClientSideFixedClipping, FedAvg


def when_private(message, context, call_next):
    if context.run_config["private"]:
        return fixedclipping_mod(message, context, call_next)
    return call_next(message, context)


client = ClientApp()
server = ServerApp()


@client.train(mods=[when_private])
def train(message, context):
    calls = context.state["seen"]["calls"] + 1 if "seen" in context.state else 1
    context.state["seen"] = MetricRecord({"calls": calls})
    arrays = message.content["arrays"]
    moved = ArrayRecord({"x": Array(arrays["x"].numpy() + 10.0)})
    if not context.run_config["private"]:
        arrays["x"] = Array(np.full(4, np.nan))  # the server must not see it
    metrics = MetricRecord({"calls": calls, "num-examples": 1})
    return Message(RecordDict({"arrays": moved, "metrics": metrics}), reply_to=message)


@client.evaluate()
def evaluate(message, context):
    metrics = MetricRecord({"eval_acc": 0.5, "num-examples": 4})
    return Message(RecordDict({"metrics": metrics}), reply_to=message)


class Halving(FedAvg):
    """Takes half a step."""

    def configure_train(self, server_round, arrays, config, grid):
        self.before = arrays["x"].numpy()
        return super().configure_train(server_round, arrays, config, grid)

    def aggregate_train(self, server_round, replies):
        arrays, metrics = super().aggregate_train(server_round, replies)
        if arrays is not None:
            arrays["x"] = Array((arrays["x"].numpy() + self.before) / 2)
        return arrays, metrics


@server.main()
def main(grid, context):
    strategy = Halving(min_available_nodes=3)
    if context.run_config["private"]:
        strategy = DifferentialPrivacyClientSideFixedClipping(strategy, 0.0, 1.0, 2)
    result = strategy.start(
        grid=grid,
        initial_arrays=ArrayRecord({"x": Array(np.zeros(4))}),
        num_rounds=context.run_config["rounds"],
        timeout=context.run_config["timeout"],
    )
    context.state["result"] = result.arrays if len(result.arrays) else ArrayRecord({"x": Array(np.zeros(4))})
