"""What the engine tells the agent."""

from typing import Protocol

from sbon.links import Batch
from sbon.query.plan import SinkParams
from sbon.types import NodeId, OperatorId
from sbon_agent.connectors.base import SinkConnector
from sbon_agent.engine.ends import Output
from sbon_agent.engine.instance import Instance


class EngineEvents(Protocol):
    """Whom the engine tells."""

    def operator_failed(self, instance: Instance) -> None:
        """It can do no more; `instance.reason` says why."""

    def operator_refused(self, operator: OperatorId, asked_by: NodeId, reason: str) -> None:
        """Another agent has asked for an operator that cannot be made here, or for a file or address that it may not have."""

    def operator_finished(self, instance: Instance) -> None:
        """All its input has ended and been processed."""

    def operator_destroyed(self, operator: OperatorId) -> None:
        """Nobody uses it any more (or the agent stops)."""

    def delivered(self, instance: Instance, batch: Batch) -> None:
        """A sink has taken a batch."""

    def link_broken(self, instance: Instance, output: Output, reason: str) -> None:
        """The other end of an output is no more; the output has been removed."""

    def link_spills(self, output: Output, event: str, reason: str) -> None:
        """What a link cannot deliver has `began` to go to disk, has `stopped` to (the reason says why), `goes_on`, or is `drained`."""

    def rows_left_out(self, output: Output, rows: int, reason: str) -> None:
        """A batch of an output could not be packed, and goes without its rows."""

    def arrived_at_prepared(self, operator: OperatorId) -> None:
        """Data has come for an operator that waits for the word to run."""

    def make_sink(self, instance: Instance, params: SinkParams) -> SinkConnector | None:
        """A sink of the agent's own (`tail`), or None for one of the connectors."""
