"""The format in which an operator travels: its state, the input that it received while the state was sent, and the engine's record of it.

A snapshot is a sequence of pieces. The first piece has a head: the version of the format of all pieces, and the name of an earlier
snapshot if this one has only the changes since; no release makes such snapshots yet. Then come

    the state at one instant   its head and its frames, cut (Begin, Slice), or cut bytes where it has no frames (Opaque); Whole ends it
    input since then           call by call (Calls): the copy repeats them and discards the answers, which works because an operator's
                               results and state depend on its input alone
    the engine's record        cut (Rest), with the operator at rest: `Record`, encoded

An operator without state has only a record.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import TypeAlias

import msgspec

from sbon.errors import RemoteProtocolError
from sbon.message_limits import Count, Epoch, Instant, Origin, RowsByOrigin, Watermark
from sbon.query.plan import LinkSpec, OperatorSpec
from sbon.schema import Schema
from sbon.types import NodeId, QueryId
from sbon.watermarks import WATERMARK_MIN
from sbon.wire.costs import OperatorCosts
from sbon.wire.deployment import Origins, User
from sbon.wire.reports import MissedRows

VERSION = 1
"""Version of the format. A change that an older release would misread raises it."""


class Begin(msgspec.Struct, frozen=True, tag="begin"):
    """Head of a state in parts: `sbon.operators.snapshots.Head`, encoded."""

    head: bytes


class Slice(msgspec.Struct, frozen=True, tag="slice"):
    """Next rows of a frame."""

    name: str
    data: bytes


class Opaque(msgspec.Struct, frozen=True, tag="opaque"):
    """Next bytes of a state without frames."""

    data: bytes


class Whole(msgspec.Struct, frozen=True, tag="whole"):
    """Marks the end of the state: the receiver builds the operator now, while the old copy still runs."""


WATERMARK_PORT = -1
"""Port of a call that brings a watermark."""


class Call(msgspec.Struct, frozen=True, array_like=True):
    """One call to the operator: rows for a port, or a watermark."""

    port: int
    watermark_us: int
    data: bytes


class Calls(msgspec.Struct, frozen=True, tag="calls"):
    """Next calls that the operator received on the old host."""

    calls: tuple[Call, ...]


class Rest(msgspec.Struct, frozen=True, tag="rest"):
    """Next bytes of the record."""

    data: bytes


Part: TypeAlias = Begin | Slice | Opaque | Whole | Calls | Rest


class Head(msgspec.Struct, frozen=True, tag="head"):
    """The first piece."""

    version: int
    part: msgspec.Raw
    """Content of the piece beside the head, in this version's format."""
    since: str = ""
    """Name of the snapshot that this one continues; empty: it stands alone."""


class HeldBatch(msgspec.Struct, frozen=True, array_like=True):
    """An unacknowledged batch of an output."""

    sequence: Count
    stimulus_s: Instant
    watermark_us: Watermark
    rows: Count
    data: bytes
    path: Count = 0
    origin: Origin = 0


class InputRecord(msgspec.Struct, frozen=True, array_like=True):
    """Progress of an input."""

    link: LinkSpec
    node: NodeId
    schema: Schema
    processed: Count
    rows_processed: Count
    watermark_us: Watermark
    epoch: Epoch = 0
    lost: bool = False
    told_lost: bool = False
    named: tuple[tuple[Epoch, NodeId], ...] = ()
    made: Count | None = None
    """Rows that the operator had made when it had processed the last batch."""
    made_of_it: Origins | None = None
    origins: Origins | None = None
    """Rows processed, by origin (`sbon.links.origins`); `made_of_it`: rows made of this input. None if unknown."""
    made_by_origin: RowsByOrigin | None = None
    """Rows made of each origin, of each part if the operator deals them; None if unknown, or if it does not pass origins on."""


class OutputRecord(msgspec.Struct, frozen=True, array_like=True):
    """An output with the batches that it has still to deliver."""

    link: LinkSpec
    node: NodeId
    epoch: Epoch
    users: tuple[QueryId, ...]
    next_sequence: Count
    rows_offered: Count
    rows_acknowledged: Count
    held: tuple[HeldBatch, ...]
    named: tuple[tuple[Epoch, NodeId], ...] = ()
    made: tuple[Count, Count | None] = (0, None)
    """The last number that is safe, and the rows that the target had made by then."""
    skip_rows: Count = 0
    """Number of next rows to skip: the target took them before a crash."""
    behind: tuple[Count, ...] | None = None
    """With `made`: rows of the target's parts, or of operators without state behind it; None if it keeps state."""
    skips: Origins = ()
    """`skip_rows` by origin."""
    is_whole: bool = False
    """True if it has been given all rows that the operator has made."""
    by_origin: RowsByOrigin | None = None
    """With `made`: rows that the target has taken and made of each origin (`sbon.wire.links.Acknowledge`); None if unknown."""
    former_us: Watermark = WATERMARK_MIN
    """A watermark that the rows given by copies that have crashed had been made for."""


class Record(msgspec.Struct, frozen=True):
    """An engine's record of one operator between two batches, without the operator's own state.

    It holds the number of the last batch processed on each input, and the unacknowledged output; `sbon.links` explains why that is enough.
    """

    spec: OperatorSpec
    users: tuple[User, ...]
    inputs: tuple[InputRecord, ...]
    outputs: tuple[OutputRecord, ...]
    watermark_us: Watermark
    watermark_out_us: Watermark
    rows_in: Count
    rows_out: Count
    batches_in: Count
    migrations: Epoch
    costs: OperatorCosts | None = None
    """Cost on the old host, which the new host starts from."""
    missed: MissedRows | msgspec.UnsetType = msgspec.UNSET
    untimed_rows: Count | msgspec.UnsetType = msgspec.UNSET
    """Rows without an event time that it has left out."""


_encoder = msgspec.msgpack.Encoder()
_part: msgspec.msgpack.Decoder[Part] = msgspec.msgpack.Decoder(Part)
_first = msgspec.msgpack.Decoder(Head)
_record = msgspec.msgpack.Decoder(Record)
_MALFORMED = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


class Writer:
    """Encodes the pieces of one snapshot, in their order; the first one gets the head."""

    def __init__(self) -> None:
        self._begun = False

    def piece(self, part: Part) -> bytes:
        """Encodes a piece."""
        encoded = _encoder.encode(part)
        if self._begun:
            return encoded
        self._begun = True
        return _encoder.encode(Head(VERSION, msgspec.Raw(encoded)))

    def cut(self, data: bytes, piece_bytes: Callable[[], int], kind: Callable[[bytes], Part]) -> Iterator[bytes]:
        """Cuts bytes into pieces, at least one. Each has the size that `piece_bytes` asks for at that moment."""
        start = 0
        while start < max(1, len(data)):
            end = start + piece_bytes()
            yield self.piece(kind(data[start:end]))
            start = end

    def calls(self, calls: Iterable[Call]) -> bytes:
        """Encodes calls as one piece."""
        return self.piece(Calls(tuple(calls)))


class Reader:
    """Decodes the pieces of one snapshot, in their order."""

    def __init__(self) -> None:
        self._begun = False

    def part(self, data: bytes) -> Part:
        """Decodes the next piece.

        Raises
        ------
        RemoteProtocolError
            The bytes are no piece, the snapshot has an unknown version, or it continues a snapshot that is not here.
        """
        try:
            if self._begun:
                return _part.decode(data)
            self._begun = True
            head = _first.decode(data)
            if head.version != VERSION:
                raise RemoteProtocolError(f"snapshot of version {head.version}, expected {VERSION}: both hosts need the same release")
            if head.since:
                raise RemoteProtocolError(f"snapshot since {head.since}, which is not here; expected a whole one")
            return _part.decode(head.part)
        except _MALFORMED as problem:
            raise RemoteProtocolError(f"piece of {len(data)} bytes is not one of a snapshot: {problem}") from problem


def encode_record(record: Record) -> bytes:
    """Encodes an engine's record."""
    return _encoder.encode(record)


def decode_record(data: bytes) -> Record:
    """Decodes an engine's record.

    Raises
    ------
    RemoteProtocolError
        The bytes are no record.
    """
    try:
        return _record.decode(data)
    except _MALFORMED as problem:
        raise RemoteProtocolError(f"state of {len(data)} bytes is not one of an operator: {problem}") from problem
