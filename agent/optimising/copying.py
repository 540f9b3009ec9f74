"""Sending side of a state copy: makes the pieces one at a time on executor threads and limits the bytes in transit.

`sbon_agent.optimising.migrations` starts one for each migration.
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Protocol, TypeVar

from sbon.errors import LinkError, SbonError
from sbon.migration.config import MigrationConfig
from sbon.pacing import Pacer, Window
from sbon.state_pieces import Piece, PieceSender
from sbon.types import NodeId, OperatorId
from sbon.wire.messages import Message
from sbon.wire.migration import StateChunk
from sbon_agent.directory import Directory
from sbon_agent.engine.copying import InputLog, call_pieces, rest_pieces, state_pieces
from sbon_agent.engine.engine import Engine
from sbon_agent.host import Host, Timer

if TYPE_CHECKING:
    from sbon.operators.operator import Operator

BURST_S = 0.005
"""Processor time for pieces that needs no pacing, in seconds: small states are sent at once."""
WINDOW_BYTES_MIN = 64 * 1024
"""Least bytes of a state in transit, however slow the path."""
ROUND_WORK_BYTES = 64 * 1024
"""Work in one piece of input, as `InputLog.work_bytes` counts it: repeating it takes some milliseconds, after which other operators get a
turn."""
CATCH_UP = 3.0
"""Rate at which the copy may repeat input, as a multiple of the rate at which it came. With a lower one each round leaves more for the
next; with a higher one the copy would take a whole core of the new host for an operator that needs a part of one."""
URGENT_SHARE = 0.5
"""Share of the input that may wait for the copy, and of the time that the copy may take, from which on the copy is no longer slowed down
for other work."""
LOOK_S = 0.01
"""Seconds between checks for new input of the operator; its copy lags by about this long."""


T = TypeVar("T")


def metered(host: Host, work: Callable[[], T]) -> tuple[T, float]:
    """Runs some work; returns its result and the processor time in seconds.

    Elapsed time would slow down the migration away from an overloaded host.
    """
    meter = host.meter()
    try:
        result = work()
        return result, meter.lap(0) / 1e9
    finally:
        meter.end()


class CopyEvents(Protocol):
    """Callbacks of the copy."""

    def progressed(self) -> None:
        """A piece has been applied."""

    def copied(self, left_bytes: int) -> None:
        """The state, or a round of later input, has been applied; `left_bytes` of input have come in the meantime."""

    def overtaken(self) -> None:
        """More input waits than may be kept."""

    def delivered(self) -> None:
        """The new host has everything."""

    def failed(self, reason: str) -> None:
        """The copy cannot continue."""


class Copying:
    """Copy of one operator's state.

    Call `begin`, then `more` any number of times, then `finish` with the operator paused; `stop` at any time.
    """

    def __init__(
        self,
        host: Host,
        directory: Directory,
        engine: Engine,
        config: MigrationConfig,
        operator: OperatorId,
        epoch: int,
        there: NodeId,
        events: CopyEvents,
    ) -> None:
        self._host = host
        self._directory = directory
        self._engine = engine
        self._config = config
        self._operator = operator
        self._epoch = epoch
        self._there = there
        self._events = events
        self._window = Window(WINDOW_BYTES_MIN, config.window_bytes)
        self._sender = PieceSender(self._window)
        self._pacer = Pacer(config.copy_share, BURST_S)
        self._follower = Pacer(CATCH_UP, BURST_S)
        """Paces the repetition of input, relative to the time in which it came."""
        self._forked_at = 0.0
        self._state: Iterator[bytes] | None = None
        self._rest: list[bytes] | None = None
        self._began = self._making = self._finishing = self._stopped = False
        self._mark: int | None = None
        """A round has been requested: it ends with the piece with which this many bytes have been taken from the log."""
        self._goal: int | None = None
        """The round has ended when all pieces below this index have been applied."""
        self._again: Timer | None = None
        self._look: Timer | None = None
        self._pause: Timer | None = None
        self._began_at = host.now()

    @property
    def sent_bytes(self) -> int:
        """Bytes of all pieces sent so far."""
        return self._sender.sent_bytes

    def begin(self) -> None:
        """Forks the state and sends it."""
        self._engine.fork(self._operator, self._forked)

    def more(self) -> None:
        """Starts another round: sends all input that the operator has been given up to now."""
        log = self._log
        self._mark = log.added_bytes if log is not None else 0
        self._pump()

    def finish(self) -> None:
        """Sends the rest, and the engine's record; the operator is paused."""
        self._finishing = True
        self._engine.export(self._operator, self._exported)

    def stop(self) -> None:
        """Ends the copy: it is complete, or has been called off."""
        self._stopped = True
        self._state = None
        for timer in (self._again, self._look, self._pause):
            if timer is not None:
                timer.cancel()
        self._engine.stop_copying(self._operator)

    def _forked(self, result: "Operator | BaseException | None") -> None:
        if self._stopped:
            self._engine.stop_copying(self._operator)
        elif isinstance(result, BaseException):
            self._events.failed(f"its state cannot be read: {result}")
        elif result is None:
            self._began = True
            self._events.copied(0)
        else:
            self._began, self._forked_at = True, self._host.now()
            self._state = state_pieces(result, lambda: self._window.piece_bytes(self._config.piece_bytes))
            self._look_again()
            self._pump()

    def _exported(self, result: bytes | BaseException) -> None:
        if self._stopped:
            return
        if isinstance(result, BaseException):
            self._events.failed(f"its state cannot be taken: {result}")
            return
        self._rest = rest_pieces(result, self._config.piece_bytes)
        self._pump()

    # ------------------------------------------------------------------------------------------------------ sending

    def _pump(self) -> None:
        """Makes the next piece, if one may be sent."""
        urgent = self._urgent()
        if self._stopped or self._making or not self._began or not self._sender.has_room(urgent):
            return
        if self._state is not None:
            wait_s = self._pacer.wait_s(self._host.now(), urgent)
            if wait_s > 0:
                self._pump_in(wait_s)
            else:
                self._make(partial(next, self._state, None))
            return
        log = self._log
        if self._mark is not None and (log is None or log.taken_bytes >= self._mark):
            self._mark, self._goal = None, self._sender.next_index
            self._look_at_round()
            self._pump()  # the callback at the end of a round may have begun the next one and made a piece
            return
        if log is not None and log.size_bytes:
            self._follow(log, urgent)
            return
        if self._rest:
            piece = self._rest.pop(0)
            self._send(self._sender.offer(piece, last=not self._rest, now=self._host.now()))
            self._pump()

    def _follow(self, log: InputLog, urgent: float) -> None:
        """Sends the next part of the input, not much faster than it came."""
        now = self._host.now()
        wait_s = self._follower.wait_s(now, urgent)
        if wait_s > 0:
            self._pump_in(wait_s)
            return
        calls = log.take(min(ROUND_WORK_BYTES, self._config.piece_bytes))
        self._follower.took(log.share_of(calls) * (now - self._forked_at), now)
        self._make(partial(call_pieces, calls))

    def _pump_in(self, wait_s: float) -> None:
        def pump() -> None:
            self._pause = None
            self._pump()

        if self._pause is None:
            self._pause = self._host.call_at(self._host.now() + wait_s, pump)

    def _urgent(self) -> float:
        """Urgency of the copy, 0 to 1.

        With 1 it is not slowed down for other work: the operator is paused, or the copy might not finish in time.
        """
        if self._finishing:
            return 1.0
        waits = self._left_bytes() / (self._config.input_bytes_max * URGENT_SHARE)
        lasts = (self._host.now() - self._began_at) / (self._config.copy_timeout_s * URGENT_SHARE)
        return min(1.0, max(waits, lasts))

    def _make(self, work: Callable[[], bytes | None]) -> None:
        self._making = True

        def made(result: tuple[bytes | None, float] | BaseException) -> None:
            self._making = False
            if self._stopped:
                return
            if isinstance(result, BaseException):
                self._events.failed(f"its state cannot be read: {type(result).__name__}: {result}")
                return
            data, took_s = result
            meter = self._host.meter()
            if data is None:
                self._state, self._goal = None, self._sender.next_index
                self._look_at_round()
            else:
                self._send(self._sender.offer(data, last=False, now=self._host.now()))
            took_s += meter.lap(0) / 1e9
            meter.end()
            self._pacer.took(took_s, self._host.now())
            self._pump()

        self._host.execute(partial(metered, self._host, work), made, rows=0)

    def _send(self, piece: Piece) -> None:
        chunk = StateChunk(
            operator=self._operator,
            epoch=self._epoch,
            index=piece.index,
            last=piece.last,
            data=piece.data,
            urgent=self._urgent(),
        )
        self._directory.request(self._there, chunk, partial(self._answered, piece), self._config.timeout_s)

    def _answered(self, piece: Piece, result: Message | SbonError) -> None:
        if self._stopped:
            return
        if isinstance(result, LinkError):
            self._send_again_later()
        elif isinstance(result, SbonError):
            self._events.failed(f"{self._there} does not take its state: {result}")
        elif self._sender.answered(piece.index, self._host.now()):
            if piece.last:
                self._events.delivered()
                return
            self._events.progressed()
            self._look_at_round()
            self._pump()

    def _send_again_later(self) -> None:
        """Resends all unanswered pieces in order, after a pause: a connection has broken, and an earlier piece may have been lost."""

        def again() -> None:
            self._again = None
            for piece in self._sender.again():
                self._send(piece)

        if self._again is None:
            self._again = self._host.call_at(self._host.now() + self._config.retry_s, again)

    def _look_at_round(self) -> None:
        if self._goal is None or self._finishing or self._sender.answered_below < self._goal:
            return
        self._goal = None
        log = self._log
        self._events.copied((log.work_bytes if log is not None else 0) + self._sender.held_bytes)

    @property
    def _log(self) -> InputLog | None:
        instance = self._engine.instances.get(self._operator)
        return instance.log if instance is not None else None

    def _left_bytes(self) -> int:
        log = self._log
        return log.size_bytes if log is not None else 0

    def _look_again(self) -> None:
        def look() -> None:
            self._look_again()
            if not self._finishing and self._left_bytes() > self._config.input_bytes_max:
                self._events.overtaken()
            self._pump()

        if not self._stopped:
            self._look = self._host.call_at(self._host.now() + LOOK_S, look)
