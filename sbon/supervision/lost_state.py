"""Computes the event times at which lost operators with state begin again, and how many of their windows lack rows. Pure functions."""

from collections.abc import Collection, Iterable, Mapping, Sequence

from sbon.links.link_names import first_name
from sbon.query.params.rowwise import MapParams, UnnestParams
from sbon.query.params.source import SourceParams
from sbon.query.params.streams import ExchangeParams, MergeParams, UnionParams
from sbon.query.params.windowed import SessionParams, WindowParams
from sbon.query.plan import LinkSpec, OperatorSpec
from sbon.types import LinkId, OperatorId
from sbon.watermarks import WATERMARK_END, WATERMARK_MIN
from sbon.wire.deployment import Renewed

IN_TIME = (MapParams, UnnestParams, UnionParams, ExchangeParams, MergeParams)
"""Operators whose output watermark is at most that of their input."""


def watermarks_seen(
    specs: Mapping[OperatorId, OperatorSpec], links: Sequence[LinkSpec], lost: Collection[OperatorId], consumers: Mapping[LinkId, Renewed]
) -> dict[OperatorId, int]:
    """Returns a watermark that each lost operator had sent: the highest that living consumers have seen, or that lost ones had sent on.

    Lost consumers outside `IN_TIME` do not count: the end of an open window is ahead of the watermark that they had been given.
    """
    seen: dict[OperatorId, int] = {}
    for operator in reversed(list(specs)):
        if operator in lost:
            outputs = [link for link in links if link.source == operator]
            known = [answer.watermark_us for link in outputs if (answer := consumers.get(first_name(link.id))) is not None]
            on = [link.target for link in outputs if link.target in seen and isinstance(specs[link.target].params, IN_TIME)]
            seen[operator] = max([*known, *(seen[target] for target in on)], default=WATERMARK_MIN)
    return seen


def begin_of(params: object, seen_us: int) -> int:
    """Returns the watermark at which an operator with state begins, if its consumers have seen `seen_us`. Nothing is answered twice.

    A window that ends at `seen_us` has not been answered. A merge has sent all rows below it, by the times that it merges by.

    Examples
    --------
    >>> begin_of(WindowParams("ts", 10, 10, (), (), 5), 30), begin_of(MergeParams("known", (), delay_us=7), 30)
    (34, 37)
    """
    if isinstance(params, MergeParams):
        return seen_us + params.delay_us
    return seen_us - 1 + (params.allowed_lateness_us if isinstance(params, WindowParams) else 0)


def delay_of(specs: Iterable[OperatorSpec]) -> int:
    """Returns how far a row of any source in `specs` may be ahead of the watermark of its batch, in microseconds."""
    return max((spec.params.watermark_delay_us for spec in specs if isinstance(spec.params, SourceParams)), default=0)


def newest_us(feeders: Sequence[Renewed], delay_us: int) -> int | None:
    """Returns an event time, in microseconds, that no row acknowledged by the lost operator has exceeded; None if there was no such row.

    Parameters
    ----------
    delay_us : how far a row may be ahead of the watermark of its batch
    """
    until_us = max((answer.watermark_us for answer in feeders if answer.after), default=None)
    return None if until_us is None else min(until_us + delay_us, WATERMARK_END)


def first_whole_us(params: object, until_us: int | None) -> int | None:
    """Returns the event time from which on windows or sessions certainly have all rows; None if earlier ones are not to be left out.

    Parameters
    ----------
    until_us : event time up to which the lost state had taken rows; None if it had taken none

    Examples
    --------
    >>> first_whole_us(WindowParams("ts", 10, 10, (), ()), 35), first_whole_us(SessionParams("ts", 10, (), ()), 35)
    (35, 45)
    """
    if until_us is None or not isinstance(params, WindowParams | SessionParams) or not params.omits_begun:
        return None
    return until_us + (params.gap_us if isinstance(params, SessionParams) else 0)


def windows_left_out(params: WindowParams, seen_us: int, until_us: int | None, counted_us: int | None = None) -> int | None:
    """Returns how many windows have not been answered and begin before `until_us`; None if that is not known.

    Parameters
    ----------
    seen_us : the watermark that its consumers have seen: windows that end earlier have been answered
    until_us : event time up to which the lost state had taken rows; None if it had taken none
    counted_us : windows that begin earlier have been counted already; None if no window has

    Examples
    --------
    >>> params = WindowParams("ts", 10, 10, (), ())
    >>> windows_left_out(params, 20, 35), windows_left_out(params, 20, None), windows_left_out(params, WATERMARK_MIN, 35)
    (3, 0, None)
    >>> windows_left_out(params, 20, 35, 25), windows_left_out(params, 20, 35, 35)
    (1, 0)
    """
    if until_us is None or seen_us >= WATERMARK_END:
        return 0
    if seen_us <= WATERMARK_MIN or until_us >= WATERMARK_END:
        return 0 if until_us == counted_us else None
    first = -((params.size_us - seen_us) // params.slide_us)  # the first window that ends at `seen_us` or later
    if counted_us is not None:
        first = max(first, -(-counted_us // params.slide_us))
    last = -(-until_us // params.slide_us) - 1
    return max(0, last - first + 1)
