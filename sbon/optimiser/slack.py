"""How much longer a running query's ways may become: the check before an operator moves, or a relay is put between it and its consumers.

A query with a delay bound has a slack: the bound minus the delay of its longest way from a producer to its consumer, as it is now. The
agent that took the query tells it to the hosts of its operators (`User`). A change that would lengthen the longest way through
an operator by more than the least slack of those who use it is not made. One that shortens it always may be, also beyond the bound.
"""

import math
from collections.abc import Iterable, Sequence

import msgspec

UNBOUNDED_MS = math.inf
"""The slack of those who asked for no bound."""


class Way(msgspec.Struct, frozen=True):
    """One link of an operator as it is, and as it would be."""

    upstream: bool
    here_ms: float
    """One way, now."""
    there_ms: float
    """After the change; of a relay put between, both its links together."""
    delay_ms: float | None = None
    """Of an upstream link: the longest way from a producer to where it begins; None where that is not known."""


def least_slack_ms(slacks_ms: Iterable[float | None]) -> float:
    """The least slack of the users of an operator; UNBOUNDED_MS where none has a bound (None).

    Examples
    --------
    >>> least_slack_ms([None, 40.0, 12.5]), least_slack_ms([None])
    (12.5, inf)
    """
    return min((slack for slack in slacks_ms if slack is not None), default=UNBOUNDED_MS)


def lengthening_ms(ways: Sequence[Way]) -> float:
    """By how much the longest way through an operator grows at most; below 0 where all become shorter.

    What the ways are downstream of here is not known, so that half of the sum is the worst of all output links. Upstream, where the
    delays are known, a short way may grow up to the longest without harm.

    Examples
    --------
    >>> lengthening_ms([Way(True, 10.0, 15.0, 30.0), Way(True, 2.0, 22.0, 0.0), Way(False, 8.0, 1.0)])
    -2.0
    """
    return _upstream_ms([way for way in ways if way.upstream]) + max(
        (way.there_ms - way.here_ms for way in ways if not way.upstream), default=0
    )


def may_lengthen(ways: Sequence[Way], slack_ms: float) -> bool:
    """Whether the users of an operator bear the change; `slack_ms` is the least of theirs, and may be below 0 already."""
    return lengthening_ms(ways) <= max(slack_ms, 0.0)


def _upstream_ms(ways: Sequence[Way]) -> float:
    if any(way.delay_ms is None for way in ways):
        return max(way.there_ms - way.here_ms for way in ways)
    delays = [(way.delay_ms or 0.0, way) for way in ways]
    return max((d + way.there_ms for d, way in delays), default=0.0) - max((d + way.here_ms for d, way in delays), default=0.0)
