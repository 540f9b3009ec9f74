"""Tells which operators of a new query may be replaced by running ones (SBON, section 3.2)."""

from collections.abc import Callable, Mapping

from sbon.membership.digest import may_contain
from sbon.membership.members import Member, MemberStatus
from sbon.query.params.source import SinkParams, SourceParams
from sbon.query.plan import Plan
from sbon.types import NodeId, OperatorId


def shareable_signatures(plan: Plan, read_whole: Callable[[SourceParams], bool] = lambda params: False) -> dict[OperatorId, str]:
    """Returns the signatures of the operators of a plan that another query's operators may replace.

    Sinks are left out, as their answers have one owner. So is a source that a query reads from its beginning (`read_whole`), and every
    operator after one: a query that joined it later would miss its earlier rows.
    """
    own = {operator.id for operator in plan.operators if isinstance(operator.params, SourceParams) and read_whole(operator.params)}
    reached = len(own) + 1
    while len(own) != reached:
        reached = len(own)
        own |= {link.target for link in plan.links if link.source in own}
    return {
        operator.id: operator.signature
        for operator in plan.operators
        if operator.signature and operator.id not in own and not isinstance(operator.params, SinkParams)
    }


def hosts_of(signatures: Mapping[OperatorId, str], members: Mapping[NodeId, Member]) -> dict[str, list[NodeId]]:
    """Returns, for each signature, the members whose digests say that they may run it."""
    found: dict[str, list[NodeId]] = {}
    for signature in sorted(set(signatures.values())):
        nodes = [
            name
            for name, member in sorted(members.items())
            if member.status is MemberStatus.ALIVE and may_contain(member.digest, signature)
        ]
        if nodes:
            found[signature] = nodes
    return found
