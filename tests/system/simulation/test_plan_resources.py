"""`sbon plan resources` at an agent: nodes, instances and intervals of a query for a latency bound."""

import pytest

from sbon.errors import SbonError
from tests.system.simulation.test_delay_bounds import C, make_world, sink

KEYLESS = "CREATE SINK out AS SELECT ts, key FROM strong WITH (connector = 'discard')"


def test_a_plan_has_nodes_instances_and_intervals() -> None:
    world = make_world()

    found = world.ask(C, "plan", sql=sink(""), question="resources", options={"max_latency": "300ms", "rate": 1e6, "quantile": 0.99})

    assert found["kind"] == "window"
    assert found["nodes"] >= 1
    assert found["rate_max"] >= 1e6
    assert 0.2 < found["latency_s"] <= 0.3  # the path to the keys and back takes 100 ms in each direction
    assert found["rests_on_rules"]


@pytest.mark.parametrize(
    ("options", "query", "said"),
    [
        ({"max_latency": "150ms"}, sink(""), "no setting keeps 150 ms: the least that can be had is 2"),
        ({"max_latency": "soon"}, sink(""), "max_latency = 'soon' is no time span"),
        ({}, sink(""), "max_latency is missing"),
        ({"max_latency": "1s"}, KEYLESS, "no operator of this query has keys"),
        ({"max_latency": "1s", "rate": 1e9, "hottest": 0.5}, sink(""), "one key has 50.0% of all rows"),
        ({"max_latency": "1s", "rate": 1e8}, sink(""), "rows/s do not fit 100 nodes within 1 s"),
    ],
)
def test_what_cannot_be_planned_is_said(options: dict[str, object], query: str, said: str) -> None:
    world = make_world()

    with pytest.raises(SbonError, match=said):
        world.ask(C, "plan", sql=query, question="resources", options=options)
