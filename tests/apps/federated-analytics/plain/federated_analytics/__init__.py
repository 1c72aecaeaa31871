"""A Flower app that asks queries."""
