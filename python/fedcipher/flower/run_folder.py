"""A run on disk: the first model and the encrypted aggregates that lead from it to the last one.

A folder of ``run.json`` (scheme, the settings that all rounds share, segments), one ``model-<segment>.npz`` for each
model that the server set in the clear, and one ``aggregate-<segment>-<number>.fedc`` a round. Each file is complete
before it has its name. Who holds a client's key opens the run with `open_run` or ``fedcipher open``; to anybody else
the aggregates are ciphertext.
"""

from __future__ import annotations

import io
import itertools
import json
import re
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import ConfigRecord

from fedcipher._files import write_whole
from fedcipher.codec import Array
from fedcipher.engine import Engine
from fedcipher.errors import FrameError, RoundError, RunError
from fedcipher.flower.clip_feedback import carries_use, split_use
from fedcipher.flower.model import model_digest
from fedcipher.flower.optimiser import Steps
from fedcipher.flower.settings import RoundSettings
from fedcipher.foreign_files import MAX_FRAME, MAX_INDEX, MAX_MODEL, read_file, read_json, read_npz
from fedcipher.keys.store import load_client
from fedcipher.schemes import Decryptor, Scheme, from_spec

__all__ = ["RunFolder", "free_folder", "open_run", "read_scheme", "replay", "save_model"]

_FORMAT = 2
_INDEX = "run.json"
# What a server has made of a folder before it has an index.
_BEFORE_INDEX = r"lock|(\.)?journal\.db.*|model-0000\.npz|\.(model-0000\.npz|run\.json)\.[0-9a-f]+\.draft"


def replay(
    frames: Sequence[bytes], first: Sequence[Array], scheme: Scheme, decryptor: Decryptor, settings: RoundSettings
) -> list[Array]:
    """The model after ``frames``, aggregates of one segment in order; ``first`` is the model before them.

    ``settings`` are those of any round of the run. With deltas each aggregate must have been trained from the model
    that this comes to, under these settings, or `ModelMismatchError` is raised: they are the server's to write.
    """
    if not frames:
        return [np.array(x) for x in first]
    if scheme.codec.target == "weights":
        return decryptor.decrypt(frames[-1])
    carried = carries_use(scheme)
    model, delta = [np.array(x) for x in first], None
    steps = Steps(settings.optimiser, settings.run)
    for frame in frames:
        digest = model_digest(model, settings, scheme.codec)
        opened = decryptor.open(frame, model=digest, reference=delta, like=model)
        delta = split_use(opened.arrays)[0] if carried else opened.arrays
        model = steps.step(model, delta, opened.round)
    return model


class RunFolder:
    """The run that a server writes: into ``folder``, or, where that is taken, into ``folder-2``, ``folder-3``.

    ``settings`` are those of any round of the run. ``begun``: ``folder`` is there, of a server that was killed before
    its run had a model (see `has_run`). Raises `RunError` where it cannot be written.
    """

    def __init__(self, folder: str | Path, scheme: Scheme, settings: RoundSettings, *, begun: bool = False) -> None:
        self._index: dict[str, Any] = {
            "fedcipher": _FORMAT,
            "scheme": scheme.spec(),
            "settings": dict(settings.to_record()),
            "aggregates": [],
            "feedback": [],
        }
        self._keep_all = scheme.codec.target == "delta"
        self._first: list[Array] = []
        self.folder = Path(folder).absolute() if begun else _new_folder(Path(folder).absolute())

    @staticmethod
    def has_run(folder: Path) -> bool:
        """Whether there is a run in ``folder`` to go on with; if not, nobody has been asked for anything."""
        if (folder / _INDEX).exists():
            return True
        strange = [path.name for path in folder.iterdir() if not re.fullmatch(_BEFORE_INDEX, path.name)]
        if strange:
            raise RunError(f"{folder} holds no run, but {strange[0]}: name a new folder, or that of a run")
        return False

    @classmethod
    def reopen(cls, folder: Path, scheme: Scheme, segment: int, count: int) -> tuple[RunFolder, RoundSettings]:
        """The run in ``folder``, to go on after aggregate ``count`` of ``segment``, and the settings of its rounds.

        What it has beyond that is dropped. Raises `RunError`.
        """
        index, settings = _read_index(folder)
        if index["scheme"] != json.loads(json.dumps(scheme.spec())):
            raise RunError(f"the run {folder} is of other keys than the server's: scheme, parameters or codec differ")
        made = cls.__new__(cls)
        made.folder, made._index, made._keep_all = folder, index, scheme.codec.target == "delta"
        counts: list[int] = index["aggregates"]
        if len(index.get("feedback", [])) != len(counts):
            raise RunError(f"the run {folder} was begun by an older version of Fedcipher and cannot be resumed")
        # One may be missing: an aggregate that was withdrawn.
        if segment >= len(counts) or counts[segment] + 1 < count:
            raise RunError(f"{folder / _INDEX} is older than the run's journal: the folder is not whole")
        counts[segment] = min(counts[segment], count)
        del counts[segment + 1 :], index["feedback"][segment + 1 :]
        made._first = _read_model(folder, made.segment, len(settings.names))
        made._write_index()
        return made, settings

    def begin(self, model: Sequence[Array], feedback: bytes = b"") -> None:
        """A new segment: from here on aggregates lead on from ``model``, which is in the clear.

        ``feedback`` is what the server knows of clip ranges (`fedcipher.flower.clip_feedback`).
        """
        self._first = [np.array(x) for x in model]
        counts: list[int] = self._index["aggregates"]
        packed = io.BytesIO()
        np.savez(packed, *model)
        self._write(_model_name(len(counts)), packed.getvalue())
        counts.append(0)
        self._index["feedback"].append(feedback.hex())
        self._write_index()

    @property
    def feedback(self) -> bytes:
        """What the server knew of clip ranges when the current segment began."""
        return bytes.fromhex(self._index["feedback"][self.segment])

    @property
    def segment(self) -> int:
        """Number of the current segment, from 0."""
        return len(self._index["aggregates"]) - 1

    @property
    def count(self) -> int:
        """Aggregates of the current segment."""
        return self._index["aggregates"][-1]

    def append(self, frame: bytes) -> None:
        """The next aggregate."""
        number = self.count + 1
        self._write(_aggregate_name(self.segment, number), frame)
        self._index["aggregates"][-1] = number
        self._write_index()
        if not self._keep_all and number > 2:
            # A mean of whole models replaces the one before it, once that one cannot be asked for any more.
            (self.folder / _aggregate_name(self.segment, number - 2)).unlink(missing_ok=True)

    def withdraw(self) -> None:
        """Without the last aggregate, which does not open."""
        number = self.count
        self._index["aggregates"][-1] = number - 1
        self._write_index()
        (self.folder / _aggregate_name(self.segment, number)).unlink(missing_ok=True)

    def first(self) -> list[Array]:
        """The model that the current segment began with."""
        return self._first

    def frames(self) -> list[bytes]:
        """What leads from `first` to the current model."""
        return [self.aggregate(number) for number in _needed(self.count, self._keep_all)]

    def aggregate(self, number: int) -> bytes:
        """Aggregate ``number`` of the current segment, from 1."""
        return _read(self.folder / _aggregate_name(self.segment, number))

    def _write_index(self) -> None:
        self._write(_INDEX, json.dumps(self._index).encode())

    def _write(self, name: str, content: bytes) -> None:
        write_whole(self.folder / name, content)


def save_model(path: str | Path, model: Mapping[str, Array]) -> None:
    """Write named arrays as an ``.npz``, whole or not at all. Raises `RunError`.

    As `numpy.savez`, which takes no array of the name ``file`` and changes names without the suffix.
    """
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        for name, values in model.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                np.lib.format.write_array(member, np.asarray(values), allow_pickle=False)
    write_whole(Path(path), packed.getvalue(), follow=True)


def free_folder(folder: Path) -> Path:
    """What a new run in ``folder`` is going to be called: ``folder``, or with ``-2``, ``-3`` where that is taken."""
    return next(tried for tried in _names(folder) if not tried.exists())


def _names(folder: Path) -> Iterator[Path]:
    yield folder
    for number in itertools.count(2):
        yield folder.with_name(f"{folder.name}-{number}")


def _new_folder(folder: Path) -> Path:
    for tried in _names(folder):
        try:
            tried.mkdir(parents=True)
            return tried
        except FileExistsError:
            continue
        except OSError as error:
            raise RunError(f"the run cannot be written to {folder}: {error}; choose another folder") from error
    raise AssertionError("unreachable")


def _needed(count: int, all_of_them: bool) -> range:
    """Numbers of the aggregates that make the model: of deltas all, of whole models the last."""
    return range(1 if all_of_them else max(1, count), count + 1)


def _model_name(segment: int) -> str:
    return f"model-{segment:04d}.npz"


def _aggregate_name(segment: int, number: int) -> str:
    return f"aggregate-{segment:04d}-{number:08d}.fedc"


def _read(path: Path) -> bytes:
    try:
        return read_file(path, MAX_FRAME)
    except OSError as error:
        raise RunError(f"{path} cannot be read: {error}; copy the whole folder of the run") from error


def open_run(folder: str | Path, key: str | Path | Engine) -> dict[str, Array]:
    """The last global model of a run, by its arrays' names, for who has a client's key: its file, or its engine.

    Raises `RunError` for a folder that is no run, that lacks files, or of which no round has an aggregate;
    `KeyFormatError` for the key file; and what a decryptor raises where the key is not of the run's cohort or an
    aggregate has been changed.
    """
    folder = Path(folder)
    index, settings = _read_index(folder)
    scheme, decryptor = _opener(key)
    if index["scheme"] != json.loads(json.dumps(scheme.spec())):
        raise RunError(f"the run is of other keys than {key}: scheme, parameters or codec differ")
    segment, count = len(index["aggregates"]) - 1, index["aggregates"][-1]
    if segment == count == 0:
        raise RunError(f"no round of {folder} has an aggregate: its model is still the one that it began with")
    first = _read_model(folder, segment, len(settings.names))
    needed = _needed(count, scheme.codec.target == "delta")
    frames = [_read(folder / _aggregate_name(segment, number)) for number in needed]
    try:
        model = replay(frames, first, scheme, decryptor, settings)
    except FrameError as error:
        raise RunError(f"an aggregate of {folder} does not open: {error}") from error
    return dict(zip(settings.names, model, strict=True))


def _opener(key: str | Path | Engine) -> tuple[Scheme, Decryptor]:
    if isinstance(key, Engine):
        return key.scheme, key.decryptor()
    scheme, secret = load_client(key)
    return scheme, scheme.decryptor(secret)


def read_scheme(folder: Path) -> Scheme:
    """The scheme and codec of a run. Raises `RunError` as `open_run` does."""
    return from_spec(_read_index(folder)[0]["scheme"])


def _read_index(folder: Path) -> tuple[dict[str, Any], RoundSettings]:
    try:
        index: dict[str, Any] = read_json(folder / _INDEX, MAX_INDEX)
        counts = list(index["aggregates"])
        known = index["fedcipher"] == _FORMAT and counts and all(isinstance(n, int) and n >= 0 for n in counts)
        if not known:
            raise RunError(f"{folder} is no run of format {_FORMAT} with a model in it")
        return {**index, "aggregates": counts}, RoundSettings.parse(ConfigRecord(dict(index["settings"])))
    except OSError as error:
        raise RunError(f"{folder / _INDEX} cannot be read: {error}; copy the whole folder of the run") from error
    except (ValueError, KeyError, TypeError, RoundError) as error:
        raise RunError(f"{folder / _INDEX} is damaged: {error}; copy the run again") from error


def _read_model(folder: Path, segment: int, arrays: int) -> list[Array]:
    try:
        names = [f"arr_{i}" for i in range(arrays)]
        found = read_npz(folder / _model_name(segment), MAX_MODEL, names)
        return [found[name] for name in names]
    except (OSError, ValueError) as error:
        raise RunError(f"the first model of {folder} cannot be read: {error}; copy the run again") from error
