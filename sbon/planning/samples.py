"""Asks the hosts of sources for samples of operators that never ran, before a query is predicted (`sbon.cost.sampling`). No I/O."""

from collections.abc import Callable
from functools import partial

from sbon.cost.books import Books
from sbon.errors import SbonError
from sbon.peers.directory import Directory
from sbon.query.plan import Plan, SinkParams, SourceParams
from sbon.types import NodeId, OperatorId
from sbon.wire.candidates import SampleAsk, Sampled
from sbon.wire.costs import TOLD_MAX
from sbon.wire.messages import Message

ANSWER_S = 1.0
"""Time after which a host that has not answered counts as having none."""


def questions(plan: Plan, is_known: Callable[[str], bool]) -> dict[NodeId, SampleAsk]:
    """Returns what to ask the hosts of sources, where something is there that is not known: their sources and what only these feed.

    Parameters
    ----------
    is_known : tells of a signature whether its costs are known
    """
    host_of: dict[OperatorId, NodeId | None] = {}
    for spec in plan.operators:
        if isinstance(spec.params, SinkParams):
            continue
        feeding = {host_of.get(link.source) for link in plan.links if link.target == spec.id}
        host_of[spec.id] = spec.pinned if isinstance(spec.params, SourceParams) else feeding.pop() if len(feeding) == 1 else None
    found = {}
    for node in sorted({node for node in host_of.values() if node is not None}):
        operators = tuple(spec for spec in plan.operators if host_of.get(spec.id) == node)[:TOLD_MAX]
        mine = {spec.id for spec in operators}
        if not all(is_known(spec.signature) for spec in operators):
            links = tuple(link for link in plan.links if link.source in mine and link.target in mine)
            found[node] = SampleAsk(operators=operators, links=links)
    return found


def ask_samples(plan: Plan, books: Books, directory: Directory, now: Callable[[], float], done: Callable[[], None]) -> None:
    """Asks for samples, and calls `done` once all hosts have answered, or are too late; the books have then what they told."""
    asked = questions(plan, lambda signature: books.statistics.of(signature, now()) is not None)
    waiting = set(asked)
    if not waiting:
        done()

    def answered(node: NodeId, result: Message | SbonError) -> None:
        if isinstance(result, Sampled):
            books.hear_sample(node, result.costs, {spec.signature for spec in asked[node].operators}, now())
        waiting.discard(node)
        if not waiting:
            done()

    for node in sorted(asked):
        directory.request(node, asked[node], partial(answered, node), ANSWER_S)
