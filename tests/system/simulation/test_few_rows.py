"""Few rows pass from a source through links to a sink as plain values, with the same result as in a frame."""

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbon.compression import Codec
from sbon.connectors.interface import Polled
from sbon.execution.rows import Rows
from sbon.operators.frames import frame_of_values
from sbon.operators.values import FEW_ROWS, Values
from sbon.schema import ColumnType, Field
from sbon.watermarks import WATERMARK_END
from sbon_agent.connectors import registry
from tests.worlds import settled_world

SCHEMA = (Field("ts", ColumnType.TIME), Field("n", ColumnType.INT), Field("s", ColumnType.TEXT), Field("b", ColumnType.BOOL))
ROW = st.tuples(
    st.none() | st.integers(0, 10**15), st.none() | st.integers(-(2**63), 2**63 - 1), st.none() | st.text(max_size=9), st.booleans()
)
ROWS = 40
SQL = """
CREATE SOURCE s (n BIGINT, word VARCHAR, ts TIMESTAMP, WATERMARK FOR ts AS ts) WITH (connector = 'datagen', nodes = 'london');
CREATE SINK kept FROM ({query}) WITH (connector = 'discard', node = 'new-york');
"""


class Giver:
    """A source of the rows 0, 1, 2 ... in batches of 1, 2 and `FEW_ROWS`, as frames or as values."""

    dropped_rows = 0
    as_values = True

    def __init__(self, params, context):
        self._schema, self._sizes, self._next = params.columns, [1, 2, 1, FEW_ROWS, 4], 0

    def start(self, ready):
        pass

    def poll(self, now, wall):
        first, count = self._next, self._sizes.pop(0)
        self._next = first + count
        numbers = range(first, self._next)
        values = Values(count, ([*numbers], [f"w{n}" if n % 3 else None for n in numbers], [n * 1_000_000 for n in numbers]))
        over = not self._sizes
        watermark_us = WATERMARK_END if over else self._next * 1_000_000
        frame = None if self.as_values else frame_of_values(values, self._schema)
        return Polled(frame, watermark_us, now + 0.02, over, values if self.as_values else None)

    def stop(self):
        pass


class Keeper:
    """A sink that keeps rows from frames."""

    brief = True
    dropped_rows = 0
    kept: list

    def __init__(self, params, schema, context):
        self._schema = schema

    def write(self, frame):
        self.kept.append(frame)

    def close(self):
        pass


class ValuesKeeper(Keeper):
    """A sink that also accepts plain values."""

    in_values: list

    def write_values(self, values):
        assert values.rows <= FEW_ROWS
        self.kept.append(frame_of_values(values, self._schema))
        self.in_values.append(values.rows)


@pytest.mark.parametrize(
    ("query", "as_values"),
    [
        ("SELECT n, word, ts FROM s", True),
        ("SELECT word AS w, ts, n AS number FROM s", False),
        ("SELECT n * 2 AS n, word FROM s WHERE n >= 0", True),
    ],
)
def test_rows_arrive_the_same_in_either_form(query, as_values, monkeypatch):
    answers = []
    for given_as_values, keeper in ((False, Keeper), (True, Keeper), (True, ValuesKeeper), (False, ValuesKeeper)):
        keeper.kept, ValuesKeeper.in_values = [], []
        monkeypatch.setattr(Giver, "as_values", given_as_values)
        monkeypatch.setitem(registry._SOURCES, "datagen", f"{__name__}:Giver")
        monkeypatch.setitem(registry._SINKS, "discard", f"{__name__}:{keeper.__name__}")
        world = settled_world(2, seed=1)
        world.submit(SQL.format(query=query))
        world.run_until(lambda keeper=keeper: sum(frame.height for frame in keeper.kept) >= ROWS, 60)
        world.close()
        answers.append(pl.concat(keeper.kept))
        if keeper is ValuesKeeper:
            assert sum(ValuesKeeper.in_values) > 0 or not as_values
    assert answers[0].height == ROWS
    for answer in answers[1:]:
        assert answer.equals(answers[0])
        assert answer.schema == answers[0].schema


@given(st.lists(ROW, min_size=1, max_size=FEW_ROWS))
def test_values_and_frames_are_the_same_rows(rows):
    values = Values(len(rows), tuple(zip(*rows, strict=True)))
    frame = frame_of_values(values, SCHEMA)
    from_values, from_frame = Rows.of_values(values, SCHEMA), Rows.of_frame(frame, SCHEMA)
    assert from_values.size_bytes == from_frame.size_bytes
    assert len(from_values.data()) == len(from_frame.data())
    for sent in (from_values, from_frame):
        arrived = Rows.of_bytes(sent.data(), len(rows), SCHEMA, sent.size_bytes)
        told = arrived.values()
        assert told is not None
        assert [list(column) for column in told.columns] == [list(column) for column in values.columns]
        assert arrived.frame().equals(frame)


def test_long_texts_are_packed_however_few():
    values = Values(2, (("a" * 50_000, "b" * 50_000),))
    rows = Rows.of_values(values, (Field("s", ColumnType.TEXT),))
    rows.pack(Codec.LZ4, lambda: 0.0)
    assert rows.is_packed(Codec.LZ4)
    assert len(rows.packed(Codec.LZ4).data) < 10_000
    arrived = Rows.of_bytes(rows.packed(Codec.LZ4).data, 2, (Field("s", ColumnType.TEXT),), rows.size_bytes, Codec.LZ4)
    assert arrived.values() is None
    assert arrived.frame().to_series().to_list() == list(values.columns[0])
