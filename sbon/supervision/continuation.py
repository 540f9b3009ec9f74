"""Computes from where operators that were lost in a crash go on, and which rows are missing. Pure functions; docs/recovery.md says why.

The living neighbours of the lost operators have said how far they were. The first of these functions that applies to an operator counts:

    by_origin          an operator without state that has several inputs, or is lost behind such an operator. Its consumers know how many
                       rows of each input they have taken, and get the rows after these
    from_first_row     a source that reads its file again, and operators that only such sources feed (`sbon.supervision.once_more`). They
                       work through all rows once more, and skip those that a living consumer has taken. This is exact unless inputs
                       meet, because their rows may then come in another order
    by_total           an operator without state that has several inputs, where nobody knows the origins of the rows taken. It skips as
                       many rows as were taken
    by_number          an operator whose output follows from its one input row by row: an acknowledgement said how many rows it had made.
                       Or a source that begins at a position in its file, and operators that work row by row behind it
                       (`sbon.supervision.midst`)
    behind_consumers   everything else. It goes on roughly behind the rows that its consumers have taken
"""

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

import msgspec

from sbon.links.link_names import first_name
from sbon.links.origins import of_part
from sbon.query.params.kinds import Params, keeps_state
from sbon.query.params.source import SinkParams, SourceParams
from sbon.query.plan import Begin, LinkSpec, OperatorSpec
from sbon.supervision.left_out import Stretch, behind, is_exact, may_resume, stretches
from sbon.supervision.lost_state import begin_of, newest_answered, newest_taken, watermarks_seen, windows_left_out
from sbon.supervision.once_more import from_zero, gives_same_rows, in_another_order, is_table
from sbon.supervision.rows_made import Cut, Made, cuts_behind, parts_of, rows_made, several_inputs
from sbon.types import LinkId, OperatorId
from sbon.watermarks import WATERMARK_END, WATERMARK_MIN
from sbon.wire.deployment import DealtTurns, Renewed, TakenUp, User


class Continuation(msgspec.Struct, frozen=True):
    """The point from which one operator goes on."""

    rows_out: int = 0
    """Rows that it counts as already made."""
    skip_rows: Mapping[LinkId, int] = {}
    """Number of rows to skip at the beginning of each output link, by the link's first name."""
    skips: Mapping[LinkId, tuple[int, ...]] = {}
    """Number of rows to skip on each output link, by the origin of the rows (`sbon.links.origins`)."""
    made: Mapping[LinkId, tuple[int, ...]] = {}
    """Rows that it had made of the input that it does not get again, by the input link's first name; of each part, if it deals rows."""
    made_by_origin: tuple[tuple[int, ...], ...] | None = None
    """`made` by origin instead of by input, for an operator with one input that passes origins on."""
    lost_rows: Mapping[LinkId, int] = {}
    """Rows that it had made and that have not arrived, by output link."""
    is_exact: bool = True
    """False: the rows lost are at least these, and some may come twice. True: apart from answers that are left out (`begin`), exactly these
    rows are lost."""
    watermark_us: int = WATERMARK_MIN
    """Watermark at which its state begins."""
    watermark_out_us: int = WATERMARK_MIN
    state_until_us: int | None = None
    """Event time up to which answers lack rows of the lost state, in microseconds; None if no state is missing."""
    repeats_all: bool = False
    """True for a source that sends all its rows once more, from the first one on."""
    windows: int | None = 0
    """Number of windows between the last answer that consumers have seen and the newest row of the lost state, including windows without
    rows; None if unknown."""
    begin: Begin | None = None
    """The first answers that have all rows; None: none are left out, although they may lack rows."""
    begin_behind: Mapping[OperatorId, Begin] = {}
    """The first answers that have all rows, of operators behind it that run on; they leave out earlier ones."""
    whole_us: int | None = None
    """Event time from which on its lost state costs the query no answer, in microseconds; None if no state is missing, or nobody knows."""
    fresh: tuple[LinkId, ...] = ()
    """Inputs of a sink, by their first names, whose rows its former copies have not written, or nobody knows how many of them they have.
    The sink skips no row of these inputs; with `by_word`, it counts the rows of the others."""
    is_fresh: bool = False
    """True for a sink all of whose inputs are `fresh`: it counts its rows from the end of its file on."""
    by_word: bool = False
    """True for a sink that has yet to say whether it has found what its former copy has written of each input and origin. The continuation
    is exact only if it has."""
    matches: bool = False
    """True for a sink that gets all its rows once more in another order, and leaves out those that it finds in its file. It does not say
    where the query's rows begin until it has left all of them out."""
    late_until_us: int | None = None
    """Event time up to which its consumers have gone on without it, in microseconds; None if they have not."""

    def given(self, link: LinkSpec) -> tuple[int, ...] | None:
        """Returns the rows that the operator had sent on a link and does not send again, by origin; None if unknown."""
        made = [self.made[name] for name in sorted(self.made)] if self.made else self.made_by_origin
        if made is None:
            return None
        skips = self.skips.get(first_name(link.id), ())
        return tuple([of_part(rows, link) + (skips[place] if place < len(skips) else 0) for place, rows in enumerate(made)])


class Lost(NamedTuple):
    """A lost operator, and what is known of an operator of any kind."""

    spec: OperatorSpec
    inputs: tuple[LinkSpec, ...]
    outputs: tuple[LinkSpec, ...]
    taken: Mapping[LinkId, int]
    """Rows that the living consumer of an output link has taken or will never get, by the link's first name."""
    seen_us: int
    """A watermark that it had sent."""
    is_among: bool
    """True if a consumer of it is lost, too."""

    def begin(self, watermark_us: int) -> int:
        """Returns the watermark to begin at: below the end of the stream if a consumer is lost, too, because that one has not had the
        end."""
        most_us = WATERMARK_END - 1 if self.is_among else WATERMARK_END
        return min(watermark_us, most_us)

    @property
    def watermark_us(self) -> int:
        """The watermark at which it goes on."""
        return self.begin(self.seen_us)

    def skipped(self, given: Mapping[LinkId, int]) -> dict[LinkId, int]:
        """Returns the rows to skip on each link, if the operator goes on behind the rows `given`."""
        return {name: max(0, rows - given[name]) for name, rows in self.taken.items()}

    def gone(self, given: Mapping[LinkId, int]) -> dict[LinkId, int]:
        """Returns the rows of `given` that have not arrived, by link."""
        return {name: max(0, given[name] - rows) for name, rows in self.taken.items()}


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
    positions: Mapping[OperatorId, Made] = {},
    plan_links: Sequence[LinkSpec] | None = None,
    unable: Collection[OperatorId] = (),
    matching: Collection[OperatorId] = (),
    late: Collection[OperatorId] = (),
) -> dict[OperatorId, Continuation]:
    """Returns from where each lost operator goes on.

    Parameters
    ----------
    specs : all operators of the query, upstream first
    lost : the operators that are made again
    consumers, feeders : the answers of the living target, or the living source, of a link, by the link's first name
    missing : rows of a link that earlier recoveries have counted as lost
    begun_at : sinks that can find out what their former copies have written
    lacking : event times up to which former copies lacked rows, because they had begun empty, too
    joined : rows that sources had sent before a link of a later plan began, by the link's first name
    absent_files : operators that are away (`files_away`)
    positions : lost sources that begin in the midst of their files, with the rows before that place (`may_begin`)
    plan_links : all links of the query, if `links` are only those of the lost operators
    unable : operators that run on hosts which cannot be told what to leave out
    matching : sinks that have crashed while they left out rows in another order (`Continuation.matches`)
    late : operators that have left out late rows
    """
    crash = Crash(specs, links, lost, consumers, feeders, missing, begun_at, links if plan_links is None else plan_links)
    facts = _facts(crash, lacking, absent_files, positions, unable, matching, late)
    found: dict[OperatorId, Continuation] = {}
    for operator in specs:
        if operator in lost:
            one = _lost_one(crash, facts, operator, joined)
            found[operator] = _adjusted(crash, facts, one, _continuation(crash, facts, one, found))
    return found


class Crash(NamedTuple):
    """The lost operators, and what their neighbours say; see `continuations`."""

    specs: Mapping[OperatorId, OperatorSpec]
    links: Sequence[LinkSpec]
    lost: Collection[OperatorId]
    consumers: Mapping[LinkId, Renewed]
    feeders: Mapping[LinkId, Renewed]
    missing: Mapping[LinkId, int]
    begun_at: Collection[OperatorId]
    plan_links: Sequence[LinkSpec]


class Facts(NamedTuple):
    """Conclusions about the query as a whole, before one operator is looked at after the other."""

    zero: frozenset[OperatorId]
    """Operators that work through their whole input once more, and give all their rows again."""
    unordered: frozenset[OperatorId]
    """Those of them that may give their rows in another order."""
    same: frozenset[OperatorId]
    """Those of `zero` that give the same rows as before, in whatever order; empty if rows count as lost."""
    shifted: frozenset[OperatorId]
    """Operators whose rows differ from before, because a state lacks rows."""
    repeating: frozenset[OperatorId]
    """Operators behind a source that gives its rows again."""
    seen_us: Mapping[OperatorId, int]
    counts: Mapping[OperatorId, Made]
    """Rows made by operators that work row by row."""
    inputs_made: Mapping[OperatorId, Mapping[LinkId, Made | None]]
    """Rows made of each input, of operators with several inputs."""
    cuts: Mapping[OperatorId, Sequence[Cut]]
    finding: frozenset[OperatorId]
    """Sinks that can count what their former copies have written."""
    lacks: Mapping[OperatorId, int]
    """Event times up to which states lack rows because of earlier crashes."""
    stretched: Mapping[OperatorId, Stretch]
    into_state: frozenset[OperatorId]
    """Operators without state that feed only states of `elsewhere`."""
    elsewhere: set[OperatorId]
    """Operators that lose exactly the answers that are left out, if any, and give no answer that their consumers have had; those that pass
    such answers on join them as they are found."""
    uncounted: set[OperatorId]
    """Operators of which nobody knows how many rows they had made, and that do not make them again from the first one on, as far as they
    have been found."""


def _facts(
    crash: Crash,
    lacking: Mapping[OperatorId, int],
    absent_files: Collection[OperatorId],
    positions: Mapping[OperatorId, Made],
    unable: Collection[OperatorId],
    matching: Collection[OperatorId],
    late: Collection[OperatorId],
) -> Facts:
    """Returns the conclusions about the query as a whole; the parameters are those of `continuations`."""
    specs, links, lost, consumers, feeders, missing, begun_at, plan_links = crash
    zero = from_zero(specs, links, lost, positions)
    unordered = in_another_order(specs, links, zero)
    shifted = _behind(lacking, specs, plan_links)
    counts = rows_made(specs, links, lost, feeders, positions)
    # Not if a link has lost rows: they count as lost, and reading a file again would repeat them.
    again = frozenset() if any(missing.values()) else (zero - unordered - shifted) | set(absent_files)
    inputs_made: dict[OperatorId, Mapping[LinkId, Made | None]] = {}
    for operator in lost:
        of_inputs = several_inputs(specs[operator], [link for link in links if link.target == operator], feeders, counts, again)
        if of_inputs is not None:
            inputs_made[operator] = of_inputs
    taken_us = newest_taken(specs, plan_links, lost, feeders, zero)
    answered_us = newest_answered(specs, plan_links, lost, feeders)
    lacks = {one: until_us for one, until_us in lacking.items() if one not in zero}  # who gets all rows again lacks none
    stretched = stretches(specs, plan_links, lost, taken_us, answered_us, lacks, consumers, unable)
    resuming = {one for one in zero & (unordered | shifted) if may_resume(one, specs, plan_links, lost, consumers)}
    elsewhere = {
        one
        for one in lost
        if keeps_state(specs[one].params) and is_exact(one, plan_links, stretched) and (one not in zero or one in resuming)
    }
    return Facts(
        zero=zero.difference(behind(resuming & elsewhere, links)),
        unordered=unordered,
        same=frozenset() if any(missing.values()) else gives_same_rows(specs, links, zero, unordered, late) - shifted,
        shifted=shifted,
        repeating=_behind([*zero, *absent_files, *(one for one in lost if _generates(specs[one].params))], specs, links),
        seen_us=watermarks_seen(specs, links, lost, consumers),
        counts=counts,
        inputs_made=inputs_made,
        cuts=cuts_behind(specs, links, lost, feeders, inputs_made),
        finding=frozenset(one for one in begun_at if one in lost and one not in matching),
        lacks=lacks,
        stretched=stretched,
        into_state=frozenset(_only_into(elsewhere, specs, links, lost)),
        elsewhere=elsewhere,
        uncounted=set(),
    )


def _lost_one(crash: Crash, facts: Facts, operator: OperatorId, joined: Mapping[LinkId, int]) -> Lost:
    """Returns a lost operator, with the rows that its living consumers have taken."""
    inputs = tuple(link for link in crash.links if link.target == operator)
    outputs = tuple(link for link in crash.links if link.source == operator)
    is_counted = operator in facts.counts
    taken = {
        # A part is counted by the rows that its consumer has had; a whole stream by all rows that were ever made.
        name: crash.consumers[name].rows + joined.get(name, 0) + (crash.missing.get(name, 0) if link.part is None or not is_counted else 0)
        for link in outputs
        if (name := first_name(link.id)) in crash.consumers
    }
    is_among = any(link.target in crash.lost for link in outputs)
    return Lost(crash.specs[operator], inputs, outputs, taken, facts.seen_us[operator], is_among)


def _continuation(crash: Crash, facts: Facts, one: Lost, found: Mapping[OperatorId, Continuation]) -> Continuation:
    """Returns from where a lost operator goes on.

    Parameters
    ----------
    found : from where the operators before it go on
    """
    operator, several = one.spec.id, facts.inputs_made.get(one.spec.id)
    are_known = _are_known_behind(operator, crash.links, crash.lost, crash.consumers, facts.cuts, facts.finding)
    if several is not None and one.is_among and not are_known:
        # Reading a file again would repeat rows that a lost consumer has passed on.
        several = several_inputs(one.spec, one.inputs, crash.feeders, facts.counts, ())
    by_input = None
    if several is not None and (are_known or not (one.is_among and operator in facts.zero)):
        names = sorted(several)
        made = [parts_of(one.spec, several[name]) for name in names]
        by_input = by_origin(one, made, names, crash.consumers, crash.missing, facts.cuts if are_known else {}, facts.finding)
    elif operator in facts.cuts and are_known and _begins_by_origin(one.inputs[0], found):
        cuts = [cut.made for cut in facts.cuts[operator]]
        by_input = by_origin(one, cuts, (), crash.consumers, crash.missing, facts.cuts, facts.finding)
    if by_input is not None:
        return by_input
    if operator in crash.begun_at and _comes_again(one.inputs, found, facts.same, facts.unordered):
        return Continuation(by_word=True, matches=True)
    if operator in facts.zero and operator not in facts.shifted:
        return from_first_row(one, is_ordered=operator not in facts.unordered)
    if several is not None:
        return by_total(one, {name: parts_of(one.spec, made) for name, made in several.items()})
    if operator in facts.counts:
        return by_number(one, facts.counts[operator], {*facts.counts, *facts.finding})
    return _by_consumers(crash, facts, one, found)


def _by_consumers(crash: Crash, facts: Facts, one: Lost, found: Mapping[OperatorId, Continuation]) -> Continuation:
    """Returns from where an operator goes on if nothing better is known (`behind_consumers`), and what its sinks make of that."""
    operator = one.spec.id
    answers = [crash.feeders[name] for link in one.inputs if (name := first_name(link.id)) in crash.feeders]
    if one.inputs and all(link.source in facts.elsewhere for link in one.inputs):
        facts.elsewhere.add(operator)
    if operator not in facts.repeating and all(answer.made is None for answer in answers):
        facts.uncounted.add(operator)
    told = {link.source for link in one.inputs if link.source in found and found[link.source].given(link) is not None}
    fresh = [link for link in one.inputs if isinstance(one.spec.params, SinkParams) and link.source in facts.elsewhere | facts.uncounted]
    counted = [link for link in one.inputs if link not in fresh]
    finds_end = operator in facts.finding and all(link.source not in facts.unordered or link.source in told for link in counted)
    is_elsewhere = operator in facts.elsewhere
    stretch, lacking_us = facts.stretched.get(operator), facts.lacks.get(operator)
    go_on = behind_consumers(one, answers, stretch, lacking_us, is_elsewhere=is_elsewhere, finds_end=finds_end)
    if fresh:
        names = tuple(sorted(first_name(link.id) for link in fresh))
        finds_rest = bool(counted) and finds_end and all(link.source in facts.elsewhere for link in fresh)
        go_on = msgspec.structs.replace(go_on, fresh=names, is_fresh=not counted, by_word=finds_rest)
        return msgspec.structs.replace(go_on, is_exact=is_elsewhere or finds_rest)
    return msgspec.structs.replace(go_on, by_word=True) if finds_end and (told or len(one.inputs) > 1) else go_on


def _adjusted(crash: Crash, facts: Facts, one: Lost, go_on: Continuation) -> Continuation:
    """Returns a continuation with what the operators around it add: states behind it, and consumers that have gone on without it."""
    operator = one.spec.id
    if operator in facts.into_state:  # what was under way to it was lost with the state
        go_on = msgspec.structs.replace(go_on, lost_rows={}, is_exact=True)
    if keeps_state(one.spec.params) and operator in facts.stretched:
        go_on = _with_those_behind(go_on, behind([operator], crash.plan_links), facts.stretched, crash.lost)
    ahead_us = max([crash.consumers[name].ahead_us for name in one.taken], default=WATERMARK_MIN)
    return go_on if ahead_us <= WATERMARK_MIN else msgspec.structs.replace(go_on, late_until_us=ahead_us, is_exact=False)


def _with_those_behind(
    go_on: Continuation, reached: Sequence[OperatorId], stretched: Mapping[OperatorId, Stretch], lost: Collection[OperatorId]
) -> Continuation:
    """Returns a continuation with what the operators behind it leave out.

    Parameters
    ----------
    reached : the operator, and all that it feeds
    """
    there = [one for one in reached if one in stretched]
    begins = {one: begin for one in there if one not in lost and (begin := stretched[one].begin) is not None}
    whole_us = max(stretched[one].whole_us for one in there)
    return msgspec.structs.replace(go_on, begin_behind=begins, whole_us=whole_us)


def _only_into(
    some: Collection[OperatorId], specs: Mapping[OperatorId, OperatorSpec], links: Sequence[LinkSpec], lost: Collection[OperatorId]
) -> set[OperatorId]:
    """Returns the lost operators without state that feed only operators of `some`, and at least one."""
    fed = {one: {link.target for link in links if link.source == one} for one in lost if not keeps_state(specs[one].params)}
    return {one for one, targets in fed.items() if targets and targets.issubset(some)}


def by_origin(
    one: Lost,
    made: Sequence[tuple[int, ...] | None],
    names: Sequence[LinkId],
    consumers: Mapping[LinkId, Renewed],
    missing: Mapping[LinkId, int],
    cuts: Mapping[OperatorId, Sequence[Cut]],
    finding: Collection[OperatorId],
) -> Continuation | None:
    """Returns from where a lost operator without state goes on, if its rows have several origins. Returns None if a consumer does not know
    the origins of the rows that it has taken, or if nobody knows how far an input was.

    Parameters
    ----------
    made : the rows made of each origin; None where unknown
    names : the first names of the input links that the origins stand for; empty if it passes on the origins of its only input
    missing : rows of a link that earlier recoveries have counted as lost
    cuts : the progress of the lost operators behind it
    finding : lost sinks that find out what their former copies have written
    """
    taken: dict[LinkId, tuple[int, ...]] = {}
    lost_behind: set[LinkId] = set()
    """Links to lost operators that go on by their cuts."""
    for link in one.outputs:
        name, answer = first_name(link.id), consumers.get(first_name(link.id))
        if answer is not None:
            origins = answer.origins
            if origins is None or (names and len(origins) > len(names)) or sum(origins) != answer.rows:
                return None
            taken[name] = origins
        elif link.target in cuts:
            taken[name] = tuple([cut.taken for cut in cuts[link.target]])
            lost_behind.add(name)
    links = [link for link in one.outputs if first_name(link.id) in taken]
    if not links and None in made:
        return None
    parts = max([link.part.of for link in one.outputs if link.part is not None], default=1)
    count = max([len(made), *map(len, taken.values())])
    taken = {name: (*rows, *[0] * (count - len(rows))) for name, rows in taken.items()}
    known: list[tuple[int, ...]] = []
    for place, rows in enumerate([*made, *[(0,) * parts] * (count - len(made))]):
        most = [0] * parts
        for link in links if rows is None else ():
            index = 0 if link.part is None else link.part.index
            most[index] = max(most[index], taken[first_name(link.id)][place])
        known.append(tuple(most) if rows is None else rows)
    given = {first_name(link.id): [of_part(rows, link) for rows in known] for link in links}
    lost = {link: sum(max(0, gave - had) for gave, had in zip(given[link], rows, strict=True)) for link, rows in taken.items()}
    return Continuation(
        rows_out=sum(map(sum, known)),
        skips={link: tuple([max(0, had - gave) for gave, had in zip(given[link], rows, strict=True)]) for link, rows in taken.items()},
        made=dict(zip(names, known, strict=True)) if names else {},
        made_by_origin=None if names else tuple(known),
        lost_rows={link: max(0, rows - missing.get(link, 0)) for link, rows in lost.items() if link not in lost_behind or rows},
        # Nobody knows the origins of the rows that were lost earlier.
        is_exact=None not in made
        and not any(lost.values())
        and all(first_name(link.id) in taken or link.target in finding for link in one.outputs)
        and not any(missing.get(name) for name in taken),
        watermark_us=one.watermark_us,
        watermark_out_us=one.watermark_us,
    )


def _are_known_behind(
    operator: OperatorId,
    links: Sequence[LinkSpec],
    lost: Collection[OperatorId],
    consumers: Mapping[LinkId, Renewed],
    cuts: Mapping[OperatorId, Sequence[Cut]],
    finding: Collection[OperatorId],
) -> bool:
    """Tells whether all lost operators behind an operator go on by their cuts, down to consumers that know how many rows of each origin
    they have taken, and sinks that find that out."""
    for link in links:
        if link.source != operator:
            continue
        answer = consumers.get(first_name(link.id))
        if answer is not None and (answer.origins is None or sum(answer.origins) != answer.rows):
            return False
        if link.target not in lost or link.target in finding:
            continue
        if link.target not in cuts or not _are_known_behind(link.target, links, lost, consumers, cuts, finding):
            return False
    return True


def from_first_row(one: Lost, *, is_ordered: bool) -> Continuation:
    """Returns from where an operator goes on, if it works through its whole input once more.

    Parameters
    ----------
    is_ordered : True if its rows come in the same order as before
    """
    return Continuation(skip_rows=one.taken, is_exact=is_ordered or not any(one.taken.values()))


def by_total(one: Lost, several: Mapping[LinkId, tuple[int, ...] | None]) -> Continuation:
    """Returns from where an operator without state goes on, if nobody knows the origins of the rows that its consumers have taken. It skips
    as many rows as they have taken, provided that the progress of each input is known.

    Parameters
    ----------
    several : the rows made of each input, as `several_inputs` says
    """
    known = [made for made in several.values() if made is not None]
    given = {first_name(link.id): sum(of_part(made, link) for made in known) for link in one.outputs}
    return Continuation(
        rows_out=max([sum(map(sum, known)), *one.taken.values()]),
        skip_rows=one.skipped(given) if len(known) == len(several) else {},
        lost_rows=dict.fromkeys(one.taken, 0),
        is_exact=False,
        watermark_us=one.watermark_us,
        watermark_out_us=one.watermark_us,
    )


def by_number(one: Lost, known: Made, counted: Collection[OperatorId]) -> Continuation:
    """Returns from where an operator goes on, if its output follows from its one input row by row: behind the rows that it had made.

    Parameters
    ----------
    known : the rows that it had made
    counted : lost operators that go on by such a number, and sinks that find out what their former copies have written
    """
    given = {first_name(link.id): known.given(link) for link in one.outputs}
    return Continuation(
        rows_out=known.rows,
        skip_rows=one.skipped(given),
        lost_rows=one.gone(given),
        is_exact=bool(one.taken) or all(link.target in counted for link in one.outputs),
        watermark_us=one.watermark_us,
        watermark_out_us=one.watermark_us,
    )


def behind_consumers(
    one: Lost, feeders: Sequence[Renewed], stretch: Stretch | None, lacking_us: int | None, *, is_elsewhere: bool, finds_end: bool
) -> Continuation:
    """Returns from where an operator with state, a source or a sink goes on, if nothing better is known.

    Parameters
    ----------
    feeders : the answers of its feeders
    stretch : the answers that lack rows; None if none do
    lacking_us : event time up to which its former copies lacked rows, because they had begun empty, too
    is_elsewhere : True if exactly the answers before its `begin` are lost, or if it passes such answers on
    finds_end : True for a sink that finds out what its former copy has written, and gets its rows in the same order as before
    """
    params = one.spec.params
    made = max((answer.made for answer in feeders if answer.made is not None), default=0)
    gone = one.gone(dict.fromkeys(one.taken, made))
    if any(link.part is not None for link in one.outputs):  # each consumer has taken its own part of the rows
        gone = dict.fromkeys(one.taken, 0) | dict.fromkeys(list(one.taken)[:1], max(0, made - sum(one.taken.values())))
    keeps = keeps_state(params)
    until_us = stretch.until_us if keeps and stretch is not None else lacking_us
    begin_us = one.seen_us
    if keeps and WATERMARK_MIN < one.seen_us < WATERMARK_END:
        begin_us = begin_of(params, one.seen_us)
    return Continuation(
        rows_out=max([made, *one.taken.values()]),
        lost_rows=dict.fromkeys(gone, 0) if is_elsewhere else gone,  # answers that are left out are not counted by their rows
        is_exact=is_elsewhere or is_table(one.spec) or (isinstance(params, SinkParams) and finds_end),
        watermark_us=one.begin(begin_us),
        watermark_out_us=one.watermark_us,
        state_until_us=until_us,
        repeats_all=_generates(params),
        windows=windows_left_out(params, one.seen_us, until_us, lacking_us),
        begin=stretch.begin if keeps and stretch is not None else None,
    )


def _behind(some: Collection[OperatorId], specs: Mapping[OperatorId, OperatorSpec], links: Sequence[LinkSpec]) -> frozenset[OperatorId]:
    """Returns some operators and all operators that they feed, directly or not."""
    found = set(some)
    for operator in specs:
        if any(link.source in found for link in links if link.target == operator):
            found.add(operator)
    return frozenset(found)


def _comes_again(
    inputs: Sequence[LinkSpec], found: Mapping[OperatorId, Continuation], same: Collection[OperatorId], unordered: Collection[OperatorId]
) -> bool:
    """Tells whether a lost operator gets all rows of its inputs once more, in another order, and without their origins.

    Parameters
    ----------
    found : from where the operators before it go on
    same : the operators that give the same rows as before (`gives_same_rows`)
    """
    if not all(link.source in same and not found[link.source].rows_out for link in inputs):
        return False
    return any(link.source in unordered and found[link.source].given(link) is None for link in inputs)


def _generates(params: Params) -> bool:
    """Tells whether a source begins again at its first row, whatever it had given."""
    return isinstance(params, SourceParams) and params.connector == "datagen"


def _begins_by_origin(link: LinkSpec, found: Mapping[OperatorId, Continuation]) -> bool:
    """Tells whether the source of a link lives, or skips by origin the rows that the target need not have again."""
    return link.source not in found or first_name(link.id) in found[link.source].skips


def merged(before: Continuation, after: Continuation) -> Continuation:
    """Returns the later of two continuations of an operator, with the losses of both: an earlier attempt has lost rows or state, too."""
    lost = {link: before.lost_rows.get(link, 0) + after.lost_rows.get(link, 0) for link in {**before.lost_rows, **after.lost_rows}}
    known = [until_us for until_us in (before.state_until_us, after.state_until_us) if until_us is not None]
    return msgspec.structs.replace(
        after,
        lost_rows=lost,
        is_exact=before.is_exact and after.is_exact,
        watermark_out_us=min(before.watermark_out_us, after.watermark_out_us),
        state_until_us=max(known, default=None),
        late_until_us=max([one for one in (before.late_until_us, after.late_until_us) if one is not None], default=None),
        repeats_all=before.repeats_all or after.repeats_all,
        windows=None if before.windows is None or after.windows is None else before.windows + after.windows,
    )


def begins_with(go_on: Continuation, link: LinkSpec) -> bool:
    """Tells whether an operator with several inputs works through this one from its first row on, and skips what its consumers have taken
    of it."""
    made = go_on.made.get(first_name(link.id))
    return made is not None and not any(made)


def taken_up(
    go_on: Continuation,
    epoch: int,
    seconds: float,
    begun_at: int | None,
    users: tuple[User, ...],
    lost: int,
    begins: Made | None = None,
    dealt: DealtTurns | msgspec.UnsetType = msgspec.UNSET,
) -> TakenUp:
    """Returns the message that tells a host about the former copy of an operator.

    Parameters
    ----------
    begins : the rows before the place where a source begins in the midst of its file; None for all others
    dealt : the owners of turns that a splitter, or an instance behind it, begins with; UNSET for all others
    """
    told = TakenUp(epoch, go_on.rows_out, go_on.watermark_us, go_on.watermark_out_us, seconds, begun_at, users, lost or msgspec.UNSET)
    told = msgspec.structs.replace(told, dealt=dealt)
    if go_on.fresh:
        told = msgspec.structs.replace(told, fresh=go_on.fresh) if go_on.by_word else msgspec.structs.replace(told, is_fresh=True)
    if go_on.matches:
        told = msgspec.structs.replace(told, matches=True)
    return told if begins is None else msgspec.structs.replace(told, begins_behind=begins.rows)
