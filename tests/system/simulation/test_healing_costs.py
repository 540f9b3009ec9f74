"""The cost of healing without faults is bounded, and so is what waits for a lost operator."""

from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import pytest

from sbon.peers import directory
from sbon.supervision.ownership import Ownership
from sbon.wire.deployment import Renew, Renewed
from sbon.wire.links import Acknowledge
from sbon.wire.messages import Message
from sbon.wire.replication import Unwanted, WantedAsk
from sbon_agent import dispatch
from tests.worlds import settled_world

CALM = """
CREATE SOURCE s (ts TIMESTAMP, k BIGINT, v DOUBLE, WATERMARK FOR ts AS ts)
    WITH (connector = 'datagen', nodes = '{}', rows_per_second = 50, seed = 1, 'start' = '2026-01-01T00:00:00', fields.k.max = 9);
SELECT window_end, k, avg(v) AS v FROM TUMBLE(s, ts, INTERVAL '5 seconds') WHERE v > 0 GROUP BY window_end, k
"""
CALM_S = 30.0
BYTES_PER_S_MAX = 200.0


class Wire:
    """Counts the messages between agents by kind, and those that recovery has added."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.bytes: Counter[str] = Counter()
        self.added: Counter[str] = Counter()
        plain = directory.encode

        def counting(message: Message) -> bytes:
            data = plain(message)
            self.bytes[type(message).__name__] += len(data)
            if isinstance(message, WantedAsk | Unwanted | Renew | Renewed):
                self.added[type(message).__name__] += len(data)
            if isinstance(message, Acknowledge):
                self.added["made"] += len(msgspec.msgpack.encode("made") + msgspec.msgpack.encode(message.made))
            return data

        monkeypatch.setattr(directory, "encode", counting)
        monkeypatch.setattr(dispatch, "encode", counting)


def calm(heal: bool, folder: Path) -> int:
    """Runs a query without faults; returns the bytes that agents have sent meanwhile, after the start."""
    settings = {"optimiser": {"enabled": False}, "telemetry": {"enabled": False}, "engine": {"heal": heal}}
    world = settled_world(4, seed=2, data_dir=folder, settings=settings)
    query = world.submit(CALM.format(world.nodes[1]))
    world.run(20.0)
    before = world.counters()
    world.run(CALM_S)
    after = world.counters()
    assert world.agents[0].queries.owned.find(query).row(None)["state"] == "running"  # type: ignore[union-attr]
    world.close()
    return sum(after[name] - before[name] for name in ("stream_bytes", "datagram_bytes"))


def test_a_calm_query_pays_little_for_being_healed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wire = Wire(monkeypatch)
    healed = calm(True, tmp_path / "on")
    added, said = sum(wire.added.values()) / CALM_S, dict(wire.added)
    plain = calm(False, tmp_path / "off")

    print(f"messages of recovery: {added:.0f} bytes/s {said}; on - off: {(healed - plain) / CALM_S:.0f} bytes/s of {plain / CALM_S:.0f}")
    assert set(said) >= {"WantedAsk", "Unwanted", "made"}, "the messages to count must occur"
    assert not {"Renew", "Renewed"} & set(said), "nothing was lost"
    assert added <= BYTES_PER_S_MAX
    assert (healed - plain) / CALM_S <= BYTES_PER_S_MAX


FAST = """
CREATE SOURCE readings (ts TIMESTAMP, key BIGINT, value DOUBLE, WATERMARK FOR ts AS ts) WITH (connector = 'datagen', nodes = '{}',
    rows_per_second = 2000, rows = 60000, seed = 1, 'start' = '2026-01-01T00:00:00');
CREATE SINK k AS SELECT key, value FROM readings WHERE value IS NOT NULL WITH (connector = 'file', path = 'k.csv', node = '{}')
"""
WINDOW_BATCHES = 8


def most_held(world: Any) -> tuple[int, int]:
    """Returns the most batches that wait at one sender in memory, and at one input, anywhere."""
    instances = [one for agent in world.agents if agent is not None for one in agent.execution.engine.instances.values()]
    sent = [output.sender.memory_batches for one in instances for output in one.outputs.values()]
    queued = [len(incoming.queue) for one in instances for incoming in one.inputs.values()]
    return max(sent, default=0), max(queued, default=0)


def test_what_waits_for_a_lost_operator_is_bounded_and_holds_its_source_back(tmp_path: Path) -> None:
    """A lost operator holds its source back as a slow one does: at most the window of the link waits, however long its node is away."""
    settings = {"links": {"window_batches": WINDOW_BATCHES}, "optimiser": {"enabled": False}, "telemetry": {"enabled": False}}
    world = settled_world(4, seed=1, data_dir=tmp_path, settings=settings)
    source, sink = world.nodes[1], world.nodes[2]
    query = world.submit(FAST.format(source, sink))
    record = world.agents[0].queries.owned.find(query)
    assert record is not None
    made = next(iter(record.specs))
    file = world.data_dir_of(2) / "files" / "k.csv"

    def rows() -> int:
        return file.read_bytes().count(b"\n") - 1 if file.exists() else 0

    world.run_until(lambda: bool(record.health.healing.begun_at) and rows() > 2000, 60.0, "rows arrive, and it is known where they begin")
    world.kill(2, silent=True)
    held: list[tuple[int, int]] = []
    given: list[int] = []
    for _ in range(100):
        world.run(0.2)
        held.append(most_held(world))
        given.append(next(one["rows_out"] for one in world.ask(1, "operators") if one["id"] == made))
    assert given[-1] == given[25], "the source must stop once the windows are full"
    assert given[-1] - rows() <= 2 * (WINDOW_BATCHES + 1) * 1000
    world.start(2)
    for _ in range(400):
        world.run(0.05)
        held.append(most_held(world))
    sent, queued = (max(numbers) for numbers in zip(*held, strict=True))
    assert 0 < sent <= WINDOW_BATCHES + 1
    assert queued <= WINDOW_BATCHES + 1
    world.run_until(lambda: rows() == 60_000, 120.0, "all rows arrive")
    assert len(set(file.read_text().splitlines())) == len(file.read_text().splitlines())
    world.close()


@pytest.mark.parametrize("queries", [0, 2])
def test_agents_look_for_owners_only_at_their_interval_while_all_is_calm(
    queries: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Timers for records that did not exist used to cost an idle agent a third of its processor time, and 0.05 % of a processor a query."""
    looks: Counter[Ownership] = Counter()
    plain = Ownership.look_at_all

    def counting(ownership: Ownership) -> None:
        looks[ownership] += 1
        plain(ownership)

    monkeypatch.setattr(Ownership, "look_at_all", counting)
    settings = {"telemetry": {"enabled": False}, "engine": {"heal": True, "take_over": True}}
    world = settled_world(3, seed=2, data_dir=tmp_path, settings=settings)
    for number in range(queries):
        world.submit(f"SELECT cpu FROM sys.load WHERE cpu > {number}", at=number)
    world.run(5.0)
    looks.clear()
    world.run(10 * world.agents[0].config.engine.report_interval_s)
    world.close()
    assert len(looks) == 3
    assert max(looks.values()) <= 11
