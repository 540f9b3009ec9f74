"""A state that is sent in pieces, with the input that came since, is the same state on the other host."""

import polars as pl
import pytest

from sbon.errors import RemoteProtocolError
from sbon.extensions import Extensions
from sbon.migration.snapshot import Begin, Writer
from sbon.migration.state_copy import Assembly, InputLog, input_piece, state_pieces
from sbon.operators.operator import Operator
from sbon.operators.registry import build
from sbon.query.expression import Column
from sbon.query.params.aggregate import Aggregate
from sbon.query.params.windowed import WindowParams
from sbon.query.plan import OperatorSpec
from sbon.schema import ColumnType, Field

SCHEMA = (Field("window_end", ColumnType.TIME), Field("k", ColumnType.INT), Field("n", ColumnType.INT))
PARAMS = WindowParams("ts", 1_000_000, 1_000_000, (("k", Column("k")),), (Aggregate("n", "count", None),))


def rows(keys: range, second: int) -> pl.DataFrame:
    times = pl.Series("ts", [second * 1_000_000 + key for key in keys], dtype=pl.Int64).cast(pl.Datetime("us"))
    return pl.DataFrame([times, pl.Series("k", list(keys), dtype=pl.Int64)])


def answers(operator: Operator, watermark_us: int) -> list[tuple[object, ...]]:
    return [row for frames in operator.advance_in_steps(watermark_us) for frame in frames for row in frame.rows()]


@pytest.fixture
def running() -> Operator:
    operator = build(PARAMS, Extensions())
    for second in (1, 3):
        operator.process(0, rows(range(100), second))
    return operator


def assembly() -> Assembly:
    return Assembly(OperatorSpec("q.1", PARAMS, SCHEMA, "window_end", None, "s"), Extensions)


@pytest.mark.parametrize("piece_bytes", [1, 512])
def test_all_pieces_and_the_input_that_came_meanwhile_make_the_same_operator(running: Operator, piece_bytes: int):
    writer, log, there = Writer(), InputLog(), assembly()
    pieces = list(state_pieces(running.fork(), writer, lambda: piece_bytes))
    assert len(pieces) > 5
    for second in (1, 2):
        running.process(0, rows(range(40, 140), second))
        log.process(0, rows(range(40, 140), second))
    given = answers(running, 2_000_000)
    log.advance(2_000_000)
    for piece in (*pieces, input_piece(log.take(10**9), writer)):
        there.take(piece)
    moved, _ = there.finished()

    assert len(given) == 140
    after = sorted(map(str, answers(running, 4_000_000)))
    assert len(after) == 100 + 100
    assert sorted(map(str, answers(moved, 4_000_000))) == after


def test_state_behind_its_input_is_refused(running: Operator):
    writer, log, there = Writer(), InputLog(), assembly()
    for piece in state_pieces(running, writer, lambda: 10**6):
        there.take(piece)
    log.advance(1)
    there.take(input_piece(log.take(10**9), writer))
    with pytest.raises(RemoteProtocolError, match="Begin behind its input"):
        there.take(writer.piece(Begin(b"")))
