"""Asks the hosts of sources for samples of operators that never ran, before a query is predicted (`sbon.cost.sampling`). No I/O."""

from collections.abc import Callable
from functools import partial

from sbon.cost.figure import Source
from sbon.cost.statistics import OperatorStatistics
from sbon.cost.store import CostStore
from sbon.errors import SbonError
from sbon.peers.directory import Directory
from sbon.query.estimate import PASSING, estimate
from sbon.query.params.source import SinkParams, SourceParams
from sbon.query.plan import OperatorSpec, Plan
from sbon.types import NodeId, OperatorId
from sbon.wire.candidates import SampleAsk, Sampled
from sbon.wire.costs import TOLD_MAX
from sbon.wire.messages import Message

ANSWER_S = 1.0
"""Time after which a host that has not answered counts as having no sample."""


def questions(plan: Plan, is_known: Callable[[str], bool]) -> dict[NodeId, SampleAsk]:
    """Returns a question to each host of sources with unknown operators: about its sources, and the operators that only these feed.

    Parameters
    ----------
    is_known : tells whether the costs of a signature are known
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


def known_shares(plan: Plan, known: Callable[[OperatorSpec], OperatorStatistics | None]) -> dict[str, float]:
    """Returns the sampled or measured rows out per row in, by signature, of operators whose share does not depend on rates.

    If no row has passed, the share is as if one had.
    """
    found = {}
    for spec in plan.operators:
        if not isinstance(spec.params, PASSING) or (statistics := known(spec)) is None or len(statistics.ports) != 1:
            continue
        share = statistics.ports[0].selectivity
        if share.source in (Source.MEASURED, Source.SAMPLED):
            found[spec.signature] = share.value or share.high / 3
    return found


def with_known_shares(plan: Plan, cost_store: CostStore, now: float) -> Plan:
    """Returns the plan with the rates of links that follow from the selectivities in the cost store."""
    shares = known_shares(plan, lambda spec: cost_store.statistics.of(spec.signature, now))
    return estimate(plan, shares=shares) if shares else plan


def ask_samples(plan: Plan, cost_store: CostStore, directory: Directory, now: Callable[[], float], done: Callable[[Plan], None]) -> None:
    """Asks for samples; once all hosts have answered, or are too late, calls `done` with the plan at the rates that follow from them."""
    asked = questions(plan, lambda signature: cost_store.statistics.of(signature, now()) is not None)
    waiting = set(asked)
    if not waiting:
        done(with_known_shares(plan, cost_store, now()))

    def answered(node: NodeId, result: Message | SbonError) -> None:
        if isinstance(result, Sampled):
            cost_store.hear_sample(node, result.costs, {spec.signature for spec in asked[node].operators}, now())
        waiting.discard(node)
        if not waiting:
            done(with_known_shares(plan, cost_store, now()))

    for node in sorted(asked):
        directory.request(node, asked[node], partial(answered, node), ANSWER_S)
