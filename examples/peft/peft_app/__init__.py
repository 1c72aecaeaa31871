"""LoRA adapters by Hugging Face PEFT, trained on text under encryption."""
