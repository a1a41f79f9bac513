"""ClientApp: an epoch of SGD on the device's images."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from torch import Tensor, nn

import networks
import workloads
from bare_loop import Samples, read

app = ClientApp()


@cache
def loaded(name: str, data: str) -> tuple[Samples, Tensor, nn.Module]:
    """Return the training set, the rows of each device and the network: read once in a process."""
    torch.set_num_threads(1)
    workload, train = workloads.WORKLOADS[name], read(Path(data), "train")
    return train, torch.from_numpy(workloads.shards(workload, len(train.y))), getattr(networks, workload.network)()


@app.train()  # type: ignore[misc]
def train(message: Any, context: Context) -> Message:
    """Train the model of the message; reply with it."""
    config = context.run_config
    samples, shards, net = loaded(str(config["workload"]), str(config["data"]))
    net.load_state_dict(message.content["arrays"].to_torch_state_dict())
    optimizer = torch.optim.SGD(net.parameters(), lr=float(config["lr"]))
    mine = shards[int(context.node_config["partition-id"])]
    steps = 0
    for rows in mine[torch.randperm(len(mine))].split(workloads.BATCH):
        optimizer.zero_grad()
        F.cross_entropy(net(samples.x[rows]), samples.y[rows]).backward()
        optimizer.step()
        steps += 1
    metrics = MetricRecord({"num-examples": len(mine), "steps": steps})
    return Message(RecordDict({"arrays": ArrayRecord(net.state_dict()), "metrics": metrics}), reply_to=message)
