"""Parameters of joins: within a time interval, within windows, with a table."""

import msgspec

from sbon.query.expression import Expression
from sbon.query.limits import SPAN_US_MAX, check_count, check_expressions, check_keys, check_outer, check_span, check_windows
from sbon.schema import ColumnType


class JoinParams(msgspec.Struct, frozen=True, tag="join"):
    """Equi-join of port 0 (left) and port 1 (right) within a time interval.

    A pair matches when all keys are equal (and not NULL) and `left.time - before_us <= right.time <= left.time + after_us`; rows
    with `residual` (over the output columns) not true are left out. Output columns are given as (output name, side, input name).
    """

    left_time: str
    right_time: str
    left_keys: tuple[Expression, ...]
    right_keys: tuple[Expression, ...]
    before_us: int
    after_us: int
    columns: tuple[tuple[str, int, str], ...]
    residual: Expression | None = None
    outer: tuple[ColumnType, ...] | None = None
    """Types of the right side's columns in a left outer join; None: an inner join. A left row without a partner leaves once, with NULLs of
    these types in this order, when the watermark says that no partner can come."""
    apart: bool = False
    """No source feeds both sides, so one side can be held back until the other has caught up."""
    omits_begun: bool = True
    """After a crash, answers that may lack rows of the lost state are left out; False: the operator answers with the rows that come."""

    def __post_init__(self) -> None:
        check_span("join from a time before", self.before_us, -SPAN_US_MAX)
        check_span("join to a time after", self.after_us, -SPAN_US_MAX)
        _check_join(self)


class WindowJoinParams(msgspec.Struct, frozen=True, tag="window_join"):
    """Equi-join of port 0 (left) and port 1 (right) within windows of event time, tumbling (slide = size) or hopping.

    In each window, every left row is paired with every right row whose keys are all equal (and not NULL); rows with `residual` (over the
    output columns) not true are left out. Output columns: `window_start`, `window_end`, then `columns`, given as (output name, side, input
    name). The pairs of a window leave when the watermark reaches its end plus `allowed_lateness_us`, ordered by window, by a hash of the
    keys, and as the left and then the right rows came. The event time of the output is `window_end`. A row all of whose windows have left
    is late: counted, not used.
    """

    left_time: str
    right_time: str
    left_keys: tuple[Expression, ...]
    right_keys: tuple[Expression, ...]
    size_us: int
    slide_us: int
    columns: tuple[tuple[str, int, str], ...]
    residual: Expression | None = None
    outer: tuple[ColumnType, ...] | None = None
    """Types of the right side's columns in a left outer join; None: an inner join. Left rows without a pair in a window leave with it,
    with NULLs of these types in this order."""
    allowed_lateness_us: int = 0
    apart: bool = False
    """No source feeds both sides, so one side can be held back until the other has caught up."""
    omits_begun: bool = True
    """After a crash, windows that the lost state had begun are left out; False: they are answered with the rows that come."""
    slice_column: str | None = None
    """Further output column with the slice of a pair's keys (`sbon.operators.hashes`), for a merge of instances; None: there is none."""

    def __post_init__(self) -> None:
        check_windows(self.size_us, self.slide_us, self.allowed_lateness_us)
        _check_join(self)


class LookupParams(msgspec.Struct, frozen=True, tag="lookup"):
    """Rows of port 0 (left), each with the rows of a table whose keys are equal (and not NULL).

    The table comes by port 1 in versions (`sbon.query.table_versions`); a row is joined with the newest complete one. Pairs with
    `residual` (over the output columns) not true are left out. Output columns are given as (output name, side, input name). Event times
    are those of the left rows, none of which is late.
    """

    left_keys: tuple[Expression, ...]
    right_keys: tuple[Expression, ...]
    columns: tuple[tuple[str, int, str], ...]
    residual: Expression | None = None
    outer: tuple[ColumnType, ...] | None = None
    """Types of the table's columns in a left outer join; None: an inner join. Left rows without a pair leave with NULLs of these types in
    this order."""

    def __post_init__(self) -> None:
        _check_join(self)


def _check_join(params: JoinParams | WindowJoinParams | LookupParams) -> None:
    check_count("columns", len(params.columns))
    check_keys(params.left_keys, params.right_keys)
    check_outer(params.columns, params.outer)
    check_expressions((*params.left_keys, *params.right_keys, params.residual))
