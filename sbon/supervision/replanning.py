"""Gives a running query another plan: a state machine without I/O, one for each change (docs/replanning.md).

    noting      the other plan is written to the keepers of the query's record
    opening     the sink gets links from the other plan, and drops rows that come by them
    making      the other plan's operators are made, consumers first
    feeding     the sources get outputs to these operators, beside those to the present ones
    noting again  the rows that the sources had given before are written to the keepers
    crossing    the sink is told to cross at an event time that is far enough ahead, and asked until it is ready
    checking    all hosts are asked whether every operator of both plans is there; if so, the sink is told to go ahead
    undoing     the sink is told that the present plan goes on
    retiring    the operators of the unwanted plan end
    over

The sink decides: either it crosses, or it has been told before then not to cross. The owner of the query asks the sink, so that nobody ends
the operators of a plan that the sink takes rows from. A host that does not answer is asked again.
"""

from collections.abc import Iterable, Mapping
from enum import Enum
from typing import TypeAlias

import msgspec

from sbon.errors import LinkError, LocalProtocolError, SbonError
from sbon.links.link_names import first_name
from sbon.query.params.source import SinkParams, SourceParams
from sbon.query.plan import LinkSpec, OperatorSpec, Plan
from sbon.query.plan_exchange import reach_us, time_column
from sbon.supervision.deployment import Assignment, rewired, stages
from sbon.types import LinkId, NodeId, OperatorId
from sbon.watermarks import WATERMARK_END, WATERMARK_MIN
from sbon.wire.deployment import Begin, Instantiate, Use, Used, User
from sbon.wire.messages import Message
from sbon.wire.replanning import Cross, Crossing, Cut, Retire, Retired, Uncut

PAUSE_S = 0.2
"""First pause before a host is asked again, in seconds; each further pause is longer by as much."""
PAUSE_S_MAX = 2.0
SPREAD = 0.618_034
"""Pauses are shortened by up to a half, by fractions that never repeat (the golden section). Otherwise a sink that is at work once a second
might be asked at just these times for ever."""
TRIES = 20
"""Number of times that a host is asked for one step before the change is called off; each may take the time of a request."""


class OtherPlan(msgspec.Struct):
    """A plan that is to replace a query's present one, as the query's record has it."""

    plan: Plan
    number: int
    """Number of the change, unique within the query: the number in the plan's first new operator id."""
    links: tuple[LinkSpec, ...]
    nodes: dict[OperatorId, NodeId]
    """Hosts of its operators, without the sources and the sink, which stay."""
    epochs: dict[OperatorId, int]
    before: dict[LinkId, int]
    """Rows that a source had given before a link of this plan began, by the link's first name."""

    def moved(self, operator: OperatorId, node: NodeId, epoch: int) -> bool:
        """Takes the new host of an operator; ignores older news. Returns True if the operator belongs to this plan."""
        if operator in self.nodes and epoch > self.epochs.get(operator, -1):
            self.nodes[operator], self.epochs[operator] = node, epoch
        return operator in self.nodes


class Phase(Enum):
    """A phase of a change."""

    NOTING = "noting"
    OPENING = "opening"
    MAKING = "making"
    FEEDING = "feeding"
    NOTING_AGAIN = "noting again"
    CROSSING = "crossing"
    CHECKING = "checking"
    UNDOING = "undoing"
    RETIRING = "retiring"
    OVER = "over"


class Event(Enum):
    """An event of a change."""

    NOTED = "noted"
    OPENED = "opened"
    MADE = "made"
    FED = "fed"
    READY = "ready"
    CHECKED = "checked"
    CROSSED = "crossed"
    CALLED_OFF = "called off"
    """The sink goes on with the present plan."""
    TROUBLE = "trouble"
    """The change is not wanted any more, or an operator of either plan is lost."""
    RETIRED = "retired"


_BEFORE = (Phase.NOTING, Phase.OPENING, Phase.MAKING, Phase.FEEDING, Phase.NOTING_AGAIN, Phase.CROSSING, Phase.CHECKING)
TABLE: dict[tuple[Phase, Event], Phase] = {
    (Phase.NOTING, Event.NOTED): Phase.OPENING,
    (Phase.OPENING, Event.OPENED): Phase.MAKING,
    (Phase.MAKING, Event.MADE): Phase.FEEDING,
    (Phase.FEEDING, Event.FED): Phase.NOTING_AGAIN,
    (Phase.NOTING_AGAIN, Event.NOTED): Phase.CROSSING,
    (Phase.CROSSING, Event.READY): Phase.CHECKING,
    (Phase.CHECKING, Event.CHECKED): Phase.CROSSING,
    (Phase.CROSSING, Event.CROSSED): Phase.RETIRING,
    (Phase.CROSSING, Event.CALLED_OFF): Phase.RETIRING,
    **{(phase, Event.TROUBLE): Phase.UNDOING for phase in _BEFORE},
    (Phase.UNDOING, Event.CROSSED): Phase.RETIRING,
    (Phase.UNDOING, Event.CALLED_OFF): Phase.RETIRING,
    (Phase.RETIRING, Event.RETIRED): Phase.OVER,
}
"""The next phase, by the present one and the event. Other pairs raise LocalProtocolError."""


class Step(msgspec.Struct, frozen=True):
    """One message to one host."""

    number: int
    node: NodeId
    message: Cross | Instantiate | Use | Cut | Uncut | Retire


class Note(msgspec.Struct, frozen=True):
    """Write the query's record; then call `noted`."""


class Ask(msgspec.Struct, frozen=True):
    """Send a host its step; then call `answered`."""

    step: Step


class Check(msgspec.Struct, frozen=True):
    """Ask all hosts whether the operators of both plans are there; then call `checked`."""


class Take(msgspec.Struct, frozen=True):
    """The query has the other plan from now on. Follow with `retire`."""


class Leave(msgspec.Struct, frozen=True):
    """The query keeps its plan. Follow with `retire`."""

    reason: str


class Over(msgspec.Struct, frozen=True):
    """All operators of the unwanted plan have ended."""


Action: TypeAlias = Note | Ask | Check | Take | Leave | Over


class Replanning:
    """The change of one query's plan.

    Parameters
    ----------
    nodes : hosts of all operators of the query, including its sources and its sink
    """

    def __init__(self, user: User, other: OtherPlan | None, nodes: Mapping[OperatorId, NodeId]) -> None:
        self.phase = Phase.NOTING
        self.reason = ""
        """Reason why the change was called off; empty if it was not."""
        self.at_us: int | None = None
        """Event time at which the sink crosses; None while unknown."""
        self._user = user
        self._other = other
        self._nodes = nodes
        self._stages: list[list[tuple[NodeId, Cross | Instantiate | Use]]] = []
        self._after_us = WATERMARK_MIN
        self._numbers = 0
        self._checks = 0
        self._asked: dict[int, Step] = {}
        self._tries: dict[int, int] = {}
        self._again: dict[int, float] = {}
        self._followed: dict[OperatorId, int] = {}
        """Epoch of the latest known move of each operator that is to end; only later moves lead to further hosts."""

    # ------------------------------------------------------------------------------------------------------- begins

    def begin(self) -> list[Action]:
        """Begins the change."""
        assert self._other is not None
        self._stages = _steps(self._other, self._nodes, self._user)
        return [Note()]

    def resume(self) -> list[Action]:
        """Ends a change that a former owner of the query has begun: calls it off, unless the sink has crossed."""
        return self.trouble("the owner of the query has changed")

    # ------------------------------------------------------------------------------------------------------- events

    def noted(self, problem: SbonError | None, now: float) -> list[Action]:
        """Takes None once the keepers have the record, or why they have not."""
        if self.phase not in (Phase.NOTING, Phase.NOTING_AGAIN):
            return []
        if problem is not None:
            return self.trouble(str(problem))
        if self.phase is Phase.NOTING:
            self._turn(Event.NOTED)
            return self._next_stage()
        self._turn(Event.NOTED)
        return self._ask_sink(Cut(query=self._user.query, operator=self._sink, number=self._number, after_us=self._after_us))

    def answered(self, step: Step, result: Message | SbonError, now: float) -> list[Action]:
        """Takes a host's answer to a step."""
        if step.number not in self._asked or step.number in self._again:
            return []
        match self.phase:
            case Phase.CROSSING | Phase.UNDOING:
                return self._heard_from_sink(step, result, now)
            case Phase.RETIRING:
                return self._heard_of_end(step, result, now)
        if isinstance(step.message, Instantiate) and isinstance(result, LocalProtocolError) and self._tries.get(step.number):
            result = Used(operators=())  # an answer was lost: the operator has been made
        if isinstance(result, LinkError | LocalProtocolError) and self._tries.get(step.number, 0) < TRIES:
            return self._later(step, now)
        if isinstance(result, SbonError):
            return self.trouble(f"{step.node}: {result}")
        self._done(step)
        if isinstance(step.message, Use) and isinstance(result, Used):
            assert self._other is not None
            if result.before_us >= WATERMARK_END:
                return self.trouble(f"{step.message.operator} has given all its rows")
            self._after_us = max(self._after_us, result.before_us)
            self._other.before.update((first_name(end.link.id), result.before_rows) for end in step.message.outputs)
        return [] if self._asked else self._next_stage()

    def checked(self, problem: str, now: float) -> list[Action]:
        """Takes a problem if not every operator of both plans is there, else an empty text. They are looked for up to `TRIES` times."""
        if self.phase is not Phase.CHECKING:
            return []
        self._checks += 1
        if problem and self._checks >= TRIES:
            return self.trouble(problem)
        self._turn(Event.CHECKED)
        message = Cut(query=self._user.query, operator=self._sink, number=self._number, after_us=self._after_us, go=not problem)
        if not problem:
            return self._ask_sink(message)
        [ask] = self._ask_sink(message)
        assert isinstance(ask, Ask)
        return self._later(ask.step, now)

    def trouble(self, reason: str) -> list[Action]:
        """Calls the change off, unless the sink has crossed."""
        if self.phase not in _BEFORE:
            return []
        self._turn(Event.TROUBLE)
        self.reason = reason
        return self._ask_sink(Uncut(query=self._user.query, operator=self._sink, number=self._number))

    def sink_is_gone(self) -> list[Action]:
        """Calls the change off: the sink was lost with its host, and goes on with the present plan once it is made again."""
        actions = self.trouble("its sink was lost")
        return self._left() if self.phase is Phase.UNDOING else actions

    def retire(self, operators: Mapping[OperatorId, NodeId], stay: Iterable[NodeId], left: Iterable[OperatorId] = ()) -> list[Action]:
        """Ends operators, given with their hosts.

        Parameters
        ----------
        stay : hosts of the operators that stay; they drop the links to operators that end
        left : operators that run on for other queries
        """
        if self.phase is not Phase.RETIRING:
            self.phase = Phase.RETIRING
        self._clear()
        message = Retire(query=self._user.query, operators=tuple(sorted(operators)), left=tuple(sorted(left)))
        return self._ask([(node, message) for node in sorted({*stay, *operators.values()})])

    def wake(self, now: float, needed: frozenset[NodeId]) -> list[Action]:
        """Asks hosts again whose pauses are over.

        Parameters
        ----------
        needed : hosts that are alive, or have operators that stay; only these are asked to end operators
        """
        due = [number for number, due_s in self._again.items() if due_s <= now]
        actions: list[Action] = []
        for number in due:
            del self._again[number]
            step = self._asked[number]
            if self.phase is Phase.RETIRING and step.node not in needed:
                self._done(step)
            else:
                actions.append(Ask(step))
        if due and not self._asked and self.phase is Phase.RETIRING:
            return self._ended()
        return actions

    def next_wake(self) -> float | None:
        """Returns when to call `wake`; None: not before something else happens."""
        return min(self._again.values(), default=None)

    # ------------------------------------------------------------------------------------------------------- inside

    @property
    def _sink(self) -> OperatorId:
        assert self._other is not None
        return self._other.plan.operators[-1].id

    @property
    def _number(self) -> int:
        assert self._other is not None
        return self._other.number

    def _next_stage(self) -> list[Action]:
        if self._stages:
            kind = self._stages[0][0][1]
            if self.phase is Phase.OPENING and not isinstance(kind, Cross):
                self._turn(Event.OPENED)
            if self.phase is Phase.MAKING and isinstance(kind, Use):
                self._turn(Event.MADE)
            return self._ask(self._stages.pop(0))
        self._turn(Event.FED)
        assert self._other is not None
        self._after_us = min(self._after_us + reach_us(self._other.plan), WATERMARK_END - 1)
        return [Note()]

    def _ask(self, steps: Iterable[tuple[NodeId, Cross | Instantiate | Use | Cut | Uncut | Retire]]) -> list[Action]:
        actions: list[Action] = []
        for node, message in steps:
            self._numbers += 1
            step = self._asked[self._numbers] = Step(self._numbers, node, message)
            actions.append(Ask(step))
        return actions

    def _ask_sink(self, message: Cut | Uncut) -> list[Action]:
        self._clear()
        return self._ask([(self._nodes[self._sink], message)])

    def _later(self, step: Step, now: float) -> list[Action]:
        tries = self._tries[step.number] = self._tries.get(step.number, 0) + 1
        self._again[step.number] = now + min(PAUSE_S * tries, PAUSE_S_MAX) * (1 - (tries - 1) * SPREAD % 1 / 2)
        return []

    def _done(self, step: Step) -> None:
        self._asked.pop(step.number, None)
        self._again.pop(step.number, None)

    def _clear(self) -> None:
        self._asked.clear()
        self._again.clear()

    def _heard_from_sink(self, step: Step, result: Message | SbonError, now: float) -> list[Action]:
        if not isinstance(result, Crossing):
            return self._later(step, now)
        if result.at_us > WATERMARK_MIN:
            self.at_us = result.at_us
        if result.has_crossed:
            self._turn(Event.CROSSED)
            self._clear()
            self.reason = ""
            return [Take()]
        if result.is_called_off:
            self.reason = self.reason or "too many rows waited in its sink"
            return self._left()
        if result.is_ready and self.phase is Phase.CROSSING and isinstance(step.message, Cut) and not step.message.go:
            self._turn(Event.READY)
            self._clear()
            return [Check()]
        return self._later(step, now)

    def _left(self) -> list[Action]:
        self._turn(Event.CALLED_OFF)
        self._clear()
        return [Leave(self.reason)]

    def _heard_of_end(self, step: Step, result: Message | SbonError, now: float) -> list[Action]:
        if isinstance(result, SbonError):
            return self._later(step, now)
        self._done(step)
        actions: list[Action] = []
        if isinstance(result, Retired):
            known = {one.node for one in self._asked.values()}
            news = [(operator, node, epoch) for operator, node, epoch in result.moved if epoch > self._followed.get(operator, -1)]
            self._followed.update((operator, epoch) for operator, _, epoch in news)
            actions = self._ask((node, step.message) for node in sorted({node for _, node, _ in news if node not in known}))
        return actions if self._asked else self._ended()

    def _ended(self) -> list[Action]:
        self._turn(Event.RETIRED)
        return [Over()]

    def _turn(self, event: Event) -> None:
        after = TABLE.get((self.phase, event))
        if after is None:
            raise LocalProtocolError(f"a change of plan that is {self.phase.value} cannot take: {event.value}")
        self.phase = after


def renamed(plan: Plan, present: Mapping[OperatorId, OperatorSpec], first: int) -> Plan:
    """Returns a plan that has the running sources and the running sink; its other operators get new ids.

    Parameters
    ----------
    present : operators that run
    first : number of the first new id

    Raises
    ------
    ValueError
        The plan is not for these sources and this sink.
    """
    kept = {(type(spec.params), spec.signature): spec for spec in present.values() if isinstance(spec.params, SourceParams | SinkParams)}
    ids: dict[OperatorId, OperatorId] = {}
    operators: list[OperatorSpec] = []
    for number, spec in enumerate(plan.operators):
        if isinstance(spec.params, SourceParams | SinkParams):
            found = kept.pop((type(spec.params), spec.signature), None)
            if found is None:
                raise ValueError(f"its source or sink {spec.params.name} is not what it was when the query began")
            ids[spec.id] = found.id
            operators.append(found)
        else:
            ids[spec.id] = f"{plan.query}.{first + number}"
            operators.append(msgspec.structs.replace(spec, id=ids[spec.id]))
    if kept:
        named = ", ".join(sorted(spec.id for spec in kept.values()))
        raise ValueError(f"the query would have no {named} any more")
    links = tuple(msgspec.structs.replace(link, source=ids[link.source], target=ids[link.target]) for link in plan.links)
    sizings = tuple(msgspec.structs.replace(one, operators=tuple(ids[operator] for operator in one.operators)) for one in plan.sizings)
    profile = tuple(msgspec.structs.replace(one, rates=tuple((ids[op], rate) for op, rate in one.rates)) for one in plan.profile)
    return msgspec.structs.replace(plan, operators=tuple(operators), links=links, sizings=sizings, profile=profile)


def other_plan(plan: Plan, first: int, nodes: Mapping[OperatorId, NodeId], made: Mapping[OperatorId, NodeId]) -> OtherPlan:
    """Returns a plan that is to replace the present one.

    Parameters
    ----------
    first : number in the first new operator id
    nodes : hosts of the operators that run
    made : hosts of the operators that are to be made
    """
    return OtherPlan(plan, first, rewired(plan, _assignment(plan, nodes, made)), dict(made), {}, {})


def _assignment(plan: Plan, nodes: Mapping[OperatorId, NodeId], made: Mapping[OperatorId, NodeId]) -> Assignment:
    sources = {spec.id: (spec.id, nodes[spec.id]) for spec in plan.operators if isinstance(spec.params, SourceParams)}
    sink = plan.operators[-1].id
    return Assignment({**made, sink: nodes[sink]}, sources)


def _steps(other: OtherPlan, nodes: Mapping[OperatorId, NodeId], user: User) -> list[list[tuple[NodeId, Cross | Instantiate | Use]]]:
    """Returns the messages to send, stage by stage: those of a deployment, except that the sink runs already."""
    found: list[list[tuple[NodeId, Cross | Instantiate | Use]]] = []
    for stage in stages(other.plan, _assignment(other.plan, nodes, other.nodes), user):
        messages: list[tuple[NodeId, Cross | Instantiate | Use]] = []
        for step in stage:
            message = step.message
            if isinstance(message, Instantiate) and isinstance(message.spec.params, SinkParams):
                cross = Cross(
                    query=user.query,
                    operator=message.spec.id,
                    number=other.number,
                    inputs=message.inputs,
                    time_column=time_column(other.plan),
                )
                messages.append((step.node, cross))
            elif not isinstance(message, Begin):
                messages.append((step.node, message))
        if messages:
            found.append(messages)
    return found
