"""What `Result.arrays` is when the server may not see the model."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NoReturn

from flwr.app import Array, ArrayRecord

from fedcipher.errors import SealedModelError

__all__ = ["SealedArrays"]


class SealedArrays(ArrayRecord):
    """An ArrayRecord that holds no model and says where the encrypted one is.

    Whatever would read an array raises `SealedModelError`, so that no app saves ciphertext as its model.
    """

    def __init__(self, folder: str | Path) -> None:
        super().__init__()
        self.__dict__["folder"] = Path(folder)

    def _refuse(self, *_: Any, **__: Any) -> NoReturn:
        raise SealedModelError(
            f"this server has no key, so it has no model to read: it is encrypted in {self.__dict__['folder']}. "
            "Whoever holds a client's key opens it with `fedcipher open RUN --key FILE --out model.npz`; a server that "
            "may see it takes SecureStrategy(..., opener=...)"
        )

    __getitem__ = keys = items = __iter__ = to_numpy_ndarrays = to_torch_state_dict = _refuse

    def values(self) -> Any:
        """No arrays: Flower counts their bytes for its last lines."""
        empty: dict[str, Array] = {}
        return empty.values()

    def __repr__(self) -> str:
        return f"SealedArrays({str(self.__dict__['folder'])!r})"
