"""Snapshots of stateful operators: a MessagePack struct with the frames inside as Arrow IPC.

A snapshot carries the fingerprint of the parameters it was made under, so that it cannot continue in an operator that computes something
else.
"""

import hashlib

import msgspec
import polars as pl

from sbon.errors import RemoteProtocolError
from sbon.operators.frames import decode_any, encode
from sbon.query.plan import Params

VERSION = 1


class Snapshot(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a stateful operator holds."""

    version: int
    fingerprint: bytes
    watermark_us: int
    late_rows: int
    frames: dict[str, bytes]


def fingerprint(params: Params) -> bytes:
    """Sixteen bytes that differ where parameters do."""
    return hashlib.blake2b(msgspec.msgpack.encode(params), digest_size=16).digest()


def pack(params: Params, watermark_us: int, late_rows: int, frames: dict[str, pl.DataFrame]) -> bytes:
    """A snapshot as bytes; equal states give equal bytes."""
    encoded = {name: encode(frame) for name, frame in frames.items()}
    return msgspec.msgpack.encode(Snapshot(VERSION, fingerprint(params), watermark_us, late_rows, encoded))


def unpack(state: bytes, params: Params) -> tuple[Snapshot, dict[str, pl.DataFrame]]:
    """The snapshot and its frames.

    Raises
    ------
    RemoteProtocolError
        The bytes are no snapshot, or that of an operator with other parameters.
    """
    try:
        snapshot = msgspec.msgpack.decode(state, type=Snapshot)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise RemoteProtocolError(f"snapshot of {len(state)} bytes cannot be read: {error}") from error
    if snapshot.version != VERSION:
        raise RemoteProtocolError(f"snapshot of version {snapshot.version}, expected {VERSION}")
    if snapshot.fingerprint != fingerprint(params):
        raise RemoteProtocolError("snapshot of an operator with other parameters")
    if snapshot.late_rows < 0:
        raise RemoteProtocolError(f"snapshot with {snapshot.late_rows} late rows, expected 0 or more")
    return snapshot, {name: decode_any(data) for name, data in snapshot.frames.items()}
