"""The `tcp` connector in virtual time: rows pass from a program outside to another one, and what faults cost is what the documents say."""

from collections.abc import Iterator
from typing import Any

import pytest

from sbon.connectors.outside import KEEPALIVE_IDLE_S, KEEPALIVE_PROBES, KEEPALIVE_S
from tests.system.simulation.tcp_story import FAULTS, SINK, SOURCE, TcpStory


@pytest.fixture
def story(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    made: list[TcpStory] = []

    def make(seed: int, **modes: bool) -> TcpStory:
        made.append(TcpStory(seed, monkeypatch, **modes))
        return made[-1]

    yield make
    for one in made:
        one.world.close()


@pytest.mark.parametrize("seed", [*range(8), 123])
def test_random_faults_lose_what_the_documents_say_and_nothing_else(story: Any, seed: int) -> None:
    told = story(seed)
    told.run(2.0)
    for kind in told.rng.choice(FAULTS, 4):
        told.fault(kind)
        told.run(float(told.rng.uniform(0.3, 2.0)))
    told.finish()
    told.expect_guarantees()


@pytest.mark.parametrize("listens", [False, True])
def test_a_reader_that_stops_holds_up_the_writer_at_the_other_end_and_nothing_is_lost(story: Any, listens: bool) -> None:
    told = story(1, source_listens=listens, sink_listens=listens)
    told.run(2.0)
    told.collector.stream.pause()
    told.world.run_until(lambda: told.feeder.waits, 60.0, "the feeder is held up")
    told.run(5.0)
    before = told.feeder.next
    assert told.feeder.waits
    assert told.connector(SOURCE)._paused
    assert told.connector(SINK)._held_bytes
    told.run(5.0)
    assert told.feeder.next == before
    told.collector.stream.resume()
    told.finish()
    told.expect_guarantees()
    assert told.arrived_numbers() == [number for number in range(told.feeder.last + 1) if number % 3]


@pytest.mark.parametrize("listens", [False, True])
def test_a_source_notices_that_its_peer_has_gone_though_it_never_writes(story: Any, listens: bool) -> None:
    """The peer's end breaks while the path is cut, and nothing tells the source."""
    told = story(1, source_listens=listens)
    told.run(2.0)
    (gone,) = told.connector(SOURCE)._endpoint.connections
    told.world.partition([[3]])
    told.run(10.0)
    told.world.heal()
    assert told.connector(SOURCE)._endpoint.connections == [gone]
    told.run(KEEPALIVE_IDLE_S + KEEPALIVE_PROBES * KEEPALIVE_S)
    assert gone not in told.connector(SOURCE)._endpoint.connections
    told.finish()
    told.expect_guarantees()
