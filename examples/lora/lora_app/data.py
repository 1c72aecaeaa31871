"""Texts as arrays of bytes: what every Python brings, and what a file holds."""

import pydoc_data.topics
from functools import cache
from pathlib import Path

import numpy as np


@cache
def common_text():
    """Python's own documentation of its language: the same English for everybody who has this Python."""
    topics = pydoc_data.topics.topics
    return np.frombuffer("\n".join(topics[name] for name in sorted(topics)).encode(), np.uint8)


@cache
def text_of(path):
    """The file's bytes; without a path a part of the common text that `pretrain` leaves out."""
    return np.frombuffer(Path(path).read_bytes(), np.uint8) if path else common_text()[-100_000:]


def load_part(path, part, parts, test=False):
    """This client's piece of the first nine tenths of the text, or the last tenth, which nobody trains on."""
    text = text_of(path)
    cut = len(text) * 9 // 10
    if test:
        return text[cut:]
    return text[cut * part // parts : cut * (part + 1) // parts]
