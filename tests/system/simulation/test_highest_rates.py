"""The highest rates that a query sustains: in `explain`, and in plans over the nodes of an overlay."""

import pytest

from sbon.errors import SbonError
from tests.system.simulation.test_delay_bounds import WINDOWED, C, make_world

PROFILED = """
CREATE SOURCE fast (ts TIMESTAMP, key BIGINT, value DOUBLE, WATERMARK FOR ts AS ts)
WITH (connector = 'datagen', nodes = 'a', rows_per_second = 20, seed = 5, fields.key.min = 0, fields.key.max = 4,
      profile = 'day: 1000/s, launch: 8000/s')
"""
ONE = "SELECT window_end, key, sum(value) AS total FROM TUMBLE(fast, ts, INTERVAL '1 second') GROUP BY window_end, key"


def test_explain_tells_how_many_times_the_profile_a_query_carries_and_what_binds() -> None:
    world = make_world()
    world.submit(PROFILED, at=C)

    found = world.ask(C, "explain", sql=ONE)["prediction"]

    line = next(line["text"] for line in found["lines"] if line["name"] == "highest rate")
    rate = found["highest_rate"]
    assert "times the profile at launch, by" in line
    assert "next" in line
    assert rate["point"] == "launch"
    assert 0 < rate["multiple_low"] < rate["multiple"] == rate["limits"][0]["multiple"] <= rate["limits"][1]["multiple"]
    assert rate["binding"] in line
    assert any(limit["what"].startswith("one core, operators") for limit in rate["limits"]), "the window and its consumers are one task"
    cpu = next(limit for limit in rate["limits"] if limit["what"].startswith("CPU on node"))
    there = rate["nodes"][cpu["nodes"][0]]
    assert cpu["supply"] == pytest.approx(there["operators_cores"] * there["speed"] * 1e9)
    assert sum(work * cpu["multiple"] ** power for power, work in enumerate(cpu["demand"])) == pytest.approx(cpu["supply"])
    (headroom,) = rate["headroom"].values()
    assert headroom == pytest.approx(rate["multiple"]), "with one source, its headroom is that of all sources"


def test_without_a_profile_expected_rates_count_and_each_source_has_its_own_headroom() -> None:
    world = make_world()

    rate = world.ask(C, "explain", sql=WINDOWED)["prediction"]["highest_rate"]

    assert len(rate["headroom"]) == 2
    assert all(room >= rate["multiple"] for room in rate["headroom"].values())
    assert max(rate["headroom"].values()) > 2 * rate["multiple"], "the weak source can grow much if the strong one does not"


def test_a_plan_of_throughput_finds_a_placement_that_carries_more() -> None:
    world = make_world()

    found = world.ask(C, "plan", sql=WINDOWED, question="throughput", options={})
    again = world.ask(C, "plan", sql=WINDOWED, question="throughput", options={})
    many = world.ask(C, "plan", sql=WINDOWED, question="throughput", options={"profile": {"strong": "100000000/s"}})

    assert found["now"]["carries"]
    assert found["best"]["carries"]
    assert found["best"]["network_usage_bytes"] <= found["now"]["network_usage_bytes"] * (1 + 1e-9)
    assert list(found["best"]["node_of"].values()) == list(again["best"]["node_of"].values())
    assert not many["best"]["carries"]
    assert 0 < many["now"]["multiple"] <= many["best"]["multiple"] < 1


@pytest.mark.parametrize(
    ("profile", "problem"),
    [
        ({"nowhere": "1/s"}, "which the query does not read"),
        ({"strong": "0/s"}, "profile of strong: the profile's rate is '0/s'"),
        ({"strong": 5}, "expected a profile by source"),
    ],
)
def test_a_profile_that_cannot_be_used_is_refused_in_one_line(profile: dict[str, object], problem: str) -> None:
    world = make_world()

    with pytest.raises(SbonError, match=problem) as refusal:
        world.ask(C, "plan", sql=WINDOWED, question="throughput", options={"profile": profile})

    assert "\n" not in str(refusal.value)


def profiled(rate: str, name: str = "fast") -> str:
    return PROFILED.replace("SOURCE fast", f"SOURCE {name}").replace("day: 1000/s, launch: 8000/s", rate)


def test_a_profile_that_no_placement_carries_is_refused_with_the_best_multiple_and_what_binds() -> None:
    world = make_world()
    world.submit(profiled("day: 1000/s"), at=C)
    world.submit(profiled("day: 1000/s, launch: 100000000000/s", "far"), at=C)

    world.submit(f"CREATE SINK fine AS {ONE} WITH (connector = 'discard')", at=C)
    with pytest.raises(SbonError, match=r"no placement carries the profile at launch: at best .* times it, by .* on node") as refusal:
        world.submit(f"CREATE SINK much AS {ONE.replace('fast', 'far')} WITH (connector = 'discard')", at=C)

    assert "\n" not in str(refusal.value)
    much = world.ask(C, "plan", sql=ONE.replace("fast", "far"), question="throughput", options={})
    assert not much["best"]["carries"], "the plan is shown although no placement carries it"
    assert [row["name"] for row in world.ask(C, "queries")] == ["fine"]
