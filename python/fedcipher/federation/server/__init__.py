"""The server's side of a run: it asks clients, sums their updates, stores the run, and closes rounds."""
