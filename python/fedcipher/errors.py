"""The exceptions of Fedcipher. Each message names what was wrong and what to do."""

import errno
from collections.abc import Mapping, Sequence

__all__ = [
    "AcceleratorError",
    "AccessError",
    "BenchError",
    "BoundError",
    "CancelledError",
    "CharterError",
    "ClusterError",
    "CodecError",
    "CommitteeError",
    "DecryptError",
    "DependencyError",
    "DuplicateClientError",
    "EmptyCohortError",
    "EngineError",
    "EngineUnavailableError",
    "EntropyError",
    "FalseShareError",
    "FedcipherError",
    "ForeignFileError",
    "ForgedAggregateError",
    "FrameError",
    "GuardError",
    "IdentityInUseError",
    "InternalError",
    "KeyClosedError",
    "KeyFormatError",
    "KeyInUseError",
    "LayoutError",
    "LedgerError",
    "LostRoundsError",
    "ModelMismatchError",
    "NonceReuseError",
    "NotFiniteError",
    "NotJoinedError",
    "ParameterError",
    "PeerLostError",
    "PlaintextError",
    "PrekeyError",
    "PrivacyBudgetError",
    "ReplayError",
    "ReportError",
    "RevokedError",
    "RoundError",
    "RunError",
    "SealedModelError",
    "SetRuleError",
    "SignatureError",
    "StalledError",
    "StateError",
    "StrategyError",
    "TooFewContributionsError",
    "TruncatedError",
    "UnknownClientError",
    "UnknownDeviceError",
    "UnsupportedError",
    "WeightError",
    "WorkersError",
    "WrongEpochError",
    "WrongParametersError",
    "WrongRosterError",
    "WrongRoundError",
    "WrongSchemeError",
]


class FedcipherError(Exception):
    """The base class of all errors of Fedcipher."""


class ParameterError(FedcipherError, ValueError):
    """A parameter is out of range."""


class BoundError(ParameterError):
    """The sum of a round could exceed the modulus. The message names parameters that would fit."""


class WeightError(ParameterError):
    """A client's weight exceeds the largest weight of the scheme."""


class CodecError(FedcipherError, ValueError):
    """An update cannot be turned into integers."""


class NotFiniteError(CodecError):
    """An update holds NaN or infinity."""


class LayoutError(CodecError):
    """Shapes, types or clip ranges do not match."""


class FrameError(FedcipherError):
    """Bytes are not a well-formed frame of the expected kind."""


class WrongSchemeError(FrameError):
    """A frame belongs to another scheme."""


class WrongParametersError(FrameError):
    """A frame was made with other parameters."""


class WrongEpochError(FrameError):
    """A frame or key belongs to another key epoch or key set."""


class RoundError(FedcipherError):
    """A contribution does not belong in this round."""


class WrongRoundError(RoundError):
    """A frame is late or replayed, or its round is dated ahead of this machine's clock."""


class ReplayError(RoundError):
    """An aggregate belongs to a finished round, or is a second one of its round."""


class DuplicateClientError(RoundError):
    """A client contributed twice to one round."""


class UnknownClientError(RoundError):
    """A client is not in the key epoch's cohort."""


class EmptyCohortError(RoundError):
    """A sum has no contributions."""


class TooFewContributionsError(RoundError):
    """A sum has so few clients that it would reveal too much about each of them."""


class SetRuleError(RoundError):
    """A sum, with earlier sums of the same memory, would isolate fewer clients than ``min_contributions``."""


class ModelMismatchError(RoundError):
    """Updates were trained from another global model than expected."""


class ForgedAggregateError(RoundError):
    """An aggregate is not the sum of the updates of the clients that it names."""


class KeyClosedError(RoundError):
    """A key opens no further aggregates, because a forged aggregate was found under it."""


class SignatureError(RoundError):
    """Data lacks a valid signature of the party that it names as its sender."""


class AcceleratorError(FedcipherError):
    """A requested accelerator is missing or failed."""


class CommitteeError(RoundError):
    """Too few members of a committee have answered."""


class WrongRosterError(FedcipherError):
    """A roster is not the expected one, has faults, or has not been confirmed by a person."""


class NotJoinedError(RoundError):
    """Too few parties of a roster have signed it for this party to encrypt."""


class PrekeyError(RoundError):
    """A prekey of the committee is too old or deleted, or too few members have published one."""


class FalseShareError(RoundError):
    """Clients have encrypted data to a member that is not a valid share."""


class PlaintextError(RoundError):
    """A client sent its update unencrypted. The server did not use the update."""


class NonceReuseError(FedcipherError):
    """A combination of key, round and client would be used twice."""


class PrivacyBudgetError(FedcipherError):
    """A client has given all updates under its key set that its epsilon covers."""


class LedgerError(FedcipherError):
    """A ledger of encrypted or opened rounds cannot be read or written, or has lost its history."""


class KeyFormatError(FedcipherError):
    """A key is malformed, missing, or not protected from other users."""


class KeyInUseError(FedcipherError):
    """Another program on this machine uses the key file."""


class DecryptError(FedcipherError):
    """A decrypted sum is impossible, because of a wrong key or a damaged aggregate."""


class UnsupportedError(FedcipherError):
    """The scheme or object does not support this operation."""


class InternalError(FedcipherError):
    """A fault of Fedcipher or of a library that it uses. Please report it."""


class CancelledError(FedcipherError):
    """A long job was cancelled, and can be started again."""


class EntropyError(FedcipherError):
    """The operating system's random generator failed."""


class StateError(FedcipherError):
    """A client's stored state is missing or too old for this round."""


class CharterError(FedcipherError):
    """A run's charter is malformed, is not accepted here, or does not allow a message."""


class GuardError(FedcipherError):
    """A site's guard cannot work, or cannot start an app behind every wall.

    Attributes
    ----------
    wall
        The name of the wall that cannot be built; empty if the error is of another kind.
    """

    wall: str = ""


class StrategyError(FedcipherError):
    """A strategy, or the way it is started, does not work with encrypted updates."""


class LostRoundsError(StrategyError):
    """A run has ended with more rounds without an aggregate than allowed.

    Attributes
    ----------
    result
        The run's Flower ``Result``, which `start` returns if no round is lost.
    lost
        The reason of each round without an aggregate, by the round's number.
    liars
        Numbers of the clients that were proven to have lied. The run excluded them.
    """

    def __init__(
        self, text: str, *, result: object = None, lost: Mapping[int, str] | None = None, liars: Sequence[int] = ()
    ) -> None:
        super().__init__(text)
        self.result, self.lost, self.liars = result, dict(lost or {}), list(liars)


class RunError(FedcipherError):
    """The folder of a run cannot be written or read."""


class ForeignFileError(FedcipherError, OSError):
    """A path is not a readable file: a link, a device, a pipe, too large, or writable by other users."""

    def __str__(self) -> str:
        fix = "" if self.errno == errno.EACCES else "; put the file itself there"
        return f"{self.filename} {self.strerror}{fix}"


class WorkersError(FedcipherError):
    """The processes that share a server's work have failed."""


class ClusterError(FedcipherError):
    """A cluster on this machine does not start, or is in an unexpected state."""


class SealedModelError(FedcipherError):
    """A model was read, but only its ciphertext is available."""


class EngineError(FedcipherError):
    """The offload engine or the key authority cannot fulfil a request."""


class EngineUnavailableError(EngineError):
    """The engine or the authority cannot be reached, or stopped during a stream."""


class AccessError(EngineError):
    """A certificate, a user or a role is not accepted."""


class RevokedError(AccessError):
    """The device has been revoked."""


class IdentityInUseError(AccessError):
    """Another engine holds this identity in this epoch."""


class UnknownDeviceError(EngineError):
    """The engine does not serve this device, or not to this host or user."""


class StalledError(EngineError):
    """A stream made no progress for too long."""


class TruncatedError(EngineError):
    """A stream ended before all data arrived."""


class BenchError(FedcipherError):
    """A measurement is not possible."""


class PeerLostError(BenchError):
    """The peer of a measurement refused, disconnected, or sent an invalid message."""


class ReportError(BenchError):
    """Results cannot be written to the requested place."""


class DependencyError(FedcipherError, ImportError):
    """An optional package or a feature of the native module is missing. The message says what to install or build."""
