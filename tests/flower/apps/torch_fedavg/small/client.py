"""Clients."""

from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from small.task import network, test, train

app = ClientApp()


def model_of(message):
    model = network()
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    return model


@app.train()
def training(message: Message, context: Context):
    model = model_of(message)
    loss, count = train(model, context.node_config["partition-id"], context.run_config["optimiser.rate"])
    records = {
        "arrays": ArrayRecord(model.state_dict()),
        "metrics": MetricRecord({"train_loss": loss, "num-examples": count}),
    }
    return Message(RecordDict(records), reply_to=message)


@app.evaluate()
def evaluation(message: Message, context: Context):
    loss, right, count = test(model_of(message), context.node_config["partition-id"])
    metrics = MetricRecord({"eval_loss": loss, "eval_acc": right, "num-examples": count})
    return Message(RecordDict({"metrics": metrics}), reply_to=message)
