"""Searches for clients that make sums false: chooses a round's sums, and judges whether the last ones opened."""

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
    """A `FaultFinder` for a run's rounds, stored in ``folder``.

    In each round, call `sets` with the clients whose frames arrived, then `record_opened` or `judge`. Raises `RunError`
    if the file of an earlier server is damaged.
    """

    def __init__(self, folder: Path, *, corrupt: int, minimum: int, seed: int) -> None:
        self._path = folder / _FILE
        self._corrupt = corrupt
        # The sets of the last step, until it is known whether their sums open.
        self.pending: tuple[frozenset[int], ...] = ()
        self._round, self._measures = 0, False
        self._finder = FaultFinder(corrupt_clients=corrupt, min_contributions=max(minimum, corrupt + 2), seed=seed)
        if self._path.exists():
            self._restore()

    def _restore(self) -> None:
        try:
            stored = read_json(self._path, MAX_INDEX)
            self._finder = FaultFinder.restore(stored["finder"])
            self.pending = tuple(frozenset(clients) for clients in stored["pending"])
            self._round, self._measures = int(stored["round"]), bool(stored["measures"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise RunError(f"{self._path} is damaged: {error}; copy the whole folder of the run again") from error

    def _save(self) -> None:
        pending = [sorted(clients) for clients in self.pending]
        stored = {"finder": self._finder.export(), "pending": pending}
        stored |= {"round": self._round, "measures": self._measures}
        write_whole(self._path, json.dumps(stored).encode())

    @property
    def found(self) -> dict[int, list[frozenset[int]]]:
        """Clients that are left out of the run, each with the failed sums that prove that the client lied."""
        return self._finder.proofs

    def active(self, clients: Collection[int]) -> bool:
        """Whether a sum has failed recently, so that ``clients`` are summed in groups."""
        return self._finder.searching(clients)

    def sets(
        self,
        arrived: Collection[int],
        remembered: Sequence[tuple[Collection[int], int]] = (),
        *,
        round: int = 0,
        measures: bool = False,
    ) -> tuple[tuple[frozenset[int], ...], str]:
        """The sets of ``arrived`` clients that may be summed in ``round``, and the reason if there are none.

        The sets keep the rule of sets together with those in ``remembered``. ``measures`` says that the sums are of
        histograms. The other arguments are those of `FaultFinder.plan`.
        """
        plan = self._finder.plan(arrived, remembered)
        if plan.waiting or plan.left_out:
            _log.warning(
                "clients %s are not summed in this round, so that sums do not differ by too few clients; "
                "%s are left out of the run",
                *(list(plan.waiting), list(plan.left_out)),
            )
        sums = self._finder.fix_sums(arrived)
        self.pending, self._round, self._measures = sums, round, measures
        self._save()
        return sums, plan.end or ("" if sums else "no group of clients is complete")

    def discard(self, *, asked: bool) -> None:
        """Forget the last `sets`, because no sum was made. ``asked`` says that a committee was asked for one."""
        if self.pending:
            self._finder.drop_sums(asked=asked)
        self.pending = ()
        self._save()

    def resume(self, done: int, *, measured: bool) -> None:
        """Resume the search after a restart of the server; ``done`` is the last round that ended.

        If the server was killed during a round, the clients of that round's sums may send again. ``measured`` says
        that the run has that round's sums of histograms and continues from these.
        """
        if self._round > done and not (self._measures and measured):
            self.discard(asked=True)

    def record_opened(self, failed: Collection[int]) -> Outcome:
        """Record which sums of the last step the server itself could not open: ``failed`` are their numbers."""
        refusals = [sorted(clients) if number in failed else [] for number, clients in enumerate(self.pending)]
        return self._record_outcome(refusals)

    def judge(self, replies: Sequence[ClientRecord], unopened: dict[int, list[int]]) -> Outcome | None:
        """Judge from ``replies`` which sums of the last step opened. Return None if a sum is not decided.

        ``unopened`` maps nodes that continue to the numbers of the sums that they could not open. Let c be the number
        of clients that may lie. A sum has opened if more than c clients continue with it, since a client that refuses
        may have other reasons. A sum has failed if more than c clients refuse it, at most c clients continue with it,
        and one of two conditions holds: the missing replies could not raise the clients that continue above c, or more
        than 2 c clients have replied, so that most of them are honest.
        """
        if not self.pending:
            return None
        failed = {r.node: range(len(self.pending)) if r.refused else unopened.get(r.node, ()) for r in replies}
        failed = {r.node: failed[r.node] for r in replies if r.refused or r.left_out is None}
        outstanding = len(frozenset[int]().union(*self.pending)) - len(failed)
        refusals: list[list[int]] = []
        for number in range(len(self.pending)):
            refused = [node for node, numbers in failed.items() if number in numbers]
            continuing = len(failed) - len(refused)
            opened = continuing > self._corrupt
            enough = len(failed) > 2 * self._corrupt or continuing + outstanding <= self._corrupt
            if not opened and not (enough and len(refused) > self._corrupt):
                return None
            refusals.append([] if opened else refused)
        return self._record_outcome(refusals)

    def _record_outcome(self, refusals: Sequence[Collection[int]]) -> Outcome:
        outcome = self._finder.record_result(refusals)
        self.pending = ()
        self._save()
        for client in outcome.proven:
            _log.error(
                "client %s has lied and is left out of the run: it is the only client that is in all the sums of %s, "
                "none of which opened",
                *(client, [sorted(group) for group in self._finder.proofs[client]]),
            )
        return outcome
