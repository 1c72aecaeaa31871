"""What is measured: a scheme and a workload, and the result of measuring it."""

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
    """``sums`` times: ``clients`` updates of ``values`` numbers each are encrypted, added and decrypted.

    A client process plays all clients, a server process the aggregator. A small update is one
    ciphertext, so ``clients * sums`` is then the number of ciphertexts and ``clients`` that of additions.
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
        """The scheme. Raises `DependencyError` where its package is missing."""
        codec, params = Codec(bits=self.bits, clip=1.0), dict(self.params)
        # What a sum costs does not depend on how few clients it may have; a committee has its own least.
        committee = scheme_class(self.scheme).info.committee
        params["min_contributions"] = params.get("corrupt_clients", 1) + 2 if committee else 1
        return scheme(self.scheme, clients=self.clients, codec=codec, **params)

    def keys(self, made: Scheme, epoch: int = 1) -> KeySet:
        """Of all clients, and of a committee's members where there are more of them."""
        return made.keygen(max(self.clients, int(made.params().get("members", 0))), epoch=epoch)

    @property
    def plain_bytes(self) -> int:
        """One update as float32."""
        return 4 * self.values

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return asdict(self)


@dataclass
class Run:
    """One measured pass: both sides' profiles, key generation before them, and frame sizes."""

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
    """A case and its runs so far; ``failure`` says why there are no more."""

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
