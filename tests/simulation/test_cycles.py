"""Agents create, drop, leave, crash and return in random order: soon all list the same names, and all can be dropped and recreated."""

from pathlib import Path

import numpy as np
import pytest

from sbon.errors import SbonError
from tests.examples import seeds
from tests.worlds import settled_world

AGREE_S = 60.0
"""Time from the return of the last agent until all agents list the same queries: a recreated shared operator may still have the former id
of a restarted query among its users, and agents list that query as orphaned for 30 s."""
ACTIONS = 24
NAMES = ("s", "t", "v", "k", "l")
KINDS = {"s": "source", "t": "source", "v": "view", "k": "sink", "l": "sink"}


class Story:
    """Agents, and the expected names and queries."""

    def __init__(self, directory: Path, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        count = int(self.rng.integers(2, 4))
        settings = {"engine": {"batch_interval_s": 0.5}, "optimiser": {"enabled": False}, "telemetry": {"enabled": False}}
        self.world = settled_world(count, seed=seed, settings=settings, data_dir=directory / "agents", log_file=directory / "log")
        self.names: set[str] = set()
        self.plain = 0
        self.dropped: set[str] = set()
        """Ids of plain queries that have been dropped; their operators may live on for others, and be listed while their home is away."""
        self.told: list[str] = []

    def living(self) -> list[str]:
        return self.world.alive_nodes()

    def someone(self, nodes: list[str]) -> str:
        return nodes[int(self.rng.integers(len(nodes)))]

    # ------------------------------------------------------------------------------------------------------- actions

    def act(self) -> None:
        """Does one random action, and sometimes pauses; an agent may be killed right after it has answered a request."""
        away = [node for node in self.world.nodes if not self.world.alive(node)]
        kinds = ["create"] * 5 + ["drop"] * 3 + ["restart", "kill", "leave"] * (len(self.living()) > 1) + ["start"] * 6 * bool(away)
        kind = kinds[int(self.rng.integers(len(kinds)))]
        if kind in ("create", "drop"):
            at = self.someone(self.living())
            self.told.append(f"{kind} at {at}")
            try:
                self.create(at) if kind == "create" else self.drop(at)
            except SbonError as refusal:
                if not away:
                    raise AssertionError(f"refused although all agents are alive: {refusal}; {self.told}") from refusal
                self.told.append(f"refused: {refusal}")
        else:
            node = self.someone(away if kind == "start" else self.living())
            self.told.append(f"{kind} {node}")
            getattr(self.world, kind)(node)
            if kind == "leave":
                self.world.run_until(lambda: not self.world.alive(node), 60.0)
        if self.rng.random() < 0.5:
            self.world.run(float(self.rng.uniform(0.1, 15.0)))
        if all(self.world.alive(node) for node in self.world.nodes):
            self.agree()

    def create(self, at: str) -> None:
        free = [name for name in (*NAMES, "") if name not in self.names and (name in ("s", "t") or "s" in self.names)]
        name = self.someone(free) if free else ""
        node = self.someone(list(self.world.nodes))
        source = f"(ts TIMESTAMP, n BIGINT) WITH (connector = 'datagen', nodes = '{node}', rows_per_second = 4)"
        sql = {
            "source": f"CREATE SOURCE {name} {source}",
            "view": f"CREATE VIEW {name} AS SELECT n FROM s WHERE n > 1",
            "sink": f"CREATE SINK {name} AS SELECT n FROM s WITH (connector = 'discard', node = '{node}')",
            "": "SELECT n FROM s",
        }[KINDS.get(name, "")]
        if not name and self.plain >= 3:
            return
        self.told.append(sql)
        self.world.submit(sql, at=at)
        if name:
            self.names.add(name)
        else:
            self.plain += 1

    def drop(self, at: str) -> None:
        plain = {row["id"] for row in self.world.ask(at, "queries") if row["sql"].startswith("SELECT")} - self.dropped
        listed = [query for query, *_ in self.queries(at) if query in plain]
        choice = self.someone([*sorted(self.names), *listed[:1]] or [""])
        self.told.append(f"drop {choice}")
        if choice in listed:
            self.world.ask(at, "drop", query=choice)
            self.plain -= 1
            self.dropped.add(choice)
        elif choice:
            self.world.submit(f"DROP {KINDS[choice]} {choice}", at=at)
            self.names.discard(choice)

    # -------------------------------------------------------------------------------------------------------- checks

    def queries(self, at: str) -> list[tuple[str, str, str]]:
        """Returns the queries that an agent lists, without dropped queries whose operators others use."""
        rows = self.world.ask(at, "queries")
        return sorted((row["id"], row["name"], row["owner"]) for row in rows if not row["reason"].startswith("dropped; "))

    def catalog(self, at: str) -> list[tuple[str, ...]]:
        rows = self.world.ask(at, "names")
        return sorted((row["name"], row["kind"], row["owner"], row["query"] or "") for row in rows if row["owner"])

    def agree(self, within_s: float = AGREE_S) -> None:
        """Waits until all agents list the expected names and queries."""
        until = self.world.now + within_s
        while problem := self.differ():
            assert self.world.now < until, f"{problem}; {self.told}"
            self.world.run(0.25)

    def differ(self) -> str:
        names = {node: self.catalog(node) for node in self.living()}
        queries = {node: self.queries(node) for node in self.living()}
        first = self.living()[0]
        if not self.world.members_agree():
            return "they do not agree on who is alive"
        if any(one != names[first] for one in names.values()):
            return f"they list other names: {names}"
        if any(one != queries[first] for one in queries.values()):
            return f"they list other queries: {queries}"
        if {name for name, *_ in names[first]} != self.names:
            return f"names {names[first]}, expected {self.names}"
        sinks = sorted(name for query, name, _ in queries[first] if name != query)
        if sinks != sorted(name for name in self.names if KINDS[name] == "sink"):
            return f"sinks {sinks}, expected those of {self.names}"
        plain = sum(name == query for query, name, _ in queries[first])
        return f"{plain} plain queries, expected {self.plain}: {queries[first]}" if plain != self.plain else ""


def tell(directory: Path, seed: int, actions: int) -> str:
    """Plays a story in which agents must agree at many moments; returns their differences at its end."""
    story = Story(directory, seed)
    world = story.world
    for _ in range(actions):
        story.act()
    story.told.append("all return")
    for node in world.nodes:
        if not world.alive(node):
            world.start(node)
    world.settle()
    story.agree()
    for name in sorted(story.names):
        world.submit(f"DROP {KINDS[name]} {name}", at=story.someone(story.living()))
        story.names.discard(name)
        story.agree()
    while listed := [query for query, *_ in story.queries(world.nodes[0]) if query not in story.dropped]:
        world.ask(story.someone(story.living()), "drop", query=listed[0])
        story.plain -= 1
        story.dropped.add(listed[0])
        story.agree()
    for _ in range(3):  # names can be created again
        story.create(story.someone(story.living()))
        story.agree()
    return story.differ()


@pytest.mark.parametrize("seed", seeds(range(4), range(4, 24)))
def test_agents_list_the_same_whatever_becomes_of_them(seed: int, tmp_path: Path) -> None:
    assert tell(tmp_path, seed, ACTIONS) == ""


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(100, 600))
def test_agents_list_the_same_whatever_becomes_of_them_at_length(seed: int, tmp_path: Path) -> None:
    assert tell(tmp_path, seed, 4 * ACTIONS) == ""
