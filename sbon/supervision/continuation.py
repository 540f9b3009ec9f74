"""Computes from where operators that were lost in a crash go on, and what is missing. Pure functions; docs/recovery.md says why.

Their living neighbours have said how far they were. An operator that is made again goes on there:

    from zero   a source that reads its file again, and whatever only such sources feed: everything is worked through once more, and the
                rows that a living consumer has taken are skipped; exactly, unless inputs meet, as their rows may come in another order
    exactly     an operator whose output follows from its one input row by row: an acknowledgement says how many rows it had made by then
    roughly     everything else: it goes on behind what its consumers have taken
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

import msgspec

from sbon.query.plan import (
    WATERMARK_END,
    WATERMARK_MIN,
    AssignParams,
    ExchangeParams,
    LinkSpec,
    MapParams,
    MergeParams,
    MissRule,
    OperatorSpec,
    SessionParams,
    SinkParams,
    SourceParams,
    UnionParams,
    UnnestParams,
    WindowParams,
    first_name,
    keeps_state,
)
from sbon.types import LinkId, NodeId, OperatorId
from sbon.wire.deployment import Renewed, TakenUp, User
from sbon.wire.limits import ORIGINS_MAX

ROW_BY_ROW = (MapParams, AssignParams, UnnestParams, ExchangeParams)
"""Operators whose output follows from their input row by row, in order. Stateless functions do, too, and say so (`Renewed.passes`)."""
IN_TIME = (MapParams, UnnestParams, UnionParams, ExchangeParams, MergeParams)
"""Operators whose output watermark is at most that of their input."""


class Continuation(msgspec.Struct, frozen=True):
    """The point from which one operator goes on."""

    rows_out: int = 0
    """Rows that it counts as made."""
    skip_rows: Mapping[LinkId, int] = {}
    """For links that it feeds, by first name: the first rows that are not given."""
    skips: Mapping[LinkId, tuple[int, ...]] = {}
    """For the links of an operator with several inputs: the same by the input that they were made of (`sbon.links.origins`)."""
    made: Mapping[LinkId, tuple[int, ...]] = {}
    """For its inputs, by first name: the rows that it had made of what is not given to it again; of each part, if it deals them."""
    lost_rows: Mapping[LinkId, int] = {}
    """For the links that it feeds: rows that had been made and have not arrived."""
    is_exact: bool = True
    """False: the rows lost are at least these, and some may come twice."""
    watermark_us: int = WATERMARK_MIN
    """Watermark at which its state begins."""
    watermark_out_us: int = WATERMARK_MIN
    state_until_us: int | None = None
    """Event time up to which the lost state had taken rows, in microseconds; None if no state is missing."""
    repeats_all: bool = False
    """True: a source that gives all its rows once more, from the first one on."""
    windows: int | None = 0
    """Windows of which the lost state had rows, those without rows included; None if that is not known."""
    begin_us: int | None = None
    """Windows and sessions that start earlier are left out; None: those of which rows are missing are answered with the others."""

    def given(self, link: LinkSpec) -> tuple[int, ...] | None:
        """Returns the rows that an operator with several inputs had given on a link, by the input; None if that is not known."""
        return tuple(of_part(self.made[name], link) for name in sorted(self.made)) if self.made else None


def continuations(
    specs: Mapping[OperatorId, OperatorSpec],
    links: Sequence[LinkSpec],
    lost: Collection[OperatorId],
    consumers: Mapping[LinkId, Renewed],
    feeders: Mapping[LinkId, Renewed],
    missing: Mapping[LinkId, int],
    begun_at: Collection[OperatorId] = (),
    lacking: Mapping[OperatorId, int] = {},
    joined: Mapping[LinkId, int] = {},
    absent_files: Collection[OperatorId] = (),
) -> dict[OperatorId, Continuation]:
    """Returns from where each lost operator goes on.

    Parameters
    ----------
    specs : all operators of the query, upstream first
    lost : those that are made again
    consumers, feeders : by the first name of a link, what its living target, or its living source, has answered
    missing : rows of a link that earlier recoveries have counted as lost
    begun_at : sinks that can find out what their former copies have written
    lacking : event times up to which former copies that had begun empty, too, lacked rows
    joined : rows that sources had given before a link of a later plan began, by first names
    absent_files : operators that are away, as `files_away` says
    """
    delay_us = delay_of(specs.values())
    found: dict[OperatorId, Continuation] = {}
    zero = from_zero(specs, links, lost)
    unordered = in_another_order(specs, links, zero)
    seen = watermarks_seen(specs, links, lost, consumers)
    counts = rows_made(specs, links, lost, feeders)
    for operator, spec in specs.items():
        if operator not in lost:
            continue
        known = counts.get(operator)
        taken = {
            # Each part is counted by what its consumer has had; a whole stream by what was ever made of it.
            name: consumers[name].rows + joined.get(name, 0) + (missing.get(name, 0) if link.part is None or known is None else 0)
            for link in links
            if link.source == operator and (name := first_name(link.id)) in consumers
        }
        seen_us = seen[operator]
        outputs = [link for link in links if link.source == operator]
        inputs = [link for link in links if link.target == operator]
        answers = [feeders[name] for link in inputs if (name := first_name(link.id)) in feeders]
        # A consumer that is lost, too, has not had the end of the stream, whatever the others have.
        is_among = any(link.target in lost for link in outputs)
        most_us = WATERMARK_END - 1 if is_among else WATERMARK_END
        # A file gives again what a link has lost on its way, which stays lost, and what a lost consumer has passed on.
        again = frozenset() if is_among or any(missing.values()) else (zero - unordered) | set(absent_files)
        several = several_inputs(spec, inputs, feeders, counts, again)
        if several is not None and not (is_among and operator in zero):
            by_input = by_origin(several, outputs, consumers, missing)
            if by_input is not None:
                at_us = min(seen_us, most_us)
                found[operator] = msgspec.structs.replace(by_input, watermark_us=at_us, watermark_out_us=at_us)
                continue
        if operator in zero:
            found[operator] = Continuation(0, taken, is_exact=operator not in unordered or not any(taken.values()))
            continue
        made = known.rows if known is not None else max((answer.made for answer in answers if answer.made is not None), default=0)
        exact = known is not None
        given = {first_name(link.id): made if known is None else known.given(link) for link in outputs}
        gone = {name: max(0, given[name] - rows) for name, rows in taken.items()}
        skip = {name: max(0, rows - given[name]) for name, rows in taken.items()} if exact else {}
        if several is not None:  # it kept no state, and nobody knows from which input the rows came: as many as were taken are skipped
            all_made = [one for one in several.values() if one is not None]
            given = {first_name(link.id): sum(of_part(one, link) for one in all_made) for link in outputs}
            made, gone = sum(map(sum, all_made)), dict.fromkeys(taken, 0)
            skip = {name: max(0, rows - given[name]) for name, rows in taken.items()} if len(all_made) == len(several) else {}
        dealt = any(link.part is not None for link in outputs)
        if dealt and not exact and several is None:  # each consumer has taken its own part of the rows
            gone = dict.fromkeys(taken, 0) | dict.fromkeys(list(taken)[:1], max(0, made - sum(taken.values())))
        until_us, counted_us = newest_us(answers, delay_us) if keeps_state(spec.params) and not exact else None, lacking.get(operator)
        if counted_us is not None:
            until_us = counted_us if until_us is None else max(until_us, counted_us)
        begin_us = seen_us
        if until_us is not None and WATERMARK_MIN < seen_us < WATERMARK_END:
            begin_us = begin_of(spec.params, seen_us)
        found[operator] = Continuation(
            rows_out=made if exact else max([made, *taken.values()]),
            skip_rows=skip,
            lost_rows=gone,
            is_exact=(exact and (bool(taken) or all(link.target in counts for link in outputs)))
            or is_table(spec)
            or (isinstance(spec.params, SinkParams) and len(inputs) == 1 and operator in begun_at and inputs[0].source not in unordered),
            watermark_us=min(begin_us, most_us),
            watermark_out_us=min(seen_us, most_us),
            state_until_us=until_us,
            repeats_all=isinstance(spec.params, SourceParams) and spec.params.connector == "datagen",
            windows=windows_left_out(spec.params, seen_us, until_us, counted_us) if isinstance(spec.params, WindowParams) else 0,
            begin_us=first_whole_us(spec.params, until_us),
        )
    return found


def merged(before: Continuation, after: Continuation) -> Continuation:
    """Returns where an operator goes on of which an attempt before has thrown something away, too, with all that is missing."""
    lost = {link: before.lost_rows.get(link, 0) + after.lost_rows.get(link, 0) for link in {**before.lost_rows, **after.lost_rows}}
    known = [until_us for until_us in (before.state_until_us, after.state_until_us) if until_us is not None]
    return msgspec.structs.replace(
        after,
        lost_rows=lost,
        is_exact=before.is_exact and after.is_exact,
        watermark_out_us=min(before.watermark_out_us, after.watermark_out_us),
        state_until_us=max(known, default=None),
        repeats_all=before.repeats_all or after.repeats_all,
        windows=None if before.windows is None or after.windows is None else before.windows + after.windows,
    )


class Made(NamedTuple):
    """The rows that a lost operator without state had made of everything that is not given to it again."""

    rows: int
    behind: tuple[int, ...] = ()
    """Rows of each part, if the operator deals them; otherwise of the operators without state behind it."""

    def given(self, link: LinkSpec) -> int:
        """Returns the rows that it had given on one of its links."""
        if link.part is None:
            return self.rows
        return self.behind[link.part.index] if self.behind else 0


def rows_made(
    specs: Mapping[OperatorId, OperatorSpec], links: Sequence[LinkSpec], lost: Collection[OperatorId], feeders: Mapping[LinkId, Renewed]
) -> dict[OperatorId, Made]:
    """Returns the rows made by each lost operator whose output follows from its one input row by row, where they are known.

    What feeds the first of several such operators that are lost together knows it of those behind, too.
    """
    found: dict[OperatorId, Made] = {}
    for operator, spec in specs.items():
        inputs = [link for link in links if link.target == operator]
        if operator not in lost or len(inputs) != 1:
            continue
        answer, before = feeders.get(first_name(inputs[0].id)), found.get(inputs[0].source)
        if answer is not None and answer.made is not None and (answer.passes or isinstance(spec.params, ROW_BY_ROW)):
            known = Made(answer.made, answer.behind)
        elif answer is None and before is not None and before.behind and inputs[0].part is None:
            known = Made(before.behind[0], before.behind[1:])
        else:
            continue
        if not isinstance(spec.params, ExchangeParams) or len(known.behind) == spec.params.instances or not known.rows:
            found[operator] = known
    return found


def begins_with(go_on: Continuation, link: LinkSpec) -> bool:
    """Tells whether an operator with several inputs works through one of them from its first row on, and leaves out what its consumers have
    taken of it."""
    made = go_on.made.get(first_name(link.id))
    return made is not None and not any(made)


def made_up_to(answer: Renewed) -> Made | None:
    """Returns the rows that a lost operator without state with several inputs had made of one of them, by its feeder's answer; None if that
    is not known."""
    if answer.made is None or (answer.after and not answer.passes):
        return None
    return Made(answer.made, answer.behind)


def of_part(made: tuple[int, ...], link: LinkSpec) -> int:
    """Returns those of the rows made of one input that go by a link."""
    return sum(made) if link.part is None else made[link.part.index]


def several_inputs(
    spec: OperatorSpec,
    inputs: Sequence[LinkSpec],
    feeders: Mapping[LinkId, Renewed],
    counts: Mapping[OperatorId, Made],
    zero: Collection[OperatorId],
) -> dict[LinkId, tuple[int, ...] | None] | None:
    """Returns the rows that a lost operator without state had made of each of its inputs, by the first names of their links: of each part,
    if it deals them; None for an input where that is not known. None for an operator with one input, or with state.

    Parameters
    ----------
    counts : the rows made by lost operators with one input
    zero : operators that give all their rows once more, in the same order, or are away and say how far they are when they are back
    """
    answers = {first_name(link.id): feeders.get(first_name(link.id)) for link in inputs}
    told = any(answer is not None and answer.passes for answer in answers.values())
    if not (told or isinstance(spec.params, (*ROW_BY_ROW, UnionParams))) or not 1 < len(inputs) <= ORIGINS_MAX:
        return None
    if isinstance(spec.on_miss, MissRule):
        return None  # it would leave out other rows the second time
    parts = spec.params.instances if isinstance(spec.params, ExchangeParams) else 1
    found: dict[LinkId, tuple[int, ...] | None] = {}
    for link in inputs:
        name, before = first_name(link.id), counts.get(link.source)
        answer, made = answers[name], None
        if answer is not None:
            made = made_up_to(answer)
        elif link.source in zero:
            made = Made(0)
        elif before is not None and before.behind and link.part is None:
            made = Made(before.behind[0], before.behind[1:])
        found[name] = None
        if made is not None and not made.rows:
            found[name] = (0,) * parts
        elif made is not None and parts == 1:
            found[name] = (made.rows,)
        elif made is not None and len(made.behind) == parts:
            found[name] = made.behind
    return found


def by_origin(
    several: Mapping[LinkId, tuple[int, ...] | None],
    outputs: Sequence[LinkSpec],
    consumers: Mapping[LinkId, Renewed],
    missing: Mapping[LinkId, int],
) -> Continuation | None:
    """Returns from where a lost operator without state with several inputs goes on; None if a consumer does not know from which inputs
    the rows came that it has taken, or if nobody knows how far an input was.

    Parameters
    ----------
    several : the rows made of each input, as `several_inputs` says
    missing : rows of a link that earlier recoveries have counted as lost
    """
    taken: dict[LinkId, tuple[int, ...]] = {}
    for link in outputs:
        answer = consumers.get(first_name(link.id))
        if answer is None:
            continue
        origins = answer.origins
        if origins is None or len(origins) > len(several) or sum(origins) != answer.rows:
            return None
        taken[first_name(link.id)] = (*origins, *[0] * (len(several) - len(origins)))
    links = [link for link in outputs if first_name(link.id) in taken]
    if not links and None in several.values():
        return None
    parts = max([link.part.of for link in outputs if link.part is not None], default=1)
    made: dict[LinkId, tuple[int, ...]] = {}
    for place, name in enumerate(sorted(several)):
        known = several[name]
        if known is None:
            most = [0] * parts
            for link in links:
                index = 0 if link.part is None else link.part.index
                most[index] = max(most[index], taken[first_name(link.id)][place])
            known = tuple(most)
        made[name] = known
    given = {first_name(link.id): [of_part(one, link) for one in made.values()] for link in links}
    lost = {link: sum(max(0, one - had) for one, had in zip(given[link], rows, strict=True)) for link, rows in taken.items()}
    return Continuation(
        rows_out=sum(map(sum, made.values())),
        skips={link: tuple([max(0, had - one) for one, had in zip(given[link], rows, strict=True)]) for link, rows in taken.items()},
        made=made,
        lost_rows={link: max(0, rows - missing.get(link, 0)) for link, rows in lost.items()},
        # Of which origin earlier losses were, nobody knows any more.
        is_exact=None not in several.values()
        and not any(lost.values())
        and len(taken) == len(outputs)
        and not any(missing.get(name) for name in taken),
    )


def watermarks_seen(
    specs: Mapping[OperatorId, OperatorSpec], links: Sequence[LinkSpec], lost: Collection[OperatorId], consumers: Mapping[LinkId, Renewed]
) -> dict[OperatorId, int]:
    """Returns for each lost operator a watermark that it had given: what its consumers have seen, or had given on if they are lost, too.

    Not through operators whose rows have the times of windows: the end of an open one is ahead of what they had been given.
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
    """Returns the watermark at which an operator with state begins whose consumers have seen `seen_us`: nothing is answered twice.

    A window that ends there has not been answered. A merge has given all rows below, by the times that it merges by.

    Examples
    --------
    >>> begin_of(WindowParams("ts", 10, 10, (), (), 5), 30), begin_of(MergeParams("known", (), delay_us=7), 30)
    (34, 37)
    """
    if isinstance(params, MergeParams):
        return seen_us + params.delay_us
    return seen_us - 1 + (params.allowed_lateness_us if isinstance(params, WindowParams) else 0)


def from_zero(specs: Mapping[OperatorId, OperatorSpec], links: Sequence[LinkSpec], lost: Collection[OperatorId]) -> frozenset[OperatorId]:
    """Returns the lost operators that work through their whole input once more."""
    found: set[OperatorId] = set()
    for operator, spec in specs.items():
        if operator not in lost or isinstance(spec.params, SinkParams):
            continue  # what a sink has given cannot be taken back
        feeding = {link.source for link in links if link.target == operator}
        if reads_again(spec) or (feeding and feeding <= found):
            found.add(operator)
    return frozenset(found)


def files_away(
    specs: Mapping[OperatorId, OperatorSpec], links: Sequence[LinkSpec], away: Collection[OperatorId], nodes: Mapping[OperatorId, NodeId]
) -> frozenset[OperatorId]:
    """Returns the sources that are away and read their files again if they are lost, and what works row by row behind one on its host: all
    of it goes on, or works through the whole file once more.

    Parameters
    ----------
    specs : all operators of the query, upstream first
    """
    found: set[OperatorId] = set()
    for operator, spec in specs.items():
        feeding = [link.source for link in links if link.target == operator]
        is_behind = len(feeding) == 1 and feeding[0] in found and nodes.get(feeding[0]) == nodes.get(operator)
        if operator in away and (reads_again(spec) or (is_behind and isinstance(spec.params, ROW_BY_ROW))):
            found.add(operator)
    return frozenset(found)


def in_another_order(specs: Iterable[OperatorId], links: Sequence[LinkSpec], zero: Collection[OperatorId]) -> frozenset[OperatorId]:
    """Returns the operators that work through their whole input once more and may give its rows in another order than before: which of
    several inputs comes first is left to chance.

    Parameters
    ----------
    specs : all operators of the query, upstream first
    """
    found: set[OperatorId] = set()
    for operator in specs:
        feeding = [link.source for link in links if link.target == operator]
        if operator in zero and (len(feeding) > 1 or not found.isdisjoint(feeding)):
            found.add(operator)
    return frozenset(found)


def is_table(spec: OperatorSpec) -> bool:
    """Tells whether a source gives versions of a lookup table. It has promised the end of event times all along, and goes on."""
    return isinstance(spec.params, SourceParams) and spec.params.is_table


def reads_again(spec: OperatorSpec) -> bool:
    """Tells whether a source gives the same rows again when it is made again."""
    return isinstance(spec.params, SourceParams) and spec.params.connector == "file" and not spec.params.is_table


def delay_of(specs: Iterable[OperatorSpec]) -> int:
    """Returns how far a row of these sources may be ahead of the watermark of its batch, in microseconds."""
    return max((spec.params.watermark_delay_us for spec in specs if isinstance(spec.params, SourceParams)), default=0)


def newest_us(feeders: Sequence[Renewed], delay_us: int) -> int | None:
    """Returns an event time, in microseconds, that no row has exceeded that the lost operator had acknowledged; None if there was none.

    Parameters
    ----------
    delay_us : how far a row may be ahead of the watermark of its batch
    """
    until_us = max((answer.watermark_us for answer in feeders if answer.after), default=None)
    return None if until_us is None else min(until_us + delay_us, WATERMARK_END)


def first_whole_us(params: object, until_us: int | None) -> int | None:
    """Returns the first instant from which on windows or sessions certainly have all rows; None if they are to be answered without it.

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
    seen_us : the watermark of what its consumers have had: windows that end earlier have been answered
    until_us : event time up to which the lost state had taken rows; None if it had taken none
    counted_us : windows that begin before it have been counted already; None if none has

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


def taken_up(go_on: Continuation, epoch: int, seconds: float, begun_at: int | None, users: tuple[User, ...], lost: int) -> TakenUp:
    """Returns what the host of an operator is told about its former copy."""
    return TakenUp(epoch, go_on.rows_out, go_on.watermark_us, go_on.watermark_out_us, seconds, begun_at, users, lost or msgspec.UNSET)
