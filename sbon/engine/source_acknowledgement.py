"""Tells sources when their rows are safe, so that the sources can acknowledge the rows at their origin.

`sbon.engine.execution` uses it.

A source that wants to know gives each poll a number (`Polled.upto`). The rows leave in batches on links. Once all these batches, and those
of all earlier polls, are safe (`sbon.links`), the source is told the number. The batches of a link that is no longer here count as safe:
the query has been dropped, or the operator has moved with its output.
"""

from collections import deque
from collections.abc import Mapping

from sbon.delivery.flow import Flow
from sbon.execution.ends import Output
from sbon.execution.instance import Instance
from sbon.execution.life import State
from sbon.links.sender import LinkSender
from sbon.ports import Clock
from sbon.types import OperatorId

LOOK_AGAIN_S = 1.0
"""Seconds between checks for removed links, which get no acknowledgement. Acknowledgements themselves are noticed at once."""
_Sent = tuple[Output, LinkSender, int]


class SourceAcknowledgement:
    """Watches the acknowledgements of the batches of this host's sources. Each source limits how far it runs ahead of them."""

    def __init__(self, host: Clock, flow: Flow, instances: Mapping[OperatorId, Instance]) -> None:
        self._host = host
        self._flow = flow
        self._instances = instances
        self._sent: list[_Sent] = []
        self._waiting: dict[Instance, deque[tuple[int, list[_Sent]]]] = {}
        self._timer_set = False

    def offered(self, output: Output) -> None:
        """Notes the last batch offered to an output, as part of the present poll."""
        self._sent.append((output, output.sender, output.sender.offered))

    def entered(self, source: Instance, upto: int | None) -> None:
        """Notes that all batches of a poll are in the links; `upto` is the poll's number."""
        sent, self._sent = self._sent, []
        if upto is None:
            return
        waiting = self._waiting.setdefault(source, deque())
        if waiting and waiting[-1][0] == upto:
            waiting[-1][1].extend(sent)
        else:
            waiting.append((upto, sent))
        self.look()

    def look(self) -> None:
        """Tells every source how far its rows are safe, if that has changed."""
        for source in list(self._waiting):
            self._look_at(source)
        if self._waiting and not self._timer_set:
            self._timer_set = True
            self._host.call_at(self._host.now() + LOOK_AGAIN_S, self._look_again)

    def _look_again(self) -> None:
        self._timer_set = False
        self.look()

    def _look_at(self, source: Instance) -> None:
        if self._instances.get(source.id) is not source or source.state is State.FAILED:
            del self._waiting[source]
            return
        waiting, upto = self._waiting[source], None
        while waiting and not any(self._is_under_way(*sent) for sent in waiting[0][1]):
            upto, _ = waiting.popleft()
        if not waiting:
            del self._waiting[source]
        acknowledged = getattr(source.source, "acknowledged", None)
        if upto is not None and acknowledged is not None:
            acknowledged(upto)

    def _is_under_way(self, output: Output, sender: LinkSender, sequence: int) -> bool:
        found = self._flow.ends.gives(output.link.id)
        return found is not None and found[1].sender is sender and sender.safe < sequence
