"""A small CNN for colour images in PyTorch. The images are scikit-learn's digits, enlarged to 32 x 32 pixels."""

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, Dataset

FACTOR = 4
"""Pixels of a side that one of the 8 x 8 pixels becomes."""


class Net(nn.Module):
    """Two convolutions and three dense layers, for images of (3, 32, 32)."""

    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(3, 6, kernel_size=5)
        self.conv2 = nn.Conv2d(6, 16, kernel_size=5)
        self.pool = nn.MaxPool2d(2)
        self.fc1 = nn.Linear(16 * 5 * 5, 120)
        self.fc2 = nn.Linear(120, 84)
        self.fc3 = nn.Linear(84, 10)

    def forward(self, images):
        hidden = self.pool(torch.relu(self.conv1(images)))
        hidden = self.pool(torch.relu(self.conv2(hidden))).flatten(1)
        hidden = torch.relu(self.fc2(torch.relu(self.fc1(hidden))))
        return self.fc3(hidden)


class Digits(Dataset):
    """Some rows of the digits, each as an image with values in [-1, 1] and its label."""

    def __init__(self, rows: np.ndarray):
        bunch = load_digits()
        large = bunch.images[rows].repeat(FACTOR, axis=1).repeat(FACTOR, axis=2)
        grey = torch.from_numpy((large / 8 - 1).astype(np.float32))
        self.images = grey[:, None].expand(-1, 3, -1, -1)
        self.labels = torch.from_numpy(bunch.target[rows])

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, row):
        return {"img": self.images[row], "label": self.labels[row]}


def load_data(partition_id: int, num_partitions: int, batch_size: int):
    """This client's batches, 80 % to train on and 20 % to test. Each run has the same order."""
    own = np.random.default_rng(0).permutation(len(load_digits().target))[partition_id::num_partitions]
    cut = int(0.8 * len(own))
    order = torch.Generator().manual_seed(partition_id)
    trainloader = DataLoader(Digits(own[:cut]), batch_size=batch_size, shuffle=True, generator=order)
    return trainloader, DataLoader(Digits(own[cut:]), batch_size=batch_size)


def load_centralized_dataset():
    """The server's own test set."""
    return DataLoader(Digits(np.arange(200)), batch_size=100)


def train(net, trainloader, epochs, lr, device):
    """Train with SGD and momentum; the mean loss."""
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(net.parameters(), lr=lr, momentum=0.9)
    net.train()
    losses = []
    for _ in range(epochs):
        for batch in trainloader:
            optimizer.zero_grad()
            loss = criterion(net(batch["img"].to(device)), batch["label"].to(device))
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    return float(np.mean(losses))


def test(net, testloader, device):
    """The mean loss and the accuracy."""
    criterion = nn.CrossEntropyLoss()
    net.eval()
    losses, correct = [], 0
    with torch.no_grad():
        for batch in testloader:
            labels = batch["label"].to(device)
            outputs = net(batch["img"].to(device))
            losses.append(criterion(outputs, labels).item())
            correct += (outputs.argmax(1) == labels).sum().item()
    return float(np.mean(losses)), correct / len(testloader.dataset)
