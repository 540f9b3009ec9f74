"""Every number, text and list of a message has limits; a message beyond them is refused whole."""

import math
import typing
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from msgspec import inspect

from sbon.errors import UnsupportedError
from sbon.membership import messages as membership
from sbon.migration.snapshot import Record
from sbon.query.plan import LinkSpec
from sbon.wire.messages import Message, decode, encode
from sbon.wire.migration import Lock
from sbon.wire.reports import UpstreamDelay

CHECKED_ELSEWHERE = {"OperatorSpec", "Field", "Entry"}
"""Types that plans and the catalogue check themselves (`sbon.query.limits`, `sbon.query.catalog`)."""


def unlimited(kind: Any, path: str, seen: set[type]) -> Iterator[str]:
    """Yields the paths within a type that have no limit."""
    match kind:
        case inspect.IntType(ge=low, le=high) | inspect.FloatType(ge=low, le=high):
            if low is None or high is None:
                yield f"{path}: number"
        case inspect.StrType(max_length=most) | inspect.BytesType(max_length=most):
            if most is None:
                yield path
        case inspect.VarTupleType(item_type=item, max_length=most) | inspect.ListType(item_type=item, max_length=most):
            if most is None:
                yield path
            yield from unlimited(item, f"{path}[]", seen)
        case inspect.DictType(key_type=key, value_type=value, max_length=most):
            if most is None:
                yield path
            yield from unlimited(key, f"{path}.key", seen)
            yield from unlimited(value, f"{path}.value", seen)
        case inspect.TupleType(item_types=items):
            for number, item in enumerate(items):
                yield from unlimited(item, f"{path}[{number}]", seen)
        case inspect.UnionType(types=kinds):
            for one in kinds:
                yield from unlimited(one, path, seen)
        case inspect.StructType(cls=cls, fields=fields):
            if cls not in seen and cls.__name__ not in CHECKED_ELSEWHERE:
                seen.add(cls)
                for field in fields:
                    yield from unlimited(field.type, f"{cls.__name__}.{field.name}", seen)
        case inspect.BoolType() | inspect.NoneType() | inspect.LiteralType():
            pass
        case _:
            yield f"{path}: {kind}"


def test_every_number_text_and_list_of_every_message_has_limits():
    seen: set[type] = set()
    assert list(unlimited(inspect.type_info(Message), "", seen)) == []
    assert {*typing.get_args(Message), LinkSpec} <= seen


@pytest.mark.parametrize("kind", [Record, membership.Message, membership.State], ids=str)
def test_every_number_in_datagrams_and_in_what_moves_with_an_operator_has_limits(kind: Any):
    assert [path for path in unlimited(inspect.type_info(kind), "", set()) if path.endswith("number")] == []


@pytest.mark.parametrize("lease_s", [math.nan, math.inf, -1.0, 86_401.0])
def test_a_value_beyond_its_limits_is_refused(lease_s: float):
    with pytest.raises(UnsupportedError, match="lease_s"):
        decode(encode(Lock("a.0.1.0", (), "n", lease_s)))


def test_a_delay_that_is_no_number_is_refused():
    with pytest.raises(UnsupportedError):
        decode(encode(UpstreamDelay("l", math.nan)))


def test_an_epoch_below_zero_is_refused():
    with pytest.raises(UnsupportedError, match="epoch"):
        decode(msgspec.msgpack.encode({"type": "moved", "operator": "a.0.1.0", "node": "n", "epoch": -1}))
