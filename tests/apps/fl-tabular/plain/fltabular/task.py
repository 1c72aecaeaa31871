"""A classifier of rows of numbers, on scikit-learn's breast cancer patients."""

import numpy as np
import torch
from sklearn.datasets import load_breast_cancer
from sklearn.model_selection import train_test_split
from sklearn.preprocessing import StandardScaler
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

COLUMNS = 30


class Classifier(nn.Module):
    """Three dense layers that end in a probability."""

    def __init__(self, input_dim: int = COLUMNS):
        super().__init__()
        self.layer1 = nn.Linear(input_dim, 64)
        self.layer2 = nn.Linear(64, 32)
        self.output = nn.Linear(32, 1)

    def forward(self, rows):
        hidden = torch.relu(self.layer2(torch.relu(self.layer1(rows))))
        return torch.sigmoid(self.output(hidden))


def load_data(partition_id: int, num_partitions: int):
    """This client's patients, scaled by their own means, 80 % to train on and 20 % to test."""
    bunch = load_breast_cancer()
    # All clients have as many patients.
    whole = len(bunch.target) // num_partitions * num_partitions
    own = np.random.default_rng(0).permutation(whole)[partition_id::num_partitions]
    x_train, x_test, y_train, y_test = train_test_split(
        bunch.data[own], bunch.target[own], test_size=0.2, random_state=42
    )
    scaler = StandardScaler().fit(x_train)

    def set_of(rows: np.ndarray, labels: np.ndarray) -> TensorDataset:
        scaled = torch.tensor(scaler.transform(rows), dtype=torch.float32)
        return TensorDataset(scaled, torch.tensor(labels, dtype=torch.float32).view(-1, 1))

    order = torch.Generator().manual_seed(partition_id)
    train_loader = DataLoader(set_of(x_train, y_train), batch_size=32, shuffle=True, generator=order)
    return train_loader, DataLoader(set_of(x_test, y_test), batch_size=32)


def train(model, train_loader, num_epochs: int = 1):
    """Train with Adam; the mean loss."""
    criterion, optimizer = nn.BCELoss(), torch.optim.Adam(model.parameters(), lr=0.001)
    model.train()
    losses = []
    for _ in range(num_epochs):
        for rows, labels in train_loader:
            optimizer.zero_grad()
            loss = criterion(model(rows), labels)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    return float(np.mean(losses))


def evaluate(model, test_loader):
    """The mean loss and the accuracy."""
    criterion = nn.BCELoss()
    model.eval()
    losses, correct = [], 0
    with torch.no_grad():
        for rows, labels in test_loader:
            outputs = model(rows)
            losses.append(criterion(outputs, labels).item())
            correct += ((outputs > 0.5) == labels).sum().item()
    return float(np.mean(losses)), correct / len(test_loader.dataset)
