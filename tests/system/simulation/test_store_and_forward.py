"""An uplink that is down for ten minutes loses no row and catches up in order; a too small, full or damaged disk is reported."""

from functools import cache
from typing import Any

import pytest

from sbon.errors import LocalProtocolError, SbonError
from sbon.links.sender import LinkSender
from sbon_testbed.backend import Tail
from sbon_testbed.simulator.case import Case
from sbon_testbed.simulator.disk import VirtualDisk
from sbon_testbed.simulator.faults.schedule import Faults
from sbon_testbed.simulator.harness import World
from tests.examples import seeds
from tests.worlds import settled_world

SOURCE = """
CREATE SOURCE readings (ts TIMESTAMP, key BIGINT, value DOUBLE, WATERMARK FOR ts AS ts) WITH (connector = 'datagen', nodes = '{}',
    rows_per_second = {}, event_rows_per_second = 20, rows = {}, seed = 1, 'start' = '2026-01-01T00:00:00');
"""
WIDE_SOURCE = f"""
CREATE SOURCE wide (number BIGINT, pad TEXT) WITH (connector = 'datagen', nodes = '{{}}', rows_per_second = 200, rows = {{}},
    fields.number.kind = 'sequence', fields.pad.kind = 'sequence', fields.pad.prefix = '{"x" * 200}');
"""
QUERY = "SELECT ts, key, value FROM readings WHERE key % 4 <> 1"
PAUSE_S = {"disks": 2.0, "partitions": 4.0, "one-way": 4.0}
"""Mean virtual seconds between two faults of each kind."""
RATE, OUTAGE_S = 20, 600
ROWS = RATE * (OUTAGE_S + 60)


def make_world(nodes: int = 2, seed: int = 1, interval_s: float = 0.25, *, heal: bool = True, **links: Any) -> World:
    settings = {
        "engine": {"batch_interval_s": interval_s, "heal": heal},
        "optimiser": {"enabled": False},
        "membership": {"interval_s": 1.0},
        "links": {"window_batches": 16, **links},
    }
    return settled_world(nodes, seed=seed, settings=settings)


def disk_of(world: World, number: int) -> VirtualDisk:
    return world.world.machines[number].disk


def flow_from(world: World, rows: int, rate: int = RATE) -> Tail:
    """Creates a source on the second node, and reads it at the first."""
    world.submit(SOURCE.format(world.nodes[1], rate, rows))
    return world.tail(world.submit(QUERY))


def operators(world: World, number: int) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = world.ask(number, "operators")
    return found


@cache
def undisturbed(rows: int) -> list[str]:
    world = make_world(1)
    world.submit(SOURCE.format(world.nodes[0], 10_000, rows))
    tail = world.tail(world.submit(QUERY))
    world.run_until(lambda: tail.finished)
    return list(map(str, tail.rows))


def senders(world: World, number: int) -> list[LinkSender]:
    agent: Any = world.agents[number]
    return [output.sender for instance in agent.execution.engine.instances.values() for output in instance.outputs.values()]


def test_an_uplink_that_is_dead_for_ten_minutes_loses_nothing_and_catches_up_in_order() -> None:
    world = make_world(interval_s=1.0, spill_bytes=64 << 20)
    tail = flow_from(world, ROWS)
    world.run(20)
    before = len(tail.rows)
    assert before > 0
    world.partition([[1]])
    world.run(OUTAGE_S)
    assert len(tail.rows) - before <= RATE * 2
    assert disk_of(world, 1).used_bytes > 100_000
    assert max(sender.memory_batches for sender in senders(world, 1)) <= 17
    assert all(operator["state"] == "running" for operator in operators(world, 1))
    world.heal()
    world.run_until(lambda: tail.finished, 300)
    assert list(map(str, tail.rows)) == undisturbed(ROWS)
    assert not disk_of(world, 1).files
    world.close()


def test_when_the_disk_budget_ends_the_source_waits_and_says_why() -> None:
    rows = 12_000
    world = make_world(spill_bytes=1 << 20, spill_after_s=0.5)
    world.submit(WIDE_SOURCE.format(world.nodes[1], rows))
    tail = world.tail(world.submit("SELECT number, pad FROM wide"))
    world.run(5)
    world.partition([[1]])
    world.run(60)
    given = [operator["rows_out"] for operator in operators(world, 1)]
    world.run(60)
    assert [operator["rows_out"] for operator in operators(world, 1)] == given, "the source must not continue"
    assert 0.9 * 2**20 < disk_of(world, 1).peak_bytes <= 2**20
    assert max(sender.memory_batches for sender in senders(world, 1)) <= 18
    blocked = [operator for operator in operators(world, 1) if operator["state"] == "blocked"]
    assert blocked
    assert any("spill budget of 1 MiB (links.spill_bytes) is used up" in operator["reason"] for operator in blocked)
    world.heal()
    world.run_until(lambda: tail.finished, 300)
    assert [row[0] for row in tail.rows] == list(range(rows))
    assert not disk_of(world, 1).files
    world.close()


@pytest.mark.parametrize("seed", seeds(range(1), range(1, 3)))
def test_a_slow_full_or_failing_disk_and_a_flapping_uplink_lose_and_repeat_nothing(seed: int) -> None:
    rows = 4_000
    window_batches = 1 + seed * 5 % 11
    world = make_world(seed=seed, spill_bytes=1 << 20, spill_after_s=0.2, window_bytes=20_000, window_batches=window_batches)
    tail = flow_from(world, rows, rate=100)
    disk = disk_of(world, 1)
    faults = Faults(Case(world, seed), PAUSE_S, PAUSE_S)
    faults.begin()
    faults.run(100.0)
    faults.calm()
    world.run_until(lambda: tail.finished, 300)
    assert list(map(str, tail.rows)) == undisturbed(rows), f"seed {seed}"
    assert disk.bytes_written > 0
    assert not disk.files
    world.close()


def test_damaged_files_fail_the_operator_rather_than_give_wrong_rows() -> None:
    rows = 2_000
    world = make_world(spill_bytes=1 << 20, spill_after_s=0.2)
    tail = flow_from(world, rows, rate=100)
    world.run(2)
    world.partition([[1]])
    world.run(15)
    for content in disk_of(world, 1).files.values():
        content[len(content) // 2] ^= 1
    world.heal()
    world.run(30)
    failed = [operator for operator in operators(world, 1) if operator["state"] == "failed"]
    assert len(failed) == 1
    assert "checksum" in failed[0]["reason"]
    assert not tail.finished
    expected = undisturbed(rows)
    assert list(map(str, tail.rows)) == expected[: len(tail.rows)]
    world.close()


def test_files_go_with_the_query_and_with_the_agent() -> None:
    world = make_world(spill_bytes=1 << 20, spill_after_s=0.2)
    tail = flow_from(world, 100_000, rate=100)
    world.run(2)
    world.partition([[1]])
    world.run(15)
    disk = disk_of(world, 1)
    assert disk.files
    world.kill(1)
    assert disk.files, "a killed agent leaves its files behind"
    disk.append("notes.txt", [b"not ours"])
    world.heal()
    world.start(1)
    assert disk.names() == ["notes.txt"]
    world.settle()
    assert not tail.finished
    world.close()


def test_a_query_that_ends_while_a_batch_is_being_worked_on_leaves_nothing_behind() -> None:
    """No query needs the rows of that batch any more: on disk they would use the budget for as long as the agent runs."""
    world = make_world(spill_bytes=1 << 20, spill_after_s=0.0, window_batches=2)
    world.submit(SOURCE.format(world.nodes[1], RATE, ROWS))
    query = world.submit(QUERY)
    agent: Any = world.agents[1]
    world.run(2)
    world.partition([[1]])
    world.run_until(lambda: disk_of(world, 1).used_bytes > 0, 60)

    def gives_more() -> bool:
        """Tells whether a batch is on a thread and its result will be written to disk."""
        busy = [i for i in agent.execution.operators.instances.values() if i.task is not None]
        given = [o.sender for i in busy for o in i.outputs.values() if o.node != agent.name]
        return any(sender.on_disk and sender.backlog._busy is None and sender.has_credit for sender in given)

    world.run_until(gives_more, 60)
    agent.execution.operators.release(query)
    world.run(5)
    assert not agent.execution.operators.instances
    assert not disk_of(world, 1).files
    assert agent.execution.flow.outgoing.spilling.budget.used_bytes == 0
    world.close()


def test_an_operator_whose_output_is_on_disk_stays_where_it_is() -> None:
    world = make_world(3, spill_bytes=1 << 20, spill_after_s=0.2)
    world.submit(SOURCE.format(world.nodes[1], 100, 100_000))
    world.submit("SELECT window_end, key, count(*) AS n FROM TUMBLE(readings, ts, INTERVAL '1 second') GROUP BY window_end, key")
    world.run(2)
    agent: Any = world.agents[1]
    leading_away = [
        name
        for name, instance in agent.execution.engine.instances.items()
        if instance.movable and any(output.node != world.nodes[1] for output in instance.outputs.values())
    ]
    assert len(leading_away) == 1
    assert agent.execution.migrations.may_migrate(leading_away[0])
    world.partition([[1, 2]])
    world.run(15)
    assert disk_of(world, 1).files
    assert not agent.execution.migrations.may_migrate(leading_away[0])
    told = next(operator for operator in operators(world, 1) if operator["id"] == leading_away[0])
    assert "are on disk; it stays here until they are delivered" in told["reason"]
    with pytest.raises(SbonError, match=rf"cannot move to {world.nodes[2]} now: \d+ batches for .* on {world.nodes[0]} are on disk"):
        world.ask(1, "migrate", operator=leading_away[0], node=world.nodes[2])
    taken: list[object] = []
    agent.execution.engine.rest(agent.execution.operators.known(leading_away[0]), taken.append)
    world.run(1)
    assert taken.pop() is None
    agent.execution.engine.snapshot(agent.execution.operators.known(leading_away[0]), taken.append)
    world.run(1)
    assert isinstance(taken[0], LocalProtocolError)
    assert "on disk" in str(taken[0])
    world.close()


def test_a_consumer_that_is_away_for_long_costs_the_others_nothing_and_gets_all_rows() -> None:
    rows = 260 * RATE
    world = make_world(3, interval_s=1.0, spill_bytes=64 << 20)
    world.submit(SOURCE.format(world.nodes[1], RATE, rows))
    world.run(30)  # until all agents know of the failure
    tails = [world.tail(world.submit(QUERY, at=node), node) for node in (0, 2)]
    world.run(20)
    world.partition([[0]])
    world.run(200)
    away, here = (len(tail.rows) for tail in tails)
    assert here > away + 100 * RATE // 2, "the available consumer must not wait for the unavailable one"
    world.heal()
    world.run_until(lambda: all(tail.finished for tail in tails), 300)
    assert list(map(str, tails[0].rows)) == undisturbed(rows)
    # The second query joined while rows flowed: it has all rows from its first on.
    late = list(map(str, tails[1].rows))
    assert late
    assert late == undisturbed(rows)[-len(late) :]
    world.close()


def test_an_operator_that_is_lost_for_good_fills_no_disk() -> None:
    world = make_world(3, heal=False, spill_bytes=1 << 20, spill_after_s=0.2)
    world.submit(SOURCE.format(world.nodes[1], 100, 100_000))
    world.run(20)
    sql = "CREATE SINK gone FROM (SELECT key FROM readings) WITH (connector = 'discard', node = '{}')"
    world.submit(sql.format(world.nodes[0]), at=2)
    world.run(5)
    world.restart(0)
    world.run(40)
    written = disk_of(world, 1).bytes_written
    world.run(60)
    assert disk_of(world, 1).bytes_written == written
    assert any(operator["state"] == "blocked" for operator in operators(world, 1))
    world.close()
