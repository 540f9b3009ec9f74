"""Replaces links of a query that have broken for good although the operators at both ends run.

The home of the query does so after each round of reports.

A host gives up a link where the absence of one consumer must not stop the others: a link to a multicast on a crashed host, or to an
operator that was cut off for minutes. Once the consumer can be reached, rows flow to it again. Rows that were in transit are lost, and the
query says so.

A source that was away while its target was made again elsewhere still has the link under its former id. The two ends may also differ after
a failed attempt to turn them. No rows of such a link are lost: the source says how far it is, and the target goes on there, as in a
recovery.

A new link gets an id that no other link gets, whoever replaces the link or recovers its ends.
"""

from collections.abc import Mapping
from functools import partial
from typing import NamedTuple, Protocol

import msgspec

from sbon.errors import SbonError, UnsupportedError
from sbon.links.link_names import first_name, renewed
from sbon.query.params.kinds import keeps_state
from sbon.query.plan import LinkSpec
from sbon.supervision.generations import generation
from sbon.supervision.health import Condition
from sbon.supervision.left_out import Stretch, behind, stretches
from sbon.supervision.lost_state import newest_taken
from sbon.supervision.record import QueryRecord, is_apart
from sbon.supervision.rows_made import made_up_to, parts_of
from sbon.supervision.unmade import ended as note_ended
from sbon.supervision.unmade import ended_links
from sbon.types import LinkId, OperatorId, QueryId
from sbon.watermarks import WATERMARK_MIN
from sbon.wire.deployment import End, LeaveOut, Refeed, Renew, Renewed, Use, User
from sbon.wire.messages import Message
from sbon.wire.requests import Messages

ROUNDS = 2
"""Successive rounds of reports that must show a link broken: the reports of one round may be from different instants."""


class Lacking(NamedTuple):
    """The stretches of operators that were made again while one of their sources was away, and of those behind them."""

    states: tuple[OperatorId, ...]
    """The operators with state that were made again together, and that lack rows."""
    stretches: Mapping[OperatorId, Stretch]
    """The stretches of these, and of all operators behind them."""


class Told(Protocol):
    """Goes on when operators have been told what to leave out."""

    def __call__(self, *, is_told: bool) -> None:
        """Goes on.

        Parameters
        ----------
        is_told : False if a host of an earlier release does not understand that
        """


class Refeeding:
    """Replaces broken links of all queries of one agent."""

    def __init__(self, directory: Messages) -> None:
        self._directory = directory
        self._seen: dict[tuple[QueryId, LinkId], int] = {}
        self._new: dict[tuple[QueryId, LinkId, bool], LinkSpec] = {}
        """The new link for a query's old link, by whether the old one had been given up. One end may already have the new link."""
        self._ended: set[tuple[QueryId, LinkId]] = set()
        self._gone_since: dict[tuple[QueryId, OperatorId], float] = {}
        """Time at which an operator that nobody makes again was first seen to be gone."""

    def look(self, record: QueryRecord, now: float) -> None:
        """Replaces broken links of a query; called after each round of reports."""
        self._end(record, now)
        broken = {(record.id, link.id): link for link in record.unfed_links()}
        for key in [key for key in self._seen if key[0] == record.id and key not in broken]:
            del self._seen[key]
        known = {link.id for link in record.links}
        self._new = {key: link for key, link in self._new.items() if key[0] != record.id or key[1] in known}
        for key, link in broken.items():
            self._seen[key] = self._seen.get(key, 0) + 1
            if (*key, True) not in self._new and is_apart(link, record.reports[link.source], record.reports[link.target]):
                self._rejoin(record, link)
            elif self._seen[key] >= ROUNDS:
                self._refeed(record, link)

    def forget(self, query: QueryId) -> None:
        """Forgets a query that has ended."""
        self._seen = {key: count for key, count in self._seen.items() if key[0] != query}
        self._new = {key: link for key, link in self._new.items() if key[0] != query}
        self._ended = {key for key in self._ended if key[0] != query}
        self._gone_since = {key: since for key, since in self._gone_since.items() if key[0] != query}

    def _end(self, record: QueryRecord, now: float) -> None:
        """Ends links from operators that nobody makes again. If a host may come back with such an operator, waits as long as for any
        operator that several queries share."""
        links = {(record.id, link.id): link for link in ended_links(record)}
        sources = {(record.id, link.source) for link in links.values()}
        self._gone_since = {key: since for key, since in self._gone_since.items() if key[0] != record.id or key in sources}
        for key, link in links.items():
            since_s = self._gone_since.setdefault((record.id, link.source), now)
            may_be_back = record.health.of(link.source) is Condition.AWAY
            if key not in self._ended and not (may_be_back and now - since_s < record.health.healing.rules.shared_after_s):
                self._refeed(record, link, is_over=True)

    def _anew(self, record: QueryRecord, old: LinkSpec, *, given_up: bool) -> LinkSpec:
        """Returns the link that is to replace `old`; always the same one until it has replaced `old`."""
        key = (record.id, old.id, given_up)
        if key not in self._new:
            name = renewed(old.id, generation(record.health.healing.begins_anew()))
            self._new[key] = msgspec.structs.replace(old, id=name, handed=0)
        return self._new[key]

    def _rejoin(self, record: QueryRecord, old: LinkSpec) -> None:
        """Asks the source of a link to turn its end to the target that was made again, and lets the target go on where the source is.

        If the target was made again together with one of its consumers, that consumer cannot be told where the source is. So the source,
        which reads a file, is made again and sends all its rows.
        """
        healing = record.health.healing
        if healing.account.has_begun_without(old, record.links):
            healing.turned |= _all_before(record, old.source)
            return
        new = self._anew(record, old, given_up=False)
        source, target = record.nodes[old.source], record.nodes[old.target]
        gives = Renew(query=record.id, end=End(new, target, (), record.epochs.get(old.target, 0)), gives=True)

        def given(result: Message | SbonError) -> None:
            if isinstance(result, Renewed):
                made = parts_of(record.specs[old.target], made_up_to(result))
                end = End(
                    new,
                    source,
                    (),
                    record.epochs.get(old.source, 0),
                    result.after,
                    result.rows,
                    watermark_us=result.settled_us,
                    made=made,
                    origins=result.origins,
                )
                lacking = _lacking(record, old, result)

                def told(*, is_told: bool) -> None:
                    taken = partial(self._rejoined, record, old, new, made, lacking, is_told)
                    self._directory.request(target, Renew(query=record.id, end=end, gives=False), taken)

                self._leave_out(record, lacking, told)

        self._directory.request(source, gives, given)

    def _leave_out(self, record: QueryRecord, lacking: Lacking, then: Told) -> None:
        """Tells operators to leave out answers that lack rows, before these can be given, and then calls `then`. Does not call it if one
        cannot be told now: the next round of reports begins once more."""
        begins = {one: stretch.begin for one, stretch in lacking.stretches.items() if stretch.begin is not None}
        waiting, old = [*begins], list[OperatorId]()

        def told(operator: OperatorId, result: Message | SbonError) -> None:
            if isinstance(result, UnsupportedError):
                old.append(operator)
            elif isinstance(result, SbonError):
                return
            waiting.remove(operator)
            if not waiting:
                then(is_told=not old)

        if not begins:
            then(is_told=True)
        for operator, begin in begins.items():
            message = LeaveOut(query=record.id, operator=operator, column=begin.column, us=begin.us)
            self._directory.request(record.nodes[operator], message, partial(told, operator))

    def _rejoined(
        self,
        record: QueryRecord,
        old: LinkSpec,
        new: LinkSpec,
        made: tuple[int, ...] | None,
        lacking: Lacking,
        is_told: bool,
        result: Message | SbonError,
    ) -> None:
        if isinstance(result, Renewed):
            account = record.health.healing.account
            account.rejoined(old, made, [link for link in record.links if link.source == old.target])
            record.links = tuple(new if link.id == old.id else link for link in record.links)
            for state in lacking.states:
                there = {one: lacking.stretches[one] for one in behind([state], record.links) if one in lacking.stretches}
                account.lacks(state, there, ahead_us=result.ahead_us, is_told=is_told)
            self._seen.pop((record.id, old.id), None)

    def _refeed(self, record: QueryRecord, old: LinkSpec, *, is_over: bool = False) -> None:
        """Asks both ends to replace a link, the target first, so that every batch finds it; only the target if the source is gone."""
        new = self._anew(record, old, given_up=True)
        source, target = record.nodes[old.source], record.nodes[old.target]
        epoch = record.reports[old.target].epoch

        def ended(result: Message | SbonError) -> None:
            if not isinstance(result, SbonError) and (record.id, new.id) not in self._ended:
                self._ended.add((record.id, new.id))
                note_ended(record, old, new)

        takes = Refeed(query=record.id, lost=old.id, end=End(new, source, ()), gives=False, is_over=is_over or msgspec.UNSET)
        gives = Refeed(query=record.id, lost=old.id, end=End(new, target, (), epoch), gives=True)

        def taken(result: Message | SbonError) -> None:
            if not isinstance(result, SbonError):
                self._directory.request(source, gives, given)

        def given(result: Message | SbonError) -> None:
            if not isinstance(result, SbonError):
                record.refed(old, new)
                self._seen.pop((record.id, old.id), None)

        if is_over or old.source in record.specs:
            self._directory.request(target, takes, ended if is_over else taken)
            return

        def used(result: Message | SbonError) -> None:
            if not isinstance(result, SbonError):
                self._directory.request(target, takes, taken)

        # Another query's operator may have been made again on another host, which does not know that this query uses it.
        self._directory.request(
            source, Use(operator=old.source, user=User(record.id, record.owner, None, record.plan.max_latency_ms)), used
        )


def _lacking(record: QueryRecord, link: LinkSpec, given: Renewed) -> Lacking:
    """Returns what is lacking because the former copy of an operator, or of operators behind it, had taken rows of a source that was away.

    Parameters
    ----------
    link : from the source to the operator
    given : the source's answer
    """
    account = record.health.healing.account
    made = account.made_with(link.target).intersection(behind([link.target], record.links)) & record.specs.keys()
    taken = newest_taken(record.specs, record.links, made, {first_name(link.id): given}, ())
    states = tuple([one for one in made if keeps_state(record.specs[one].params) and taken[one] != WATERMARK_MIN])
    none = dict.fromkeys(states, WATERMARK_MIN)  # they have given no answer that needs rows of this source
    lacking = {one: until_us for one, until_us in account.lacking.items() if one in states}
    return Lacking(states, stretches(record.specs, record.links, states, taken, none, lacking, {}))


def _all_before(record: QueryRecord, operator: OperatorId) -> frozenset[OperatorId]:
    """Returns an operator and all operators upstream of it."""
    found = {operator}
    for spec in reversed(record.specs):
        if any(link.source == spec and link.target in found for link in record.links):
            found.add(spec)
    return frozenset(found)
