"""What a site allows a run to do with its data: `Policy.judge` accepts a charter, or says why not.

A file, ``policy.json`` in ``FEDCIPHER_HOME`` or where ``FEDCIPHER_POLICY`` says, holds the site's choices. Without it
the strict default holds. ``fedcipher policy`` shows what is in force and writes the file.
"""

from __future__ import annotations

import base64
import binascii
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, cast

from fedcipher import _native
from fedcipher._arguments import is_finite
from fedcipher.errors import CharterError, ParameterError
from fedcipher.federation.charter import SIGNATURE_BYTES, Charter
from fedcipher.federation.query import Query
from fedcipher.foreign_files import parse_json, read_trusted
from fedcipher.foreign_text import MAX_NAME, quoted

__all__ = ["POLICY_FILE", "SIMULATED", "Policy", "load_policy", "policy_place"]

POLICY_FILE = "FEDCIPHER_POLICY"
"""The variable that names a site's policy file."""

ANY = "*"
"""In place of a metric's name: whatever the client's own configuration names."""

_MOST_BYTES = 1 << 20
_KEY = 1952 + 32
_MOST = 2**63 - 1
"""Bytes of a key of ML-DSA-65 and Ed25519."""
_RATES = {"adam": ("eta",), "yogi": ("eta",), "adagrad": ("eta",), "avgm": ("server_learning_rate",)}
_NUMBERS = {
    **{kind: ("eta", "beta_1", "beta_2", "tau") for kind in ("adam", "yogi", "adagrad")},
    "avgm": ("server_learning_rate", "server_momentum"),
}


@dataclass(frozen=True)
class Policy:
    """The strict default, or a site's own choices.

    Parameters
    ----------
    accept
        Digests (hexadecimal SHA-256) of charters that are accepted whatever they say.
    coordinators
        Keys (base64, ``verify`` of a card) of parties whose signature makes a charter accepted whatever it says.
    only_listed
        Whether no other charter is accepted.
    server_sets_models
        Whether a server may set models after the first. What a client answers on a model of the server's own
        choice measures that client's data.
    weighted_by
        Metrics that clients may be weighted by; ``"*"``: any. Where one client alone has a metric, the mean weighted by
        that metric is this client's update.
    clear
        Metrics that may leave this site in the clear; ``"*"``: any. The client's own configuration names them too.
    per_client_top
        Whether this client may send coordinates of its own choice, which the server sees.
    privacy_evaluation
        Whether evaluation may be answered under differential privacy: no noise covers these answers.
    repeatable
        Whether updates are rounded by draws that everybody knows, so that a run can be made again to the bit. Readers
        of sums can then find this client's part in them.
    least_rate, most_rate, most_tau, most_momentum
        Limits on an optimiser's numbers. A model that hardly moves is one model in every round.
    most_numbers
        Numbers that all answers of an evaluation or a training have together.
    runs, queries
        Charters and queries an epoch, counted over all keys of the site; 0: no limit.
    privacy_budgets
        Budgets of differential privacy that this site spends in all, whatever its keys; 0: no limit.
    """

    accept: tuple[str, ...] = ()
    coordinators: tuple[str, ...] = ()
    only_listed: bool = False
    server_sets_models: bool = False
    weighted_by: tuple[str, ...] = ("num-examples",)
    clear: tuple[str, ...] = ()
    per_client_top: bool = False
    privacy_evaluation: bool = False
    repeatable: bool = False
    least_rate: float = 1e-3
    most_rate: float = 10.0
    most_tau: float = 0.1
    most_momentum: float = 0.99
    most_numbers: int = 64
    runs: int = 3
    queries: int = 20
    privacy_budgets: int = 1

    def __post_init__(self) -> None:
        for key in self.coordinators:
            try:
                found = len(base64.b64decode(key, validate=True))
            except (binascii.Error, ValueError):
                found = 0
            if found != _KEY:
                raise ParameterError(
                    f"{quoted(key, MAX_NAME)!r} is no key of a coordinator: take `verify` of the coordinator's card"
                )

    def vouched(self, charter: Charter, signature: bytes = b"") -> bool:
        """Whether ``charter`` is accepted whatever it says: it is listed, or a coordinator has signed it."""
        if charter.digest.hex() in self.accept:
            return True
        return len(signature) == SIGNATURE_BYTES and any(
            _native.charter_signature_holds(base64.b64decode(key), charter.digest, signature)
            for key in self.coordinators
        )

    def judge(self, charter: Charter, signature: bytes = b"") -> None:
        """Raise `CharterError` where ``charter`` asks for more than this site allows."""
        if self.vouched(charter, signature):
            return
        for refused, why in self._objections(charter):
            if refused:
                raise CharterError(
                    f"this site's policy does not allow the charter {charter.digest.hex()}: {why}. "
                    "`fedcipher policy` shows the policy and how to change it"
                )

    def judge_query(self, query: Query) -> None:
        """Raise `CharterError` where ``query`` asks for more than this site allows."""
        digest = query.digest.hex()
        numbers = sum(answer.count for answer in query.answers)
        if digest in self.accept:
            return
        if self.only_listed or numbers > self.most_numbers:
            why = f"it asks for {numbers} numbers, {self.most_numbers} are allowed"
            raise CharterError(
                f"this site's policy does not allow the query {digest}: "
                f"{'only what is listed is accepted' if self.only_listed else why}. `fedcipher policy` shows the policy"
            )

    def _objections(self, charter: Charter) -> list[tuple[bool, str]]:
        numbers = max(sum(a.count for a in charter.answers[purpose]) for purpose in charter.answers)
        named = {name for names in charter.clear.values() for name in names}
        clear = [] if ANY in self.clear else sorted(named - set(self.clear))
        coordinates = cast("Mapping[str, Any]", charter.scheme["params"]).get("per_client_top") is not None
        private = cast("Mapping[str, Any]", charter.scheme["codec"]).get("privacy") is not None
        return [
            (self.only_listed, "only charters that are listed, or that a coordinator has signed, are accepted"),
            (charter.sets_models and not self.server_sets_models, "the server sets models after the first"),
            (
                # Answers are weighted also where updates are not.
                not {charter.weighted_by, ANY} & set(self.weighted_by),
                f"it weights clients by {charter.weighted_by!r}",
            ),
            (bool(clear), f"metrics {clear} would leave in the clear"),
            (coordinates and not self.per_client_top, "each client's own coordinates would leave in the clear"),
            (numbers > self.most_numbers, f"its answers have {numbers} numbers, {self.most_numbers} are allowed"),
            (
                private and not charter.equal_weights,
                "it weights by examples, and the noise of differential privacy is for equal weights",
            ),
            (
                private and bool(charter.answers["train"]),
                "answers of training are not covered by the noise of differential privacy",
            ),
            (
                private and bool(charter.answers["evaluate"]) and not self.privacy_evaluation,
                "answers of an evaluation are not covered by the noise of differential privacy",
            ),
            (not self._optimiser_allowed(charter.optimiser), f"the optimiser {charter.optimiser} is out of bounds"),
        ]

    def _optimiser_allowed(self, optimiser: tuple[str, tuple[float, ...]] | None) -> bool:
        if optimiser is None:
            return True
        kind, numbers = optimiser
        names = _NUMBERS.get(kind, ())
        if len(names) != len(numbers):
            return False
        said = dict(zip(names, numbers, strict=True))
        shares = [said[name] for name in ("beta_1", "beta_2", "server_momentum") if name in said]
        return (
            all(self.least_rate <= said[name] <= self.most_rate for name in _RATES[kind])
            and said.get("tau", 0.0) <= self.most_tau
            and all(share <= self.most_momentum for share in shares)
        )

    def to_values(self) -> dict[str, Any]:
        """For a policy file."""
        return {"fedcipher_policy": 1, **asdict(self)}

    @classmethod
    def parse(cls, said: object) -> Policy:
        """From a policy file. Raises `ParameterError`."""
        if not isinstance(said, dict) or cast("dict[str, Any]", said).get("fedcipher_policy") != 1:
            raise ParameterError('it is no policy: it does not begin with "fedcipher_policy": 1')
        given = {key: value for key, value in cast("dict[str, Any]", said).items() if key != "fedcipher_policy"}
        known = {field.name: field for field in fields(cls)}
        unknown = sorted(set(given) - set(known))
        if unknown:
            raise ParameterError(f"a policy has no {', '.join(unknown)}; it has {', '.join(known)}")
        made: dict[str, Any] = {}
        for name, value in given.items():
            made[name] = _typed(name, value, known[name].default)
        return cls(**made)


SIMULATED = Policy(
    server_sets_models=True,
    weighted_by=(ANY,),
    clear=(ANY,),
    per_client_top=True,
    privacy_evaluation=True,
    repeatable=True,
    most_numbers=1 << 16,
    runs=0,
    queries=0,
    privacy_budgets=0,
)
"""Where the run itself names every client's keys, as a simulation does: there is no site to protect."""


def _typed(name: str, value: Any, like: Any) -> Any:
    if isinstance(like, tuple):
        if not isinstance(value, list) or not all(isinstance(item, str) for item in cast("list[object]", value)):
            raise ParameterError(f"{name} of a policy is a list of texts, not {value!r}")
        return tuple(cast("list[str]", value))
    if isinstance(like, bool):
        if type(value) is not bool:
            raise ParameterError(f"{name} of a policy is true or false, not {value!r}")
        return value
    if isinstance(like, int):
        if type(value) is not int or not 0 <= value <= _MOST:
            raise ParameterError(f"{name} of a policy is a whole number from 0 to {_MOST}, not {value!r}")
        return value
    if type(value) not in (int, float) or not (is_finite(value) and value >= 0):
        raise ParameterError(f"{name} of a policy is a number from 0 on, not {value!r}")
    return float(value)


def policy_place(path: Path) -> Path:
    """Where a site's policy is looked for: where ``FEDCIPHER_POLICY`` says, else in ``path``."""
    return Path(os.environ.get(POLICY_FILE) or path)


def load_policy(path: Path, default: Policy | None = None) -> Policy:
    """The policy in the file that ``FEDCIPHER_POLICY`` names, else in ``path``; ``default`` where there is none.

    ``default``: `Policy`'s own, where it is not given.

    Raises `ParameterError` for a file that is there and is no policy.
    """
    chosen, path = os.environ.get(POLICY_FILE), policy_place(path)
    try:
        content = read_trusted(path, _MOST_BYTES)
    except FileNotFoundError:
        if chosen:
            raise ParameterError(f"{POLICY_FILE} names {path}, which does not exist") from None
        # Whoever may write to the folder has perhaps taken a stricter one away.
        why = _native.replaceable(path.parent) if path.parent.exists() else None
        if why:
            raise ParameterError(f"the policy {path} is not there, and its folder {why}") from None
        return default or Policy()
    except OSError as error:
        raise ParameterError(f"the policy {path} cannot be read: {error}") from error
    try:
        return Policy.parse(parse_json(content))
    except ValueError as error:
        raise ParameterError(f"the policy {path} is refused: {error}") from error
