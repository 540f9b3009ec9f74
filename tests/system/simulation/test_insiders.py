"""A member sends every possible message about operators, links, migrations and queries of others. No agent believes it."""

import typing
from collections.abc import Iterator
from functools import cache
from typing import Any

import msgspec
import pytest

from sbon.errors import AuthorityError, SbonError, UnsupportedError
from sbon.execution.instance import Instance
from sbon.execution.life import State
from sbon.links.dead_ends import Obstruction
from sbon.links.frames import Data
from sbon.peers.peers import Peers
from sbon.query.params.windowed import WindowParams
from sbon.query.plan import LinkSpec, OperatorSpec
from sbon.watermarks import WATERMARK_END
from sbon.wire.authority import TABLE, Way
from sbon.wire.candidates import CandidateAsk, Reserve, RttsAsk, SampleAsk
from sbon.wire.deployment import Begin, End, InputLost, Instantiate, LeaveOut, Refeed, Release, Renew, Replaced, Use, User
from sbon.wire.keys import KeysAsk
from sbon.wire.links import Acknowledge, DeadEnd, Handed, Moved, NoSuchLink
from sbon.wire.messages import encode
from sbon.wire.migration import Abandon, Activate, Lock, OutcomeAsk, Prepare, StateChunk, Unlock
from sbon.wire.ownership import ClaimsAsk, Forget, Holder, Keep, Own, PromiseAsk, Record
from sbon.wire.replanning import Cross, Cut, Retire, Uncut
from sbon.wire.replication import EndOrphan, QueriesAsk, WantedAsk
from sbon.wire.reports import DelaySlack, InstanceFigures, OperatorsAsk, UpstreamDelay
from sbon_agent.node import Agent
from tests.worlds import settled_world

ROWS, PER_S = 400, 40
HOME, LEFT, RIGHT, EVIL = 0, 1, 2, 5
SOURCES = f"""
CREATE SOURCE l (ts TIMESTAMP, key BIGINT, value DOUBLE, WATERMARK FOR ts AS ts) WITH (connector = 'datagen', nodes = '{{left}}',
    rows_per_second = {PER_S}, rows = {ROWS}, seed = 1, 'start' = '2026-01-01T00:00:00', fields.key.min = 0, fields.key.max = 5);
CREATE SOURCE r (ts TIMESTAMP, key BIGINT, value DOUBLE, WATERMARK FOR ts AS ts) WITH (connector = 'datagen', nodes = '{{right}}',
    rows_per_second = {PER_S}, rows = {ROWS}, seed = 2, 'start' = '2026-01-01T00:00:00', fields.key.min = 0, fields.key.max = 5);
"""
QUERIES = (
    "SELECT window_end, key, count(*) AS n, sum(value) AS total FROM TUMBLE(l, ts, INTERVAL '1 second') GROUP BY window_end, key",
    "SELECT l.ts, l.key, l.value, r.value AS other FROM l JOIN r"
    " ON l.key = r.key AND r.ts BETWEEN l.ts - INTERVAL '50 milliseconds' AND l.ts + INTERVAL '50 milliseconds'",
)
COMPLETE_FROM = "2026-01-01T00:00:03"
"""The second query shares the first one's sources, and so misses their first rows."""
NOT_TRIED = {"PushPull", "CatalogUpdate", "Drop", "KeyInstall", "KeyUse", "KeyRemove"}
"""Messages that every member may send: users of any agent drop queries, and change keys and names."""


class Overlay:
    """Two queries, whose home is one agent, over sources on two others."""

    def __init__(self, nodes: int = 6) -> None:
        self.world = settled_world(nodes, seed=9, settings={"engine": {"batch_interval_s": 0.2}, "optimiser": {"enabled": False}})
        names = self.world.nodes
        self.world.submit(SOURCES.format(left=names[LEFT % nodes], right=names[RIGHT % nodes]))
        self.queries = [self.world.submit(sql) for sql in QUERIES]
        self.tails = [self.world.tail(query) for query in self.queries]

    @property
    def agents(self) -> list[Agent]:
        return [agent for agent in self.world.agents if isinstance(agent, Agent)]

    def finish(self) -> list[list[str]]:
        self.world.run_until(lambda: all(tail.finished or tail.error for tail in self.tails), 200)
        return [sorted(str(row) for row in tail.rows if str(row[0]) >= COMPLETE_FROM) for tail in self.tails]

    def counted(self, *names: str) -> dict[str, int]:
        """Returns the sums of counters over all agents."""
        return {name: sum(agent.access.authority.counters.get(name, 0) for agent in self.agents) for name in names}

    def move_one(self, besides: Agent | None = None) -> bool:
        """Starts the migration of a movable operator to the next agent that may host it."""
        agents = [agent for agent in self.agents if agent is not besides]
        for number, agent in enumerate(agents):
            for operator in agent.execution.engine.instances:
                if agent.execution.migrations.may_migrate(operator):
                    agent.execution.migrations.migrate(operator, agents[(number + 1) % len(agents)].name, "moved by the test")
                    return True
        return False


@cache
def rows_on_one_node() -> list[list[str]]:
    return Overlay(1).finish()


def test_an_honest_overlay_refuses_nothing():
    """Operators move, are shared and dropped, and are handed over by an agent that leaves."""
    overlay = Overlay()
    moved = 0
    for _ in range(6):
        overlay.world.run(1.0)
        moved += overlay.move_one()
    extra = overlay.world.submit(QUERIES[0], at=3)
    overlay.world.run(1.0)
    overlay.world.ask(4, "drop", query=extra)
    overlay.world.leave(4)
    assert moved > 3
    assert overlay.finish() == rows_on_one_node()
    assert overlay.counted("messages_refused", "messages_unsupported") == {"messages_refused": 0, "messages_unsupported": 0}


def forged(victim: Agent, evil: Agent, home: Agent) -> Iterator[Any]:
    """Yields every message that a member could send to an agent about operators, links and queries of others."""
    me, query = evil.name, next(iter(home.queries.owned.records))
    mine = User(f"{me}.0000001.01", me)
    for instance in list(victim.execution.engine.instances.values()):
        yield from forged_of_operator(instance, me, query, mine)
        yield LeaveOut(query, instance.id, "ts", WATERMARK_END)
        for incoming in list(instance.inputs.values()):
            link, next_one = incoming.link, incoming.receiver.received + 1
            yield Data(link.id, next_one, 0.0, WATERMARK_END, 0, b"")
            yield UpstreamDelay(link.id, 1e6)
            yield Handed(msgspec.structs.replace(link, source=mine.query, handed=link.handed + 1), me)
            yield InputLost(instance.id, link.id)
            new = LinkSpec(f"{link.id}+1", link.source, link.target, link.port, 1.0, 1.0)
            yield Refeed(query, link.id, End(new, me, ()), gives=False)
            yield Renew(query, End(new, me, (), 99), gives=False)
            yield Cross(query, instance.id, 7, (End(new, me, ()),), "ts")
            yield Cut(query, instance.id, 7, 0, go=True)
            yield Uncut(query, instance.id, 7)
            yield Retire(query, (instance.id, link.source))
            yield Moved(link.source, me, 99)
        for output in list(instance.outputs.values()):
            yield Acknowledge(output.link.id, output.sender.offered, 1000, False)
            yield NoSuchLink(output.link.id)
            yield DeadEnd(output.link.id, Obstruction("a lie", True))
            yield Replaced(output.link.id)
            yield InstanceFigures(output.link.id, 1_000, 10**12, 10**6, 1e6)
            yield Moved(output.link.target, me, 99)
            yield Instantiate(stolen(instance, f"{mine.query}.1"), (End(output.link, me, ()),), (End(output.link, me, ()),), mine)
            yield Use(output.link.target, mine, (End(output.link, me, ()),))
            yield Use(instance.id, User(query, me), through=output.link.id)
    for operator, found in list(victim.execution.migrations._arrivals._arriving.items()):
        yield from forged_of_arrival(operator, found.machine.epoch, found.assembly._spec, me)
    yield from (
        Begin(query),
        Release(query),
        DelaySlack(query, 0.0),
        Reserve(query, 0),
        CandidateAsk((), (), query, 1000),
        RttsAsk(5),
        EndOrphan(query),
        *forged_of_owner(victim, evil, query),
    )
    yield from (OperatorsAsk((query,), query), QueriesAsk(), WantedAsk((query,)), OutcomeAsk(f"{query}.1", 1), KeysAsk())
    for kind, rule in TABLE.items():
        if rule.way is Way.ANSWER:
            yield example(kind)


def forged_of_owner(victim: Agent, evil: Agent, query: str) -> Iterator[Any]:
    me = Holder(evil.name, evil.network.gossip.machine.own.boot)
    other = Holder(victim.name, victim.network.gossip.machine.own.boot)
    for epoch in (0, 99):
        yield Own(query, epoch, me)
        yield Own(query, epoch, Holder("nobody", 1))
        yield Keep(Record(query, epoch, 99, me, ((me, other),), b""))
        yield PromiseAsk(query, epoch, me)
        yield Forget(query, epoch)
    yield ClaimsAsk((query,))


def forged_of_operator(instance: Instance, me: str, query: str, mine: User) -> Iterator[Any]:
    operator = instance.id
    yield Moved(operator, me, 99)
    yield Instantiate(instance.spec, (), (), User(query, me))
    yield SampleAsk((instance.spec,), ())
    yield Lock(f"{mine.query}.7", (operator,), me, 100.0, me, 99)
    yield Lock(operator, (operator,), "nobody", 100.0, me, 99)
    yield Unlock(operator)
    yield Prepare(instance.spec, 99, me)
    yield Prepare(instance.spec, 99, "nobody")
    yield from forged_of_arrival(operator, instance.epoch + 1, instance.spec, me)


def forged_of_arrival(operator: str, epoch: int, spec: OperatorSpec, me: str) -> Iterator[Any]:
    yield Prepare(spec, 99, me)
    yield StateChunk(operator, epoch, 0, True, b"")
    yield Activate(operator, epoch)
    yield Abandon(operator, 99)


def stolen(instance: Instance, name: str) -> OperatorSpec:
    return msgspec.structs.replace(instance.spec, id=name)


def example(kind: type) -> Any:
    """Returns a value of an answer's type."""
    empty: dict[Any, Any] = {str: "", bytes: b"", int: 0, float: 0.0}
    fields = msgspec.structs.fields(kind)
    return kind(**{f.name: empty.get(f.type, {} if typing.get_origin(f.type) is dict else ()) for f in fields if f.required})


def say(evil: Agent, victim: Agent, message: Any, answers: list[tuple[Any, Any]]) -> None:
    """Sends a message in every possible way."""
    evil.network.directory.send(victim.name, message)
    if not isinstance(message, Data):
        evil.network.directory.request(victim.name, message, lambda result, message=message: answers.append((message, result)))  # type: ignore[misc]


def test_a_member_that_says_everything_about_others_changes_no_row_and_drops_nothing():
    overlay = Overlay()
    world, home, evil = overlay.world, overlay.agents[HOME], overlay.agents[EVIL]
    victims = [agent for agent in overlay.agents if agent is not evil]
    evil.network.directory.keep([agent.name for agent in victims])
    answers: list[tuple[Any, Any]] = []
    said: set[str] = set()
    world.run(1.0)
    for round_of in range(8):
        if overlay.move_one(besides=evil) and round_of % 2:
            world.run_until(lambda: any(victim.execution.migrations.arriving for victim in victims), 10)
        for victim in victims:
            for message in forged(victim, evil, home):
                said.add(type(message).__name__)
                say(evil, victim, message, answers)
        world.run(1.0)

    assert said | NOT_TRIED == {kind.__name__ for kind in TABLE}
    assert overlay.finish() == rows_on_one_node()
    assert {home.queries.owned.find(query).state.value for query in overlay.queries} == {"finished"}  # type: ignore[union-attr]
    assert all(node != evil.name for query in overlay.queries for node in home.queries.owned.find(query).nodes.values())  # type: ignore[union-attr]
    refused = overlay.counted(*(f"messages_refused_{kind.__name__}" for kind, rule in TABLE.items() if is_bound(kind)))
    assert all(refused.values()), refused
    assert not evil.execution.engine.instances
    for message, answer in answers:
        rule = TABLE[type(message)]
        if rule.way is Way.ANSWER or Way.ASKED not in rule.way:
            assert isinstance(answer, UnsupportedError), (message, answer)
        elif isinstance(answer, AuthorityError):
            assert rule.who in str(answer), (message, answer)
    assert all(evil.network.peers.is_connected(agent.network.address) for agent in victims), "a refused sender must stay connected"


def is_bound(kind: type) -> bool:
    """Tells whether a message's sender matters in this story: it does for candidates and reservations, not for tables and questions."""
    rule = TABLE[kind]
    return (rule.way is not Way.ANSWER and not rule.who.startswith("any member")) or kind in (CandidateAsk, Lock, Prepare)


def test_a_connection_in_anothers_name_from_elsewhere_is_not_believed():
    """The connection has the cluster key and the name, but comes from the address of another machine."""
    overlay = Overlay()
    world, home = overlay.world, overlay.agents[HOME]
    world.run(1.0)
    host, window = next(
        (a, i) for a in overlay.agents for i in a.execution.engine.instances.values() if isinstance(i.spec.params, WindowParams)
    )
    (output,) = window.outputs.values()
    sender = next(a for a in overlay.agents for i in a.execution.engine.instances.values() if output.link.id in i.outputs)
    forger = Peers(overlay.agents[EVIL].host, home.name, None, home.config.peers, Silent())
    forger.want(sender.network.address)
    world.run_until(lambda: forger.is_connected(sender.network.address))
    answers: list[Any] = []
    forger.send(sender.network.address, encode(Acknowledge(output.link.id, output.sender.offered, 1000, False)))
    forger.request(sender.network.address, encode(Release(overlay.queries[0])), answers.append, 5.0)
    forger.request(sender.network.address, encode(QueriesAsk()), answers.append, 5.0)
    world.run_until(lambda: len(answers) == 2)

    assert isinstance(answers[0], AuthorityError)
    assert "does not come from the address" in str(answers[0])
    assert not isinstance(answers[1], SbonError), "questions that any member may ask must be answered"
    assert sender.access.authority.counters["messages_refused_Acknowledge"] == 1
    assert window.id in host.execution.engine.instances
    forger.close()
    assert overlay.finish() == rows_on_one_node()


class Silent:
    """A connection handler that does nothing."""

    def message(self, connection: Any, payload: bytes) -> None: ...
    def data(self, connection: Any, data: Data) -> None: ...
    def request(self, connection: Any, payload: bytes, respond: Any) -> None: ...
    def connected(self, address: Any, node: str) -> None: ...
    def no_common_key(self, address: Any) -> None: ...
    def lost(self, address: Any, reason: str) -> None: ...
    def writable(self, address: Any) -> None: ...


@pytest.mark.parametrize("payload", [{"type": "of a later release", "x": 1}, {"type": "release", "query": ["of", "another", "form"]}])
def test_what_this_release_does_not_know_is_answered_and_the_connection_stands(payload: dict[str, Any]):
    overlay = Overlay()
    one, other = overlay.agents[3], overlay.agents[4]
    one.network.directory.keep([other.name])
    overlay.world.run_until(lambda: one.network.peers.is_connected(other.network.address))
    data = msgspec.msgpack.encode(payload)
    answers: list[Any] = []
    connection = one.network.peers._remotes[other.network.address].ready
    one.network.peers.request(other.network.address, data, answers.append, 5.0)
    one.network.peers.send(other.network.address, data)
    overlay.world.run_until(lambda: bool(answers))
    overlay.world.run(1.0)

    assert isinstance(answers[0], UnsupportedError)
    assert "not supported by this release" in str(answers[0])
    assert other.access.authority.counters["messages_unsupported"] == 2
    assert one.network.peers._remotes[other.network.address].ready is connection


def test_rows_of_the_next_host_are_believed_though_the_old_one_dies_before_it_can_tell():
    """The old host has named the next host when it locked the neighbours."""
    overlay = Overlay()
    world, new = overlay.world, overlay.agents[4]
    first, window = next(
        (a, i.id) for a in overlay.agents for i in a.execution.engine.instances.values() if isinstance(i.spec.params, WindowParams)
    )
    old = overlay.agents[3]
    if first is not old:
        move(overlay, window, first, old)
    ask = old.network.directory.request
    untold = (Moved,)
    old.network.directory.request = lambda node, message, *rest: None if isinstance(message, untold) else ask(node, message, *rest)  # type: ignore[method-assign]
    move(overlay, window, old, new)
    # The sources hear of the move from the old host, to which they send; the query's home has not heard of it when that host dies.
    world.run_until(lambda: any(end.node == new.name for agent in overlay.agents for _, end in agent.execution.flow.ends.beside(window)))
    world.kill(3)
    before = len(overlay.tails[0].rows)
    world.run_until(lambda: len(overlay.tails[0].rows) > before + 10, 30, "rows of the new host")
    assert overlay.counted("messages_refused_Data") == {"messages_refused_Data": 0}


def move(overlay: Overlay, operator: str, here: Agent, there: Agent) -> None:
    """Moves an operator, and waits until it runs there."""
    overlay.world.run_until(lambda: here.execution.migrations.may_migrate(operator), 30)
    here.execution.migrations.migrate(operator, there.name, "moved by the test")
    found = there.execution.engine.instances
    overlay.world.run_until(lambda: operator in found and found[operator].state is State.RUNNING, 30)
