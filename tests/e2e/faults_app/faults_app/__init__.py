"""A federation whose clients note what they were given and what they made of it, outside of any encryption."""
