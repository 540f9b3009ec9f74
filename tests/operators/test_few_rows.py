"""A few rows as plain values are encoded and decoded like a frame: same bytes, same values, same reaction to damage."""

import math

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from polars.testing import assert_frame_equal

from sbon.compression import Codec
from sbon.errors import LocalProtocolError, RemoteProtocolError
from sbon.links.ipc_layout import columns_of
from sbon.operators import ipc
from sbon.operators.frames import decode_batch, encode_batch, frame_of_values, polars_schema
from sbon.operators.values import FEW_ROWS, Values, decode_values, encode_values, fits
from sbon.schema import PLAIN_TYPES, ColumnType, Field, Schema
from tests.examples import examples

WHOLE = st.one_of(st.integers(-(2**63), 2**63 - 1), st.sampled_from([-(2**63), 2**63 - 1, 0, -1]))
KINDS = {
    ColumnType.BOOL: st.booleans(),
    ColumnType.INT: WHOLE,
    ColumnType.FLOAT: st.one_of(st.floats(), st.sampled_from([math.nan, math.inf, -math.inf, -0.0])),
    ColumnType.TEXT: st.one_of(st.text(max_size=5), st.sampled_from(["", "\0", "é\0ü", "a text that is longer than one word or two" * 3])),
    ColumnType.TIME: WHOLE,
    ColumnType.INTERVAL: WHOLE,
    **{kind: st.sampled_from(["null", '{"a":[1,"é"]}']) for kind in ColumnType if kind not in PLAIN_TYPES},
}
ALL = tuple(Field(kind.value, kind) for kind in ColumnType)


def schema_of(*kinds: ColumnType) -> Schema:
    return tuple(Field(f"{place} {kind.value}", kind) for place, kind in enumerate(kinds))


@st.composite
def batches(draw: st.DrawFn, rows_max: int = FEW_ROWS) -> tuple[Values, Schema]:
    kinds = draw(st.lists(st.sampled_from(ColumnType), min_size=1, max_size=5))
    rows = draw(st.integers(1, rows_max))
    columns = []
    for kind in kinds:
        value = KINDS[kind] if draw(st.booleans()) else st.one_of(st.none(), KINDS[kind])
        columns.append(tuple(draw(st.lists(value, min_size=rows, max_size=rows))))
    return Values(rows, tuple(columns)), schema_of(*kinds)


def told(values: Values | None) -> str:
    """Returns the values as text, so that NaN equals NaN and 0.0 differs from -0.0."""
    assert values is not None
    return repr((values.rows, [list(column) for column in values.columns]))


def seen(data: bytes, schema: Schema, rows: int) -> str | None:
    """Returns what `decode_batch` reads, as text of its values; None if it refuses the bytes."""
    try:
        frame = decode_batch(data, schema, rows)
    except RemoteProtocolError:
        return None
    whole = frame.cast({name: polars_schema(ALL)["int"] for name, dtype in frame.schema.items() if dtype.is_temporal()})
    return told(Values(rows, tuple(whole[field.name].to_list() for field in schema)))


@examples(120)
@given(batches())
def test_values_come_back_as_they_were(batch: tuple[Values, Schema]) -> None:
    values, schema = batch
    assert fits(values, schema)
    data = encode_values(values, schema)
    assert told(decode_values(data, schema, values.rows)) == told(values) == seen(data, schema, values.rows)


@examples(90)
@given(batches())
def test_a_frame_and_plain_values_make_the_same_bytes_and_are_read_alike(batch: tuple[Values, Schema]) -> None:
    values, schema = batch
    frame = frame_of_values(values, schema)
    assert frame.schema == polars_schema(schema)
    data, by_frame = encode_values(values, schema), bytes(encode_batch(frame, schema))
    assert data == by_frame
    assert told(decode_values(by_frame, schema, values.rows)) == told(values)
    built = frame.clear().extend(frame)  # built by polars, not read from our bytes: the bytes under NULLs may differ
    by_built = bytes(encode_batch(built, schema))
    assert len(by_built) == len(data)
    assert told(decode_values(by_built, schema, values.rows)) == told(values)
    assert_frame_equal(decode_batch(by_built, schema, values.rows), frame)


@examples(240)
@given(batches(rows_max=3), st.data())
@example((Values(2, (("a", "é"), (True, None))), schema_of(ColumnType.TEXT, ColumnType.BOOL)), None)
def test_damage_is_refused_or_read_as_a_frame_is(batch: tuple[Values, Schema], data: st.DataObject | None) -> None:
    values, schema = batch
    whole = encode_values(values, schema)
    if data is None:
        damaged = [whole[:place] + bytes([byte]) + whole[place + 1 :] for place in range(len(whole)) for byte in (0, 1, 0x7F, 0x80, 0xFF)]
        damaged += [whole[:size] for size in range(len(whole))]
    else:
        place = data.draw(st.integers(0, len(whole) - 1))
        damaged = [whole[:place], whole[:place] + bytes([data.draw(st.integers(0, 255))]) + whole[place + 1 :]]
    for other in damaged:
        try:
            found = decode_values(other, schema, values.rows)
        except RemoteProtocolError:
            continue
        if found is not None:
            assert told(found) == seen(other, schema, values.rows)


def test_what_is_packed_or_many_is_left_to_frames() -> None:
    schema = schema_of(ColumnType.INT, ColumnType.TEXT)
    values = Values(3, ((1, 2, 3), ("a", None, "c")))
    assert decode_values(encode_batch(frame_of_values(values, schema), schema, Codec.LZ4), schema, 3) is None
    many = Values(FEW_ROWS + 1, (tuple(range(FEW_ROWS + 1)), ("x",) * (FEW_ROWS + 1)))
    data = encode_values(many, schema)
    assert decode_values(data, schema, many.rows) is None
    assert decode_batch(data, schema, many.rows).rows() == list(zip(*many.columns, strict=True))


def test_buffers_in_another_order_are_left_to_frames() -> None:
    schema = schema_of(ColumnType.INT, ColumnType.INT)
    layout = columns_of(schema)
    head = layout.head(1, 128, (0, 0, 64, 8, 0, 0, 0, 8), (1, 0, 1, 0))
    data = head + encode_values(Values(1, ((5,), (6,))), schema)[layout.body_at :]
    assert decode_values(data, schema, 1) is None
    assert decode_batch(data, schema, 1).row(0) == (6, 5)


def test_other_nulls_than_announced_are_left_to_frames() -> None:
    schema = schema_of(ColumnType.INT)
    whole = bytearray(encode_values(Values(2, ((None, 1),)), schema))
    whole[columns_of(schema).body_at] = 0
    assert decode_values(whole, schema, 2) is None


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (ColumnType.INT, 2**63),
        (ColumnType.TIME, -(2**63) - 1),
        (ColumnType.INTERVAL, 1.5),
        (ColumnType.INT, "1"),
        (ColumnType.FLOAT, "1"),
        (ColumnType.FLOAT, 10**400),
        (ColumnType.TEXT, "\ud800"),
        (ColumnType.TEXT, 5),
        (ColumnType.BOOL, 1),
    ],
)
def test_what_does_not_fit_its_column_does_not_leave(kind: ColumnType, value: object) -> None:
    schema = schema_of(ColumnType.TEXT, kind)
    for encode in (encode_values, frame_of_values):
        with pytest.raises(LocalProtocolError, match=f"'1 {kind.value}' of type {kind.value} cannot hold"):
            encode(Values(2, (("a", "b"), (None, value))), schema)
    if isinstance(value, int) and kind in (ColumnType.INT, ColumnType.TIME):
        assert not fits(Values(2, (("a", "b"), (None, value))), schema)


def test_known_metadata_is_read_once_and_believed_of_the_same_bytes_only() -> None:
    schema = schema_of(ColumnType.INT, ColumnType.BOOL)
    data = encode_values(Values(2, ((1, 2), (True, False))), schema)
    layout = columns_of(schema)
    assert ipc.check(data, layout, 2) is ipc.check(memoryview(data), layout, 2)
    for other, rows in ((data[:-1], 2), (data + b"\0", 2), (data, 1), (data, 3)):
        with pytest.raises(RemoteProtocolError):
            decode_values(other, schema, rows)
