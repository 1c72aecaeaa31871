"""A site's rules for apps: which may run, on what data, for how long, and who agrees to a run.

The rules are in a file: the one that ``fedcipher guard run --rules`` names, else ``guard.json`` in ``FEDCIPHER_HOME``.
They come beside the site's policy (`fedcipher.federation.policy`), which judges charters.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, cast

from fedcipher.dp import Privacy
from fedcipher.errors import CharterError, ParameterError
from fedcipher.federation.charter import Charter
from fedcipher.federation.policy import fields_of
from fedcipher.foreign_files import parse_json, read_trusted

__all__ = ["AppRules", "load_rules"]

_MARK = "fedcipher_guard"
_MAX_BYTES = 1 << 20
_SHA256 = 64


@dataclass(frozen=True)
class AppRules:
    """A site's rules for apps. The defaults let no app run until people at the site have agreed to its run.

    Parameters
    ----------
    apps
        SHA-256 (hexadecimal) of the app packages (FAB) that may run. Empty: every app that people agree to.
    run_settings
        Settings that a run may change, as ``"NAME=VALUE"``; ``"*"``: any. All others keep the app's defaults. Empty:
        all that people agree to, and none if people need not agree.
    people_agree
        Whether people must agree to each run (``fedcipher guard approve``). False: runs of the ``apps`` begin at once.
    rounds_a_day, queries_a_day
        How many messages of rounds, and how many queries, reach an app in one day (UTC); 0: no limit.
    most_epsilon
        The largest epsilon of differential privacy that a run's keys may have; 0: privacy is not demanded.
    app_seconds
        Seconds after which an app is ended. Its answer then counts nothing.
    answer_every
        Answers leave at multiples of this many seconds after their message, so that an app cannot signal by its time.
    memory_mib, processes, file_mib
        Limits of an app: address space, processes and threads, and size of a file.
    data
        Folders that apps can read.
    environment
        Variables that apps get, as ``"NAME=VALUE"``.
    """

    apps: tuple[str, ...] = ()
    run_settings: tuple[str, ...] = ()
    people_agree: bool = True
    rounds_a_day: int = 2000
    queries_a_day: int = 20
    most_epsilon: float = 0.0
    app_seconds: float = 3600.0
    answer_every: float = 1.0
    memory_mib: int = 16384
    processes: int = 1024
    file_mib: int = 4096
    data: tuple[str, ...] = ()
    environment: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name in self.apps:
            if len(name) != _SHA256 or set(name) - set("0123456789abcdef"):
                raise ParameterError(f"apps of the guard's rules has {name[:80]!r}, which is not a SHA-256")
        if not self.people_agree and not self.apps:
            raise ParameterError('people_agree=false needs "apps", the SHA-256 of each app that may run without people')
        if not 0 < self.app_seconds <= 7 * 86400 or not 0 <= self.answer_every <= self.app_seconds:
            raise ParameterError("app_seconds must be more than 0, at most a week, and at least answer_every")
        for name in (*self.run_settings, *self.environment):
            if "=" not in name and name != "*":
                raise ParameterError(f"{name[:80]!r} of the guard's rules is not NAME=VALUE")
        for name in self.data:
            if not Path(name).is_absolute():
                raise ParameterError(f"data of the guard's rules has {name[:80]!r}, which is not an absolute path")

    def check_app(self, package: str) -> None:
        """Raise `CharterError` unless the app whose package has the SHA-256 ``package`` may run."""
        if self.apps and package not in self.apps:
            raise CharterError(f"the guard's rules do not list the app {package}; add it to `apps` to allow it")

    def check_settings(self, changed: Mapping[str, object]) -> None:
        """Raise `CharterError` if a run changes a setting to a value that is not listed."""
        if "*" in self.run_settings or (self.people_agree and not self.run_settings):
            return
        given = [f"{name}={value}" for name, value in changed.items()]
        refused = sorted(text for text in given if text not in self.run_settings)
        if refused:
            raise CharterError(
                f"the run changes settings {refused}, which `run_settings` of the guard's rules does not list"
            )

    def check_privacy(self, charter: Charter) -> None:
        """Raise `CharterError` if the keys of ``charter`` give a larger epsilon than allowed, or no privacy."""
        if not self.most_epsilon:
            return
        stated = cast("Mapping[str, Any]", charter.scheme["codec"]).get("privacy")
        if stated is None:
            raise CharterError("the guard's rules demand differential privacy, and the run's keys have none")
        epsilon = Privacy.of(stated).epsilon()
        if epsilon > self.most_epsilon:
            raise CharterError(
                f"the run's keys give an epsilon of {epsilon:.3g}, and the guard's rules allow {self.most_epsilon:g}"
            )

    def to_values(self) -> dict[str, Any]:
        """The content of a rules file."""
        return {_MARK: 1, **asdict(self)}


def load_rules(path: Path) -> AppRules:
    """The rules in ``path``, or the defaults if there is no file. Raises `ParameterError`."""
    try:
        return AppRules(**fields_of(AppRules, parse_json(read_trusted(path, _MAX_BYTES)), _MARK))
    except FileNotFoundError:
        return AppRules()
    except (OSError, ValueError) as error:
        raise ParameterError(f"the guard's rules {path} are refused: {error}") from error
