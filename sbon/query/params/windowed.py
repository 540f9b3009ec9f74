"""Parameters of windows of event time and of sessions."""

from collections.abc import Sequence

import msgspec

from sbon.query.expression import Expression
from sbon.query.limits import check_count, check_expressions, check_span, check_windows
from sbon.query.params.aggregate import Aggregate


class WindowParams(msgspec.Struct, frozen=True, tag="window"):
    """Tumbling (slide = size) or hopping window, aggregated by key.

    Windows start at multiples of the slide since 1970. Output columns: `window_start`, `window_end`, the keys, the aggregates;
    rows of a window leave when the watermark reaches its end plus `allowed_lateness_us`, ordered by window and key. The event time
    of the output is `window_end`. A row all of whose windows have left is late: counted, not used.
    """

    time_column: str
    size_us: int
    slide_us: int
    keys: tuple[tuple[str, Expression], ...]
    aggregates: tuple[Aggregate, ...]
    allowed_lateness_us: int = 0
    omits_begun: bool = True
    """After a crash, windows that the lost state had begun are left out; False: they are answered with the rows that come."""

    def __post_init__(self) -> None:
        check_windows(self.size_us, self.slide_us, self.allowed_lateness_us, gaps=True)
        _check_groups(self.keys, self.aggregates)


class SessionParams(msgspec.Struct, frozen=True, tag="session"):
    """Sessions, aggregated by key: rows of a key less than `gap_us` apart in event time are in one.

    A session begins at its first row and ends `gap_us` behind its last. Output columns and event time are those of `WindowParams`;
    rows leave when the watermark reaches the end plus `allowed_lateness_us`, or up to a sixteenth of the gap later (but 5 ms if that
    is more, and at most a gap), ordered by end, start and key.
    """

    time_column: str
    gap_us: int
    keys: tuple[tuple[str, Expression], ...]
    aggregates: tuple[Aggregate, ...]
    allowed_lateness_us: int = 0
    omits_begun: bool = True
    """After a crash, sessions that the lost state may have begun are left out; False: they are answered with the rows that come."""

    def __post_init__(self) -> None:
        check_span("sessions with a gap", self.gap_us)
        check_span("allowed lateness", self.allowed_lateness_us, 0)
        _check_groups(self.keys, self.aggregates)


class AssignParams(msgspec.Struct, frozen=True, tag="assign"):
    """Rows with the tumbling (slide = size) or hopping windows that they lie in: one output row for each window.

    Output columns: `window_start`, `window_end`, then those of the input, except columns of these names. The event time of the output is
    `window_end`. A row without an event time is given once, with NULL bounds. No row is late, as its windows may be open.
    """

    time_column: str
    size_us: int
    slide_us: int
    allowed_lateness_us: int = 0
    """Additional time before windows count as closed, after the watermark has passed their end."""

    def __post_init__(self) -> None:
        check_windows(self.size_us, self.slide_us, self.allowed_lateness_us)


def _check_groups(keys: Sequence[tuple[str, Expression]], aggregates: Sequence[Aggregate]) -> None:
    check_count("keys and aggregates", len(keys) + len(aggregates))
    check_expressions((*(key for _, key in keys), *(part for aggregate in aggregates for part in (aggregate.operand, aggregate.by))))
