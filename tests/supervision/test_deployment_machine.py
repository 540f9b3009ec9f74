"""The state machine of a query's deployment, without a virtual world."""

from itertools import product

import pytest

from sbon.errors import ConnectorError, LinkError, LocalProtocolError, PlacementError, QueryError
from sbon.query.expression import Column
from sbon.query.params.rowwise import MapParams
from sbon.query.params.source import SinkParams, SourceParams
from sbon.query.plan import LinkSpec, OperatorSpec, Plan
from sbon.supervision.deployment import (
    BEGIN_TRIES,
    TABLE,
    Ask,
    Assignment,
    Deployment,
    Event,
    Free,
    Phase,
    Place,
    Refuse,
    Run,
)
from sbon.wire.deployment import Begin, Instantiate, Use, Used
from sbon.wire.messages import Done
from sbon.wire.reports import OperatorReport, OperatorReports

SPECS = (
    OperatorSpec("q.source", SourceParams("s", "datagen", (), (), None), (), None, "a", "source"),
    OperatorSpec("q.map", MapParams(Column("ok"), None), (), None, None, "map"),
    OperatorSpec("q.sink", SinkParams("q", "tail", ()), (), None, "c", "sink"),
)
LINKS = (LinkSpec("q.source>q.map:0", "q.source", "q.map", 0, 1.0, 1.0), LinkSpec("q.map>q.sink:0", "q.map", "q.sink", 0, 1.0, 1.0))
PLAN = Plan("q", "q", "SELECT", SPECS, LINKS)
NODES = {"q.source": "a", "q.map": "b", "q.sink": "c"}
ALONE = Assignment(NODES, {}, frozenset({"b"}))
SHARED = Assignment({"q.map": "b", "q.sink": "c"}, {"q.source": ("p.source", "a")}, frozenset({"b"}))


def deployment(assignment=ALONE):
    machine = Deployment(PLAN, "c")
    assert machine.place() == [Place()]
    return machine, machine.placed(assignment)


def asked(actions):
    return [(action.step.node, type(action.step.message)) for action in actions if isinstance(action, Ask)]


def agree(machine, actions):
    """Answers all questions of a stage with yes; returns what follows."""
    found = []
    for action in actions:
        found += machine.answered(action.step, Done())
    return found


def until(machine, actions, kind):
    while not (actions and isinstance(actions[0], Ask) and isinstance(actions[0].step.message, kind)):
        actions = agree(machine, actions)
    return actions


def test_operators_are_made_downstream_first_and_sinks_begin_last():
    machine, actions = deployment()
    seen = []
    while isinstance(actions[0], Ask):
        seen += asked(actions)
        actions = agree(machine, actions)

    assert seen == [("c", Instantiate), ("b", Instantiate), ("a", Instantiate), ("c", Begin)]
    assert machine.phase is Phase.RUNS
    [run] = actions
    assert isinstance(run, Run)
    assert (run.deployed.operators, run.deployed.links, run.deployed.nodes) == (SPECS, LINKS, NODES)


def test_what_sinks_say_as_they_begin_is_told():
    machine, actions = deployment()
    actions = until(machine, actions, Begin)
    report = OperatorReport("q.sink", "running", "c", begun_at=12)
    [run] = machine.answered(actions[0].step, OperatorReports((report,)))

    assert run.deployed.sinks == (report,)


def test_reused_operators_are_connected_after_all_that_are_made():
    machine, actions = deployment(SHARED)
    actions = until(machine, actions, Use)
    assert machine.phase is Phase.MAKING
    actions = machine.answered(actions[0].step, Used(operators=(("p.source", "a"), ("p.more", "d"))))
    assert asked(actions) == [("c", Begin)]
    [run] = agree(machine, actions)

    assert run.deployed.nodes == {"q.map": "b", "q.sink": "c", "p.source": "a", "p.more": "d"}
    assert [link.source for link in run.deployed.links] == ["p.source", "q.map"]


def test_a_refused_operator_has_everything_released_and_the_query_placed_once_more():
    machine, actions = deployment()
    actions = agree(machine, actions)
    actions = machine.answered(actions[0].step, PlacementError("full"))

    assert actions == [Free("b"), Free("c"), Place(frozenset({"b"}), share=False)]
    assert machine.phase is Phase.PLACING
    actions = machine.placed(ALONE)
    actions = machine.answered(actions[0].step, PlacementError("full"))
    assert actions[0] == Free("c")
    assert isinstance(actions[1], Refuse)
    assert "q.sink cannot run on c: full" in str(actions[1].problem)
    assert machine.phase is Phase.REFUSED


@pytest.mark.parametrize("kind", [QueryError, ConnectorError])
def test_what_every_host_would_refuse_is_not_tried_again(kind):
    machine, actions = deployment()
    *freed, refused = machine.answered(actions[0].step, kind("no"))

    assert freed == [Free("c")]
    assert isinstance(refused.problem, kind)
    assert machine.phase is Phase.REFUSED


def test_where_nothing_was_chosen_nothing_can_be_chosen_differently():
    machine, actions = deployment(Assignment(NODES, {}))
    actions = machine.answered(actions[0].step, PlacementError("full"))
    assert [type(action) for action in actions] == [Free, Refuse]


def test_a_refusal_waits_for_the_other_answers_of_its_stage():
    second = OperatorSpec("q.other", MapParams(Column("ok"), None), (), None, None, "map")
    links = (*LINKS, LinkSpec("q.other>q.sink:1", "q.other", "q.sink", 1, 1.0, 1.0))
    plan = Plan("q", "q", "SELECT", (SPECS[0], SPECS[1], second, SPECS[2]), links)
    machine = Deployment(plan, "c")
    machine.place()
    actions = agree(machine, machine.placed(Assignment({**NODES, "q.other": "d"}, {}, frozenset("bd"))))
    first, other = actions

    assert machine.answered(first.step, PlacementError("full")) == []
    assert machine.phase is Phase.MAKING
    actions = machine.answered(other.step, LinkError("silent"))
    assert actions == [Free("b"), Free("c"), Free("d"), Place(frozenset("bd"), share=False)]


def test_a_lost_answer_to_begin_is_asked_for_again_and_then_the_query_is_refused():
    machine, actions = deployment()
    actions = until(machine, actions, Begin)
    for _ in range(BEGIN_TRIES):
        again = machine.answered(actions[0].step, LinkError("silent"))
        assert again == actions
        assert machine.phase is Phase.BEGINNING
    *freed, refused = machine.answered(actions[0].step, LinkError("silent"))

    assert freed == [Free("a"), Free("b"), Free("c")], "sinks may have taken rows, so the query is not placed again"
    assert "its sink on c: silent" in str(refused.problem)
    assert machine.phase is Phase.REFUSED


def test_where_there_is_no_place_the_query_is_refused():
    machine = Deployment(PLAN, "c")
    machine.place()
    problem = PlacementError("no room")
    assert machine.placed(problem) == [Refuse(problem)]
    assert machine.phase is Phase.REFUSED


def test_a_query_runs_when_all_its_sinks_have_begun():
    second = OperatorSpec("q.file", SinkParams("q", "tail", ()), (), None, "d", "sink")
    plan = Plan("q", "q", "SELECT", (*SPECS, second), (*LINKS, LinkSpec("q.map>q.file:0", "q.map", "q.file", 0, 1.0, 1.0)))
    machine = Deployment(plan, "c")
    machine.place()
    first, other = until(machine, machine.placed(Assignment({**NODES, "q.file": "d"}, {}, frozenset("b"))), Begin)

    assert machine.answered(first.step, Done()) == []
    assert machine.phase is Phase.BEGINNING
    assert isinstance(machine.answered(other.step, Done())[0], Run)


@pytest.mark.parametrize(("phase", "event"), list(product(Phase, Event)))
def test_every_pair_leads_where_the_table_says_or_is_an_error_of_ours(phase, event):
    machine = Deployment(PLAN, "c")
    machine.phase = phase
    if (phase, event) in TABLE:
        machine._turn(event)
        assert machine.phase is TABLE[phase, event]
    else:
        with pytest.raises(LocalProtocolError, match=f"{phase.value} cannot take: {event.value}"):
            machine._turn(event)
