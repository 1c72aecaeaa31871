"""What Fedcipher is measured and compared with: studies of published experiments, presets, and the papers' figures.

It is installed from a checkout and is in no wheel of Fedcipher, which imports nothing of it.
"""
