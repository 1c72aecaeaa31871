"""A Flower app on pandas."""
