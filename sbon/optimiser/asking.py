"""What the full optimiser asks of candidates."""

import msgspec

from sbon.placement.candidates import Choice
from sbon.placement.problem import PlacementProblem
from sbon.types import NodeId


class AskCandidate(msgspec.Struct, frozen=True):
    """Ask a node what it can offer. Answer with `answered` or `unanswered`; the node may be this one."""

    node: NodeId
    about: tuple[NodeId, ...]
    """Nodes whose RTT it should report, the most important first."""
    signatures: tuple[str, ...]
    """Of which it should tell what it runs."""


def links_chosen(problem: PlacementProblem, choice: Choice) -> list[tuple[NodeId, NodeId]]:
    """The pairs of nodes that a choice would link anew."""
    return [
        (choice.assignment[link.source], choice.assignment[link.target])
        for link in problem.links
        if link.source in choice.assignment and link.target in choice.assignment and link.target not in choice.reused
    ]
