"""The common interface: a scheme makes keys, encryptors, aggregators and decryptors."""

from __future__ import annotations

import json
import math
import os
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
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
_CLIENT_KEY = "give a client's, as from KeySet.client or fedcipher.keys.load_client"
_SERVER_KEY = "give the server's, as from KeySet.server or fedcipher.keys.load_server"
_MAX_WEIGHT, _MAX_LANES = (1 << 32) - 1, 1 << 33
_MOST_EXACT = 1 << 24
"""Float32 has all whole numbers of this magnitude: sums of lanes come out as such."""


@dataclass(frozen=True)
class SchemeInfo:
    """What a user needs to know before choosing a scheme."""

    summary: str
    withstands: str
    broken_by: str
    cost: str
    source: str
    packages: tuple[str, ...] = ()
    """Packages that it needs beside this one."""
    install: str = ""
    """What to type to install those."""
    feature: str = ""
    """The Cargo feature that its kernel needs, where not every build has it."""
    post_quantum: bool = True
    hides: bool = True
    """False for what leaves updates in the clear."""
    baseline: bool = False
    """Whether it is there to be measured beside others, and for nothing else."""
    widths: bool = False
    """Whether values of fewer bits have narrower lanes, where a codec has several."""
    committee: bool = False
    """Whether a sum takes the answers of a committee."""
    workers: bool = False
    """Whether a sum is more than additions, so that workers can share the work."""


@dataclass
class EncryptStats:
    """What one encryption did: seconds by phase, values clipped, bytes made."""

    encode_seconds: float = 0.0
    encrypt_seconds: float = 0.0
    clipped: int = 0
    clipped_by_tensor: list[int] = field(default_factory=list)
    vanished_by_tensor: list[int] = field(default_factory=list[int])
    """Values of tensors that were sent as nothing but zeros and are not: all below half a step of a fixed range."""
    elements: int = 0
    frame_bytes: int = 0
    setup_bytes: int = 0
    """Of the frame's bytes, those that are sent once a key epoch."""
    scaled: float = 1.0
    """With privacy: what the update was multiplied by to keep its norm. Private, so not for the server."""


@dataclass(frozen=True)
class Decrypted:
    """A decrypted round: the weighted mean in the original shapes, and who is in it."""

    arrays: list[Array]
    round: int
    contributions: list[Contribution]
    counts: NDArray[np.uint32] | None = None
    lanes: list[int] = field(default_factory=list[int])
    """Exact sums of the whole numbers that clients sent beside their updates (`Encryptor.encrypt`'s ``lanes``)."""
    false_members: list[int] = field(default_factory=list[int])
    """Members of the committee whose answers do not agree with the others'; the mean was made without them."""


@dataclass(frozen=True)
class KeySet:
    """The authority's product: one secret key a client, one public key for the server."""

    clients: dict[int, _native.ClientKey] = field(repr=False)
    server_key: _native.ServerKey

    def client(self, client: int) -> _native.ClientKey:
        """The key of ``client``; `UnknownClientError` when it is not in the cohort."""
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
    """Raise `UnsupportedError`: two copies would use a key or a round twice, and a pickle would hold a secret."""
    raise UnsupportedError(
        f"a {type(value).__name__} is neither copied nor pickled: write keys with fedcipher.keys.save, send a scheme's "
        "spec(), and make the object where it is used"
    )


EPHEMERAL_STATE = "FEDCIPHER_ALLOW_EPHEMERAL_STATE"
"""The variable that, at 1, lets a container's state folder end with it: for keys that do so too."""


def state_dir() -> Path:
    """Where nonce ledgers live: ``FEDCIPHER_STATE_DIR``, or the user's state folder. Raises `ParameterError`."""
    chosen = os.environ.get("FEDCIPHER_STATE_DIR")
    if chosen:
        return Path(chosen)
    base = os.environ.get("XDG_STATE_HOME") or user_home("FEDCIPHER_STATE_DIR") / ".local" / "state"
    return Path(base) / "fedcipher"


def cohort_of(cohort: int | Iterable[int], epoch: int) -> list[int]:
    """The ids of a cohort for which keys of ``epoch`` are asked. Raises `ParameterError`."""
    if isinstance(cohort, Iterable) and getattr(cohort, "ndim", 1):
        ids = whole_numbers(cohort, "cohort", 0, _MAX_CLIENT)
    else:
        ids = list(range(whole_number(cohort, "cohort", 0, _MAX_COHORT)))
    whole_number(epoch, "epoch")
    if not ids:
        raise ParameterError("a cohort has at least one client, with ids from 0 to 2**32 - 1")
    return ids


def plain_params(params: Mapping[str, Any]) -> dict[str, Any]:
    """A scheme's parameters in Python's own numbers. Raises `ParameterError`."""
    made = {name: as_plain(value) for name, value in params.items()}
    for name in ("clients", "max_weight"):
        made[name] = whole_number(made[name], name)
    for name, value in made.items():
        # Which JSON, as the core reads it, does not have.
        if name != "min_contributions" and isinstance(value, float) and not math.isfinite(value):
            raise ParameterError(f"parameter {name}: {value} is no finite number")
    least = made["min_contributions"]
    if isinstance(least, bool) or not (least is None or isinstance(least, (int, float))):
        raise ParameterError(
            f"min_contributions={quoted(repr(least), MAX_NAME)} is neither a count from 1 on nor a share of the "
            "clients between 0 and 1"
        )
    return made


def client_key(key: object) -> _native.ClientKey:
    """``key``, where it is a client's. Raises `ParameterError`."""
    return instance_of(key, _native.ClientKey, "key", _CLIENT_KEY)


def server_key(key: object) -> _native.ServerKey:
    """``key``, where it is the server's. Raises `ParameterError`."""
    return instance_of(key, _native.ServerKey, "key", _SERVER_KEY)


def round_of(number: object) -> int | None:
    """The number of a round, or none. Raises `ParameterError`."""
    return None if number is None else whole_number(number, "round")


Rescale = Callable[[Sequence[int], int], float]
"""From the exact sums of lanes, and the number of clients: the factor of the mean."""


class Encryptor(ABC):
    """Client side: updates to ciphertext frames."""

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
        plan: bytes = b"",
        model: bytes = b"",
        memory: bytes = b"",
        lanes: NDArray[np.float32] | None = None,
        counts: int = 0,
        unbiased: bool = False,
        hide_ranges: bool = False,
        bits: int = 0,
    ) -> bytes:
        """Encrypt ``update`` (float arrays of any shape) for ``round``.

        Arrays are numpy's, or tensors of PyTorch, JAX or another framework with DLPack, on a GPU too.

        ``weight`` is the client's integer weight in the mean; ``reference`` the public arrays that
        clip ranges, and with ``Codec(top=...)`` the coordinates of the round, are fitted to; ``plan`` what the
        server announced for the round; ``model`` a digest of the global model it was trained from: updates of
        different ones do not add up to anything that opens; ``memory`` names the memory of the rule of sets that the
        sum counts in, empty for none: all updates of a sum agree on it. ``lanes`` are whole numbers that travel beside
        an update of weight 1 in lanes of their own: first so many ``counts``, which are 0 or 1, then numbers of at most
        `Scheme.largest_digit`, positive or negative; their sums come out exact (`Decrypted.lanes`). ``unbiased`` rounds
        at random, also where the codec rounds to the nearest. ``hide_ranges`` keeps the clip ranges out of the frame,
        for readers that know them. ``bits`` are those that a run has chosen (`Codec.at`). Sets ``stats``.

        With ``Codec(privacy=...)`` the update is clipped and gets noise, and ``reference`` is not used.

        Raises `NotFiniteError`, `WeightError`, `BoundError`, `LayoutError`, `NonceReuseError`, `PrivacyBudgetError`,
        and `PrekeyError` where shares go to a committee whose prekeys are not known.
        """

    def take_prekeys(self, frames: Sequence[bytes]) -> list[str]:
        """Take the prekeys that members of the committee have published (`Member.prekey`).

        The next updates' shares are sealed to these, and to none that were taken before. Returns the reason of each
        that is refused. Raises `PrekeyError` where too few members are known then. Nothing where the scheme has no
        committee.
        """
        return []

    def precompute(
        self,
        update: Sequence[Array],
        *,
        round: int,
        reference: Sequence[Array] | None = None,
        plan: bytes = b"",
        lanes: int = 0,
        counts: int = 0,
        hide_ranges: bool = False,
        bits: int = 0,
    ) -> None:
        """Do ahead what does not depend on the data, for an update shaped like ``update`` and so many ``lanes``.

        So many ``counts`` of them are counts, and values have ``bits``, as in `encrypt`.
        """

    def export_state(self) -> bytes:
        """State to carry to another process (error feedback); secret to this client."""
        return b""

    def import_state(self, state: bytes) -> None:
        """Take up the state of `export_state`."""


class Aggregator(ABC):
    """Server side: one running sum, whatever the number of clients."""

    def __reduce__(self) -> NoReturn:
        refuse_copy(self)

    @abstractmethod
    def add(self, frame: bytes) -> Contribution:
        """Check a client's frame and add it.

        A refused frame raises a `FrameError`, `RoundError`, `LayoutError` or `WeightError` and leaves
        the sum as it was.
        """

    @property
    def committee(self) -> CommitteeRound | None:
        """The round's work with the committee; None where the scheme has no committee."""
        return None

    @property
    def parted(self) -> PartedSum | None:
        """The work of `finish`, for other processes of the server to do; None where it is no work.

        `fedcipher.scale` has it done on Ray.
        """
        return None

    @abstractmethod
    def finish(self, progress: Callable[[int, int], None] | None = None) -> bytes:
        """The aggregate to broadcast.

        Raises `EmptyCohortError` when nothing was added, `TooFewContributionsError` below the scheme's
        ``min_contributions``, `CommitteeError` while answers are `missing`.

        ``progress(done, total)`` is called as a long aggregation goes; what it raises cancels the work,
        which can then be finished again.
        """


class Decryptor(ABC):
    """Client side: aggregates to weighted means.

    What opens is the sum of what the clients it names have sent, from one global model, at least
    ``min_contributions`` of them. None of an older round than the last opens; the same bytes again are fine. An
    aggregate that counts in no memory is the only one of its round. Those that count in a memory of the rule of sets
    may be several, without a client in common; every group of clients that are in the same sums of the memory must
    have ``min_contributions`` clients. What was opened is remembered in `state_dir`: memories whose id begins with
    byte 1 for ever, others until their last round is 256 numbers old. Rounds as old as that are then refused
    (docs/explanation/security.md, "Which sums may exist").
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
        """Decrypt an aggregate; ``round``, the digest of the ``model`` behind its updates and the ``memory`` of its sum
        are checked when given.

        With ``Codec(top=...)`` the aggregate carries part of the elements and does not say which: ``reference`` is
        what its clients encrypted with (the aggregate before it), ``like`` any arrays of the model's shapes, needed
        where there is no reference, and empty where a frame has lanes and no update. Elements that the round did not
        send are zero. ``rescale`` is given the sums of
        the lanes and the number of clients, and says what the mean is multiplied by. ``ranges`` are the clip ranges,
        one an array, of frames that do not say them.

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
        """The weighted mean, in the original shapes and types; arguments and errors as `open`."""
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
        """The integer sums before division, flat, in tensor order; arguments and errors as `open`.

        With ``Codec(top=...)`` of the elements that were sent only. Where each client chooses what it sends (`flashe`
        with ``per_client_top``), who did not send an element is in its sum as zero, half of the largest integer.
        """


class Scheme(ABC):
    """A scheme with its parameters and codec; see `fedcipher.scheme`."""

    name: ClassVar[str]
    info: ClassVar[SchemeInfo]
    split: ClassVar[dict[str, str]] = {}
    """Names that are no parameters, and which parameters to give instead."""
    variants: ClassVar[dict[str, dict[str, Any]]] = {}
    """Names and parameters of more ways to make it that tests shall try (`fedcipher.schemes.every_scheme`)."""
    codec: Codec
    max_weight: int
    min_contributions: int
    """Fewest clients whose sum is made or opened."""

    @abstractmethod
    def params(self) -> dict[str, Any]:
        """The arguments that make this scheme again."""

    def spec(self) -> dict[str, Any]:
        """Name, parameters and codec as plain values: what a key file says of the scheme."""
        return {"scheme": self.name, "params": self.params(), "codec": self.codec.to_dict()}

    def __reduce__(self) -> tuple[Callable[[dict[str, Any]], Scheme], tuple[dict[str, Any]]]:
        # The registry knows this module's classes.
        from fedcipher.schemes import from_spec

        return from_spec, (self.spec(),)

    @abstractmethod
    def describe(self) -> dict[str, str]:
        """Derived figures for people."""

    @property
    @abstractmethod
    def levels(self) -> Levels:
        """How many steps a value has, by its bits: as many as the fields of a sum have room for."""

    @classmethod
    def check_widths(cls, codec: Codec, *, sends_parts: bool = False) -> None:
        """Raise `ParameterError` for a codec whose bits a run chooses, where they make no difference here."""
        if codec.adaptive and (sends_parts or not cls.info.widths):
            raise ParameterError(
                f'bits="auto" needs lanes as wide as their values, which {cls.name} has not here; give a number of bits'
            )

    @property
    def lane_bits(self) -> tuple[int, int]:
        """Bits of a count and of a digit beside an update, as the codec counts them.

        Those of its widest value, where all values of a frame have lanes of one width.
        """
        widest = max(self.codec.bit_widths)
        return widest, widest

    @property
    def largest_digit(self) -> int:
        """The largest magnitude of a whole number beside an update, of which all clients' sum is exact."""
        held = self.levels.of(self.lane_bits[1]) // 2
        return min(held, _MOST_EXACT // int(self.params()["clients"]))

    @property
    def noise_shares(self) -> int:
        """With privacy: of how many clients there is noise in every sum that a reader does not know.

        All but the reader's own, of the fewest that are opened.
        """
        return max(1, self.min_contributions - 1)

    @property
    def committee(self) -> Committee | None:
        """Its rosters and its committee; None where clients share a key."""
        return None

    @property
    def workers(self) -> Workers | None:
        """Who does an aggregation's work; None where its sums are additions only."""
        return None

    @property
    def sends_parts(self) -> bool:
        """Whether clients send part of an update each round and keep the rest for later ones (error feedback)."""
        return self.codec.top is not None or self.params().get("per_client_top") is not None

    @property
    def grain(self) -> int:
        """Values by which the work for an update grows: those of a ciphertext where ciphertexts are costly, else 1."""
        return 1

    @abstractmethod
    def keygen(self, cohort: int | Iterable[int], *, epoch: int = 1) -> KeySet:
        """Keys for clients ``0..cohort-1``, or for the given ids."""

    @abstractmethod
    def encryptor(self, key: _native.ClientKey) -> Encryptor:
        """An encryptor for the holder of ``key``."""

    @abstractmethod
    def aggregator(self, key: _native.ServerKey, *, round: int | None = None) -> Aggregator:
        """An aggregator for one round; without ``round`` the first frame fixes it."""

    @abstractmethod
    def decryptor(self, key: _native.ClientKey, *, in_memory: bool = False) -> Decryptor:
        """A decryptor for the holder of ``key``.

        ``in_memory``: what it opens is forgotten with it, and not written to `state_dir`. For a reader of a finished
        or growing run beside the client itself, whose own memory it must not change.
        """

    def plan(self, key: _native.ServerKey, sampled: Sequence[int]) -> bytes:
        """What the server tells the ``sampled`` clients before a round."""
        return b""


class NativeScheme(Scheme):
    """A scheme whose kernel is in the Rust core; subclasses only construct it."""

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

    def plan(self, key: _native.ServerKey, sampled: Sequence[int]) -> bytes:
        return self._native.plan(server_key(key), whole_numbers(sampled, "sampled", 0, _MAX_CLIENT))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{k}={v!r}' for k, v in self._params.items())})"


class EncryptKernel(Protocol):
    """What encrypts flat arrays: the core in this process, or an engine in another."""

    def encrypt(
        self,
        layout: _native.Layout,
        arrays: list[NDArray[np.float32]],
        round: int,
        weight: int,
        plan: bytes,
        model: bytes,
        memory: bytes,
        bound: bytes,
        stochastic: bool,
    ) -> tuple[bytes, list[int], float]: ...
    def take_prekeys(self, frames: list[bytes]) -> list[str]: ...
    def precompute(self, round: int, layout: _native.Layout, plan: bytes) -> None: ...
    def setup_bytes(self) -> int: ...
    def export_state(self) -> bytes: ...
    def import_state(self, state: bytes) -> None: ...


class DecryptKernel(Protocol):
    """What decrypts to flat arrays."""

    def decrypt(
        self,
        frame: bytes,
        round: int | None = None,
        model: bytes | None = None,
        memory: bytes | None = None,
        bound: bytes | None = None,
    ) -> tuple[
        _native.Layout, int, list[tuple[int, int]], NDArray[np.float32], NDArray[np.uint32] | None, list[int]
    ]: ...
    def decrypt_sums(
        self, frame: bytes, memory: bytes | None = None, bound: bytes | None = None
    ) -> tuple[list[tuple[int, int]], NDArray[np.uint64]]: ...


@dataclass(frozen=True)
class _Said:
    """What of a frame is not its values."""

    round: int
    weight: int
    plan: bytes
    model: bytes
    memory: bytes
    stochastic: bool
    hide_ranges: bool

    def shown(self, layout: Layout, flat: list[NDArray[np.float32]]) -> tuple[Layout, list[NDArray[np.float32]]]:
        """What a frame says of its layout, and the values in its ranges."""
        if not self.hide_ranges:
            return layout, flat
        ranges = [alpha for _, _, alpha, _ in layout.tensors]
        return without_ranges(layout), [_beside(x, alpha) for x, alpha in zip(flat, ranges, strict=True)]


def _checked_lanes(lanes: object, counts: object, largest: int) -> tuple[NDArray[np.float32], int]:
    """Lanes whose sums come out exact: what is beyond their range would be cut. Raises `ParameterError`."""
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


def _beside(x: NDArray[np.float32], alpha: float) -> NDArray[np.float32]:
    """``x`` in units of its range; what is far beyond it ends at two, not at infinity, whose refusal would tell."""
    made = x * np.float32(1 / alpha)
    return np.clip(made, -2, 2, out=made)


class KernelEncryptor(Encryptor):
    """The codec in front of a kernel."""

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
        plan: bytes = b"",
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
                    f"weight={weight} with lanes, whose sums would be weighted; weigh the update before"
                )
            lanes, counts = _checked_lanes(lanes, counts, self._largest_digit)
        update = as_arrays(update, "update")
        reference = None if reference is None else as_arrays(reference, "reference")
        said = _Said(
            round=whole_number(round, "round"),
            weight=weight,
            plan=as_bytes(plan, "plan"),
            model=as_bytes(model, "model"),
            memory=as_bytes(memory, "memory"),
            stochastic=truth(unbiased, "unbiased") or self._codec.rounding == "stochastic",
            hide_ranges=truth(hide_ranges, "hide_ranges"),
        )
        if not update:
            return self._encrypt_lanes(said, lanes, counts)
        if self._codec.top is not None:
            return self._encrypt_part(self._codec.top, update, said, reference, (lanes, counts))
        if self._noise:
            return self._encrypt_noisy(self._noise, update, said, lanes)
        began = time.perf_counter()
        plain = self._codec.at(bits).layout(update, reference, self._levels)
        flat = flat_float32(update)
        layout, shown = said.shown(plain, flat)
        layout = self._lanes.beside(layout, 0 if lanes is None else lanes.size, counts)
        prepared = time.perf_counter()
        frame, clipped, quantising = self._seal(layout, [*shown, *self._lanes.split(lanes, counts)], said)
        self._note(began, prepared, quantising, clipped[: len(flat)], layout, frame)
        if not said.stochastic and not isinstance(self._codec.clip, str):
            self.stats.vanished_by_tensor = vanished(plain, flat, self._levels)
        return frame

    def _seal(
        self, layout: Layout, arrays: list[NDArray[np.float32]], said: _Said, bound: bytes = b""
    ) -> tuple[bytes, list[int], float]:
        stochastic = said.stochastic and not bound
        named = said.plan, said.model, said.memory
        return self._native.encrypt(layout, arrays, said.round, said.weight, *named, bound, stochastic)

    def _encrypt_lanes(self, said: _Said, lanes: NDArray[np.float32] | None, counts: int) -> bytes:
        if lanes is None or not lanes.size:
            raise LayoutError("there is nothing to encrypt: no update and no lanes")
        began = time.perf_counter()
        layout = Layout(self._lanes.tensors(lanes.size, counts))
        frame, clipped, quantising = self._seal(layout, self._lanes.split(lanes, counts), said)
        self._note(began, began, quantising, clipped, layout, frame)
        return frame

    def _encrypt_noisy(
        self, noise: Mechanism, update: Sequence[Array], said: _Said, lanes: NDArray[np.float32] | None
    ) -> bytes:
        if lanes is not None and lanes.size:
            raise ParameterError("no noise of differential privacy covers lanes beside an update; send none")
        began = time.perf_counter()
        noisy = noise.apply(update)
        prepared = time.perf_counter()
        nearest = replace(said, stochastic=False)
        frame, _, quantising = self._seal(noisy.layout, noisy.arrays, nearest)
        self._note(began, prepared, quantising, noisy.cut, noisy.layout, frame)
        self.stats.scaled = noisy.scaled
        return frame

    def _encrypt_part(
        self,
        top: float,
        update: Sequence[Array],
        said: _Said,
        reference: Sequence[Array] | None,
        beside: tuple[NDArray[np.float32] | None, int],
    ) -> bytes:
        began = time.perf_counter()
        lanes, counts = beside
        part = CommonSet(update, reference, said.round, top)
        layout = part.gathered(self._codec.layout(update, reference, self._levels))
        corrected = self._feedback.corrected(update)
        integers, clipped = layout.quantise(part.gather(corrected), said.stochastic, self._levels)
        # The kernel is given what the integers stand for, so that what it sends is what error feedback takes off.
        sent = dequantised(layout, integers, self._levels)
        layout, flat = said.shown(layout, np.split(sent, np.cumsum(part.counts)[:-1]))
        layout = self._lanes.beside(layout, 0 if lanes is None else lanes.size, counts)
        prepared = time.perf_counter()
        frame, _, quantising = self._seal(layout, [*flat, *self._lanes.split(lanes, counts)], said, part.digest)
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
        plan: bytes = b"",
        lanes: int = 0,
        counts: int = 0,
        hide_ranges: bool = False,
        bits: int = 0,
    ) -> None:
        update = as_arrays(update, "update")
        reference = None if reference is None else as_arrays(reference, "reference")
        round, plan = whole_number(round, "round"), as_bytes(plan, "plan")
        lanes, counts = whole_number(lanes, "lanes", 0, _MAX_LANES), whole_number(counts, "counts", 0, _MAX_LANES)
        hide_ranges = truth(hide_ranges, "hide_ranges")
        codec = self._codec.at(bits)
        layout = self._noise.layout(update) if self._noise else codec.layout(update, reference, self._levels)
        if self._codec.top is not None:
            layout = CommonSet(update, reference, round, self._codec.top).gathered(layout)
        if hide_ranges and not self._noise:
            layout = without_ranges(layout)
        self._native.precompute(round, self._lanes.beside(layout, lanes, counts), plan)

    def export_state(self) -> bytes:
        return self._native.export_state() if self._codec.top is None else self._feedback.export()

    def import_state(self, state: bytes) -> None:
        state = as_bytes(state, "state")
        if self._codec.top is None:
            self._native.import_state(state)
        else:
            self._feedback.restore(state)


class NativeAggregator(Aggregator):
    """The core's, with what its scheme has beside additions."""

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
    """Multiply values by ``factor``, and those within one by the ranges that they are of. Raises `LayoutError`."""
    sizes = [math.prod(shape) for _, _, _, shape in layout.tensors]
    held = [1.0] * len(sizes) if ranges is None else ranges
    if len(sizes) != len(held):
        raise LayoutError(f"{len(held)} ranges for the {len(sizes)} arrays of an aggregate")
    _native.scale(flat, factor, sizes, list(held))


class KernelDecryptor(Decryptor):
    """Shapes and types behind a kernel."""

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
        bound = b"" if part is None else part.digest
        layout, found, contributions, flat, counts, wrong = self._native.decrypt(frame, round, model, memory, bound)
        clients = [Contribution(*c) for c in contributions]
        layout, flat, lanes = without_lanes(layout, flat)
        if lanes and any(c.weight != 1 for c in clients):
            raise LayoutError("a sum of lanes of clients of different weights")
        factor = 1.0 if rescale is None else real_number(rescale(lanes, len(clients)), "what rescale returns")
        if layout is not None and (factor != 1 or ranges is not None):
            _scale(layout, flat, factor, ranges)
        if part is not None and layout is not None:
            layout, flat = part.scattered(layout), part.scatter(flat)
        if wrong:
            _log.warning(
                "round %s: members %s of the committee have given false answers; the sum was opened without them",
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
        """Which elements the aggregate carries, as every honest client of its round has chosen them."""
        reference = None if reference is None else as_arrays(reference, "reference")
        like = None if like is None else as_arrays(like, "like")
        if self._top is None or (like is not None and not like):
            return None
        return set_of(like, reference, inspect(frame).round, self._top)
