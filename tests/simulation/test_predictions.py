"""What is predicted of queries before they run, and what running ones tell of it."""

from tests.simulation.test_delay_bounds import C, make_world, sink


def test_explain_predicts_the_latency_of_a_query_and_says_that_it_knows_rules_only() -> None:
    world = make_world()

    found = world.ask(C, "explain", sql=sink(""))["prediction"]

    assert found["rests_on_rules"]
    assert found["operators"] == {
        "measured": 0,
        "sampled": 0,
        "declared": 0,
        "rule": len(world.ask(C, "explain", sql=sink(""))["operators"]),
    }
    latency = found["latency"]
    assert 0 < latency["worst_low_ms"] <= latency["worst_ms"]
    assert latency["mean_ms"] <= latency["p99_ms"] <= latency["worst_ms"] * (1 + 1e-9)
    assert [line["name"] for line in found["lines"]][:2] == ["network usage", "latency"]
    assert 180 < latency["parts_ms"]["network"] < 220  # rows of the weak source go to the strong one, 100 ms away, and back to the sink


def test_a_plan_of_capacity_predicts_at_other_rates() -> None:
    world = make_world()

    found = world.ask(C, "plan", sql=sink(""), question="capacity", options={"rates": 100_000.0})

    assert found["now"]["latency"]["worst_ms"] is not None
    assert found["then"]["latency"]["worst_ms"] is None
    assert found["then"]["latency"]["overloaded"]
