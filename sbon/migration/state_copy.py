"""Cuts the state of a running operator into the pieces of a snapshot (`sbon.migration.snapshot`) on the old host of a migration, and puts
them together on the new one.

The work runs on executor threads, which share only an `InputLog` with the event loop.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

import msgspec

from sbon.errors import RemoteProtocolError
from sbon.extensions import Extensions
from sbon.migration.snapshot import WATERMARK_PORT, Begin, Call, Calls, Opaque, Reader, Rest, Slice, Whole, Writer
from sbon.query.params.rowwise import FunctionParams
from sbon.query.plan import OperatorSpec
from sbon.state.room import StateRoom

if TYPE_CHECKING:
    import polars as pl

    from sbon.operators.operator import Operator
    from sbon.operators.snapshots import Head, Parts

_CALL_BYTES = 64
"""Bytes counted for each logged call beside its rows, so that watermarks are not free."""
CALL_WORK_BYTES = 8192
"""Bytes of rows that cost about as much to repeat as one call does, however few rows it has."""


class InputLog:
    """Calls that an operator receives while its state is copied. The thread that runs the operator appends; the event loop takes out."""

    def __init__(self) -> None:
        self._calls: deque[tuple[int, int, pl.DataFrame | None, int]] = deque()
        self.added_bytes = 0
        """Bytes ever added; only the operator's thread changes this."""
        self.added_calls = 0
        """Calls ever added; only the operator's thread changes this."""
        self.taken_bytes = 0
        """Bytes ever taken out; only the event loop changes this."""

    @property
    def size_bytes(self) -> int:
        """Approximate bytes waiting in the log."""
        return self.added_bytes - self.taken_bytes

    @property
    def work_bytes(self) -> int:
        """Work that waiting calls need to be repeated, in bytes of rows in large calls."""
        return self.size_bytes + CALL_WORK_BYTES * len(self._calls)

    def share_of(self, calls: "list[tuple[int, int, pl.DataFrame | None, int]]") -> float:
        """Share of all work ever added that these calls make up, 0 to 1."""
        work_bytes = sum(call[3] for call in calls) + CALL_WORK_BYTES * len(calls)
        return work_bytes / max(1, self.added_bytes + CALL_WORK_BYTES * self.added_calls)

    def process(self, port: int, frame: "pl.DataFrame") -> None:
        """Logs rows given to the operator."""
        self._add(port, 0, frame, int(frame.estimated_size()))

    def advance(self, watermark_us: int) -> None:
        """Logs a watermark given to the operator."""
        self._add(WATERMARK_PORT, watermark_us, None, 0)

    def take(self, work_bytes_max: int) -> "list[tuple[int, int, pl.DataFrame | None, int]]":
        """Takes out the first calls: those up to `work_bytes_max` of work (see `work_bytes`), and the one that goes beyond it."""
        taken: list[tuple[int, int, pl.DataFrame | None, int]] = []
        size_bytes = 0
        while self._calls and size_bytes + CALL_WORK_BYTES * len(taken) < work_bytes_max:
            call = self._calls.popleft()
            size_bytes += call[3]
            taken.append(call)
        self.taken_bytes += size_bytes
        return taken

    def _add(self, port: int, watermark_us: int, frame: "pl.DataFrame | None", size_bytes: int) -> None:
        self._calls.append((port, watermark_us, frame, size_bytes + _CALL_BYTES))
        self.added_bytes += size_bytes + _CALL_BYTES
        self.added_calls += 1


def state_pieces(operator: "Operator", writer: Writer, piece_bytes: Callable[[], int]) -> Iterator[bytes]:
    """Yields the state of a fork of an operator, piece by piece. Each piece has the size that `piece_bytes` asks for at that moment."""
    found = operator.pieces()
    if found is None:
        yield from writer.cut(operator.snapshot(), piece_bytes, Opaque)
    else:
        from sbon.operators.frames import encode

        head, frames = found
        yield writer.piece(Begin(msgspec.msgpack.encode(head)))
        for name, frame in frames:
            rows_per_byte = frame.height / max(1, frame.estimated_size())
            start = 0
            while start < max(1, frame.height):
                rows = max(1, int(rows_per_byte * piece_bytes()))
                yield writer.piece(Slice(name, encode(frame.slice(start, rows))))
                start += rows
    yield writer.piece(Whole())


def input_piece(calls: "Iterable[tuple[int, int, pl.DataFrame | None, int]]", writer: Writer) -> bytes:
    """Encodes logged calls as one piece."""
    from sbon.operators.frames import encode

    return writer.calls(Call(port, watermark, b"" if frame is None else encode(frame)) for port, watermark, frame, _ in calls)


class Assembly:
    """The state as it arrives on the new host. It is called for one piece at a time, in order, on executor threads."""

    def __init__(self, spec: OperatorSpec, extensions: Callable[[], Extensions], room: StateRoom | None = None) -> None:
        self._spec = spec
        self._extensions = extensions
        self._room = room
        self._begun: Operator | None = None
        """The operator while it takes its state in slices."""
        self._slices: Callable[[str, pl.DataFrame], None] | None = None
        self._reader = Reader()
        self._operator: Operator | None = None
        self._head: bytes | None = None
        self._frames: dict[str, list[pl.DataFrame]] = {}
        self._opaque: list[bytes] = []
        self._rest: list[bytes] = []

    @property
    def is_built(self) -> bool:
        """True once the state is complete; the pieces after that are input."""
        return self._operator is not None

    def load(self) -> None:
        """Loads the modules that the operator needs, on an executor thread.

        Raises
        ------
        FunctionError
            It is a user's function that is not installed here.
        """
        from sbon.operators import registry  # noqa: F401 - loads polars before a batch needs it

        params = self._spec.params
        if isinstance(params, FunctionParams):
            self._extensions().function(params.name, params.version)

    def take(self, data: bytes) -> None:
        """Takes the next piece.

        Raises
        ------
        RemoteProtocolError
            The bytes are not a piece of a version that is known here, or do not fit the pieces before.
        """
        piece = self._reader.part(data)
        match piece:
            case Rest(rest):
                self._rest.append(rest)
            case Calls(calls):
                self._repeat(calls)
            case _ if self._operator is not None or self._rest:
                raise RemoteProtocolError(f"state of {self._spec.id}: {type(piece).__name__} behind its input")
            case Whole():
                self._built()
            case Begin(head):
                self._head = head
                self._begun = self._build()
                self._slices = self._begun.adopting(self._decoded(head))
            case Slice(name, rows):
                from sbon.operators.frames import decode_any

                if self._slices is not None:
                    self._slices(name, decode_any(rows))
                else:
                    self._frames.setdefault(name, []).append(decode_any(rows))
            case Opaque(snapshot):
                self._opaque.append(snapshot)

    def finished(self) -> "tuple[Operator, bytes]":
        """Returns the operator and the engine's record of it from the old host. Called after the last piece."""
        return self._built(), b"".join(self._rest)

    def _repeat(self, calls: tuple[Call, ...]) -> None:
        from sbon.operators.frames import decode_any

        operator = self._built()
        for call in calls:
            if call.port == WATERMARK_PORT:
                for _ in operator.advance_in_steps(call.watermark_us):
                    pass  # the old host gives the answers; these are discarded
            else:
                operator.process(call.port, decode_any(call.data))

    def _built(self) -> "Operator":
        if self._operator is None:
            self._operator = operator = self._build() if self._begun is None else self._begun
            if self._slices is None and self._head is not None:
                operator.adopt(self._parts(self._head))
            elif self._opaque:
                operator.restore(b"".join(self._opaque))
            self._frames, self._opaque = {}, []
        return self._operator

    def _build(self) -> "Operator":
        from sbon.operators.registry import build

        return build(self._spec.params, self._extensions(), self._room)

    def _decoded(self, encoded: bytes) -> "Head":
        from sbon.operators.snapshots import Head

        try:
            return msgspec.msgpack.decode(encoded, type=Head)
        except msgspec.MsgspecError as problem:
            raise RemoteProtocolError(f"state of {self._spec.id}: {str(problem)[:200]}") from problem

    def _parts(self, encoded: bytes) -> "Parts":
        import polars as pl

        from sbon.operators.snapshots import Parts

        try:
            frames = {name: pl.concat(slices, rechunk=True) for name, slices in self._frames.items()}
        except pl.exceptions.PolarsError as problem:
            raise RemoteProtocolError(f"state of {self._spec.id}: {str(problem)[:200]}") from problem
        return Parts(self._decoded(encoded), frames)
