"""STRING_AGG keeps only texts that its answer can show; its state counts as memory."""

from collections.abc import Sequence

import polars as pl
import pytest

from sbon.errors import RemoteProtocolError
from sbon.operators.joined_texts import LENGTH_MAX
from sbon.operators.sizes import held_bytes
from sbon.operators.snapshots import pack, unpack
from sbon.operators.window import Window
from sbon.query.expression import Column
from sbon.query.params.aggregate import Aggregate
from sbon.query.params.windowed import WindowParams
from sbon.watermarks import WATERMARK_END

TEXTS = Aggregate("texts", "string_agg", Column("s"), separator=", ")
MEDIAN = Aggregate("median", "percentile_cont", Column("i"))


def window(*aggregates: Aggregate) -> Window:
    return Window(WindowParams("t", 1_000_000, 1_000_000, (), aggregates))


def frame(texts: Sequence[str], first: int = 0) -> pl.DataFrame:
    times = range(first, first + len(texts))
    made = pl.DataFrame({"t": times, "s": texts, "i": times}, schema={"t": pl.Int64, "s": pl.String, "i": pl.Int64})
    return made.with_columns(pl.col("t").cast(pl.Datetime("us")))


def answer(operator: Window) -> str:
    (found,) = operator.advance(WATERMARK_END)
    return str(found["texts"][0])


@pytest.mark.parametrize("lengths", [[LENGTH_MAX], [LENGTH_MAX - 3, 1], [1, LENGTH_MAX - 3]])
def test_texts_that_just_fit_are_all_there(lengths: list[int]):
    texts = ["é" * length for length in lengths]
    operator = window(TEXTS)
    operator.process(0, frame(texts))
    assert answer(operator) == ", ".join(texts)


@pytest.mark.parametrize("lengths", [[LENGTH_MAX + 1], [LENGTH_MAX - 2, 1], [1, LENGTH_MAX - 2, 1], [LENGTH_MAX - 1, 1], [LENGTH_MAX, 1]])
def test_an_answer_that_is_too_long_ends_with_dots_behind_the_last_text_that_fits(lengths: list[int]):
    texts = ["é" * length for length in lengths]
    fitting = [text for place, text in enumerate(texts) if len(", ".join(texts[: place + 1])) <= LENGTH_MAX]
    operator = window(TEXTS)
    operator.process(0, frame(texts))
    assert answer(operator) == ", ".join([*fitting, "..."])


def test_what_no_answer_can_show_is_not_kept():
    operator, other = window(TEXTS), window(TEXTS)
    batches = [frame(["x" * 1000] * 200, first * 200) for first in range(10)]
    for one, two in zip(batches, reversed(batches), strict=True):
        operator.process(0, one)
        other.process(0, two)
        assert pack(operator.parts()) != b""
        other.restore(other.snapshot())
    assert operator.state_rows < 200
    assert answer(operator) == answer(other) == ", ".join(["x" * 1000] * 65 + ["..."])


def test_the_state_counts_as_memory():
    operator = window(TEXTS, MEDIAN)
    operator.process(0, frame([f"a text of more than twelve bytes, number {number:05}" for number in range(1_000)]))
    operator.snapshot()
    assert held_bytes(operator) > 1_000 * (45 + 2 * 8)


@pytest.mark.parametrize(
    ("aggregate", "table", "column"),
    [(TEXTS, "texts:0", "text"), (TEXTS, "texts:0", "at"), (MEDIAN, "values:x0", "x0"), (MEDIAN, "values:x0", "n")],
)
def test_a_snapshot_with_a_row_of_nothing_is_refused(aggregate: Aggregate, table: str, column: str):
    operator, other = window(aggregate), window(aggregate)
    operator.process(0, frame(["a", "b"]))
    parts = unpack(operator.snapshot())
    rows = parts.frames[table]
    nothing = pl.lit(None, rows.schema[column]).alias(column)
    with pytest.raises(RemoteProtocolError):
        other.restore(pack(parts._replace(frames=parts.frames | {table: rows.with_columns(nothing)})))
