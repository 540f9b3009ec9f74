"""Reacts to reports of a node's queries and migrations.

Implements `sbon.queries.queries.QueryEvents` and `sbon.migration.migrations.MigrationEvents`.
"""

from typing import TYPE_CHECKING, Any

from sbon.execution.instance import Instance
from sbon.migration.outcome import MigrationRecord
from sbon.optimiser.placed import Placed
from sbon.query.plan import Plan
from sbon.supervision.deployment import Deployed
from sbon.supervision.history import Happening
from sbon.supervision.record import QueryRecord
from sbon.supervision.recovering import Reached
from sbon.supervision.recovery import Recovered

if TYPE_CHECKING:
    from sbon_agent.node import Agent


class QueryReactions:
    """Logs and records changes of queries and migrations, and passes them to the other parts of the node."""

    def __init__(self, agent: "Agent") -> None:
        self._agent = agent

    def query_changed(self, record: QueryRecord) -> None:
        """Logs and records a query's new state."""
        self._agent.monitoring.log.info(f"query.{record.state.value}", query=record.id, name=record.name, reason=record.reason)
        self._agent.monitoring.recording.query(record)

    def placed(self, plan: Plan, placed: Placed, deployed: Deployed) -> None:
        """Records a placement that has been deployed."""
        self._agent.monitoring.recording.placement(plan, placed.decision)

    def predicted(self, record: QueryRecord) -> None:
        """Records the predicted latency of a query."""
        self._agent.monitoring.recording.prediction(record)

    def recovered(self, record: QueryRecord, done: Recovered, happening: Happening, reached: Reached) -> None:
        """Logs and records operators that were lost with their hosts and now run again."""
        self._agent.monitoring.recording.recovery(record, done, happening, reached)
        self._agent.monitoring.log.info(
            "query.recovered",
            query=record.id,
            operators=dict(done.nodes),
            epoch=done.epoch,
            attempts=done.attempts,
            seconds=round(done.seconds, 6),
            rows_lost=happening.rows,
            states_lost=sorted(operator for operator, go_on in done.go_on.items() if go_on.state_until_us is not None),
        )

    def migration_ended(self, record: MigrationRecord) -> None:
        """Logs and records a migration that has ended, and tells the local optimiser."""
        event = "migration.committed" if record.committed else "migration.abandoned"
        fields: dict[str, Any] = {
            "operator": record.operator,
            "queries": list(record.queries),
            "here": record.here,
            "there": record.there,
            "reason": record.reason,
            "outcome": record.outcome,
            "pause_ms": round(record.pause_s * 1000, 3),
            "seconds": round(record.seconds, 6),
            "state_bytes": record.state_bytes,
            "copy_s": round(record.copy_s, 6),
            "rounds": record.rounds,
        }
        self._agent.monitoring.log.info(event, **fields)
        self._agent.monitoring.recording.migration(record)
        self._agent.monitoring.measuring.migrations.append({"committed": record.committed, "at_wall_s": self._agent.host.wall(), **fields})
        self._agent.optimisers.rebalancing.migration_ended(record)

    def operator_arrived(self, instance: Instance) -> None:
        """Logs an operator that has moved to this host, and lets the optimiser of multicasts watch it."""
        self._agent.monitoring.log.info("operator.arrived", operator=instance.id, epoch=instance.epoch)
        instance.figures.arrived_at_s = self._agent.host.now()
        if instance.is_multicast:
            self._agent.optimisers.multicasting.tend(instance)
