"""Predicts the latency of running queries on executor threads, when `sbon.planning.forecast` asks for it. `Watching` calls it."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import structlog

from sbon.cost.store import CostStore
from sbon.errors import SbonError
from sbon.optimiser.config import OptimiserConfig
from sbon.optimiser.placed import Placed
from sbon.query.plan import Plan
from sbon.supervision.record import QueryRecord
from sbon.types import NodeId

if TYPE_CHECKING:
    from sbon.cost.placed_query import PlacedQuery
    from sbon.cost.prediction import Prediction
    from sbon.planning.forecast import Forecast


T = TypeVar("T")


def forecast_of(plan: Plan, placed: Placed, now: float) -> "Forecast":
    """Returns the forecast of a query that begins to run."""
    from sbon.planning.forecast import Forecast

    decision = placed.decision
    return Forecast(plan, decision.assignment, frozenset(decision.reused), decision.begun_ms, now, decision.candidates)


def forecast_again(record: QueryRecord, now: float) -> "Forecast | None":
    """Returns the forecast of a query that has another plan; None if nobody predicts it."""
    from sbon.planning.forecast import Forecast

    before = record.forecast
    return None if before is None else Forecast(record.plan, record.nodes, frozenset(), {}, now, before.candidates)


class Executor(Protocol):
    """Monotonic time, and threads."""

    def now(self) -> float:
        """Returns monotonic seconds."""

    def execute(self, work: Callable[[], Any], done: Callable[[Any], None], *, rows: int) -> None:
        """Runs `work` on a thread, then calls `done` with its result or its exception."""


class Forecasting:
    """Predictions of the latency of one agent's queries.

    Parameters
    ----------
    predicted : called with a query after each prediction, and once a minute to tell what is measured
    compared : called with a query after its measured rates have been compared with its numbers of instances and its order
    optimiser : returns the settings, which may change while the agent runs
    """

    def __init__(
        self,
        host: Executor,
        rtt_ms: Callable[[NodeId, NodeId], float | None],
        cost_store: CostStore,
        predicted: Callable[[QueryRecord], None],
        compared: Callable[[QueryRecord], None],
        optimiser: Callable[[], OptimiserConfig],
    ) -> None:
        self._host, self._rtt_ms, self._cost_store, self._predicted, self._compared = host, rtt_ms, cost_store, predicted, compared
        self._optimiser = optimiser
        self._log = structlog.get_logger("agent")

    def look(self, record: QueryRecord) -> None:
        """Compares the measurements of a query with its prediction, and predicts again if necessary."""
        self._resize(record)
        self._reorder(record)
        self._compared(record)
        forecast, now = record.forecast, self._host.now()
        if forecast is None or not forecast.look(record.reports, self._cost_store, now):
            if forecast is not None and forecast.is_to_tell(now):
                self._predicted(record)
            return
        from sbon.cost.prediction import predict

        query = self._query(record, forecast)
        if query is None:
            forecast.failed(now)
            return

        def done(result: "Prediction") -> None:
            forecast.predicted(result, self._cost_store, self._host.now())
            self._predicted(record)

        self._execute(record, lambda: predict(query), done, lambda: forecast.failed(self._host.now()))

    def as_it_runs(self, record: QueryRecord) -> "PlacedQuery | None":
        """Returns a query with measured rates and the nodes that its operators could be on; None while too little is known of it."""
        return self._query(record, record.forecast, anywhere=True) if record.forecast is not None else None

    def _query(self, record: QueryRecord, forecast: "Forecast", *, anywhere: bool = False) -> "PlacedQuery | None":
        now, detail = self._host.now(), self._optimiser().predictions
        return forecast.query(record.nodes, record.reports, self._cost_store, self._rtt_ms, now, anywhere=anywhere, detail=detail)

    def _reorder(self, record: QueryRecord) -> None:
        """Compares rates with those for which the order of operators is known to be good, and looks for another order if necessary."""
        ordering = record.forecast.ordering if record.forecast is not None else None
        if ordering is None or not ordering.look(record.reports, self._host.now()):
            return
        query = self.as_it_runs(record)
        if query is None:
            ordering.failed()
            return
        from sbon.planning.reordering import reordered

        self._execute(record, lambda: reordered(query, to_carry=True), ordering.looked, ordering.failed)

    def _resize(self, record: QueryRecord) -> None:
        """Compares rates with those for which the numbers of instances were chosen, and plans them again if necessary."""
        forecast, now = record.forecast, self._host.now()
        resizing = forecast.resizing if forecast is not None else None
        if forecast is None or resizing is None or not resizing.look(record.reports, now):
            return
        query = self._query(record, forecast)
        if query is None:
            resizing.failed()
            return

        self._execute(record, lambda: resizing.plan_anew(query), lambda result: resizing.planned(*result), resizing.failed)

    def _execute(self, record: QueryRecord, work: Callable[[], T], done: Callable[[T], None], failed: Callable[[], None]) -> None:
        """Runs a prediction on a thread. Logs any error that is not an SbonError, because it is a fault."""

        def ended(result: T | BaseException) -> None:
            if not isinstance(result, BaseException):
                done(result)
                return
            if not isinstance(result, SbonError):
                self._log.error(
                    "query.not_predicted", query=record.id, reason=f"{type(result).__name__}: {result}", doing="going on without"
                )
            failed()

        self._host.execute(work, ended, rows=0)
