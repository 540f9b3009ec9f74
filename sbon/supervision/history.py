"""The history of one query: its first placement, moves, losses and recoveries, and its end. The query's record keeps the latest entries."""

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import msgspec

from sbon.supervision.account import cost_of
from sbon.supervision.recovery import Recovered
from sbon.types import NodeId, OperatorId, QueryId

HAPPENINGS_MAX = 100
"""Most happenings of a query that are remembered; the oldest give way."""


class Change(msgspec.Struct, frozen=True):
    """An operator in a happening, with its hosts before and after."""

    operator: OperatorId
    before: NodeId | None
    """None: it did not run before."""
    node: NodeId | None
    """None: it does not run."""


class Happening(msgspec.Struct, frozen=True):
    """Something that has happened to a query."""

    at_wall_s: float
    event: str
    """One of: placed, restarted, inherited, moved, recovering, recovered, replanned, ended."""
    operators: tuple[Change, ...] = ()
    reason: str = ""
    seconds: float | None = None
    """Seconds of a recovery since the first operator was lost."""
    attempts: int | None = None
    rows: int | None = None
    """Rows that are lost."""
    windows: int | None = None
    """Number of windows that lack rows or are left out, including windows without rows; None if unknown."""
    is_exact: bool | None = None
    """False: at least so many rows are lost, and some may come twice."""

    def told(self, text_of: Callable[[OperatorId], str]) -> dict[str, Any]:
        """Returns the happening as `sbon queries --history --json` shows it."""
        return {
            "at_wall_s": self.at_wall_s,
            "event": self.event,
            "operators": [
                {"id": one.operator, "text": text_of(one.operator), "from": one.before, "node": one.node} for one in self.operators
            ],
            "reason": self.reason,
            "seconds": None if self.seconds is None else round(self.seconds, 3),
            "attempts": self.attempts,
            "rows": self.rows,
            "windows": self.windows,
            "exact": self.is_exact,
        }


class History:
    """The latest happenings of one query.

    Invariant: `_places` has the hosts of the last `look`, so that each change of a host is noted once, whoever reports it.
    """

    def __init__(self) -> None:
        self.migrations = 0
        """Number of moves of operators."""
        self.first: QueryId = ""
        """Id under which the query was submitted, if it has started again since."""
        self._happenings: deque[Happening] = deque(maxlen=HAPPENINGS_MAX)
        self._places: dict[OperatorId, NodeId] = {}

    def placed(self, nodes: Mapping[OperatorId, NodeId], wall_s: float) -> None:
        """Notes where the query begins."""
        self._places = dict(nodes)
        self._happenings.append(Happening(wall_s, "placed", tuple(Change(operator, None, node) for operator, node in nodes.items())))

    def restarted(self, former: str, wall_s: float) -> None:
        """Notes that the query's home has restarted, and runs it again."""
        self._happenings.append(Happening(wall_s, "restarted", reason=f"its home has restarted; its id was {former}"))

    def inherited(
        self, happenings: Iterable[Happening], migrations: int, former: NodeId, nodes: Mapping[OperatorId, NodeId], wall_s: float
    ) -> None:
        """Takes over the former owner's happenings, and notes that the query has another owner."""
        self.migrations, self._places = migrations, dict(nodes)
        self._happenings.extend([*happenings, Happening(wall_s, "inherited", reason=f"its owner {former} is gone")])

    def latest(self, most: int) -> tuple[Happening, ...]:
        """Returns the latest happenings, oldest first."""
        return tuple(self._happenings)[-most:]

    def look(self, nodes: Mapping[OperatorId, NodeId], wall_s: float) -> None:
        """Notes operators that have moved since the last look."""
        known = self._places
        changes = tuple(Change(operator, known[operator], node) for operator, node in nodes.items() if known.get(operator, node) != node)
        self._places = dict(nodes)
        if changes:
            self.migrations += len(changes)
            self._happenings.append(Happening(wall_s, "moved", changes))

    def recovering(self, lost: Iterable[OperatorId], reason: str, wall_s: float) -> None:
        """Notes that lost operators are being made again."""
        changes = tuple(Change(operator, self._places.get(operator), None) for operator in sorted(lost))
        self._happenings.append(Happening(wall_s, "recovering", changes, reason))

    def recovered(self, done: Recovered, nodes: Mapping[OperatorId, NodeId], wall_s: float) -> Happening:
        """Notes that lost operators run again; returns the happening. Other operators that have moved are noted first.

        Parameters
        ----------
        nodes : where the query's operators are now
        """
        before = {operator: self._places[operator] for operator in done.nodes if operator in self._places}
        self.look({**nodes, **before}, wall_s)
        self._places |= done.nodes
        changes = tuple(Change(operator, before.get(operator), node) for operator, node in sorted(done.nodes.items()))
        cost = cost_of(done)
        why = "all operators have begun again, from the first rows of the files" if done.is_rerun else ""
        happening = Happening(wall_s, "recovered", changes, why, done.seconds, done.attempts, cost.rows, cost.windows, cost.is_exact)
        self._happenings.append(happening)
        return happening

    def replanned(self, nodes: Mapping[OperatorId, NodeId], reason: str, wall_s: float) -> None:
        """Notes that the query has another plan."""
        before, self._places = self._places, dict(nodes)
        gone = [Change(operator, node, None) for operator, node in before.items() if operator not in nodes]
        new = [Change(operator, None, node) for operator, node in nodes.items() if operator not in before]
        self._happenings.append(Happening(wall_s, "replanned", (*gone, *new), reason))

    def ended(self, how: str, wall_s: float) -> None:
        """Notes that the query is over."""
        self._happenings.append(Happening(wall_s, "ended", reason=how))

    def told(self, text_of: Callable[[OperatorId], str], happenings_max: int = HAPPENINGS_MAX) -> list[dict[str, Any]]:
        """Returns the latest happenings, oldest first, as `sbon queries --history --json` shows them."""
        return [one.told(text_of) for one in [*self._happenings][-happenings_max:]]
