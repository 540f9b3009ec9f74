"""Two agents in processes of their own go through cycles of create, leave, return, kill, restart, drop and create again.

    python -m tests.cycles --cycles 10

prints for each step the time until both agents listed the same, the time until all queries ran that should, and the lists.
"""

import argparse
import os
import signal
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sbon.sealing import KEY_BYTES, generate_key
from tests.processes import Process, wait_until

AGENTS = ("ams", "nyc")
AGREE_S = 10.0
"""Limit until both agents list the same."""
RUN_S = 60.0
"""Limit until all queries run that should; takes a second or two on an idle machine."""
STATEMENTS = """
CREATE SOURCE s (ts TIMESTAMP, number BIGINT) WITH (connector = 'datagen', nodes = '{other}', rows_per_second = 50,
    fields.number.kind = 'sequence');
CREATE VIEW v AS SELECT number FROM s WHERE number % 2 = 0;
CREATE SINK k AS SELECT number FROM v WITH (connector = 'file', path = 'k.csv');
CREATE SINK there AS SELECT number FROM s WITH (connector = 'discard', node = '{other}');
SELECT number FROM v
"""
RUNNING = {"k": "running", "there": "running", "query": "running"}
NAMES = {"s", "v", "k", "there"}

Listed = dict[str, Any]


class Pair:
    """Two agents with the same cluster key and a data directory each: ams joins nobody, nyc joins ams."""

    def __init__(self, directory: Path, say: Callable[[str], None], agree_s: float = AGREE_S) -> None:
        self._directory = directory
        self._say = say
        self._agree_s = agree_s
        self._key = directory / "cluster.key"
        self._key.write_text(generate_key(os.urandom(KEY_BYTES)))
        self._key.chmod(0o600)
        self._addresses: dict[str, str] = {}
        self.agents: dict[str, Process] = {}
        self.slowest_s = 0.0
        for name in AGENTS:
            self.start(name)
        wait_until(lambda: all(self.sees_alive(name) == set(AGENTS) for name in AGENTS))

    def start(self, name: str) -> None:
        """Starts an agent, each time with the same options."""
        join = ("--join", self._addresses["ams"]) if name == "nyc" else ()
        bind = self._addresses.get(name, "127.0.0.1:0")
        agent = Process(self._directory, name, "--bind", bind, "--key-file", str(self._key), *join).wait_until_ready()
        self.agents[name] = agent
        self._addresses[name] = agent.ask("status")["address"]

    def end(self, name: str, how: str) -> None:
        """Ends an agent by "leave", "SIGTERM" or "kill -9"."""
        if how == "leave":
            self.agents[name].ask("leave")
        self.agents[name].end(signal.SIGKILL if how == "kill -9" else signal.SIGTERM)

    def close(self) -> None:
        """Kills both agents."""
        for agent in self.agents.values():
            agent.end(signal.SIGKILL)

    def sees_alive(self, name: str) -> set[str]:
        """Returns the members that an agent considers alive."""
        return {member["name"] for member in self.agents[name].ask("members") if member["status"] == "alive"}

    def rows_flow(self, taker: str) -> None:
        """Waits until the file of the sink grows, and checks that its earlier content is still there."""
        file = self.agents[taker].directory / "k.csv"
        before = file.read_text() if file.exists() else ""
        wait_until(lambda: file.exists() and file.read_text().count("\n") > before.count("\n"), RUN_S)
        assert file.read_text().startswith(before)

    def listed(self, name: str) -> Listed:
        """Returns what an agent lists: names of the catalogue, and queries."""
        rows = self.agents[name].ask("queries")
        return {
            "names": sorted(
                (row["name"], row["kind"], row["owner"], row["query"]) for row in self.agents[name].ask("names") if row["owner"]
            ),
            "queries": sorted((row["id"], row["name"], row["state"], row["owner"]) for row in rows),
        }

    def agree(self, step: str, states: dict[str, str] | None, names: set[str], at: tuple[str, ...] = AGENTS) -> None:
        """Waits until all of `at` list the same with these names, then until the queries are in these states.

        `states` is by name, with "query" for the plain query; None: any states.
        """
        began = time.monotonic()
        told: list[Listed] = []

        def found() -> dict[str, str]:
            return {"query" if query == name else name: state for query, name, state, _ in told[0]["queries"]}

        def same() -> bool:
            told[:] = [self.listed(name) for name in at]
            expected = set(RUNNING if states is None else states)
            right = {name for name, *_ in told[0]["names"]} == names and set(found()) == expected
            return right and all(one == told[0] for one in told)

        def wait(condition: Callable[[], bool], what: str, within_s: float) -> float:
            try:
                wait_until(condition, within_s)
            except AssertionError:
                reasons = [row["reason"] for row in self.agents[at[0]].ask("queries")]
                raise AssertionError(f"{step}: expected {what} within {within_s:g} s; listed: {told}; {reasons}") from None
            return time.monotonic() - began

        same_s = wait(same, f"both to list the same, and names {names}", self._agree_s)
        self.slowest_s = max(self.slowest_s, same_s)
        states_s = same_s if states is None else wait(lambda: same() and found() == states, f"{states}", RUN_S)
        queries = ", ".join(f"{name} {state}" for _, name, state, _ in told[0]["queries"]) or "no queries"
        self._say(f"  {step:<44} {same_s:5.1f} s {states_s:5.1f} s  {', '.join(sorted(names)) or 'no names'}; {queries}")

    def query(self, at: str) -> str:
        """Returns the id of the plain query."""
        return next(str(row["id"]) for row in self.agents[at].ask("queries") if row["id"] == row["name"])

    def drop_everything(self, at: str) -> None:
        """Drops all queries and names from one agent, and waits until no operator is left."""
        self.agents[at].ask("drop", query=self.query(at))
        self.agents[at].ask("submit", sql="DROP SINK k; DROP SINK there; DROP VIEW v; DROP SOURCE s")
        living = [agent for agent in self.agents.values() if agent.process.poll() is None]
        wait_until(lambda: all(agent.ask("operators") == [] for agent in living), self._agree_s)


def cycle(pair: Pair, number: int, say: Callable[[str], None]) -> None:
    """Goes through one cycle. The agent that takes the statements, and the agent that drops them, change from cycle to cycle."""
    taker, other = AGENTS if number % 2 == 0 else AGENTS[::-1]
    dropper = (taker, other)[number // 2 % 2]
    away = number % 2 == 1
    say(
        f"cycle {number + 1}: {taker} takes the statements, "
        + (f"{other} drops them while it is away" if away else f"{dropper} drops them")
    )
    pair.agents[taker].ask("submit", sql=STATEMENTS.format(other=other))
    pair.agree("created", RUNNING, NAMES)
    first = pair.query(other)

    pair.end(taker, "leave")
    pair.agree(f"{taker} has left", None, NAMES, (other,))
    pair.start(taker)
    pair.agree(f"{taker} is back", RUNNING, NAMES)
    pair.rows_flow(taker)
    pair.end(taker, "kill -9")
    pair.start(taker)
    pair.agree(f"{taker} was killed and is back", RUNNING, NAMES)
    pair.rows_flow(taker)
    pair.end(other, "SIGTERM" if number % 2 else "kill -9")
    pair.start(other)
    pair.agree(f"{other} is back, without the operators it had", None, NAMES)
    for name in AGENTS:
        pair.end(name, "kill -9")
    for name in AGENTS:
        pair.start(name)
    pair.agree("both were killed and are back", RUNNING, NAMES)
    assert pair.query(taker) != first

    if away:
        pair.end(taker, "leave")
        pair.drop_everything(other)
        pair.agree("dropped", {}, set(), (other,))
        pair.start(taker)
        pair.agree(f"{taker} is back", {}, set())
    else:
        pair.drop_everything(dropper)
        pair.agree("dropped", {}, set())


def run(directory: Path, cycles: int, say: Callable[[str], None], agree_s: float = AGREE_S) -> None:
    """Goes through the cycles.

    Raises
    ------
    AssertionError
        The agents did not list the same, or not what they should.
    """
    pair = Pair(directory, say, agree_s)
    try:
        for number in range(cycles):
            cycle(pair, number, say)
        say(f"{cycles} cycles; the slowest agreement took {pair.slowest_s:.1f} s")
    finally:
        pair.close()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cycles", type=int, default=10)
    with tempfile.TemporaryDirectory() as folder:
        run(Path(folder), parser.parse_args().cycles, lambda line: print(line, flush=True))
