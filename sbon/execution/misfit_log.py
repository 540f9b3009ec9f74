"""Logs rows that sources and operators leave out: a line for each new kind, then a line a minute for each source or operator, with counts.

The agent calls it with every sample.
"""

from collections.abc import Iterable
from typing import Any, Protocol

from sbon.misfits import OTHER, Misfits
from sbon.query.params.source import SourceParams
from sbon.query.plan import OperatorSpec
from sbon.types import OperatorId

REPEAT_S = 60.0
"""Seconds between two log lines about a source or an operator that goes on leaving rows out."""


class Counted(Protocol):
    """A source or an operator, and the rows that it has left out."""

    @property
    def id(self) -> OperatorId: ...
    @property
    def spec(self) -> OperatorSpec: ...
    @property
    def misfits(self) -> Misfits | None: ...
    @property
    def dropped_rows(self) -> int: ...


class MisfitLog:
    """Log of the rows left out by one agent's sources and operators.

    The number of kinds is bounded (`sbon.misfits.KINDS_MAX`), and so is the number of lines.
    """

    def __init__(self, log: Any) -> None:
        self._log = log
        self._told: dict[OperatorId, _Told] = {}

    def look(self, instances: Iterable[Counted], now: float) -> None:
        """Logs new misfits of all sources and operators, and forgets those that are gone."""
        before, self._told = self._told, {}
        for instance in instances:
            if instance.id in before:
                self._told[instance.id] = before[instance.id]
            self.look_at(instance, now)

    def look_at(self, instance: Counted, now: float) -> None:
        """Logs new misfits of one source or operator, if it counts why it leaves rows out."""
        if instance.misfits is None:
            return
        told = self._told.get(instance.id)
        if told is None or told.misfits is not instance.misfits:
            told = self._told[instance.id] = _Told(instance.misfits)
        dropped = instance.dropped_rows
        if dropped == told.rows:
            return
        log, kind = self._log.bind(operator=instance.id), "operator"
        if isinstance(params := instance.spec.params, SourceParams):
            log, kind = log.bind(source=params.name), "source"
        for misfit in told.misfits.told():
            reason = (misfit.column, misfit.cause)
            if reason not in told.kinds:
                told.kinds.add(reason)
                if misfit.cause != OTHER:
                    log.warning(f"{kind}.row_left_out", why=misfit.text, line=misfit.line, rows=misfit.rows)
        if told.at_s is None:
            told.at_s, told.rows = now, dropped
        elif now >= told.at_s + REPEAT_S:
            log.warning(f"{kind}.rows_left_out", rows=dropped - told.rows, seconds=round(now - told.at_s), rows_in_all=dropped)
            told.at_s, told.rows = now, dropped


class _Told:
    """The misfits that have been logged for one source or operator."""

    def __init__(self, misfits: Misfits) -> None:
        self.misfits = misfits
        self.kinds: set[tuple[str, str]] = set()
        self.rows = 0
        """Rows that had been left out at the last log line."""
        self.at_s: float | None = None
