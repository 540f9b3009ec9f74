"""Holds back the input of a join that is ahead in event time while the other input has rows waiting on this host.
`sbon.engine.execution` uses it.

A join keeps the rows of the input that is ahead until the other input has caught up, and the more it keeps, the more each batch costs. If a
host was slow for a while, batches from other hosts wait at its joins, and its own sources have rows waiting. The batches have entered the
overlay earlier, so they would all go first, and the join would keep their rows. The same happens if one of two other hosts was slow.

So a join takes no more of an input that is more than `STEP_S` ahead, as long as the operators and sources here that feed its other input
have something to do. This holds for inputs of all kinds: batches that are not taken use up the credit of their link, up to the source. If
nothing else runs on this host, the input is taken after all. So no work is put off without a reason, and no two joins wait for each other.

The sources of one host are kept in step already before they are polled (`sbon.engine.leads`).
"""

from collections.abc import Sequence

from sbon.engine.leads import ROWS_AHEAD, STEP_S
from sbon.execution.host_links import Links
from sbon.execution.instance import Instance
from sbon.execution.life import State
from sbon.types import NodeId


class Alignment:
    """Decides which inputs of this host's joins are held back.

    Parameters
    ----------
    rows_max : rows that a join may keep of an input that is ahead, even if nothing waits for the other one
    """

    def __init__(self, flow: Links, me: NodeId, rows_max: int) -> None:
        self._flow, self._me, self._rows_max = flow, me, rows_max
        self._held: dict[Instance, None] = {}

    @property
    def held(self) -> tuple[Instance, ...]:
        """Returns the joins with an input that is held back because the other input has rows waiting."""
        for gone in [instance for instance in self._held if instance.state is not State.RUNNING]:
            del self._held[gone]
        return tuple(self._held)

    def look_at(self, instance: Instance) -> None:
        """Decides anew for an operator that is not busy."""
        assert instance.operator is not None
        kept = instance.operator.rows_ahead()
        leading = self._leading(instance, kept) if max(kept, default=0) > ROWS_AHEAD else None
        instance.waiting.align(kept, self._rows_max, leading)
        if leading is None:
            self._held.pop(instance, None)
        else:
            self._held[instance] = None

    def release(self) -> tuple[Instance, ...]:
        """Lets the held inputs go on until their joins are looked at again; returns these joins."""
        released = self.held
        self._held.clear()
        for instance in released:
            if instance.operator is not None:
                instance.waiting.align(instance.operator.rows_ahead(), self._rows_max)
        return released

    def _leading(self, join: Instance, kept: Sequence[int]) -> int | None:
        """Returns the port that is ahead of one for which rows wait here; None if there is none."""
        watermarks = join.waiting.watermarks(len(kept))
        behind = min(range(len(kept)), key=watermarks.__getitem__)
        for port, rows in enumerate(kept):
            if rows > ROWS_AHEAD and watermarks[port] - watermarks[behind] > STEP_S * 1e6 and self._is_fed(join, behind):
                return port
        return None

    def _is_fed(self, operator: Instance, port: int | None = None) -> bool:
        """Tells whether rows for an operator (with `port`: for this port only) wait at it, or further up on this host."""
        for incoming in operator.inputs.values():
            if port is not None and incoming.link.port != port:
                continue
            if incoming.queue and incoming.link.port != operator.waiting.held_port:
                return True
            if incoming.node == self._me and (found := self._flow.ends.gives(incoming.link.id)) is not None:
                feeder = found[0]
                if feeder.state is State.RUNNING and feeder.has_credit and (feeder.polls.has_more or self._is_fed(feeder)):
                    return True
        return False
