"""Presets, which compare published measurements with ours, and the report of a measurement."""
