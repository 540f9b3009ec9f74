"""Limits of operators' parameters, checked wherever they are made: by the planner, or when a peer's message is decoded.

A host that runs an operator relies on these limits: beyond them a row would be in 2^59 windows, or sums of times would leave 64 bits.
"""

import math
from collections.abc import Iterable, Sequence
from typing import TypeAlias

from sbon.errors import QueryError
from sbon.query.expression import Expression
from sbon.query.rewrite import measure

SPAN_US_MAX = 2**60
"""Longest window, pause, lateness and interval of a join: 36,000 years; keeps sums of times within 64 bits."""
PANES_MAX = 10_000
"""Most windows that one row may lie in (size / slide)."""
LIMIT_MAX = 10_000
"""Most rows kept of each event time or partition: LIMIT, or a condition on ROW_NUMBER()."""
PRECEDING_MAX = 1_000
"""Most preceding rows in a frame: OVER (... ROWS BETWEEN n PRECEDING AND CURRENT ROW)."""
SEPARATOR_MAX = 100
"""Most characters of the separator of STRING_AGG."""
INSTANCES_MAX = 64
"""Most instances of one operator; there are as many slices of keys (`sbon.operators.hashes`)."""
IDLE_US_MAX = 30 * 86_400_000_000
"""Longest silence after which a source's watermark follows the clock."""
COLUMNS_MAX = 10_000
"""Most columns, keys, aggregates or options of one operator."""
EXPRESSION_DEPTH_MAX = 200
"""Most levels of an expression; people write fewer than 20."""
EXPRESSION_NODES_MAX = 10_000
"""Most parts of one expression; the planner stays below a fifth."""
NODES_TOTAL_MAX = 100_000
"""Most parts of all expressions of one operator."""

MaybeExpression: TypeAlias = Expression | None


class LimitError(QueryError, ValueError):
    """An operator's parameter is beyond what any host accepts. As a ValueError, it makes decoding refuse the message."""


def check_span(what: str, span_us: int, least_us: int = 1) -> None:
    """Refuses a length of time that a host cannot compute with."""
    if not least_us <= span_us <= SPAN_US_MAX:
        raise LimitError(f"{what} of {span_us} µs, expected {least_us} to {SPAN_US_MAX}")


def check_windows(size_us: int, slide_us: int, lateness_us: int, *, gaps: bool = False) -> None:
    """Refuses windows that no host could keep. With `gaps`, there may be time between windows."""
    if not (0 < slide_us <= SPAN_US_MAX and 0 < size_us <= SPAN_US_MAX and (gaps or slide_us <= size_us)):
        raise LimitError(f"windows of {size_us} µs every {slide_us} µs, expected 1 to {SPAN_US_MAX}, the slide at most the size")
    if size_us > PANES_MAX * slide_us:
        raise LimitError(f"windows of {size_us} µs every {slide_us} µs: a row in {size_us // slide_us}, expected at most {PANES_MAX}")
    check_span("allowed lateness", lateness_us, 0)


def check_count(what: str, count: int, least: int = 0, most: int = COLUMNS_MAX) -> None:
    """Refuses too few or too many of something."""
    if not least <= count <= most:
        raise LimitError(f"{count} {what}, expected {least} to {most}")


def check_expressions(expressions: Iterable[MaybeExpression]) -> None:
    """Refuses expressions that a host would take too long to compile or that would overflow its stack."""
    total = 0
    for expression in expressions:
        if expression is None:
            continue
        nodes, depth = measure(expression)
        total += nodes
        if nodes > EXPRESSION_NODES_MAX or depth > EXPRESSION_DEPTH_MAX or total > NODES_TOTAL_MAX:
            raise LimitError(
                f"an expression has {nodes} parts in {depth} levels, all of an operator {total}; "
                f"expected at most {EXPRESSION_NODES_MAX} in {EXPRESSION_DEPTH_MAX}, all {NODES_TOTAL_MAX}"
            )


def check_keys(left: Sequence[Expression], right: Sequence[Expression]) -> None:
    """Refuses a join whose sides have different numbers of keys."""
    if len(left) != len(right) or not left:
        raise LimitError(f"join on {len(left)} and {len(right)} keys, expected as many, at least one")


def check_outer(columns: Sequence[tuple[str, int, str]], outer: Sequence[object] | None) -> None:
    """Refuses a join with unknown sides, or an outer join with too few or too many NULL types."""
    if any(side not in (0, 1) for _, side, _ in columns):
        raise LimitError("a join takes a column of a third side, expected 0 or 1")
    wanted = sum(side == 1 for _, side, _ in columns)
    if outer is not None and len(outer) != wanted:
        raise LimitError(f"left join with types of {len(outer)} right columns, expected {wanted}")


def check_share(what: str, share: float, most: float = math.inf) -> None:
    """Refuses a number that is NaN or out of range."""
    if not (math.isfinite(share) and 0.0 <= share <= most):
        raise LimitError(f"{what} of {share}, expected 0 to {most}")
