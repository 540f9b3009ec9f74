"""Parameters of sources and sinks."""

import msgspec

from sbon.query.expression import Expression
from sbon.query.limits import IDLE_US_MAX, LimitError, check_count, check_expressions, check_span
from sbon.schema import Schema
from sbon.watermarks import WATERMARK_END, WATERMARK_MIN


class Reads(msgspec.Struct, frozen=True):
    """The columns and rows of a source that its query needs. A connector may give NULL in other columns, and leave out rows for which a
    condition is not true. The event times of these rows still count: the watermark advances as if the rows had come."""

    columns: tuple[str, ...]
    """The columns needed, sorted. The event time and NOT NULL columns are needed even if they are not listed."""
    conditions: tuple[Expression, ...] = ()
    """Conditions that compare a column with a constant. The query's other conditions are not listed; a later operator checks them all."""

    def __post_init__(self) -> None:
        check_count("columns", len(self.columns))
        check_count("conditions", len(self.conditions))
        check_expressions(self.conditions)


class SourceParams(msgspec.Struct, frozen=True, tag="source"):
    """One physical source. `connector` and `options` are those of its CREATE SOURCE."""

    name: str
    connector: str
    options: tuple[tuple[str, str], ...]
    """Options sorted by key. The connector's documentation lists them."""
    columns: Schema
    time_column: str | None
    """Column of the event time. None: rows have none, and the planner refuses time windows and joins over the source."""
    watermark_delay_us: int = 0
    """Greatest disorder of rows: the watermark stays this far behind the newest event time."""
    idle_after_us: int = 0
    """Silence after which the watermark follows the wall clock; 0: never."""
    not_null: tuple[str, ...] = ()
    """Columns that may not be NULL: rows with NULL there are dropped where the source is read, and counted."""
    is_table: bool = False
    """The source is read as a lookup table: it sends complete versions (`sbon.query.table_versions`) and never ends."""
    reads: Reads | None = None
    """The columns and rows that the query needs; None: all."""

    def __post_init__(self) -> None:
        check_count("columns", len(self.columns))
        if not {column.name for column in self.columns}.issuperset(self.not_null):
            raise LimitError(f"source {self.name} with NOT NULL columns {', '.join(self.not_null)}, expected some of its own")
        check_count("options", len(self.options))
        check_span("watermark delay", self.watermark_delay_us, 0)
        if not 0 <= self.idle_after_us <= IDLE_US_MAX:
            raise LimitError(f"a source is idle after {self.idle_after_us} µs, expected 0 to {IDLE_US_MAX}")


class SinkParams(msgspec.Struct, frozen=True, tag="sink"):
    """The destination of answers. The connector `tail` keeps them for `sbon tail` at the agent that took the query."""

    name: str
    connector: str
    options: tuple[tuple[str, str], ...]
    columns: tuple[tuple[str, str], ...] | None = None
    """Columns that are written, in order, as (name, name in the input); None: all columns unchanged. Names and order of the input's columns
    are canonical, for sharing, not those of the query."""

    def __post_init__(self) -> None:
        check_count("columns", len(self.columns or ()))
        check_count("options", len(self.options))


def newest_us(params: object, watermark_us: int) -> int:
    """Returns an event time that no row exceeds which the source gave before this watermark.

    Examples
    --------
    >>> source = SourceParams("s", "file", (), (), "ts", watermark_delay_us=5)
    >>> newest_us(source, 100), newest_us(source, WATERMARK_MIN) == WATERMARK_MIN, newest_us(source, WATERMARK_END) == WATERMARK_END
    (105, True, True)
    """
    if not isinstance(params, SourceParams) or not WATERMARK_MIN < watermark_us < WATERMARK_END:
        return watermark_us
    return min(watermark_us + params.watermark_delay_us, WATERMARK_END)
