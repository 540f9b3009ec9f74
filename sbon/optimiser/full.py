"""The full optimiser: finds nodes for all operators of a new query, once, at the agent that takes it. A machine without I/O.

    begin -> RECALLING -> (pinned nodes have reported the RTTs that they remember, or their time is over)
                |
             ASKING -> (all answered or given up) -> choose
                ^                                      |-- links of the choice and of its rivals are not measured: ask about them
                |--------------------------------------|-- no room among the candidates: ask twice as many
                                                       |-- Decision
Coordinates alone miss good candidates, and the budget of probes is small. But every node measures its RTTs to many others all the time:
the nodes that unpinned operators are linked to are asked which of those they remember, and candidates are the best by these and by
coordinates, in turn (`sbon.placement.regions`). If all nodes are candidates anyway, this step is left out.

Candidates are asked before they are used: they answer with RTTs that they have measured, their room, and what they run already. The
strategy chooses. A choice that rests on predicted RTTs is verified, because among many predictions the best is often just the most
wrong: its links, and those of the next best nodes of each operator, are measured and it is made again, until all those are known, for at
most VERIFICATIONS rounds and within the budget of probes. Where nobody has room the circle widens (SBON, section 3.1.3), until all
known nodes, or `candidates_max` for each operator, have been asked: then PlacementError. It widens, too, where the candidates allow no
placement within the query's delay bound.
"""

from collections.abc import Mapping, Sequence
from typing import TypeAlias

import msgspec
import numpy as np

from sbon.cost.model import CostModel
from sbon.cost.problem import PlacementProblem
from sbon.cost.space import CostSpace
from sbon.cost_space.coordinate import Coordinate
from sbon.errors import DelayBoundError, LocalProtocolError, PlacementError
from sbon.optimiser.asking import AskCandidate as AskCandidate  # for the code that performs actions
from sbon.optimiser.asking import AskRemembered as AskRemembered
from sbon.optimiser.asking import ends_of_candidates, links_chosen
from sbon.optimiser.decision import Decision, decide
from sbon.optimiser.inquiry import Inquiry
from sbon.placement.candidates import CandidateReport, Choice, Regions
from sbon.placement.config import PlacementConfig
from sbon.placement.models import model_of
from sbon.placement.remembered import NOTHING, Remembered
from sbon.placement.strategy import Strategy, strategy_named
from sbon.types import NodeId, OperatorId

VERIFICATIONS = 5
"""Rounds of questions about links that were only predicted. More changed no figure in the evaluation."""
RIVALS = 8
"""Nodes of each operator, the chosen one included, whose links are measured in a round."""
LATE_MAX = 2
"""Times that the circle widens because the candidates allow no placement within a delay bound."""
FIRST_SHARE = 0.5
"""Share of the probes spent on the first questions, where several operators depend on each other's places."""
RECALLING_NODES_MAX = 16
"""Pinned nodes asked which RTTs they remember, those of the highest rates. Further ones have little influence on where an operator goes."""

Action: TypeAlias = AskRemembered | AskCandidate | Decision


class FullOptimiser:
    """Places one query.

    Parameters
    ----------
    problem : operators and links to place
    signatures : of operators that a running one may replace (see `sbon.optimiser.reuse.shareable_signatures`)
    coordinates : of all nodes that may be asked; pinned nodes without one are taken to be at the origin
    config : strategy and limits
    rng : drawn from once
    hosts : for a signature, nodes said (by gossip) to run it: they are asked too
    strategy, model : instead of the configured ones
    neighbour_rtts : number of candidates by coordinates to which each pinned node is asked for remembered RTTs; 0: none is asked
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
        neighbour_rtts: int = 0,
        model: CostModel | None = None,
    ) -> None:
        space = coordinates if isinstance(coordinates, CostSpace) else CostSpace(coordinates)
        self._space = space.with_strangers(problem.pinned_nodes)
        self._problem = problem
        self._links = problem.links_of_each()
        self._signatures = dict(signatures) if config.reuse else {}
        self._hosts = hosts or {}
        self._config = config
        self._model = model if model is not None else model_of(config)
        self._strategy = strategy if strategy is not None else strategy_named(config, self._model)
        self._seed = int(rng.integers(2**63))
        self._regions: Regions = {}
        probes = config.probes * len(problem.unpinned) if self._strategy.measures else 0
        self._inquiry = Inquiry(self._space, problem.pinned_nodes, self._signatures, probes)
        self._verifications = self._late = 0
        self._neighbour_rtts = neighbour_rtts
        self._remembered: Remembered = NOTHING
        self._choice: Choice | None = None
        self._begun = self._recalling = self._done = False
        self._k = self._first_k()

    def begin(self) -> list[Action]:
        """Returns the first questions; or the decision, if there is nothing to ask.

        Raises
        ------
        PlacementError
            No node is known.
        """
        if self._begun:
            raise LocalProtocolError("begin called twice, expected once")
        self._begun = True
        about = self._recallers()
        if about:
            self._recalling = True
            return [AskRemembered(about)]
        return self._widen() or self._advance()

    def recalled(self, remembered: Remembered) -> list[Action]:
        """Takes the RTTs that the pinned nodes have reported; returns the first questions to candidates.

        Raises
        ------
        LocalProtocolError
            No node was asked for remembered RTTs.
        """
        if not self._recalling:
            raise LocalProtocolError("recalled called, expected only once after AskRemembered")
        self._recalling = False
        self._remembered = remembered
        return self._widen() or self._advance()

    def answered(self, report: CandidateReport) -> list[Action]:
        """Takes an answer; returns further questions or the decision. An answer that is not awaited is ignored (it may come after its
        time-out).

        Raises
        ------
        PlacementError
            This was the last answer, and no node known can host an operator.
        """
        if self._done or not self._inquiry.answered(report):
            return []
        return [] if self._inquiry.is_open else self._advance()

    def unanswered(self, node: NodeId) -> list[Action]:
        """Notes that a node has not answered in time, or cannot be reached. It is not used, unless an operator is pinned to it.

        Raises
        ------
        PlacementError
            This was the last answer awaited, and no node known can host an operator.
        """
        if self._done or not self._inquiry.unanswered(node):
            return []
        return [] if self._inquiry.is_open else self._advance()

    def _advance(self) -> list[Action]:
        """Decides, or asks further, once all answers are in."""
        try:
            choice = self._choose(cautious=self._config.probes == 0)
        except PlacementError as problem:
            further = self._widen() if self._may_help(problem) else []
            if not further:
                self._done = True
                raise
            return further
        verify = self._verify(choice)
        if verify:
            return verify
        if self._config.probes > 0 and self._rests_on_predictions(choice):
            choice = self._choose(cautious=True)
        self._done, self._choice = True, choice
        return [self._decided(choice)]

    def elsewhere(self, assignment: Mapping[OperatorId, NodeId]) -> Decision:
        """Returns the decision with operators on other nodes that have been asked.

        Raises
        ------
        PlacementError
            Nothing has been decided yet.
        """
        if self._choice is None:
            raise PlacementError("operators cannot go elsewhere before a placement was decided")
        return self._decided(msgspec.structs.replace(self._choice, assignment={**self._choice.assignment, **assignment}))

    def _decided(self, choice: Choice) -> Decision:
        return decide(
            self._problem,
            choice,
            self._regions,
            self._inquiry.reports,
            self._signatures,
            self._inquiry.latencies,
            self._model,
            asked=len(self._inquiry.asked),
        )

    def _may_help(self, problem: PlacementError) -> bool:
        """Tells whether more candidates may solve the problem.

        A bound on the delay is given up after `LATE_MAX` tries, because candidates with room that promise low delays are asked first. It is
        given up at once if the strategy does not measure delays: it would choose the same nodes from a wider circle.
        """
        if isinstance(problem, DelayBoundError):
            self._late += 1
            return self._strategy.measures and self._late <= LATE_MAX
        return True

    def _choose(self, *, cautious: bool = False) -> Choice:
        """Returns the strategy's choice; `cautious` if it will not be verified any more.

        Without caution the choice goes where predictions promise most, which is where measuring is most worthwhile.
        """
        latencies = self._inquiry.latencies.cautious() if cautious else self._inquiry.latencies
        try:
            return self._strategy.choose(self._problem, self._regions, self._inquiry.reports, self._signatures, latencies)
        except DelayBoundError:
            if not cautious:
                raise
            return self._choose()  # caution makes ways longer

    def _rests_on_predictions(self, choice: Choice) -> bool:
        return any(self._inquiry.is_unmeasured(source, target) for source, target in links_chosen(self._problem, choice))

    def _first_k(self) -> int:
        """Returns the first number of candidates: a measuring strategy asks twice the configured number, as far as the probes allow."""
        config = self._config
        anchors = sum(
            len({self._problem.pinned[other] for other, _ in self._links[operator] if other in self._problem.pinned})
            for operator in self._problem.unpinned
        )
        if not self._strategy.measures:
            return config.candidates
        return min(2 * config.candidates, config.candidates_max, max(config.candidates, self._inquiry.probes_left // max(1, anchors)))

    def _recallers(self) -> dict[NodeId, tuple[NodeId, ...]]:
        """Returns the pinned nodes to ask for remembered RTTs; {} where that would change no candidate."""
        if not self._neighbour_rtts or len(self._space) <= self._k or self._inquiry.probes_left <= 0:
            return {}
        regions = self._strategy.regions(self._problem, self._space, self._neighbour_rtts, np.random.default_rng(self._seed))
        return ends_of_candidates(self._problem, regions, RECALLING_NODES_MAX, self._neighbour_rtts)

    def _widen(self) -> list[Action]:
        """Returns questions to the candidates of a wider circle that have not been asked; [] if there are none."""
        while True:
            if self._regions:
                if self._k >= min(self._config.candidates_max, len(self._space)):
                    return []
                self._k = min(2 * self._k, self._config.candidates_max)
            if self._problem.unpinned and not self._space:
                raise PlacementError(f"no node is known that could host operator {self._problem.unpinned[0]!r}")
            rng = np.random.default_rng(self._seed)  # the same draws for every width
            fresh = self._strategy.regions(self._problem, self._space, self._k, rng, self._remembered) if self._problem.unpinned else {}
            for operator, region in fresh.items():
                rumoured = sorted(self._hosts.get(self._signatures.get(operator, ""), ()))
                wider = dict.fromkeys((*self._regions.get(operator, ()), *region, *rumoured))
                self._regions[operator] = tuple(node for node in wider if node in self._space)
            nodes = dict.fromkeys(node for region in self._regions.values() for node in region)
            if self._signatures:  # sources of other queries may serve, too
                nodes.update(dict.fromkeys(self._problem.pinned_nodes))
            asks = self._asks([node for node in nodes if node not in self._inquiry.asked])
            if asks or not self._regions:
                return asks

    def _asks(self, nodes: Sequence[NodeId]) -> list[Action]:
        """Returns questions to nodes that have not been asked: the best candidates of each operator are asked about its pinned
        neighbours."""
        about: dict[NodeId, dict[NodeId, None]] = {node: {} for node in nodes}
        if self._inquiry.probes_left <= 0:
            return [*self._inquiry.questions(about)]
        wanted: list[tuple[int, float, NodeId, NodeId]] = []
        for operator, region in self._regions.items():
            ends = [(self._problem.pinned[other], rate) for other, rate in self._links[operator] if other in self._problem.pinned]
            wanted += [
                (rank, -rate, node, end) for rank, node in enumerate(region) if node not in self._inquiry.asked for end, rate in ends
            ]
        share = 1.0 if len(self._problem.unpinned) == 1 else FIRST_SHARE
        self._inquiry.want(about, [(node, end) for _, _, node, end in sorted(wanted)], int(share * self._inquiry.probes_left))
        return [*self._inquiry.questions(about)]

    def _verify(self, choice: Choice) -> list[Action]:
        """Returns questions about the links of a choice that are not measured, and about those of its rivals."""
        if self._inquiry.probes_left <= 0 or self._verifications >= VERIFICATIONS:
            return []
        about: dict[NodeId, dict[NodeId, None]] = {}
        self._inquiry.want(about, [*links_chosen(self._problem, choice), *self._rivals(choice)], self._inquiry.probes_left)
        self._verifications += 1
        return [*self._inquiry.questions(about)]

    def _rivals(self, choice: Choice) -> list[tuple[NodeId, NodeId]]:
        """Returns pairs of nodes whose RTT could change the choice: the next best nodes of each operator, best first, and its neighbours'
        nodes.

        Where several operators depend on each other, nodes that look good only now, beside the chosen ones, become candidates too.
        """
        operators = [op for op in self._problem.unpinned if op in choice.assignment and op not in choice.reused]
        around = self._strategy.around(self._problem, self._space, self._k, choice.assignment)
        able = {node for node, report in self._inquiry.reports.items() if report.free_slots > 0}
        ranked: list[tuple[int, NodeId, NodeId]] = []
        for operator in operators:
            fresh = [node for node in around.get(operator, ()) if node in self._space and node not in self._inquiry.asked]
            nodes = sorted({*able, *fresh})
            ends = [(choice.assignment[other], rate) for other, rate in self._links[operator] if other in choice.assignment]
            if not ends or not nodes:
                continue
            latency = self._inquiry.latencies.matrix_ms(nodes, [node for node, _ in ends])
            cost = self._model.of_links(np.array([rate for _, rate in ends]), latency).sum(axis=1)
            best = [nodes[index] for index in np.argsort(cost, kind="stable")[:RIVALS]]
            self._regions[operator] = tuple(dict.fromkeys((*self._regions[operator], *(node for node in best if node in fresh))))
            ranked += [(rank, node, end) for rank, node in enumerate(best) for end, _ in ends]
        return [(node, end) for _, node, end in sorted(ranked)]
