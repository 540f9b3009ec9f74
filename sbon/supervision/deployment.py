"""Deploys a query: a state machine that places it, makes its operators in order, and releases all of them if a host refuses one.

`sbon.supervision.deploying` carries out its actions, for one query each.

Operators are made downstream before upstream, so that every batch finds its target. Running operators that are reused are connected after
that. Sinks accept rows only at the very end, because rows flow as soon as the first shared operator has its new output, when another host
may still refuse. On any failure everything made for the query is released. A host may have filled up or gone since it was asked for room.
The query is then placed once more, without reuse and without the hosts that have refused.
"""

from collections.abc import Iterable, Mapping
from enum import Enum
from typing import TypeAlias

import msgspec

from sbon.errors import ConnectorError, LinkError, LocalProtocolError, PlacementError, QueryError, SbonError
from sbon.links.link_names import first_name, link_id
from sbon.query.params.source import SinkParams
from sbon.query.plan import LinkSpec, OperatorSpec, Plan
from sbon.schema import Schema
from sbon.types import LinkId, NodeId, OperatorId
from sbon.wire.deployment import Begin, End, Instantiate, Use, Used, User
from sbon.wire.messages import Message
from sbon.wire.reports import OperatorReport, OperatorReports

BEGIN_TRIES = 3
"""Number of times that a Begin whose answer is lost is repeated."""


class Phase(Enum):
    """A phase of a deployment."""

    PLACING = "placing"
    MAKING = "making"
    BEGINNING = "beginning"
    RUNS = "runs"
    REFUSED = "refused"


class Event(Enum):
    """An event of a deployment."""

    PLACED = "placed"
    UNPLACEABLE = "unplaceable"
    ANSWERED = "answered"
    """One of several hosts has answered."""
    ALL_MADE = "all made"
    REFUSED_HERE = "refused here"
    """A host has refused an operator that another host may take."""
    REFUSED = "refused"
    ALL_BEGUN = "all begun"
    ANSWER_LOST = "answer lost"
    """A Begin may or may not have arrived, and is repeated."""


class Assignment(msgspec.Struct, frozen=True):
    """Hosts of a query's operators."""

    nodes: Mapping[OperatorId, NodeId]
    """Host of every operator that is made for the query."""
    reused: Mapping[OperatorId, tuple[OperatorId, NodeId]]
    """The running operator, and its host, that replaces an operator of the plan. Operators that feed only replaced ones are left out."""
    chosen: frozenset[NodeId] = frozenset()
    """Hosts that the optimiser chose, as opposed to those that operators are pinned to."""
    delay_slack_ms: float | None = None
    """Milliseconds by which the query's longest path may grow; None without a delay bound."""
    plan: Plan | None = None
    """The plan in the order of operators that was placed; None: the query's plan as it is."""


class Step(msgspec.Struct, frozen=True):
    """One message to one host."""

    node: NodeId
    message: Instantiate | Use | Begin


class Deployed(msgspec.Struct, frozen=True):
    """The operators and links that run for a query after its deployment."""

    operators: tuple[OperatorSpec, ...]
    """Operators made for the query."""
    links: tuple[LinkSpec, ...]
    nodes: dict[OperatorId, NodeId]
    """Hosts of all operators that the query uses, including reused ones and those upstream of them."""
    sinks: tuple[OperatorReport, ...] = ()
    """Reports of the sinks as they begin."""


class Place(msgspec.Struct, frozen=True):
    """Choose hosts; then call `Deployment.placed`."""

    excluded: frozenset[NodeId] = frozenset()
    """Hosts that count as full."""
    share: bool = True
    """Allows running operators to be reused."""


class Ask(msgspec.Struct, frozen=True):
    """Send a host its step; then call `Deployment.answered`."""

    step: Step


class Free(msgspec.Struct, frozen=True):
    """Tell a host to release what it has made for the query."""

    node: NodeId


class Run(msgspec.Struct, frozen=True):
    """The query runs."""

    deployed: Deployed


class Refuse(msgspec.Struct, frozen=True):
    """The query does not run."""

    problem: SbonError


Action: TypeAlias = Place | Ask | Free | Run | Refuse


TABLE: dict[tuple[Phase, Event], Phase] = {
    (Phase.PLACING, Event.PLACED): Phase.MAKING,
    (Phase.PLACING, Event.UNPLACEABLE): Phase.REFUSED,
    (Phase.MAKING, Event.ANSWERED): Phase.MAKING,
    (Phase.MAKING, Event.ALL_MADE): Phase.BEGINNING,
    (Phase.MAKING, Event.REFUSED_HERE): Phase.PLACING,
    (Phase.MAKING, Event.REFUSED): Phase.REFUSED,
    (Phase.BEGINNING, Event.ANSWERED): Phase.BEGINNING,
    (Phase.BEGINNING, Event.ANSWER_LOST): Phase.BEGINNING,
    (Phase.BEGINNING, Event.ALL_BEGUN): Phase.RUNS,
    (Phase.BEGINNING, Event.REFUSED): Phase.REFUSED,
}
"""The next phase, by the present one and the event. Other pairs raise LocalProtocolError."""


def rewired(plan: Plan, assignment: Assignment) -> tuple[LinkSpec, ...]:
    """Returns the links to make for the query, with reused operators in place of those that they replace."""
    links = []
    taken: set[str] = set()
    for link in plan.links:
        if link.target not in assignment.nodes:
            continue
        source = assignment.reused[link.source][0] if link.source in assignment.reused else link.source
        name, number = link_id(source, link.target, link.port), 1
        while name in taken:
            # Two branches of the query use the same running operator.
            number += 1
            name = f"{link_id(source, link.target, link.port)}#{number}"
        taken.add(name)
        links.append(msgspec.structs.replace(link, id=name, source=source))
    return tuple(links)


def schemas_of(plan: Plan, links: Iterable[LinkSpec]) -> dict[LinkId, Schema]:
    """Returns the columns of each link's rows, by first name. A reused operator has the columns of the one that it replaces in the plan."""
    schemas = {spec.id: spec.schema for spec in plan.operators}
    planned = {(link.target, link.port): schemas[link.source] for link in plan.links}
    return {first_name(link.id): planned[link.target, link.port] for link in links}


def stages(plan: Plan, assignment: Assignment, user: User) -> list[list[Step]]:
    """Returns the messages to send, stage by stage. Messages of one stage are sent together."""
    links = rewired(plan, assignment)
    schemas = schemas_of(plan, links)
    reused = dict(assignment.reused.values())
    where: dict[OperatorId, NodeId] = {**reused, **assignment.nodes}
    staged: dict[int, list[Step]] = {}
    depth: dict[OperatorId, int] = {}
    for spec in reversed(plan.operators):
        if spec.id not in assignment.nodes:
            continue
        inputs = tuple(End(link, where[link.source], schemas[first_name(link.id)]) for link in links if link.target == spec.id)
        outputs = tuple(End(link, where[link.target], spec.schema) for link in links if link.source == spec.id)
        depth[spec.id] = max((depth[end.link.target] + 1 for end in outputs), default=0)
        step = Step(assignment.nodes[spec.id], Instantiate(spec=spec, inputs=inputs, outputs=outputs, user=user))
        staged.setdefault(depth[spec.id], []).append(step)
    last = []
    for running, node in reused.items():
        outputs = tuple(End(link, where[link.target], schemas[first_name(link.id)]) for link in links if link.source == running)
        last.append(Step(node, Use(operator=running, user=user, outputs=outputs)))
    sinks = sorted({assignment.nodes[spec.id] for spec in plan.operators if isinstance(spec.params, SinkParams)})
    begin = [Step(node, Begin(query=plan.query)) for node in sinks]
    return [*(staged[level] for level in sorted(staged)), *([last] if last else []), begin]


class Deployment:
    """The deployment of one query.

    Parameters
    ----------
    me : the query's home
    """

    def __init__(self, plan: Plan, me: NodeId) -> None:
        self.phase = Phase.PLACING
        self._plan = plan
        self._me = me
        self._assignment = Assignment({}, {})
        self._stages: list[list[Step]] = []
        self._waiting = 0
        self._nodes: dict[OperatorId, NodeId] = {}
        self._sinks: list[OperatorReport] = []
        self._touched: set[NodeId] = set()
        self._refusing: set[NodeId] = set()
        self._problem: SbonError | None = None
        self._former: SbonError | None = None
        """Why a host refused before the query was placed once more."""
        self._places_left = 1
        """Number of times that the query may still be placed again."""
        self._tries_left = BEGIN_TRIES

    def place(self) -> list[Action]:
        """Begins the deployment."""
        return [Place()]

    def placed(self, result: Assignment | SbonError) -> list[Action]:
        """Takes the hosts that were chosen, or why there are none."""
        if isinstance(result, SbonError):
            self._turn(Event.UNPLACEABLE)
            return [Refuse(result if self._former is None else PlacementError(f"{self._former}; elsewhere: {result}"))]
        self._turn(Event.PLACED)
        self._assignment, self._nodes = result, dict(result.nodes)
        self._plan = result.plan or self._plan
        self._stages = stages(self._plan, result, User(self._plan.query, self._me, result.delay_slack_ms, self._plan.max_latency_ms))
        return self._next_stage()

    def answered(self, step: Step, result: Message | SbonError) -> list[Action]:
        """Takes a host's answer to a step."""
        if isinstance(result, LinkError) and self.phase is Phase.BEGINNING and self._tries_left > 0:
            self._turn(Event.ANSWER_LOST)
            self._tries_left -= 1
            return [Ask(step)]
        self._waiting -= 1
        if isinstance(result, SbonError) and isinstance(step.message, Instantiate):
            self._refusing.add(step.node)
        if isinstance(result, SbonError) and self._problem is None:
            self._problem = _blamed(step, result, self._me)
        elif isinstance(result, Used):
            self._nodes.update(dict(result.operators))
        elif isinstance(result, OperatorReports):
            self._sinks += result.reports
        if self._waiting:
            self._turn(Event.ANSWERED)
            return []
        if self._problem is not None:
            return self._refused(self._problem)
        return self._next_stage()

    def _next_stage(self) -> list[Action]:
        if self.phase is Phase.BEGINNING:
            self._turn(Event.ALL_BEGUN)
            made = tuple(op for op in self._plan.operators if op.id in self._assignment.nodes)
            return [Run(Deployed(made, rewired(self._plan, self._assignment), self._nodes, tuple(self._sinks)))]
        stage = self._stages.pop(0)
        self._turn(Event.ANSWERED if self._stages else Event.ALL_MADE)
        self._waiting = len(stage)
        self._touched.update(step.node for step in stage)
        return [Ask(step) for step in stage]

    def _refused(self, problem: SbonError) -> list[Action]:
        """Releases everything that was made, and places the query once more if other hosts might take it.

        Once sinks may have taken rows, the query is not placed again: another attempt would add rows to them.
        """
        free: list[Action] = [Free(node) for node in sorted(self._touched)]
        assignment = self._assignment
        elsewhere = self.phase is Phase.MAKING and not isinstance(problem, QueryError | ConnectorError)
        if elsewhere and self._places_left and (assignment.chosen or assignment.reused):
            self._turn(Event.REFUSED_HERE)
            self._places_left -= 1
            excluded = assignment.chosen & self._refusing
            self._touched, self._refusing, self._problem, self._former = set(), set(), None, problem
            return [*free, Place(excluded, share=False)]
        self._turn(Event.REFUSED)
        return [*free, Refuse(problem)]

    def _turn(self, event: Event) -> None:
        after = TABLE.get((self.phase, event))
        if after is None:
            raise LocalProtocolError(f"a deployment that is {self.phase.value} cannot take: {event.value}")
        self.phase = after


def _blamed(step: Step, problem: SbonError, me: NodeId) -> SbonError:
    """Returns the error with the operator and its host named. A refused sink keeps its error class and the wrong option."""
    if isinstance(step.message, Begin):
        return type(problem)(f"query {step.message.query} does not begin: its sink on {step.node}: {problem}")
    what = step.message.spec.id if isinstance(step.message, Instantiate) else step.message.operator
    if isinstance(problem, ConnectorError) and isinstance(step.message, Instantiate) and isinstance(step.message.spec.params, SinkParams):
        return refused_sink(what, step.node, problem, me)
    return type(problem)(_cannot_run(what, step.node, problem))


def refused_sink(operator: OperatorId, node: NodeId, problem: ConnectorError, me: NodeId) -> ConnectorError:
    """Returns a host's refusal of a sink, with the host named if it is not this one."""
    return problem if node == me else ConnectorError(_cannot_run(operator, node, problem), option=problem.option)


def _cannot_run(operator: OperatorId, node: NodeId, problem: SbonError) -> str:
    return f"operator {operator} cannot run on {node}: {problem}"
