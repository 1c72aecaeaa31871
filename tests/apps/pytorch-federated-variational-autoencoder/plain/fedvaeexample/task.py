"""A variational autoencoder of scikit-learn's digits."""

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Net(nn.Module):
    """A convolution into a normal distribution of ``z_dim`` numbers, and back."""

    def __init__(self, hidden: int = 128, z_dim: int = 10):
        super().__init__()
        self.encoder = nn.Sequential(nn.Conv2d(1, 8, kernel_size=4, stride=2, padding=1), nn.ReLU(), nn.Flatten())
        self.fc1 = nn.Linear(hidden, z_dim)
        self.fc2 = nn.Linear(hidden, z_dim)
        self.fc3 = nn.Linear(z_dim, hidden)
        self.decoder = nn.Sequential(
            nn.Unflatten(1, (8, 4, 4)), nn.ConvTranspose2d(8, 1, kernel_size=4, stride=2, padding=1), nn.Sigmoid()
        )

    def forward(self, images):
        hidden = self.encoder(images)
        mu, logvar = self.fc1(hidden), self.fc2(hidden)
        z = mu + torch.exp(0.5 * logvar) * torch.randn_like(mu)
        return self.decoder(self.fc3(z)), mu, logvar


def load_data(partition_id: int, num_partitions: int):
    """This client's batches, 80 % to train on and 20 % to test. Each run has the same order."""
    images = torch.from_numpy((load_digits().images[:, None] / 16).astype(np.float32))
    own = np.random.default_rng(0).permutation(len(images))[partition_id::num_partitions]
    cut = int(0.8 * len(own))
    order = torch.Generator().manual_seed(partition_id)
    trainloader = DataLoader(TensorDataset(images[own[:cut]]), batch_size=32, shuffle=True, generator=order)
    return trainloader, DataLoader(TensorDataset(images[own[cut:]]), batch_size=32)


def loss_of(net, images):
    """The error of reconstruction and the divergence from a standard normal distribution, for each image."""
    reconstructed, mu, logvar = net(images)
    divergence = -0.5 * (1 + logvar - mu**2 - logvar.exp()).sum()
    return (nn.functional.mse_loss(reconstructed, images, reduction="sum") + 0.05 * divergence) / len(images)


def train(net, trainloader, epochs, learning_rate, device):
    """Train with SGD and momentum; the mean loss."""
    optimizer = torch.optim.SGD(net.parameters(), lr=learning_rate, momentum=0.9)
    losses = []
    for _ in range(epochs):
        for (images,) in trainloader:
            optimizer.zero_grad()
            loss = loss_of(net, images.to(device))
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    return float(np.mean(losses))


def test(net, testloader, device):
    """The mean loss."""
    with torch.no_grad():
        return float(np.mean([loss_of(net, images.to(device)).item() for (images,) in testloader]))
