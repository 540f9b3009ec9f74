"""`sbon bench costs`: figures of real agents, and of the laws of costs."""

import pytest

from sbon.errors import UsageError
from sbon_testbed.bench import costs, operators
from sbon_testbed.bench.agent_process import one_agent
from sbon_testbed.bench.engine import endless


def test_processor_time_of_an_agent_adds_up_and_waits_are_told():
    """Operators, event loop and threads add up to the process's time within a tenth, as clocks are coarse and runs short."""
    with one_agent() as agent:
        agent.submit(endless("W1", 0, "pool"))
        agent.wait_until(lambda: agent.cpu_s() >= 3.0, "W1 has used some processor time")
        told, used_s = agent.processor_s(), agent.cpu_s()
        agent.wait_until(lambda: agent.client.ask("status")["processor_waits_ms"] is not None, "waits have been folded once")
        waits = agent.client.ask("status")["processor_waits_ms"]

    assert told["process"] == pytest.approx(used_s, rel=0.1)
    assert told["operators"] + told["event_loop"] + told["threads"] + told["other"] == pytest.approx(told["process"], rel=1e-6)
    assert told["operators"] > 0.3 * told["process"]
    assert min(told["event_loop"], told["threads"]) > 0
    # Only libraries are loaded in other threads, at the start.
    assert abs(told["other"]) < 0.2 * told["process"]
    assert 0 < waits["mean"] <= 2 * waits["longest"]


def test_an_agent_that_measures_no_costs_runs_the_same_query():
    with one_agent(module=costs.UNACCOUNTED) as agent:
        agent.submit(endless("W1", 0, "pool"))
        agent.wait_until(lambda: agent.rows_taken() > 0, "W1 gives answers")
        assert all(cost["batches"] == 0 for operator in agent.operators() for cost in operator["costs"])
        assert agent.client.ask("status")["processor_waits_ms"] in (None, {"mean": 0.0, "longest": 0.0})


def test_parts_are_checked():
    with pytest.raises(UsageError, match="--part nothing, expected one of law, process, accounting, flow"):
        costs.measure(["nothing"], 1.0, 1, lambda _: None)
    with pytest.raises(UsageError, match="--only nothing: there are filter and project"):
        costs.measure(["law"], 1.0, 1, lambda _: None, "nothing")


@pytest.mark.soak
def test_the_law_of_an_operator_is_compared_with_rounds_that_it_has_not_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operators, "EVENT_ROWS_PER_S", 125_000)  # rounds of few batches
    found = costs.law(0.0001, ["tumbling, no keys"], lambda _: None)

    one = found["operators"]["tumbling, no keys"]
    assert list(one["error"]) == ["100", "316", "1000", "2862", "8192", "23170", "65536"]
    assert set(one["repeat"]) == {"100", "1000", "8192", "65536"}
    assert found["worst_p50"] == one["p50"] == found["p50"]
