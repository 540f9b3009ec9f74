"""The new host's part of a migration: keeps room for an operator, takes its state, and runs it when told. A machine without I/O.

    COMING      room is kept; pieces of the state come, and are taken one at a time, in order
    INSTALLING  the last piece has been taken, and the engine makes the operator
    INSTALLED   the operator is whole, and does not run yet
    RUNNING     the migration is committed: the coordinator says so, or the first batch shows it
    DROPPED     the migration is off

    COMING -> INSTALLING -> INSTALLED -> RUNNING
       the first two -> DROPPED   the coordinator abandons it or is gone, the operator's queries end, this host leaves, a piece is wrong
       INSTALLED -> DROPPED       the coordinator abandons it, the queries end
       INSTALLED -> DROPPED       the coordinator has restarted and forgotten it, and nobody else says that it is to run
       any of the three           ten minutes without a piece

Invariants: the operator never runs before it is whole, and never after it has been dropped. When it is whole, it stays even if the
coordinator is gone: the operators upstream may have been told that it runs here, and then their next batch shows it. After a silence the
coordinator is asked what has become of the migration.
"""

import math
from collections import deque
from enum import Enum
from typing import TypeAlias

import msgspec

from sbon.errors import LinkError, MigrationError
from sbon.migration.config import MigrationConfig
from sbon.migration.pacing import BURST_S, Pacer
from sbon.migration.pieces import PieceReceiver, Turn
from sbon.transitions import Transitions
from sbon.types import NodeId, OperatorId
from sbon.wire.migration import Activate, Prepare, StateChunk

ORPHAN_S = 600.0
"""Time without a piece after which an operator is dropped, in seconds: the coordinator has crashed, or has given the move up."""
FORGOTTEN_S = 10.0
"""Time, in seconds, after which a whole operator is dropped once its coordinator, after a restart, has said that it knows of no move. By
then the owner of the query, which asks about its operators each `engine.report_interval_s`, has told it to run if the owner had heard of
the move, unless it cannot be reached. Until then the owner makes the operator nowhere else."""
LOOK_S = 1.0
"""Seconds between two renewals of the room that is kept and of the connections."""
QUEUED_BYTES_MAX = 64 * 2**20
"""Bytes of one state that may wait to be taken; pieces beyond that are refused and must be sent again."""


class Stage(Enum):
    """The progress of an operator that moves to this host."""

    COMING = "coming"
    INSTALLING = "installing"
    INSTALLED = "installed"
    RUNNING = "running"
    DROPPED = "dropped"


def _coming(stage: Stage, steps: dict[str, tuple[Stage, ...]]) -> dict[str, tuple[Stage, ...]]:
    """Returns the row of a stage in which the migration may still be called off."""
    stays, ends = ("prepared_again", "piece"), ("call_off", "destroyed")
    either = ("abandoned", "coordinator_gone", "verdict", "wake")
    row = {**dict.fromkeys(stays, (stage,)), **dict.fromkeys(ends, (Stage.DROPPED,)), **dict.fromkeys(either, (stage, Stage.DROPPED))}
    return {**row, **steps}


TABLE = Transitions(
    {
        Stage.COMING: _coming(Stage.COMING, {"taken": (Stage.COMING, Stage.INSTALLING), "not_taken": (Stage.DROPPED,)}),
        Stage.INSTALLING: _coming(Stage.INSTALLING, {"installed": (Stage.INSTALLED,), "not_taken": (Stage.DROPPED,)}),
        Stage.INSTALLED: {
            **_coming(Stage.INSTALLED, {}),
            "call_off": (Stage.INSTALLED,),
            "coordinator_gone": (Stage.INSTALLED,),
            "word": (Stage.RUNNING,),
            "first_batch": (Stage.RUNNING,),
            "verdict": (Stage.INSTALLED, Stage.RUNNING, Stage.DROPPED),
        },
        Stage.RUNNING: {},
        Stage.DROPPED: {},
    }
)
"""The methods of `Newcomer` that each stage takes, and the stages that may follow."""


class Load(msgspec.Struct, frozen=True):
    """Load the modules that the operator needs and connect to the hosts of its consumers; then answer whether it may come."""

    feeds: tuple[NodeId, ...]


class Take(msgspec.Struct, frozen=True):
    """Add a piece to the state on a thread; then call `taken` or `not_taken`."""

    data: bytes


class Install(msgspec.Struct, frozen=True):
    """Make the operator, which does not run yet, and add it if the stage is still INSTALLING; then call `installed` or `not_taken`."""


class Answer(msgspec.Struct, frozen=True):
    """Answer that a piece has been applied."""

    index: int


class KeepRoom(msgspec.Struct, frozen=True):
    """Renew the reservation of room for the operator."""


class Reach(msgspec.Struct, frozen=True):
    """Keep the connections to the hosts of the operator's consumers open."""

    feeds: tuple[NodeId, ...]


class AskOutcome(msgspec.Struct, frozen=True):
    """Ask the coordinator what has become of the migration; then call `verdict`."""

    coordinator: NodeId


class Run(msgspec.Struct, frozen=True):
    """Run the operator. No further action will come."""


class Drop(msgspec.Struct, frozen=True):
    """Free the room, and refuse all pieces that wait for an answer. Only `Remove` may follow, and at once."""

    reason: str


class Remove(msgspec.Struct, frozen=True):
    """Destroy the operator that was made."""


Action: TypeAlias = Load | Take | Install | Answer | KeepRoom | Reach | AskOutcome | Run | Drop | Remove


class Newcomer:
    """One operator on its way to this host.

    Parameters
    ----------
    bytes_max : a state larger than this is refused
    """

    def __init__(self, asked: Prepare, bytes_max: int, config: MigrationConfig, now: float) -> None:
        self.operator: OperatorId = asked.spec.id
        self.epoch = asked.epoch
        self.coordinator: NodeId = asked.coordinator
        self.stage = Stage.COMING
        self._feeds = asked.feeds
        self._prepared_s = config.prepared_s
        self._pacer = Pacer(config.copy_share, BURST_S)
        self._pieces = PieceReceiver(self.operator, bytes_max)
        self._queue: deque[StateChunk] = deque()
        self._queued_bytes = 0
        self._taking: StateChunk | None = None
        self._is_built = False
        self._take_at = math.inf
        self._look_at = now + LOOK_S
        self._ask_at = now + self._prepared_s
        self._silent_until = now + ORPHAN_S
        self._forgotten_until = math.inf

    @property
    def has_pieces(self) -> bool:
        """Returns whether any of its state has come."""
        return self._pieces.next_index > 0

    @property
    def may_be_committed(self) -> bool:
        """Returns whether the coordinator may have decided that the operator runs here."""
        return self.stage in (Stage.INSTALLED, Stage.RUNNING)

    def start(self) -> list[Action]:
        """Begins, as there is room for the operator."""
        return [Load(self._feeds)]

    def prepared_again(self, now: float) -> list[Action]:
        """Handles a repeated `Prepare`: the answer to the first one was lost, or the message came twice."""
        return [Load(self._feeds)] if self._takes("prepared_again") else []

    def piece(self, message: StateChunk, now: float) -> list[Action]:
        """Takes a piece of the state; `Answer` follows when it has been applied.

        Raises
        ------
        LinkError
            It must be sent again.
        LocalProtocolError
            It does not fit the pieces before.
        """
        if not self._takes("piece"):
            return []
        if self._queued_bytes > QUEUED_BYTES_MAX:
            raise LinkError(f"{self._queued_bytes} bytes of the state of {self.operator} wait to be taken")
        turn = self._pieces.arrived(message.index, message.last, len(message.data))
        self._heard(now)
        if turn is Turn.ANSWER:
            return [Answer(message.index)]
        if turn is Turn.TAKE:
            self._queue.append(message)
            self._queued_bytes += len(message.data)
        return self._take_next(now)

    def taken(self, seconds: float, now: float, *, is_built: bool) -> list[Action]:
        """Records that a piece has been added to the state, which took a thread `seconds`; `is_built`: later pieces are input."""
        if not self._takes("taken"):
            return []
        assert self._taking is not None
        self._pacer.took(seconds, now)
        self._is_built = is_built
        if self._taking.last:
            self._enter("taken", Stage.INSTALLING)
            return [Install()]
        return [self._applied(), *self._take_next(now)]

    def installed(self, now: float) -> list[Action]:
        """Records that the engine has made the operator."""
        if not self._takes("installed"):
            return []
        self._enter("installed", Stage.INSTALLED)
        return [self._applied()]

    def not_taken(self, reason: str, now: float) -> list[Action]:
        """Drops the operator: a piece, or the whole state, cannot be used here."""
        return self._drop("not_taken", reason)

    def word(self, message: Activate, now: float) -> list[Action]:
        """Runs the operator, as its coordinator requests.

        Raises
        ------
        MigrationError
            It is not whole, so the message is of another migration.
        """
        if message.epoch != self.epoch or self.stage is not Stage.INSTALLED:
            raise MigrationError(f"operator {self.operator} is not prepared here for epoch {message.epoch}")
        return self._run("word")

    def first_batch(self, now: float) -> list[Action]:
        """Runs the operator because data has arrived for it: its senders have been told, so the migration is committed."""
        return self._run("first_batch")

    def verdict(self, verdict: str, now: float) -> list[Action]:
        """Records what the coordinator says has become of the migration."""
        if verdict == "committed":
            return self._run("verdict")
        if verdict == "forgotten" and self.may_be_committed:
            self._forgotten_until = min(self._forgotten_until, now + FORGOTTEN_S)
            return []
        return self._drop("verdict", "its migration was abandoned") if verdict in ("abandoned", "forgotten") else []

    def abandoned(self, epoch: int, now: float) -> list[Action]:
        """Drops the operator if its migration, of this epoch or an earlier one, has been abandoned."""
        return self._drop("abandoned", "its migration was abandoned") if self.epoch <= epoch else []

    def destroyed(self, now: float) -> list[Action]:
        """Drops the operator: its queries have ended."""
        return self._drop("destroyed", "its queries have ended")

    def call_off(self, now: float) -> list[Action]:
        """Drops the operator if it can still run where it is; its coordinator learns it with the next piece."""
        return [] if self.may_be_committed else self._drop("call_off", "this host takes no more operators")

    def coordinator_gone(self, node: NodeId, now: float) -> list[Action]:
        """Drops an operator that a failed or departed coordinator had not sent in full: the move was not committed, and never will be."""
        if node != self.coordinator or self.may_be_committed:
            return []
        return self._drop("coordinator_gone", f"{node} is gone")

    def wake(self, now: float) -> list[Action]:
        """Takes the piece that has waited for its turn, renews room and connections, and asks the coordinator after a silence."""
        if not self._takes("wake"):
            return []
        actions = self._take_next(now) if now >= self._take_at else []
        if now < self._look_at:
            return actions
        self._look_at = now + LOOK_S
        if now >= self._silent_until:
            return [*actions, *self._drop("wake", f"no piece of it has come for {ORPHAN_S:g} s")]
        if now >= self._forgotten_until:
            return [*actions, *self._drop("wake", f"{self.coordinator} has restarted, and nobody told the operator to run")]
        if self.stage is not Stage.INSTALLED:
            actions.append(KeepRoom())  # a reservation may expire during a copy
        actions.append(Reach(self._feeds))
        if now >= self._ask_at:
            self._ask_at = now + self._prepared_s
            actions.append(AskOutcome(self.coordinator))
        return actions

    def next_wake(self) -> float | None:
        """Returns when to call `wake`."""
        return min(self._take_at, self._look_at) if self._takes("wake") else None

    def _takes(self, event: str) -> bool:
        return TABLE.takes(self.stage, event)

    def _enter(self, event: str, stage: Stage) -> None:
        self.stage = TABLE.after(self.stage, event, stage)

    def _heard(self, now: float) -> None:
        self._silent_until = now + ORPHAN_S
        self._ask_at = now + self._prepared_s

    def _take_next(self, now: float) -> list[Action]:
        if self._taking is not None or not self._queue:
            return []
        if not self._is_built:
            # The last queued piece says how urgent all of them are: a paused operator or a late copy makes all pieces urgent.
            wait_s = self._pacer.wait_s(now, self._queue[-1].urgent)
            if wait_s > 0:
                self._take_at = now + wait_s
                return []
        self._take_at = math.inf
        self._taking = self._queue.popleft()
        self._queued_bytes -= len(self._taking.data)
        return [Take(self._taking.data)]

    def _applied(self) -> Answer:
        assert self._taking is not None
        index, self._taking = self._taking.index, None
        self._pieces.had_effect()
        return Answer(index)

    def _run(self, event: str) -> list[Action]:
        if self.stage is not Stage.INSTALLED:
            return []
        self._enter(event, Stage.RUNNING)
        return [Run()]

    def _drop(self, event: str, reason: str) -> list[Action]:
        if not self._takes(event):
            return []
        was_made = self.stage is Stage.INSTALLED
        self._enter(event, Stage.DROPPED)
        self._queue.clear()
        return [Drop(reason), Remove()] if was_made else [Drop(reason)]
