"""Follows a crash through a query: up to which event time each operator's answers may lack rows, and which answers are left out. Pure
functions.

A lost state takes rows with it. Operators behind it, lost or not, lack answers that the lost operator would have given. Each operator with
`omits_begun` leaves out the answers that may lack rows, so that all answers of the query have all their rows; docs/recovery.md, *State*,
says when that is possible.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from sbon.links.link_names import first_name
from sbon.query.params.joined import JoinParams, WindowJoinParams
from sbon.query.params.kinds import Params, keeps_state
from sbon.query.params.ordered import DeduplicateParams, OverParams, TopParams
from sbon.query.params.rowwise import MapParams, UnnestParams
from sbon.query.params.source import SinkParams
from sbon.query.params.streams import DEALING, MergeParams, MulticastParams, UnionParams
from sbon.query.params.windowed import AssignParams, SessionParams, WindowParams
from sbon.query.plan import OMITTING, Begin, LinkSpec, OperatorSpec
from sbon.supervision.lost_state import IN_TIME, lacks_until
from sbon.types import LinkId, OperatorId
from sbon.watermarks import WATERMARK_END, WATERMARK_MIN
from sbon.wire.deployment import Renewed

PASSING = (MapParams, AssignParams, UnnestParams, UnionParams, MergeParams, MulticastParams, SinkParams, *DEALING)
"""Operators whose answers lack only rows that they have not been given. A merge that goes on holds rows, and gives all of them."""

RESUMES = (WindowParams, WindowJoinParams, TopParams)
"""Operators with state whose answers above a watermark follow from the rows of the windows that are open then."""


class Stretch(NamedTuple):
    """The event times of an operator's answers that lack rows after a crash, in microseconds."""

    until_us: int | None
    """Answers up to this time may lack rows; None if nobody knows."""
    begin: Begin | None
    """The first answers that it gives; None: it leaves none out."""
    out_us: int | None
    """None of the missing answers is later, by any of its times; None if nobody knows."""
    whole_us: int
    """All answers from this time on are there."""
    is_known: bool
    """False: answers may be wrong or come twice, or nobody knows when this ends."""


def stretches(
    specs: Mapping[OperatorId, OperatorSpec],
    links: Sequence[LinkSpec],
    lost: Collection[OperatorId],
    taken: Mapping[OperatorId, int | None],
    answered: Mapping[OperatorId, int | None],
    lacking: Mapping[OperatorId, int],
    consumers: Mapping[LinkId, Renewed],
    unable: Collection[OperatorId] = (),
) -> dict[OperatorId, Stretch]:
    """Returns the stretch of each operator that has lost state, or that is fed by one that has; lost or not.

    Parameters
    ----------
    specs, links : all operators of the query, upstream first, and all its links
    taken : for lost operators, an event time that no row has exceeded that they had taken and do not get again (`newest_taken`)
    answered : for lost operators, an event time that no answer has exceeded that they may have given (`newest_answered`)
    lacking : event times up to which former copies of operators lacked rows
    consumers : the answers of living targets of links, by the link's first name
    unable : running operators that cannot be told what to leave out
    """
    found: dict[OperatorId, Stretch] = {}
    for operator, spec in specs.items():
        params = spec.params
        feeding = [found[link.source] for link in links if link.target == operator and link.source in found]
        until = [lacks_until(params, one.out_us) for one in feeding if one.out_us is not None]
        ends = [one for one in feeding if one.out_us is not None]
        is_known = all(one.is_known for one in feeding) and operator not in unable
        if keeps_state(params) and len(ends) < len(feeding):
            is_known = False
        if operator in lacking:
            until.append(lacking[operator])
        if operator in lost and keeps_state(params):
            newest_us = taken[operator]
            is_known = is_known and newest_us is not None
            if newest_us is not None and newest_us > WATERMARK_MIN:
                until.append(lacks_until(params, newest_us))
            if isinstance(params, JoinParams) or not has_told_all(operator, specs, links, lost, consumers):
                given_us = answered[operator]
                is_known = is_known and given_us is not None
                if given_us is not None and given_us > WATERMARK_MIN:
                    until.append(given_us)
        whole = [one.whole_us for one in feeding]
        if until:
            found[operator] = _stretch(params, max(until), whole, is_lost=operator in lost, is_known=is_known)
        elif feeding or not is_known:
            found[operator] = Stretch(None, None, None, max(whole, default=WATERMARK_END), is_known)
        if len(ends) < len(feeding):
            found[operator] = found[operator]._replace(out_us=None)
        if operator in unable:
            found[operator] = found[operator]._replace(begin=None)
    return found


def _stretch(params: Params, until_us: int, whole: Sequence[int], *, is_lost: bool, is_known: bool) -> Stretch:
    if isinstance(params, JoinParams) and not params.outer and not is_lost:  # its pairs are right, whatever else is missing
        return Stretch(until_us, None, until_us, min(until_us + 1, WATERMARK_END), is_known)
    first = begin(params, until_us)
    if first is None:
        passes = isinstance(params, PASSING) and not (is_lost and isinstance(params, MergeParams))
        return Stretch(until_us, None, until_us if passes else None, max(whole, default=WATERMARK_END), is_known and passes)
    later_us = _later_by(params)
    out_us = None if later_us is None else min(first.us + later_us, WATERMARK_END)
    # Answers of a join may have their time from either side.
    whole_us = out_us if out_us is not None and isinstance(params, JoinParams) else first.us
    if first.rows:  # nobody knows when the frames of all keys are full
        whole_us = WATERMARK_END
    return Stretch(until_us, first, out_us, whole_us, is_known)


def _later_by(params: Params) -> int | None:
    """Returns how much later than the time of `begin` an answer that is left out may be, by any of its times; None if nobody knows."""
    match params:
        case WindowParams(size_us=size_us, slide_us=slide_us) | WindowJoinParams(size_us=size_us, slide_us=slide_us):
            return max(0, size_us - slide_us)
        case JoinParams(before_us=before_us, after_us=after_us):
            return max(0, before_us, after_us)
        case SessionParams() | OverParams():
            return None
        case _:
            return 0


def begin(params: Params, until_us: int | None) -> Begin | None:
    """Returns the first answers that certainly have all rows; None if earlier ones are not to be left out.

    Parameters
    ----------
    until_us : event time up to which rows are missing; None if there are none, or nobody knows

    Examples
    --------
    >>> begin(WindowParams("ts", 10, 10, (), ()), 35), begin(SessionParams("ts", 10, (), ()), 35)
    (Begin(column='window_start', us=40, rows=0), Begin(column='window_start', us=45, rows=0))
    """
    if until_us is None or not isinstance(params, OMITTING) or not params.omits_begun:
        return None
    match params:
        case WindowParams(slide_us=slide_us) | WindowJoinParams(slide_us=slide_us) | DeduplicateParams(session=False, span_us=slide_us):
            column, us = "window_start", (until_us // slide_us + 1) * slide_us
        case SessionParams(gap_us=gap_us):
            column, us = "window_start", until_us + gap_us
        case DeduplicateParams(span_us=gap_us):
            column, us = params.time_column, until_us + gap_us
        case OverParams(preceding=preceding):
            return Begin(params.time_column, min(until_us + 1, WATERMARK_END), max(preceding))
        case TopParams():
            column, us = params.time_column, until_us + 1
        case JoinParams():
            # Rows without a partner have no time of the right side. Pairs are whole by either time, as both are beyond the interval.
            wanted = [(0, params.left_time), *([(1, params.right_time)] if params.outer is None else [])]
            times = [name for name, side, inner in params.columns if (side, inner) in wanted]
            if not times:
                return None
            column, us = times[0], until_us + 1
    return Begin(column, min(us, WATERMARK_END))


def has_told_all(
    operator: OperatorId,
    specs: Mapping[OperatorId, OperatorSpec],
    links: Sequence[LinkSpec],
    lost: Collection[OperatorId],
    consumers: Mapping[LinkId, Renewed],
) -> bool:
    """Tells whether living consumers say which answers of a lost operator have been given: they have whole answers with their watermarks,
    or they are lost with all that they had been given."""
    for link in links:
        if link.source != operator:
            continue
        params = specs[link.target].params
        if link.target not in lost:
            answer = consumers.get(first_name(link.id))
            if answer is None or not answer.is_whole:
                return False
        elif isinstance(params, SinkParams) or (
            not keeps_state(params) and not (isinstance(params, IN_TIME) and has_told_all(link.target, specs, links, lost, consumers))
        ):
            return False
    return True


def may_resume(
    operator: OperatorId,
    specs: Mapping[OperatorId, OperatorSpec],
    links: Sequence[LinkSpec],
    lost: Collection[OperatorId],
    consumers: Mapping[LinkId, Renewed],
) -> bool:
    """Tells whether a lost operator that gets all its rows again, in whatever order, may begin at the watermark that its consumers have
    seen: all of them have had exactly the answers up to one watermark, and no later answer needs the rows of earlier ones.
    """
    if not isinstance(specs[operator].params, RESUMES) or not has_told_all(operator, specs, links, lost, consumers):
        return False
    reached = [operator]
    for one in reached:
        reached += [link.target for link in links if link.source == one and link.target in lost and link.target not in reached]
    told = {consumers[name].watermark_us for link in links if link.source in reached and (name := first_name(link.id)) in consumers}
    return len(told) == 1


def is_exact(operator: OperatorId, links: Sequence[LinkSpec], stretched: Mapping[OperatorId, Stretch]) -> bool:
    """Tells whether an operator's lost state costs the query exactly the answers that are left out: no other answer of any operator behind
    it is wrong or comes twice."""
    return all(stretched[one].is_known for one in behind([operator], links) if one in stretched)


def behind(some: Collection[OperatorId], links: Sequence[LinkSpec]) -> list[OperatorId]:
    """Returns operators and all that they feed, directly or not."""
    reached = list(some)
    for source in reached:
        reached += [link.target for link in links if link.source == source and link.target not in reached]
    return reached
