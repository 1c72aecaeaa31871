"""What both programs of the federation share: the data, and networks that count bytes."""

import numpy as np
from declearn.communication.websockets import WebsocketsClient, WebsocketsServer
from declearn.secagg import parse_secagg_config_client, parse_secagg_config_server
from declearn.secagg.utils import IdentityKeys
from sklearn.datasets import load_digits

CLIENTS, FEATURES, CLASSES = 3, 64, 10


def part(number):
    """A client's third of scikit-learn's digits: float64 of shape (599, 64), and labels."""
    images, labels = load_digits(return_X_y=True)
    chosen = np.arange(number, len(images), CLIENTS)
    return images[chosen] / 16, labels[chosen]


class CountingClient(WebsocketsClient, register=False):
    """Counts the bytes of messages in both directions."""

    sent = received = 0

    async def _send_message(self, bin_msg):
        answer = await super()._send_message(bin_msg)
        self.sent += len(bin_msg)
        self.received += len(answer)
        return answer


def network_server(port):
    return WebsocketsServer(host="127.0.0.1", port=port, heartbeat=0.02)


def network_client(number, port):
    return CountingClient(f"ws://127.0.0.1:{port}", f"client-{number}")


def own_client(kind, number, folder):
    """The configuration of declearn's own secure aggregation, with identity keys in ``folder``."""
    trusted = [f"{folder}/{other}.pub" for other in range(CLIENTS)]
    return parse_secagg_config_client(kind, IdentityKeys(f"{folder}/{number}.pem", trusted))


def own_server(kind):
    return parse_secagg_config_server(kind, bitsize=64, clipval=1e4)
