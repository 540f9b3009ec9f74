"""The health of a query's operators, as its home knows it: a table from an operator's condition and news about it to its new condition.

`sbon.supervision.record` translates reports into news. A host's report on an operator replaces all earlier knowledge of it. The departure
of a host is news only for operators that have not been lost already.
"""

from enum import Enum

from sbon.supervision.account import Healing
from sbon.types import OperatorId


class Condition(Enum):
    """The condition of one operator, as its home knows it."""

    WELL = "well"
    STALLED = "stalled"
    """A sink that accepts nothing at present: answers wait, and none is lost."""
    IDLE = "idle"
    """It runs but does nothing, because its feeders or its consumers are gone."""
    CUT_OFF = "cut off"
    """It has given up a link of the query."""
    FAILED = "failed"
    MISSING = "missing"
    """Its host has restarted and does not know it."""
    AWAY = "away"
    """Its host has been declared failed, and may come back."""
    LEFT = "left"
    """Its host has left in good order."""


class News(Enum):
    """News about an operator: from its host, or from the membership about its host."""

    RUNS = "runs"
    STALLS = "stalls"
    IDLES = "idles"
    GAVE_UP_LINK = "gave up a link"
    FAILED = "failed"
    MISSING = "missing"
    HOST_FAILED = "host failed"
    HOST_LEFT = "host left"


GONE = frozenset({Condition.FAILED, Condition.MISSING})
"""Operators that will not come back."""
LOST = GONE | {Condition.CUT_OFF, Condition.AWAY, Condition.LEFT}
WITH_HOST = frozenset({Condition.MISSING, Condition.AWAY, Condition.LEFT})
"""Operators that are gone because their hosts are, and not by a fault of their own."""
DEGRADING = LOST | {Condition.IDLE}

_REPORTED = {
    News.RUNS: Condition.WELL,
    News.STALLS: Condition.STALLED,
    News.IDLES: Condition.IDLE,
    News.GAVE_UP_LINK: Condition.CUT_OFF,
    News.FAILED: Condition.FAILED,
    News.MISSING: Condition.MISSING,
}
_OF_HOST = {News.HOST_FAILED: Condition.AWAY, News.HOST_LEFT: Condition.LEFT}

TABLE: dict[tuple[Condition, News], Condition] = {
    (before, news): before if before in GONE and news in _OF_HOST else after
    for before in Condition
    for news, after in (_REPORTED | _OF_HOST).items()
}
"""The next condition, by the present one and the news."""


class Health:
    """The conditions of one query's operators, with the reasons."""

    def __init__(self) -> None:
        self._known: dict[OperatorId, tuple[Condition, str]] = {}
        self.healing = Healing()

    def heard(self, operator: OperatorId, news: News, reason: str = "") -> None:
        """Takes news of an operator. Condition and reason stay if the news is only that the host of a gone operator has gone, too."""
        after = TABLE[self.of(operator), news]
        if not (after in GONE and news in _OF_HOST):
            self._known[operator] = (after, reason)

    def of(self, operator: OperatorId) -> Condition:
        """Returns what is known of an operator."""
        return self._known.get(operator, (Condition.WELL, ""))[0]

    def forget(self, operator: OperatorId) -> None:
        """Forgets an operator that the query does not use any more."""
        self._known.pop(operator, None)

    def those(self, conditions: frozenset[Condition]) -> list[OperatorId]:
        """Returns the operators in one of these conditions, in order of name."""
        return sorted(operator for operator, (condition, _) in self._known.items() if condition in conditions)

    @property
    def is_degraded(self) -> bool:
        """True if something is lost, or does nothing."""
        return bool(self.those(DEGRADING))

    @property
    def reasons(self) -> list[str]:
        """Returns what is wrong, one sentence for each operator; sinks that are only stalled come last."""
        return [self._known[one][1] for one in (*self.those(DEGRADING), *self.those(frozenset({Condition.STALLED})))]
