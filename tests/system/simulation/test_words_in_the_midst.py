"""Messages at the wrong moment: while an operator moves, after newer messages, or for a link that does not exist any more."""

from collections.abc import Callable
from typing import Any

import pytest

from sbon.errors import LocalProtocolError, MigrationError, SbonError
from sbon.execution.instance import Instance
from sbon.migration.coordinator import Phase
from sbon.query.params.rowwise import MapParams
from sbon.query.params.windowed import WindowParams
from sbon.wire.deployment import InputLost, Use
from sbon.wire.messages import Done, Message
from sbon.wire.migration import Lock, Prepare, Unlock
from sbon_agent.node import Agent
from tests.worlds import settled_world

SOURCE = """
CREATE SOURCE readings (ts TIMESTAMP, key BIGINT, value DOUBLE, WATERMARK FOR ts AS ts)
WITH (connector = 'datagen', nodes = '{}', rows_per_second = 50, seed = 5, fields.key.min = 0, fields.key.max = 2)
"""
WINDOWED = "SELECT window_end, key, count(*) AS n FROM TUMBLE(readings, ts, INTERVAL '1 second') GROUP BY window_end, key"


class Overlay:
    """Six agents with sources on two of them, a window, and a query that reads its answers."""

    def __init__(self) -> None:
        self.world = settled_world(6, seed=3, settings={"engine": {"batch_interval_s": 0.2}, "optimiser": {"enabled": False}})
        self.world.submit(SOURCE.format(f"{self.world.nodes[1]},{self.world.nodes[2]}"))
        self.query = self.world.submit(WINDOWED)
        self.tail = self.world.tail(self.query)
        self.world.run_until(lambda: len(self.tail.rows) > 6)

    def agents(self) -> list[Agent]:
        return [agent for agent in self.world.agents if isinstance(agent, Agent)]

    def find(self, params: type) -> tuple[Agent, Instance]:
        """Returns the most downstream operator of this kind, and its host."""
        found = [(a, i) for a in self.agents() for i in a.execution.engine.instances.values() if isinstance(i.spec.params, params)]
        return max(found, key=lambda one: one[1].id)

    def elsewhere(self, *taken: Agent) -> Agent:
        """Returns an agent that is not among these."""
        return next(agent for agent in self.agents() if agent not in taken)

    def move(self, agent: Agent, operator: str, there: Agent) -> list[Any]:
        """Starts the migration of an operator; the returned list will get its record."""
        records: list[Any] = []
        self.world.run_until(lambda: agent.execution.migrations.may_migrate(operator), 30)
        agent.execution.migrations.migrate(operator, there.name, "tried by the test", records.append)
        return records


def until_the_rest_is_sent(overlay: Overlay, agent: Agent, operator: str) -> None:
    """Waits until the operator's whole state has been sent, and its new host has not answered yet."""
    leaving = agent.execution.migrations._leaving[operator]
    overlay.world.run_until(lambda: leaving.sending.machine._rest == [], 30)
    assert leaving.steps.phase is Phase.TRANSFERRING


@pytest.mark.parametrize("shared", [WindowParams, MapParams])
def test_a_query_that_comes_while_an_operator_is_on_its_way_has_its_rows_and_keeps_them(shared: type) -> None:
    overlay = Overlay()
    host, instance = overlay.find(shared)
    taker = overlay.elsewhere(host, *overlay.agents()[:3])
    held: list[Callable[..., None]] = []
    handle = host.dispatch.carry_out

    def late(sender: str, message: Message, respond: Callable[[Any], None]) -> None:
        if isinstance(message, Use) and message.operator == instance.id:
            held.extend((lambda: handle(sender, message, respond), respond))
        else:
            handle(sender, message, respond)

    host.dispatch.carry_out = late  # type: ignore[method-assign]
    replies: list[Any] = []
    taker.control(overlay.world.requests.make("submit", {"sql": WINDOWED}), replies.append)
    overlay.world.run_until(lambda: bool(held), 30, "it is to be shared")
    records = overlay.move(host, instance.id, overlay.elsewhere(host, taker))
    until_the_rest_is_sent(overlay, host, instance.id)
    host.dispatch.carry_out = handle  # type: ignore[method-assign]
    try:
        held[0]()
    except SbonError as problem:
        held[1](problem)  # as its connection would
    overlay.world.run_until(lambda: bool(records) and bool(replies) and replies[-1].final, 90)
    assert replies[-1].error is None, replies[-1].error

    tail = overlay.world.tail(replies[-1].result[-1]["query"], taker.name)
    overlay.world.run_until(lambda: len(tail.rows) >= 10, 60, "the newcomer has rows")
    overlay.world.ask(0, "drop", query=overlay.query)
    overlay.world.run(5.0)
    before = len(tail.rows)
    overlay.world.run_until(lambda: len(tail.rows) >= before + 30, 60, "it has them still, after the other has gone")


def test_what_an_operator_has_been_told_of_lost_inputs_moves_with_it_or_is_told_again() -> None:
    overlay = Overlay()
    host, window = overlay.find(WindowParams)
    there = overlay.elsewhere(host)
    link = next(link for link, incoming in window.inputs.items() if incoming.node != host.name)
    lost = InputLost(operator=window.id, link=link)
    host.dispatch.carry_out("any", lost, lambda result: None)
    records = overlay.move(host, window.id, there)
    until_the_rest_is_sent(overlay, host, window.id)
    with pytest.raises(LocalProtocolError):
        host.dispatch.carry_out("any", InputLost(operator=window.id, link=link, back=True), lambda result: None)
    overlay.world.run_until(lambda: bool(records), 30)
    assert records[0].committed
    with pytest.raises(LocalProtocolError):
        host.dispatch.carry_out("any", lost, lambda result: None)  # the operator has gone: the sender must not take this as acknowledged

    moved = there.execution.engine.instances[window.id]
    there.execution.operators.look_at_inputs(lambda node: False, lambda node: False)
    assert moved.inputs[link].lost
    answers: list[Any] = []
    there.dispatch.carry_out("any", InputLost(operator=window.id, link=link, back=True), answers.append)
    assert answers == [Done()]
    assert not moved.inputs[link].lost


def test_old_news_of_a_place_changes_nothing_at_either_end() -> None:
    overlay = Overlay()
    host, window = overlay.find(WindowParams)
    one, other = [agent for agent in overlay.agents() if agent is not host][:2]
    for here, there in ((host, one), (one, other)):
        records = overlay.move(here, window.id, there)
        overlay.world.run_until(lambda records=records: bool(records), 30)  # type: ignore[misc]
        assert records[0].committed
    overlay.world.run(2.0)

    def known(agent: Agent) -> list[str]:
        inputs = [i.node for o in agent.execution.engine.instances.values() for i in o.inputs.values() if i.link.source == window.id]
        outputs = [o.node for i in agent.execution.engine.instances.values() for o in i.outputs.values() if o.link.target == window.id]
        return inputs + outputs

    assert sum(len(known(agent)) for agent in overlay.agents()) >= 2
    for agent in overlay.agents():
        agent.dispatch.moved(window.id, one.name, 1)  # late news of the first move; the operator has moved twice since
        assert set(known(agent)) <= {other.name}


def test_nobody_takes_an_operator_back_before_all_know_that_it_has_left() -> None:
    """A neighbour that still sends to its old host would wake it before its return is decided."""
    overlay = Overlay()
    host, window = overlay.find(WindowParams)
    there = overlay.elsewhere(host)
    records = overlay.move(host, window.id, there)
    overlay.world.run_until(lambda: host.execution.migrations._leaving[window.id].steps.phase is Phase.COMMITTING, 30)
    prepare = Prepare(spec=window.spec, epoch=2, coordinator=there.name)
    with pytest.raises(MigrationError, match="not everyone has been told"):
        host.dispatch.carry_out(there.name, prepare, lambda result: None)

    overlay.world.run_until(lambda: bool(records), 30)
    answers: list[Any] = []
    host.dispatch.carry_out(there.name, prepare, answers.append)
    overlay.world.run_until(lambda: bool(answers), 30)
    assert answers == [Done()]


def test_a_lock_is_ended_by_who_holds_it_alone() -> None:
    """A late message of an old coordinator must not release the lock that the operator's new host holds."""
    overlay = Overlay()
    _, window = overlay.find(WindowParams)
    fed = {output.link.target for output in window.outputs.values()}
    agent, neighbour = next((a, operator) for a in overlay.agents() for operator in a.execution.engine.instances if operator in fed)
    lock = Lock(operator=window.id, neighbours=(neighbour,), coordinator="new", lease_s=100.0)
    agent.dispatch.carry_out("new", lock, lambda result: None)
    agent.dispatch.carry_out("old", Unlock(operator=window.id), lambda result: None)
    assert not agent.execution.migrations.may_be_rewired(neighbour)
    agent.dispatch.carry_out("new", Unlock(operator=window.id), lambda result: None)
    assert agent.execution.migrations.may_be_rewired(neighbour)


def test_a_promise_to_keep_still_is_bounded_and_binds_only_who_has_a_link_with_what_moves() -> None:
    overlay = Overlay()
    _, window = overlay.find(WindowParams)
    fed = {output.link.target for output in window.outputs.values()}
    agent, neighbour = next((a, operator) for a in overlay.agents() for operator in a.execution.engine.instances if operator in fed)
    longest = agent.config.migration.lease_s_max
    with pytest.raises(MigrationError, match=r"migration\.lease_s_max"):
        agent.dispatch.carry_out("new", Lock(window.id, (neighbour,), "new", longest + 1), lambda result: None)
    agent.dispatch.carry_out("new", Lock("of.another.0.1", (neighbour,), "new", longest), lambda result: None)
    assert agent.execution.migrations.may_be_rewired(neighbour)
    agent.dispatch.carry_out("new", Lock(window.id, (neighbour,), "new", longest), lambda result: None)
    assert not agent.execution.migrations.may_be_rewired(neighbour)
