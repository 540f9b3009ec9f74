"""A host that dies for good. It runs only unpinned operators, so that all of them are placed elsewhere.

The check compares a query's rows with its owner's account of losses (`sbon_testbed.simulator.checkers.crashes`). If the owner reports
nothing, all rows must be there. A query that works row by row must lack exactly the counted rows, or at most as many if some of them are
earlier than the event time from which the check begins. Windows that the owner reports as left out must be missing, no others may be, and
no window may lack rows. Any query's rows must be right again from some time after the lost state, and after the event time that its sources
had reached when the owner last changed its report.
"""

from collections import Counter
from collections.abc import Callable
from datetime import datetime, timedelta

import numpy as np

from sbon.query.params.windowed import WindowParams
from sbon.supervision.account import Account, cost_of
from sbon.supervision.record import QueryRecord
from sbon.watermarks import WATERMARK_END, WATERMARK_MIN
from sbon_testbed.exactly_once.compare import difference
from sbon_testbed.exactly_once.queries import SETTLED_S, Row, Rows, rows_on_one_node
from sbon_testbed.simulator.case import Case
from sbon_testbed.simulator.checkers.crashes import unaccounted
from sbon_testbed.simulator.faults.schedule import Faults

EPOCH = datetime(1970, 1, 1)
HEAL_AFTER_S = 12.0
"""Virtual seconds until a dead host's operators are placed elsewhere; longer than any cut."""
AGAIN_S = 0.1
"""Virtual seconds until the host's death is tried again if it runs no operator yet."""
ROW_BY_ROW = ("union", "filter")
"""Queries without state."""
WINDOWS = "windows"
"""Name of the query whose answers are windows."""


class Death:
    """The host that dies, and what the queries' owners have reported since.

    Parameters
    ----------
    faults : the schedule that kills the host
    number : number of its node
    reached : returns the event time that a query's sources have reached, plus a margin
    """

    def __init__(self, case: Case, faults: Faults, number: int, reached: Callable[[str], datetime]) -> None:
        self.has_happened = False
        self._case, self._world, self._faults = case, case.world, faults
        self._number, self._reached = number, reached
        self._said: dict[str, tuple[str, datetime]] = {}
        """For each query, its owner's last report, and the event time that its sources had reached then."""
        faults.once("deaths", 0.3, 4.0, self._die)

    def _die(self, rng: np.random.Generator) -> None:
        """Kills the host if it runs an operator; otherwise moves all operators there that may move, and tries again."""
        if any(agent.name == self._world.nodes[self._number] for agent, _ in self._case.instances()):
            self._faults.end(rng, self._number, "death")
            self.has_happened = True
            return
        for agent, instance in list(self._case.instances()):
            if agent.execution.migrations.may_migrate(instance.id):
                agent.execution.migrations.migrate(instance.id, self._world.nodes[self._number], "moved by the story")
        self._faults.after(AGAIN_S, lambda: self._die(rng))

    def step(self, queries: list[str]) -> None:
        """Notes the owners' reports."""
        for query in queries:
            record = self.record_of(query)
            if record is not None and record.reason != self._said.get(query, ("",))[0]:
                self._said[query] = (record.reason, self._reached(query))

    def record_of(self, query: str) -> QueryRecord | None:
        """Returns the owner's record of a query; None if no agent has one."""
        found = (agent.queries.owned.find(query) for _, agent in self._case.agents())
        return next((record for record in found if record is not None), None)

    def problem(self, name: str, query: str, rows: Rows, first: datetime) -> str:
        """Describes the first difference between an ended query's rows and its owner's report; empty if there is none."""
        record = self.record_of(query)
        if record is None or not record.reason:
            return difference(name, rows, first)
        account = record.health.healing.account
        had = [row for row in rows if row[0] >= first]
        expected = [row for row in rows_on_one_node(name) if row[0] >= first]
        if name in ROW_BY_ROW or (account.is_exact and not has_lost_state(account) and feeds_sink_alone(record)):
            return unaccounted(had, expected, account, whole=rows_lost_from(account) >= first)
        whole, until = max(first, self._said[query][1]), state_until(account)
        if until is None or record.losses.rows:
            return difference(name, rows, whole)
        problem = difference(name, rows, min(whole, max(first, until + timedelta(seconds=SETTLED_S))))
        is_one = sum(isinstance(spec.params, WindowParams) for spec in record.specs.values()) == 1
        return problem or (left_out(had, expected, account) if name == WINDOWS and is_one else "")


def has_lost_state(account: Account) -> bool:
    """Tells whether answers lack rows of a lost state; no rows are counted for these."""
    return any(go_on.state_until_us is not None for done in account.history for go_on in done.go_on.values())


def feeds_sink_alone(record: QueryRecord) -> bool:
    """Tells whether operators that were made again feed only the sink, so that each row lost on its way there is a missing answer."""
    made = {operator for done in record.health.healing.account.history for operator in done.nodes}
    return {link.target for link in record.links if link.source in made} <= {record.sink}


def rows_lost_from(account: Account) -> datetime:
    """Returns an event time before all rows that were lost on their way: their consumers had seen it as a watermark."""
    all_lost = [go_on for done in account.history for go_on in done.go_on.values() if any(go_on.lost_rows.values())]
    seen_us = min((go_on.watermark_out_us for go_on in all_lost), default=WATERMARK_END)
    return (
        EPOCH + timedelta(microseconds=seen_us) if WATERMARK_MIN < seen_us < WATERMARK_END else datetime.min if all_lost else datetime.max
    )


def left_out(had: list[Row], expected: list[Row], account: Account) -> str:
    """Describes how the missing windows differ from those reported as left out; empty if they do not."""
    if extra := Counter(had) - Counter(expected):
        return f"{extra.total()} rows that one node does not give, such as {next(iter(extra))}"
    missing = {row[0] for row in expected} - {row[0] for row in had}
    if any(row[0] not in missing for row in (Counter(expected) - Counter(had))):
        return "a window lacks some of its rows"
    said = [cost_of(done).windows for done in account.history]
    if None not in said and len(missing) != sum(filter(None, said)):
        return f"{len(missing)} windows are missing, and {said} are reported as left out"
    return ""


def state_until(account: Account) -> datetime | None:
    """Returns the event time up to which lost states had taken rows; None if no state was lost, its time is unknown, or other rows were
    lost, too."""
    all_lost = [go_on for done in account.history for go_on in done.go_on.values()]
    times = [go_on.state_until_us for go_on in all_lost if go_on.state_until_us is not None]
    if (
        not times
        or max(times) >= WATERMARK_END
        or any(go_on.state_until_us is None and any(go_on.lost_rows.values()) for go_on in all_lost)
    ):
        return None
    return EPOCH + timedelta(microseconds=max(times))
