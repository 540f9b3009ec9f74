"""The delay of the longest path of a query."""

import msgspec
import numpy as np
import pytest

from sbon.cost.delay import longest_delay_ms
from sbon.cost.latency import KnownLatencies
from sbon.cost.problem import PlacementLink, PlacementProblem
from sbon.errors import PlacementError
from sbon.placement.candidates import CandidateReport, Choice, Reuse

TRUTH = KnownLatencies(["a", "b", "c"], np.array([[0.0, 20.0, 60.0], [20.0, 0.0, 100.0], [60.0, 100.0, 0.0]]))
PROBLEM = PlacementProblem(
    {"p": "a", "q": "b", "s": "c"},
    ("f", "j"),
    (PlacementLink("p", "f", 1.0), PlacementLink("f", "j", 1.0), PlacementLink("q", "j", 1.0), PlacementLink("j", "s", 1.0)),
)
PLACED = {**PROBLEM.pinned, "f": "b", "j": "a"}


def test_delay_is_that_of_the_longest_way():
    assert longest_delay_ms(PROBLEM, PLACED, TRUTH) == 10.0 + 10.0 + 30.0
    assert longest_delay_ms(PROBLEM, {**PLACED, "f": "a"}, TRUTH) == 10.0 + 30.0  # the path from q


def test_a_reused_operator_brings_the_delay_that_it_has():
    choice = Choice({"j": "a", "s": "c"}, {"j": Reuse("running", "a")}, ("p", "q", "f"))
    added = choice.adds(PROBLEM, {"a": CandidateReport("a", {}, 1, upstream_delay_ms={"running": 7.0})})

    assert added == PlacementProblem({"j": "a", "s": "c"}, (), PROBLEM.links[3:], begun_ms={"j": 7.0})
    assert longest_delay_ms(added, choice.assignment, TRUTH) == 7.0 + 30.0
    assert longest_delay_ms(msgspec.structs.replace(PROBLEM, begun_ms={"j": 7.0}), PLACED, TRUTH) == 7.0 + 30.0


def test_nothing_linked_takes_no_time():
    assert longest_delay_ms(PlacementProblem({"p": "a"}, (), ()), {"p": "a"}, TRUTH) == 0.0
    assert longest_delay_ms(PlacementProblem({}, (), ()), {}, TRUTH) == 0.0


def test_a_plan_that_goes_round_in_a_circle_is_refused():
    circle = PlacementProblem({}, ("f", "g"), (PlacementLink("f", "g", 1.0), PlacementLink("g", "f", 1.0)))

    with pytest.raises(PlacementError, match="form a cycle"):
        longest_delay_ms(circle, {"f": "a", "g": "b"}, TRUTH)


@pytest.mark.parametrize("bound", [-1.0, float("nan")])
def test_a_bound_below_zero_is_refused(bound):
    with pytest.raises(PlacementError, match="delay bound"):
        PlacementProblem({"p": "a"}, (), (), delay_bound_ms=bound)
