"""Presets, which lay published measurements beside measured ones, and the report of a measurement."""
