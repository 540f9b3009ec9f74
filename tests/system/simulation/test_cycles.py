"""Agents create and drop names while others leave, crash and return: soon all list the same names, and all can be dropped and recreated."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sbon.errors import SbonError
from sbon_testbed.simulator.case import Case
from sbon_testbed.simulator.checkers.base import CaseChecker
from sbon_testbed.simulator.checkers.bounds import Bounds
from sbon_testbed.simulator.checkers.coordinates import Coordinates
from sbon_testbed.simulator.checkers.copies import Copies
from sbon_testbed.simulator.checkers.leftovers import Leftovers
from sbon_testbed.simulator.checkers.links import Links
from sbon_testbed.simulator.checkers.members import Members
from sbon_testbed.simulator.checkers.owners import Owners
from sbon_testbed.simulator.faults.schedule import Faults
from sbon_testbed.simulator.trial import Trial
from tests.examples import seeds
from tests.worlds import settled_world

AGREE_S = 90.0
"""Time from the return of the last agent until all agents list the same queries, and no orphans: a recreated shared operator may still have
the former id of a restarted query among its users. Its host asks the restarted home 30 s after it has noticed the restart, at the next of
its questions every 15 s, and the owner that the home names 15 s later (docs/queries-without-a-home.md)."""
SETTLED_S = 10.0
"""Time from the last start or end of an agent until all statements must be accepted: an agent that is back may still be declared failed
because of its earlier life."""
ROUND_S = 15.0
"""Virtual seconds in which names change and agents end; then all agents must return, and agree."""
PAUSE_S = {"names": 1.5, "restarts": 8.0, "kills": 8.0, "leaving": 10.0}
NAMES = ("s", "t", "v", "k", "l")
KINDS = {"s": "source", "t": "source", "v": "view", "k": "sink", "l": "sink"}
CHECKERS: tuple[Callable[[Case], CaseChecker], ...] = (Links, Copies, Owners, Bounds, Coordinates, Members, Leftovers)


class Story(Case):
    """Agents, and the expected names and queries."""

    def __init__(self, directory: Path, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        count = int(self.rng.integers(2, 4))
        settings = {"engine": {"batch_interval_s": 0.5}, "optimiser": {"enabled": False}, "telemetry": {"enabled": False}}
        super().__init__(
            settled_world(count, seed=seed, settings=settings, data_dir=directory / "agents", log_file=directory / "log"), seed
        )
        self.names: set[str] = set()
        self.plain = 0
        self.dropped: set[str] = set()
        """Ids of plain queries that have been dropped; their operators may live on for others, and be listed while their home is away."""
        self.doubtful: dict[str, float] = {}
        """Names and ids whose home had not answered a drop, and since when: it may have carried the drop out, or may still do so."""
        self.asked = ""
        """Name or id that is being dropped."""
        self.same: tuple[list[Any], float] = ([], 0.0)
        """Agents, and since when these have run."""
        self.faults = Faults(self, ("restarts", "kills", "leaving"), PAUSE_S, {"names": self.change})
        checkers = [*(make(self) for make in CHECKERS), Lists(self)]
        self.trial = Trial(self, self.faults, checkers, self.watch, converged_s=AGREE_S)

    @property
    def spare(self) -> list[int]:
        """Returns the agents that may leave: all but the last one, one at a time."""
        return self.staying if len(self.staying) > 1 and not self.faults.leaving else []

    @property
    def running(self) -> list[int]:
        """Returns the agents that may be killed: all but the last one."""
        return self.spare

    def idle(self) -> list[int]:
        """Returns the agents that may be restarted: all but the last one, whatever they serve."""
        return self.spare

    @property
    def staying(self) -> list[int]:
        """Returns the agents that run and are not leaving."""
        return [number for number, _ in self.agents() if number not in self.faults.leaving]

    def someone(self, nodes: list[str]) -> str:
        return nodes[int(self.rng.integers(len(nodes)))]

    def anyone(self) -> str:
        return self.someone([self.world.nodes[number] for number in self.staying])

    # ------------------------------------------------------------------------------------------------------- actions

    def play(self, rounds: int) -> None:
        """Lets names change and agents end, and all agents return and agree, several times."""
        for _ in range(rounds):
            until = self.world.now + ROUND_S
            self.trial.trouble(lambda until=until: self.world.now >= until)  # type: ignore[misc]
            self.faults.calm()
            self.world.run_until(lambda: not self.faults.leaving, 60.0, "agents leave")
            for node in self.world.nodes:
                if not self.world.alive(node):
                    self.world.start(node)
            self.trial.converge()

    def watch(self) -> None:
        """Notes since when the present agents have run."""
        if self.same[0] != self.world.agents:
            self.same = [*self.world.agents], self.world.now

    def change(self, rng: np.random.Generator) -> None:
        """Creates or drops a name; an agent may be killed right after it has answered the request."""
        self.rng, kept = rng, self.rng
        at, self.asked = self.anyone(), ""
        are_settled = len(self.staying) == len(self.world.nodes) and self.world.now > self.same[1] + SETTLED_S
        must_accept = are_settled and self.world.members_agree() and not self.differ()
        try:
            self.create(at) if rng.random() < 0.625 else self.drop(at)
        except SbonError as refusal:
            self.tell("refused", str(refusal))
            if self.asked and "does not answer" in str(refusal):
                self.doubtful[self.asked] = self.world.now
            if must_accept:
                raise AssertionError(f"refused although all agents run and agree: {refusal}") from refusal
        self.rng = kept

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
        self.tell("create", f"at {at}: {sql}")
        self.world.submit(sql, at=at)
        if name:
            self.names.add(name)
        else:
            self.plain += 1

    def drop(self, at: str) -> None:
        plain = {row["id"] for row in self.world.ask(at, "queries") if row["sql"].startswith("SELECT")} - self.dropped
        listed = [query for query, *_ in self.queries(at) if query in plain - self.doubtful.keys()]
        self.asked = choice = self.someone([*sorted(self.names - self.doubtful.keys()), *listed[:1]] or [""])
        self.tell("drop", f"{choice} at {at}")
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

    def differ(self) -> str:
        """Describes how the agents' lists differ from each other or from the expected ones; empty if they do not."""
        names = {node: self.catalog(node) for node in self.world.nodes}
        queries = {node: self.queries(node) for node in self.world.nodes}
        first = self.world.nodes[0]
        if any(one != names[first] for one in names.values()):
            return f"they list other names: {names}"
        if any(one != queries[first] for one in queries.values()):
            return f"they list other queries: {queries}"
        if orphans := [row["reason"] for row in self.world.ask(first, "queries") if row["state"] == "orphaned"]:
            return f"orphans although all agents run: {orphans}"
        there = {name for name, *_ in names[first]}
        if not self.names - self.doubtful.keys() <= there <= self.names:
            return f"names {names[first]}, expected {self.names}, perhaps without {self.doubtful}"
        sinks = sorted(name for query, name, _ in queries[first] if name != query)
        if sinks != sorted(name for name in there if KINDS[name] == "sink"):
            return f"sinks {sinks}, expected those of {there}"
        plain, gone = {query for query, name, _ in queries[first] if name == query}, self.doubtful.keys() - self.names
        if not self.plain - len(gone) <= len(plain) <= self.plain:
            return f"{len(plain)} plain queries, expected {self.plain}, perhaps without {gone}: {queries[first]}"
        return ""

    def settle(self) -> str:
        """Takes the listed names and queries for those that are left after drops without an answer, once these are over."""
        if any(self.world.now <= asked_s + SETTLED_S for asked_s in self.doubtful.values()):
            return f"drops that have not been answered may still be carried out: {self.doubtful}"
        if self.doubtful:
            first = self.world.nodes[0]
            self.names &= {name for name, *_ in self.catalog(first)}
            self.plain = sum(name == query for query, name, _ in self.queries(first))
            self.dropped |= self.doubtful.keys() - KINDS.keys() - {query for query, *_ in self.queries(first)}
            self.doubtful.clear()
        return ""


class Lists(CaseChecker):
    """Compares the names and queries that agents list."""

    run: Story

    def __init__(self, run: Story) -> None:
        super().__init__(run)

    def converged(self) -> str:
        """Returns the first difference."""
        return self.run.differ() or self.run.settle()


def play(directory: Path, seed: int, rounds: int) -> str:
    """Plays a story in which agents must agree after each round, then drops all names, creates some again, and drops these. Returns how the
    agents differ in the end; empty if they list the same."""
    story = Story(directory, seed)
    world = story.world
    try:
        story.play(rounds)
        for again in (3, 0):
            for name in sorted(story.names):
                world.submit(f"DROP {KINDS[name]} {name}", at=story.anyone())
                story.names.discard(name)
                story.trial.converge()
            while story.plain:  # a query that is just being taken over is listed a moment later
                for query in [query for query, *_ in story.queries(world.nodes[0]) if query not in story.dropped][:1]:
                    world.ask(story.anyone(), "drop", query=query)
                    story.plain -= 1
                    story.dropped.add(query)
                story.trial.converge()
            story.trial.converge_without_queries()
            for _ in range(again):  # names can be created again
                story.create(story.anyone())
                story.trial.converge()
        return story.differ()
    except Exception as error:
        raise AssertionError("\n".join([str(error), *story.trace])) from error
    finally:
        world.close()


@pytest.mark.parametrize("seed", seeds(range(4), range(4, 24)))
def test_agents_list_the_same_whatever_becomes_of_them(seed: int, tmp_path: Path) -> None:
    assert play(tmp_path, seed, rounds=2) == ""


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(100, 600))
def test_agents_list_the_same_whatever_becomes_of_them_at_length(seed: int, tmp_path: Path) -> None:
    assert play(tmp_path, seed, rounds=8) == ""
