"""Tells when the number of instances that the planner has chosen is no longer right. A machine without I/O.

    looked at with each round of reports -> plan anew, once rate or work have been off by `OFF_SHARE` for `OFF_S` -> `planned`, or `failed`

The new plan is for the rates measured at that moment, so that a rate which has changed once leads to one plan. A larger number is taken
when it is needed. A smaller number must carry `sizing.ROOM_LESS` times the rate, so that a rate which goes up and down does not change the
number each time.

The query's reason says which number it needs. The number changes by itself (`sbon.queries.adapting`), or on request.
"""

from collections.abc import Mapping

from msgspec import structs

from sbon.cost.placed_query import PlacedQuery
from sbon.query.instances import resting_on
from sbon.query.plan import Plan, Sizing
from sbon.types import OperatorId
from sbon.wire.reports import OperatorReport

OFF_SHARE = 0.2
OFF_S = 60.0
"""Time for which measured values must differ from predicted ones by more than `OFF_SHARE` before a query is planned or predicted again."""
HOT = 1.5
"""Multiple of the others' mean rows from which the surplus of the busiest instance counts as one key."""


def resizing_of(plan: Plan) -> "Resizing | None":
    """Returns the machine for the numbers of instances of a plan; None if the planner has not chosen them."""
    return Resizing(plan) if plan.sizings else None


class Resizing:
    """The numbers of instances of one running query.

    Parameters
    ----------
    plan : as placed, with `sizings`
    """

    def __init__(self, plan: Plan) -> None:
        self._sizings = plan.sizings
        self._kinds = {spec.id: str(spec.params.__struct_config__.tag) for spec in plan.operators}
        self._planned = [(sizing.rate_rows_per_s, sizing.cores) for sizing in plan.sizings]
        self._latest = list(self._planned)
        self._off_since_s: float | None = None
        self._is_asked = False
        self._hot: list[tuple[float, ...]] = [()] * len(plan.sizings)
        self.wanted = self.running
        """Number of instances that each sizing should have, by the last measurements."""
        self.problem = ""
        """One line on why no number is enough; empty if one is."""
        self.outlook = ""
        """Clause on whether the query changes to the wanted number by itself; empty if it does not."""

    @property
    def running(self) -> list[int]:
        """Returns the number of instances that each sizing has."""
        return [len(sizing.operators) for sizing in self._sizings]

    @property
    def why(self) -> str:
        """Describes the change to the wanted numbers."""
        return "; ".join(
            f"{self._kinds[sizing.operators[0]]}: {wanted} instead of {len(sizing.operators)}, {rate:,.0f} rows/s come and "
            f"{sizing.rate_rows_per_s:,.0f} were planned for"
            for sizing, wanted, (rate, _) in zip(self._sizings, self.wanted, self._planned, strict=True)
            if wanted != len(sizing.operators)
        )

    def look(self, reports: Mapping[OperatorId, OperatorReport], now: float) -> bool:
        """Takes a round of reports; returns whether to plan anew now: then call `planned` or `failed`."""
        found = [_measured(sizing, reports) for sizing in self._sizings]
        if self._is_asked or not all(found):
            return False
        self._latest = [one for one in found if one is not None]
        if not any(map(_is_off, self._latest, self._planned)):
            self._off_since_s = None
        elif self._off_since_s is None:
            self._off_since_s = now
        elif now - self._off_since_s >= OFF_S:
            self._is_asked = True
            self._hot = [_hottest(sizing, reports) for sizing in self._sizings]
        return self._is_asked

    def plan_anew(self, query: PlacedQuery) -> tuple[list[int], str]:
        """Returns the number of instances that each operator should have, and why no number is enough. Takes some hundredths of a second.

        Parameters
        ----------
        query : as it runs, with measured rates
        """
        from sbon.planning.sizing import ROOM_LESS, chosen

        cores = [one for _, one in self._latest]
        found, less = chosen(query, self._hot, cores), chosen(query, self._hot, cores, room=ROOM_LESS)
        both = zip(found.numbers, less.numbers, self.running, strict=True)
        return [number if number >= now else min(now, with_room) for number, with_room, now in both], found.problem

    def planned(self, numbers: list[int], problem: str) -> None:
        """Takes a new plan."""
        self.wanted, self.problem = numbers, problem
        self._planned, self._is_asked, self._off_since_s = list(self._latest), False, None

    def as_planned(self, plan: Plan) -> Plan:
        """Returns a plan with the wanted numbers, marked as planned for the last measurements."""
        known = zip(self._sizings, self._planned, strict=True)
        return resting_on(plan, [structs.replace(was, rate_rows_per_s=rate, cores=cores) for was, (rate, cores) in known])

    def failed(self) -> None:
        """Ends an attempt; the next one follows if the rates are still off after `OFF_S`."""
        self._is_asked, self._off_since_s = False, None

    @property
    def reason(self) -> str:
        """Describes which operators have too few instances for the incoming rows; empty if none has."""
        said = [
            f"{len(sizing.operators)} of {self._kinds[sizing.operators[0]]} were planned for {sizing.rate_rows_per_s:,.0f} rows/s, "
            f"{rate:,.0f} rows/s come and need {wanted}"
            for sizing, wanted, (rate, _) in zip(self._sizings, self.wanted, self._planned, strict=True)
            if wanted > len(sizing.operators)
        ]
        if said:
            said.append(self.outlook or "`sbon replan` gives them to it")
        return "; ".join(filter(None, [*said, self.problem]))


def _measured(sizing: Sizing, reports: Mapping[OperatorId, OperatorReport]) -> tuple[float, float] | None:
    """Returns the rows/s into all instances and the cores that they use; None while not all instances have reported."""
    told = [reports[one] for one in sizing.operators if one in reports and reports[one].cpu_ns_per_row is not None]
    if len(told) < len(sizing.operators):
        return None
    return sum(one.rows_per_s_in for one in told), sum((one.cpu_ns_per_row or 0.0) * one.rows_per_s_in / 1e9 for one in told)


def _is_off(measured: tuple[float, float], planned: tuple[float, float]) -> bool:
    return any(abs(now - then) > OFF_SHARE * then for now, then in zip(measured, planned, strict=True))


def _hottest(sizing: Sizing, reports: Mapping[OperatorId, OperatorReport]) -> tuple[float, ...]:
    """Returns the share of rows of the hottest key, estimated from the rows of several instances; empty if none stands out."""
    *others, most = sorted(reports[one].rows_per_s_in for one in sizing.operators)
    if not others or most <= HOT * (mean := sum(others) / len(others)):
        return ()
    return ((most - mean) / (most + sum(others)),)
