"""Converts arrays of other frameworks to numpy: without a copy on a CPU, through pinned memory from a GPU."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedcipher.errors import LayoutError

__all__ = ["is_on_gpu", "torch_of", "with_numpy"]

Array = NDArray[Any]
_CPU = 1
"""DLPack's number of the CPU (``kDLCPU``)."""


def with_numpy(arrays: Sequence[Any]) -> list[Any]:
    """Replace DLPack tensors (PyTorch, JAX and others) in ``arrays`` by numpy arrays. Other values stay unchanged.

    Types that numpy lacks, such as bfloat16, become float32. Raises `LayoutError`.
    """
    return [x if isinstance(x, np.ndarray) or not hasattr(x, "__dlpack__") else _host(x) for x in arrays]


def is_on_gpu(x: Any) -> bool:
    """Whether ``x`` is a tensor outside the CPU's memory."""
    return not isinstance(x, np.ndarray) and hasattr(x, "__dlpack_device__") and x.__dlpack_device__()[0] != _CPU


def torch_of(x: Any) -> Any:
    """Return a PyTorch tensor over the same memory. Raises `LayoutError` if PyTorch is not installed."""
    torch = _torch()
    if torch is None:
        raise LayoutError(
            f"a {type(x).__name__} on a GPU needs PyTorch, which is not installed: install PyTorch, or give a numpy "
            "array"
        )
    return x.detach() if isinstance(x, torch.Tensor) else torch.from_dlpack(x)


def _host(x: Any) -> Array:
    torch = _torch() if is_on_gpu(x) else sys.modules.get("torch")
    if torch is None or not (is_on_gpu(x) or isinstance(x, torch.Tensor)):
        # JAX copies from its own devices. numpy uses memory of the CPU without a copy.
        made = np.asarray(x)
        return made.astype(np.float32) if made.dtype.kind == "V" or made.dtype.name == "bfloat16" else made
    tensor = torch_of(x)
    if tensor.dtype == torch.bfloat16:
        tensor = tensor.to(torch.float32)
    if tensor.is_cuda:
        # The driver copies to pageable memory in pieces. PyTorch reuses pinned memory in the next round.
        pinned = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
        tensor = pinned.copy_(tensor)
    return tensor.cpu().numpy()


def _torch() -> Any:
    """The PyTorch module; None if it is not installed."""
    try:
        return importlib.import_module("torch")
    except ImportError:
        return None
