"""The state of stateful operators: as parts (a small head and frames), or as one snapshot (MessagePack with the frames as Arrow IPC).

Both carry a fingerprint of the operator's parameters, so that the state cannot continue in an operator that computes something else. Parts
allow copying a state in pieces: frames are cut to suit the transport and never exist as bytes all at once.
"""

import hashlib
from typing import NamedTuple

import msgspec
import polars as pl

from sbon.errors import RemoteProtocolError
from sbon.operators.frames import decode_any, encode
from sbon.query.params.kinds import Params

VERSION = 1


class Snapshot(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The state of a stateful operator."""

    version: int
    fingerprint: bytes
    watermark_us: int
    late_rows: int
    frames: dict[str, bytes]


class Head(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The state of a stateful operator besides its frames."""

    version: int
    fingerprint: bytes
    watermark_us: int
    late_rows: int


class Parts(NamedTuple):
    """The state of an operator."""

    head: Head
    frames: dict[str, pl.DataFrame]


def fingerprint(params: Params) -> bytes:
    """Returns sixteen bytes that identify parameters."""
    return hashlib.blake2b(msgspec.msgpack.encode(params), digest_size=16).digest()


def parts_of(params: Params, watermark_us: int, late_rows: int, frames: dict[str, pl.DataFrame]) -> Parts:
    """Returns the parts of an operator with these parameters."""
    return Parts(Head(VERSION, fingerprint(params), watermark_us, late_rows), frames)


def opened(parts: Parts, params: Params) -> tuple[Head, dict[str, pl.DataFrame]]:
    """Returns the head and the frames, which the operator must check itself.

    Raises
    ------
    RemoteProtocolError
        The parts belong to an operator with other parameters.
    """
    head = parts.head
    if head.version != VERSION:
        raise RemoteProtocolError(f"snapshot of version {head.version}, expected {VERSION}")
    if head.fingerprint != fingerprint(params):
        raise RemoteProtocolError("snapshot of an operator with other parameters")
    if head.late_rows < 0:
        raise RemoteProtocolError(f"snapshot with {head.late_rows} late rows, expected 0 or more")
    return head, dict(parts.frames)


def pack(parts: Parts) -> bytes:
    """Encodes parts as a snapshot; equal states give equal bytes."""
    encoded = {name: encode(frame) for name, frame in parts.frames.items()}
    head = parts.head
    return msgspec.msgpack.encode(Snapshot(head.version, head.fingerprint, head.watermark_us, head.late_rows, encoded))


def unpack(state: bytes) -> Parts:
    """Decodes the parts from a snapshot of `pack`.

    Raises
    ------
    RemoteProtocolError
        The bytes are no snapshot.
    """
    try:
        snapshot = msgspec.msgpack.decode(state, type=Snapshot)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise RemoteProtocolError(f"snapshot of {len(state)} bytes cannot be read: {error}") from error
    head = Head(snapshot.version, snapshot.fingerprint, snapshot.watermark_us, snapshot.late_rows)
    return Parts(head, {name: decode_any(data) for name, data in snapshot.frames.items()})
