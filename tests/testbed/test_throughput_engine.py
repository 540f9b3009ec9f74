"""The query of WhiteWater's section 6.4: its initial order, and the search for the highest rate that agents sustain."""

import contextlib
from types import SimpleNamespace

import pytest

from sbon.extensions import NOTHING
from sbon.query import planner
from sbon.supervision.statements import prepare
from sbon_testbed.throughput import engine
from sbon_testbed.throughput.as_written import leave_filters_up
from sbon_testbed.throughput.available import Core, Used, available, cores_of_agents, look_at, present_multiple, used
from sbon_testbed.throughput.command import show_engine
from tests.query_worlds import NODES, make_catalog


def planned():
    """Returns the plan that an agent makes of the statement."""
    sources = ""
    for seed, (name, node) in enumerate(engine.SETUPS["optimised"].sources.items()):
        one, other = name
        sources += engine.SOURCE.format(name=name, one=one, other=other, node=node, rate=1, seed=seed, most_one=9, most_other=9)
    connectors = SimpleNamespace(extensions=lambda: NOTHING)
    (prepared,) = prepare(
        engine.SINK.format(query=engine.QUERY, column="at"), make_catalog(sources).entries(), NODES, "a", iter("q"), 0, connectors, {}
    )
    return prepared.plan


def kinds_from_sink(made):
    """Returns the kinds of operators on the path from the sink to the source `ab`."""
    by_id = {spec.id: spec for spec in made.operators}
    found, at = [], made.operators[-1]
    while True:
        found.append(str(at.params.__struct_config__.tag))
        inputs = [by_id[link.source] for link in made.links if link.target == at.id]
        if not inputs:
            return found
        at = next((one for one in inputs if found[-1] == "join" and "ab" in sources_of(made, one.id)), inputs[0])


def sources_of(made, operator):
    below = [link.source for link in made.links if link.target == operator]
    if not below:
        return {next(spec.params.name for spec in made.operators if spec.id == operator)}
    return set().union(*(sources_of(made, one) for one in below))


def test_agents_as_written_have_filters_above_both_joins_and_others_at_the_sources(monkeypatch):
    monkeypatch.setattr(planner, "planning", planner.planning)

    assert kinds_from_sink(planned()) == ["sink", "join", "map", "source"]
    leave_filters_up()
    assert kinds_from_sink(planned()) == ["sink", "map", "map", "join", "source"]


def figures(multiple, work_ns=0.0, free=1.0):
    """Returns a prediction of a query that fills one core of node a, by the work of its source rows and of their pairs."""
    limit = {"what": "CPU on node a", "multiple": multiple, "nodes": ["a"], "demand": [0.0, work_ns], "supply": free * 1e9}
    link = {"what": "link a-b", "multiple": 100.0, "nodes": ["a", "b"], "demand": [0.0, 1.0], "supply": 100.0}
    nodes = {name: {"speed": 1.0, "operators_cores": free, "agent_cores": 0.0, "share": None} for name in "ab"}
    return {"multiple": multiple, "binding": limit["what"], "limits": [limit, link], "nodes": nodes}


class Sustaining:
    """Agents that sustain a rate, and predict another one with `assumed` of a core each; they have `there` of it."""

    def __init__(self, rate, predicted, fails_once_at=0, assumed=1.0, there=1.0):
        self.rate, self.predicted, self.tried, self.fails_once_at, self.later_s = rate, predicted, [], fails_once_at, 0.1
        self.assumed, self.there, self.learned_at = assumed, there, []

    def learn(self, rate):
        self.learned_at.append(rate)
        found = figures(self.predicted / rate, self.assumed * 1e9 * rate / self.predicted, self.assumed)
        cores = {name: {"share": 1.0, "speed": 2.0} for name in "ab"}
        return {"rows_per_s": self.predicted, "given": min(1.0, self.rate / rate), "learned_at": rate, "cores": cores, **found}

    def watch(self, rate, watched_s=engine.WATCHED_S):
        self.tried.append(rate)
        trouble = len(self.tried) == self.fails_once_at
        given = 0.5 if trouble else min(1.0, self.rate / rate)
        cores = {
            name: {"used": self.there * used, "available": self.there, "speed": 2.0}
            for name, used in (("a", min(1.0, rate / self.rate)), ("b", 0.1))
        }
        return {"rows_per_s": rate, "given": given, "cores": cores, "grown_s": 0.1, "later_s": self.later_s}


@pytest.mark.parametrize("predicted", [10_000, 48_000, 200_000])
def test_the_highest_rate_is_found_whatever_was_predicted(predicted):
    found = engine.measured(Sustaining(50_000, predicted))

    assert 50_000 / engine.NEAR <= found["rows_per_s_per_stream"] <= 50_000 / engine.HELD_UP
    assert found["error"] == pytest.approx(predicted / found["rows_per_s_per_stream"] - 1, rel=1e-3)
    assert found["predicted"] == found["predicted_then"] == predicted


def test_what_others_hold_up_once_is_tried_again():
    found = engine.measured(Sustaining(50_000, 50_000, fails_once_at=1))

    assert found["rows_per_s_per_stream"] >= 50_000 / engine.NEAR


def test_costs_are_learned_ever_nearer_to_the_predicted_rate():
    pair = Sustaining(50_000, 50_000)
    found = engine.measured(pair)

    assert pair.learned_at == [20_000, 40_000, 45_000, 47_500]
    assert found["learned_at"] == 47_500
    assert [one["learned_at"] for one in found["learned"]] == pair.learned_at


def test_a_prediction_that_is_far_too_high_is_approached_step_by_step():
    """Costs of batches a hundred times larger than measured are guesses; once it has been held up, a query goes on between both rates."""
    pair = Sustaining(5_000_000, 100_000_000)
    engine.learned(pair)

    assert pair.learned_at[:5] == [20_000, 160_000, 1_280_000, 10_240_000, 3_620_387]


def test_a_prediction_from_an_overload_does_not_count():
    pair = Sustaining(46_000, 50_000)
    found = engine.measured(pair)

    assert pair.learned_at == [20_000, 40_000, 45_000, 47_500]
    assert found["learned_at"] == 45_000
    assert engine.newest([{"given": 0.5, "rate": 1}, {"given": 0.4, "rate": 2}])["rate"] == 2


def test_a_second_prediction_rests_on_the_processor_time_that_there_was():
    """The agents could have half of a core when they predicted, and have 0.8 of it when the rate is searched."""
    found = engine.measured(Sustaining(80_000, 50_000, assumed=0.5, there=0.8))

    assert found["predicted"] == 50_000
    assert found["predicted_then"] == 80_000
    assert abs(found["error_then"]) <= 0.05 < abs(found["error"])


FOUND = {"predicted": 50_000, "learned": [Sustaining(50_000, 50_000).learn(1_000)]}


@pytest.mark.parametrize(
    ("predicted", "later_s", "there", "expected"),
    [
        (50_000, 0.1, 1.0, (True, True, True, True)),
        (45_000, 0.1, 1.0, (True, False, True, True)),
        (60_000, 0.1, 1.0, (False, True, True, True)),
        (50_000, 2.0, 1.0, (False, True, True, True)),
        (50_000, 0.1, 0.8, (True, True, True, False)),
    ],
)
def test_a_prediction_holds_if_all_goes_through_below_it_and_what_was_named_is_full_above(predicted, later_s, there, expected):
    pair = Sustaining(50_000, predicted, there=there)
    pair.later_s = later_s
    found = engine.sustained(pair, {"predicted": predicted, "learned": [pair.learn(1_000)]})

    assert tuple(found[key] for key in ("flat", "blocked", "binding_full", "had_its_cores")) == expected
    assert found["holds"] == all(expected[:3])
    assert pair.tried == [round(0.95 * predicted), round(1.1 * predicted)]
    assert found["below"]["of_predicted_then"] == pytest.approx(0.95 / there)


def test_a_limit_that_is_not_full_above_the_predicted_rate_was_not_the_one():
    pair = Sustaining(50_000, 50_000)
    learn = pair.learn
    pair.learn = lambda rate: learn(rate) | {"binding": "one core, operators b.1.3, b.1.4 on node b"}

    found = engine.sustained(pair, FOUND)
    assert (found["flat"], found["blocked"], found["binding_full"], found["holds"]) == (True, True, False, False)


def test_the_result_counts_the_plans_that_behave_as_predicted(monkeypatch):
    pairs = iter([Sustaining(50_000, 50_000), Sustaining(100_000, 100_000), Sustaining(50_000, 70_000)])
    monkeypatch.setattr(engine, "agents", lambda *arguments, **named: contextlib.nullcontext({}))
    monkeypatch.setattr(engine, "cores_of_agents", lambda count: list(range(count)))
    monkeypatch.setattr(engine, "Pair", lambda *arguments: next(pairs))

    found = engine.evaluate_engine(lambda part, number, count: None, 7.0)

    assert found["ratio"] == pytest.approx(2.0, rel=0.1)
    assert (found["plans"], found["flat"], found["blocked"], found["binding_full"], found["holds"]) == (3, 2, 3, 3, 2)
    assert (found["seconds"], found["had_its_cores"], found["predicted_within"], found["predicted_then_within"]) == (7.0, 3, 2, 2)
    show_engine(found)


def test_an_agent_could_have_what_was_idle_and_what_others_would_have_left():
    before = Used(10.0, 3.0, 100.0, 7.0)
    after = Used(20.0, 9.0, 101.0, 8.0)

    found = available(before, after, Core(0.9, 1.0), first=False)
    assert found == pytest.approx({"used": 0.6, "available": 0.7, "stolen": 0.1, "share": 0.9, "speed": 1.0})
    assert available(before, after, Core(0.9, 1.0), first=True)["available"] == pytest.approx(0.9)
    assert available(before, after, Core(0.5, 1.0), first=True)["available"] == pytest.approx(0.7)
    idle = after._replace(idle_s=110.0)
    assert available(before, idle, Core(0.9, 1.0), first=True)["available"] == 1.0
    assert available(before, idle, Core(0.9, 1.0, 0.95), first=True)["available"] == 0.95


def test_a_slower_machine_and_another_share_change_the_limits_of_processors_only():
    rate = figures(2.0, 5e8)
    rate["nodes"]["a"] |= {"operators_cores": 0.9, "agent_cores": 0.1}
    cores = {"a": {"available": 0.7, "speed": 1.5}}

    assert present_multiple(rate, cores, {"a": 2.0, "b": 2.0}) == pytest.approx(((0.7 - 0.1) * 0.75 * 1e9 / 5e8, "CPU on node a"))
    rate["limits"][1]["multiple"] = 0.5
    assert present_multiple(rate, cores, {"a": 2.0, "b": 2.0}) == (0.5, "link a-b")


def test_a_core_is_looked_at_in_its_own_process_time():
    found = look_at(cores_of_agents(1)[0], shares=1, timings=5)

    assert 0 < found.share <= 1
    assert found.speed > 0
    used_ = used(cores_of_agents(1)[0], lambda: 1.0)
    assert used_.agent_s == 1.0
    assert used_.idle_s >= 0
