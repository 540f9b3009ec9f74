"""Steps of stories in which a query reads files and writes a file while its hosts crash at random moments."""

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from sbon.supervision.record import QueryRecord, QueryState
from sbon.types import NodeId, OperatorId
from sbon_agent.node import Agent
from sbon_testbed.simulator.harness import World
from tests.worlds import QUIET

HOME = 0
SETTINGS: dict[str, Any] = {**QUIET, "telemetry": {"enabled": False}, "engine": {"batch_interval_s": 0.1}}
"""Settings of the agents; the settings of links are left to each story."""
UNNEST = "SELECT s.v, t.item FROM s, UNNEST(s.items) AS t(item)"


def read_files(world: World, items: Mapping[int, Mapping[int, Sequence[int]]], per_second: int = 20) -> None:
    """Creates the source `s` with columns ts, v and items, of a file on each of several hosts.

    Parameters
    ----------
    items : number of a host -> v -> `items` of the row, in order
    """
    for number, rows in items.items():
        path = world.data_dir_of(number) / "files" / "s.ndjson"
        path.parent.mkdir(parents=True)
        times = (f"2026-01-01T00:00:{i // per_second:02d}.{i % per_second * 1_000 // per_second:03d}" for i in range(len(rows)))
        lines = (json.dumps({"ts": ts, "v": v, "items": list(of_v)}) for ts, (v, of_v) in zip(times, rows.items(), strict=True))
        path.write_text("".join(f"{line}\n" for line in lines))
    world.submit(
        "CREATE SOURCE s (ts TIMESTAMP, v BIGINT, items BIGINT[], WATERMARK FOR ts AS ts) WITH "
        f"(connector = 'file', path = 's.ndjson', nodes = '{', '.join(world.nodes[n] for n in items)}', replay = 'event_time')"
    )
    world.run(3.0)


def write_file(world: World, name: str, sql: str, node: int, options: str = "") -> QueryRecord:
    """Begins a query that writes its rows into a file."""
    query = world.submit(
        f"CREATE SINK {name} AS {sql} WITH (connector = 'file', path = '{name}.csv', node = '{world.nodes[node]}'{options})"
    )
    home = world.agents[HOME]
    assert isinstance(home, Agent)
    record = home.queries.owned.find(query)
    assert record is not None
    return record


def written(world: World, name: str, node: int) -> list[tuple[int, ...]]:
    """Returns the rows of numbers in the file of a sink."""
    file = next(world.data_dir_of(node).rglob(f"{name}.csv"))
    return [tuple(map(int, line.split(","))) for line in file.read_text().splitlines()[1:]]


def the_movable(record: QueryRecord) -> OperatorId:
    """Returns the only operator of a query that may move."""
    [operator] = [one for one, spec in record.specs.items() if spec.pinned is None]
    return operator


def may_move(world: World, node: NodeId, operator: OperatorId) -> bool:
    """Tells whether an operator on a host may move now."""
    host = world.agents[world.nodes.index(node)]
    return isinstance(host, Agent) and host.execution.migrations.may_migrate(operator)


def moved(world: World, record: QueryRecord, operator: OperatorId, rng: np.random.Generator, spared: Collection[int]) -> int | None:
    """Moves an operator to a random host that is not spared, and returns the host's number; None if the operator has not moved."""
    here = world.nodes.index(record.nodes[operator])
    there = next(int(n) for n in rng.permutation(len(world.nodes)) if n not in spared and n != here and world.agents[n] is not None)
    return there if world.ask(here, "migrate", operator=operator, node=world.nodes[there])["committed"] else None


def cut(world: World, number: int, others: Iterable[int]) -> None:
    """Cuts a host off from others, both ways."""
    for other in others:
        world.world.network.cut(number, other)
        world.world.network.cut(other, number)


def crash(world: World, record: QueryRecord, number: int, rng: np.random.Generator, within_s: float, *, comes_back: bool = False) -> None:
    """Kills a host that is cut off, or was until just now, and waits until its operator runs again.

    Parameters
    ----------
    comes_back : True: the host always starts again; False: in half of the cases
    """
    account, before = record.health.healing.account, record.health.healing.account.recoveries
    if rng.random() < 0.5:
        world.heal()
        world.run(float(rng.uniform(0.0, 0.3)))
    world.kill(number, silent=bool(rng.integers(2)))
    world.heal()
    if comes_back or rng.random() < 0.5:
        world.run(float(rng.uniform(0.2, 3.0)))
        world.start(number)
    world.run_until(lambda: account.recoveries > before or record.state is QueryState.FINISHED, within_s, "it runs again")


def sometimes_restart(world: World, numbers: Sequence[int], rng: np.random.Generator, calm_s: float = 0.0) -> None:
    """Kills one of the hosts and starts it again, in three of ten cases.

    Parameters
    ----------
    calm_s : longest random pause afterwards
    """
    if rng.random() < 0.3:
        number = int(rng.choice(numbers))
        world.kill(number, silent=bool(rng.integers(2)))
        world.run(float(rng.uniform(0.2, 3.0)))
        world.start(number)
        if calm_s:
            world.run(float(rng.uniform(0.0, calm_s)))


def of_owner(world: World, record: QueryRecord) -> QueryRecord:
    """Returns the record that the query's present owner has: another agent may have taken the query over."""
    agents = {agent.name: agent.queries.owned for agent in world.agents if isinstance(agent, Agent)}
    owner = max((owned.register.owners.of(record.id) for owned in agents.values()), key=lambda one: one.epoch)
    found = agents[owner.name].find(record.id) if owner.name in agents else None
    return record if found is None else found


def finish(world: World, record: QueryRecord, timeout_s: float = 120.0) -> QueryRecord:
    """Waits until a query has given all its rows; returns the record of its owner."""
    world.run_until(lambda: of_owner(world, record).state is QueryState.FINISHED, timeout_s, "the query ends")
    return of_owner(world, record)
