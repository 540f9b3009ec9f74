"""Places the operators of a new query: runs the full optimiser (SBON, section 3.2) and asks candidates.

`sbon.queries.queries` calls it. The optimiser is loaded with the first query, because most agents get none.
"""

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec

from sbon.connectors.reading import is_read_whole
from sbon.cost.store import CostStore
from sbon.errors import DelayBoundError, PlacementError, SbonError
from sbon.membership.gossip import Gossip
from sbon.optimiser.config import OptimiserConfig
from sbon.optimiser.placed import Placed, placed_as
from sbon.placement.config import PlacementConfig
from sbon.ports import SeededExecutor
from sbon.query.params.kinds import needs_of
from sbon.query.plan import Plan
from sbon.rearranging.candidate_questions import CandidateQuestions
from sbon.rearranging.remembering import Remembering
from sbon.types import NodeId, OperatorId

if TYPE_CHECKING:
    from sbon.cost.placed_query import PlacedQuery
    from sbon.optimiser.decision import Decision
    from sbon.optimiser.full import Action
    from sbon.placement.candidates import CandidateReport
    from sbon.placement.remembered import Remembered
    from sbon.planning.admission import Action as Admitting

    Answered = Callable[[NodeId, CandidateReport | None], None]

ROOM_WAIT_S = 14.0
"""Longest time in seconds that a query waits for slots that other queries have reserved and may not use; it waits at least half as long. A
query is placed once more if a host refuses, so two such waits must end before the command line gives up after 30 s."""
ROOM_RETRY_S = 1.0
"""Mean pause in seconds before a waiting query asks again; the other queries have been placed by then."""


class Placing:
    """Runs a full optimiser for each query that is placed."""

    def __init__(
        self,
        host: SeededExecutor,
        gossip: Gossip,
        candidate_questions: CandidateQuestions,
        remembering: Remembering,
        config: PlacementConfig,
        optimiser: OptimiserConfig,
        cost_store: CostStore,
    ) -> None:
        self.host = host
        self.cost_store = cost_store
        self.gossip = gossip
        self.candidate_questions = candidate_questions
        self.remembering = remembering
        self.config = config
        self.optimiser = optimiser
        self.rng = host.rng.spawn(1)[0]

    def reconfigure(self, optimiser: OptimiserConfig) -> None:
        """Uses other settings from the next question on."""
        self.optimiser = optimiser

    def place(
        self,
        plan: Plan,
        done: Callable[[Placed | SbonError], None],
        excluded: frozenset[NodeId] = frozenset(),
        *,
        share: bool = True,
        reserve: bool = True,
        settled: frozenset[OperatorId] = frozenset(),
        carry: bool | None = None,
    ) -> None:
        """Places a query; `done` gets the result.

        Parameters
        ----------
        excluded : nodes that count as full
        share : whether running operators of other queries may be reused
        reserve : whether candidates reserve slots until the operators come
        settled : operators that run already, and need no slots
        carry : whether the placement must carry the query's profile; None: only if `reserve`, that is if the query is to run
        """
        carries = bool(plan.profile) and (reserve if carry is None else carry)
        is_free = plan.max_latency_ms is None and not carries
        if settled or (is_free and not self.cost_store.nodes.has_bounded(self.host.now())):
            _Placement(self, plan, done, excluded, share, reserve, settled).begin()
        else:
            self._admit(plan, done, excluded, share, reserve, carries=carries)

    def _admit(
        self,
        plan: Plan,
        done: Callable[[Placed | SbonError], None],
        excluded: frozenset[NodeId],
        share: bool,
        reserve: bool,
        *,
        carries: bool,
    ) -> None:
        """Places a query so that its predicted latency keeps within its bound and, with `carries`, so that it carries its profile
        (`sbon.planning`)."""
        from sbon.planning.admission import Admission, Admitted, Refused
        from sbon.planning.carrying import Carrying

        admission = Carrying(plan, excluded) if carries else Admission(plan, excluded)
        holding: set[NodeId] = set()

        def free(kept: Collection[NodeId] = ()) -> None:
            """Releases the slots that attempts have reserved, except on the nodes `kept`."""
            if reserve:
                self.candidate_questions.decided(plan.query, dict.fromkeys(holding - set(kept), 0))

        def perform(action: "Admitting | BaseException") -> None:
            match action:
                case BaseException():
                    free()
                    done(action if isinstance(action, SbonError) else PlacementError(f"cannot predict latency or rates: {action}"))
                case Refused(problem):
                    free()
                    done(problem)
                case Admitted(placed, delay_bound_ms, note):
                    free(placed.nodes.values())
                    done(placed.bounded(delay_bound_ms, note))
                case _:
                    bound_ms, shares = (None, False) if action.nodes else (plan.max_latency_ms, share)
                    _Placement(self, action.plan, tried, action.excluded, shares, reserve, frozenset(), bound_ms, action.nodes).begin()

        def tried(result: Placed | SbonError) -> None:
            if isinstance(result, SbonError):
                perform(admission.unplaceable(result))
                return
            holding.update(result.nodes.values())
            query = self.gather(result.plan, result)
            self.host.execute(lambda: admission.predicted(result, query), perform, rows=0)

        perform(admission.begin())

    def gather(self, plan: Plan, placed: Placed) -> "PlacedQuery":
        """Returns a placed query with the known figures of its operators and nodes."""
        from sbon.planning.gathering import gathered

        return gathered(self.cost_store, plan, placed, self.host.now())

    def replace(
        self,
        plan: Plan,
        excluded: frozenset[NodeId],
        settled: frozenset[OperatorId],
        done: Callable[[Mapping[OperatorId, NodeId] | SbonError], None],
    ) -> None:
        """Places operators of a running query again, except those in `settled`, which stay."""

        def placed(result: Placed | SbonError) -> None:
            done(result.nodes if isinstance(result, Placed) else result)

        self.place(plan, placed, excluded, share=False, settled=settled)

    def cost_of(self, links: Sequence[tuple[NodeId, NodeId, float]]) -> float | None:
        """Returns the cost of links between nodes by estimated latencies, without load; None while a coordinate is unknown.

        Parameters
        ----------
        links : source node, target node and rate in bytes/s
        """
        from sbon.placement.models import cost_of_links

        return cost_of_links(self.config, links, self.gossip.estimated_rtt_ms)


class _Placement:
    """Placement of one query. If slots are short only because others have reserved them, it waits and tries again."""

    def __init__(
        self,
        placing: Placing,
        plan: Plan,
        done: Callable[[Placed | SbonError], None],
        excluded: frozenset[NodeId],
        share: bool,
        reserve: bool,
        settled: frozenset[OperatorId],
        bound_ms: float | None = None,
        nodes: Mapping[OperatorId, NodeId] | None = None,
    ) -> None:
        from sbon.cost.problem import problem_of
        from sbon.optimiser.reuse import shareable_signatures

        self._placing = placing
        self._plan = plan
        self._done = done
        self._excluded = excluded
        self._reserve = reserve
        self._needs = needs_of(spec.params for spec in plan.operators)
        self._signatures = shareable_signatures(plan, is_read_whole) if share else {}
        self._problem = problem_of(plan)
        self._to_come = {operator: node for operator, node in self._problem.pinned.items() if operator not in settled}
        """Nodes of the pinned operators that are still to be made."""
        self._settled = settled
        self._bound_ms = bound_ms
        self._nodes = nodes or {}
        """Given nodes of operators, used whatever the cost."""
        self._until = placing.host.now() + ROOM_WAIT_S * float(placing.rng.uniform(0.5, 1.0))
        self._reports: dict[NodeId, CandidateReport] = {}
        self._slots: dict[NodeId, int] = {}
        self._remembered: Remembered | None = None

    def begin(self) -> None:
        """Asks the first candidates."""
        from sbon.optimiser.full import FullOptimiser
        from sbon.optimiser.reuse import hosts_of

        placing = self._placing
        self._reports, self._slots = {}, {}
        self._full: FullOptimiser = FullOptimiser(
            self._problem,
            self._signatures,
            placing.gossip.coordinates(),
            placing.config,
            placing.rng,
            hosts=hosts_of(self._signatures, placing.gossip.members),
            neighbour_rtts=placing.optimiser.neighbour_rtts,
        )
        self._perform(self._full.begin)

    def _perform(self, step: "Callable[[], list[Action]]") -> None:
        from sbon.optimiser.full import AskCandidate, AskRemembered

        try:
            actions = step()
        except SbonError as problem:
            self._failed(problem)
            return
        for action in actions:
            if isinstance(action, AskCandidate):
                self._ask(action.node, action.about, action.signatures, self._answered)
            elif isinstance(action, AskRemembered):
                self._recall(action.about)
            elif self._bound_ms is None:
                self._decided(self._full.elsewhere(self._nodes) if self._nodes else action)
            else:
                self._bound(action, self._bound_ms)

    def _bound(self, decision: "Decision", bound_ms: float) -> None:
        """Moves operators so that the latency keeps within the bound, if that is needed and possible."""
        from sbon.planning.latency_bound import placed_within

        placing, placed = self._placing, placed_as(self._plan, decision)
        query, rng = placing.gather(self._plan, placed), placing.rng.spawn(1)[0]

        def found(result: "dict[OperatorId, NodeId] | BaseException | None") -> None:
            if isinstance(result, BaseException):
                self._failed(result if isinstance(result, SbonError) else PlacementError(f"cannot predict the latency: {result}"))
            else:
                self._decided(decision if result is None else self._full.elsewhere(result))

        placing.host.execute(lambda: placed_within(placed, query, bound_ms, placing.config, rng), found, rows=0)

    def _recall(self, about: Mapping[NodeId, Sequence[NodeId]]) -> None:
        """Asks nodes for the RTTs that they remember, once per query: otherwise a query that waits for room would ask every second."""
        remembering = self._placing.remembering

        def told() -> None:
            self._remembered = remembered = remembering.remembered(about)
            self._perform(lambda: self._full.recalled(remembered))

        if (known := self._remembered) is not None:
            self._perform(lambda: self._full.recalled(known))
        else:
            remembering.refresh(about, told)

    def _ask(self, node: NodeId, about: Sequence[NodeId], signatures: Sequence[str], answered: "Answered") -> None:
        """Asks a node, and has it reserve slots for all operators that may come: those pinned there, and every unpinned one."""
        if self._reserve:
            self._slots[node] = sum(where == node for where in self._to_come.values()) + len(self._problem.unpinned)
        query = self._plan.query if self._reserve else ""
        timeout_s = self._placing.optimiser.answer_timeout_s
        self._placing.candidate_questions.ask(node, about, signatures, timeout_s, answered, query, self._slots.get(node, 0), self._needs)

    def _answered(self, node: NodeId, report: "CandidateReport | None") -> None:
        if report is None:
            self._perform(lambda: self._full.unanswered(node))
            return
        told = msgspec.structs.replace(report, free_slots=0) if node in self._excluded else report
        self._reports[node] = told
        self._perform(lambda: self._full.answered(told))

    def _decided(self, decision: "Decision") -> None:
        placed = placed_as(self._plan, decision)
        coming = Counter(node for operator, node in placed.nodes.items() if operator not in self._settled)
        unasked = {node for node in coming if node not in self._slots} if self._reserve else set()

        def answered(node: NodeId, report: "CandidateReport | None") -> None:
            unasked.discard(node)
            if report is not None:
                self._reports[node] = report
            if not unasked:
                self._place(placed, coming)

        for node in sorted(unasked):  # nodes to which operators are pinned
            self._ask(node, (), (), answered)
        if not unasked:
            self._place(placed, coming)

    def _place(self, placed: Placed, coming: Mapping[NodeId, int]) -> None:
        """Finishes the placement, or waits if nodes lack slots only because other queries have reserved them."""
        short = [node for node, count in coming.items() if node in self._reports and self._reports[node].free_slots < count]
        if any(self._reports[node].reserved for node in short) and self._waits():
            return
        self._settle(coming)
        self._done(placed)

    def _failed(self, problem: SbonError) -> None:
        crowded = isinstance(problem, PlacementError) and any(
            report.reserved for node, report in self._reports.items() if node not in self._excluded
        )
        if crowded and self._waits():
            return
        self._settle({})
        if self._needs.functions and isinstance(problem, PlacementError) and not isinstance(problem, DelayBoundError):
            wanted = ", ".join(" ".join(function) for function in self._needs.functions)
            problem = PlacementError(f"{problem}; the host needs a free slot, and these functions installed: {wanted}")
        short = sorted(node for node, report in self._reports.items() if report.memory_short)
        if short and isinstance(problem, PlacementError) and not isinstance(problem, DelayBoundError):
            named = ", ".join(short[:5]) + (f" and {len(short) - 5} more" if len(short) > 5 else "")
            have = "has" if len(short) == 1 else "have"
            problem = PlacementError(f"{problem}; {named} {have} no memory for more state: drop a query, or raise engine.memory_max")
        self._done(problem)

    def _waits(self) -> bool:
        """Releases the reservations and tries again later; returns False if the query has waited long enough.

        Only slots for pinned operators are kept, as these cannot go elsewhere. If all were kept, two queries could wait for each other's
        reservations. If pinned operators of several queries block each other, the first query to give up leaves its slots to the others.
        """
        host = self._placing.host
        if not self._reserve or host.now() >= self._until:
            return False
        self._settle(Counter(self._to_come.values()))
        host.call_at(host.now() + float(self._placing.rng.uniform(0.5, 1.5)) * ROOM_RETRY_S, self.begin)
        return True

    def _settle(self, coming: Mapping[NodeId, int]) -> None:
        slots = {node: coming.get(node, 0) for node, kept in self._slots.items() if kept}
        self._placing.candidate_questions.decided(self._plan.query, slots)
