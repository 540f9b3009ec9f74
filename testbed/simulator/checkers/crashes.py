"""Checks losses through killed agents: only queries that they served lose rows, owners report losses, and operators are soon made again.

Before an agent is killed, the queries that it serves are noted: only these may lack rows. When the faults have ended and all agents run
again, their operators must run again within `BACK_S`, and the queries must come to their end. If their home reports no losses, all rows
must be there. A query that works row by row must have no wrong rows, and if the home has counted losses exactly, it must lack exactly as
many rows. If the home of another query says that it knows exactly what is lost, the query must have no wrong rows, and all rows from the
first window on that is not left out.
"""

from collections import Counter
from collections.abc import Sequence
from typing import Any

from sbon.supervision.account import Account
from sbon.supervision.record import QueryRecord, QueryState
from sbon_testbed.random_queries.comparing import difference, differing
from sbon_testbed.random_queries.data import TIME
from sbon_testbed.random_queries.parts import Query
from sbon_testbed.simulator.checkers.base import Checker
from sbon_testbed.simulator.workload import ROW_BY_ROW, Asked

BACK_S = 30.0
"""Virtual seconds after the faults in which lost operators must run again."""


def unaccounted(found: Sequence[Any], expected: Sequence[Any], account: Account | None, *, whole: bool = True) -> str:
    """Describes how the missing rows of a query that works row by row differ from its owner's count of lost rows; empty if they do not.

    Parameters
    ----------
    expected : rows of a run on one node
    account : the owner's count; if it is not exact, any rows may be missing or repeated. None if no agent knows the query
    whole : False if counted rows may not be among the expected ones, so that fewer may be missing
    """
    if account is not None and not account.is_exact:
        return ""
    had, wanted = Counter(map(repr, found)), Counter(map(repr, expected))
    extra, surplus = had - wanted, account.surplus_rows if account is not None else 0
    if problem := _differs([*extra.elements()], surplus):
        return problem
    missing = (wanted - had).total()
    if account is None or missing == account.rows or (missing < account.rows and not whole):
        return ""
    return f"lacks {missing} rows, and its home counts {account.rows}"


def unsaid(found: Sequence[Any], expected: Sequence[Any], query: Query, account: Account) -> str:
    """Describes wrong or missing rows of a query with state although its owner says exactly which answers lack rows; empty if there are
    none.

    Parameters
    ----------
    expected : rows of a run on one node
    """
    if not account.is_exact or account.rows:
        return ""
    extra, lacking = differing(found, expected, query.tolerances)
    if problem := _differs(extra, account.surplus_rows):
        return problem
    whole = [go_on.whole_us for done in account.history for go_on in done.go_on.values() if go_on.whole_us is not None]
    if lacking and not whole:
        return f"lacks {len(lacking)} rows, such as {lacking[0]}, and its home counts none"
    late = [row for row in lacking if row[0] is not None and row[0] >= max(whole)] if query.kinds[0] == TIME else []
    return f"lacks {late[0]}, and its home says that answers from {max(whole)} on are whole" if late else ""


def _differs(extra: Sequence[Any], surplus: int) -> str:
    """Describes how the rows that one node does not give differ in number from those that the owner counts; empty if they do not."""
    if len(extra) == surplus:
        return ""
    counted = f", and its home counts {surplus} of {len(extra)}" if surplus else ""
    return f"has rows that one node does not give, such as {extra[0]}{counted}" if extra else f"has only right rows{counted}"


class Crashes(Checker):
    """Judges the harmed queries, whoever owns them now."""

    def look(self) -> str:
        """Returns the first operator that is still lost long after the faults."""
        if self.run.calm_s is None or self.run.world.now < self.run.calm_s + BACK_S:
            return ""
        for asked, record in self._harmed():
            if record is not None and record.lost and record.state is not QueryState.FINISHED:
                return f"{', '.join(sorted(record.lost))} of {asked.name} are lost {BACK_S:g} s after the faults: {record.reason}"
        return ""

    def converged(self) -> str:
        """Returns the first harmed query that has not come to its end."""
        for asked, record in self._harmed():
            if record is None:
                return f"{asked.name} is unknown to all agents"
            if record.state is not QueryState.FINISHED:
                return f"{asked.name} is {record.state.value} ({record.reason}), and {self.run.harmed[asked.name]}"
        return ""

    def end(self) -> str:
        """Returns the first harmed query that lacks rows without a reason, or has unexpected rows."""
        for asked, record in self._harmed():
            if self.run.is_submitted_again(asked.name):
                continue
            query, expected = asked.query, self.run.reference.rows[asked.name]
            found = asked.rows(self.run.world.data_dir_of(asked.sink))
            why = self.run.harmed[asked.name]
            account = record.health.healing.account if record is not None else None
            if record is not None and not record.reason:
                problem = difference(found, expected, query.tolerances, ordered=query.ordered)
                if problem:
                    return f"{asked.name} has ended without a reason after {why}: {problem}"
            if query.shape not in ROW_BY_ROW:
                # A query may have other reasons: a source that has left for good, for example, whose rows nobody counts.
                is_all = record is not None and account is not None and record.reason == "; ".join(account.sentences(record.text_of))
                problem = unsaid(found, expected, query, account) if account is not None and is_all else ""
                if problem:
                    return f"{asked.name} {problem}, after {why}"
                continue
            if any(tolerance > 1e-9 for tolerance in query.tolerances):
                continue
            if problem := unaccounted(found, expected, account):
                return f"{asked.name} {problem}, after {why}"
        return ""

    def _harmed(self) -> list[tuple[Asked, QueryRecord | None]]:
        return [(asked, self.run.record_of(asked.name)) for asked in self.run.reference.queries if asked.name in self.run.harmed]
