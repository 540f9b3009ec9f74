"""Decides from where operators that were lost in a crash go on, and which rows are missing. Pure functions; docs/recovery.md says why.

The living neighbours of the lost operators have said how far they were. The first method that applies to an operator counts; the methods
are functions of `sbon.supervision.continuation`:

    by_origin          an operator without state that has several inputs, or is lost behind such an operator. Its consumers know how many
                       rows of each input they have taken, and get the rows after these
    from_first_row     a source that reads its file again, and operators that only such sources feed (`sbon.supervision.replayed_inputs`).
                       They work through all rows once more, and skip those that a living consumer has taken. This is exact unless inputs
                       meet, because their rows may then come in another order
    by_total           an operator without state that has several inputs, where nobody knows the origins of the rows taken. It skips as
                       many rows as were taken
    by_number          an operator whose output follows from its one input row by row: an acknowledgement said how many rows it had made.
                       Or a source that begins at a position in its file, and operators that work row by row behind it
                       (`sbon.supervision.file_positions`)
    behind_consumers   everything else. It goes on roughly behind the rows that its consumers have taken
"""

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

import msgspec

from sbon.links.link_names import first_name
from sbon.query.params.kinds import keeps_state
from sbon.query.params.source import SinkParams
from sbon.query.plan import LinkSpec, OperatorSpec
from sbon.supervision.continuation import Continuation, Lost, behind_consumers, by_number, by_origin, by_total, from_first_row, generates
from sbon.supervision.left_out import Stretch, behind, is_exact, may_resume, stretches
from sbon.supervision.lost_state import newest_answered, newest_taken, watermarks_seen
from sbon.supervision.replayed_inputs import from_zero, in_another_order
from sbon.supervision.rows_made import Cut, Made, cuts_behind, parts_of, rows_made, several_inputs
from sbon.types import LinkId, OperatorId
from sbon.watermarks import WATERMARK_MIN
from sbon.wire.deployment import Renewed


class Crash(msgspec.Struct, frozen=True):
    """A crash, as far as the home of a query knows of it when it makes lost operators again."""

    specs: Mapping[OperatorId, OperatorSpec]
    """All operators of the query, upstream first."""
    links: Sequence[LinkSpec]
    """At least the links of the lost operators."""
    lost: Collection[OperatorId]
    """The operators that are made again."""
    consumers: Mapping[LinkId, Renewed]
    """The answers of the living targets of links, by the link's first name."""
    feeders: Mapping[LinkId, Renewed]
    """The answers of the living sources of links, by the link's first name."""
    missing: Mapping[LinkId, int]
    """Rows of a link that earlier recoveries have counted as lost."""
    begun_at: Collection[OperatorId] = ()
    """Sinks that can find out what their former copies have written."""
    lacking: Mapping[OperatorId, int] = {}
    """Event times up to which former copies lacked rows, because they had begun empty, too."""
    joined: Mapping[LinkId, int] = {}
    """Rows that sources had sent before a link of a later plan began, by the link's first name."""
    absent_files: Collection[OperatorId] = ()
    """Operators that are away (`files_away`)."""
    positions: Mapping[OperatorId, Made] = {}
    """Lost sources that begin in the midst of their files, with the rows before that place (`may_begin`)."""
    plan_links: Sequence[LinkSpec] | None = None
    """All links of the query; None if `links` are all."""
    unable: Collection[OperatorId] = ()
    """Operators that run on hosts which cannot be told what to leave out."""
    matching: Collection[OperatorId] = ()
    """Sinks that have crashed while they still compared rows with their files (`Continuation.matches`)."""

    @property
    def all_links(self) -> Sequence[LinkSpec]:
        """All links of the query."""
        return self.links if self.plan_links is None else self.plan_links


class Facts(NamedTuple):
    """Conclusions about the query as a whole, before one operator is looked at after the other."""

    zero: frozenset[OperatorId]
    """Operators that work through their whole input once more, and give all their rows again."""
    unordered: frozenset[OperatorId]
    """Those of them that may give their rows in another order."""
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


def continuations(crash: Crash) -> dict[OperatorId, Continuation]:
    """Returns from where each lost operator goes on."""
    facts = _facts(crash)
    found: dict[OperatorId, Continuation] = {}
    for operator in crash.specs:
        if operator in crash.lost:
            one = _lost_one(crash, facts, operator)
            found[operator] = _adjusted(crash, facts, one, _continuation(crash, facts, one, found))
    return found


def _facts(crash: Crash) -> Facts:
    """Returns the conclusions about the query as a whole."""
    specs, links, lost, feeders, plan_links = crash.specs, crash.links, crash.lost, crash.feeders, crash.all_links
    zero = from_zero(specs, links, lost, crash.positions)
    unordered = in_another_order(specs, links, zero)
    shifted = _behind(crash.lacking, specs, plan_links)
    counts = rows_made(specs, links, lost, feeders, crash.positions)
    # Not if a link has lost rows: they count as lost, and reading a file again would repeat them.
    again = frozenset() if any(crash.missing.values()) else (zero - unordered - shifted) | set(crash.absent_files)
    inputs_made: dict[OperatorId, Mapping[LinkId, Made | None]] = {}
    for operator in lost:
        of_inputs = several_inputs(specs[operator], [link for link in links if link.target == operator], feeders, counts, again)
        if of_inputs is not None:
            inputs_made[operator] = of_inputs
    taken_us = newest_taken(specs, plan_links, lost, feeders, zero)
    answered_us = newest_answered(specs, plan_links, lost, feeders)
    lacks = {one: until_us for one, until_us in crash.lacking.items() if one not in zero}  # who gets all rows again lacks none
    stretched = stretches(specs, plan_links, lost, taken_us, answered_us, lacks, crash.consumers, crash.unable)
    resuming = {one for one in zero & (unordered | shifted) if may_resume(one, specs, plan_links, lost, crash.consumers)}
    elsewhere = {
        one
        for one in lost
        if keeps_state(specs[one].params) and is_exact(one, plan_links, stretched) and (one not in zero or one in resuming)
    }
    return Facts(
        zero=zero.difference(behind(resuming & elsewhere, links)),
        unordered=unordered,
        shifted=shifted,
        repeating=_behind([*zero, *crash.absent_files, *(one for one in lost if generates(specs[one].params))], specs, links),
        seen_us=watermarks_seen(specs, links, lost, crash.consumers),
        counts=counts,
        inputs_made=inputs_made,
        cuts=cuts_behind(specs, links, lost, feeders, inputs_made),
        finding=frozenset(one for one in crash.begun_at if one in lost and one not in crash.matching),
        lacks=lacks,
        stretched=stretched,
        into_state=frozenset(_only_into(elsewhere, specs, links, lost)),
        elsewhere=elsewhere,
        uncounted=set(),
    )


def _lost_one(crash: Crash, facts: Facts, operator: OperatorId) -> Lost:
    """Returns a lost operator, with the rows that its living consumers have taken."""
    inputs = tuple(link for link in crash.links if link.target == operator)
    outputs = tuple(link for link in crash.links if link.source == operator)
    is_counted = operator in facts.counts
    taken = {
        # A part is counted by the rows that its consumer has had; a whole stream by all rows that were ever made.
        name: crash.consumers[name].rows
        + crash.joined.get(name, 0)
        + (crash.missing.get(name, 0) if link.part is None or not is_counted else 0)
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
        go_on = _with_those_behind(go_on, behind([operator], crash.all_links), facts.stretched, crash.lost)
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


def _behind(some: Collection[OperatorId], specs: Mapping[OperatorId, OperatorSpec], links: Sequence[LinkSpec]) -> frozenset[OperatorId]:
    """Returns some operators and all operators that they feed, directly or not."""
    found = set(some)
    for operator in specs:
        if any(link.source in found for link in links if link.target == operator):
            found.add(operator)
    return frozenset(found)


def _begins_by_origin(link: LinkSpec, found: Mapping[OperatorId, Continuation]) -> bool:
    """Tells whether the source of a link lives, or skips by origin the rows that the target need not have again."""
    return link.source not in found or first_name(link.id) in found[link.source].skips
