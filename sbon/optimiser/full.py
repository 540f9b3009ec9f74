"""The full optimiser: finds nodes for all operators of a new query, once, at the agent that takes it. A machine without I/O.

    begin -> ASKING -> (all answered or given up) -> choose
                ^                                      |-- a chosen link is not measured yet: ask about it, at most VERIFICATIONS times
                |--------------------------------------|-- no room among the candidates: ask twice as many
                                                       |-- Decision
Candidates are asked before they are used: they answer with RTTs that they have measured, their room, and what they run already. The
strategy chooses. A choice that rests on a predicted RTT is verified, because among many predictions the best is often just the most
wrong. Where nobody has room the circle widens (SBON, section 3.1.3), until all known nodes, or `candidates_max` for each operator, have
been asked: then PlacementError.
"""

from collections.abc import Mapping, Sequence
from typing import TypeAlias

import msgspec
import numpy as np

from sbon.cost.latency import EstimatedLatencies
from sbon.cost.space import CostSpace
from sbon.cost_space.coordinate import ORIGIN, Coordinate
from sbon.errors import LocalProtocolError, PlacementError
from sbon.optimiser.decision import Decision, decide
from sbon.placement.candidates import CandidateReport, Choice, Regions
from sbon.placement.config import PlacementConfig
from sbon.placement.problem import PlacementProblem
from sbon.placement.strategy import Strategy, strategy_named
from sbon.types import NodeId, OperatorId

VERIFICATIONS = 4
"""Rounds of questions about chosen links that were only predicted."""
CANDIDATES_MIN = 4
"""For each operator, however many RTTs each would have to report."""


class AskCandidate(msgspec.Struct, frozen=True):
    """Ask a node what it can offer. Answer with `answered` or `unanswered`; the node may be this one."""

    node: NodeId
    about: tuple[NodeId, ...]
    """Nodes whose RTT it should report, the most important first."""
    signatures: tuple[str, ...]
    """Of which it should tell what it runs."""


Action: TypeAlias = AskCandidate | Decision


class FullOptimiser:
    """Places one query.

    Parameters
    ----------
    problem : what to place
    signatures : of operators that a running one may stand in for (see `sbon.optimiser.reuse.shareable_signatures`)
    coordinates : of all nodes that may be asked; pinned nodes without one are taken to be at the origin
    config : strategy and limits
    rng : drawn from once
    hosts : for a signature, nodes said (by gossip) to run it: they are asked too
    strategy : instead of the configured one
    """

    def __init__(
        self,
        problem: PlacementProblem,
        signatures: Mapping[OperatorId, str],
        coordinates: Mapping[NodeId, Coordinate] | CostSpace,
        config: PlacementConfig,
        rng: np.random.Generator,
        hosts: Mapping[str, Sequence[NodeId]] | None = None,
        strategy: Strategy | None = None,
    ) -> None:
        space = coordinates if isinstance(coordinates, CostSpace) else CostSpace(coordinates)
        strangers = [node for node in problem.pinned_nodes if node not in space]
        self._known = frozenset(space.names)
        self._space = CostSpace({**space.coordinates, **dict.fromkeys(strangers, ORIGIN)}) if strangers else space
        self._problem = problem
        self._signatures = dict(signatures) if config.reuse else {}
        self._hosts = hosts or {}
        self._config = config
        self._strategy = strategy if strategy is not None else strategy_named(config)
        self._seed = int(rng.integers(2**63))
        self._k = self._first_k()
        self._regions: Regions = {}
        self._reports: dict[NodeId, CandidateReport] = {}
        self._latencies = EstimatedLatencies(self._space)
        self._outstanding: set[NodeId] = set()
        self._asked: dict[NodeId, set[NodeId]] = {}
        self._verifications = 0
        self._begun = self._done = False

    @property
    def outstanding(self) -> tuple[NodeId, ...]:
        """Nodes whose answer is awaited, in order of name."""
        return tuple(sorted(self._outstanding))

    def begin(self) -> list[Action]:
        """The first questions; or the decision, if there is nothing to ask.

        Raises
        ------
        PlacementError
            No node is known.
        """
        if self._begun:
            raise LocalProtocolError("begin called twice, expected once")
        self._begun = True
        asks = self._widen()
        return asks or self._advance()

    def answered(self, report: CandidateReport) -> list[Action]:
        """Take an answer; what nobody has asked for is ignored (it may come after its time-out).

        Raises
        ------
        PlacementError
            This was the last answer, and no node known can host an operator.
        """
        if self._done or report.node not in self._outstanding:
            return []
        self._outstanding.discard(report.node)
        before = self._reports.get(report.node)
        rtts = {**(before.rtts_ms if before is not None else {}), **report.rtts_ms}
        self._reports[report.node] = msgspec.structs.replace(report, rtts_ms=rtts)
        self._latencies.learn(report.node, {peer: rtt for peer, rtt in report.rtts_ms.items() if peer in self._space})
        return [] if self._outstanding else self._advance()

    def unanswered(self, node: NodeId) -> list[Action]:
        """A node has not answered in time, or cannot be reached. It is not used, unless an operator is pinned to it.

        Raises
        ------
        PlacementError
            This was the last answer awaited, and no node known can host an operator.
        """
        if self._done or node not in self._outstanding:
            return []
        self._outstanding.discard(node)
        self._reports.pop(node, None)
        return [] if self._outstanding else self._advance()

    def _advance(self) -> list[Action]:
        """All answers are in: decide, or ask further."""
        try:
            choice = self._choose()
        except PlacementError:
            further = self._widen()
            if not further:
                self._done = True
                raise
            return further
        verify = self._verify(choice)
        if verify:
            return verify
        self._done = True
        return [
            decide(self._problem, choice, self._regions, self._reports, self._signatures, self._latencies, asked=len(self._asked)),
        ]

    def _choose(self) -> Choice:
        return self._strategy.choose(self._problem, self._regions, self._reports, self._signatures, self._latencies)

    def _first_k(self) -> int:
        """A measuring strategy asks as many as the probes allow, up to twice the configured number; others just that number."""
        config = self._config
        if not self._strategy.measures or not self._problem.unpinned:
            return config.candidates
        affordable = config.probes // max(1, len(self._anchors()) * len(self._problem.unpinned))
        return max(min(affordable, 2 * config.candidates), min(CANDIDATES_MIN, config.candidates))

    def _anchors(self) -> dict[NodeId, float]:
        """Nodes of pinned operators with links to unpinned ones, and the rate of those links; highest rate first."""
        rates: dict[NodeId, float] = {}
        for operator in self._problem.unpinned:
            for other, rate in self._problem.neighbours(operator):
                if other in self._problem.pinned:
                    node = self._problem.pinned[other]
                    rates[node] = rates.get(node, 0.0) + rate
        return dict(sorted(rates.items(), key=lambda item: (-item[1], item[0])))

    def _widen(self) -> list[Action]:
        """Ask the candidates of a wider circle that have not been asked; [] if there are none."""
        while True:
            if self._regions:
                if self._k >= min(self._config.candidates_max, len(self._known)):
                    return []
                self._k = min(2 * self._k, self._config.candidates_max)
            if self._problem.unpinned and not self._known:
                raise PlacementError(f"no node is known that could host operator {self._problem.unpinned[0]!r}")
            rng = np.random.default_rng(self._seed)  # the same draws for every width
            fresh = self._strategy.regions(self._problem, self._space, self._k, rng) if self._problem.unpinned else {}
            for operator, region in fresh.items():
                rumoured = sorted(self._hosts.get(self._signatures.get(operator, ""), ()))
                wider = dict.fromkeys((*self._regions.get(operator, ()), *region, *rumoured))
                self._regions[operator] = tuple(node for node in wider if node in self._known)
            nodes = dict.fromkeys(node for region in self._regions.values() for node in region)
            if self._signatures:  # sources of other queries may serve, too
                nodes.update(dict.fromkeys(self._problem.pinned_nodes))
            asks = self._asks([node for node in nodes if node not in self._asked])
            if asks or not self._regions:
                return asks

    def _asks(self, nodes: Sequence[NodeId]) -> list[Action]:
        """Questions to nodes that have not been asked, with what the budget of probes allows them to be asked about."""
        candidates = {node for region in self._regions.values() for node in region}
        asking = [node for node in nodes if node in candidates]
        share = self._config.probes // len(asking) if asking and self._strategy.measures else 0
        result: list[Action] = []
        for node in nodes:
            about = self._about(node)[:share] if node in candidates else []
            self._asked[node] = set(about)
            self._outstanding.add(node)
            result.append(AskCandidate(node, tuple(about), self._all_signatures()))
        return result

    def _about(self, node: NodeId) -> list[NodeId]:
        """Whose RTT matters to a candidate: the pinned neighbours of the operators that it is a candidate of, then other candidates."""
        rates: dict[NodeId, float] = {}
        for operator, region in self._regions.items():
            if node not in region:
                continue
            for other, rate in self._problem.neighbours(operator):
                if other in self._problem.pinned:
                    end = self._problem.pinned[other]
                    rates[end] = rates.get(end, 0.0) + rate
        rates.pop(node, None)
        return sorted(rates, key=lambda end: (-rates[end], end))

    def _verify(self, choice: Choice) -> list[Action]:
        """Questions about the links of a choice that nobody has been asked about."""
        if not self._strategy.measures or self._verifications >= VERIFICATIONS or not self._config.probes:
            return []
        about: dict[NodeId, dict[NodeId, None]] = {}
        for link in self._problem.links:
            if link.source not in choice.assignment or link.target not in choice.assignment or link.target in choice.reused:
                continue
            ends = choice.assignment[link.source], choice.assignment[link.target]
            if ends[0] == ends[1] or self._latencies.measured_rtt_ms(*ends) is not None:
                continue
            for node, peer in (ends, ends[::-1]):
                if node in self._reports and peer not in self._asked[node]:
                    about.setdefault(node, {})[peer] = None
                    break
        self._verifications += bool(about)
        result: list[Action] = []
        for node, peers in about.items():
            self._asked[node].update(peers)
            self._outstanding.add(node)
            result.append(AskCandidate(node, tuple(peers), self._all_signatures()))
        return result

    def _all_signatures(self) -> tuple[str, ...]:
        return tuple(sorted(set(self._signatures.values())))
