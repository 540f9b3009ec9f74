"""Adapts running queries to their measured rates without a person: their numbers of instances, or the order of their operators.

`sbon.supervision.own_changes` decides when. `Forecasting` calls this module with each round of reports.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

import structlog

from sbon.errors import PlacementError, SbonError
from sbon.optimiser.config import OptimiserConfig
from sbon.ports import Clock
from sbon.supervision.record import QueryRecord
from sbon.supervision.replans import Replans
from sbon.types import NodeId


class Resize(Protocol):
    """Gives a query the wanted numbers of instances. `done` gets the point where its sink crosses, or the error why it keeps its plan."""

    def __call__(self, record: QueryRecord, done: Callable[[Any], None], *, why: str) -> None: ...


class Adapting:
    """Changes the plans of one agent's queries.

    Parameters
    ----------
    config : returns the settings of the optimiser
    """

    def __init__(self, clock: Clock, me: NodeId, config: Callable[[], OptimiserConfig], replans: Replans, resize: Resize) -> None:
        self._clock, self._config, self._replans, self._resize = clock, config, replans, resize
        self._log = structlog.get_logger("agent").bind(node=me)

    def look(self, record: QueryRecord) -> None:
        """Gives a query other numbers of instances, or, if its numbers suffice, another order of its operators, if it is time to."""
        if (forecast := record.forecast) is None:
            return
        config, own, now = self._config(), record.health.healing.plans.own, self._clock.now()
        resizing, ordering = forecast.resizing, forecast.ordering
        running, wanted = (resizing.running, list(resizing.wanted)) if resizing is not None else ([], [])
        is_on, is_number = config.enabled and config.replan, own.is_worth_it(running, wanted)
        if resizing is not None:
            resizing.outlook = _outlook("them", own.problem) if is_on and is_number else ""
        ordering.outlook = _outlook("another one", own.problem) if is_on else ""
        if self._replans.changes(record.id):
            own.changing(now)
            return
        better = None if is_number else ordering.better
        if not is_on or not (own.look(running, wanted, now) if better is None else own.is_rested(now)):
            return
        try:
            self._replans.check(record)
        except PlacementError:
            return  # not now
        except SbonError as problem:
            self._told(record, problem)
            return
        told = partial(self._told, record)
        if better is not None and better.plan is not None:
            own.begun((), (), now)
            self._replans.begin(record, better.plan, told, better.text)
        elif resizing is not None:
            own.begun(running, wanted, now)
            self._resize(record, told, why=resizing.why)

    def _told(self, record: QueryRecord, result: dict[str, Any] | SbonError) -> None:
        """Logs once why a query does not get another plan."""
        if not isinstance(result, SbonError):
            return
        problem = str(result)
        if record.health.healing.plans.own.refused(problem, self._clock.now()):
            self._log.warning("query.not_replanned", query=record.id, name=record.name, reason=problem, by_itself=True)


def _outlook(what: str, problem: str) -> str:
    return f"it does not get {what} by itself: {problem}" if problem else f"it gets {what} by itself"
