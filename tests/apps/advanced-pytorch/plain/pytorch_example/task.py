"""A CNN with a classification head, on scikit-learn's digits. Clients have unlike numbers of unlike digits."""

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

BATCH = 32


class Net(nn.Module):
    """Two convolutions, a dense layer and the head ``fc2``, for images of (1, 8, 8)."""

    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 8, kernel_size=3, padding=1)
        self.conv2 = nn.Conv2d(8, 16, kernel_size=3, padding=1)
        self.pool = nn.MaxPool2d(2)
        self.fc1 = nn.Linear(16 * 2 * 2, 48)
        self.fc2 = nn.Linear(48, 10)

    def forward(self, images):
        hidden = self.pool(torch.relu(self.conv1(images)))
        hidden = self.pool(torch.relu(self.conv2(hidden))).flatten(1)
        return self.fc2(torch.relu(self.fc1(hidden)))


def _set_of(rows: np.ndarray) -> TensorDataset:
    bunch = load_digits()
    images = torch.from_numpy((bunch.images[rows, None] / 16).astype(np.float32))
    return TensorDataset(images, torch.from_numpy(bunch.target[rows]))


def _parts(num_partitions: int) -> list[np.ndarray]:
    """The rows of each client: of every digit other shares, drawn from a Dirichlet distribution."""
    rng, target = np.random.default_rng(3), load_digits().target
    parts: list[list[np.ndarray]] = [[] for _ in range(num_partitions)]
    for digit in range(10):
        rows = rng.permutation(np.flatnonzero(target == digit))
        cuts = np.cumsum(rng.dirichlet(np.ones(num_partitions))) * len(rows)
        for part, own in zip(parts, np.split(rows, cuts[:-1].astype(int)), strict=True):
            part.append(own)
    return [rng.permutation(np.concatenate(part)) for part in parts]


def load_data(partition_id: int, num_partitions: int):
    """This client's batches, 80 % to train on and 20 % to test. Each run has the same order."""
    own = _parts(num_partitions)[partition_id]
    cut = int(0.8 * len(own))
    order = torch.Generator().manual_seed(partition_id)
    trainloader = DataLoader(_set_of(own[:cut]), batch_size=BATCH, shuffle=True, generator=order)
    return trainloader, DataLoader(_set_of(own[cut:]), batch_size=BATCH)


def load_centralized_dataset():
    """The server's own test set."""
    return DataLoader(_set_of(np.arange(200)), batch_size=100)


def train(net, trainloader, epochs, lr, device):
    """Train with SGD and momentum; the mean loss."""
    optimizer = torch.optim.SGD(net.parameters(), lr=lr, momentum=0.9)
    net.train()
    losses = []
    for _ in range(epochs):
        for images, labels in trainloader:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(net(images.to(device)), labels.to(device))
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    return float(np.mean(losses))


def test(net, testloader, device):
    """The mean loss and the accuracy."""
    net.eval()
    losses, correct = [], 0
    with torch.no_grad():
        for images, labels in testloader:
            outputs = net(images.to(device))
            losses.append(nn.functional.cross_entropy(outputs, labels.to(device)).item())
            correct += (outputs.argmax(1) == labels.to(device)).sum().item()
    return float(np.mean(losses)), correct / len(testloader.dataset)
