"""Reacts to reports of a node's links; implements `sbon.delivery.flow.FlowEvents`."""

from typing import TYPE_CHECKING

from sbon.execution.ends import Output
from sbon.execution.instance import Instance
from sbon.types import OperatorId

if TYPE_CHECKING:
    from sbon_agent.node import Agent


class LinkReactions:
    """Passes the reports of links to the engine, to migrations, and to the log."""

    def __init__(self, agent: "Agent") -> None:
        self._agent = agent

    def runnable(self, instance: Instance) -> None:
        """Lets the engine run an operator that has new input or credit."""
        self._agent.execution.engine.consider(instance)

    def arrived_at_prepared(self, operator: OperatorId) -> None:
        """Activates a migrated operator for which data has arrived."""
        self._agent.execution.migrations.arrived_at_prepared(operator)

    def disk_lost(self, instance: Instance, reason: str) -> None:
        """Fails an operator whose spilled batches are unreadable, rather than skip rows."""
        self._agent.execution.engine.fail(instance, reason)

    def disk_told(self, output: Output, event: str, reason: str) -> None:
        """Logs that a link's batches go to disk, or no longer do."""
        tell = self._agent.monitoring.log.warning if event == "stopped" else self._agent.monitoring.log.info
        fields = {"reason": reason} if reason else {}
        tell(f"spill.{event}", link=output.link.id, to=output.node, rows_unacknowledged=output.sender.rows_held, **fields)

    def rows_left_out(self, output: Output, rows: int, reason: str) -> None:
        """Logs batches that could not be packed: for each link, each time that their number has doubled."""
        if output.left_out.bit_count() == 1:
            lost = {"rows": rows, "batches_so_far": output.left_out, "rows_so_far": output.sender.rows_left_out}
            self._agent.monitoring.log.error("batch.unpackable", link=output.link.id, reason=reason, **lost)
