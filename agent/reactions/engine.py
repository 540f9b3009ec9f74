"""Reacts to what a node's engine reports about operators and links; implements `sbon.execution.events.EngineEvents`."""

from typing import TYPE_CHECKING

from sbon.connectors.interface import SinkConnector
from sbon.connectors.tails import Tail
from sbon.execution.ends import Output
from sbon.execution.instance import Instance
from sbon.execution.telemetry_rows import operator_statistics
from sbon.links.batch import Batch
from sbon.query.params.source import SinkParams
from sbon.types import NodeId, OperatorId

if TYPE_CHECKING:
    from sbon_agent.node import Agent


class EngineReactions:
    """Logs and records the engine's reports, and passes them to the other parts of the node."""

    def __init__(self, agent: "Agent") -> None:
        self._agent = agent

    def operator_failed(self, instance: Instance) -> None:
        """Logs and records an operator that has failed."""
        self._agent.monitoring.log.error("operator.failed", operator=instance.id, reason=instance.reason)
        self._agent.monitoring.telemetry.record(operator_statistics(instance, self._agent.name, self._agent.host.now()))

    def operator_refused(self, operator: OperatorId, asked_by: NodeId, reason: str) -> None:
        """Logs that an operator could not be made for another agent."""
        self._agent.monitoring.log.warning("operator.refused", operator=operator, asked_by=asked_by, reason=reason)

    def operator_finished(self, instance: Instance) -> None:
        """Records an operator that has finished, because its input has ended."""
        self._agent.monitoring.misfit_log.look_at(instance, self._agent.host.now())
        self._agent.queries.owned.finished(instance.id)

    def operator_destroyed(self, operator: OperatorId) -> None:
        """Handles an operator that has been removed."""
        self._agent.monitoring.recording.sink_ended(operator)
        self._agent.execution.migrations.destroyed(operator)
        self._agent.queries.owned.register.operator_gone(operator)

    def delivered(self, instance: Instance, batch: Batch) -> None:
        """Records a batch that a sink has taken, and passes it on to watchers of a tail."""
        self._agent.monitoring.recording.delivered(instance.id, instance.users, batch.stimulus_s, batch.rows)
        host = self._agent.host
        instance.figures.delivered(host.now(), (host.wall() - batch.stimulus_s) * 1000, batch.rows)
        if isinstance(instance.sink, Tail):
            instance.sink.publish()

    def link_broken(self, instance: Instance, output: Output, reason: str) -> None:
        """Logs an output that has been removed because its consumer is gone."""
        self._agent.monitoring.log.warning("link.broken", link=output.link.id, reason=reason, rows_unacknowledged=output.sender.rows_held)

    def make_sink(self, instance: Instance, params: SinkParams) -> SinkConnector | None:
        """Makes the agent's own sink for `tail`; None for other connectors."""
        if params.connector != "tail":
            return None
        query = next(iter(instance.users))
        tail = self._agent.queries.owned.register.tails[query] = Tail(instance.id, instance.spec.schema)
        return tail
