"""Server: FedAvg over all clients, without tests."""

from flwr.app import ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

from twin.client import network

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context):
    strategy = FedAvg(fraction_train=1.0, fraction_evaluate=0.0)
    arrays = ArrayRecord(network().state_dict())
    strategy.start(grid=grid, initial_arrays=arrays, num_rounds=context.run_config["rounds"])
