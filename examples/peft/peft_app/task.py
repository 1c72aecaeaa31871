"""Model and data, independent of encryption."""

import pydoc_data.topics
from functools import cache
from pathlib import Path

import torch
from peft import LoraConfig, get_peft_model, get_peft_model_state_dict, set_peft_model_state_dict
from transformers import GPT2Config, GPT2LMHeadModel

CONTEXT = 64


def make_model():
    """A small GPT-2 over bytes with adapters on its attention, with the same base on every machine."""
    torch.manual_seed(0)
    config = GPT2Config(vocab_size=256, n_positions=CONTEXT, n_embd=64, n_layer=2, n_head=4)
    adapters = LoraConfig(r=4, lora_alpha=8, target_modules=["c_attn"], fan_in_fan_out=True, task_type="CAUSAL_LM")
    return get_peft_model(GPT2LMHeadModel(config), adapters)


def adapters_of(model):
    """The parameters that are sent: the adapters, without the base."""
    return {name: values.detach().clone() for name, values in get_peft_model_state_dict(model).items()}


def set_adapters(model, state):
    set_peft_model_state_dict(model, state)


@cache
def text_of(path):
    """The file's bytes or, without a path, Python's own documentation."""
    topics = pydoc_data.topics.topics
    raw = Path(path).read_bytes() if path else "\n".join(topics[name] for name in sorted(topics)).encode()
    return torch.frombuffer(bytearray(raw), dtype=torch.uint8).long()


def load_part(path, part, parts, test=False):
    """This client's part of the first nine tenths of the text or, for tests, the last tenth."""
    text = text_of(path)
    cut = len(text) * 9 // 10
    return text[cut:] if test else text[cut * part // parts : cut * (part + 1) // parts]


def batch_of(text, random, size=16):
    starts = torch.randint(len(text) - CONTEXT, (size,), generator=random)
    return torch.stack([text[at : at + CONTEXT] for at in starts.tolist()])


def train(model, text, steps, rate, seed):
    optimiser = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=rate)
    random, losses = torch.Generator().manual_seed(seed), []
    model.train()
    for _ in range(steps):
        tokens = batch_of(text, random)
        loss = model(input_ids=tokens, labels=tokens).loss
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    return sum(losses) / len(losses)


@torch.no_grad()
def evaluate(model, text):
    model.eval()
    tokens = batch_of(text, torch.Generator().manual_seed(0), 64)
    return model(input_ids=tokens, labels=tokens).loss.item()
