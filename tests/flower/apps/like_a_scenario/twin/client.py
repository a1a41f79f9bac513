"""Clients: two epochs of SGD over as many samples as a device of the scenario has."""

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

app = ClientApp()


def network():
    convolutions = [nn.Conv2d(1, 16, 3, padding=1), nn.Conv2d(16, 32, 3, padding=1)]
    blocks = [layer for each in convolutions for layer in (each, nn.MaxPool2d(2), nn.ReLU())]
    return nn.Sequential(*blocks, nn.Flatten(), nn.Linear(128, 10))


@app.train()
def training(message: Message, context: Context):
    samples = int(context.run_config["sizes"].split(",")[context.node_config["partition-id"]])
    model, x, y = network(), torch.randn(samples, 1, 8, 8), torch.randint(10, (samples,))
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        for inputs, labels in DataLoader(TensorDataset(x, y), batch_size=16, shuffle=True):
            optimiser.zero_grad()
            nn.functional.cross_entropy(model(inputs), labels).backward()
            optimiser.step()
    metrics = MetricRecord({"num-examples": samples})
    return Message(RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": metrics}), reply_to=message)
