"""A site's state in one job: opens the server's messages, and makes the one reply to each. No framework.

NVFlare calls a site three times a task: the filter of the task's data, the app, and the filter of its result. Between
the calls this object holds the open work, or the reply that needs no app.
"""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedcipher.errors import KeyFormatError, PlaintextError
from fedcipher.federation.app_inputs import digest_of_context
from fedcipher.federation.client.app_result import AppResult
from fedcipher.federation.client.key_holder import key_holder_of
from fedcipher.federation.client.session import ClientSession, Work
from fedcipher.federation.messages import Message
from fedcipher.federation.refusal import refused
from fedcipher.foreign_files import MAX_INDEX, MAX_MODEL, parse_json, read_file

__all__ = ["MESSAGE", "SETTINGS", "Site", "app_digest", "settings_in", "site_of"]

MESSAGE = "fedcipher"
"""Key of a message's bytes in a Shareable, and name of the task whose messages need no app."""
SETTINGS = "fedcipher.json"
"""File with the site's own settings, in the folder ``local`` of the site."""
_NO_WORK = "the app has not answered: its executor raised an error, which the site's log has"


class Site:
    """One site in one job. ``settings`` are the operator's, and ``context`` is the digest of the job's app."""

    def __init__(self, settings: Mapping[str, Any], context: bytes) -> None:
        self._session = ClientSession(lambda: key_holder_of(settings, {}), lambda: context)
        self.message = Message(0, "")
        """The message that was opened last."""
        self.work: Work | None = None
        """The open work; None if there is none."""
        self._reply: bytes | None = None
        self.passed: Any = None
        """The Shareable that a filter of this adapter has returned last."""

    def open(self, raw: object) -> Work | None:
        """Open a message of the server. Return work for the app, or None if `reply` has the finished reply.

        Every error becomes the constant refusal of `fedcipher.federation.refusal`.
        """
        if self.work is not None:
            # Its lock would block the next message.
            self.work.__exit__()
        self.work = self._reply = None
        try:
            if not isinstance(raw, bytes):
                raise PlaintextError("the task has no message of Fedcipher's server: every other task is refused")
            self.message = Message.parse(raw)
            opened = self._session.open(self.message)
            if opened is None:
                raise PlaintextError(f"a message of type {self.message.type!r} belongs to no run")
        except (KeyboardInterrupt, SystemExit):
            raise
        # Also a BaseException, such as a panic of native code: no error may be sent with its text.
        except BaseException as error:
            opened = refused(self.message, error)
        if isinstance(opened, Work):
            self.work = opened
            return opened
        self._reply = opened.to_bytes()
        return None

    def reply(self, result: AppResult | None = None) -> bytes:
        """The reply to the message that was opened last: a frame of the app's ``result``, or the finished reply.

        Without a result, work that is still open has failed. Its frame has zeros that do not count.
        """
        work, self.work = self.work, None
        if work is not None:
            try:
                with work:
                    sealed = self._session.seal(self.message, work, result or AppResult(failed=_NO_WORK))
            except (KeyboardInterrupt, SystemExit):
                raise
            except BaseException as error:
                sealed = refused(self.message, error)
            self._reply = sealed.to_bytes()
        if self._reply is None:
            error = PlaintextError("there is nothing to answer: no message has been opened, or it was answered")
            return refused(self.message, error).to_bytes()
        raw, self._reply = self._reply, None
        return raw


_sites: dict[tuple[str, str], Site] = {}
_lock = threading.Lock()


def site_of(job: str, name: str, local: Path, app: Path) -> Site:
    """The `Site` called ``name`` of a job. It is the same object for all filters of the job.

    ``local`` is the folder with the site's settings, and ``app`` is the folder of the job's app. Raises
    `KeyFormatError` for a file of settings that cannot be read.
    """
    with _lock:
        if (job, name) not in _sites:
            _sites[job, name] = Site(settings_in(local), app_digest(app))
        return _sites[job, name]


def settings_in(local: Path) -> dict[str, Any]:
    """The site's settings in `SETTINGS`; without this file, ``fedcipher-key`` is the file of the startup kit.

    Settings come from the site's own folder and never from the job. Raises `KeyFormatError`.
    """
    path = local / SETTINGS
    if not path.exists():
        return {"fedcipher-key": str(local.parent / "startup" / "fedcipher" / "client.key")}
    try:
        return {**parse_json(read_file(path, MAX_INDEX))}
    except (OSError, ValueError, TypeError) as error:
        raise KeyFormatError(
            f'{path} cannot be read: {error}. Write JSON, such as {{"fedcipher-key": "/etc/fedcipher/client-3.key"}}'
        ) from error


def app_digest(app: Path) -> bytes:
    """The digest of the job's app, which no charter can list: its code, and the configuration of its clients.

    Updates of sites with different apps do not sum. So settings of one site belong into files of this site, and not
    into the job.
    """
    found = (path for part in ("custom", "config") for path in sorted((app / part).rglob("*")))
    # A run may need several jobs. NVFlare's signatures differ from job to job, and the server's part may.
    others = (".", "config_fed_server")
    files = [path for path in found if path.is_file() and path.suffix != ".pyc" and not path.name.startswith(others)]
    listed = [
        [path.relative_to(app).as_posix(), hashlib.sha256(read_file(path, MAX_MODEL)).hexdigest()] for path in files
    ]
    return digest_of_context({}, json.dumps(listed))
