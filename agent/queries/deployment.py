"""Deploys a placed query: tells each host what to do, in order, and undoes it on failure.

`sbon_agent.queries.queries` runs one `Deployment` for each query.

Operators are made downstream before upstream, so that every batch finds its target; running operators that are reused are connected after
those that are made. Sinks accept rows only at the very end: rows flow as soon as the first shared operator has its new output, while
another host may still refuse. On any failure all that was made for the query is released.
"""

from collections.abc import Callable, Mapping
from functools import partial

import msgspec

from sbon.errors import ConnectorError, LinkError, SbonError
from sbon.query.plan import LinkSpec, OperatorSpec, Plan, SinkParams, link_id
from sbon.types import NodeId, OperatorId
from sbon.wire.deployment import Begin, End, Instantiate, Release, Use, Used, User
from sbon.wire.messages import Message
from sbon_agent.directory import Directory

BEGIN_TRIES = 3
"""Number of times that a Begin whose answer is lost is repeated."""
INSTANTIATE_TIMEOUT_S = 15.0
"""Timeout for making an operator, in seconds: a host that runs its first one has to load libraries, which takes a second or two on a small
machine."""


class Assignment(msgspec.Struct, frozen=True):
    """Hosts of a query's operators."""

    nodes: Mapping[OperatorId, NodeId]
    """Host of every operator that is made for the query."""
    reused: Mapping[OperatorId, tuple[OperatorId, NodeId]]
    """Operators of the plan that running ones replace, with these and their hosts; operators that feed only them are in neither table."""
    delay_slack_ms: float | None = None
    """By how much the query's longest way may grow, in ms; None without a delay bound."""


class Step(msgspec.Struct, frozen=True):
    """One message to one host."""

    node: NodeId
    message: Instantiate | Use | Begin


class Deployed(msgspec.Struct, frozen=True):
    """What runs for a query after its deployment."""

    operators: tuple[OperatorSpec, ...]
    """Operators made for the query."""
    links: tuple[LinkSpec, ...]
    nodes: dict[OperatorId, NodeId]
    """Hosts of all operators that the query uses, including reused ones and those upstream of them."""


def rewired(plan: Plan, assignment: Assignment) -> tuple[LinkSpec, ...]:
    """Returns the links to make for the query, with reused operators in the place of those that they replace."""
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


def stages(plan: Plan, assignment: Assignment, user: User) -> list[list[Step]]:
    """Returns the messages to send, stage by stage; those of one stage are sent at once."""
    links = rewired(plan, assignment)
    schemas = {op.id: op.schema for op in plan.operators}
    for replaced, (running, _) in assignment.reused.items():
        schemas[running] = schemas[replaced]
    reused = dict(assignment.reused.values())
    where: dict[OperatorId, NodeId] = {**reused, **assignment.nodes}
    staged: dict[int, list[Step]] = {}
    depth: dict[OperatorId, int] = {}
    for spec in reversed(plan.operators):
        if spec.id not in assignment.nodes:
            continue
        inputs = tuple(End(link, where[link.source], schemas[link.source]) for link in links if link.target == spec.id)
        outputs = tuple(End(link, where[link.target], spec.schema) for link in links if link.source == spec.id)
        depth[spec.id] = max((depth[end.link.target] + 1 for end in outputs), default=0)
        step = Step(assignment.nodes[spec.id], Instantiate(spec=spec, inputs=inputs, outputs=outputs, user=user))
        staged.setdefault(depth[spec.id], []).append(step)
    last = []
    for running, node in reused.items():
        outputs = tuple(End(link, where[link.target], schemas[running]) for link in links if link.source == running)
        last.append(Step(node, Use(operator=running, user=user, outputs=outputs)))
    sinks = sorted({assignment.nodes[spec.id] for spec in plan.operators if isinstance(spec.params, SinkParams)})
    begin = [Step(node, Begin(query=plan.query)) for node in sinks]
    return [*(staged[level] for level in sorted(staged)), *([last] if last else []), begin]


class Deployment:
    """Runs the stages of one query; `done` gets what runs, or the first error."""

    def __init__(self, directory: Directory, plan: Plan, assignment: Assignment, done: Callable[[Deployed | SbonError], None]) -> None:
        self._directory = directory
        self._plan = plan
        self._assignment = assignment
        self._done = done
        self._stages = stages(plan, assignment, User(plan.query, directory.me, assignment.delay_slack_ms))
        self._touched: set[NodeId] = set()
        self._nodes = dict(assignment.nodes)
        self._waiting = 0
        self._problem: SbonError | None = None
        self.refused_by: set[NodeId] = set()
        """Hosts that refused to make an operator; complete when `done` is called with an error."""
        self.begun = False
        """True if sinks may have taken rows: another attempt would add rows to them."""
        self._tries_left = BEGIN_TRIES

    def run(self) -> None:
        """Sends the next stage, or finishes; call it to start."""
        if self._problem is not None:
            for node in sorted(self._touched):
                self._directory.tell(node, Release(query=self._plan.query))
            self._done(self._problem)
            return
        if not self._stages:
            made = tuple(op for op in self._plan.operators if op.id in self._assignment.nodes)
            self._done(Deployed(made, rewired(self._plan, self._assignment), self._nodes))
            return
        stage = self._stages.pop(0)
        self._waiting = len(stage)
        for step in stage:
            self._touched.add(step.node)
            self.begun = self.begun or isinstance(step.message, Begin)
            self._ask(step)

    def _ask(self, step: Step) -> None:
        self._directory.request(step.node, step.message, partial(self._told, step), INSTANTIATE_TIMEOUT_S)

    def _told(self, step: Step, result: Message | SbonError) -> None:
        if isinstance(result, LinkError) and isinstance(step.message, Begin) and self._tries_left > 0:
            self._tries_left -= 1  # the answer may be lost, and Begin may be repeated
            self._ask(step)
            return
        self._waiting -= 1
        if isinstance(result, SbonError) and isinstance(step.message, Instantiate):
            self.refused_by.add(step.node)
        if isinstance(result, SbonError) and self._problem is None:
            self._problem = _blamed(step, result, self._directory.me)
        elif isinstance(result, Used):
            self._nodes.update(dict(result.operators))
        if self._waiting == 0:
            self.run()


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
