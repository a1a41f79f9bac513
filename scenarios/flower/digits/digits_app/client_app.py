"""Clients that train and test on their own partition."""

from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from digits_app.task import load_data, new_network, test, train

app = ClientApp()


def mine(message, context):
    """Return the network that the server sent, and this client's samples."""
    network = new_network()
    network.load_state_dict(message.content["arrays"].to_torch_state_dict())
    return network, *load_data(context.node_config["partition-id"], context.node_config["num-partitions"])


@app.train()
def train_fn(message: Message, context: Context) -> Message:
    network, samples, _ = mine(message, context)
    loss = train(network, samples, context.run_config["local-epochs"], context.run_config["lr"])
    metrics = MetricRecord({"train_loss": loss, "num-examples": len(samples)})
    return Message(RecordDict({"arrays": ArrayRecord(network.state_dict()), "metrics": metrics}), reply_to=message)


@app.evaluate()
def evaluate_fn(message: Message, context: Context) -> Message:
    network, _, tests = mine(message, context)
    loss, accuracy = test(network, tests)
    metrics = MetricRecord({"eval_loss": loss, "eval_acc": accuracy, "num-examples": len(tests)})
    return Message(RecordDict({"metrics": metrics}), reply_to=message)
