"""Moves a multicast with a single consumer back beside the operator that feeds it, where it is folded.

The multicast stays if the way through it is shorter than the direct one. `sbon.rearranging.multicasting` uses this module.
"""

from collections.abc import Callable

from sbon.errors import MigrationError
from sbon.execution.instance import Instance
from sbon.migration.outcome import MigrationRecord
from sbon.placement.candidates import CandidateReport
from sbon.rearranging.multicast_life import MulticastLife
from sbon.rearranging.reviewing import Surroundings
from sbon.types import NodeId, OperatorId

ANSWER_TIMEOUT_S = 3.0


class Returning:
    """Asks for the RTTs of the direct way and of the way through the multicast, and begins the migration."""

    def __init__(self, around: Surroundings, stands: Callable[[Instance], bool]) -> None:
        self._directory = around.directory
        self._operators = around.operators
        self._candidate_questions = around.candidate_questions
        self._migrations = around.migrations
        self._recording = around.recording
        self._stands = stands

    def consider(self, relay: Instance, life: MulticastLife) -> None:
        """Compares the RTTs of the two ways once, and moves the multicast if the direct way is not longer."""
        incoming, output = next(iter(relay.inputs.values())), next(iter(relay.outputs.values()))
        feeder, consumer = incoming.node, output.node
        if feeder == self._directory.me or not life.takes("compare"):
            return
        life.compare()
        reports: dict[NodeId, CandidateReport | None] = {}

        def answered(node: NodeId, report: CandidateReport | None) -> None:
            reports[node] = report
            if len(reports) == 2:
                direct, by_here = _rtt(reports[feeder], consumer), _sum(reports[self._directory.me], feeder, consumer)
                is_shorter = feeder == consumer or (direct is not None and by_here is not None and direct <= by_here)
                returns = is_shorter and self._may_return(relay.id)
                life.compared(returns=returns)
                if returns:
                    self._return(relay.id, feeder, life)

        for node in (feeder, self._directory.me):
            self._candidate_questions.ask(node, (feeder, consumer), (), ANSWER_TIMEOUT_S, answered)

    def _may_return(self, name: OperatorId) -> bool:
        relay = self._operators.instances.get(name)
        return relay is not None and len(relay.outputs) == 1 and self._stands(relay)

    def _return(self, name: OperatorId, feeder: NodeId, life: MulticastLife) -> None:
        def ended(record: MigrationRecord) -> None:
            if record.committed:
                life.left()
            else:
                life.stopped()

        try:
            self._migrations.migrate(name, feeder, "one consumer is left, and the direct way to it is not longer", ended)
        except MigrationError as problem:
            life.stopped()
            self._recording.review(name, (name,), "hindered", str(problem))


def _rtt(report: CandidateReport | None, peer: NodeId) -> float | None:
    if report is None:
        return None
    return 0.0 if peer == report.node else report.rtts_ms.get(peer)


def _sum(report: CandidateReport | None, feeder: NodeId, consumer: NodeId) -> float | None:
    parts = _rtt(report, feeder), _rtt(report, consumer)
    return None if parts[0] is None or parts[1] is None else parts[0] + parts[1]
