"""Hosts for operators whose own host leaves: the cheapest one with room, and a late answer rather than none."""

import pytest

from sbon.cost.network_usage import NetworkUsage
from sbon.cost.space import CostSpace
from sbon.optimiser.refuges import refuges
from sbon.optimiser.views import Neighbour, OperatorView
from sbon.placement.candidates import CandidateReport
from tests.placement_worlds import node

LINE = CostSpace({"a": node(0.0), "b": node(10.0), "c": node(50.0), "d": node(100.0), "here": node(90.0)})
NEIGHBOURS = (Neighbour("a", 5000.0, True, "p"), Neighbour("d", 1000.0, False, "s"))


def view(**changes):
    return OperatorView(**{"id": "f", "here": "here", "neighbours": NEIGHBOURS, **changes})


def reports(slots=None, load=None, names="abcd"):
    """Returns reports of candidates that have measured nothing, so that their coordinates count."""
    return {name: CandidateReport(name, {}, (slots or {}).get(name, 1), (load or {}).get(name, 0.0)) for name in names}


def test_the_least_network_usage_comes_first_whatever_it_saves():
    assert refuges(view(), reports(), LINE, NetworkUsage()) == ("a", "b", "c", "d")
    assert refuges(view(), reports(names="d"), LINE, NetworkUsage()) == ("d",), "dearer than here, but the operator must go"


def test_who_has_no_room_for_all_of_it_and_the_host_itself_are_no_refuge():
    assert refuges(view(), reports({"a": 0}), LINE, NetworkUsage())[0] == "b"
    assert refuges(view(members=("f", "g")), reports({"c": 2}), LINE, NetworkUsage()) == ("c",)
    assert refuges(view(), reports(names=["here"]), LINE, NetworkUsage()) == ()


def test_what_was_measured_counts_before_what_is_predicted():
    far = CandidateReport("a", {"a": 0.0, "d": 5000.0}, 1)

    assert refuges(view(), {**reports(), "a": far}, LINE, NetworkUsage())[0] == "b"


def test_load_counts_by_its_weight():
    assert refuges(view(), reports(load={"a": 1000.0}), LINE, NetworkUsage())[0] == "a"
    assert refuges(view(), reports(load={"a": 1000.0}), LINE, NetworkUsage(1.0))[0] == "b"


@pytest.mark.parametrize(("slack_ms", "first"), [(1000.0, "a"), (10.0, "c")])
def test_within_a_delay_bound_if_that_can_be(slack_ms: float, first: str):
    """On a, the path from the producer at d and back is 50 ms longer than here; on c, no path is longer."""
    neighbours = (*NEIGHBOURS[1:], Neighbour("a", 5000.0, True, "p", 0.0), Neighbour("d", 1000.0, True, "q", 0.0))
    found = refuges(view(neighbours=neighbours, delay_slack_ms=slack_ms), reports(), LINE, NetworkUsage())

    assert found[0] == first
    assert sorted(found) == ["a", "b", "c", "d"], "better late than never"


def test_a_candidate_of_which_nothing_is_known_comes_last():
    assert refuges(view(), reports(names=["new", "d"]), LINE, NetworkUsage()) == ("d", "new")
