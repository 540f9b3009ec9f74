"""Parameters of operators that order the rows of a partition: first rows, aggregates of preceding rows, the first row of each key."""

import msgspec

from sbon.query.limits import LIMIT_MAX, PRECEDING_MAX, LimitError, check_count, check_expressions, check_span
from sbon.query.params.aggregate import Aggregate


class OrderColumn(msgspec.Struct, frozen=True, array_like=True):
    """A column to order by."""

    name: str
    descending: bool
    nulls_first: bool


class TopParams(msgspec.Struct, frozen=True, tag="top"):
    """The first `limit` rows of each event time, or of each partition of it, by `order`, then by the columns `ties`, ascending, NULLs last.

    Rows leave unchanged, in this order, when the watermark has passed their event time.
    """

    time_column: str
    order: tuple[OrderColumn, ...]
    ties: tuple[str, ...]
    limit: int
    partition: tuple[str, ...] = ()
    """Columns that partition the rows of an event time; NULL is a value like any other."""
    number: str | None = None
    """Output column that numbers the rows of each partition from 1; None: there is none."""
    omits_begun: bool = True
    """After a crash, event times that the lost state had begun are left out; False: their first rows are taken from those that come."""

    def __post_init__(self) -> None:
        check_count("rows of each event time", self.limit, 1, LIMIT_MAX)
        check_count("columns", len(self.order) + len(self.ties) + len(self.partition))


OVER_FUNCTIONS = ("count", "sum", "min", "max", "avg")


class OverParams(msgspec.Struct, frozen=True, tag="over"):
    """Parameters of aggregates OVER preceding rows: each row, with aggregates of it and the rows before it in its partition.

    Rows are ordered by event time, then by the columns `ties`, ascending. Output columns: those of the input, then the aggregates. Rows
    leave in this order when the watermark has passed their event time, which is that of the output, too. A row that comes behind the
    watermark is late: counted, not used. The last rows of every partition are kept.
    """

    time_column: str
    partition: tuple[str, ...]
    """Partition columns; NULL is a value like any other."""
    ties: tuple[str, ...]
    aggregates: tuple[Aggregate, ...]
    preceding: tuple[int, ...]
    """For each aggregate, the number of rows before the current row in its frame."""
    omits_begun: bool = True
    """After a crash, rows whose frames may lack rows are left out; False: the operator answers with the rows that come."""

    def __post_init__(self) -> None:
        check_count("columns", len(self.partition) + len(self.ties))
        check_count("aggregates", len(self.aggregates), 1)
        check_count("frames of aggregates", len(self.preceding), len(self.aggregates), len(self.aggregates))
        for rows in self.preceding:
            check_count("rows before a row", rows, 0, PRECEDING_MAX)
        for aggregate in self.aggregates:
            if aggregate.function not in OVER_FUNCTIONS:
                raise LimitError(f"{aggregate.function} over rows, expected one of {', '.join(OVER_FUNCTIONS)}")
        check_expressions(aggregate.operand for aggregate in self.aggregates)


class DeduplicateParams(msgspec.Struct, frozen=True, tag="deduplicate"):
    """The first row of each key in a tumbling window, or, with `session`, after a time without any row of that key.

    The first row is the one with the least event time; rows of one instant are ordered by `order`, then by the columns `ties`, ascending,
    NULLs last. It leaves as soon as the watermark has passed it by `allowed_lateness_us`. Output columns: `window_start`, `window_end` (not
    of sessions, whose end is not known by then), then those of the input, except columns of these names. The output has two event times,
    that of the input and `window_end`. A row that comes behind the watermark is late: counted, not used.
    """

    time_column: str
    keys: tuple[str, ...]
    """Columns of the key; NULL is a value like any other."""
    order: tuple[OrderColumn, ...]
    ties: tuple[str, ...]
    span_us: int
    """Length of the windows; with `session`, the least time between two rows of a key after which the later one is a first row again."""
    session: bool = False
    allowed_lateness_us: int = 0
    omits_begun: bool = True
    """After a crash, windows and sessions that the lost state may have begun are left out; False: the first rows that come are given."""

    def __post_init__(self) -> None:
        check_span("first rows within a time", self.span_us)
        check_span("allowed lateness", self.allowed_lateness_us, 0)
        check_count("keys of first rows", len(self.keys), 1)
        check_count("columns", len(self.order) + len(self.ties))
