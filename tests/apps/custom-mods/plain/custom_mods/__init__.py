"""A Flower app with mods of its own."""
