"""Counts what crashes have cost a query: missing rows, and states that began empty. The query's record holds the account."""

from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from typing import Any, NamedTuple

import msgspec

from sbon.links.link_names import first_name, renewals
from sbon.links.origins import of_part
from sbon.query.plan import Begin, LinkSpec
from sbon.supervision.continuation import Continuation, begins_with, merged
from sbon.supervision.generations import generation, next_generation
from sbon.supervision.left_out import Stretch
from sbon.supervision.plans import Plans
from sbon.supervision.recovery import Recovered
from sbon.supervision.recovery_picture import Rules
from sbon.types import LinkId, NodeId, OperatorId
from sbon.watermarks import WATERMARK_END, WATERMARK_MIN
from sbon.wire.deployment import User
from sbon.wire.ownership import Holder
from sbon.wire.reports import FilePosition, OperatorReport

HISTORY_MAX = 100
"""Most recoveries of a query that are remembered."""


class Cost(NamedTuple):
    """The losses that one recovery has found."""

    rows: int
    is_exact: bool
    """False: at least so many rows are missing, and some may have come twice."""
    windows: int | None
    """Number of windows that lack rows or are left out, including windows without rows; None if unknown."""


def cost_of(done: Recovered) -> Cost:
    """Returns what a recovery has found missing."""
    windows = [go_on.windows for go_on in done.go_on.values()]
    return Cost(
        sum(sum(go_on.lost_rows.values()) for go_on in done.go_on.values()),
        all(go_on.is_exact for go_on in done.go_on.values()),
        None if None in windows else sum(filter(None, windows)),
    )


class Account:
    """Losses of one query by crashes of hosts."""

    def __init__(self) -> None:
        self.missing: dict[LinkId, int] = {}
        """Rows known to be lost with crashed hosts. The key is the first name of the link that carried them, or the sink that had taken
        them."""
        self.is_exact = True
        """False: at least so many rows are missing, and some may have come twice."""
        self.history: list[Recovered] = []
        self.recoveries = 0
        self.first_begun_at: dict[OperatorId, int] = {}
        """Place in the file of a sink at which the query's rows began before any crash."""

    def begun(self, found: Recovered) -> None:
        """Records the losses of an attempt that is about to make operators. They count even if the attempt fails or the query ends. A rerun
        makes good what earlier recoveries have lost."""
        if found.is_rerun:
            self.missing.clear()
            self.is_exact = True
            self.history = [_made_good(done) for done in self.history]
        for go_on in found.go_on.values():
            self.is_exact = self.is_exact and go_on.is_exact
            for link, rows in go_on.lost_rows.items():
                self.missing[link] = self.missing.get(link, 0) + rows
        before = self._take_open()
        if before is not None:
            both = {one: merged(before.go_on[one], go_on) if one in before.go_on else go_on for one, go_on in found.go_on.items()}
            found = msgspec.structs.replace(found, nodes={**before.nodes, **found.nodes}, go_on={**before.go_on, **both})
        self._enter(msgspec.structs.replace(found, is_open=True))

    def add(self, done: Recovered) -> Recovered | None:
        """Records that operators run again, or are not needed any more. Returns the losses of all attempts; None if nothing was lost."""
        if done.nodes and not any(one.is_open and one.epoch == done.epoch for one in self.history):
            self.begun(done)
        found = self._take_open()
        if found is None:
            return None
        parts = []
        for is_open in (False, True):
            here = {one: node for one, node in found.nodes.items() if is_open == (one not in done.nodes and one not in done.over)}
            go_on = {one: found.go_on[one] for one in here if one in found.go_on}
            parts.append(msgspec.structs.replace(found if is_open else done, nodes=here, go_on=go_on, is_open=is_open))
        for part in parts:
            if part.nodes:
                self._enter(part)
        if not parts[0].nodes:
            return None
        self.recoveries += 1
        return parts[0]

    @property
    def rerun_in_vain(self) -> bool:
        """True if a rerun has not told what the query lacks, because its sink cannot compare rows."""
        return any(done.is_rerun and not all(go_on.is_exact for go_on in done.go_on.values()) for done in self.history)

    @property
    def lacking(self) -> dict[OperatorId, int]:
        """Event times up to which operators that began empty lack rows."""
        found: dict[OperatorId, int] = {}
        for done in self.history:
            for operator, go_on in done.go_on.items():
                if go_on.state_until_us is not None:
                    found[operator] = max(go_on.state_until_us, found.get(operator, go_on.state_until_us))
        return found

    def _enter(self, done: Recovered) -> None:
        self.history = [*self.history, done][-HISTORY_MAX:]

    def _take_open(self) -> Recovered | None:
        found = next((done for done in self.history if done.is_open), None)
        self.history = [done for done in self.history if not done.is_open]
        return found

    def not_written(self, sink: OperatorId, rows: int) -> None:
        """Records how many rows former copies of a sink had taken but not written, over all crashes of their hosts."""
        more = rows - self.missing.get(sink, 0)
        if more <= 0:
            return
        self.missing[sink] = rows
        for place, done in reversed([*enumerate(self.history)]):
            if sink in done.go_on:
                known = done.go_on[sink]
                lost = {**known.lost_rows, sink: known.lost_rows.get(sink, 0) + more}
                go_on = {**done.go_on, sink: msgspec.structs.replace(known, lost_rows=lost)}
                self.history[place] = msgspec.structs.replace(done, go_on=go_on)
                return

    def begins_fresh(self, sink: OperatorId, epoch: int) -> bool:
        """Tells whether the sink that was made again under `epoch` counts none of the rows that former copies have written."""
        done = next((done for done in reversed(self.history) if sink in done.go_on), None)
        return done is not None and done.epoch == epoch and done.go_on[sink].is_fresh

    @property
    def resumed(self) -> frozenset[OperatorId]:
        """Operators whose present copies began at a watermark: rows that come again below it count as late, although they were not."""
        latest = {operator: go_on.watermark_us for done in self.history for operator, go_on in done.go_on.items()}
        return frozenset(operator for operator, watermark_us in latest.items() if watermark_us > WATERMARK_MIN)

    @property
    def matching(self) -> frozenset[OperatorId]:
        """Sinks that have not left out yet all rows that they have found in their files (`Continuation.matches`)."""
        latest = {operator: go_on.matches for done in self.history for operator, go_on in done.go_on.items()}
        return frozenset(operator for operator, matches in latest.items() if matches)

    def has_matched(self, sink: OperatorId, epoch: int) -> None:
        """Records that a sink, made again under `epoch`, has left out all rows that it has found in its file."""
        for place, done in reversed([*enumerate(self.history)]):
            go_on = done.go_on.get(sink)
            if go_on is not None:
                if go_on.matches and done.epoch == epoch:
                    found = msgspec.structs.replace(go_on, matches=False)
                    self.history[place] = msgspec.structs.replace(done, go_on={**done.go_on, sink: found})
                return

    def has_left_over(self, sink: OperatorId, epoch: int, rows: int) -> None:
        """Records that the file of a sink, made again under `epoch`, has rows that have not come again although all rows of the query
        have: they were given while rows were missing, or twice."""
        for place, done in reversed([*enumerate(self.history)]):
            go_on = done.go_on.get(sink)
            if go_on is not None:
                if go_on.matches and done.epoch == epoch:
                    found = msgspec.structs.replace(go_on, matches=False, surplus_rows=rows)
                    self.history[place] = msgspec.structs.replace(done, go_on={**done.go_on, sink: found})
                return

    def not_found(self, sink: OperatorId, epoch: int) -> None:
        """Records that a sink, made again under `epoch`, cannot tell which rows of each input and origin its former copy has written."""
        for place, done in reversed([*enumerate(self.history)]):
            go_on = done.go_on.get(sink)
            if go_on is not None and go_on.by_word and done.epoch == epoch:
                self.is_exact = False
                found = msgspec.structs.replace(go_on, is_exact=False, by_word=False)
                self.history[place] = msgspec.structs.replace(done, go_on={**done.go_on, sink: found})
                return

    def lacks(self, operator: OperatorId, lacking: Mapping[OperatorId, Stretch], *, ahead_us: int, is_told: bool) -> None:
        """Records that an operator which began empty lacks rows, because one of its feeders was away.

        Parameters
        ----------
        lacking : the stretches of the operator, and of all behind it
        ahead_us : the event time up to which it had given answers when its feeder was back
        is_told : False if operators do not know what to leave out
        """
        for place, done in reversed([*enumerate(self.history)]):
            if operator in done.go_on:
                known, stretch = done.go_on[operator], lacking[operator]
                until_us = WATERMARK_END if stretch.until_us is None else stretch.until_us
                if known.state_until_us is not None and known.state_until_us >= until_us:
                    return
                is_exact = is_told and ahead_us <= known.watermark_us and all(one.is_known for one in lacking.values())
                self.is_exact = self.is_exact and is_exact
                found = msgspec.structs.replace(
                    known,
                    state_until_us=until_us,
                    is_exact=known.is_exact and is_exact,
                    begin=stretch.begin,
                    begin_behind={one: found.begin for one, found in lacking.items() if one != operator and found.begin is not None},
                    whole_us=max(one.whole_us for one in lacking.values()),
                    windows=None,
                )
                self.history[place] = msgspec.structs.replace(done, go_on={**done.go_on, operator: found})
                return

    def made_with(self, operator: OperatorId) -> frozenset[OperatorId]:
        """Returns the operators that were made again together with an operator, the last time; none if it never was."""
        return frozenset(next((done.go_on for done in reversed(self.history) if operator in done.go_on), ()))

    def has_begun_without(self, link: LinkSpec, links: Iterable[LinkSpec]) -> bool:
        """Tells whether the target of a link was made again together with one of its consumers while the source was away. Both then expect
        all rows of the source once more.

        Parameters
        ----------
        link : with the id that the recovery gave it
        """
        done = next((done for done in reversed(self.history) if link.target in done.go_on), None)
        if done is None or renewals(link.id) != generation(done.epoch) or not begins_with(done.go_on[link.target], link):
            return False
        return any(one.source == link.target and one.target in done.go_on for one in links)

    def rejoined(self, link: LinkSpec, made: tuple[int, ...] | None, outputs: Iterable[LinkSpec]) -> None:
        """Counts the rows that the feeder of an operator with several inputs has forgotten and that the operator's consumers never had.

        The operator was made again while its feeder was cut off together with the old copy, which ran on.

        Parameters
        ----------
        link : from the feeder to the operator, with the id that the recovery gave it
        made : rows that the old copy had made of what the feeder has forgotten, of each part; None if unknown
        outputs : the operator's output links
        """
        for place, done in reversed([*enumerate(self.history)]):
            go_on = done.go_on.get(link.target)
            if go_on is None:
                continue
            if renewals(link.id) == generation(done.epoch) and begins_with(go_on, link):
                lost = dict(go_on.lost_rows)
                number = sorted(go_on.made).index(first_name(link.id))
                for output in outputs if made is not None else ():
                    name = first_name(output.id)
                    rows = of_part(made or (), output) - (go_on.skips[name][number] if name in go_on.skips else 0)
                    if rows > 0:
                        lost[name] = lost.get(name, 0) + rows
                        self.missing[name] = self.missing.get(name, 0) + rows
                self.is_exact = self.is_exact and made is not None
                found = msgspec.structs.replace(go_on, lost_rows=lost, is_exact=go_on.is_exact and made is not None)
                self.history[place] = msgspec.structs.replace(done, go_on={**done.go_on, link.target: found})
            return

    @property
    def rows(self) -> int:
        """Number of rows that are missing."""
        return sum(self.missing.values())

    @property
    def surplus_rows(self) -> int:
        """Number of rows in the file of the sink that an undisturbed run of the query does not give."""
        return sum(go_on.surplus_rows for done in self.history for go_on in done.go_on.values())

    def sentences(self, text_of: Callable[[OperatorId], str]) -> list[str]:
        """Returns sentences about the operators whose recovery has lost or repeated rows."""
        found = []
        for done in self.history:
            if done.is_rerun and any(go_on.matches for go_on in done.go_on.values()):
                found.append("all operators began again after a crash: the sink leaves out the rows that its file has, as they come again")
            for operator, go_on in sorted(done.go_on.items()):
                runs = "is being made" if done.is_open else "runs"
                what = f"{operator} ({text_of(operator)}) {runs} again on {done.nodes[operator]} after a crash"
                lost = sum(go_on.lost_rows.values())
                if go_on.state_until_us is not None:
                    until, begin = _instant(go_on.state_until_us) or "now", _begin(go_on)
                    left_out = f"; those that begin before {begin} are left out{_cut(go_on.begin)}" if begin is not None else ""
                    for one, first in sorted(go_on.begin_behind.items()):
                        left_out += f"; {one} ({text_of(one)}) leaves out those before {_instant(first.us) or 'now'}{_cut(first)}"
                    found.append(f"{what} and began empty: answers up to {until} lack what it had taken{left_out}")
                if go_on.late_until_us is not None:
                    until = _instant(go_on.late_until_us) or "now"
                    found.append(f"{what}: what it feeds went on without it, and answers up to {until} may lack its rows")
                if go_on.surplus_rows:
                    rows = f"{go_on.surplus_rows:,} rows of its file have not come again"
                    found.append(f"{what}: {rows}, because they were given while rows were missing, or came twice")
                if go_on.repeats_all:
                    found.append(f"{what} and gives its rows from the first one again: those that it had given come twice")
                elif lost or not go_on.is_exact:
                    rows = f"{lost:,} rows" if go_on.is_exact else f"at least {lost:,} rows" if lost else "rows that were under way may be"
                    found.append(f"{what}: {rows} {'lost' if go_on.is_exact or lost else 'lost, or come twice'}")
        return found

    def told(self, text_of: Callable[[OperatorId], str]) -> list[dict[str, Any]]:
        """Returns one object for each recovery, oldest first, as `sbon queries --json` shows it."""
        costs = [(done, cost_of(done)) for done in self.history]
        return [
            {
                "seconds": round(done.seconds, 3),
                "attempts": done.attempts,
                "rows": cost.rows,
                "exact": cost.is_exact,
                "rerun": done.is_rerun,
                "surplus_rows": sum(go_on.surplus_rows for go_on in done.go_on.values()),
                "windows": cost.windows,
                "operators": [
                    {
                        "id": operator,
                        "text": text_of(operator),
                        "node": node,
                        "epoch": done.epoch,
                        "state_lost_until": _instant(done.go_on[operator].state_until_us),
                        "left_out_before": _begin(done.go_on[operator]),
                        "left_out_behind": {one: _instant(first.us) for one, first in sorted(done.go_on[operator].begin_behind.items())},
                        "late_until": _instant(done.go_on[operator].late_until_us),
                    }
                    for operator, node in sorted(done.nodes.items())
                ],
            }
            for done, cost in costs
        ]


class Healing:
    """The recoveries of a query, as its record keeps them."""

    def __init__(self) -> None:
        self.is_on = False
        """True: operators lost with their hosts are made again."""
        self.rules = Rules()
        """The settings of the owner."""
        self.began_s = 0.0
        """When the query began, in monotonic seconds of its home."""
        self.step = ""
        """The present step of a recovery; empty if there is none."""
        self.waits_for = ""
        """Reason why lost operators cannot be made again now; empty if there is none."""
        self.account = Account()
        self.over: set[OperatorId] = set()
        """Operators that are gone and no longer needed."""
        self.unmade: dict[OperatorId, OperatorReport] = {}
        """Last reports of other queries' operators that are gone and not made again, because those queries have finished."""
        self.others: dict[OperatorId, tuple[User, ...]] = {}
        """Other queries that use an operator, by its last report to this owner or a former one; missing if it has not reported."""
        self.shared: frozenset[OperatorId] = frozenset()
        """Operators that other queries use, and their feeders, as last written to disk."""
        self.begun_at: dict[OperatorId, int] = {}
        """Place in the file of a sink at which the query's rows begin."""
        self.positions: dict[OperatorId, FilePosition] = {}
        """File positions that hosts have kept of sources that are missing there."""
        self.attempted = 0
        """The highest epoch that an attempt or a replaced link has used, or that a former owner of the query may have used."""
        self.plans = Plans()
        self.turned: frozenset[OperatorId] = frozenset()
        """Operators of the present attempt and of failed ones. They count as lost until an attempt has made them, also for the query's next
        owner."""
        self.keepers: tuple[NodeId, ...] = ()
        """The agents that keep the query's record, and take the query over if its owner fails."""
        self.holders: tuple[tuple[Holder, ...], ...] = ()
        """Sets of processes that may have the record, including the owner. The owner's next process must know them."""
        self.named = 0
        """Version of the sink's name in the catalogue, for a new owner that has not heard of it; 0 if there is none."""
        self.ownership = ""
        """Reason why the owner changes nothing, or why nobody takes the query over; empty if all is well."""
        self.is_cut_off = False
        """True while too few keepers answer: nothing of the query is moved or made again."""

    def heard_position(self, report: OperatorReport) -> None:
        """Records the file position that a host has kept of a source that is missing there."""
        if report.state == "missing" and report.position is not msgspec.UNSET:
            self.positions[report.id] = report.position
        else:
            self.positions.pop(report.id, None)

    def begun(self, found: Recovered) -> None:
        """Records the losses of an attempt that is about to make operators."""
        self.account.begun(found)
        if found.is_rerun:
            self.begun_at.update(self.account.first_begun_at)
        for sink, go_on in found.go_on.items():
            if go_on.fresh and not go_on.by_word:  # the rows in its file cannot be compared with those to come
                self.begun_at.pop(sink, None)

    def heard_begin(self, report: OperatorReport) -> None:
        """Records where a sink begins in its file, unless it has opened the file behind rows of former copies that count."""
        if report.begun_at is None or self.plans.is_replanned:
            return
        self.account.has_matched(report.id, report.epoch)
        if not generation(report.epoch):
            self.begun_at.setdefault(report.id, report.begun_at)
            self.account.first_begun_at.setdefault(report.id, report.begun_at)
        elif self.account.begins_fresh(report.id, report.epoch) and not self.account.missing.get(report.id):
            self.begun_at[report.id] = report.begun_at

    def begins_anew(self) -> int:
        """Returns a new epoch, used by nothing else, for an operator that is made again or a link that is replaced."""
        self.attempted = next_generation(self.attempted)
        return self.attempted

    @property
    def said(self) -> str:
        """Describes a recovery that is under way, or waits; empty if there is none."""
        return self.step or self.waits_for


def _made_good(done: Recovered) -> Recovered:
    """Returns a recovery of which no loss is left."""
    return msgspec.structs.replace(done, go_on=dict.fromkeys(done.go_on, Continuation()))


def _begin(go_on: Continuation) -> str | None:
    return None if go_on.begin is None else _instant(go_on.begin.us)


def _cut(begin: Begin | None) -> str:
    return f", and the next {begin.rows:,} rows of each key" if begin is not None and begin.rows else ""


def _instant(us: int | None) -> str | None:
    """Returns an event time as text; None if there is none, `end` for the end of the stream."""
    if us is None or us <= WATERMARK_MIN:
        return None
    if us >= WATERMARK_END:
        return "end"
    try:
        return datetime.fromtimestamp(us / 1e6, UTC).isoformat()
    except (OverflowError, ValueError, OSError):
        return str(us)
