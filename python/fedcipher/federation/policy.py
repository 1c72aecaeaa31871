"""A site's policy: what a run may do with the site's data. `Policy.judge` accepts a charter or raises the reason.

The site's choices are in a file: the one that ``FEDCIPHER_POLICY`` names, else ``policy.json`` in ``FEDCIPHER_HOME``.
Without a file the strict default applies. ``fedcipher policy`` shows the current policy and writes the file.
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

__all__ = ["POLICY_FILE", "SIMULATION_POLICY", "Policy", "fields_of", "load_policy", "policy_path"]

POLICY_FILE = "FEDCIPHER_POLICY"
"""The environment variable that names a site's policy file."""

ANY = "*"
"""Wildcard in place of a metric's name: all metrics that the client's own configuration names."""

_MAX_BYTES = 1 << 20
_KEY = 1952 + 32
"""Bytes of a key of ML-DSA-65 and Ed25519."""
_MAX_NUMBER = 2**63 - 1
_RATES = {"adam": ("eta",), "yogi": ("eta",), "adagrad": ("eta",), "avgm": ("server_learning_rate",)}
_NUMBERS = {
    **{kind: ("eta", "beta_1", "beta_2", "tau") for kind in ("adam", "yogi", "adagrad")},
    "avgm": ("server_learning_rate", "server_momentum"),
}


@dataclass(frozen=True)
class Policy:
    """A site's rules for runs that use its data. The defaults are strict.

    Parameters
    ----------
    accept
        Digests (hexadecimal SHA-256) of charters and queries that are accepted without further checks.
    coordinators
        Keys (base64, ``verify`` of a card) of coordinators. A charter with the signature of one is accepted without
        further checks.
    only_listed
        Whether all other charters are refused.
    server_sets_models
        Whether a server may set models after the first. A server that chooses the model can measure a client's data by
        the client's answer.
    weighted_by
        Metrics that clients may be weighted by; ``"*"``: any. If only one client has a metric, the mean weighted by
        that metric is this client's update.
    clear
        Metrics that may leave this site unencrypted; ``"*"``: any. The client's own configuration must name them too.
    per_client_top
        Whether this client may send coordinates of its own choice, which the server sees.
    privacy_evaluation
        Whether clients answer evaluations in runs with differential privacy. No noise covers these answers.
    repeatable
        Whether updates are rounded by public random draws, so that a run can be repeated to the bit. Readers of sums
        can then find this client's part in them.
    least_rate, most_rate, most_tau, most_momentum
        Limits on an optimiser's numbers. If a model hardly changes, every round measures the same model.
    most_numbers
        The largest number of values that all answers of an evaluation, or of a training, have together.
    runs, queries
        The largest numbers of charters and queries in a key epoch, counted over all keys of the site; 0: no limit.
    privacy_budgets
        The largest number of differential privacy budgets that this site uses, over all of its keys; 0: no limit.
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
                    f"{quoted(key, MAX_NAME)!r} is not a coordinator's key: use `verify` of the coordinator's card"
                )

    def vouched(self, charter: Charter, signature: bytes = b"") -> bool:
        """Whether ``charter`` is accepted without further checks: it is listed, or a coordinator has signed it."""
        if charter.digest.hex() in self.accept:
            return True
        return len(signature) == SIGNATURE_BYTES and any(
            _native.charter_signature_holds(base64.b64decode(key), charter.digest, signature)
            for key in self.coordinators
        )

    def judge(self, charter: Charter, signature: bytes = b"") -> None:
        """Raise `CharterError` if ``charter`` asks for more than this site allows."""
        if self.vouched(charter, signature):
            return
        for refused, why in self._objections(charter):
            if refused:
                raise CharterError(
                    f"this site's policy does not allow the charter {charter.digest.hex()}: {why}. "
                    "`fedcipher policy` shows the policy and how to change it"
                )

    def judge_query(self, query: Query) -> None:
        """Raise `CharterError` if ``query`` asks for more than this site allows."""
        digest = query.digest.hex()
        numbers = sum(answer.count for answer in query.answers)
        if digest in self.accept:
            return
        if self.only_listed or numbers > self.most_numbers:
            why = f"it asks for {numbers} numbers, and {self.most_numbers} are allowed"
            raise CharterError(
                f"this site's policy does not allow the query {digest}: "
                f"{'only listed queries are accepted' if self.only_listed else why}. `fedcipher policy` shows the "
                "policy"
            )

    def _objections(self, charter: Charter) -> list[tuple[bool, str]]:
        numbers = max(sum(a.count for a in charter.answers[purpose]) for purpose in charter.answers)
        named = {name for names in charter.clear.values() for name in names}
        clear = [] if ANY in self.clear else sorted(named - set(self.clear))
        coordinates = cast("Mapping[str, Any]", charter.scheme["params"]).get("per_client_top") is not None
        private = cast("Mapping[str, Any]", charter.scheme["codec"]).get("privacy") is not None
        return [
            (self.only_listed, "only charters that are listed or signed by a coordinator are accepted"),
            (charter.sets_models and not self.server_sets_models, "the server sets models after the first"),
            (
                # Checked also for equal weights, because answers are still weighted.
                not {charter.weighted_by, ANY} & set(self.weighted_by),
                f"it weights clients by {charter.weighted_by!r}",
            ),
            (bool(clear), f"metrics {clear} would leave unencrypted"),
            (coordinates and not self.per_client_top, "each client's own coordinates would leave unencrypted"),
            (numbers > self.most_numbers, f"its answers have {numbers} numbers, and {self.most_numbers} are allowed"),
            (
                private and not charter.equal_weights,
                "it weights clients by examples, and the noise of differential privacy is for equal weights",
            ),
            (
                private and bool(charter.answers["train"]),
                "answers of training are not covered by the noise of differential privacy",
            ),
            (
                private and bool(charter.answers["evaluate"]) and not self.privacy_evaluation,
                "answers of an evaluation are not covered by the noise of differential privacy",
            ),
            (not self._optimiser_allowed(charter.optimiser), f"the optimiser {charter.optimiser} exceeds its limits"),
        ]

    def _optimiser_allowed(self, optimiser: tuple[str, tuple[float, ...]] | None) -> bool:
        if optimiser is None:
            return True
        kind, numbers = optimiser
        names = _NUMBERS.get(kind, ())
        if len(names) != len(numbers):
            return False
        given = dict(zip(names, numbers, strict=True))
        shares = [given[name] for name in ("beta_1", "beta_2", "server_momentum") if name in given]
        return (
            all(self.least_rate <= given[name] <= self.most_rate for name in _RATES[kind])
            and given.get("tau", 0.0) <= self.most_tau
            and all(share <= self.most_momentum for share in shares)
        )

    def to_values(self) -> dict[str, Any]:
        """The content of a policy file."""
        return {"fedcipher_policy": 1, **asdict(self)}

    @classmethod
    def parse(cls, content: object) -> Policy:
        """The policy in the parsed ``content`` of a file. Raises `ParameterError`."""
        return cls(**fields_of(cls, content, "fedcipher_policy"))


SIMULATION_POLICY = Policy(
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
"""The policy of a simulation. The run itself names every client's keys, so there is no site to protect."""


def fields_of(cls: type[Any], content: object, mark: str) -> dict[str, Any]:
    """The fields of the dataclass ``cls`` in the parsed ``content`` of a file that ``mark`` names.

    Raises `ParameterError` for an unknown field, and for a value of another type than the field's default.
    """
    if not isinstance(content, dict) or cast("dict[str, Any]", content).get(mark) != 1:
        raise ParameterError(f'it is not such a file: the field "{mark}": 1 is missing')
    given = {key: value for key, value in cast("dict[str, Any]", content).items() if key != mark}
    known = {field.name: field for field in fields(cls)}
    unknown = sorted(set(given) - set(known))
    if unknown:
        raise ParameterError(f"it has no field {', '.join(unknown)}; its fields are {', '.join(known)}")
    return {name: _typed(name, value, known[name].default) for name, value in given.items()}


def _typed(name: str, value: Any, like: Any) -> Any:
    if isinstance(like, tuple):
        if not isinstance(value, list) or not all(isinstance(item, str) for item in cast("list[object]", value)):
            raise ParameterError(f"{name} must be a list of texts, not {value!r}")
        return tuple(cast("list[str]", value))
    if isinstance(like, bool):
        if type(value) is not bool:
            raise ParameterError(f"{name} must be true or false, not {value!r}")
        return value
    if isinstance(like, int):
        if type(value) is not int or not 0 <= value <= _MAX_NUMBER:
            raise ParameterError(f"{name} must be a whole number from 0 to {_MAX_NUMBER}, not {value!r}")
        return value
    if type(value) not in (int, float) or not (is_finite(value) and value >= 0):
        raise ParameterError(f"{name} must be a number of at least 0, not {value!r}")
    return float(value)


def policy_path(path: Path) -> Path:
    """The path of a site's policy: the one that ``FEDCIPHER_POLICY`` names, else ``path``."""
    return Path(os.environ.get(POLICY_FILE) or path)


def load_policy(path: Path, default: Policy | None = None) -> Policy:
    """The policy in the file that ``FEDCIPHER_POLICY`` names, else in ``path``.

    If there is no file, the result is ``default``, or `Policy()` without a ``default``. Raises `ParameterError` if the
    file is not a policy, cannot be read, or could have been removed by another user, and if the file that the variable
    names does not exist.
    """
    chosen, path = os.environ.get(POLICY_FILE), policy_path(path)
    try:
        content = read_trusted(path, _MAX_BYTES)
    except FileNotFoundError:
        if chosen:
            raise ParameterError(f"{POLICY_FILE} names {path}, which does not exist") from None
        # Another user who may write to the folder may have removed a stricter policy.
        why = _native.replaceable(path.parent) if path.parent.exists() else None
        if why:
            raise ParameterError(f"the policy {path} does not exist, and its folder {why}") from None
        return default or Policy()
    except OSError as error:
        raise ParameterError(f"the policy {path} cannot be read: {error}") from error
    try:
        return Policy.parse(parse_json(content))
    except ValueError as error:
        raise ParameterError(f"the policy {path} is refused: {error}") from error
