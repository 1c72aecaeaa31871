"""A run's search for liars: which sums a round makes, and what its clients' replies say of the last ones."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from pathlib import Path

from fedcipher._files import write_whole
from fedcipher.errors import RunError
from fedcipher.federation.fault_finder import FaultFinder, Outcome
from fedcipher.federation.records import ClientRecord
from fedcipher.foreign_files import MAX_INDEX, read_json
from fedcipher.foreign_text import quoting_log

__all__ = ["LiarSearch"]

_log = quoting_log("fedcipher.federation")
_FILE = "search.json"


class LiarSearch:
    """`FaultFinder` over a run's rounds, kept in ``folder``.

    A round is `sets` with the clients whose frames arrived, then `settle` or `heard`. Raises `RunError` for a damaged
    file of an earlier server.
    """

    def __init__(self, folder: Path, *, corrupt: int, minimum: int, seed: int) -> None:
        self._path = folder / _FILE
        self._corrupt = corrupt
        # The sets of the last step, while nobody has said whether they open.
        self.pending: tuple[frozenset[int], ...] = ()
        self._round, self._measures = 0, False
        self._finder = FaultFinder(corrupt_clients=corrupt, min_contributions=max(minimum, corrupt + 2), seed=seed)
        if self._path.exists():
            self._restore()

    def _restore(self) -> None:
        try:
            said = read_json(self._path, MAX_INDEX)
            self._finder = FaultFinder.restore(said["finder"])
            self.pending = tuple(frozenset(clients) for clients in said["pending"])
            self._round, self._measures = int(said["round"]), bool(said["measures"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise RunError(f"{self._path} is damaged: {error}; copy the whole folder of the run again") from error

    def _keep(self) -> None:
        pending = [sorted(clients) for clients in self.pending]
        said = {"finder": self._finder.export(), "pending": pending}
        said |= {"round": self._round, "measures": self._measures}
        write_whole(self._path, json.dumps(said).encode())

    @property
    def found(self) -> dict[int, list[frozenset[int]]]:
        """Clients that are left out of the run, each with the failed sums that prove its lie."""
        return self._finder.proofs

    def under_way(self, clients: Collection[int]) -> bool:
        """Whether a sum has failed lately, so that ``clients`` are summed in groups."""
        return self._finder.searching(clients)

    def sets(
        self,
        arrived: Collection[int],
        remembered: Sequence[tuple[Collection[int], int]] = (),
        *,
        round: int = 0,
        measures: bool = False,
    ) -> tuple[tuple[frozenset[int], ...], str]:
        """The sets of ``arrived`` in ``round`` that may be summed beside those ``remembered``; if there are none, why.

        ``measures`` says that they are sums of histograms. Other arguments as for `FaultFinder.plan`.
        """
        plan = self._finder.plan(arrived, remembered)
        if plan.waiting or plan.left_out:
            _log.warning(
                "clients %s sit this round out, so that no sums differ by too few clients; %s are left out of the run",
                *(list(plan.waiting), list(plan.left_out)),
            )
        sums = self._finder.fix_sums(arrived)
        self.pending, self._round, self._measures = sums, round, measures
        self._keep()
        return sums, plan.end or ("" if sums else "no group of clients is complete")

    def drop(self, *, asked: bool) -> None:
        """No sum was made of the last `sets`. ``asked``: a committee was asked for it."""
        if self.pending:
            self._finder.drop_sums(asked=asked)
        self.pending = ()
        self._keep()

    def go_on(self, done: int, *, measured: bool) -> None:
        """The server was started again, and ``done`` is the last round that had ended.

        If it was killed in the middle of a round, the clients of that round's sums may send again. ``measured`` says
        that the run has that round's sums of histograms and goes on from these.
        """
        if self._round > done and not (self._measures and measured):
            self.drop(asked=True)

    def settle(self, failed: Collection[int]) -> Outcome:
        """The server has opened the last step itself; ``failed`` are the numbers of the sums that do not open."""
        everybody = [sorted(clients) if number in failed else [] for number, clients in enumerate(self.pending)]
        return self._settled(everybody)

    def heard(self, replies: Sequence[ClientRecord], unopened: dict[int, list[int]]) -> Outcome | None:
        """What ``replies`` say of the last step; None where too few say the same of some sum.

        ``unopened`` are the numbers of the sums that a node's client could not open, though it goes on. A sum has
        opened where more clients go on with it than may lie: a client that refuses everything may have other reasons.
        It has not where more refuse it than may lie, and no more than may lie go on: once so many have answered that
        the others of its clients change nothing, or that more than half of them tell the truth.
        """
        if not self.pending:
            return None
        said = {r.node: range(len(self.pending)) if r.refused else unopened.get(r.node, ()) for r in replies}
        said = {r.node: said[r.node] for r in replies if r.refused or r.left_out is None}
        outstanding = len(frozenset[int]().union(*self.pending)) - len(said)
        refusals: list[list[int]] = []
        for number in range(len(self.pending)):
            refused = [node for node, numbers in said.items() if number in numbers]
            going = len(said) - len(refused)
            opened = going > self._corrupt
            enough = len(said) > 2 * self._corrupt or going + outstanding <= self._corrupt
            if not opened and not (enough and len(refused) > self._corrupt):
                return None
            refusals.append([] if opened else refused)
        return self._settled(refusals)

    def _settled(self, refusals: Sequence[Collection[int]]) -> Outcome:
        outcome = self._finder.record_result(refusals)
        self.pending = ()
        self._keep()
        for client in outcome.proven:
            _log.error(
                "client %s has lied: it is left out of the run. It was in the sums of %s, which did not open and have "
                "no other client in common",
                *(client, [sorted(group) for group in self._finder.proofs[client]]),
            )
        return outcome
