"""Computes how far lost operators with state had come in event time, and how many of their windows lack rows. Pure functions."""

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

import msgspec

from sbon.links.link_names import first_name
from sbon.query.params.joined import JoinParams, WindowJoinParams
from sbon.query.params.kinds import Params, keeps_state
from sbon.query.params.ordered import DeduplicateParams, OverParams, TopParams
from sbon.query.params.rowwise import MapParams, UnnestParams
from sbon.query.params.source import SourceParams
from sbon.query.params.streams import DEALING, MergeParams, UnionParams
from sbon.query.params.windowed import AssignParams, SessionParams, WindowParams
from sbon.query.plan import LinkSpec, OperatorSpec
from sbon.types import LinkId, OperatorId
from sbon.watermarks import WATERMARK_END, WATERMARK_MIN
from sbon.wire.deployment import Renewed

_IN_WINDOWS = (WindowParams, SessionParams, TopParams, DeduplicateParams, WindowJoinParams)
IN_TIME = (MapParams, UnnestParams, UnionParams, MergeParams, *DEALING)
"""Operators whose output watermark is at most that of their input."""
IN_ORDER = (WindowParams, SessionParams, TopParams, OverParams, DeduplicateParams, WindowJoinParams, MergeParams)
"""Operators that give a row only when the watermark has passed it."""


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


class Ahead(NamedTuple):
    """Greatest distance of an operator's rows ahead of the watermark with which it gives them."""

    us: int
    """In microseconds."""
    is_known: bool
    """False: rows of some inputs may be further ahead, because the watermark waits for another input."""


def ahead_of(specs: Mapping[OperatorId, OperatorSpec], links: Sequence[LinkSpec]) -> dict[OperatorId, Ahead]:
    """Returns how far the rows of each operator may be ahead of their watermark.

    Parameters
    ----------
    specs, links : all operators of the query, upstream first, and all its links
    """
    found: dict[OperatorId, Ahead] = {}
    for operator, spec in specs.items():
        params, feeding = spec.params, [found[link.source] for link in links if link.target == operator and link.source in found]
        us = params.watermark_delay_us if isinstance(params, SourceParams) else max([ahead.us for ahead in feeding], default=0)
        # A join gives a pair only if both sides have come as far as its rows, so it is ahead of neither by more than its interval.
        is_bounded = isinstance(params, (JoinParams, *IN_ORDER)) or len(feeding) < 2
        is_known = isinstance(params, IN_ORDER) or (is_bounded and all(ahead.is_known for ahead in feeding))
        found[operator] = Ahead(us + _widens(params), is_known)
    return found


def _widens(params: Params) -> int:
    """Returns how much later than its input an operator's output may be, in event time."""
    match params:
        case AssignParams(size_us=size_us):
            return size_us
        case JoinParams(before_us=before_us, after_us=after_us):
            return max(0, before_us, after_us)
        case _:
            return 0


def newest_taken(
    specs: Mapping[OperatorId, OperatorSpec],
    links: Sequence[LinkSpec],
    lost: Collection[OperatorId],
    feeders: Mapping[LinkId, Renewed],
    again: Collection[OperatorId],
) -> dict[OperatorId, int | None]:
    """Returns an event time, in microseconds, that no row has exceeded of those that each lost operator had taken and does not get again.

    `WATERMARK_MIN` if there was no such row, None if nobody knows.

    Parameters
    ----------
    specs, links : all operators of the query, upstream first, and all its links
    feeders : the answers of the living sources of links, by the link's first name
    again : lost operators that give all their rows once more
    """
    ahead = ahead_of(specs, links)
    given: dict[OperatorId, int | None] = dict.fromkeys(again, WATERMARK_MIN)
    found: dict[OperatorId, int | None] = {}
    for operator, spec in specs.items():
        if operator not in lost:
            continue
        inputs = [link for link in links if link.target == operator]
        known: list[int | None] = []
        for link in inputs:
            answer = feeders.get(first_name(link.id))
            if link.source in lost:
                known.append(given.get(link.source))
            elif answer is not None:  # a source that is away says later how far it is
                inputs_there = len([one for one in links if one.target == link.source])
                known.append(newest_given(answer, ahead.get(link.source, Ahead(0, False)), inputs_there))
        there = [one for one in known if one is not None]
        newest: int | None = None if not inputs or len(there) < len(known) else max(there, default=WATERMARK_MIN)
        found[operator] = newest
        if operator not in given:
            given[operator] = newest if newest is None or newest <= WATERMARK_MIN else min(newest + _widens(spec.params), WATERMARK_END)
    return found


def newest_answered(
    specs: Mapping[OperatorId, OperatorSpec], links: Sequence[LinkSpec], lost: Collection[OperatorId], feeders: Mapping[LinkId, Renewed]
) -> dict[OperatorId, int | None]:
    """Returns an event time, in microseconds, that no answer has exceeded of those that each lost operator may have given, whatever its
    consumers say; None if nobody knows, `WATERMARK_MIN` if there was no answer.

    An answer of an operator with state needs rows of all its inputs: a join pairs them, others wait for the watermark of each. So one known
    input suffices, also one of a union before the operator. A row of the union itself may be of any input.
    """
    ahead = ahead_of(specs, links)
    found: dict[OperatorId, int | None] = {}
    marks: dict[OperatorId, int | None] = {}
    """For each lost operator, an event time that its watermark has not exceeded."""
    for operator, spec in specs.items():
        if operator not in lost:
            continue
        arrived: dict[object, list[int | None]] = {}
        waited: list[int | None] = []
        for link in [link for link in links if link.target == operator]:
            answer = feeders.get(first_name(link.id))
            newest: int | None = None
            if link.source in lost:
                newest = found.get(link.source)
            elif answer is not None:
                inputs_there = len([one for one in links if one.target == link.source])
                newest = newest_given(answer, ahead.get(link.source, Ahead(0, False)), inputs_there, has_arrived=True)
            waited.append(marks.get(link.source) if link.source in lost else newest)
            arrived.setdefault(link.port if isinstance(spec.params, JoinParams) else None, []).append(newest)
        least = min((one for one in waited if one is not None), default=None)
        marks[operator] = _later(least, spec.params)
        if isinstance(spec.params, JoinParams) or not keeps_state(spec.params):
            known = [max(one for one in group if one is not None) for group in arrived.values() if None not in group]
            least = min(known, default=None)
        found[operator] = _later(least, spec.params)
    return found


def _later(us: int | None, params: Params) -> int | None:
    """Returns an event time that no answer exceeds whose rows and watermark do not exceed `us`."""
    return us if us is None or us <= WATERMARK_MIN else min(us + _widens(params), WATERMARK_END)


def newest_given(answer: Renewed, ahead: Ahead, inputs: int, *, has_arrived: bool = False) -> int | None:
    """Returns an event time that no row has exceeded of those that a lost operator had acknowledged on a link; as `newest_taken`.

    Parameters
    ----------
    answer : of the link's source
    ahead : how far rows of that source may be ahead
    inputs : number of links to that source
    has_arrived : returns that of all rows that may have come, acknowledged or not
    """
    watermark_us = answer.sent_us if has_arrived else answer.watermark_us if answer.after else WATERMARK_MIN
    if isinstance(watermark_us, msgspec.UnsetType):
        return None
    if watermark_us <= WATERMARK_MIN:
        return WATERMARK_MIN
    if not ahead.is_known and inputs < 2:  # the source of the link says how far its own inputs are, but not how far those behind are
        return None
    return min(watermark_us + ahead.us, WATERMARK_END)


def lacks_until(params: Params, newest_us: int) -> int:
    """Returns the event time up to which the answers of an operator lack rows, if its lost state had taken rows up to `newest_us`.

    Examples
    --------
    >>> lacks_until(WindowParams("ts", 10, 10, (), ()), 35), lacks_until(AssignParams("ts", 10, 10), 35)
    (35, 45)
    """
    if isinstance(params, OverParams) and not params.omits_begun:  # the rows before a row may be as old as one likes
        return WATERMARK_END
    return min(newest_us + _widens(params), WATERMARK_END)


def windows_left_out(params: Params, seen_us: int, until_us: int | None, counted_us: int | None = None) -> int | None:
    """Returns how many windows have not been answered and begin at `until_us` or earlier; None if that is not known.

    Parameters
    ----------
    seen_us : the watermark that its consumers have seen: windows that end earlier have been answered
    until_us : event time up to which the lost state had taken rows; None if it had taken none
    counted_us : windows that begin at this time or earlier have been counted already; None if no window has

    Examples
    --------
    >>> params = WindowParams("ts", 10, 10, (), ())
    >>> windows_left_out(params, 20, 35), windows_left_out(params, 20, None), windows_left_out(params, WATERMARK_MIN, 35)
    (3, 0, None)
    >>> windows_left_out(params, 20, 35, 25), windows_left_out(params, 20, 35, 35)
    (1, 0)
    """
    if until_us is None or seen_us >= WATERMARK_END or not isinstance(params, _IN_WINDOWS) or until_us == counted_us:
        return 0
    if not isinstance(params, WindowParams | WindowJoinParams) or seen_us <= WATERMARK_MIN or until_us >= WATERMARK_END:
        return None
    first = -((params.size_us - seen_us) // params.slide_us)  # the first window that ends at `seen_us` or later
    if counted_us is not None:
        first = max(first, counted_us // params.slide_us + 1)
    return max(0, until_us // params.slide_us - first + 1)
