"""The older API: a client of arrays, and FedAdam."""

import numpy as np
from flwr.client import NumPyClient
from flwr.clientapp import ClientApp
from flwr.common import ndarrays_to_parameters
from flwr.server import ServerAppComponents, ServerConfig
from flwr.server.strategy import FedAdam
from flwr.serverapp import ServerApp


class Client(NumPyClient):
    def __init__(self, partition):
        self.partition = partition

    def fit(self, parameters, config):
        moved = [array + (self.partition + 1) for array in parameters]
        return moved, 10 * (self.partition + 1), {"moved": 1.0}

    def evaluate(self, parameters, config):
        return float(parameters[0].sum()), 10, {"accuracy": 0.25 * (self.partition + 1)}


def client_fn(context):
    return Client(context.node_config["partition-id"]).to_client()


def means(pairs):
    total = sum(count for count, _ in pairs)
    return {name: sum(count * metrics[name] for count, metrics in pairs) / total for name in pairs[0][1]}


def server_fn(context):
    strategy = FedAdam(
        initial_parameters=ndarrays_to_parameters([np.zeros((2, 3)), np.zeros(3)]),
        eta=0.5,
        evaluate_metrics_aggregation_fn=means,
        fit_metrics_aggregation_fn=means,
        min_available_clients=3,
    )
    return ServerAppComponents(strategy=strategy, config=ServerConfig(num_rounds=context.run_config["rounds"]))


client = ClientApp(client_fn=client_fn)
server = ServerApp(server_fn=server_fn)
