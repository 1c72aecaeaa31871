"""Model and data, independent of encryption."""

import torch
from sklearn.datasets import load_digits
from torch import nn


class Net(nn.Module):
    """A small CNN with batch norm, whose integer counters are sent like all other arrays."""

    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(16, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2),
        )  # fmt: skip
        self.head = nn.Linear(32 * 2 * 2, 10)

    def forward(self, x):
        return self.head(self.features(x).flatten(1))


def load_part(part, parts, test=False):
    bunch = load_digits()
    x = torch.tensor(bunch.images, dtype=torch.float32).unsqueeze(1) / 16
    y = torch.tensor(bunch.target)
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))
    cut = len(x) // 5
    own = (order[:cut] if test else order[cut:])[part::parts]
    return x[own], y[own]


def train(model, x, y, epochs):
    model.train()
    optimiser = torch.optim.NAdam(model.parameters(), lr=2e-3)
    loss = torch.tensor(0.0)
    for _ in range(epochs):
        for at in torch.randperm(len(x)).split(16):
            optimiser.zero_grad()
            loss = nn.functional.cross_entropy(model(x[at]), y[at])
            loss.backward()
            optimiser.step()
    return float(loss)


def evaluate(model, x, y):
    model.eval()
    return float((model(x).argmax(1) == y).float().mean())
