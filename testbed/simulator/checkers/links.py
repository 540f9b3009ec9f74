"""Checks the numbers of batches on each link: a receiver takes only offered batches, acknowledges only processed ones, and no number falls,
whichever hosts have the ends.

A query without an owner is left out: while it begins, it may be made again under the same names because a host has refused. So are the
links from operators of other queries to it.
"""

from collections.abc import Iterator

from sbon.links.link_names import target_of
from sbon.types import LinkId, OperatorId
from sbon.wire.authority import query_of
from sbon_testbed.simulator.case import ACTIVE, Case
from sbon_testbed.simulator.checkers.base import CaseChecker


class Links(CaseChecker):
    """Compares both ends of each link, and each end with its own past."""

    def __init__(self, run: Case) -> None:
        super().__init__(run)
        self._offered: dict[LinkId, int] = {}
        self._processed: dict[LinkId, int] = {}

    def look(self) -> str:
        """Returns the first link whose numbers are wrong."""
        return next(self._problems(), "")

    def _problems(self) -> Iterator[str]:
        offered: dict[LinkId, tuple[int, int, OperatorId]] = {}
        processed: dict[LinkId, tuple[int, int]] = {}
        former: dict[LinkId, int] = {}
        owned = {query for _, agent in self.run.agents() for query in agent.queries.owned.records}
        for agent, instance in self.run.instances():
            if instance.state not in ACTIVE or query_of(instance.id) not in owned:
                continue
            for output in instance.outputs.values():
                sender = output.sender
                if query_of(target_of(sender.link)) not in owned:
                    continue
                offered[sender.link] = (sender.offered, sender.offered - sender.held, instance.id)
            for link, incoming in instance.inputs.items():
                processed[link] = (incoming.receiver.processed, incoming.receiver.received)
                former[link] = incoming.from_former
                if incoming.receiver.processed > incoming.receiver.received:
                    yield f"{instance.id} on {agent.name} has processed more of {link} than it has received"
        for link, (number, acknowledged, operator) in offered.items():
            if number < self._offered.get(link, 0):
                yield f"{operator} gives batch {number} of {link}, and gave {self._offered[link]} before"
            self._offered[link] = number
            done, received = processed.get(link, (acknowledged, 0))
            if acknowledged > max(done, former.get(link, 0)):
                yield f"batch {acknowledged} of {link} is acknowledged, but only {done} are processed"
            if received > number:
                yield f"batch {received} of {link} has been received, but only {number} were offered"
        for link, (done, _) in processed.items():
            if done < self._processed.get(link, 0):
                yield f"{link} is at batch {done}, and was at {self._processed[link]} before"
            self._processed[link] = done
