"""SecAgg+: the server learns the mean of updates alone."""

import numpy as np
from flwr.app import Array, ArrayRecord
from flwr.client import NumPyClient
from flwr.client.mod import secaggplus_mod
from flwr.clientapp import ClientApp
from flwr.common import ndarrays_to_parameters, parameters_to_ndarrays
from flwr.server import LegacyContext, ServerConfig
from flwr.server.strategy import FedAvg
from flwr.server.workflow import DefaultWorkflow, SecAggPlusWorkflow
from flwr.serverapp import ServerApp


class Client(NumPyClient):
    def __init__(self, partition):
        self.partition = partition

    def fit(self, parameters, config):
        return [np.full(5, float(self.partition))], 1, {}

    def evaluate(self, parameters, config):
        return float(np.mean(parameters[0])), 1, {}


def client_fn(context):
    return Client(context.node_config["partition-id"]).to_client()


client = ClientApp(client_fn, mods=[secaggplus_mod])
server = ServerApp()
log = []


class Noting(FedAvg):
    """Keeps the mean."""

    def aggregate_fit(self, server_round, results, failures):
        parameters, metrics = super().aggregate_fit(server_round, results, failures)
        log.append(parameters_to_ndarrays(parameters)[0])
        return parameters, metrics


@server.main()
def main(grid, context):
    strategy = Noting(
        min_available_clients=3, fraction_evaluate=0.0, initial_parameters=ndarrays_to_parameters([np.zeros(5)])
    )
    legacy = LegacyContext(
        context=context, config=ServerConfig(num_rounds=context.run_config["rounds"]), strategy=strategy
    )
    workflow = DefaultWorkflow(
        fit_workflow=SecAggPlusWorkflow(num_shares=3, reconstruction_threshold=2, max_weight=1, timeout=30)
    )
    workflow(grid, legacy)
    context.state["mean"] = ArrayRecord({"x": Array(log[-1])})
