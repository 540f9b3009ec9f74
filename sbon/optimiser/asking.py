"""The questions of the full optimiser to candidates, and to the nodes that they would be linked to."""

from itertools import islice

import msgspec

from sbon.cost.problem import PlacementProblem
from sbon.placement.candidates import Choice, Regions
from sbon.placement.remembered import interleaved
from sbon.types import NodeId


class AskCandidate(msgspec.Struct, frozen=True):
    """Request to ask a node for its offer. Report the result with `answered` or `unanswered`; the node may be this one."""

    node: NodeId
    about: tuple[NodeId, ...]
    """Nodes whose RTTs it should report, the most important first."""
    signatures: tuple[str, ...]
    """Signatures for which it should report running operators."""


class AskRemembered(msgspec.Struct, frozen=True):
    """Request to ask nodes for the RTTs that they remember. Report the answers that came in time with one call of `recalled`."""

    about: dict[NodeId, tuple[NodeId, ...]]
    """For each node that is asked, the peers whose RTTs it should report besides those to its nearest, the most important first."""


def ends_of_candidates(problem: PlacementProblem, regions: Regions, nodes_max: int, peers_max: int) -> dict[NodeId, tuple[NodeId, ...]]:
    """Returns the nodes to which unpinned operators are linked, those of the highest rates first, each with these operators' candidates."""
    rates: dict[NodeId, float] = {}
    candidates: dict[NodeId, list[tuple[NodeId, ...]]] = {}
    links = problem.links_of_each()
    for operator in problem.unpinned:
        for other, rate in links[operator]:
            if other in problem.pinned:
                node = problem.pinned[other]
                rates[node] = rates.get(node, 0.0) + rate
                candidates.setdefault(node, []).append(regions.get(operator, ()))
    heaviest = sorted(rates, key=lambda node: (-rates[node], node))[:nodes_max]
    return {node: tuple(islice((peer for peer in interleaved(*candidates[node]) if peer != node), peers_max)) for node in heaviest}


def links_chosen(problem: PlacementProblem, choice: Choice) -> list[tuple[NodeId, NodeId]]:
    """Returns the pairs of nodes between which a choice creates links."""
    return [(choice.assignment[link.source], choice.assignment[link.target]) for link in choice.adds(problem, {}).links]
