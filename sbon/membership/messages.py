"""Messages between members, in MessagePack: one version byte, then one tagged array.

Decoding validates: lengths, ranges and names are part of the types. A message that does not fit is refused as a whole, with
RemoteProtocolError. Vitals (coordinate and capacity) are the exception: they are packed 32-bit floats, unpacked only if they are newer than
the known ones, and invalid vitals are dropped alone (`unpack_vitals`).

A datagram goes to an agent of unknown release, so the version cannot be negotiated. Later releases of this version may add fields at the
end of any array (and of packed vitals), kinds of messages and of news, and statuses. An earlier release skips and counts unknown parts. A
release that changes the meaning of existing fields must use the next version, which agents of other versions refuse.
"""

import struct
from collections import Counter
from typing import Annotated, TypeAlias

import msgspec

from sbon.cost_space.coordinate import ERROR_MAX, VECTOR_MS_MAX, Coordinate, check
from sbon.errors import CoordinateError, RemoteProtocolError
from sbon.membership.config import LABELS_BYTES_MAX, LABELS_MAX, labels_bytes
from sbon.membership.incarnations import INCARNATION_MAX
from sbon.membership.members import Capacity

VERSION = 1
DATAGRAM_BYTES_MAX = 1200
"""Most bytes of a datagram before sealing; with seal, UDP and IPv6 headers it stays below the 1280 bytes that every IPv6 path carries."""
DIGEST_BYTES_MAX = 256
STATE_ROWS_MAX = 100_000
HELD_US_MAX = 60_000_000
NEWS_MAX = 64
VITALS_MAX = 32

Name: TypeAlias = Annotated[str, msgspec.Meta(min_length=1, max_length=64, pattern=r"^[A-Za-z0-9_.:-]+\Z")]
NameOfRow: TypeAlias = Annotated[str, msgspec.Meta(min_length=1, max_length=64)]
"""A name that is only looked up in the table. Its pattern was checked when it entered the table; another check would cost a microsecond."""
Incarnation: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=INCARNATION_MAX)]
Version: TypeAlias = Annotated[int, msgspec.Meta(ge=-1, le=2**62)]
"""Version of a member's digest; -1: unknown."""
Number: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=2**32 - 1)]
Port: TypeAlias = Annotated[int, msgspec.Meta(ge=1, le=65535)]
HostName: TypeAlias = Annotated[str, msgspec.Meta(min_length=1, max_length=255, pattern=r"^[!-~]+\Z")]
Labels: TypeAlias = Annotated[dict[str, str], msgspec.Meta(max_length=LABELS_MAX)]
Digest: TypeAlias = Annotated[bytes, msgspec.Meta(max_length=DIGEST_BYTES_MAX)]
PackedVitals: TypeAlias = Annotated[bytes, msgspec.Meta(max_length=64)]


class _Struct(msgspec.Struct, frozen=True, array_like=True):
    """An array whose additional elements, from later releases, are ignored."""


class Alive(_Struct, frozen=True, tag=1):
    """States that a member of this incarnation lives at this address."""

    name: Name
    incarnation: Incarnation
    boot: Number
    host: HostName
    port: Port
    labels: Labels


class Suspect(_Struct, frozen=True, tag=2):
    """States that `by` got no answer from the member."""

    name: NameOfRow
    incarnation: Incarnation
    by: Name


class Failed(_Struct, frozen=True, tag=3):
    """States that the member did not object to the suspicion in time."""

    name: NameOfRow
    incarnation: Incarnation
    by: Name


class Left(_Struct, frozen=True, tag=4):
    """States that the member announced its departure."""

    name: NameOfRow
    incarnation: Incarnation


class Hosted(_Struct, frozen=True, tag=5):
    """The digest of the operators that a member hosts; versions order the digests of one incarnation."""

    name: NameOfRow
    incarnation: Incarnation
    version: Incarnation
    digest: Digest


News: TypeAlias = Alive | Suspect | Failed | Left | Hosted


class Vitals(_Struct, frozen=True):
    """A member's coordinate and capacity; `data` is made by `pack_vitals`."""

    name: NameOfRow
    incarnation: Incarnation
    version: Incarnation
    data: PackedVitals


class Envelope(_Struct, frozen=True):
    """Part of every message: the sender, its vitals, news, and vitals of other members."""

    name: Name
    incarnation: Incarnation
    boot: Number
    version: Incarnation
    data: PackedVitals
    news: Annotated[list[News], msgspec.Meta(max_length=NEWS_MAX)]
    vitals: Annotated[list[Vitals], msgspec.Meta(max_length=VITALS_MAX)]


class Probe(_Struct, frozen=True, tag=1):
    """Asks an agent whether it is `target`. Only `target` answers, because another agent may have taken its address."""

    envelope: Envelope
    sequence: Number
    target: Name


class Ack(_Struct, frozen=True, tag=2):
    """Answers a probe, with the time that the answer took."""

    envelope: Envelope
    sequence: Number
    held_us: Annotated[int, msgspec.Meta(ge=0, le=HELD_US_MAX)]


class IndirectProbe(_Struct, frozen=True, tag=3):
    """Asks a helper to probe `target`, and to send a Nack if it gets no answer within `patience_ms`."""

    envelope: Envelope
    sequence: Number
    target: Name
    host: HostName
    port: Port
    patience_ms: Annotated[int, msgspec.Meta(ge=0, le=60_000)]


class Relayed(_Struct, frozen=True, tag=4):
    """Reports that the target of an indirect probe has answered the helper."""

    envelope: Envelope
    sequence: Number


class Nack(_Struct, frozen=True, tag=5):
    """Reports that the target has not answered the helper. It shows that the helper itself works (Lifeguard, section IV-A)."""

    envelope: Envelope
    sequence: Number


class Gossip(_Struct, frozen=True, tag=6):
    """Carries news only."""

    envelope: Envelope


Message: TypeAlias = Probe | Ack | IndirectProbe | Relayed | Nack | Gossip
_KINDS = frozenset(range(1, 7))
_NEWS_KINDS = frozenset(range(1, 6))
_ENVELOPE, _NEWS = 1, 5
"""Index of the envelope in a message (after its tag), and of the news in an envelope."""


class Row(_Struct, frozen=True):
    """One member in a full state."""

    name: Name
    status: Annotated[int, msgspec.Meta(ge=0, le=255)]
    incarnation: Incarnation
    boot: Number
    host: HostName
    port: Port
    labels: Labels
    age_s: Annotated[int, msgspec.Meta(ge=0, le=2**53)]
    """Seconds since the status changed, so that all agents forget dead members at about the same time."""
    vitals: Vitals | None
    hosted_version: tuple[Version, Version]
    digest: Digest


class State(_Struct, frozen=True):
    """The whole table of one agent."""

    name: Name
    rows: Annotated[list[Row], msgspec.Meta(max_length=STATE_ROWS_MAX)]


_encoder = msgspec.msgpack.Encoder()
_message_decoder = msgspec.msgpack.Decoder(Message)
_state_decoder = msgspec.msgpack.Decoder(State)
_PREFIX = bytes([VERSION])
_VITALS = struct.Struct("<7fI")
_HELD = struct.Struct(">BI")
_UINT32 = 0xCE
"""MessagePack's type byte of an unsigned 32-bit number."""


def encode(message: Message | State) -> bytes:
    """Encodes a message or a full state."""
    return _PREFIX + _encoder.encode(message)


def encode_ack(message: Ack) -> bytes:
    """Encodes an ack whose holding time can still be changed, because it is always 32 bits wide."""
    return encode(message)[: -len(_encoder.encode(message.held_us))] + _HELD.pack(_UINT32, message.held_us)


def with_held(ack: bytes, held_s: float) -> bytes:
    """Returns the encoded ack with another holding time."""
    return ack[: -_HELD.size] + _HELD.pack(_UINT32, min(max(int(held_s * 1e6), 0), HELD_US_MAX))


def encoded_bytes(item: News) -> int:
    """Returns the bytes that a piece of news takes within a message."""
    return len(_encoder.encode(item))


def decode(data: bytes, counters: Counter[str] | None = None) -> Message | None:
    """Decodes the message in a datagram without the news of unknown kinds; returns None if the message is of an unknown kind.

    Parameters
    ----------
    counters
        Counts unknown kinds, which a later release must have sent: `kinds_unknown` of messages, `news_unknown` of news.

    Raises
    ------
    RemoteProtocolError
        The message has another version, is too long, is not MessagePack, or exceeds the limits.
    """
    if len(data) > DATAGRAM_BYTES_MAX:
        raise RemoteProtocolError(f"membership datagram of {len(data)} bytes, expected {DATAGRAM_BYTES_MAX} at most")
    _check_version(data)
    counted: Counter[str] = Counter() if counters is None else counters
    message: Message | None
    try:
        try:
            message = _message_decoder.decode(memoryview(data)[1:])
        except msgspec.ValidationError:
            message = _decode_known(data, counted)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise RemoteProtocolError(f"membership message refused: {error}") from error
    if message is None:
        return None
    for item in message.envelope.news:
        if isinstance(item, Alive):
            _check_labels(item.labels)
    return message


def _decode_known(data: bytes, counters: Counter[str]) -> Message | None:
    """Decodes a message without its unknown kinds of news. Slower, but needed only for messages of later releases."""
    raw = msgspec.msgpack.decode(memoryview(data)[1:])
    if not _has_kind(raw):
        raise msgspec.ValidationError("not an array with a kind")
    if raw[0] not in _KINDS:
        counters["kinds_unknown"] += 1
        return None
    envelope = raw[_ENVELOPE] if len(raw) > _ENVELOPE else None
    if isinstance(envelope, list) and len(envelope) > _NEWS and isinstance(envelope[_NEWS], list):
        known = [item for item in envelope[_NEWS] if not _has_kind(item) or item[0] in _NEWS_KINDS]
        counters["news_unknown"] += len(envelope[_NEWS]) - len(known)
        envelope[_NEWS] = known
    message: Message = _message_decoder.decode(_encoder.encode(raw))
    return message


def _has_kind(raw: object) -> bool:
    return isinstance(raw, list) and bool(raw) and isinstance(raw[0], int)


def decode_state(data: bytes) -> State:
    """Decodes the full state of a push-pull.

    Raises
    ------
    RemoteProtocolError
        The state has another version, is not MessagePack, or exceeds the limits.
    """
    _check_version(data)
    try:
        state = _state_decoder.decode(memoryview(data)[1:])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise RemoteProtocolError(f"membership state refused: {error}") from error
    for row in state.rows:
        _check_labels(row.labels)
    return state


def pack_vitals(coordinate: Coordinate, capacity: Capacity) -> bytes:
    """Packs coordinate and capacity into 32 bytes: 32-bit floats are exact to a ten-millionth, far below any measurement error."""
    return _VITALS.pack(
        *coordinate.vector,
        coordinate.height_ms,
        coordinate.error,
        coordinate.load_ms,
        capacity.load,
        min(max(capacity.free_operators, 0), 2**32 - 1),
    )


def unpack_vitals(data: bytes) -> tuple[Coordinate, Capacity]:
    """Unpacks the bytes of `pack_vitals`.

    Raises
    ------
    CoordinateError
        The bytes have another form, or values that no correct node sends.
    """
    if len(data) < _VITALS.size:
        raise CoordinateError(f"vitals of {len(data)} bytes, expected {_VITALS.size} at least")
    x, y, z, height_ms, error, load_ms, load, free_operators = _VITALS.unpack_from(data)
    if not 0 <= load <= 1e6:
        raise CoordinateError(f"CPU load {load}, expected 0 to a million")
    coordinate = Coordinate((x, y, z), height_ms, error, load_ms)
    # The same tests as `check` in a quarter of its time (comparisons with NaN are false). `check` decides on values that fail them.
    low, high = -VECTOR_MS_MAX, VECTOR_MS_MAX
    if not (low <= x <= high and low <= y <= high and low <= z <= high and 0 <= height_ms <= high and 0 <= load_ms <= high):
        check(coordinate)
    if not 0 <= error <= ERROR_MAX:
        check(coordinate)
    return coordinate, Capacity(free_operators, load)


def _check_version(data: bytes) -> None:
    if not data or data[0] != VERSION:
        raise RemoteProtocolError(f"membership message of version {data[0] if data else None}, expected {VERSION}")


def _check_labels(labels: dict[str, str]) -> None:
    if labels and labels_bytes(labels) > LABELS_BYTES_MAX:
        raise RemoteProtocolError(f"labels of {labels_bytes(labels)} bytes, expected {LABELS_BYTES_MAX} at most")
