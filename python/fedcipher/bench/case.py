"""A case to measure (a scheme and a workload), and its results."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from fedcipher.bench.sampler import Profile
from fedcipher.codec import Codec
from fedcipher.errors import ParameterError
from fedcipher.schemes import KeySet, Scheme, scheme, scheme_class

__all__ = ["Case", "CaseResult", "Run"]


@dataclass(frozen=True)
class Case:
    """A workload: ``sums`` times, ``clients`` updates of ``values`` numbers each are encrypted, added and decrypted.

    A client process runs all clients, a server process runs the aggregator. If an update fits one ciphertext, the
    case has ``clients * sums`` ciphertexts and each sum has ``clients`` additions.
    """

    label: str
    scheme: str
    values: int
    clients: int
    sums: int = 1
    bits: int = 12
    params: dict[str, Any] = field(default_factory=dict[str, Any])

    def __post_init__(self) -> None:
        for name in ("values", "clients", "sums"):
            if not 1 <= getattr(self, name) <= 1 << 30:
                raise ParameterError(f"{name}={getattr(self, name)} is not between 1 and 2**30")

    def made(self) -> Scheme:
        """The scheme. Raises `DependencyError` if the scheme's package is missing."""
        codec, params = Codec(bits=self.bits, clip=1.0), dict(self.params)
        # The minimum of contributions does not change a sum's cost. A scheme with a committee has a minimum of its own.
        committee = scheme_class(self.scheme).info.committee
        params["min_contributions"] = params.get("corrupt_clients", 1) + 2 if committee else 1
        return scheme(self.scheme, clients=self.clients, codec=codec, **params)

    def keys(self, made: Scheme, epoch: int = 1) -> KeySet:
        """Keys of all clients, and of all committee members if there are more members than clients."""
        return made.keygen(max(self.clients, int(made.params().get("members", 0))), epoch=epoch)

    @property
    def plain_bytes(self) -> int:
        """Bytes of one update as float32."""
        return 4 * self.values

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return asdict(self)


@dataclass
class Run:
    """One measured run: the profiles of client and server, the seconds of key generation, and sizes in bytes."""

    client: Profile
    server: Profile
    keygen_seconds: float
    update_bytes: int
    aggregate_bytes: int
    server_key_bytes: int

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return {**asdict(self), "client": self.client.to_dict(), "server": self.server.to_dict()}

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Run:
        """The inverse of `to_dict`."""
        known: dict[str, Any] = dict(data)
        known.update({side: Profile.from_dict(data[side]) for side in ("client", "server")})
        return cls(**known)


@dataclass
class CaseResult:
    """A case and its runs so far. ``failure`` says why there are no more runs; empty without a failure."""

    case: Case
    runs: list[Run] = field(default_factory=list[Run])
    failure: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return {"case": self.case.to_dict(), "failure": self.failure, "runs": [r.to_dict() for r in self.runs]}

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> CaseResult:
        """The inverse of `to_dict`."""
        return cls(Case(**data["case"]), [Run.from_dict(r) for r in data["runs"]], data["failure"])
