"""The interface through which the engine and the table of operators tell the agent about operators; the agent's node implements it."""

from typing import Protocol

from sbon.connectors.interface import SinkConnector
from sbon.execution.ends import Output
from sbon.execution.instance import Instance
from sbon.links.batch import Batch
from sbon.query.params.source import SinkParams
from sbon.types import NodeId, OperatorId


class EngineEvents(Protocol):
    """Callbacks of the engine."""

    def operator_failed(self, instance: Instance) -> None:
        """An operator has failed; `instance.reason` says why."""

    def operator_refused(self, operator: OperatorId, asked_by: NodeId, reason: str) -> None:
        """Another agent has asked for an operator that cannot be made here, or for a file or address that it may not use."""

    def operator_finished(self, instance: Instance) -> None:
        """All input of an operator has ended and been processed."""

    def operator_destroyed(self, operator: OperatorId) -> None:
        """An operator has been removed: nobody uses it any more, or the agent stops."""

    def delivered(self, instance: Instance, batch: Batch) -> None:
        """A sink has taken a batch."""

    def link_broken(self, instance: Instance, output: Output, reason: str) -> None:
        """An output has been removed because its consumer is gone."""

    def make_sink(self, instance: Instance, params: SinkParams) -> SinkConnector | None:
        """Returns a sink of the agent's own (`tail`), or None if a connector is to be used."""
