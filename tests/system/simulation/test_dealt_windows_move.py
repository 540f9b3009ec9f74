"""Windows of a pattern are dealt to several instances: splitters, instances and the merger move, and the answers equal those of one
instance on one node, in the same order.
"""

from collections.abc import Callable, Sequence
from random import Random

import pytest

from sbon.dealing.dealer import Silent
from sbon.operators import asking_splitter
from sbon.query.instances import sets_of
from sbon.query.params.matched import MatchParams
from sbon.query.params.streams import ExchangeParams, MergeParams, SplitParams
from sbon_testbed.exactly_once.story import make_world
from tests.examples import seeds
from tests.system.simulation.test_stateful_operators_move import SOURCES
from tests.worlds import moves_in

UNION = "WITH b AS (SELECT * FROM l UNION ALL SELECT * FROM r)"
QUERIES = {
    "match": f"""{UNION} SELECT number, low, high, n FROM b MATCH_RECOGNIZE (ORDER BY ts, value
        MEASURES MATCH_NUMBER() AS number, FIRST(value) AS low, LAST(value) AS high, COUNT(*) AS n
        PATTERN (a b{{2,}} c) WITHIN INTERVAL '200 ms' DEFINE a AS value < 0.3, b AS value < a.value + 0.5, c AS value > 0.7)""",
    "rows of a match": f"""{UNION} SELECT number, ts, value FROM b MATCH_RECOGNIZE (ORDER BY ts, value
        MEASURES MATCH_NUMBER() AS number ALL ROWS PER MATCH AFTER MATCH SKIP TO LAST b
        PATTERN (a b+ c) WITHIN INTERVAL '100 ms' DEFINE a AS value < 0.3, b AS value > 0.3, c AS value > 0.9)""",
    "episodes": """SELECT episode, n, top FROM (SELECT episode, COUNT(*) AS n, MAX(value) AS top FROM EPISODE(l, ts,
        opens => value > 0.8, closes => value > 0.8 AND key = opening.key, within => INTERVAL '150 ms') AS e GROUP BY episode)""",
}


@pytest.fixture(scope="module")
def alone() -> Callable[[str], list[str]]:
    """Returns a function that gives the answers of one instance on one node; each is computed once."""
    known: dict[str, list[str]] = {}

    def answers(name: str) -> list[str]:
        if name not in known:
            known[name], _ = run(name, nodes=1, seed=1, instances=1)
        return known[name]

    return answers


class Erratic(Silent):
    """Deals at random."""

    asked = 0

    def deal(self, at_s: float, closes_s: float) -> int:
        Erratic.asked += 1
        return Random(Erratic.asked).randrange(self.setting.instances)


def run(name: str, nodes: int, seed: int, instances: int, dealer: str = "") -> tuple[list[str], set[type]]:
    """Returns the answers in order, and the kinds of operators that have moved."""
    world = make_world(nodes, seed)
    left, right = world.nodes[1 % nodes], world.nodes[2 % nodes]
    turn = ("", ", turn = '70 ms'", ", turn = '1 s'")[seed % 3]
    said = f"WITH (instances = {instances}, dealing = 'window'{turn}{dealer})" if instances > 1 else ""
    query = world.submit(SOURCES.format(left=left, right=right) + f"CREATE VIEW v {said} AS {QUERIES[name]}; SELECT * FROM v;")
    tail, home = world.tail(query), world.agents[0]
    plan = home.queries.owned.records[query].plan  # type: ignore[attr-defined]
    assert [len(one.operators) for one in sets_of(plan)] == ([instances] if instances > 1 else [])
    faults = moves_in(world, seed)
    while not tail.finished and world.now < 200:
        faults.run(0.2)
    assert tail.finished, f"seed {seed}: the query has not ended after {world.now:.0f} virtual seconds"
    kinds = {spec.id: type(spec.params) for spec in plan.operators}
    moved = {kinds[record["operator"]] for agent in world.agents for record in agent.monitoring.measuring.migrations if record["committed"]}
    return list(map(str, tail.rows)), moved


@pytest.mark.parametrize(("name", "seed", "kind"), seeds([("match", 7, SplitParams)], [("episodes", 5, MatchParams)]))
def test_a_dealer_that_changes_its_mind_gives_the_answers_of_one_instance(
    name: str, seed: int, kind: type, alone: Callable[[str], list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(asking_splitter, "dealer_of", lambda _, setting, records: Erratic(setting, records))
    Erratic.asked = 0
    rows, moved = run(name, nodes=4, seed=seed, instances=2 + seed % 3, dealer=", dealer = 'round-robin'")
    assert rows == alone(name)
    assert Erratic.asked > 3
    assert kind in moved


SHORT = [("match", (1,)), ("episodes", (0,))]
LONG = [(name, range(first, first + 4)) for name in QUERIES for first in range(0, 204, 4)]


@pytest.mark.parametrize(("name", "numbers"), seeds(SHORT, LONG))
def test_answers_are_those_of_one_instance_on_one_node(name: str, numbers: Sequence[int], alone: Callable[[str], list[str]]) -> None:
    moved: set[type] = set()
    for seed in numbers:
        rows, kinds = run(name, nodes=4, seed=seed, instances=2 + seed % 3)
        assert rows == alone(name), f"seed {seed}"
        moved |= kinds
    assert len(alone(name)) > 20
    assert moved & {MatchParams, MergeParams, ExchangeParams}
