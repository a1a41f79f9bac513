"""Server."""

import random
from pathlib import Path

import torch
from flwr.app import ArrayRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

from small.task import network, test

app = ServerApp()


def evaluate(server_round, arrays):
    model = network()
    model.load_state_dict(arrays.to_torch_state_dict())
    loss, right, _ = test(model, 99)
    return MetricRecord({"loss": loss, "accuracy": right, "spread": 0.5})


@app.main()
def main(grid: Grid, context: Context):
    random.seed(1)
    torch.manual_seed(1)
    # all three from the start: Flower registers the nodes of a simulation while the server part runs
    strategy = FedAvg(min_train_nodes=3, min_evaluate_nodes=3, min_available_nodes=3)
    result = strategy.start(
        grid=grid,
        initial_arrays=ArrayRecord(network().state_dict()),
        num_rounds=context.run_config["rounds"],
        evaluate_fn=evaluate if context.run_config["server-evaluates"] else None,
    )
    if folder := context.run_config.get("folder"):
        torch.save(result.arrays.to_torch_state_dict(), Path(folder) / "final.pt")
