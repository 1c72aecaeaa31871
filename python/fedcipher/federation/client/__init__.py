"""A client's side of a run: its key, its model, its frames, and the check of every reply."""
