"""A sink whose far end accepts nothing holds back all operators before it, reports that, and continues where it stopped."""

from typing import Any

from sbon.connectors.interface import Congested
from tests.worlds import settled_world

SOURCE = """
CREATE SOURCE readings (ts TIMESTAMP, key BIGINT, value DOUBLE, WATERMARK FOR ts AS ts) WITH (connector = 'datagen', nodes = '{}',
    rows_per_second = 'max', rows = 40000, batch_rows_max = 500, seed = 1, 'start' = '2026-01-01T00:00:00');
"""


class Gate:
    """A sink whose far end can be shut."""

    def __init__(self, sink: Any) -> None:
        self._sink = sink
        self.shut = True

    def write(self, frame: Any) -> None:
        if self.shut:
            raise Congested("the peer reads too slowly")
        self._sink.write(frame)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sink, name)


def test_everything_behind_a_stalled_sink_waits_in_bounded_memory_and_nothing_is_lost() -> None:
    world = settled_world(2, seed=1, settings={"links": {"window_batches": 8}, "optimiser": {"enabled": False}})
    world.submit(SOURCE.format(world.nodes[1]))
    query = world.submit("SELECT key, value FROM readings")
    agents: Any = world.agents
    sink = next(instance for instance in agents[0].execution.engine.instances.values() if instance.sink is not None)
    tail, gate = sink.sink, Gate(sink.sink)
    sink.sink = gate
    world.run(20)
    before = [operator["rows_in"] for number in (0, 1) for operator in world.ask(number, "operators")]
    held = [o.sender for agent in agents for i in agent.execution.engine.instances.values() for o in i.outputs.values()]
    assert max(sender.memory_batches for sender in held) <= 9
    assert max(len(i.queue) for agent in agents for o in agent.execution.engine.instances.values() for i in o.inputs.values()) <= 9
    world.run(20)
    assert [operator["rows_in"] for number in (0, 1) for operator in world.ask(number, "operators")] == before
    told = {operator["id"]: (operator["state"], operator["reason"]) for number in (0, 1) for operator in world.ask(number, "operators")}
    assert told[sink.id] == ("stalled", "the peer reads too slowly")
    assert {state for state, _ in told.values()} == {"stalled", "blocked"}
    assert all("takes no more" in reason for state, reason in told.values() if state == "blocked")
    gate.shut = False
    sink.sink = tail
    watched = world.tail(query)
    world.run_until(lambda: watched.finished, 120)
    assert sum(i.figures.rows_in for i in (sink,)) == 40_000
    assert watched.rows
    world.close()
