"""Whatever fails at any step of a migration: the operator has moved, or everything is as before the request, and all rows are right.

Every phase of a migration meets every fault: hosts that die, are cut off or slow, messages that are lost, repeated or late, and a query
that ends. The join that moves has a state of many pieces, so that its copy takes a while. Two copies of it must never run."""

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from functools import cache, partial
from typing import Any

import pytest

from sbon.errors import LinkError, MigrationError
from sbon.execution.life import State
from sbon.migration.config import MigrationConfig
from sbon.migration.coordinator import Phase
from sbon.query.params.joined import JoinParams
from sbon.wire.links import Moved
from sbon.wire.migration import Activate, Lock, Prepare, StateChunk, Unlock
from sbon_agent.node import Agent
from sbon_testbed.backend import Tail
from sbon_testbed.exactly_once.death import state_until
from tests.examples import seeds
from tests.worlds import settled_world

OWNER, LEFT, RIGHT, HOST, OTHER, SPARE = range(6)
PHASES = (Phase.LOCKING, Phase.PREPARING, Phase.COPYING, Phase.PAUSING, Phase.TRANSFERRING, Phase.COMMITTING)
ROWS_PER_S = 10
LONG_S, SHORT_S = 100.0, 20.0
"""Lengths of the streams in s; the expected rows on one node are computed once for each."""
REACH_S = 6
"""Longest distance in event time between two joined rows."""
SQL = """
CREATE SOURCE l (ts TIMESTAMP, key BIGINT, value DOUBLE, WATERMARK FOR ts AS ts) WITH (connector = 'datagen', nodes = '{left}',
    rows_per_second = {rate}, rows = {rows}, seed = 1, 'start' = '2026-01-01T00:00:00', fields.key.min = 0, fields.key.max = 20);
CREATE SOURCE r (ts TIMESTAMP, key BIGINT, value DOUBLE, WATERMARK FOR ts AS ts) WITH (connector = 'datagen', nodes = '{right}',
    rows_per_second = {rate}, rows = {rows}, seed = 2, 'start' = '2026-01-01T00:00:00', fields.key.min = 0, fields.key.max = 20);
SELECT l.ts, l.key, l.value, r.value AS other FROM l LEFT JOIN r
    ON l.key = r.key AND r.ts BETWEEN l.ts - INTERVAL '6 seconds' AND l.ts;
"""


def phases(*every: Phase) -> list[Any]:
    """Returns the phases as parameters: `every` for every run, all others for a long run."""
    return seeds(every, [phase for phase in PHASES if phase not in every])


class Overlay:
    """Six agents, and a join that runs on `HOST`."""

    def __init__(self, seconds: float, nodes: int = 6, *, heal: bool = False) -> None:
        settings = {
            "engine": {"batch_interval_s": 2.0, "heal": heal},
            "optimiser": {"enabled": False},
            "membership": {"interval_s": 0.5},
            "migration": {"piece_bytes": 1024, "window_bytes": 2000, "rest_bytes": 1, "timeout_s": 6.0, "lease_s": 12.0},
        }
        self.world = settled_world(nodes, seed=5, settings=settings)
        self.host = HOST
        names = self.world.nodes
        left, right = names[LEFT % nodes], names[RIGHT % nodes]
        self.query = self.world.submit(SQL.format(left=left, right=right, rate=ROWS_PER_S, rows=round(ROWS_PER_S * seconds)))
        self.tail: Tail = self.world.tail(self.query)
        (self.join,) = (
            operator
            for agent in self.agents
            for operator, instance in agent.execution.engine.instances.items()
            if isinstance(instance.spec.params, JoinParams)
        )
        if nodes > 1:
            self.world.run(2.0)  # so that the join has state
            self.move(HOST)

    @property
    def agents(self) -> list[Agent]:
        """Returns the running agents."""
        return [agent for agent in self.world.agents if isinstance(agent, Agent)]

    def agent(self, number: int) -> Agent:
        """Returns an agent by its number."""
        agent = self.world.agents[number]
        assert isinstance(agent, Agent)
        return agent

    def running(self) -> list[str]:
        """Returns the hosts on which the join is active."""
        active = (State.RUNNING, State.RESTING, State.PAUSED, State.FORKING, State.EXPORTED, State.FINISHED)
        return [
            a.name
            for a in self.agents
            if self.join in a.execution.engine.instances and a.execution.engine.instances[self.join].state in active
        ]

    def where(self) -> int:
        """Returns the number of the agent that runs the join."""
        (name,) = self.running()
        return self.world.nodes.index(name)

    def ask(self, there: int) -> list[Any]:
        """Requests a migration as soon as it is possible; the returned list will get its record."""
        at = self.agent(self.where())
        self.world.run_until(lambda: at.execution.migrations.may_migrate(self.join), 60.0, "the join may move")
        records: list[Any] = []
        at.execution.migrations.migrate(self.join, self.world.nodes[there], "tried by the test", records.append)
        return records

    def move(self, there: int) -> None:
        """Moves the join after the faults; an attempt may be called off because a broken connection is noticed only now."""
        outcomes: list[str] = []
        while self.where() != there:
            assert len(outcomes) < 3, outcomes
            records = self.ask(there)
            self.world.run_until(lambda found=records: bool(found), 60.0)
            outcomes.append(records[0].outcome)

    def until_phase(self, phase: Phase, records: list[Any]) -> bool:
        """Lets time pass until the migration is in this phase; returns False if it ends without being seen there."""
        migrations = [agent.execution.migrations for agent in self.agents if agent.execution.migrations.is_leaving(self.join)]
        leaving = migrations[0]._leaving[self.join]
        self.world.run_until(lambda: phase.value in leaving.phases or bool(records), 60.0, f"phase {phase.value}")
        return not records

    def finish(self) -> list[str]:
        """Waits for the end of the query, and returns all rows, sorted."""
        self.world.run_until(lambda: self.tail.finished, 600.0, "the query ends")
        return sorted(map(str, self.tail.rows))

    def assert_nothing_is_left(self) -> None:
        """Checks that no host waits for an operator, is locked for one, or logs its input."""
        self.world.run_until(lambda: not any(agent.execution.migrations.is_leaving(self.join) for agent in self.agents), 60.0)
        for agent in self.agents:
            assert self.join not in agent.execution.migrations._arrivals
            assert not [i for i in agent.execution.engine.instances.values() if i.log is not None or i.state is State.PREPARED]
            assert not [
                o for o in agent.execution.engine.instances if agent.execution.migrations._neighbour.keeps_still(o, agent.host.now())
            ]


@cache
def rows_on_one_node(seconds: float) -> list[str]:
    return Overlay(seconds, nodes=1).finish()


@pytest.fixture
def one_copy(monkeypatch: pytest.MonkeyPatch) -> Callable[[Overlay], None]:
    """Fails as soon as two copies of the join run."""

    def watch(overlay: Overlay) -> None:
        for agent in overlay.agents:
            activate = agent.execution.operators.activate

            def checked(operator: str, activate: Any = activate) -> Any:
                instance = activate(operator)
                assert len(overlay.running()) == 1, f"{operator} runs on {overlay.running()}"
                return instance

            monkeypatch.setattr(agent.execution.operators, "activate", checked)

    return watch


# ------------------------------------------------------------------------------------------------------------- troubles


def cut_off(seconds: float, *numbers: int) -> Callable[[Overlay], None]:
    def trouble(overlay: Overlay) -> None:
        overlay.world.partition([list(numbers)])
        overlay.world.run(seconds)
        overlay.world.heal()

    return trouble


def slow(number: int) -> Callable[[Overlay], None]:
    def trouble(overlay: Overlay) -> None:
        overlay.world.load(number, 0.99)
        overlay.world.run(1.0)
        overlay.world.load(number, 0.0)

    return trouble


def asked_again(overlay: Overlay) -> None:
    agent = next(agent for agent in overlay.agents if agent.execution.migrations.is_leaving(overlay.join))
    with pytest.raises(MigrationError):
        agent.execution.migrations.migrate(overlay.join, overlay.world.nodes[SPARE], "tried by the test")


def full(overlay: Overlay) -> None:
    """Fills the new host, so that it has no room."""
    overlay.agent(OTHER).execution.operators.room.reserve("others", 10_000, overlay.world.now)


TROUBLES: dict[str, Callable[[Overlay], None]] = {
    "the new host is cut off for a moment": cut_off(0.5, OTHER),
    "the new host is cut off for so long that it is given up": cut_off(10.0, OTHER),
    "the old host is cut off": cut_off(4.0, HOST),
    "a source is cut off": cut_off(2.0, LEFT),
    "the new host is slow": slow(OTHER),
    "it is asked to move elsewhere too": asked_again,
    "the new host is filled by others": full,
}


EVERY = ("the new host is cut off for so long that it is given up", "the old host is cut off")


@pytest.mark.parametrize("name", seeds(EVERY, [name for name in TROUBLES if name not in EVERY]))
def test_trouble_in_any_phase_leaves_the_rows_alone(name: str, one_copy: Callable[[Overlay], None]) -> None:
    trouble = TROUBLES[name]
    overlay = Overlay(LONG_S)
    one_copy(overlay)
    for phase in PHASES:
        overlay.move(HOST)
        records = overlay.ask(OTHER)
        if overlay.until_phase(phase, records):
            trouble(overlay)
        overlay.world.run_until(lambda records=records: bool(records), 90.0, f"{name} in {phase.value}: an end")
        overlay.world.run_until(lambda: len(overlay.running()) == 1, 60.0, f"{name} in {phase.value}: the join runs")
        expected = OTHER if records[0].committed else HOST
        assert overlay.where() == expected, f"{phase.value}: {records[0].outcome or 'committed'}"
        overlay.world.settle()
    assert not overlay.tail.finished, "the query ended before all phases were tested"
    overlay.world.run(25.0)
    overlay.assert_nothing_is_left()
    assert overlay.finish() == rows_on_one_node(LONG_S)


@pytest.mark.parametrize("phase", phases(Phase.COPYING, Phase.COMMITTING), ids=lambda phase: phase.value)
def test_the_new_host_dies(phase: Phase, one_copy: Callable[[Overlay], None]) -> None:
    overlay = Overlay(SHORT_S)
    one_copy(overlay)
    records = overlay.ask(OTHER)
    assert overlay.until_phase(phase, records)
    overlay.world.kill(OTHER, silent=True)
    overlay.world.run_until(lambda: bool(records), 90.0, "an end")

    if phase is Phase.COMMITTING:
        assert records[0].committed
        assert overlay.running() == [], "a decided move stays decided, so the operator is lost with its new host"
    else:
        assert not records[0].committed
        assert overlay.finish() == rows_on_one_node(SHORT_S)


@pytest.mark.parametrize("phase", phases(Phase.TRANSFERRING, Phase.COMMITTING), ids=lambda phase: phase.value)
def test_the_old_host_dies(phase: Phase, one_copy: Callable[[Overlay], None]) -> None:
    overlay = Overlay(SHORT_S)
    one_copy(overlay)
    records = overlay.ask(OTHER)
    assert overlay.until_phase(phase, records)
    overlay.world.kill(HOST, silent=True)
    overlay.world.run(30.0)

    assert len(overlay.running()) <= 1
    if phase is not Phase.COMMITTING:
        assert overlay.running() == [], "the move was not decided, so the operator is lost with its old host"


@pytest.mark.parametrize(
    ("phase", "dies"),
    seeds(
        [(Phase.COMMITTING, HOST), (Phase.COMMITTING, OTHER), (Phase.TRANSFERRING, HOST)],
        [(phase, dies) for phase in PHASES for dies in (HOST, OTHER)],
    ),
)
def test_a_join_that_is_lost_in_a_migration_is_made_again_and_its_query_says_what_is_missing(phase: Phase, dies: int) -> None:
    overlay = Overlay(SHORT_S, heal=True)
    record = overlay.agent(OWNER).queries.owned.find(overlay.query)
    assert record is not None
    records = overlay.ask(OTHER)
    assert overlay.until_phase(phase, records)
    overlay.world.kill(dies, silent=True)
    found = overlay.finish()

    whole, account = rows_on_one_node(SHORT_S), record.health.healing.account
    assert (account.recoveries == 1) == (dies == HOST or phase is Phase.COMMITTING)
    if account.recoveries == 0:
        assert found == whole
        return
    until = state_until(account)
    assert until is not None, "only the state may be lost"
    first = (until + timedelta(microseconds=1)).isoformat()  # rows are compared as text, by their first column: "('2026-..."
    assert [row for row in found if row[2:] >= first] == [row for row in whole if row[2:] >= first] != []
    assert len({row for row in found if row[2:] < first}) == len([row for row in found if row[2:] < first]), "a row has come twice"


@pytest.mark.parametrize("phase", phases(Phase.LOCKING, Phase.COPYING, Phase.COMMITTING), ids=lambda phase: phase.value)
def test_the_query_ends(phase: Phase) -> None:
    overlay = Overlay(SHORT_S)
    records = overlay.ask(OTHER)
    assert overlay.until_phase(phase, records)
    overlay.world.ask(OWNER, "drop", query=overlay.query)
    overlay.world.run(30.0)

    assert [agent.name for agent in overlay.agents if overlay.join in agent.execution.engine.instances] == []
    overlay.assert_nothing_is_left()


# ------------------------------------------------------------------------------------------------------------- messages

LATE_S = 2.0


def disturb(overlay: Overlay, kind: type, what: str, nth: int) -> list[str]:
    """Disturbs the nth message of a kind that the host of the join sends; the returned list gets the disturbed messages."""
    agent = overlay.agent(overlay.where())
    directory, host = agent.network.directory, agent.host
    send = type(directory).request.__get__(directory)
    hit: list[str] = []
    seen = 0

    def request(node: str, message: Any, done: Callable[[Any], None], timeout_s: float = 5.0) -> None:
        nonlocal seen
        seen += isinstance(message, kind)
        if not isinstance(message, kind) or hit or seen != nth:
            send(node, message, done, timeout_s)
            return
        hit.append(node)
        lost = partial(done, LinkError(f"no reply within {timeout_s:g} s"))
        if what == "lost":
            host.call_at(host.now() + timeout_s, lost)
        elif what == "answer lost":
            send(node, message, lambda result: None, timeout_s)
            host.call_at(host.now() + timeout_s, lost)
        elif what == "twice":
            send(node, message, done, timeout_s)
            send(node, message, lambda result: None, timeout_s)
        else:
            host.call_at(host.now() + LATE_S, partial(send, node, message, done, timeout_s))

    directory.request = request  # type: ignore[method-assign]
    return hit


@pytest.mark.parametrize("kind", seeds([StateChunk, Activate], [Moved, Lock, Prepare, Unlock]), ids=lambda kind: kind.__name__)
def test_any_message_is_lost_or_comes_twice_or_late(kind: type, one_copy: Callable[[Overlay], None]) -> None:
    overlay = Overlay(LONG_S)
    one_copy(overlay)
    nths = (1, 4) if kind is StateChunk else (1,)
    committed = 0
    for what in ("lost", "answer lost", "twice", "late"):
        for nth in nths:
            here = overlay.where()
            agent = overlay.agent(here)
            overlay.world.run_until(lambda agent=agent: agent.execution.migrations.may_migrate(overlay.join), 60.0, "it may move")
            hit = disturb(overlay, kind, what, nth)
            records = overlay.ask(OTHER if here == HOST else HOST)
            overlay.world.run_until(lambda records=records: bool(records), 90.0, f"{kind.__name__} {nth} {what}: an end")
            overlay.world.run(1.0)
            del agent.network.directory.request  # type: ignore[attr-defined]
            assert hit, f"there was no {kind.__name__} {nth}"
            overlay.world.run_until(lambda: len(overlay.running()) == 1, 60.0, f"{kind.__name__} {nth} {what}: it runs")
            assert (overlay.where() != here) == records[0].committed, f"{kind.__name__} {nth} {what}: {records[0].outcome}"
            committed += records[0].committed
            if what == "twice" or kind in (StateChunk, Activate, Moved, Unlock):
                assert records[0].committed, f"{kind.__name__} {nth} {what}: {records[0].outcome}"
    assert committed > 0
    assert not overlay.tail.finished, "the query ended before all messages were tested"
    overlay.world.run(25.0)
    overlay.assert_nothing_is_left()
    assert overlay.finish() == rows_on_one_node(LONG_S)


def test_a_state_too_large_for_the_new_host_stays(one_copy: Callable[[Overlay], None]) -> None:
    overlay = Overlay(SHORT_S)
    one_copy(overlay)
    arrivals = overlay.agent(OTHER).execution.migrations._arrivals
    arrivals._parts = replace(arrivals._parts, config=MigrationConfig(state_bytes_max=1))
    records = overlay.ask(OTHER)
    overlay.world.run_until(lambda: bool(records), 60.0)
    assert "migration.state_bytes_max" in records[0].outcome
    assert overlay.where() == HOST
    assert overlay.finish() == rows_on_one_node(SHORT_S)
