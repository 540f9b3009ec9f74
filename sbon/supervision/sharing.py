"""Decides which running operators this host offers to other queries, and checks again when a query wants one.

`sbon.rearranging.candidate_questions` asks for the offers, and the dispatch of requests for the check.
"""

from collections.abc import Callable, Sequence

from sbon.errors import PlacementError
from sbon.execution.instance import Instance
from sbon.execution.life import State
from sbon.execution.operators import Operators
from sbon.optimiser.offers import why_not_share
from sbon.placement.reservations import HostingConfig
from sbon.types import OperatorId
from sbon.wire.authority import query_of
from sbon.wire.deployment import Use

STALLED_SAMPLES = 2
"""Number of successive samples without credit after which an operator counts as stalled, rather than waiting by chance."""


class Sharing:
    """Checks whether an operator may get one more consumer.

    Parameters
    ----------
    load : returns the load of this machine's processors, 0 to 2
    """

    def __init__(self, operators: Operators, config: HostingConfig, load: Callable[[], float]) -> None:
        self._operators = operators
        self._config = config
        self._load = load

    def offered(self, signatures: Sequence[str]) -> dict[str, OperatorId]:
        """Returns operators that may serve these signatures; of several that compute the same, the one with the fewest outputs."""
        wanted = set(signatures)
        found: dict[str, Instance] = {}
        for signature, instance in self._operators.shareable():
            if signature in wanted and not self._refusal(instance):
                other = found.get(signature)
                if other is None or (len(instance.outputs), instance.id) < (len(other.outputs), other.id):
                    found[signature] = instance
        return {signature: instance.id for signature, instance in found.items()}

    def check(self, request: Use) -> None:
        """Checks a request to use an operator, since things may have changed after it was offered.

        Raises
        ------
        PlacementError
            One more output would harm the queries that use the operator already.
        """
        instance = self._operators.instances.get(request.operator)
        if instance is None or all(end.link.id in instance.outputs for end in request.outputs):
            return
        if query_of(request.operator) == request.user.query:
            return  # its own query gets another plan, and will need fewer outputs again
        refusal = "it has ended" if instance.state is State.FINISHED else self._refusal(instance)
        if refusal:
            raise PlacementError(f"operator {instance.id} is not shared: {refusal}")

    def _refusal(self, instance: Instance) -> str:
        if self._operators.room.is_leaving:
            return f"{self._operators.me} is leaving"
        if query_of(instance.id) not in instance.users:
            return "the query that it was made for has ended, so nobody would make it again after a crash"
        outputs = [output for other in self._operators.instances.values() for output in other.outputs.values()]
        return why_not_share(
            self._config,
            outputs=len(instance.outputs),
            bytes_per_s_one_more=max((output.byte_rate.per_s for output in instance.outputs.values()), default=0.0),
            bytes_per_s_here=sum(output.byte_rate.per_s for output in outputs if output.node != self._operators.me),
            load=self._load(),
            stalled=instance.waiting.blocked_samples >= STALLED_SAMPLES,
            movable=instance.movable,
        )
