"""The bytes of every message stay as they are. Agents of earlier versions do not understand changed bytes."""

import types
import typing
from enum import Enum
from hashlib import blake2b
from typing import Any

import msgspec
import pytest

from sbon.query.plan import OperatorSpec, Part
from sbon.wire.messages import Message, decode, encode

MESSAGES: dict[str, type[msgspec.Struct]] = {str(kind.__struct_config__.tag): kind for kind in typing.get_args(Message)}
BYTES = {
    "abandon": "17357fe8b231",
    "ack": "9906000cdef7",
    "activate": "57a38dbe834c",
    "begin": "93a561edbb15",
    "candidate": "0379201f27ff",
    "candidate?": "2d5aecc0cc56",
    "catalog": "f800ad8ab826",
    "claims": "8b3bf1c4fb30",
    "claims?": "29a5fb23f727",
    "cross": "18d4c3b31e5b",
    "crossing": "25385433a099",
    "cut": "5d35d8aa5884",
    "deadend": "b365249299a5",
    "delay": "6ca1da91e53c",
    "done": "da85bd11cb59",
    "drop": "bdd2ec2efbb1",
    "endorphan": "f8032a06a033",
    "figures": "b4d30e96059b",
    "forget": "7df0976975b6",
    "handed": "a7e31a5a8ab4",
    "holdersays": "7ed3efe5669c",
    "inputlost": "647ae972bc8b",
    "instantiate": "d7ba690dd287",
    "keep": "c54dd226a734",
    "keyinstall": "0022d20c2846",
    "keyremove": "b3f06315d26a",
    "keys": "2cb7ffa614f5",
    "keys?": "e325f2056fd7",
    "keyuse": "0d6012b907dd",
    "leaveout": "663a5417c070",
    "lock": "ba0fa487a74f",
    "moved": "bb801489e82d",
    "nolink": "92ba4b54e54c",
    "operators": "b9a502b86929",
    "operators?": "fe4110fc3acd",
    "orphanended": "813f6cc830b0",
    "outcome": "cc480248acb3",
    "outcome?": "dd4d3abb7899",
    "own": "fcf5e83eb5bf",
    "prepare": "483f4678e090",
    "promise?": "d0c0c4a86c9a",
    "pushpull": "48699fb284d7",
    "queries": "5477ef6b715b",
    "queries?": "626276cd143e",
    "refeed": "469acd5d4df9",
    "release": "9c757a2c8a30",
    "renew": "fbbc01c78ad1",
    "renewed": "41d3b1c52391",
    "replaced": "5f225392e0a7",
    "reserve": "19475a9c0bd2",
    "retire": "88dade992fa2",
    "retired": "a101e8e318c0",
    "rtts": "04362ae1d5d2",
    "rtts?": "6baea3a9e27c",
    "sample": "dc0a6be27eea",
    "sample?": "921bbab8e294",
    "slack": "744ec0cb0b61",
    "state": "1ea08c75534e",
    "uncut": "e2f27cf12718",
    "unlock": "ef5add3852a5",
    "unwanted": "31bf9cc0ab09",
    "use": "218301eae22a",
    "used": "c569d100a477",
    "wanted?": "0244e3a4b60c",
}

BOUNDED: dict[type, dict[str, float]] = {OperatorSpec: {"ports": 2}, Part: {"index": 1, "of": 2, "copies": 1.5}}
"""Fields with limits of their own."""


def example(kind: Any) -> Any:
    """Returns a value of a type, the same each time: every field filled, one item in every collection."""
    origin, parts = typing.get_origin(kind), typing.get_args(kind)
    if origin is typing.Annotated:
        return example(parts[0])
    if origin in (types.UnionType, typing.Union):
        return example(next(part for part in parts if part is not type(None)))
    if origin is typing.Literal:
        return parts[0]
    if origin is dict:
        return {example(parts[0]): example(parts[1])}
    if origin is tuple:
        return (example(parts[0]),) if parts[-1] is Ellipsis else tuple(example(part) for part in parts)
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        fields = {field.name: example(field.type) for field in msgspec.structs.fields(kind)}
        return kind(**fields | BOUNDED.get(kind, {}))
    if isinstance(kind, type) and issubclass(kind, Enum):
        return next(iter(kind))
    return {str: "abc", int: 70_000, float: 0.5, bool: True, bytes: b"\x00\xff"}[kind]


@pytest.mark.parametrize("tag", sorted(MESSAGES))
def test_the_bytes_of_a_message_stay_as_they_are(tag: str) -> None:
    data = encode(example(MESSAGES[tag]))
    assert decode(data) == example(MESSAGES[tag])
    assert blake2b(data, digest_size=6).hexdigest() == BYTES[tag]


def test_no_message_has_gone() -> None:
    assert set(MESSAGES) == set(BYTES)
