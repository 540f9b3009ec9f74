"""Agents of this release together with agents of a later one, which also speaks another version of the protocol."""

from pathlib import Path

import pytest

from sbon.handshake import Versions
from sbon_testbed.simulator.harness import World

LATER = Versions(2, 3)
SOURCE = """
CREATE SOURCE numbers (ts TIMESTAMP, i BIGINT)
WITH (connector = 'datagen', nodes = '{node}', rows_per_second = 10, fields.i.kind = 'sequence')
"""


def start(world: World, spoken: list[Versions], monkeypatch: pytest.MonkeyPatch) -> None:
    for number, versions in enumerate(spoken):
        with monkeypatch.context() as patch:
            patch.setattr("sbon.peers.peers.SPOKEN", versions)
            world.start(number)
        world.run(0.5)


def test_a_later_release_joins_an_overlay_of_this_one_and_runs_queries_with_it(monkeypatch, tmp_path):
    world = World(4, seed=3, sealed=True)
    start(world, [Versions(2, 2), LATER, LATER, Versions(2, 2)], monkeypatch)
    world.settle()
    world.submit(SOURCE.format(node=world.nodes[1]), at=1)
    world.run(2)
    for at in range(4):
        rows = world.rows(world.submit("SELECT ts, i FROM numbers WHERE i >= 0", at=at), at=at, count=20)
        assert len(rows) >= 20
    spoken = {
        (number, connection.node): connection.version
        for number, agent in enumerate(world.agents)
        for connection in agent.network.peers._connections
        if connection.is_ready
    }
    later = {world.nodes[1], world.nodes[2]}
    assert spoken
    assert all(version == (3 if number in (1, 2) and node in later else 2) for (number, node), version in spoken.items())
    assert 3 in spoken.values()


def test_a_release_without_a_common_version_is_told_both_ranges(monkeypatch, tmp_path):
    log = Path(tmp_path / "agents.log")
    world = World(2, seed=3, sealed=True, log_file=log)
    start(world, [Versions(2, 2), Versions(3, 4)], monkeypatch)
    world.run(5)
    world.close()
    said = log.read_text()
    assert "peer speaks protocol version 2, this agent versions 3 to 4" in said
    assert "peer speaks protocol versions 3 to 4, this agent version 2" in said
