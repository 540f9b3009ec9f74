"""Moving a running operator to another host, atomically. Machines without I/O.

The old host coordinates. What makes it simple is the meaning of an acknowledgement on links (`sbon.links`): everything that the operator
has not processed can be sent again by its upstream, and everything it has produced and that is not acknowledged travels with its state.

    LOCKING       the hosts of all neighbours promise not to migrate theirs (SBON, section 3.2: no two migrations in one neighbourhood)
    PREPARING     the new host checks its resources and builds the operator
    PAUSING       the operator finishes its batch; its state is taken; from here its inputs wait in their senders
    TRANSFERRING  the state goes over in chunks; the last one installs it, inactive
    COMMITTING    decided: the new host is told to run, neighbours and owners are told the new place, each until it answers
    COMMITTED     all know
    ABANDONED     the operator runs where it was, as if nothing had been asked

    LOCKING -> PREPARING -> PAUSING -> TRANSFERRING -> COMMITTING -> COMMITTED
       any of the first four -> ABANDONED, on a refusal, a failure, or the time-out

Invariants: never are two copies active; before COMMITTING the old copy is the one, from COMMITTING on only the new one ever runs. The new
host drops what it has prepared only when told to, or when it has asked the coordinator and heard that the migration is off, or when
the coordinator has been declared failed (and then the operator is lost with its old host, which is a crash, not a migration).
"""

from collections.abc import Mapping
from enum import Enum
from typing import TypeAlias

import msgspec

from sbon.errors import LocalProtocolError
from sbon.types import NodeId, OperatorId


class MigrationConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How long the steps of a migration may take. TOML table [migration]."""

    timeout_s: float = 15.0
    """From the first question to the decision; after it the migration is abandoned. Longer: large states on slow paths get through."""
    lease_s: float = 20.0
    """How long neighbours keep still without another word. Must exceed timeout_s, or two migrations may meet."""
    retry_s: float = 1.0
    """Pause between repeated words once decided. Shorter: quicker recovery from a lost message, more traffic."""
    prepared_s: float = 5.0
    """How long a new host waits in silence before it asks the coordinator what became of the migration."""
    remembered: int = 1024
    """Operators that have left this host and whose new place it still tells to latecomers. Older ones are forgotten."""

    def __post_init__(self) -> None:
        if not 0 < self.timeout_s < self.lease_s:
            raise ValueError(f"timeout_s = {self.timeout_s}, expected above 0 and below lease_s = {self.lease_s}")
        if self.retry_s <= 0 or self.prepared_s <= 0:
            raise ValueError("retry_s and prepared_s, expected above 0")
        if self.remembered < 1:
            raise ValueError(f"remembered = {self.remembered}, expected at least 1")


class Phase(Enum):
    """Where a migration stands."""

    LOCKING = "locking"
    PREPARING = "preparing"
    PAUSING = "pausing"
    TRANSFERRING = "transferring"
    COMMITTING = "committing"
    COMMITTED = "committed"
    ABANDONED = "abandoned"


class AskLock(msgspec.Struct, frozen=True):
    """Ask a neighbour's host to keep its operators still."""

    node: NodeId
    neighbours: tuple[OperatorId, ...]


class SendUnlock(msgspec.Struct, frozen=True):
    """Tell a neighbour's host that it is over."""

    node: NodeId


class AskPrepare(msgspec.Struct, frozen=True):
    """Ask the new host to build the operator."""

    node: NodeId


class Pause(msgspec.Struct, frozen=True):
    """Let the operator finish its batch and take its state; then `Migration.paused`."""


class Transfer(msgspec.Struct, frozen=True):
    """Send the state; then `Migration.transferred`."""

    node: NodeId


class Commit(msgspec.Struct, frozen=True):
    """The old copy is no more: forget it, and tell latecomers where it went."""


class SendActivate(msgspec.Struct, frozen=True):
    """Tell the new host to run."""

    node: NodeId


class SendMoved(msgspec.Struct, frozen=True):
    """Tell a neighbour's host, or an owner, the new place."""

    node: NodeId


class Resume(msgspec.Struct, frozen=True):
    """The old copy goes on."""


class SendAbandon(msgspec.Struct, frozen=True):
    """Tell the new host to forget what it prepared."""

    node: NodeId


class Ended(msgspec.Struct, frozen=True):
    """Nothing more will come."""

    committed: bool
    reason: str
    pause_s: float
    """From the pause until the new copy was known to run (or the old one ran again); 0 if it never paused."""
    seconds: float


Action: TypeAlias = AskLock | SendUnlock | AskPrepare | Pause | Transfer | Commit | SendActivate | SendMoved | Resume | SendAbandon | Ended

_UNDECIDED = (Phase.LOCKING, Phase.PREPARING, Phase.PAUSING, Phase.TRANSFERRING)


class Migration:
    """The coordinator's side of one migration.

    Parameters
    ----------
    operator : what moves
    there : its new host
    neighbours : the operators that it has links with, by their hosts
    owners : the agents that took the queries that use it
    """

    def __init__(
        self,
        operator: OperatorId,
        there: NodeId,
        neighbours: Mapping[NodeId, tuple[OperatorId, ...]],
        owners: tuple[NodeId, ...],
        config: MigrationConfig,
        now: float,
    ) -> None:
        self.operator = operator
        self.there = there
        self.phase = Phase.LOCKING
        self._config = config
        self._neighbours = dict(sorted(neighbours.items()))
        self._unlocked = set(self._neighbours)
        self._untold = set(self._neighbours) | set(owners)
        self._activated = False
        self._started = now
        self._deadline = now + config.timeout_s
        self._paused_at: float | None = None
        self._pause_s = 0.0
        self._retry_at = 0.0
        self._lost = ""

    def start(self, now: float) -> list[Action]:
        """Ask the neighbours."""
        if not self._neighbours:
            return self._prepare()
        return [AskLock(node, operators) for node, operators in self._neighbours.items()]

    def locked(self, node: NodeId, now: float) -> list[Action]:
        """A neighbour's host has promised."""
        self._unlocked.discard(node)
        if self.phase is Phase.LOCKING and not self._unlocked:
            return self._prepare()
        return []

    def prepared(self, now: float) -> list[Action]:
        """The new host is ready for the state."""
        if self.phase is not Phase.PREPARING:
            return []
        self.phase = Phase.PAUSING
        self._paused_at = now
        return [Pause()]

    def paused(self, now: float) -> list[Action]:
        """The state has been taken."""
        if self.phase is not Phase.PAUSING:
            return []
        self.phase = Phase.TRANSFERRING
        return [Transfer(self.there)]

    def transferred(self, now: float) -> list[Action]:
        """The new host has installed the state: the decision."""
        if self.phase is not Phase.TRANSFERRING:
            return []
        self.phase = Phase.COMMITTING
        self._retry_at = now + self._config.retry_s
        return [Commit(), *self._words()]

    def activated(self, now: float) -> list[Action]:
        """The new copy runs."""
        if self.phase is not Phase.COMMITTING or self._activated:
            return []
        self._activated = True
        if self._paused_at is not None:
            self._pause_s = now - self._paused_at
        return self._maybe_done(now)

    def told(self, node: NodeId, now: float) -> list[Action]:
        """A neighbour's host or an owner knows the new place."""
        if self.phase is not Phase.COMMITTING:
            return []
        self._untold.discard(node)
        return self._maybe_done(now)

    def refused(self, reason: str, now: float) -> list[Action]:
        """Someone said no, or a step failed. After the decision this has no effect: words are repeated until they arrive."""
        if self.phase in _UNDECIDED:
            return self._abandon(reason, now)
        return []

    def failed(self, node: NodeId, now: float) -> list[Action]:
        """The members have declared a node failed."""
        if self.phase in _UNDECIDED:
            if node == self.there or node in self._neighbours:
                return self._abandon(f"{node} failed", now)
            return []
        if self.phase is Phase.COMMITTING:
            self._untold.discard(node)
            if node == self.there and not self._activated:
                self._activated, self._lost = True, f"{node} failed after the decision"
            return self._maybe_done(now)
        return []

    def wake(self, now: float) -> list[Action]:
        """Time has passed."""
        if self.phase in _UNDECIDED and now >= self._deadline:
            return self._abandon(f"no decision within {self._config.timeout_s:g} s ({self.phase.value})", now)
        if self.phase is Phase.COMMITTING and now >= self._retry_at:
            self._retry_at = now + self._config.retry_s
            return self._words()
        return []

    def next_wake(self) -> float | None:
        """When `wake` has something to do."""
        if self.phase in _UNDECIDED:
            return self._deadline
        return self._retry_at if self.phase is Phase.COMMITTING else None

    def _prepare(self) -> list[Action]:
        self.phase = Phase.PREPARING
        return [AskPrepare(self.there)]

    def _words(self) -> list[Action]:
        words: list[Action] = [] if self._activated else [SendActivate(self.there)]
        return words + [SendMoved(node) for node in sorted(self._untold)]

    def _maybe_done(self, now: float) -> list[Action]:
        if not self._activated or self._untold:
            return []
        self.phase = Phase.COMMITTED
        unlocks: list[Action] = [SendUnlock(node) for node in self._neighbours]
        return [*unlocks, Ended(True, self._lost, self._pause_s, now - self._started)]

    def _abandon(self, reason: str, now: float) -> list[Action]:
        actions: list[Action] = []
        if self.phase in (Phase.PAUSING, Phase.TRANSFERRING):
            if self._paused_at is not None:
                self._pause_s = now - self._paused_at
            actions.append(Resume())
        if self.phase is not Phase.LOCKING:
            actions.append(SendAbandon(self.there))
        actions += [SendUnlock(node) for node in self._neighbours]
        self.phase = Phase.ABANDONED
        return [*actions, Ended(False, reason, self._pause_s, now - self._started)]


class Locks:
    """The promises that this host has given: which of its operators must keep still, for whose migration, until when."""

    def __init__(self) -> None:
        self._held: dict[OperatorId, dict[OperatorId, float]] = {}

    def grant(self, migrating: OperatorId, neighbours: tuple[OperatorId, ...], until: float) -> None:
        """Promise that `neighbours` keep still while `migrating` moves. Many may hold the same operator still."""
        for operator in neighbours:
            self._held.setdefault(operator, {})[migrating] = until

    def release(self, migrating: OperatorId) -> None:
        """That migration is over."""
        for operator in list(self._held):
            self._held[operator].pop(migrating, None)
            if not self._held[operator]:
                del self._held[operator]

    def held(self, operator: OperatorId, now: float) -> bool:
        """`operator` must keep still."""
        leases = self._held.get(operator)
        if leases is None:
            return False
        for migrating in [m for m, until in leases.items() if until <= now]:
            del leases[migrating]
        if not leases:
            del self._held[operator]
        return bool(leases)


class Arrival:
    """The new host's side: the pieces of a state, until it is installed and the word to run has come."""

    def __init__(self, operator: OperatorId, epoch: int, coordinator: NodeId, now: float, config: MigrationConfig) -> None:
        self.operator = operator
        self.epoch = epoch
        self.coordinator = coordinator
        self.installed = False
        self._config = config
        self._pieces: list[bytes] = []
        self._ask_at = now + config.prepared_s

    def chunk(self, index: int, last: bool, data: bytes, now: float) -> bytes | None:
        """Take a piece; the whole state with the last one.

        Raises
        ------
        LocalProtocolError
            A piece is missing, or comes after the last.
        """
        self._ask_at = now + self._config.prepared_s
        if self.installed or index != len(self._pieces):
            raise LocalProtocolError(f"state of {self.operator}: piece {index}, expected {len(self._pieces)}")
        self._pieces.append(data)
        if not last:
            return None
        state = b"".join(self._pieces)
        self._pieces.clear()
        return state

    def must_ask(self, now: float) -> bool:
        """It has been silent too long: ask the coordinator for the outcome. True once a period."""
        if now < self._ask_at:
            return False
        self._ask_at = now + self._config.prepared_s
        return True
