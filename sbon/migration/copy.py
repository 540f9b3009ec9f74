"""The old host's part in sending a state: chooses what to make next, when, and how much may be in flight. A machine without I/O.

    FORKING  the engine copies the state between two batches; from then on the input is logged
    STATE    pieces of the copy are made and sent, one at a time
    INPUT    then the input that has been logged, in rounds; with the operator paused, the engine's record comes last
    STOPPED  the new host has everything, or the migration has been called off

    FORKING -> STATE -> INPUT -> STOPPED
    FORKING -> INPUT            an operator without state
    any of the first three -> STOPPED

Pieces leave a share of a core to other work, input is repeated not much faster than it came, and no more bytes are in flight than the path
carries without a queue (`sbon.migration.pacing`). All three limits count less as the copy becomes urgent: because input waits for it,
because it takes long, or because the operator is paused.
"""

import math
from enum import Enum
from typing import Protocol, TypeAlias

import msgspec

from sbon.migration.config import MigrationConfig
from sbon.migration.pacing import BURST_S, Pacer, Window
from sbon.migration.pieces import Piece, PieceSender
from sbon.transitions import Transitions

WINDOW_BYTES_MIN = 64 * 1024
"""Least bytes of a state in transit, however slow the path."""
ROUND_WORK_BYTES = 64 * 1024
"""Work in one piece of input, as `Log.work_bytes` counts it: repeating it takes some milliseconds, after which other operators get a
turn."""
CATCH_UP = 3.0
"""Rate at which the copy may repeat input, as a multiple of the rate at which it came. With a lower rate each round leaves more for the
next. With a higher rate the copy would take a whole core of the new host for an operator that needs a part of one."""
URGENT_SHARE = 0.5
"""Share of `input_bytes_max`, and of `copy_timeout_s`, from which on the copy is no longer slowed down for other work."""
LOOK_S = 0.01
"""Seconds between checks for new input of the operator; its copy lags by about this long."""


class Stage(Enum):
    """The progress of a copy."""

    FORKING = "forking"
    STATE = "state"
    INPUT = "input"
    STOPPED = "stopped"


def _sending(stage: Stage) -> dict[str, tuple[Stage, ...]]:
    """Returns the row of a stage in which pieces are sent."""
    events = ("more", "repeats", "made", "spent", "answered", "lost", "finish", "exported", "wake")
    return {**dict.fromkeys(events, (stage,)), "stop": (Stage.STOPPED,)}


TABLE = Transitions(
    {
        Stage.FORKING: {"forked": (Stage.STATE, Stage.INPUT), "stop": (Stage.STOPPED,)},
        Stage.STATE: {**_sending(Stage.STATE), "made": (Stage.STATE, Stage.INPUT)},
        Stage.INPUT: _sending(Stage.INPUT),
        Stage.STOPPED: {"forked": (Stage.STOPPED,), "stop": (Stage.STOPPED,)},
    }
)
"""The methods of `Copy` that each stage takes, and the stages that may follow."""


class Log(Protocol):
    """The input that an operator has received since its state was copied; another thread adds to it."""

    @property
    def added_bytes(self) -> int:
        """Returns the bytes that have been added so far."""

    @property
    def taken_bytes(self) -> int:
        """Returns the bytes that have been taken out again."""

    @property
    def size_bytes(self) -> int:
        """Returns the bytes that wait."""

    @property
    def work_bytes(self) -> int:
        """Returns the work of repeating the input that waits, in bytes of rows in large calls."""


class Fork(msgspec.Struct, frozen=True):
    """Copy the state between two batches, and log the input from there on; then call `forked`."""


class MakeState(msgspec.Struct, frozen=True):
    """Make the next piece of the state on a thread; then call `made`, with None if there was none left, and `spent`."""

    piece_bytes: int


class MakeInput(msgspec.Struct, frozen=True):
    """Take `work_bytes` of work out of the log, call `repeats`, and make a piece of it on a thread; then call `made` and `spent`."""

    work_bytes: int


class Send(msgspec.Struct, frozen=True):
    """Send a piece; then call `answered`, or `lost`."""

    piece: Piece
    urgent: float
    """Urgency from 0 (may wait for other work) to 1 (must not wait)."""


class Export(msgspec.Struct, frozen=True):
    """Encode the engine's record of the paused operator in pieces; then call `exported`."""


class EndLog(msgspec.Struct, frozen=True):
    """Log no more input."""


class Progressed(msgspec.Struct, frozen=True):
    """Tell the coordinator that a piece has been applied."""


class Copied(msgspec.Struct, frozen=True):
    """Tell the coordinator that the state, or a round of later input, has been applied."""

    left_bytes: int
    """Input that has come in the meantime."""


class Overtaken(msgspec.Struct, frozen=True):
    """Tell the coordinator that more input waits than may be kept."""


class Delivered(msgspec.Struct, frozen=True):
    """Tell the coordinator that the new host has everything."""


Action: TypeAlias = Fork | MakeState | MakeInput | Send | Export | EndLog | Progressed | Copied | Overtaken | Delivered


class Copy:
    """Copy of one operator's state.

    Call `start`, then `more` any number of times, then `finish` with the operator paused; `stop` at any time.
    """

    def __init__(self, config: MigrationConfig) -> None:
        self.stage = Stage.FORKING
        self._config = config
        self._window = Window(WINDOW_BYTES_MIN, config.window_bytes)
        self._sender = PieceSender(self._window)
        self._pacer = Pacer(config.copy_share, BURST_S)
        self._follower = Pacer(CATCH_UP, BURST_S)
        """Paces the repetition of input, relative to the time in which it came."""
        self._log: Log | None = None
        self._began_at = self._forked_at = math.inf
        self._making = self._finishing = False
        self._rest: list[bytes] | None = None
        self._mark: int | None = None
        """Bytes taken from the log at which the requested round ends; None if no round is requested."""
        self._goal: int | None = None
        """Index below which all pieces must have been applied for the round to end; None until its last piece has been made."""
        self._again_at = self._look_at = self._pump_at = math.inf

    @property
    def sent_bytes(self) -> int:
        """Bytes of all pieces sent so far."""
        return self._sender.sent_bytes

    def start(self, now: float) -> list[Action]:
        """Begins the copy."""
        self._began_at = now
        return [Fork()]

    def forked(self, log: Log | None, now: float) -> list[Action]:
        """Records that the state has been copied; `log` is None for an operator without state, which needs neither copy nor log."""
        if self.stage is Stage.STOPPED:
            return [EndLog()]
        if not self._takes("forked"):
            return []
        if log is None:
            self._enter("forked", Stage.INPUT)
            return [Copied(0)]
        self._enter("forked", Stage.STATE)
        self._log, self._forked_at, self._look_at = log, now, now + LOOK_S
        return self._pump(now)

    def more(self, now: float) -> list[Action]:
        """Starts another round: sends all input that the operator has received up to now."""
        if not self._takes("more"):
            return []
        self._mark = self._log.added_bytes if self._log is not None else 0
        return self._pump(now)

    def finish(self, now: float) -> list[Action]:
        """Sends the rest, and the engine's record; the operator is paused."""
        if not self._takes("finish"):
            return []
        self._finishing = True
        return [Export()]

    def exported(self, pieces: list[bytes], now: float) -> list[Action]:
        """Takes the pieces of the engine's record, at least one."""
        if not self._takes("exported"):
            return []
        self._rest = pieces
        return self._pump(now)

    def repeats(self, share: float, now: float) -> None:
        """Records the share of the whole input that the next piece contains."""
        if self._takes("repeats"):
            self._follower.took(share * (now - self._forked_at), now)

    def made(self, data: bytes | None, now: float) -> list[Action]:
        """Takes a piece that has been made; None: the state is complete."""
        if not self._takes("made"):
            return []
        self._making = False
        if data is not None:
            return [self._send(self._sender.offer(data, last=False, now=now), now)]
        self._enter("made", Stage.INPUT)
        self._goal = self._sender.next_index
        return self._look_at_round()

    def spent(self, seconds: float, now: float) -> list[Action]:
        """Records how much processor time making and sending a piece took."""
        if not self._takes("spent"):
            return []
        self._pacer.took(seconds, now)
        return self._pump(now)

    def answered(self, piece: Piece, now: float) -> list[Action]:
        """Records that the new host has applied a piece."""
        if not self._takes("answered") or not self._sender.answered(piece.index, now):
            return []
        return [Delivered()] if piece.last else [Progressed(), *self._look_at_round(), *self._pump(now)]

    def lost(self, now: float) -> list[Action]:
        """Resends all unanswered pieces in order, after a pause: a connection has broken, and an earlier piece may have been lost."""
        if self._takes("lost"):
            self._again_at = min(self._again_at, now + self._config.retry_s)
        return []

    def stop(self) -> list[Action]:
        """Ends the copy: it is complete, or has been called off."""
        self._enter("stop", Stage.STOPPED)
        self._log = None
        return [EndLog()]

    def wake(self, now: float) -> list[Action]:
        """Resends pieces, checks how much input waits, and makes the next piece, if these are due."""
        if not self._takes("wake"):
            return []
        actions: list[Action] = []
        if now >= self._again_at:
            self._again_at = math.inf
            actions += [self._send(piece, now) for piece in self._sender.again()]
        if now >= self._look_at:
            self._look_at = now + LOOK_S
            if not self._finishing and self._left_bytes > self._config.input_bytes_max:
                actions.append(Overtaken())
        return [*actions, *self._pump(now)]

    def next_wake(self) -> float | None:
        """Returns when to call `wake`."""
        when = min(self._again_at, self._look_at, self._pump_at)
        return when if self._takes("wake") and when < math.inf else None

    def _takes(self, event: str) -> bool:
        return TABLE.takes(self.stage, event)

    def _enter(self, event: str, stage: Stage) -> None:
        self.stage = TABLE.after(self.stage, event, stage)

    @property
    def _left_bytes(self) -> int:
        return self._log.size_bytes if self._log is not None else 0

    def _urgent(self, now: float) -> float:
        if self._finishing:
            return 1.0
        waits = self._left_bytes / (self._config.input_bytes_max * URGENT_SHARE)
        lasts = (now - self._began_at) / (self._config.copy_timeout_s * URGENT_SHARE)
        return min(1.0, max(waits, lasts))

    def _send(self, piece: Piece, now: float) -> Send:
        return Send(piece, self._urgent(now))

    def _pump(self, now: float) -> list[Action]:
        """Chooses the next piece to make or send, if one may be sent."""
        urgent = self._urgent(now)
        self._pump_at = math.inf
        if self._making or not self._sender.has_room(urgent):
            return []
        if self.stage is Stage.STATE:
            return self._make(self._pacer, MakeState(self._window.piece_bytes(self._config.piece_bytes)), urgent, now)
        log = self._log
        round_ends: list[Action] = []
        if self._mark is not None and (log is None or log.taken_bytes >= self._mark):
            self._mark, self._goal = None, self._sender.next_index
            round_ends = self._look_at_round()
        if log is not None and log.size_bytes:
            work_bytes = min(ROUND_WORK_BYTES, self._config.piece_bytes)
            return [*round_ends, *self._make(self._follower, MakeInput(work_bytes), urgent, now)]
        sends: list[Action] = []
        while self._rest and self._sender.has_room(urgent):
            data = self._rest.pop(0)
            sends.append(self._send(self._sender.offer(data, last=not self._rest, now=now), now))
        return [*round_ends, *sends]

    def _make(self, pacer: Pacer, action: Action, urgent: float, now: float) -> list[Action]:
        wait_s = pacer.wait_s(now, urgent)
        if wait_s > 0:
            self._pump_at = now + wait_s
            return []
        self._making = True
        return [action]

    def _look_at_round(self) -> list[Action]:
        if self._goal is None or self._finishing or self._sender.answered_below < self._goal:
            return []
        self._goal = None
        return [Copied((self._log.work_bytes if self._log is not None else 0) + self._sender.held_bytes)]
