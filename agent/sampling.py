"""Takes samples on this host: a few rows of its sources, sent through operators of queries that never ran (`sbon.cost.sampling`)."""

from collections.abc import Callable

import msgspec

from sbon.cost.books import as_told, timings_ns
from sbon.cost.sampling import ROWS_MAX, Given, sampled
from sbon.cost.statistics import OperatorStatistics, tellable
from sbon.errors import SbonError
from sbon.query.plan import OperatorSpec, SourceParams
from sbon.wire.candidates import SampleAsk, Sampled
from sbon.wire.costs import TOLD_MAX, OperatorCosts
from sbon_agent.connectors.base import ConnectorContext
from sbon_agent.hosting import EngineParts
from sbon_agent.logs import structlog

log = structlog.get_logger("sampling")

OPEN_S_MAX = 2.0
"""Time that a sample may take if a file system does not answer."""


class Sampling:
    """Answers questions for samples, one at a time: while one is taken, the others get none, and take the rules."""

    def __init__(self, parts: EngineParts) -> None:
        self._parts = parts
        self._is_busy = False

    def answer(self, question: SampleAsk, respond: Callable[[Sampled], None]) -> None:
        """Takes a sample; what it tells nothing of is left out of the answer."""
        if self._is_busy:
            respond(Sampled())
            return
        self._is_busy = True
        reaches = self._parts.reaches
        contexts = {
            spec.id: msgspec.structs.replace(self._parts.context, reach=reaches.of(spec.params))
            for spec in question.operators
            if isinstance(spec.params, SourceParams)
        }

        def work() -> list[OperatorStatistics]:
            from sbon.operators.registry import build

            books, host = self._parts.books, self._parts.host
            if not books.is_timed:
                books.timed(timings_ns(host.meter(brief=True)))
            given = {}
            for spec in question.operators:
                if spec.id in contexts and (rows := self._rows(spec, contexts[spec.id])) is not None:
                    given[spec.id] = rows
            return sampled(question.operators, question.links, given, build, host.meter, host.stopwatch, books.speed.value)

        def done(result: list[OperatorStatistics] | BaseException) -> None:
            self._is_busy = False
            found = [] if isinstance(result, BaseException) else result
            if isinstance(result, BaseException):
                log.info("sample.failed", reason=f"{type(result).__name__}: {result}", doing="predicting from rules")
            respond(Sampled(costs=tuple(as_told(tellable(one), OperatorCosts) for one in found[:TOLD_MAX])))

        self._parts.host.execute_apart(work, done, OPEN_S_MAX)

    def _rows(self, spec: OperatorSpec, context: ConnectorContext) -> Given | None:
        """Returns rows of a source that is made for them alone; None if it cannot give any without being noticed."""
        from sbon_agent.connectors.registry import build_source

        assert isinstance(spec.params, SourceParams)
        if spec.params.is_table:
            return None
        try:
            source = build_source(spec.params, context)
            sample = getattr(source, "sample", None)
            if sample is None:
                return None
            meter = self._parts.host.meter()
            try:
                frame = sample(ROWS_MAX)
                return Given(frame, meter.lap(frame.height))
            finally:
                meter.end()
        except SbonError:  # the query itself will be refused with the reason
            return None
