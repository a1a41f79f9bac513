"""A server that averages what its clients send."""

import torch
from flwr.app import ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

from digits_app.task import new_network

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    torch.manual_seed(1)
    strategy = FedAvg(fraction_evaluate=context.run_config["fraction-evaluate"])
    arrays = ArrayRecord(new_network().state_dict())
    strategy.start(grid, arrays, num_rounds=context.run_config["num-server-rounds"])
