"""Logs rows that sources leave out: a line for each new kind, then one a minute for each source, with counts.

The agent calls it with every sample.
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from sbon.misfits import OTHER, Misfits
from sbon.query.plan import SourceParams
from sbon.types import OperatorId

if TYPE_CHECKING:
    from sbon_agent.engine.instance import Instance

REPEAT_S = 60.0
"""Seconds between two log lines about a source that goes on leaving rows out."""


class MisfitLog:
    """Log of the rows left out by one agent's sources.

    The number of kinds is bounded (`sbon.misfits.KINDS_MAX`), and so is the number of lines.
    """

    def __init__(self, log: Any) -> None:
        self._log = log
        self._told: dict[OperatorId, _Told] = {}

    def look(self, instances: Iterable["Instance"], now: float) -> None:
        """Logs what is new at all sources, and forgets sources that are gone."""
        before, self._told = self._told, {}
        for instance in instances:
            if instance.id in before:
                self._told[instance.id] = before[instance.id]
            self.look_at(instance, now)

    def look_at(self, instance: "Instance", now: float) -> None:
        """Logs what is new at one operator, if it is a source that counts why it leaves rows out."""
        if instance.source is None or instance.misfits is None or not isinstance(instance.spec.params, SourceParams):
            return
        told = self._told.get(instance.id)
        if told is None or told.misfits is not instance.misfits:
            told = self._told[instance.id] = _Told(instance.misfits)
        dropped = instance.source.dropped_rows
        if dropped == told.rows:
            return
        log = self._log.bind(operator=instance.id, source=instance.spec.params.name)
        for misfit in told.misfits.told():
            kind = (misfit.column, misfit.cause)
            if kind not in told.kinds:
                told.kinds.add(kind)
                if misfit.cause != OTHER:
                    log.warning("source.row_left_out", why=misfit.text, line=misfit.line, rows=misfit.rows)
        if told.at_s is None:
            told.at_s, told.rows = now, dropped
        elif now >= told.at_s + REPEAT_S:
            log.warning("source.rows_left_out", rows=dropped - told.rows, seconds=round(now - told.at_s), rows_in_all=dropped)
            told.at_s, told.rows = now, dropped


class _Told:
    """What has been logged about one source."""

    def __init__(self, misfits: Misfits) -> None:
        self.misfits = misfits
        self.kinds: set[tuple[str, str]] = set()
        self.rows = 0
        """Rows that had been left out at the last log line."""
        self.at_s: float | None = None
