"""Gives running queries the numbers of instances that their measured rates want, without a person: `sbon.supervision.own_changes` decides.

`Forecasting` calls it with each round of reports on a query whose numbers the planner has chosen.
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


class Change(Protocol):
    """Gives a query the wanted numbers; `done` gets where its sink crosses, or why the query keeps its plan."""

    def __call__(self, record: QueryRecord, done: Callable[[Any], None], *, why: str) -> None: ...


class Adapting:
    """The changes of one agent's queries.

    Parameters
    ----------
    config : returns the settings of the optimiser
    """

    def __init__(self, clock: Clock, me: NodeId, config: Callable[[], OptimiserConfig], replans: Replans, change: Change) -> None:
        self._clock, self._config, self._replans, self._change = clock, config, replans, change
        self._log = structlog.get_logger("agent").bind(node=me)

    def look(self, record: QueryRecord) -> None:
        """Looks whether a query is to get other numbers of instances now."""
        resizing = record.forecast.resizing if record.forecast is not None else None
        config, own, now = self._config(), record.health.healing.plans.own, self._clock.now()
        if resizing is None:
            return
        running, wanted = resizing.running, list(resizing.wanted)
        is_on = config.enabled and config.replan and own.is_worth_it(running, wanted)
        if is_on:
            resizing.outlook = f"it does not get them by itself: {own.problem}" if own.problem else "it gets them by itself"
        else:
            resizing.outlook = ""
        if self._replans.changes(record.id):
            own.changing(now)
            return
        if not is_on or not own.look(running, wanted, now):
            return
        try:
            self._replans.check(record)
        except PlacementError:
            return  # not now
        except SbonError as problem:
            self._told(record, problem)
            return
        own.begun(running, wanted, now)
        self._change(record, partial(self._told, record), why=resizing.why)

    def _told(self, record: QueryRecord, result: dict[str, Any] | SbonError) -> None:
        """Takes that a query gets another plan, or why not; that is told once."""
        if not isinstance(result, SbonError):
            return
        problem = str(result)
        if record.health.healing.plans.own.refused(problem, self._clock.now()):
            self._log.warning("query.not_replanned", query=record.id, name=record.name, reason=problem, by_itself=True)
