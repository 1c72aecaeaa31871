"""The common interface: a scheme makes keys, encryptors, aggregators and decryptors."""

from __future__ import annotations

import json
import math
import os
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn, Protocol

import numpy as np
from numpy.typing import NDArray

from fedcipher import _native
from fedcipher._arguments import (
    as_array,
    as_arrays,
    as_bytes,
    as_frames,
    as_plain,
    callable_or_none,
    instance_of,
    real_number,
    real_numbers,
    truth,
    whole_number,
    whole_numbers,
)
from fedcipher._files import user_home
from fedcipher._optional import require_feature
from fedcipher.codec import (
    Array,
    Codec,
    LaneCodec,
    Layout,
    Levels,
    flat_float32,
    restore,
    vanished,
    without_lanes,
    without_ranges,
)
from fedcipher.errors import LayoutError, ParameterError, UnknownClientError, UnsupportedError
from fedcipher.foreign_text import MAX_NAME, quoted, quoting_log
from fedcipher.frame import Contribution, inspect
from fedcipher.schemes.noise import Mechanism
from fedcipher.schemes.sparse import CommonSet, Feedback, dequantised, set_of

if TYPE_CHECKING:
    from fedcipher.schemes.committee import Committee, CommitteeRound
    from fedcipher.schemes.workers import PartedSum, Workers

__all__ = [
    "Aggregator",
    "DecryptKernel",
    "Decrypted",
    "Decryptor",
    "EncryptKernel",
    "EncryptStats",
    "Encryptor",
    "KernelDecryptor",
    "KernelEncryptor",
    "KeySet",
    "NativeAggregator",
    "NativeScheme",
    "Rescale",
    "Scheme",
    "SchemeInfo",
    "client_key",
    "cohort_of",
    "plain_params",
    "refuse_copy",
    "round_of",
    "server_key",
    "state_dir",
]

_log = quoting_log("fedcipher")
_MAX_CLIENT, _MAX_COHORT = (1 << 32) - 1, 1 << 20
_CLIENT_KEY = "give a client's key, as from KeySet.client or fedcipher.keys.load_client"
_SERVER_KEY = "give the server's key, as from KeySet.server or fedcipher.keys.load_server"
_MAX_WEIGHT, _MAX_LANES = (1 << 32) - 1, 1 << 33
_MAX_EXACT = 1 << 24
"""float32 represents every whole number up to this magnitude, so sums of lanes are exact."""


@dataclass(frozen=True)
class SchemeInfo:
    """Facts about a scheme for users that choose one."""

    summary: str
    withstands: str
    broken_by: str
    cost: str
    source: str
    packages: tuple[str, ...] = ()
    """Other packages that the scheme needs."""
    install: str = ""
    """The command that installs these packages."""
    feature: str = ""
    """The Cargo feature of the scheme's kernel, if some builds lack the kernel."""
    post_quantum: bool = True
    hides: bool = True
    """False if the scheme leaves updates in the clear."""
    baseline: bool = False
    """Whether the scheme exists only for comparisons."""
    widths: bool = False
    """Whether values of fewer bits have narrower lanes, where a codec has several."""
    committee: bool = False
    """Whether opening a sum needs answers of a committee."""
    workers: bool = False
    """Whether aggregation is more than additions, so that workers can share the work."""


@dataclass
class EncryptStats:
    """Figures of one encryption: seconds by phase, clipped values, bytes."""

    encode_seconds: float = 0.0
    encrypt_seconds: float = 0.0
    clipped: int = 0
    clipped_by_tensor: list[int] = field(default_factory=list)
    vanished_by_tensor: list[int] = field(default_factory=list[int])
    """Values of each tensor that was sent as zeros only, because all its values are below half a step of a fixed
    range; 0 for other tensors."""
    elements: int = 0
    frame_bytes: int = 0
    setup_bytes: int = 0
    """Bytes of the frame that are sent once in a key epoch."""
    scaled: float = 1.0
    """With privacy: the factor that limited the update's norm. The factor is private: do not send it to the server."""


@dataclass(frozen=True)
class Decrypted:
    """A decrypted round: the weighted mean in the original shapes, and its clients."""

    arrays: list[Array]
    round: int
    contributions: list[Contribution]
    counts: NDArray[np.uint32] | None = None
    lanes: list[int] = field(default_factory=list[int])
    """Exact sums of the whole numbers that clients sent beside their updates (``lanes`` of `Encryptor.encrypt`)."""
    false_members: list[int] = field(default_factory=list[int])
    """Members of the committee whose answers contradict the others. The mean does not use these answers."""


@dataclass(frozen=True)
class KeySet:
    """The keys of one key set: a secret key for each client, a public key for the server."""

    clients: dict[int, _native.ClientKey] = field(repr=False)
    server_key: _native.ServerKey

    def client(self, client: int) -> _native.ClientKey:
        """The key of ``client``. Raises `UnknownClientError` if the client is not in the cohort."""
        client = whole_number(client, "client")
        if client not in self.clients:
            raise UnknownClientError(f"client {client} is not in the cohort {sorted(self.clients)}")
        return self.clients[client]

    def server(self) -> _native.ServerKey:
        """The aggregator's key."""
        return self.server_key

    def __reduce__(self) -> NoReturn:
        refuse_copy(self)


def refuse_copy(value: object) -> NoReturn:
    """Raise `UnsupportedError`: copies could use a key or a round twice, and a pickle would contain a secret."""
    raise UnsupportedError(
        f"a {type(value).__name__} cannot be copied or pickled: write keys with fedcipher.keys.save, send the scheme's "
        "spec(), and make the object in the process that uses it"
    )


EPHEMERAL_STATE = "FEDCIPHER_ALLOW_EPHEMERAL_STATE"
"""Environment variable: at 1, the state folder may vanish with its container. Set it only if the keys vanish too."""


def state_dir() -> Path:
    """The folder of nonce ledgers: ``FEDCIPHER_STATE_DIR``, or the user's state folder. Raises `ParameterError`."""
    chosen = os.environ.get("FEDCIPHER_STATE_DIR")
    if chosen:
        return Path(chosen)
    base = os.environ.get("XDG_STATE_HOME") or user_home("FEDCIPHER_STATE_DIR") / ".local" / "state"
    return Path(base) / "fedcipher"


def cohort_of(cohort: int | Iterable[int], epoch: int) -> list[int]:
    """Check a cohort and an ``epoch`` for which keys are requested, and return the cohort's ids.

    Raises `ParameterError`.
    """
    if isinstance(cohort, Iterable) and getattr(cohort, "ndim", 1):
        ids = whole_numbers(cohort, "cohort", 0, _MAX_CLIENT)
    else:
        ids = list(range(whole_number(cohort, "cohort", 0, _MAX_COHORT)))
    whole_number(epoch, "epoch")
    if not ids:
        raise ParameterError("a cohort has at least one client, with ids from 0 to 2**32 - 1")
    return ids


def plain_params(params: Mapping[str, Any]) -> dict[str, Any]:
    """Convert a scheme's parameters to Python's own numbers. Raises `ParameterError`."""
    made = {name: as_plain(value) for name, value in params.items()}
    for name in ("clients", "max_weight"):
        made[name] = whole_number(made[name], name)
    for name, value in made.items():
        # The core's JSON parser rejects NaN and infinity.
        if name != "min_contributions" and isinstance(value, float) and not math.isfinite(value):
            raise ParameterError(f"parameter {name}: {value} is not a finite number")
    least = made["min_contributions"]
    if isinstance(least, bool) or not (least is None or isinstance(least, (int, float))):
        raise ParameterError(
            f"min_contributions={quoted(repr(least), MAX_NAME)} is neither a count from 1 on nor a share of the "
            "clients between 0 and 1"
        )
    return made


def client_key(key: object) -> _native.ClientKey:
    """Check that ``key`` is a client's key, and return it. Raises `ParameterError`."""
    return instance_of(key, _native.ClientKey, "key", _CLIENT_KEY)


def server_key(key: object) -> _native.ServerKey:
    """Check that ``key`` is the server's key, and return it. Raises `ParameterError`."""
    return instance_of(key, _native.ServerKey, "key", _SERVER_KEY)


def round_of(number: object) -> int | None:
    """Check a round's number, and return it; None stays None. Raises `ParameterError`."""
    return None if number is None else whole_number(number, "round")


Rescale = Callable[[Sequence[int], int], float]
"""A function that computes the factor of the mean from the exact sums of lanes and the number of clients."""


class Encryptor(ABC):
    """Encrypts a client's updates into frames."""

    stats: EncryptStats

    def __reduce__(self) -> NoReturn:
        refuse_copy(self)

    @abstractmethod
    def encrypt(
        self,
        update: Sequence[Array],
        *,
        round: int,
        weight: int = 1,
        reference: Sequence[Array] | None = None,
        round_plan: bytes = b"",
        model: bytes = b"",
        memory: bytes = b"",
        lanes: NDArray[np.float32] | None = None,
        counts: int = 0,
        unbiased: bool = False,
        hide_ranges: bool = False,
        bits: int = 0,
    ) -> bytes:
        """Encrypt ``update`` (float arrays of any shape) for ``round`` and set ``stats``.

        Arrays are numpy arrays, or DLPack tensors (PyTorch, JAX) on a CPU or GPU. With ``Codec(privacy=...)`` the
        update is clipped and gets noise, and ``reference`` is not used.

        Parameters
        ----------
        weight
            The client's integer weight in the mean.
        reference
            The public arrays that clip ranges are fitted to, and with ``Codec(top=...)`` the round's coordinates too.
        round_plan
            The bytes that the server announced for the round (`Scheme.round_plan`).
        model
            A digest of the global model that the update was trained from. A sum of updates from different models does
            not open.
        memory
            Names the memory of the rule of sets that the sum counts in; empty for none. All updates of a sum must name
            the same memory.
        lanes, counts
            Whole numbers that travel beside an update of weight 1. The first ``counts`` of the lanes are 0 or 1. The
            others have a magnitude of at most `Scheme.largest_digit`. Their sums are exact (`Decrypted.lanes`).
        unbiased
            Round at random, even if the codec rounds to the nearest.
        hide_ranges
            Keep the clip ranges out of the frame, for readers that know them.
        bits
            The bits that a run has chosen (`Codec.at`).

        Raises `NotFiniteError`, `WeightError`, `BoundError`, `LayoutError`, `NonceReuseError`, `PrivacyBudgetError`,
        and `PrekeyError` if the committee's prekeys are missing.
        """

    def take_prekeys(self, frames: Sequence[bytes]) -> list[str]:
        """Take the prekeys that members of the committee have published (`Member.prekey`).

        These prekeys replace those taken before: the next updates encrypt shares to them. Returns a reason for each
        refused prekey. Raises `PrekeyError` if too few members remain. Does nothing if the scheme has no committee.
        """
        return []

    def precompute(
        self,
        update: Sequence[Array],
        *,
        round: int,
        reference: Sequence[Array] | None = None,
        round_plan: bytes = b"",
        lanes: int = 0,
        counts: int = 0,
        hide_ranges: bool = False,
        bits: int = 0,
    ) -> None:
        """Compute in advance what does not depend on the data, for an update with the shapes of ``update``.

        ``lanes`` is the number of lanes. The other arguments are those of the later call of `encrypt`.
        """

    def export_state(self) -> bytes:
        """Return the state to continue with in another process (error feedback). The state is secret to this client."""
        return b""

    def import_state(self, state: bytes) -> None:
        """Continue with a state of `export_state`."""


class Aggregator(ABC):
    """The server's running sum of one round. Its memory does not grow with the number of clients."""

    def __reduce__(self) -> NoReturn:
        refuse_copy(self)

    @abstractmethod
    def add(self, frame: bytes) -> Contribution:
        """Check a client's frame and add it to the sum.

        Raises `FrameError`, `RoundError`, `LayoutError` or `WeightError` for a refused frame, which does not change the
        sum.
        """

    @property
    def committee(self) -> CommitteeRound | None:
        """The round's exchange with the committee; None if the scheme has no committee."""
        return None

    @property
    def parted(self) -> PartedSum | None:
        """The work of `finish` for other processes of the server; None if `finish` only adds.

        `fedcipher.scale` runs this work on Ray.
        """
        return None

    @abstractmethod
    def finish(self, progress: Callable[[int, int], None] | None = None) -> bytes:
        """Return the aggregate to broadcast.

        Raises `EmptyCohortError` if nothing was added, `TooFewContributionsError` below the scheme's
        ``min_contributions``, and `CommitteeError` while answers of the committee are missing.

        A long aggregation calls ``progress(done, total)``. An exception from ``progress`` cancels the call, and
        `finish` may then be called again.
        """


class Decryptor(ABC):
    """Decrypts aggregates into weighted means, on a client.

    An aggregate opens only if it is the genuine sum of the clients that it names: at least ``min_contributions``
    clients, all from one global model. Aggregates of rounds older than the last opened one do not open. The same bytes
    open again.

    A round has a single aggregate, unless its aggregates count in a memory of the rule of sets. Then a round may have
    several aggregates without a common client. Each group of clients that are in the same sums of the memory must have
    at least ``min_contributions`` clients.

    `state_dir` records opened aggregates. Memories whose id begins with byte 1 are kept permanently, others until their
    last round is 256 numbers old; rounds of that age are refused (docs/explanation/security.md, "Which sums may
    exist").
    """

    def __reduce__(self) -> NoReturn:
        refuse_copy(self)

    @abstractmethod
    def open(
        self,
        frame: bytes,
        *,
        round: int | None = None,
        model: bytes | None = None,
        memory: bytes | None = None,
        reference: Sequence[Array] | None = None,
        like: Sequence[Array] | None = None,
        rescale: Rescale | None = None,
        ranges: Sequence[float] | None = None,
    ) -> Decrypted:
        """Decrypt an aggregate.

        With ``Codec(top=...)`` an aggregate has part of the elements, without their positions. The other elements are
        zero in the result.

        Parameters
        ----------
        round, model, memory
            If given, the aggregate's round, model digest and memory must equal these.
        reference
            With ``Codec(top=...)``: the arrays that the clients passed to `Encryptor.encrypt` as ``reference``, which
            are the mean of the previous aggregate.
        like
            With ``Codec(top=...)``: arrays with the model's shapes, needed if there is no ``reference``. Empty for a
            frame that has lanes and no update.
        rescale
            Returns the factor of the mean for the sums of the lanes and the number of clients.
        ranges
            The clip range of each array, for frames that hide them.

        Raises `ForgedAggregateError`, `ReplayError`, `TooFewContributionsError`, `ModelMismatchError`,
        `WrongRoundError`, `FrameError`.
        """

    def decrypt(
        self,
        frame: bytes,
        *,
        round: int | None = None,
        model: bytes | None = None,
        memory: bytes | None = None,
        reference: Sequence[Array] | None = None,
        like: Sequence[Array] | None = None,
    ) -> list[Array]:
        """Return the weighted mean in the original shapes and types. Arguments and errors are those of `open`."""
        return self.open(frame, round=round, model=model, memory=memory, reference=reference, like=like).arrays

    @abstractmethod
    def sums(
        self,
        frame: bytes,
        *,
        memory: bytes | None = None,
        reference: Sequence[Array] | None = None,
        like: Sequence[Array] | None = None,
    ) -> NDArray[np.uint64]:
        """Return the integer sums before division, flat, in tensor order. Arguments and errors are those of `open`.

        With ``Codec(top=...)`` these are the sums of the elements that were sent. With `flashe` and ``per_client_top``
        a client that did not send an element adds the integer of zero, which is half of the largest integer.
        """


class Scheme(ABC):
    """A scheme with its parameters and codec; see `fedcipher.scheme`."""

    name: ClassVar[str]
    info: ClassVar[SchemeInfo]
    split: ClassVar[dict[str, str]] = {}
    """Names that are not parameters, with the parameters to give instead."""
    variants: ClassVar[dict[str, dict[str, Any]]] = {}
    """Names and parameters of further variants for tests (`fedcipher.schemes.every_scheme`)."""
    codec: Codec
    max_weight: int
    min_contributions: int
    """Fewest clients in a sum that is made or opened."""

    @abstractmethod
    def params(self) -> dict[str, Any]:
        """The arguments that construct this scheme again."""

    def spec(self) -> dict[str, Any]:
        """The scheme's entry in a key file: name, parameters and codec as plain values."""
        return {"scheme": self.name, "params": self.params(), "codec": self.codec.to_dict()}

    def __reduce__(self) -> tuple[partial[Scheme], tuple[()]]:
        return partial(type(self), **self.params(), codec=self.codec), ()

    @abstractmethod
    def describe(self) -> dict[str, str]:
        """Derived figures, as text by name."""

    @property
    @abstractmethod
    def levels(self) -> Levels:
        """The number of quantisation steps for each number of bits: the most that the fields of a sum can hold."""

    @classmethod
    def check_widths(cls, codec: Codec, *, sends_parts: bool = False) -> None:
        """Raise `ParameterError` for ``bits="auto"`` if fewer bits do not make this scheme's frames smaller."""
        if codec.adaptive and (sends_parts or not cls.info.widths):
            raise ParameterError(
                f'bits="auto" needs lanes as wide as their values, which {cls.name} does not have with these '
                "parameters; give a number of bits"
            )

    @property
    def lane_bits(self) -> tuple[int, int]:
        """Bits, as the codec counts them, of (a count, a digit) beside an update.

        If all values of a frame have lanes of one width, these are the bits of the codec's widest value.
        """
        widest = max(self.codec.bit_widths)
        return widest, widest

    @property
    def largest_digit(self) -> int:
        """The largest magnitude of a whole number beside an update whose sum over all clients is exact."""
        largest = self.levels.of(self.lane_bits[1]) // 2
        return min(largest, _MAX_EXACT // int(self.params()["clients"]))

    @property
    def noise_shares(self) -> int:
        """With privacy: how many clients' noise in an opened sum is unknown to any single reader.

        A reader knows its own noise, so this is ``min_contributions - 1``, and at least 1.
        """
        return max(1, self.min_contributions - 1)

    @property
    def committee(self) -> Committee | None:
        """The scheme's rosters and committee; None if clients share a key."""
        return None

    @property
    def workers(self) -> Workers | None:
        """Runs parts of an aggregation's work; None if a sum takes additions only."""
        return None

    @property
    def sends_parts(self) -> bool:
        """Whether clients send part of an update each round and keep the rest for later ones (error feedback)."""
        return self.codec.top is not None or self.params().get("per_client_top") is not None

    @property
    def values_per_ciphertext(self) -> int:
        """Values per ciphertext if the cost grows by whole ciphertexts; otherwise 1."""
        return 1

    @abstractmethod
    def keygen(self, cohort: int | Iterable[int], *, epoch: int = 1) -> KeySet:
        """Make keys for clients ``0..cohort-1``, or for the given ids. Raises `ParameterError`."""

    @abstractmethod
    def encryptor(self, key: _native.ClientKey) -> Encryptor:
        """Make an encryptor for the holder of ``key``."""

    @abstractmethod
    def aggregator(self, key: _native.ServerKey, *, round: int | None = None) -> Aggregator:
        """Make an aggregator for one round. Without ``round``, the first frame determines the round."""

    @abstractmethod
    def decryptor(self, key: _native.ClientKey, *, in_memory: bool = False) -> Decryptor:
        """Make a decryptor for the holder of ``key``.

        With ``in_memory`` the decryptor does not write to `state_dir` and forgets what it opened when it ends. This is
        for a second reader of a run beside the client: the reader must not change the client's records.
        """

    def round_plan(self, key: _native.ServerKey, sampled: Sequence[int]) -> bytes:
        """Return the bytes that the server announces to the ``sampled`` clients before a round; empty for none."""
        return b""


class NativeScheme(Scheme):
    """A scheme with its kernel in the Rust core. A subclass defines only the constructor."""

    def __init__(self, codec: Codec, params: dict[str, Any]) -> None:
        require_feature(f"scheme {self.name!r}", self.info.feature)
        self.codec = codec
        params = plain_params(params)
        self.check_widths(codec, sends_parts=codec.top is not None or params.get("per_client_top") is not None)
        self.max_weight = params["max_weight"]
        self.min_contributions = _native.min_contributions(
            params["clients"], params["min_contributions"], params.get("corrupt_clients")
        )
        self._params = {**params, "min_contributions": self.min_contributions}
        self._native = _native.Scheme(json.dumps(self.spec()))

    def params(self) -> dict[str, Any]:
        return dict(self._params)

    def describe(self) -> dict[str, str]:
        return dict(self._native.describe())

    @property
    def levels(self) -> Levels:
        return self._native.levels()

    @property
    def lane_bits(self) -> tuple[int, int]:
        return self._native.lane_bits() or super().lane_bits

    def keygen(self, cohort: int | Iterable[int], *, epoch: int = 1) -> KeySet:
        ids = cohort_of(cohort, epoch)
        clients, server = self._native.keygen(ids, whole_number(epoch, "epoch"))
        return KeySet({key.client: key for key in clients}, server)

    def encryptor(self, key: _native.ClientKey) -> Encryptor:
        return KernelEncryptor(self._native.encryptor(client_key(key), state_dir()), self)

    def aggregator(self, key: _native.ServerKey, *, round: int | None = None) -> Aggregator:
        return NativeAggregator(self._native.aggregator(server_key(key), round_of(round)))

    def decryptor(self, key: _native.ClientKey, *, in_memory: bool = False) -> Decryptor:
        state = None if truth(in_memory, "in_memory") else state_dir()
        return KernelDecryptor(self._native.decryptor(client_key(key), state), self.codec)

    def round_plan(self, key: _native.ServerKey, sampled: Sequence[int]) -> bytes:
        return self._native.round_plan(server_key(key), whole_numbers(sampled, "sampled", 0, _MAX_CLIENT))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{k}={v!r}' for k, v in self._params.items())})"


class EncryptKernel(Protocol):
    """Encrypts flat arrays: the core in this process, or an engine in another process."""

    def encrypt(
        self,
        layout: _native.Layout,
        arrays: list[NDArray[np.float32]],
        round: int,
        weight: int,
        round_plan: bytes,
        model: bytes,
        memory: bytes,
        associated_data: bytes,
        stochastic: bool,
    ) -> tuple[bytes, list[int], float]: ...
    def take_prekeys(self, frames: list[bytes]) -> list[str]: ...
    def precompute(self, round: int, layout: _native.Layout, round_plan: bytes) -> None: ...
    def setup_bytes(self) -> int: ...
    def export_state(self) -> bytes: ...
    def import_state(self, state: bytes) -> None: ...


class DecryptKernel(Protocol):
    """Decrypts aggregates into flat arrays."""

    def decrypt(
        self,
        frame: bytes,
        round: int | None = None,
        model: bytes | None = None,
        memory: bytes | None = None,
        associated_data: bytes | None = None,
    ) -> tuple[
        _native.Layout, int, list[tuple[int, int]], NDArray[np.float32], NDArray[np.uint32] | None, list[int]
    ]: ...
    def decrypt_sums(
        self, frame: bytes, memory: bytes | None = None, associated_data: bytes | None = None
    ) -> tuple[list[tuple[int, int]], NDArray[np.uint64]]: ...


@dataclass(frozen=True)
class _FrameFields:
    """The fields of a frame other than its values."""

    round: int
    weight: int
    round_plan: bytes
    model: bytes
    memory: bytes
    stochastic: bool
    hide_ranges: bool

    def with_ranges_hidden(
        self, layout: Layout, flat: list[NDArray[np.float32]]
    ) -> tuple[Layout, list[NDArray[np.float32]]]:
        """The layout that the frame states, and the values in that layout's ranges."""
        if not self.hide_ranges:
            return layout, flat
        ranges = [alpha for _, _, alpha, _ in layout.tensors]
        return without_ranges(layout), [_in_units_of_range(x, alpha) for x, alpha in zip(flat, ranges, strict=True)]


def _checked_lanes(lanes: object, counts: object, largest: int) -> tuple[NDArray[np.float32], int]:
    """Check that no lane exceeds its range, so that sums are exact. Raises `ParameterError`."""
    values = as_array(lanes, "lanes")
    made = values.astype(np.float32, copy=False)
    if values.ndim != 1 or not (np.rint(made) == values).all():
        raise ParameterError("lanes are a row of whole numbers")
    given = whole_number(counts, "counts", 0, values.size)
    if not np.isin(made[:given], (0, 1)).all():
        raise ParameterError(f"the first {given} lanes are counts, which are 0 or 1 each")
    if given < made.size and np.abs(made[given:]).max() > largest:
        raise ParameterError(f"a lane holds numbers from -{largest} to {largest}; cut larger ones into several lanes")
    return made, given


def _in_units_of_range(x: NDArray[np.float32], alpha: float) -> NDArray[np.float32]:
    """``x`` in units of its range, clipped at 2: infinity would be refused, and the refusal would reveal a value."""
    made = x * np.float32(1 / alpha)
    return np.clip(made, -2, 2, out=made)


class KernelEncryptor(Encryptor):
    """Encodes updates with the codec and encrypts them with a kernel."""

    def __init__(self, native: EncryptKernel, made_by: Scheme) -> None:
        self._native = native
        self._codec = codec = made_by.codec
        self._levels = made_by.levels
        self._lanes = LaneCodec(made_by.lane_bits, made_by.levels, short=made_by.sends_parts)
        self._largest_digit = made_by.largest_digit
        self._noise = codec.privacy and Mechanism(codec, codec.privacy, made_by.noise_shares)
        self._feedback = Feedback()
        self.stats = EncryptStats()

    def take_prekeys(self, frames: Sequence[bytes]) -> list[str]:
        return self._native.take_prekeys(as_frames(frames, "frames"))

    def encrypt(
        self,
        update: Sequence[Array],
        *,
        round: int,
        weight: int = 1,
        reference: Sequence[Array] | None = None,
        round_plan: bytes = b"",
        model: bytes = b"",
        memory: bytes = b"",
        lanes: NDArray[np.float32] | None = None,
        counts: int = 0,
        unbiased: bool = False,
        hide_ranges: bool = False,
        bits: int = 0,
    ) -> bytes:
        weight = whole_number(weight, "weight", 0, _MAX_WEIGHT)
        if lanes is not None:
            if weight != 1:
                raise ParameterError(
                    f"weight={weight} with lanes: their sums would be weighted; multiply the update by its weight and "
                    "give weight=1"
                )
            lanes, counts = _checked_lanes(lanes, counts, self._largest_digit)
        update = as_arrays(update, "update")
        reference = None if reference is None else as_arrays(reference, "reference")
        fields = _FrameFields(
            round=whole_number(round, "round"),
            weight=weight,
            round_plan=as_bytes(round_plan, "round_plan"),
            model=as_bytes(model, "model"),
            memory=as_bytes(memory, "memory"),
            stochastic=truth(unbiased, "unbiased") or self._codec.rounding == "stochastic",
            hide_ranges=truth(hide_ranges, "hide_ranges"),
        )
        if not update:
            return self._encrypt_lanes(fields, lanes, counts)
        if self._codec.top is not None:
            return self._encrypt_part(self._codec.top, update, fields, reference, (lanes, counts))
        if self._noise:
            return self._encrypt_noisy(self._noise, update, fields, lanes)
        began = time.perf_counter()
        plain = self._codec.at(bits).layout(update, reference, self._levels)
        flat = flat_float32(update)
        layout, shown = fields.with_ranges_hidden(plain, flat)
        layout = self._lanes.beside(layout, 0 if lanes is None else lanes.size, counts)
        prepared = time.perf_counter()
        frame, clipped, quantising = self._seal(layout, [*shown, *self._lanes.split(lanes, counts)], fields)
        self._note(began, prepared, quantising, clipped[: len(flat)], layout, frame)
        if not fields.stochastic and not isinstance(self._codec.clip, str):
            self.stats.vanished_by_tensor = vanished(plain, flat, self._levels)
        return frame

    def _seal(
        self, layout: Layout, arrays: list[NDArray[np.float32]], fields: _FrameFields, associated_data: bytes = b""
    ) -> tuple[bytes, list[int], float]:
        stochastic = fields.stochastic and not associated_data
        named = fields.round_plan, fields.model, fields.memory
        return self._native.encrypt(layout, arrays, fields.round, fields.weight, *named, associated_data, stochastic)

    def _encrypt_lanes(self, fields: _FrameFields, lanes: NDArray[np.float32] | None, counts: int) -> bytes:
        if lanes is None or not lanes.size:
            raise LayoutError("there is nothing to encrypt: no update and no lanes")
        began = time.perf_counter()
        layout = Layout(self._lanes.tensors(lanes.size, counts))
        frame, clipped, quantising = self._seal(layout, self._lanes.split(lanes, counts), fields)
        self._note(began, began, quantising, clipped, layout, frame)
        return frame

    def _encrypt_noisy(
        self, noise: Mechanism, update: Sequence[Array], fields: _FrameFields, lanes: NDArray[np.float32] | None
    ) -> bytes:
        if lanes is not None and lanes.size:
            raise ParameterError("no noise of differential privacy covers lanes beside an update; send none")
        began = time.perf_counter()
        noisy = noise.apply(update)
        prepared = time.perf_counter()
        nearest = replace(fields, stochastic=False)
        frame, _, quantising = self._seal(noisy.layout, noisy.arrays, nearest)
        self._note(began, prepared, quantising, noisy.cut, noisy.layout, frame)
        self.stats.scaled = noisy.scaled
        return frame

    def _encrypt_part(
        self,
        top: float,
        update: Sequence[Array],
        fields: _FrameFields,
        reference: Sequence[Array] | None,
        beside: tuple[NDArray[np.float32] | None, int],
    ) -> bytes:
        began = time.perf_counter()
        lanes, counts = beside
        part = CommonSet(update, reference, fields.round, top)
        layout = part.gathered(self._codec.layout(update, reference, self._levels))
        corrected = self._feedback.corrected(update)
        integers, clipped = layout.quantise(part.gather(corrected), fields.stochastic, self._levels)
        # The kernel gets the dequantised values, so that error feedback subtracts exactly what was sent.
        sent = dequantised(layout, integers, self._levels)
        layout, flat = fields.with_ranges_hidden(layout, np.split(sent, np.cumsum(part.counts)[:-1]))
        layout = self._lanes.beside(layout, 0 if lanes is None else lanes.size, counts)
        prepared = time.perf_counter()
        frame, _, quantising = self._seal(layout, [*flat, *self._lanes.split(lanes, counts)], fields, part.digest)
        self._feedback.keep(corrected, part.index, sent)
        self._note(began, prepared, quantising, clipped, layout, frame)
        return frame

    def _note(
        self, began: float, prepared: float, quantising: float, clipped: list[int], layout: Layout, frame: bytes
    ) -> None:
        done = time.perf_counter()
        self.stats = EncryptStats(
            encode_seconds=prepared - began + quantising,
            encrypt_seconds=max(0.0, done - prepared - quantising),
            clipped=sum(clipped),
            clipped_by_tensor=list(clipped),
            elements=layout.elements,
            frame_bytes=len(frame),
            setup_bytes=self._native.setup_bytes(),
        )

    def precompute(
        self,
        update: Sequence[Array],
        *,
        round: int,
        reference: Sequence[Array] | None = None,
        round_plan: bytes = b"",
        lanes: int = 0,
        counts: int = 0,
        hide_ranges: bool = False,
        bits: int = 0,
    ) -> None:
        update = as_arrays(update, "update")
        reference = None if reference is None else as_arrays(reference, "reference")
        round, round_plan = whole_number(round, "round"), as_bytes(round_plan, "round_plan")
        lanes, counts = whole_number(lanes, "lanes", 0, _MAX_LANES), whole_number(counts, "counts", 0, _MAX_LANES)
        hide_ranges = truth(hide_ranges, "hide_ranges")
        codec = self._codec.at(bits)
        layout = self._noise.layout(update) if self._noise else codec.layout(update, reference, self._levels)
        if self._codec.top is not None:
            layout = CommonSet(update, reference, round, self._codec.top).gathered(layout)
        if hide_ranges and not self._noise:
            layout = without_ranges(layout)
        self._native.precompute(round, self._lanes.beside(layout, lanes, counts), round_plan)

    def export_state(self) -> bytes:
        return self._native.export_state() if self._codec.top is None else self._feedback.export()

    def import_state(self, state: bytes) -> None:
        state = as_bytes(state, "state")
        if self._codec.top is None:
            self._native.import_state(state)
        else:
            self._feedback.restore(state)


class NativeAggregator(Aggregator):
    """The core's aggregator, with the committee or the parts of its scheme."""

    def __init__(
        self,
        native: _native.Aggregator,
        *,
        committee: CommitteeRound | None = None,
        parted: PartedSum | None = None,
    ) -> None:
        self._native, self._committee, self._parted = native, committee, parted

    def add(self, frame: bytes) -> Contribution:
        return Contribution(*self._native.add(as_bytes(frame, "frame")))

    @property
    def committee(self) -> CommitteeRound | None:
        return self._committee

    @property
    def parted(self) -> PartedSum | None:
        return self._parted

    def finish(self, progress: Callable[[int, int], None] | None = None) -> bytes:
        return self._native.finish(callable_or_none(progress, "progress"))


def _scale(layout: Layout, flat: NDArray[np.float32], factor: float, ranges: Sequence[float] | None) -> None:
    """Multiply all values by ``factor``, and each array by its range. Raises `LayoutError`."""
    sizes = [math.prod(shape) for _, _, _, shape in layout.tensors]
    factors = [1.0] * len(sizes) if ranges is None else ranges
    if len(sizes) != len(factors):
        raise LayoutError(f"{len(factors)} ranges for the {len(sizes)} arrays of an aggregate")
    _native.scale(flat, factor, sizes, list(factors))


class KernelDecryptor(Decryptor):
    """Decrypts with a kernel and restores shapes and types."""

    def __init__(self, native: DecryptKernel, codec: Codec) -> None:
        self._native = native
        self._top = codec.top

    def open(
        self,
        frame: bytes,
        *,
        round: int | None = None,
        model: bytes | None = None,
        memory: bytes | None = None,
        reference: Sequence[Array] | None = None,
        like: Sequence[Array] | None = None,
        rescale: Rescale | None = None,
        ranges: Sequence[float] | None = None,
    ) -> Decrypted:
        frame, memory = as_bytes(frame, "frame"), None if memory is None else as_bytes(memory, "memory")
        round, model = round_of(round), None if model is None else as_bytes(model, "model")
        rescale = callable_or_none(rescale, "rescale")
        ranges = None if ranges is None else real_numbers(ranges, "ranges")
        part = self._part(frame, reference, like)
        associated_data = b"" if part is None else part.digest
        layout, found, contributions, flat, counts, wrong = self._native.decrypt(
            frame, round, model, memory, associated_data
        )
        clients = [Contribution(*c) for c in contributions]
        layout, flat, lanes = without_lanes(layout, flat)
        if lanes and any(c.weight != 1 for c in clients):
            raise LayoutError("an aggregate with lanes has clients whose weight is not 1")
        factor = 1.0 if rescale is None else real_number(rescale(lanes, len(clients)), "the result of rescale")
        if layout is not None and (factor != 1 or ranges is not None):
            _scale(layout, flat, factor, ranges)
        if part is not None and layout is not None:
            layout, flat = part.scattered(layout), part.scatter(flat)
        if wrong:
            _log.warning(
                "round %s: members %s of the committee gave false answers; the sum was opened without these answers",
                found,
                wrong,
            )
        arrays = restore(layout, flat) if layout is not None else []
        return Decrypted(arrays, found, clients, counts, lanes, wrong)

    def sums(
        self,
        frame: bytes,
        *,
        memory: bytes | None = None,
        reference: Sequence[Array] | None = None,
        like: Sequence[Array] | None = None,
    ) -> NDArray[np.uint64]:
        frame, memory = as_bytes(frame, "frame"), None if memory is None else as_bytes(memory, "memory")
        part = self._part(frame, reference, like)
        return self._native.decrypt_sums(frame, memory, b"" if part is None else part.digest)[1]

    def _part(self, frame: bytes, reference: Sequence[Array] | None, like: Sequence[Array] | None) -> CommonSet | None:
        """The set of elements in the aggregate, which is the same for every honest client of its round."""
        reference = None if reference is None else as_arrays(reference, "reference")
        like = None if like is None else as_arrays(like, "like")
        if self._top is None or (like is not None and not like):
            return None
        return set_of(like, reference, inspect(frame).round, self._top)
