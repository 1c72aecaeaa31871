"""The decisions of a site's people about runs, as files in the guard's folder.

A request names everything that people agree to: the charter or the query, the app's package and the run's settings.
Its name is a digest of the three. ``requests/NAME.json`` is what people see. ``agreed/NAME`` and ``denied/NAME`` are
their decisions.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from fedcipher._files import make_private_folder, write_whole
from fedcipher.errors import CharterError, FedcipherError, ParameterError
from fedcipher.federation.canonical import encode
from fedcipher.federation.charter import Charter, digest_of
from fedcipher.federation.client.evidence import APPROVAL, Recorder
from fedcipher.federation.query import Query
from fedcipher.foreign_files import parse_json, read_file
from fedcipher.foreign_text import MAX_NAME, quoted, quoting_log
from fedcipher.guard.policy import AppRules

__all__ = ["AppOfRun", "Consents", "Decision", "Request"]

_log = quoting_log("fedcipher.guard")
_MAX_BYTES = 65 << 20
_MAX_REQUESTS = 100
"""Requests without a decision. A server can make any number of charters, and each would be a file here."""
_NAME = 32
_BY_RULES = b"by the rules\n"
"""Content of a decision that no person has made."""
_MAX_DECISION = 1 << 10
_REQUESTS, _AGREED, _DENIED = "requests", "agreed", "denied"
Decision = str
"""``"agreed"``, ``"denied"`` or ``"waiting"``."""


@dataclass(frozen=True)
class AppOfRun:
    """The app of a run: the SHA-256 of its ``package`` (FAB), its ``name``, and the run's settings.

    ``settings`` are all settings that the app gets, and ``changed`` those that differ from the app's defaults.
    """

    package: str
    name: str
    settings: Mapping[str, Any]
    changed: Mapping[str, Any]

    @property
    def digest(self) -> bytes:
        """SHA-256 of the package and of all settings."""
        listed = sorted((str(key), type(value).__name__, str(value)) for key, value in self.settings.items())
        return digest_of(self.package.encode(), encode([list(item) for item in listed]))


@dataclass(frozen=True)
class Request:
    """One request, and the decision about it."""

    name: str
    asked: str
    """UTC time of the first message, in ISO format."""
    document: dict[str, Any]
    """The charter or the query."""
    package: str
    app: str
    settings: dict[str, str]
    changed: list[str]
    decision: Decision = "waiting"


class Consents:
    """The decisions in ``folder``. ``rules`` say whether people must agree at all."""

    def __init__(self, folder: Path, rules: AppRules) -> None:
        self._folder, self._rules = folder, rules
        for part in (_REQUESTS, _AGREED, _DENIED):
            make_private_folder(folder / part)

    def of(self, app: AppOfRun, recorder: Callable[[], Recorder | None] = lambda: None) -> _OfRun:
        """The decisions about runs of ``app``: the `Consent` of a `ClientSession`.

        ``recorder`` returns the site's log, which gets a line for each decision that lets a run begin.
        """
        return _OfRun(self, app, recorder)

    def decider(self, digest: bytes, app: AppOfRun) -> str:
        """The party that has agreed to the charter ``digest`` with ``app``."""
        decision = read_file(self._folder / _AGREED / _name_of(digest, app), _MAX_DECISION)
        return "the site's rules" if decision == _BY_RULES else "people at the site"

    def given(self, digest: bytes, document: bytes, app: AppOfRun) -> bool:
        """Whether the site agrees to the charter or the query ``digest`` with ``app``.

        A new request is written for people to see. Raises `CharterError` if the rules or people refuse, and if
        ``document`` is needed and missing.
        """
        self._rules.check_app(app.package)
        self._rules.check_settings(app.changed)
        name = _name_of(digest, app)
        if (self._folder / _DENIED / name).exists():
            raise CharterError(f"people at this site have denied the request {name}")
        if (self._folder / _AGREED / name).exists():
            return True
        if not document:
            raise CharterError("the message names a charter that this guard has not seen; the server sends it again")
        charter = _parsed(document)
        if charter.digest != digest:
            # People would agree to another document than the one that the digest names.
            raise CharterError("the charter's digest is not the one that the message names")
        if isinstance(charter, Charter):
            self._rules.check_privacy(charter)
        if not self._rules.people_agree:
            write_whole(self._folder / _AGREED / name, _BY_RULES)
            return True
        self._write_request(name, document, app)
        return False

    def _write_request(self, name: str, document: bytes, app: AppOfRun) -> None:
        path = self._folder / _REQUESTS / f"{name}.json"
        if path.exists():
            return
        if sum(1 for request in self.all() if request.decision == "waiting") >= _MAX_REQUESTS:
            raise CharterError(f"{_MAX_REQUESTS} requests wait for people at this site: `fedcipher guard list`")
        request = Request(
            name,
            datetime.now(timezone.utc).isoformat(timespec="seconds"),
            json.loads(document),
            app.package,
            app.name,
            {str(key): str(value) for key, value in app.settings.items()},
            sorted(map(str, app.changed)),
        )
        content = asdict(request)
        del content["decision"]
        write_whole(path, json.dumps(content).encode())
        _log.warning("a run waits for consent: `fedcipher guard approve %s` after `fedcipher guard list`", name)

    def all(self) -> Iterator[Request]:
        """All requests, the oldest first. A damaged file is left out with a warning."""
        found: list[Request] = []
        for path in (self._folder / _REQUESTS).glob("*.json"):
            try:
                content = parse_json(read_file(path, _MAX_BYTES))
                found.append(Request(**content, decision=self._decision(path.stem)))
            except (OSError, ValueError, TypeError) as error:
                _log.warning("the request %s cannot be read: %s", path, error)
        yield from sorted(found, key=lambda request: (request.asked, request.name))

    def _decision(self, name: str) -> Decision:
        if (self._folder / _DENIED / name).exists():
            return "denied"
        return "agreed" if (self._folder / _AGREED / name).exists() else "waiting"

    def decide(self, name: str, *, agree: bool) -> Request:
        """Record the decision about the request whose name begins with ``name``. Raises `ParameterError`."""
        matching = [request for request in self.all() if name and request.name.startswith(name)]
        if len(matching) != 1:
            shown = quoted(name, MAX_NAME)
            raise ParameterError(
                f"{len(matching)} requests have a name that begins with {shown!r}; `fedcipher guard list` shows all"
            )
        request = matching[0]
        kept, dropped = (_AGREED, _DENIED) if agree else (_DENIED, _AGREED)
        # First the decision, then the removal of an earlier one: a denial in between refuses.
        write_whole(self._folder / kept / request.name, datetime.now(timezone.utc).isoformat().encode() + b"\n")
        with suppress(FileNotFoundError):
            (self._folder / dropped / request.name).unlink()
        return request


class _OfRun:
    """The decisions about runs of one app."""

    def __init__(self, consents: Consents, app: AppOfRun, recorder: Callable[[], Recorder | None]) -> None:
        self._consents, self._app, self._recorder = consents, app, recorder

    def given(self, digest: bytes, document: bytes) -> bool:
        if not self._consents.given(digest, document, self._app):
            return False
        recorder = self._recorder()
        if recorder is not None:
            app, by = self._app, self._consents.decider(digest, self._app)
            facts = {"charter": digest.hex(), "app": app.package, "settings": app.digest.hex(), "by": by}
            recorder.record(APPROVAL, facts, once=True)
        return True


def _name_of(digest: bytes, app: AppOfRun) -> str:
    return digest_of(b"fedcipher consent 1", digest, app.digest).hex()[:_NAME]


def _parsed(document: bytes) -> Charter | Query:
    """The charter or the query of ``document``. Raises `CharterError` if it is neither."""
    try:
        return Charter.decode(document)
    except FedcipherError as error:
        try:
            return Query.decode(document)
        except FedcipherError:
            raise error from None
