"""The query of WhiteWater's section 6.4: its initial order, and the search for the highest rate that agents sustain."""

from types import SimpleNamespace

import pytest

from sbon.extensions import NOTHING
from sbon.query import planner
from sbon.supervision.statements import prepare
from sbon_testbed.throughput import engine
from sbon_testbed.throughput.as_written import leave_filters_up
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


class Sustaining:
    """Agents that sustain a rate."""

    def __init__(self, rate, predicted, fails_once_at=0):
        self.rate, self.predicted, self.tried, self.fails_once_at, self.later_s = rate, predicted, [], fails_once_at, 0.1

    def learn(self):
        return {"rows_per_s": self.predicted, "binding": "CPU on node a", "learned_at": 1}

    def watch(self, rate, watched_s=engine.WATCHED_S):
        self.tried.append(rate)
        trouble = len(self.tried) == self.fails_once_at
        given = 0.5 if trouble else min(1.0, self.rate / rate)
        return {"rows_per_s": rate, "given": given, "cores": {"a": rate / self.rate, "b": 0.1}, "grown_s": 0.1, "later_s": self.later_s}


@pytest.mark.parametrize("predicted", [10_000, 48_000, 200_000])
def test_the_highest_rate_is_found_whatever_was_predicted(predicted):
    found = engine.measured(Sustaining(50_000, predicted))

    assert 50_000 / engine.NEAR <= found["rows_per_s_per_stream"] <= 50_000 / engine.HELD_UP
    assert found["error"] == pytest.approx(predicted / found["rows_per_s_per_stream"] - 1, rel=1e-3)
    assert found["predicted"] == predicted


def test_what_others_hold_up_once_is_tried_again():
    found = engine.measured(Sustaining(50_000, 50_000, fails_once_at=1))

    assert found["rows_per_s_per_stream"] >= 50_000 / engine.NEAR


@pytest.mark.parametrize(
    ("predicted", "later_s", "node", "expected"),
    [
        (50_000, 0.1, "a", (True, True, True)),
        (45_000, 0.1, "a", (True, False, True)),
        (60_000, 0.1, "a", (False, True, True)),
        (50_000, 2.0, "a", (False, True, True)),
        (50_000, 0.1, "b", (True, True, False)),
    ],
)
def test_a_prediction_holds_if_all_goes_through_below_it_and_what_was_named_is_full_above(predicted, later_s, node, expected):
    pair = Sustaining(50_000, predicted)
    pair.later_s = later_s
    found = engine.sustained(pair, predicted, f"one core, operators b.1.3, b.1.4 on node {node}")

    assert (found["flat"], found["blocked"], found["binding_full"]) == expected
    assert pair.tried == [round(0.95 * predicted), round(1.1 * predicted)]
