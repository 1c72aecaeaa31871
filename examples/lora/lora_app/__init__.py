"""LoRA adapters of a small transformer, trained on text under encryption."""
