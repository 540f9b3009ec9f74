"""Takes samples on this host: a few rows of its sources, sent through operators of queries that never ran (`sbon.cost.sampling`)."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol, TypeVar

import structlog

from sbon.cost.sampling import ROWS_MAX, Given, sampled
from sbon.cost.statistics import OperatorStatistics, tellable
from sbon.cost.store import CostStore, as_told
from sbon.errors import SbonError
from sbon.ports import Executor
from sbon.query.params.source import SourceParams
from sbon.wire.candidates import SampleAsk, Sampled
from sbon.wire.costs import TOLD_MAX, OperatorCosts

if TYPE_CHECKING:
    from sbon.connectors.interface import SourceConnector

T = TypeVar("T")

OPEN_S_MAX = 2.0
"""Time that a sample may take if a file system does not answer."""

log = structlog.get_logger("sampling")


class Apart(Executor, Protocol):
    """A machine with threads for work that may hang."""

    def execute_apart(self, work: Callable[[], T], done: Callable[[T | BaseException], None], limit_s: float) -> None:
        """Runs `work` on a thread of its own, then `done` with its result or exception, or with a TimeoutError after `limit_s`."""


class Sampling:
    """Answers requests for samples, one at a time. While a sample is taken, other requests get an empty answer: predictions use rules then.

    Parameters
    ----------
    source_of : makes a source, without opening or starting it; called on any thread
    """

    def __init__(self, host: Apart, cost_store: CostStore, source_of: "Callable[[SourceParams], SourceConnector]") -> None:
        self._host, self._cost_store, self._source_of = host, cost_store, source_of
        self._is_busy = False

    def answer(self, question: SampleAsk, respond: Callable[[Sampled], None]) -> None:
        """Takes a sample; operators that it tells nothing about are left out of the answer."""
        if self._is_busy:
            respond(Sampled())
            return
        self._is_busy = True

        def work() -> list[OperatorStatistics]:
            from sbon.operators.registry import build

            self._cost_store.time_once(lambda: self._host.meter(brief=True))
            sources = {spec.id: spec.params for spec in question.operators if isinstance(spec.params, SourceParams)}
            given = {operator: rows for operator, params in sources.items() if (rows := self._rows(params)) is not None}
            speed = self._cost_store.speed.value
            return sampled(question.operators, question.links, given, build, self._host.meter, self._host.stopwatch, speed)

        def done(result: list[OperatorStatistics] | BaseException) -> None:
            self._is_busy = False
            if isinstance(result, BaseException):
                log.info("sample.failed", reason=f"{type(result).__name__}: {result}", doing="predicting from rules")
                respond(Sampled())
            else:
                respond(Sampled(costs=tuple(as_told(tellable(one), OperatorCosts) for one in result[:TOLD_MAX])))

        self._host.execute_apart(work, done, OPEN_S_MAX)

    def _rows(self, params: SourceParams) -> Given | None:
        """Returns rows of a source that is made only for the sample; None if the source cannot give rows without side effects."""
        if params.is_table:
            return None
        try:
            sample = getattr(self._source_of(params), "sample", None)
            if sample is None:
                return None
            meter = self._host.meter()
            try:
                frame = sample(ROWS_MAX)
                return Given(frame, meter.lap(frame.height))
            finally:
                meter.end()
        except SbonError:  # the query itself will be refused with the reason
            return None
