"""Moves a running operator to another host, atomically and with a pause that does not grow with its state. A machine without I/O.

The old host coordinates. Acknowledgements on links keep this simple (`sbon.links`): upstream operators can send again everything that the
operator has not processed, and its unacknowledged output travels with its state.

    LOCKING       the hosts of all neighbours lock these (SBON, section 3.2: no two migrations in one neighbourhood),
                  and the hosts of the operator's feeders open connections to the new host
    PREPARING     the new host checks its resources and opens connections to the hosts of the operator's consumers
    COPYING       the state as of now is sent while the operator runs on; then, round by round, the input received since. The copy repeats
                  this input and discards its output, until it is only a moment behind
    PAUSING       the operator finishes its batch; from here its inputs wait in their senders
    TRANSFERRING  the last input is sent, then the numbers of the operator's links and its unacknowledged output; the new host installs
                  the operator, inactive
    COMMITTING    decided: the new host is told to run, neighbours and owners are told the new place, each until it answers
    COMMITTED     all know
    ABANDONED     the operator runs where it was, as if nothing had happened

    LOCKING -> PREPARING -> COPYING -> PAUSING -> TRANSFERRING -> COMMITTING -> COMMITTED
       any of the first five -> ABANDONED, on a refusal, a failure, or a time-out

The pause is the time from the last batch on the old host to the first on the new one: a round trip for the rest of the state and its
answer, half of one for the message to the upstream hosts, half of one for their data.

Invariants: two copies are never active; before COMMITTING only the old copy runs, from COMMITTING on only the new one. The new host drops
an operator that is whole only if the coordinator says that the migration is off, if the operator's queries have ended, or if nobody has
confirmed the migration for long (`sbon.migration.newcomer`).
"""

import math
from collections.abc import Iterable, Mapping
from enum import Enum

from sbon.migration.actions import (
    Action,
    AskPrepare,
    Commit,
    Copy,
    CopyMore,
    Ended,
    Pause,
    Resume,
    SendAbandon,
    SendActivate,
    SendMoved,
    StopCopying,
    Transfer,
)
from sbon.migration.config import MigrationConfig
from sbon.migration.locks import Locks
from sbon.transitions import Transitions
from sbon.types import NodeId, OperatorId


class Phase(Enum):
    """The phase of a migration."""

    LOCKING = "locking"
    PREPARING = "preparing"
    COPYING = "copying"
    PAUSING = "pausing"
    TRANSFERRING = "transferring"
    COMMITTING = "committing"
    COMMITTED = "committed"
    ABANDONED = "abandoned"


UNDECIDED = (Phase.LOCKING, Phase.PREPARING, Phase.COPYING, Phase.PAUSING, Phase.TRANSFERRING)


def _undecided(phase: Phase, steps: dict[str, tuple[Phase, ...]]) -> dict[str, tuple[Phase, ...]]:
    """Returns the row of a phase before the decision, in which any failure abandons the migration."""
    stays_or_ends = (phase, Phase.ABANDONED)
    no_lock = (Phase.ABANDONED,) if phase is Phase.LOCKING else stays_or_ends  # in later phases the earlier lock still holds
    failures = {"not_locked": no_lock, "refused": (Phase.ABANDONED,), "failed": stays_or_ends, "wake": stays_or_ends}
    return {"locked": (phase,), **steps, **failures}


TABLE = Transitions(
    {
        Phase.LOCKING: _undecided(Phase.LOCKING, {"start": (Phase.LOCKING, Phase.PREPARING), "locked": (Phase.LOCKING, Phase.PREPARING)}),
        Phase.PREPARING: _undecided(Phase.PREPARING, {"prepared": (Phase.COPYING,)}),
        Phase.COPYING: _undecided(
            Phase.COPYING, {"progressed": (Phase.COPYING,), "copied": (Phase.COPYING, Phase.PAUSING), "overtaken": (Phase.PAUSING,)}
        ),
        Phase.PAUSING: _undecided(Phase.PAUSING, {"paused": (Phase.TRANSFERRING,)}),
        Phase.TRANSFERRING: _undecided(Phase.TRANSFERRING, {"transferred": (Phase.COMMITTING,)}),
        Phase.COMMITTING: {
            **dict.fromkeys(("activated", "unknown_there", "told", "disbelieved", "failed"), (Phase.COMMITTING, Phase.COMMITTED)),
            "wake": (Phase.COMMITTING,),
        },
        Phase.COMMITTED: {},
        Phase.ABANDONED: {},
    }
)
"""The methods of `Migration` that each phase takes, and the phases that may follow."""
_DISBELIEVED_MAX = 60
"""Number of times that a node may reject the message on the new place before it is no longer told."""
_SHRINKS = 0.7
"""Share of the previous round's rest above which a round is the last, because input arrives as fast as it is copied."""


class Migration:
    """The coordinator's side of one migration.

    Parameters
    ----------
    operator : the operator that moves
    there : its new host
    epoch : the operator's epoch there
    neighbours : the operators that it has links with, by host
    owners : the owners of the queries that use it
    """

    def __init__(
        self,
        operator: OperatorId,
        there: NodeId,
        epoch: int,
        neighbours: Mapping[NodeId, tuple[OperatorId, ...]],
        owners: tuple[NodeId, ...],
        config: MigrationConfig,
        now: float,
    ) -> None:
        self.operator = operator
        self.there = there
        self.epoch = epoch
        self.phase = Phase.LOCKING
        self._config = config
        self._locks = Locks(neighbours, config, now)
        self._untold = set(neighbours) | set(owners)
        self._activated = False
        self._started = now
        self._deadline = now + config.timeout_s
        self._rounds = 0
        self._left_bytes = math.inf
        self._copied_from = now
        self._copy_s = 0.0
        self._paused_at: float | None = None
        self._pause_s = 0.0
        self._retry_at = 0.0
        self._lost = ""
        self._disbelieved: dict[NodeId, int] = {}

    def start(self, now: float) -> list[Action]:
        """Starts the migration by asking the neighbours for locks."""
        if not TABLE.takes(self.phase, "start"):
            return []
        if asks := self._locks.asks():
            return asks
        self._enter("start", Phase.PREPARING)
        return [AskPrepare(self.there)]

    def locked(self, node: NodeId, asked_at: float, now: float) -> list[Action]:
        """Records that a neighbour's host has granted the lock at `asked_at`; it is renewed long before it expires."""
        if not TABLE.takes(self.phase, "locked"):
            return []
        self._locks.granted(node, asked_at)
        if self.phase is Phase.LOCKING and self._locks.are_complete:
            self._enter("locked", Phase.PREPARING)
            return [AskPrepare(self.there)]
        return []

    def not_locked(self, node: NodeId, reason: str, now: float, *, unheard: bool) -> list[Action]:
        """Records that a neighbour's host refuses the lock, or with `unheard` that its answer has not come.

        Without an answer, a lock that was given before still holds, and is asked for again.
        """
        if not TABLE.takes(self.phase, "not_locked") or (unheard and self.phase is not Phase.LOCKING):
            return []
        return self._abandon("not_locked", f"{node} does not lock its operators: {reason}", now)

    def prepared(self, now: float) -> list[Action]:
        """Records that the new host is ready for the state."""
        if not TABLE.takes(self.phase, "prepared"):
            return []
        self._enter("prepared", Phase.COPYING)
        self._copied_from = now
        self._progressed(now)
        return [Copy(self.there)]

    def progressed(self, now: float) -> list[Action]:
        """Records that a piece of the state has arrived."""
        if TABLE.takes(self.phase, "progressed"):
            self._progressed(now)
        return []

    def copied(self, left_bytes: int, now: float) -> list[Action]:
        """Records that the state, or a round of later input, has arrived; `left_bytes` of input have come meanwhile."""
        if not TABLE.takes(self.phase, "copied"):
            return []
        # At least one round: the first input after a large state may be expensive, and must not be processed during the pause.
        few = left_bytes <= self._config.rest_bytes and self._rounds > 0
        if few or self._rounds >= self._config.rounds_max or left_bytes > max(self._config.rest_bytes, _SHRINKS * self._left_bytes):
            return self._pause("copied", now)
        self._rounds += 1
        self._left_bytes = left_bytes
        self._progressed(now)
        return [CopyMore()]

    def overtaken(self, now: float) -> list[Action]:
        """Ends copying because more input has come than is kept for the copy: the rest is sent during the pause."""
        return self._pause("overtaken", now) if TABLE.takes(self.phase, "overtaken") else []

    def paused(self, neighbours: Iterable[NodeId], owners: Iterable[NodeId], now: float) -> list[Action]:
        """Records that the operator has paused, with its present neighbours' hosts and owners, some of which may be new."""
        if not TABLE.takes(self.phase, "paused"):
            return []
        self._enter("paused", Phase.TRANSFERRING)
        self._untold |= {*neighbours, *owners}
        return [Transfer(self.there)]

    def transferred(self, now: float) -> list[Action]:
        """Records that the new host has installed the state, which commits the migration."""
        if not TABLE.takes(self.phase, "transferred"):
            return []
        self._enter("transferred", Phase.COMMITTING)
        self._retry_at = now + self._config.retry_s
        return [Commit(), *self._words()]

    def activated(self, now: float) -> list[Action]:
        """Records that the new copy runs."""
        if not TABLE.takes(self.phase, "activated") or self._activated:
            return []
        self._activated = True
        if self._paused_at is not None:
            self._pause_s = now - self._paused_at
        return self._maybe_done("activated", now)

    def unknown_there(self, now: float) -> list[Action]:
        """Records that the new host has no such operator. It had the operator at the decision, so it has restarted since, or the queries
        have ended."""
        if not TABLE.takes(self.phase, "unknown_there") or self._activated:
            return []
        self._activated, self._lost = True, f"{self.there} no longer had it when it was told to run it"
        return self._maybe_done("unknown_there", now)

    def told(self, node: NodeId, now: float) -> list[Action]:
        """Records that a neighbour's host or an owner knows the new place."""
        if not TABLE.takes(self.phase, "told"):
            return []
        self._untold.discard(node)
        return self._maybe_done("told", now)

    def disbelieved(self, node: NodeId, now: float) -> list[Action]:
        """Records that a node rejects the message on the new place, because earlier hosts have not told it that the operator was here.

        They may still do so. If they have crashed, nobody can tell that node any more, and the migration must not wait for ever.
        """
        if not TABLE.takes(self.phase, "disbelieved"):
            return []
        self._disbelieved[node] = self._disbelieved.get(node, 0) + 1
        return self.told(node, now) if self._disbelieved[node] >= _DISBELIEVED_MAX else []

    def refused(self, reason: str, now: float) -> list[Action]:
        """Handles a refusal or a failed step. After the decision this has no effect: messages are repeated until they arrive."""
        return self._abandon("refused", reason, now) if TABLE.takes(self.phase, "refused") else []

    def failed(self, node: NodeId, now: float, *, left: bool = False) -> list[Action]:
        """Handles a node that has been declared failed, or that has left in good order."""
        gone = f"{node} has left" if left else f"{node} failed"
        if not TABLE.takes(self.phase, "failed"):
            return []
        if self.phase is not Phase.COMMITTING:
            return self._abandon("failed", gone, now) if node == self.there or node in self._locks.neighbours else []
        self._untold.discard(node)
        if node == self.there and not self._activated:
            self._activated, self._lost = True, f"{gone} after the decision"
        return self._maybe_done("failed", now)

    def wake(self, now: float) -> list[Action]:
        """Handles time-outs and repetitions that are due."""
        if self.phase in UNDECIDED and now >= self._decide_by:
            waited_s = now - self._started if self._paused_at is None else now - self._paused_at
            return self._abandon("wake", f"no decision after {waited_s:.3g} s ({self.phase.value})", now)
        if self.phase in UNDECIDED and self.phase is not Phase.LOCKING and now >= self._locks.renew_at:
            self._locks.renewed(now)
            return self._locks.asks()
        if self.phase is Phase.COMMITTING and now >= self._retry_at:
            self._retry_at = now + self._config.retry_s
            return self._words()
        return []

    def next_wake(self) -> float | None:
        """Returns when to call `wake`."""
        if self.phase in UNDECIDED:
            return self._decide_by if self.phase is Phase.LOCKING else min(self._decide_by, self._locks.renew_at)
        return self._retry_at if self.phase is Phase.COMMITTING else None

    def _enter(self, event: str, phase: Phase) -> None:
        self.phase = TABLE.after(self.phase, event, phase)

    @property
    def _decide_by(self) -> float:
        return min(self._deadline, self._locks.hold_until())

    def _progressed(self, now: float) -> None:
        self._deadline = min(now + self._config.timeout_s, self._started + self._config.copy_timeout_s)

    def _pause(self, event: str, now: float) -> list[Action]:
        self._enter(event, Phase.PAUSING)
        self._paused_at, self._copy_s = now, now - self._copied_from
        self._deadline = now + self._config.timeout_s
        return [Pause()]

    def _words(self) -> list[Action]:
        words: list[Action] = [] if self._activated else [SendActivate(self.there)]
        return words + [SendMoved(node) for node in sorted(self._untold)]

    def _maybe_done(self, event: str, now: float) -> list[Action]:
        if not self._activated or self._untold:
            return []
        self._enter(event, Phase.COMMITTED)
        ended = Ended(True, self._lost, self._pause_s, now - self._started, self._copy_s, self._rounds)
        return [*self._locks.unlocks(moved=True), ended]

    def _abandon(self, event: str, reason: str, now: float) -> list[Action]:
        actions: list[Action] = []
        if self.phase in (Phase.COPYING, Phase.PAUSING, Phase.TRANSFERRING):
            actions.append(StopCopying())
        if self.phase in (Phase.PAUSING, Phase.TRANSFERRING):
            if self._paused_at is not None:
                self._pause_s = now - self._paused_at
            actions.append(Resume())
        if self.phase is not Phase.LOCKING:
            actions.append(SendAbandon(self.there))
        actions += self._locks.unlocks(moved=False)
        self._enter(event, Phase.ABANDONED)
        return [*actions, Ended(False, reason, self._pause_s, now - self._started, self._copy_s, self._rounds)]
