"""What Fedcipher is measured and compared with: studies of published experiments, presets, papers' figures, baselines.

It is installed from a checkout and is in no wheel of Fedcipher, which imports nothing of it.
"""
