"""A run on disk: its charter, the first model, and the encrypted sums that lead from the first model to the last.

The folder holds ``run.json`` (scheme, charter, digest of the clients' other settings, steps), ``first.npz``, one
``aggregate-<step>-<group>.fedc`` for each sum of a step, and one ``evaluation-<round>.fedc`` for each sum of answers.
It also holds ``charter.signature`` if a coordinator has signed the charter, ``set-<step>.npz`` if the server sets
models, and ``heads.bin``, the signed heads of clients' logs. Each other file is written completely before it gets its
name. `open_run` or ``fedcipher open`` opens the run with a
client's key.
"""

from __future__ import annotations

import io
import itertools
import json
import os
import re
import zipfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedcipher._files import create_private, make_private_folder, unwritten, write_whole
from fedcipher._native import Identity
from fedcipher.codec import Array
from fedcipher.engine import Engine
from fedcipher.errors import CharterError, FrameError, ParameterError, RunError
from fedcipher.federation.chain import Chain
from fedcipher.federation.charter import SIGNATURE_BYTES, Charter
from fedcipher.federation.client.evidence import HEAD_BYTES
from fedcipher.federation.ranges import reached_by_histograms, sends_histograms_at
from fedcipher.federation.records import losses
from fedcipher.foreign_files import MAX_FRAME, MAX_INDEX, MAX_LOG, MAX_MODEL, read_file, read_json, read_npz
from fedcipher.foreign_text import quoted, quoting_log
from fedcipher.keys.store import load_client, locate_run
from fedcipher.schemes import Decryptor, Scheme, from_spec

__all__ = ["RunFolder", "StoredRun", "free_folder", "open_run", "read_run", "read_scheme", "replay", "save_model"]

_log = quoting_log("fedcipher.federation")

_FORMAT = 4
_INDEX, _FIRST, _SIGNED = "run.json", "first.npz", "charter.signature"
_HEADS, _RECORD = "heads.bin", 4 + HEAD_BYTES
"""File of heads of logs: a client's number (32 bits, little-endian) and a head in each record."""
_MAX_STEPS = 1 << 32
# Names of the files that a server writes before the index.
_FILES_BEFORE_INDEX = r"lock|(\.)?journal\.db.*|first\.npz|\.(first\.npz|run\.json)\.[0-9a-f]+\.draft"


class StoredRun:
    """The run in ``folder``, read from its ``index``. Raises `RunError` for a damaged index or another format."""

    def __init__(self, folder: Path, index: dict[str, Any]) -> None:
        self.folder, self._index = folder, index
        self._first: list[Array] | None = None
        try:
            known = index["fedcipher"] == _FORMAT
            self.charter = Charter.decode(str(index["charter"]).encode())
            self.context = bytes.fromhex(index["context"])
            self._steps = [
                (_count(number, 1), _count(groups, 1), [_count(group) for group in out])
                for number, groups, out in index["steps"]
            ]
            self._evaluations = {int(number): _count(step) for number, step in index["evaluations"].items()}
            self._set = [_count(step) for step in index["set"]]
        except (ValueError, KeyError, TypeError, AttributeError, CharterError) as error:
            raise RunError(f"{folder / _INDEX} is damaged: {quoted(error)}; copy the run again") from error
        if not known:
            raise RunError(f"{folder} is not a run of format {_FORMAT}")

    @property
    def scheme_spec(self) -> dict[str, Any]:
        """The specification of the scheme and codec of the run's keys."""
        return self._index["scheme"]

    @property
    def signature(self) -> bytes:
        """The coordinator's signature of the charter; empty if there is none. Raises `RunError` if it is damaged."""
        if not (self.folder / _SIGNED).exists():
            return b""
        try:
            signature = read_file(self.folder / _SIGNED, SIGNATURE_BYTES)
        except OSError:
            signature = b""
        if len(signature) != SIGNATURE_BYTES:
            raise RunError(f"{self.folder / _SIGNED} is not a signature: let the coordinator sign the charter again")
        return signature

    def sign(self, coordinator: Identity) -> None:
        """Sign the charter as the coordinator and store the signature. Raises `RunError`."""
        write_whole(self.folder / _SIGNED, coordinator.sign_charter(self.charter.digest))

    @property
    def count(self) -> int:
        """Number of steps of the chain."""
        return len(self._steps)

    @property
    def rounds(self) -> set[int]:
        """The run's rounds that have a sum of updates or of an evaluation's answers."""
        return {number for number, _, _ in self._steps} | set(self._evaluations)

    def round_of(self, step: int) -> int:
        """The run's round that made ``step`` (from 1)."""
        return self._steps[step - 1][0]

    def first(self) -> list[Array]:
        """The model that the run began with."""
        if self._first is None:
            self._first = _read_model(self.folder, len(self.charter.arrays))
        return self._first

    def step(self, number: int) -> list[bytes]:
        """The sums of step ``number``, from 1."""
        groups = self._steps[number - 1][1]
        return [_read(self.folder / _aggregate_name(number, group)) for group in range(groups)]

    def left_out(self, number: int) -> list[int]:
        """The groups of step ``number`` whose sums its clients cannot open."""
        return list(self._steps[number - 1][2])

    def evaluations(self) -> dict[int, int]:
        """The rounds whose evaluation has a sum, each with the step that it evaluated."""
        return dict(self._evaluations)

    def evaluation(self, number: int) -> bytes:
        """The sum of the answers of round ``number``'s evaluation."""
        return _read(self.folder / _evaluation_name(number))

    def heads(self) -> list[tuple[int, bytes]]:
        """The heads of clients' logs that came with frames, in order: (client, head). Raises `RunError`."""
        path = self.folder / _HEADS
        try:
            content = read_file(path, MAX_LOG)
        except FileNotFoundError:
            return []
        except OSError as error:
            raise RunError(f"{path} cannot be read: {error}; copy the whole folder of the run") from error
        # A server that was killed may have left a part of its last record.
        records = [content[k : k + _RECORD] for k in range(0, len(content) - _RECORD + 1, _RECORD)]
        return [(int.from_bytes(record[:4], "little"), record[4:]) for record in records]

    def set_model(self, before: int | None = None) -> list[Array] | None:
        """The last model that the server has set (before step ``before``, if given); None if it has set none."""
        steps = [step for step in self._set if before is None or step < before]
        if not steps:
            return None
        if not self.charter.sets_models:
            raise RunError(f"{self.folder} holds a model that its server has set, but its charter does not allow this")
        return _read_model(self.folder, len(self.charter.arrays), _set_name(steps[-1]))


def replay(run: StoredRun, scheme: Scheme, decryptor: Decryptor) -> Chain:
    """Open the chain of ``run`` from its first model to its last, and log what its clients have lost.

    Raises the errors of a decryptor.
    """
    chain = Chain(run.charter, scheme, run.context, first=run.first())
    elements = sum(x.size for x in chain.model)
    for number in range(1, run.count + 1):
        opened = chain.step(decryptor, run.step(number), run.round_of(number))
        for lost in losses(opened.answers, "train", elements):
            _log.warning("round %s: %s", run.round_of(number), lost)
    return chain


def _count(value: object, minimum: int = 0) -> int:
    """A whole number of an index, which is untrusted. Raises `ValueError`."""
    if type(value) is not int or not minimum <= value <= _MAX_STEPS:
        raise ValueError(f"{value!r} is not a number of a step or a round")
    return value


class RunFolder(StoredRun):
    """The run that a server writes, into ``folder``, or into ``folder-2``, ``folder-3`` and so on if that exists.

    ``begun`` says that ``folder`` exists because a server was killed before its run had a model (see `has_run`). Raises
    `RunError` if the folder cannot be written.
    """

    def __init__(
        self,
        folder: str | Path,
        scheme: Scheme,
        charter: Charter,
        model: Sequence[Array],
        *,
        begun: bool = False,
    ) -> None:
        place = Path(folder).absolute() if begun else _new_folder(Path(folder).absolute())
        index: dict[str, Any] = {
            "fedcipher": _FORMAT,
            "scheme": scheme.spec(),
            "charter": charter.encode().decode(),
            "context": "",
            "steps": [],
            "evaluations": {},
            "set": [],
        }
        super().__init__(place, index)
        self._write_model(_FIRST, model)
        self._write_index()

    @staticmethod
    def has_run(folder: Path) -> bool:
        """Whether ``folder`` holds a run to resume. If not, no client has been asked yet.

        Raises `RunError` if the folder holds other files.
        """
        if (folder / _INDEX).exists():
            return True
        strange = [path.name for path in folder.iterdir() if not re.fullmatch(_FILES_BEFORE_INDEX, path.name)]
        if strange:
            raise RunError(f"{folder} holds {strange[0]} and no run: name a new folder, or the folder of a run")
        return False

    @classmethod
    def reopen(cls, folder: Path, scheme: Scheme, count: int, begun: Collection[int]) -> RunFolder:
        """Open the run in ``folder`` to resume it after step ``count``. Later steps are dropped.

        ``begun`` are the rounds in the run's journal. Raises `RunError`, also if the folder has sums of other rounds.
        """
        stored = read_run(folder)
        # If a server was killed, only the steps of its last round may be missing from the journal.
        beyond = {stored.round_of(step) for step in range(count + 1, stored.count + 1)}
        unknown = sorted(stored.rounds - set(begun)) or sorted(beyond)[:-1]
        if unknown:
            raise RunError(
                f"the journal of {folder} is older than the run: it lacks round {unknown[0]}, which has a sum. Copy "
                "the whole folder of the run again, with journal.db-wal if it exists. If there is no other copy, start "
                "a new run from the model of `fedcipher open`"
            )
        if stored.scheme_spec != json.loads(json.dumps(scheme.spec())):
            raise RunError(f"the run {folder} has other keys than the server: scheme, parameters or codec differ")
        made = cls.__new__(cls)
        StoredRun.__init__(made, folder, stored._index)
        if made.count > count and sends_histograms_at(scheme, made.charter, count):
            # Keep the sum of histograms, from which the clients have the ranges of their next update.
            count += 1
        # One step may be missing, because it was withdrawn.
        if made.count + 1 < count:
            raise RunError(f"{folder / _INDEX} is older than the run's journal: copy the whole folder of the run again")
        made._steps = made._steps[:count]
        made._evaluations = {n: step for n, step in made._evaluations.items() if step <= count}
        made._set = [step for step in made._set if step <= count]
        made.first()
        made._write_index()
        return made

    def set_context(self, context: bytes) -> None:
        """Store the digest of the clients' settings that are not in the charter, from the first sum."""
        self.context = context
        self._write_index()

    def append(self, frames: Sequence[bytes], number: int) -> None:
        """Append the next step: the sums of the run's round ``number``."""
        step = self.count + 1
        for group, frame in enumerate(frames):
            self._write(_aggregate_name(step, group), frame)
        self._steps.append((number, len(frames), []))
        self._write_index()

    def leave_out(self, groups: Collection[int]) -> None:
        """Record that the clients of the last step cannot open its sums ``groups``."""
        number, count, _ = self._steps[-1]
        self._steps[-1] = (number, count, sorted(groups))
        self._write_index()

    def withdraw(self) -> None:
        """Remove the last step, whose sums do not open."""
        step, groups = self.count, self._steps.pop()[1]
        self._evaluations = {n: at for n, at in self._evaluations.items() if at < step}
        self._set = [at for at in self._set if at < step]
        self._write_index()
        for group in range(groups):
            (self.folder / _aggregate_name(step, group)).unlink(missing_ok=True)

    def keep_heads(self, heads: Mapping[int, bytes]) -> None:
        """Append the heads of logs that came with a round's frames, by client. Raises `RunError`."""
        if not heads:
            return
        path = self.folder / _HEADS
        try:
            with create_private(path, append=True) as file:
                # A server that was killed may have left a part of a record.
                whole = file.tell() // _RECORD * _RECORD
                os.ftruncate(file.fileno(), whole)
                file.writelines(client.to_bytes(4, "little") + head for client, head in heads.items())
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise unwritten(path, error) from error

    def append_evaluation(self, frame: bytes, number: int) -> None:
        """Append the sum of the answers of round ``number``'s evaluation, at the present step."""
        self._write(_evaluation_name(number), frame)
        self._evaluations[number] = self.count
        self._write_index()

    def keep_model(self, model: Sequence[Array]) -> None:
        """Store a model that the server has set after the last step. The model before it is kept as well.

        A server that is killed before the round ends resumes from the earlier model.
        """
        step, stored = self.count, self._set
        self._write_model(_set_name(step), model)
        self._set = [*[at for at in stored if at < step][-1:], step]
        self._write_index()
        for at in set(stored) - set(self._set):
            (self.folder / _set_name(at)).unlink(missing_ok=True)

    def _write_index(self) -> None:
        self._index["context"] = self.context.hex()
        self._index["steps"] = [list(step) for step in self._steps]
        self._index["evaluations"] = {str(number): step for number, step in self._evaluations.items()}
        self._index["set"] = self._set
        self._write(_INDEX, json.dumps(self._index).encode())

    def _write_model(self, name: str, model: Sequence[Array]) -> None:
        packed = io.BytesIO()
        np.savez(packed, *model)
        self._write(name, packed.getvalue())

    def _write(self, name: str, content: bytes) -> None:
        write_whole(self.folder / name, content)


def save_model(path: str | Path, model: Mapping[str, Array]) -> None:
    """Write named arrays as an ``.npz`` file, atomically. Raises `RunError`.

    `numpy.savez` would refuse an array named ``file``, and would add a suffix to the file's name.
    """
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        for name, values in model.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                np.lib.format.write_array(member, np.asarray(values), allow_pickle=False)
    write_whole(Path(path), packed.getvalue(), follow=True)


def free_folder(folder: Path) -> Path:
    """The folder for a new run: ``folder``, or ``folder-2``, ``folder-3`` and so on if it exists."""
    return next(tried for tried in _names(folder) if not tried.exists())


def _names(folder: Path) -> Iterator[Path]:
    yield folder
    for number in itertools.count(2):
        yield folder.with_name(f"{folder.name}-{number}")


def _new_folder(folder: Path) -> Path:
    for tried in _names(folder):
        try:
            make_private_folder(tried.parent)
            tried.mkdir(mode=0o700)
            return tried
        except FileExistsError:
            continue
        except OSError as error:
            raise RunError(f"the run cannot be written to {folder}: {error}; choose another folder") from error
    raise AssertionError("unreachable")


def _aggregate_name(step: int, group: int) -> str:
    return f"aggregate-{step:08d}-{group:04d}.fedc"


def _evaluation_name(number: int) -> str:
    return f"evaluation-{number:08d}.fedc"


def _set_name(step: int) -> str:
    return f"set-{step:08d}.npz"


def _read(path: Path) -> bytes:
    try:
        return read_file(path, MAX_FRAME)
    except OSError as error:
        raise RunError(f"{path} cannot be read: {error}; copy the whole folder of the run") from error


def open_run(folder: str | Path, key: str | Path | Engine) -> dict[str, Array]:
    """The last global model of a run, as arrays by name. ``key`` is a client's key file or its engine.

    ``folder`` is the run's folder, its name under ``~/.fedcipher/runs``, or the folder of a training.

    Raises `RunError` if the folder is not a run, lacks files, or has no round with an aggregate; `KeyFormatError` for
    the key file; and the errors of a decryptor if the key is not of the run's cohort or an aggregate has been changed.
    """
    folder = locate_run(folder)
    run = read_run(folder)
    scheme, decryptor = _decryptor_of(key)
    if run.scheme_spec != json.loads(json.dumps(scheme.spec())):
        raise RunError(f"the run has other keys than {key}: scheme, parameters or codec differ")
    if run.count == int(reached_by_histograms(scheme, run.charter, run.count)):
        raise RunError(f"no round of {folder} has an aggregate, so its model is still the first one")
    try:
        model = _last_server_model(run, scheme, decryptor) or replay(run, scheme, decryptor).model
    except FrameError as error:
        raise RunError(f"an aggregate of {folder} does not open: {error}") from error
    return dict(zip(run.charter.names, model, strict=True))


def _last_server_model(run: StoredRun, scheme: Scheme, decryptor: Decryptor) -> list[Array] | None:
    """The last model that the server has set; None if it has set none.

    The newest sum must open under the run's charter. Otherwise anyone who can write the folder could add a model.
    """
    model = run.set_model()
    if model is None:
        return None
    chain = Chain(run.charter, scheme, run.context, first=run.first())
    chain.set_model(run.set_model(before=run.count) or run.first())
    newest = run.count
    chain.step(decryptor, run.step(newest), run.round_of(newest), without=run.left_out(newest))
    chain.set_model(model)
    return chain.model


def _decryptor_of(key: str | Path | Engine) -> tuple[Scheme, Decryptor]:
    if isinstance(key, Engine):
        return key.scheme, key.decryptor()
    scheme, secret = load_client(key)
    return scheme, scheme.decryptor(secret)


def read_scheme(folder: Path) -> Scheme:
    """The scheme and codec of a run. Raises `RunError` like `open_run`."""
    try:
        return from_spec(read_run(folder).scheme_spec)
    except ParameterError as error:
        raise RunError(f"{folder / _INDEX} is damaged: {quoted(error)}; copy the run again") from error


def read_run(folder: Path) -> StoredRun:
    """Read the run in ``folder``. Raises `RunError`."""
    try:
        index = read_json(folder / _INDEX, MAX_INDEX)
    except OSError as error:
        raise RunError(f"{folder / _INDEX} cannot be read: {error}; copy the whole folder of the run") from error
    except ValueError as error:
        raise RunError(f"{folder / _INDEX} is damaged: {quoted(error)}; copy the run again") from error
    if not isinstance(index, dict):
        raise RunError(f"{folder / _INDEX} is damaged; copy the run again")
    return StoredRun(folder, index)


def _read_model(folder: Path, arrays: int, name: str = _FIRST) -> list[Array]:
    try:
        names = [f"arr_{i}" for i in range(arrays)]
        found = read_npz(folder / name, MAX_MODEL, names)
        return [found[name] for name in names]
    except (OSError, ValueError) as error:
        raise RunError(f"a model of {folder} cannot be read: {error}; copy the run again") from error
