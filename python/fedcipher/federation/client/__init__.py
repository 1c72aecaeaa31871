"""A client's side of a run: its key, its model, its frames, and what may leave."""
