"""The shell of one state on its way to another host: makes pieces on executor threads, and sends them."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from sbon.errors import LinkError, SbonError
from sbon.migration import copy
from sbon.migration.copy import Copy
from sbon.migration.handover import note_progress
from sbon.migration.parts import Parts
from sbon.migration.pieces import Piece
from sbon.migration.snapshot import Rest, Writer
from sbon.migration.state_copy import InputLog, input_piece, state_pieces
from sbon.ports import Executor
from sbon.shell import Shell
from sbon.types import NodeId, OperatorId
from sbon.wire.messages import Message
from sbon.wire.migration import StateChunk

if TYPE_CHECKING:
    from sbon.operators.operator import Operator

T = TypeVar("T")


def metered(host: Executor, work: Callable[[], T]) -> tuple[T, float]:
    """Runs some work; returns its result and its processor time in seconds.

    Pacing by elapsed time would slow down migrations away from an overloaded host.
    """
    meter = host.meter()
    try:
        result = work()
        return result, meter.lap(0) / 1e9
    finally:
        meter.end()


class Sending:
    """One copy. `told` gets the machine's actions for the coordinator, `failed` the reason why the copy cannot continue."""

    def __init__(
        self,
        parts: Parts,
        operator: OperatorId,
        epoch: int,
        there: NodeId,
        told: Callable[[copy.Action], None],
        failed: Callable[[str], None],
    ) -> None:
        self.machine = Copy(parts.config)
        self._parts = parts
        self._operator = operator
        self._epoch = epoch
        self._there = there
        self._told = told
        self._failed = failed
        self._shell = Shell(parts.host, self.machine, self._perform)
        self._writer = Writer()
        self._state: Iterator[bytes] = iter(())
        self._log: InputLog | None = None
        self._piece_bytes = parts.config.piece_bytes

    def start(self) -> None:
        """Begins with the state."""
        self._happens(self.machine.start)

    def more(self) -> None:
        """Starts another round."""
        self._happens(self.machine.more)

    def finish(self) -> None:
        """Sends the rest; the operator is paused."""
        self._happens(self.machine.finish)

    def stop(self) -> None:
        """Ends the copy."""
        self._shell.do(self.machine.stop())

    def close(self) -> None:
        """Cancels the timer."""
        self._shell.close()

    def _happens(self, event: Callable[[float], list[copy.Action]]) -> None:
        self._shell.do(event(self._parts.host.now()))

    def _perform(self, action: copy.Action) -> None:
        engine, operators = self._parts.engine, self._parts.operators
        match action:
            case copy.Fork():
                engine.fork(operators.known(self._operator), self._forked)
            case copy.MakeState(piece_bytes):
                self._piece_bytes = piece_bytes
                self._make(partial(next, self._state, None))
            case copy.MakeInput(work_bytes):
                assert self._log is not None
                calls = self._log.take(work_bytes)
                self.machine.repeats(self._log.share_of(calls), self._parts.host.now())
                self._make(partial(input_piece, calls, self._writer))
            case copy.Send(piece, urgent):
                chunk = StateChunk(self._operator, self._epoch, piece.index, piece.last, piece.data, urgent)
                self._parts.directory.request(self._there, chunk, partial(self._answered, piece), self._parts.config.timeout_s)
            case copy.Export():
                known = operators.known(self._operator)
                note_progress(known, operators.instances)
                engine.snapshot(known, self._exported)
            case copy.EndLog():
                if (instance := operators.instances.get(self._operator)) is not None:
                    engine.end_log(instance)
            case _:
                self._told(action)

    def _forked(self, result: "Operator | BaseException | None") -> None:
        if isinstance(result, BaseException):
            self._failed(f"its state cannot be read: {result}")
            return
        if result is not None:
            instance = self._parts.operators.instances.get(self._operator)
            self._log = None if instance is None else instance.log
            if self._log is None:
                self._failed("it has failed, or is gone")
                return
            self._state = state_pieces(result, self._writer, lambda: self._piece_bytes)
        self._happens(partial(self.machine.forked, self._log))

    def _exported(self, result: bytes | BaseException) -> None:
        if isinstance(result, BaseException):
            self._failed(f"its state cannot be taken: {result}")
        else:
            pieces = list(self._writer.cut(result, lambda: self._parts.config.piece_bytes, Rest))
            self._happens(partial(self.machine.exported, pieces))

    def _make(self, work: Callable[[], bytes | None]) -> None:
        host = self._parts.host

        def made(result: tuple[bytes | None, float] | BaseException) -> None:
            if isinstance(result, BaseException):
                self._failed(f"its state cannot be read: {type(result).__name__}: {result}")
                return
            data, took_s = result
            meter = host.meter()
            self._happens(partial(self.machine.made, data))
            took_s += meter.lap(0) / 1e9
            meter.end()
            self._happens(partial(self.machine.spent, took_s))

        host.execute(partial(metered, host, work), made, rows=0)

    def _answered(self, piece: Piece, result: Message | SbonError) -> None:
        if isinstance(result, LinkError):
            self._happens(self.machine.lost)
        elif isinstance(result, SbonError):
            self._failed(f"{self._there} does not take its state: {result}")
        else:
            self._happens(partial(self.machine.answered, piece))
