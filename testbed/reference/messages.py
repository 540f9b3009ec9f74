"""Makes the page about the messages between agents from their structs: the encoding of each, and the limits of its fields."""

from collections.abc import Iterable, Iterator
from enum import Enum
from typing import Any, get_args

import msgspec
from msgspec import inspect as types

from sbon.config import field_docstrings
from sbon.membership import messages as datagrams
from sbon.peers.open_requests import ErrorReply
from sbon.wire.authority import TABLE, Way
from sbon.wire.messages import Message
from sbon_testbed.reference.markdown import anchor, code, page, prose, table
from sbon_testbed.reference.structs import about

_ABOUT = (
    "Every struct that one agent sends to another, with the limits that a receiver checks. [Protocols](../protocols.md) says when they "
    "are sent, and in which frames; [authority](../authority.md) says who may send which. All are MessagePack. A *map* has the names "
    "of the fields as keys, and a field that is left out has its default; the tag of a struct, if any, has the key `type`. An *array* "
    "has the fields in the order of its table, after the tag if there is one; fields at its end may be left out if they have defaults."
)
_OF_STREAMS = (
    "The payload of frames of the kinds MESSAGE, REQUEST and REPLY. *told*: one way; *asked*: a request, which gets a reply; *answer*: the "
    "reply to a request. A request without a result is answered with `done`."
)
_OF_DATAGRAMS = (
    "The payload of datagrams, after one byte with the version. A receiver skips elements after those that it knows, and news with an "
    "unknown tag."
)
_WAYS: dict[Way, str] = {Way.TOLD: "told", Way.ASKED: "asked", Way.ANSWER: "answered"}


def messages_page() -> str:
    """Returns the page with all messages, and all structs in their fields."""
    streams: list[type[msgspec.Struct]] = [*get_args(Message), ErrorReply]
    members: list[type[msgspec.Struct]] = [*get_args(datagrams.Message), *get_args(datagrams.News), datagrams.State]
    parts = sorted(_reached([*streams, *members]) - {*streams, *members}, key=lambda kind: kind.__name__)
    return page(
        "Messages between agents",
        "the docstrings in `sbon/wire/`, `sbon/membership/messages.py` and `sbon/query/`",
        _ABOUT,
        "## Streams",
        _OF_STREAMS,
        *_sections(streams),
        "## Datagrams",
        _OF_DATAGRAMS,
        *_sections(members),
        "## What messages consist of",
        "Operators, expressions, and other structs in the fields of messages.",
        *_sections(parts),
    )


def _sections(kinds: Iterable[type[msgspec.Struct]]) -> Iterator[str]:
    for kind in kinds:
        meanings = field_docstrings(kind)
        rows = [(code(field.encode_name), meanings.get(field.name, ""), _type(field.type), _default(field)) for field in _info(kind).fields]
        yield f"### {kind.__name__}"
        yield prose(about(kind))
        yield _encoding(kind)
        yield table(("field", "meaning", "type", "default"), rows) if rows else "It has no fields."


def _encoding(kind: type[msgspec.Struct]) -> str:
    """Returns the encoding of a struct and, for a message of streams, its way and its senders."""
    config = kind.__struct_config__
    tag = "" if config.tag is None else f", tag {code(str(config.tag))}"
    return f"{'Array' if config.array_like else 'Map'}{tag}.{_way(kind)}"


def _way(kind: type[msgspec.Struct]) -> str:
    """Returns who may send a message of streams, and in which way; empty for other structs."""
    rule = TABLE.get(kind)
    if rule is None:
        return ""
    if rule.way is Way.ANSWER:
        return " Answer to a request."
    return f" {' or '.join(word for way, word in _WAYS.items() if rule.way & way).capitalize()} by: {rule.who}."


def _reached(kinds: Iterable[type[msgspec.Struct]]) -> set[type[msgspec.Struct]]:
    """Returns these structs and all structs that their fields may hold."""
    found: set[type[msgspec.Struct]] = set()
    waiting = list(kinds)
    while waiting:
        kind = waiting.pop()
        if kind not in found:
            found.add(kind)
            waiting += [one for field in _info(kind).fields for one in _structs(field.type)]
    return found


def _info(kind: type[msgspec.Struct]) -> types.StructType:
    found = types.type_info(kind)
    assert isinstance(found, types.StructType)
    return found


def _structs(kind: types.Type) -> Iterator[type[msgspec.Struct]]:
    match kind:
        case types.StructType(cls=cls):
            yield cls
        case types.Metadata(type=inner):
            yield from _structs(inner)
        case types.UnionType(types=several) | types.TupleType(item_types=several):
            for one in several:
                yield from _structs(one)
        case types.DictType(key_type=key, value_type=value):
            yield from _structs(key)
            yield from _structs(value)
        case types.CollectionType(item_type=item):
            yield from _structs(item)


def _default(field: types.Field) -> str:
    if field.required:
        return "required"
    value = field.default_factory() if callable(field.default_factory) else field.default
    if value in (msgspec.UNSET, msgspec.NODEFAULT):
        return "left out"
    if isinstance(value, Enum):
        return code(str(value.value))
    return code(str(msgspec.to_builtins(value))) if value not in ((), "", None, {}, []) else "none" if value is None else "empty"


def _type(kind: types.Type) -> str:
    """Returns a type with its limits, in words."""
    match kind:
        case types.Metadata(type=inner):
            return _type(inner)
        case types.StructType(cls=cls):
            return f"[{cls.__name__}](#{anchor(cls.__name__)})"
        case types.EnumType(cls=cls):
            return f"one of {', '.join(code(str(one.value)) for one in cls)}"
        case types.LiteralType(values=values):
            return f"one of {', '.join(code(str(one)) for one in values)}"
        case types.UnionType(types=several):
            return " or ".join(_type(one) for one in several if not isinstance(one, types.NoneType)) + (
                " or nil" if any(isinstance(one, types.NoneType) for one in several) else ""
            )
        case types.IntType(ge=least, le=most):
            return f"integer{_limits(least, most)}"
        case types.FloatType(ge=least, le=most):
            return f"float{_limits(least, most)}"
        case types.StrType(max_length=most, pattern=pattern):
            return f"text{_length(most, 'characters')}{f', {code(pattern)}' if pattern else ''}"
        case types.BytesType(max_length=most):
            return f"bytes{_length(most, '')}"
        case types.DictType(key_type=key, value_type=value, max_length=most):
            return f"map{_length(most, 'entries')} from {_type(key)} to {_type(value)}"
        case types.TupleType(item_types=several):
            return f"array of {len(several)}: {', '.join(_type(one) for one in several)}" if several else "empty array"
        case types.CollectionType(item_type=item, max_length=most):
            return f"array{_length(most, 'items')} of {_type(item)}"
        case types.BoolType():
            return "true or false"
        case types.NoneType():
            return "nil"
        case types.RawType() | types.AnyType():
            return "any value"
    raise TypeError(f"no words for {kind}")


def _limits(least: Any, most: Any) -> str:
    if least is None and most is None:
        return ""
    return f", {'any' if least is None else _number(least)} to {'any' if most is None else _number(most)}"


def _number(value: float) -> str:
    """Returns a limit as text; large powers of two are written as such.

    Examples
    --------
    >>> _number(1000), _number(2**62), _number(-(2**63)), _number(2**32 - 1), _number(1e18)
    ('1,000', '2^62', '-2^63', '2^32 - 1', '1e+18')
    """
    if isinstance(value, float):
        return f"{value:g}"
    size = abs(value)
    sign = "-" if value < 0 else ""
    if size > 2**20 and size & (size - 1) == 0:
        return f"{sign}2^{size.bit_length() - 1}"
    if size > 2**20 and (size + 1) & size == 0:
        return f"{sign}2^{size.bit_length()} - 1"
    return f"{value:,}"


def _length(most: int | None, what: str) -> str:
    return "" if most is None else f", at most {_number(most)} {what}".rstrip() + ("," if what in ("items", "entries") else "")
