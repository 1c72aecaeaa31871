"""A server's side of a run: whom it asks, what it sums, what it keeps, and when a round closes."""
