"""A client: `client.py PORT NUMBER SECAGG KEYS`. Prints the bytes that it sent and received."""

import json
import sys

from common import network_client, own_client, part
from declearn.dataset import InMemoryDataset
from declearn.main import FederatedClient

port, number, kind, keys = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4]
counted = network = network_client(number, port)
secagg = None
if kind == "fedcipher":
    from fedcipher.adapters.declearn import SecaggClient

    secagg = SecaggClient(key=f"{keys}/client-{number}.key")
    network = secagg.protect(network)
elif kind != "none":
    secagg = own_client(kind, number, keys)
FederatedClient(network, InMemoryDataset(*part(number)), secagg=secagg, verbose=False).run()
print(json.dumps({"sent": counted.sent, "received": counted.received}))
