"""Checks that an owner's knowledge of its operators' hosts never goes back to an earlier epoch.

The next owner may know less, because a move enters the record some seconds later."""

from sbon.supervision.generations import generation
from sbon.supervision.record import QueryRecord
from sbon.types import NodeId, OperatorId
from sbon_testbed.simulator.case import Case
from sbon_testbed.simulator.checkers.base import CaseChecker


class Epochs(CaseChecker):
    """Compares each owner's epochs with its earlier ones."""

    def __init__(self, run: Case) -> None:
        super().__init__(run)
        self._seen: dict[tuple[NodeId, OperatorId], tuple[int, NodeId, QueryRecord]] = {}

    def look(self) -> str:
        """Returns the first operator whose epoch has gone back, or that is elsewhere in the same epoch."""
        for _, agent in self.run.agents():
            for record in agent.queries.owned.records.values():
                for operator, epoch in record.epochs.items():
                    if operator not in record.specs or operator in record.health.healing.over:
                        continue  # an operator that is over has no host: its node is left from discarded attempts
                    node = record.nodes[operator]
                    key = (agent.name, operator)
                    before, there, known = self._seen.get(key, (epoch, node, record))
                    # The previous owner may have known of a move that no keeper knew; a recovery is in the record before it begins.
                    if epoch < before if known is record else generation(epoch) < generation(before):
                        return f"{operator} is in epoch {epoch}, and was in {before} before"
                    if epoch == before and node != there and known is record:
                        return f"{operator} is on {node} in epoch {epoch}, and was on {there}"
                    self._seen[key] = (epoch, node, record)
        return ""
