"""Key files, which the authority writes and each party loads."""

from fedcipher.keys.store import client_file, load_client, load_coordinator, load_server, open_client, save

__all__ = ["client_file", "load_client", "load_coordinator", "load_server", "open_client", "save"]
