"""Texts as arrays of bytes: Python's own documentation, and a file."""

import pydoc_data.topics
from functools import cache
from pathlib import Path

import numpy as np


@cache
def common_text():
    """Python's own documentation of its language, which is the same text in every copy of this Python version."""
    topics = pydoc_data.topics.topics
    return np.frombuffer("\n".join(topics[name] for name in sorted(topics)).encode(), np.uint8)


@cache
def text_of(path):
    """The file's bytes or, without a path, the part of the common text that `pretrain` does not use."""
    return np.frombuffer(Path(path).read_bytes(), np.uint8) if path else common_text()[-100_000:]


def load_part(path, part, parts, test=False):
    """This client's part of the first nine tenths of the text or, for tests, the last tenth."""
    text = text_of(path)
    cut = len(text) * 9 // 10
    if test:
        return text[cut:]
    return text[cut * part // parts : cut * (part + 1) // parts]
