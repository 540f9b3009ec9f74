"""New queries are placed by RTTs that the nodes of their sources and sinks remember, in virtual time."""

import numpy as np
import pytest

from sbon.rearranging.candidate_questions import CandidateQuestions
from sbon.rearranging.remembering import Remembering
from sbon.wire.candidates import CandidateAsk
from sbon_testbed.simulator.harness import World
from sbon_testbed.simulator.network import NetworkConfig
from sbon_testbed.topology import Topology
from tests.worlds import settled_world

NAMES = ("a", "b", "c", "x", "o1", "o2", "o3", "o4", "o5", "o6")
TAKER = 2
ANSWER_TIMEOUT_S = 3.0
QUERY = """
SELECT window_end, key, sum(value) AS total
FROM TUMBLE((SELECT ts, key, value FROM s_a UNION ALL SELECT ts, key, value FROM s_b), ts, INTERVAL '1 second') GROUP BY window_end, key
"""
SOURCE = """
CREATE SOURCE s_{node} (ts TIMESTAMP, key BIGINT, value DOUBLE, WATERMARK FOR ts AS ts)
WITH (connector = 'datagen', nodes = '{node}', rows_per_second = 100, seed = 5, fields.key.min = 0, fields.key.max = 4)
"""


def around_a_corner() -> Topology:
    """Returns a topology in which x is near all nodes, while a, b and c are far from all others: no coordinate of x fits both."""
    rtt_ms = np.full((10, 10), 30.0)
    rtt_ms[:3] = rtt_ms[:, :3] = 200.0
    rtt_ms[:3, :3] = 40.0
    rtt_ms[3] = rtt_ms[:, 3] = 20.0
    rtt_ms[3, :3] = rtt_ms[:3, 3] = 12.0
    np.fill_diagonal(rtt_ms, 0.0)
    return Topology("corner", NAMES, ({},) * 10, rtt_ms, np.zeros(10))


def make_world(neighbour_rtts: int, **settings: dict[str, object]) -> World:
    steady = {
        "optimiser": {"enabled": False, "neighbour_rtts": neighbour_rtts, "answer_timeout_s": ANSWER_TIMEOUT_S},
        "placement": {"candidates": 1},
        "membership": {"interval_s": 0.5},
        "engine": {"batch_interval_s": 0.5},
    }
    world = settled_world(around_a_corner(), seed=4, network=NetworkConfig(jitter_ms=0.0), settings={**steady, **settings})
    world.run(15)
    for node in ("a", "b"):
        world.submit(SOURCE.format(node=node), at=TAKER)
    return world


def explained(world: World) -> tuple[set[str], float]:
    """Returns where the query's unpinned operators would run, and the seconds of the answer."""
    began = world.now
    plan = world.ask(TAKER, "explain", sql=QUERY)
    return {row["node"] for row in plan["operators"] if not row["pinned"]}, world.now - began


@pytest.fixture(scope="module")
def worlds():
    made = {neighbour_rtts: make_world(neighbour_rtts) for neighbour_rtts in (0, 64)}
    yield made
    for world in made.values():
        world.close()


def test_a_query_goes_where_its_ends_remember_a_near_node_one_round_trip_later(worlds):
    by_coordinates, quick_s = explained(worlds[0])
    by_memory, slower_s = explained(worlds[64])

    assert "x" not in by_coordinates
    assert "x" in by_memory
    assert slower_s <= quick_s + 0.1  # the sources' nodes are 40 ms away


def test_what_runs_goes_there_too(worlds):
    world = worlds[64]
    query = world.submit(QUERY, at=TAKER)

    row = next(row for row in world.ask(TAKER, "queries") if row["id"] == query)
    assert {operator["node"] for operator in row["operators"] if operator["kind"] == "window"} == {"x"}
    assert world.rows(query, at=TAKER, count=3)
    world.ask(TAKER, "drop", query=query)


def test_a_node_that_does_not_answer_holds_a_query_up_for_one_time_out(worlds, monkeypatch):
    world, asked_at = worlds[64], []
    ask = CandidateQuestions.ask

    def noted(self, *arguments, **options):
        asked_at.append(world.now)
        ask(self, *arguments, **options)

    monkeypatch.setattr(CandidateQuestions, "ask", noted)
    world.partition([[0], list(range(1, 10))])
    began = world.now
    where, _ = explained(world)

    assert where
    assert ANSWER_TIMEOUT_S <= asked_at[0] - began <= ANSWER_TIMEOUT_S + 0.1


def test_a_query_that_waits_for_room_asks_once_what_is_remembered(monkeypatch):
    world, asked = make_world(64, hosting={"reservation_s": 5.0}), []
    answer = Remembering.answer

    def counted(self, question, respond):
        asked.append(self._directory.me)
        answer(self, question, respond)

    for agent in world.agents:
        agent.placement.candidate_questions.answer(CandidateAsk(about=(), signatures=(), query="another", slots=10_000), lambda told: None)
    monkeypatch.setattr(Remembering, "answer", counted)
    began = world.now
    world.submit(QUERY, at=TAKER)

    assert world.now - began > 1.5, "the query must wait for room"
    assert sorted(asked) == ["a", "b", "c"]
    world.close()
