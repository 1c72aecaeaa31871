"""Measurements of Fedcipher beside published ones: studies of experiments, presets, papers' figures and baselines.

This package is installed from a checkout. No wheel of Fedcipher contains it, and Fedcipher does not import it.
"""
