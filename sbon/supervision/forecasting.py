"""Predicts the latency of running queries on executor threads, when `sbon.planning.forecast` asks for it. `Watching` calls it."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

from sbon.cost.books import Books
from sbon.optimiser.placed import Placed
from sbon.query.plan import Plan
from sbon.supervision.record import QueryRecord
from sbon.types import NodeId

if TYPE_CHECKING:
    from sbon.cost.placed_query import PlacedQuery
    from sbon.cost.prediction import Prediction
    from sbon.planning.forecast import Forecast


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
    """Predictions of the queries of one agent.

    Parameters
    ----------
    predicted : called with a query after each prediction, and once a minute with what is measured
    compared : called with a query each time that its numbers of instances and its order have been compared with its rates
    """

    def __init__(
        self,
        host: Executor,
        rtt_ms: Callable[[NodeId, NodeId], float | None],
        books: Books,
        predicted: Callable[[QueryRecord], None],
        compared: Callable[[QueryRecord], None],
    ) -> None:
        self._host, self._rtt_ms, self._books, self._predicted, self._compared = host, rtt_ms, books, predicted, compared

    def look(self, record: QueryRecord) -> None:
        """Compares what is measured of a query with what was predicted, and predicts anew if it must."""
        self._resize(record)
        self._reorder(record)
        self._compared(record)
        forecast, now = record.forecast, self._host.now()
        if forecast is None or not forecast.look(record.reports, self._books, now):
            if forecast is not None and forecast.is_to_tell(now):
                self._predicted(record)
            return
        from sbon.cost.prediction import predict

        query = forecast.query(record.nodes, record.reports, self._books, self._rtt_ms, now)
        if query is None:
            forecast.failed(now)
            return

        def done(result: "Prediction | BaseException") -> None:
            if isinstance(result, BaseException):
                forecast.failed(self._host.now())
                return
            forecast.predicted(result, self._books, self._host.now())
            self._predicted(record)

        self._host.execute(lambda: predict(query), done, rows=0)

    def as_it_runs(self, record: QueryRecord) -> "PlacedQuery | None":
        """Returns a query with measured rates and the nodes that its operators could be on; None while too little is known of it."""
        forecast = record.forecast
        if forecast is None:
            return None
        return forecast.query(record.nodes, record.reports, self._books, self._rtt_ms, self._host.now(), anywhere=True)

    def _reorder(self, record: QueryRecord) -> None:
        """Compares rates with those for which the order is known to be good, and looks for another one if it must."""
        ordering = record.forecast.ordering if record.forecast is not None else None
        if ordering is None or not ordering.look(record.reports, self._host.now()):
            return
        query = self.as_it_runs(record)
        if query is None:
            ordering.failed()
            return
        from sbon.planning.reordering import Reordered, reordered

        def done(result: Reordered | BaseException) -> None:
            if isinstance(result, BaseException):
                ordering.failed()
            else:
                ordering.looked(result)

        self._host.execute(lambda: reordered(query, to_carry=True), done, rows=0)

    def _resize(self, record: QueryRecord) -> None:
        """Compares rates with those for which numbers of instances were chosen, and plans anew if it must."""
        forecast, now = record.forecast, self._host.now()
        resizing = forecast.resizing if forecast is not None else None
        if forecast is None or resizing is None or not resizing.look(record.reports, now):
            return
        query = forecast.query(record.nodes, record.reports, self._books, self._rtt_ms, now)
        if query is None:
            resizing.failed()
            return

        def done(result: "tuple[list[int], str] | BaseException") -> None:
            if isinstance(result, BaseException):
                resizing.failed()
            else:
                resizing.planned(*result)

        self._host.execute(lambda: resizing.plan_anew(query), done, rows=0)
