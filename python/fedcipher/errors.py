"""The one exception tree: every message names what was wrong and what to do."""

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
    """Anything Fedcipher refuses to do."""


class ParameterError(FedcipherError, ValueError):
    """A parameter is out of range."""


class BoundError(ParameterError):
    """The sum of a round could exceed the modulus; names what would fit."""


class WeightError(ParameterError):
    """A client's weight exceeds what the modulus was chosen for."""


class CodecError(FedcipherError, ValueError):
    """An update cannot be turned into integers."""


class NotFiniteError(CodecError):
    """An update holds NaN or infinity."""


class LayoutError(CodecError):
    """Shapes, types or clip ranges do not agree."""


class FrameError(FedcipherError):
    """Bytes are not a well-formed frame of the expected kind."""


class WrongSchemeError(FrameError):
    """A frame of another scheme."""


class WrongParametersError(FrameError):
    """A frame made with other parameters."""


class WrongEpochError(FrameError):
    """A frame or key of another key epoch or key set."""


class RoundError(FedcipherError):
    """A contribution does not belong in this round."""


class WrongRoundError(RoundError):
    """A late or replayed frame, or a round dated ahead of this machine's clock."""


class ReplayError(RoundError):
    """An aggregate of a round that is over, or a second one of a round."""


class DuplicateClientError(RoundError):
    """The same client twice in one round."""


class UnknownClientError(RoundError):
    """A client outside the key epoch's cohort."""


class EmptyCohortError(RoundError):
    """Nothing to aggregate."""


class TooFewContributionsError(RoundError):
    """A sum of so few clients that it says too much of each."""


class SetRuleError(RoundError):
    """A sum that would set apart, with earlier sums of the same memory, fewer clients than ``min_contributions``."""


class ModelMismatchError(RoundError):
    """Updates were trained from another global model than expected."""


class ForgedAggregateError(RoundError):
    """An aggregate that is not the sum of what the clients it names have sent."""


class KeyClosedError(RoundError):
    """Nothing is opened under a key any more, because an aggregate under it was forged."""


class SignatureError(RoundError):
    """What a party is said to have sent does not bear its signature."""


class AcceleratorError(FedcipherError):
    """An accelerator that was asked for is not there, or failed."""


class CommitteeError(RoundError):
    """Too few members of a committee have answered."""


class WrongRosterError(FedcipherError):
    """A roster is not the expected one, or nobody has confirmed who is in it."""


class NotJoinedError(RoundError):
    """Too few parties of a roster have signed it for this party to encrypt."""


class PrekeyError(RoundError):
    """A prekey of the committee is an old one or gone, or too few members have published one."""


class FalseShareError(RoundError):
    """Clients have sealed to a member what is no share of theirs."""


class PlaintextError(RoundError):
    """A client sent its update unencrypted; it was not used."""


class NonceReuseError(FedcipherError):
    """A (key, round, client) triple would be used twice."""


class PrivacyBudgetError(FedcipherError):
    """A client has given as many updates under its key set as its epsilon covers."""


class LedgerError(FedcipherError):
    """A ledger of rounds encrypted or opened cannot be read or written, or has lost its history."""


class KeyFormatError(FedcipherError):
    """A key is malformed, missing, or not kept from other users."""


class KeyInUseError(FedcipherError):
    """Another program on this machine uses the key file."""


class DecryptError(FedcipherError):
    """A decrypted sum is impossible: wrong key or damaged aggregate."""


class UnsupportedError(FedcipherError):
    """The scheme cannot do this."""


class InternalError(FedcipherError):
    """A fault of Fedcipher itself, or of a library it uses: please report it."""


class CancelledError(FedcipherError):
    """A long job was cancelled; nothing is lost."""


class EntropyError(FedcipherError):
    """The operating system's random generator failed."""


class StateError(FedcipherError):
    """A client's stored state is missing or too old for this round."""


class CharterError(FedcipherError):
    """A run's charter is malformed, is not accepted here, or does not allow a message."""


class StrategyError(FedcipherError):
    """A Flower strategy, or how it is started, does not go with encrypted updates."""


class LostRoundsError(StrategyError):
    """A run has ended, and more of its rounds than may be lost have no aggregate.

    Attributes
    ----------
    result
        The run's Flower ``Result``, as `start` returns it where no round was lost.
    lost
        Why each round without an aggregate has none, by its number.
    liars
        Numbers of the clients that were proven to have lied, and were left out.
    """

    def __init__(
        self, text: str, *, result: object = None, lost: Mapping[int, str] | None = None, liars: Sequence[int] = ()
    ) -> None:
        super().__init__(text)
        self.result, self.lost, self.liars = result, dict(lost or {}), list(liars)


class RunError(FedcipherError):
    """The folder of a run cannot be written or read."""


class ForeignFileError(FedcipherError, OSError):
    """What is at a path is no file that may be read: a link, a device, a pipe, too large, or in others' hands."""

    def __str__(self) -> str:
        fix = "" if self.errno == errno.EACCES else "; put the file itself there"
        return f"{self.filename} {self.strerror}{fix}"


class WorkersError(FedcipherError):
    """The processes that were to do a server's work did not."""


class ClusterError(FedcipherError):
    """A cluster on this machine does not start, or is not what was expected."""


class SealedModelError(FedcipherError):
    """A model is read where only its ciphertext is."""


class EngineError(FedcipherError):
    """The offload engine or the key authority cannot do what it was asked."""


class EngineUnavailableError(EngineError):
    """The engine or the authority cannot be reached, or died in mid-stream."""


class AccessError(EngineError):
    """A certificate, a user or a role is not accepted."""


class RevokedError(AccessError):
    """The device has been revoked."""


class IdentityInUseError(AccessError):
    """Another engine holds this identity in this epoch."""


class UnknownDeviceError(EngineError):
    """The engine does not serve this device to this host or user, or not at all."""


class StalledError(EngineError):
    """A stream stood still for too long."""


class TruncatedError(EngineError):
    """A stream broke off."""


class BenchError(FedcipherError):
    """A measurement cannot be made."""


class PeerLostError(BenchError):
    """The other side of a measurement refused, went away, or sent what is no message."""


class ReportError(BenchError):
    """Results cannot be written where they were asked for."""


class DependencyError(FedcipherError, ImportError):
    """An optional package, or a feature of the native module, is missing; the message says what to install or build."""
