"""Limits how much longer a running query's paths may become when an operator moves or a relay is inserted.

A query with a delay bound has a slack: the bound minus the present delay of its longest path from a producer to its consumer. The agent
that took the query tells it to the hosts of its operators (`User`). A change that would lengthen the longest path through an operator by
more than the least slack of its queries is not made. A change that shortens it is always allowed, even if the bound is exceeded already.
"""

import math
from collections.abc import Iterable, Sequence

import msgspec

UNBOUNDED_MS = math.inf
"""Slack of queries without a bound."""


class Way(msgspec.Struct, frozen=True):
    """One link of an operator, before and after a change."""

    upstream: bool
    here_ms: float
    """Present one-way latency."""
    there_ms: float
    """One-way latency after the change; with a relay in between, the sum of its two links."""
    delay_ms: float | None = None
    """For an upstream link, the delay of the longest path from a producer to the link's start; None if it is not known."""


def least_slack_ms(slacks_ms: Iterable[float | None]) -> float:
    """Returns the least slack of the users of an operator; UNBOUNDED_MS if none has a bound (None).

    Examples
    --------
    >>> least_slack_ms([None, 40.0, 12.5]), least_slack_ms([None])
    (12.5, inf)
    """
    return min((slack for slack in slacks_ms if slack is not None), default=UNBOUNDED_MS)


def lengthening_ms(ways: Sequence[Way]) -> float:
    """Returns an upper bound of the growth of the longest path through an operator; below 0 if all paths become shorter.

    The paths downstream are not known, so the output link that grows most counts. Upstream the delays are known, and a short path may grow
    up to the longest without effect.

    Examples
    --------
    >>> lengthening_ms([Way(True, 10.0, 15.0, 30.0), Way(True, 2.0, 22.0, 0.0), Way(False, 8.0, 1.0)])
    -2.0
    """
    return _upstream_ms([way for way in ways if way.upstream]) + max(
        (way.there_ms - way.here_ms for way in ways if not way.upstream), default=0
    )


def may_lengthen(ways: Sequence[Way], slack_ms: float) -> bool:
    """Tells whether a change keeps within the users' slack; `slack_ms` is their least one, and may be below 0 already."""
    return lengthening_ms(ways) <= max(slack_ms, 0.0)


def _upstream_ms(ways: Sequence[Way]) -> float:
    if any(way.delay_ms is None for way in ways):
        return max(way.there_ms - way.here_ms for way in ways)
    delays = [(way.delay_ms or 0.0, way) for way in ways]
    return max((d + way.there_ms for d, way in delays), default=0.0) - max((d + way.here_ms for d, way in delays), default=0.0)
