"""The pieces of an operator's state, as it moves while it runs: made on the old host, put together on the new one.

First the state as it was at one instant: its head and its frames, cut into pieces, or a snapshot where an operator has no frames. Then
the input that it has been given since, in the calls in which it was given: the copy repeats them and throws its answers away, for what an
operator returns and keeps depends on its input alone. Last, with the operator at rest, all that is the host's:
`sbon_agent.engine.handover`.

The work is for executor threads; what the event loop shares with it is an `InputLog`.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

import msgspec

from sbon.errors import RemoteProtocolError
from sbon.extensions import Extensions
from sbon.query.plan import FunctionParams, OperatorSpec

if TYPE_CHECKING:
    import polars as pl

    from sbon.operators.operator import Operator

_CALL_BYTES = 64
"""Kept for each call beside its rows, so that watermarks are not free."""
CALL_WORK_BYTES = 8192
"""A call costs as much to repeat as so many bytes of rows, about, however few it has."""


class Begin(msgspec.Struct, frozen=True, tag="begin"):
    """The head of a state in parts: `sbon.operators.snapshots.Head`, encoded."""

    head: bytes


class Slice(msgspec.Struct, frozen=True, tag="slice"):
    """The next rows of a frame."""

    name: str
    data: bytes


class Opaque(msgspec.Struct, frozen=True, tag="opaque"):
    """The next bytes of a snapshot."""

    data: bytes


class Whole(msgspec.Struct, frozen=True, tag="whole"):
    """That was the state: build the operator, before anybody waits for it."""


class Call(msgspec.Struct, frozen=True, array_like=True):
    """Rows of a port, or, without a port, a watermark."""

    port: int
    watermark_us: int
    data: bytes


class Calls(msgspec.Struct, frozen=True, tag="calls"):
    """What the operator has been given next."""

    calls: tuple[Call, ...]


class Rest(msgspec.Struct, frozen=True, tag="rest"):
    """The next bytes of what `sbon_agent.engine.handover` exports."""

    data: bytes


_WATERMARK = -1
_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[Begin | Slice | Opaque | Whole | Calls | Rest] = msgspec.msgpack.Decoder(
    Begin | Slice | Opaque | Whole | Calls | Rest
)


class InputLog:
    """What an operator is given while its state is on the way. Appended to by the thread that runs it, emptied by the event loop."""

    def __init__(self) -> None:
        self._calls: deque[tuple[int, int, pl.DataFrame | None, int]] = deque()
        self.added_bytes = 0
        """Ever; changed by the operator's thread alone."""
        self.added_calls = 0
        """Ever, as `added_bytes`."""
        self.taken_bytes = 0
        """Ever; changed by the loop alone."""

    @property
    def size_bytes(self) -> int:
        """About how many bytes wait here."""
        return self.added_bytes - self.taken_bytes

    @property
    def work_bytes(self) -> int:
        """How much there is to repeat, counted as if it were bytes of rows in large calls."""
        return self.size_bytes + CALL_WORK_BYTES * len(self._calls)

    def share_of(self, calls: "list[tuple[int, int, pl.DataFrame | None, int]]") -> float:
        """Of the work that was ever added, so much is in these calls."""
        work_bytes = sum(call[3] for call in calls) + CALL_WORK_BYTES * len(calls)
        return work_bytes / max(1, self.added_bytes + CALL_WORK_BYTES * self.added_calls)

    def process(self, port: int, frame: "pl.DataFrame") -> None:
        """It is given rows."""
        self._add(port, 0, frame, int(frame.estimated_size()))

    def advance(self, watermark_us: int) -> None:
        """It is given a watermark."""
        self._add(_WATERMARK, watermark_us, None, 0)

    def take(self, work_bytes_max: int) -> "list[tuple[int, int, pl.DataFrame | None, int]]":
        """The first calls, up to so much work (`work_bytes`) and one call more."""
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


def state_pieces(operator: "Operator", piece_bytes: Callable[[], int]) -> Iterator[bytes]:
    """The state of an operator at rest (a fork), one piece of the size wanted then each time it is asked for."""
    parts = operator.parts()
    if parts is None:
        yield from _cut(operator.snapshot(), piece_bytes, lambda data: Opaque(data))
        yield _encoder.encode(Whole())
        return
    from sbon.operators.frames import encode

    yield _encoder.encode(Begin(msgspec.msgpack.encode(parts.head)))
    for name, frame in parts.frames.items():
        rows_per_byte = frame.height / max(1, frame.estimated_size())
        start = 0
        while start < max(1, frame.height):
            rows = max(1, int(rows_per_byte * piece_bytes()))
            yield _encoder.encode(Slice(name, encode(frame.slice(start, rows))))
            start += rows
    yield _encoder.encode(Whole())


def call_pieces(calls: "Iterable[tuple[int, int, pl.DataFrame | None, int]]") -> bytes:
    """Logged input as a piece."""
    from sbon.operators.frames import encode

    encoded = tuple(Call(port, watermark, b"" if frame is None else encode(frame)) for port, watermark, frame, _ in calls)
    return _encoder.encode(Calls(encoded))


def rest_pieces(rest: bytes, piece_bytes: int) -> list[bytes]:
    """What the host adds; at least one piece."""
    return list(_cut(rest, lambda: piece_bytes, lambda data: Rest(data)))


def _cut(data: bytes, piece_bytes: Callable[[], int], make: Callable[[bytes], Any]) -> Iterator[bytes]:
    """Bytes as pieces, at least one."""
    start = 0
    while start < max(1, len(data)):
        end = start + piece_bytes()
        yield _encoder.encode(make(data[start:end]))
        start = end


class Assembly:
    """The state as it arrives. Its calls come one at a time, in the order of the pieces, on executor threads."""

    def __init__(self, spec: OperatorSpec, extensions: Callable[[], Extensions]) -> None:
        self._spec = spec
        self._extensions = extensions
        self._operator: Operator | None = None
        self._head: bytes | None = None
        self._frames: dict[str, list[pl.DataFrame]] = {}
        self._opaque: list[bytes] = []
        self._rest: list[bytes] = []

    @property
    def is_built(self) -> bool:
        """The state is complete; what comes is input since then."""
        return self._operator is not None

    def load(self) -> None:
        """Load what the operator needs, on an executor thread.

        Raises
        ------
        FunctionError
            It is a user's function that is not installed here.
        """
        from sbon.operators import registry  # noqa: F401 - polars, before the first batch waits for it

        params = self._spec.params
        if isinstance(params, FunctionParams):
            self._extensions().function(params.name, params.version)

    def take(self, data: bytes) -> None:
        """Take the next piece.

        Raises
        ------
        RemoteProtocolError
            It is none, or does not fit what came before.
        """
        try:
            piece = _decoder.decode(data)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as problem:
            raise RemoteProtocolError(f"piece of {len(data)} bytes is not one of a state: {problem}") from problem
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
            case Slice(name, rows):
                from sbon.operators.frames import decode_any

                self._frames.setdefault(name, []).append(decode_any(rows))
            case Opaque(snapshot):
                self._opaque.append(snapshot)

    def finished(self) -> "tuple[Operator, bytes]":
        """The operator, and what the old host adds; after the last piece."""
        return self._built(), b"".join(self._rest)

    def _repeat(self, calls: tuple[Call, ...]) -> None:
        from sbon.operators.frames import decode_any

        operator = self._built()
        for call in calls:
            if call.port == _WATERMARK:
                for _ in operator.advance_in_steps(call.watermark_us):
                    pass  # the old host gives the answers; none is kept here
            else:
                operator.process(call.port, decode_any(call.data))

    def _built(self) -> "Operator":
        if self._operator is None:
            from sbon.operators.registry import build

            self._operator = operator = build(self._spec.params, self._extensions())
            if self._head is not None:
                operator.adopt(self._parts(self._head))
            elif self._opaque:
                operator.restore(b"".join(self._opaque))
            self._frames, self._opaque = {}, []
        return self._operator

    def _parts(self, encoded: bytes) -> Any:
        import polars as pl

        from sbon.operators.snapshots import Head, Parts

        try:
            head = msgspec.msgpack.decode(encoded, type=Head)
            frames = {name: pl.concat(slices, rechunk=True) for name, slices in self._frames.items()}
        except (msgspec.MsgspecError, pl.exceptions.PolarsError) as problem:
            raise RemoteProtocolError(f"state of {self._spec.id}: {str(problem)[:200]}") from problem
        return Parts(head, frames)
