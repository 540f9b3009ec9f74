"""Batches carry their path: source and operators, whatever their hosts."""

import pytest

from sbon.delivery.flow import Flow
from sbon.links.batch import way
from tests.worlds import settled_world

SOURCE = """
CREATE SOURCE {name} (ts TIMESTAMP, value DOUBLE, WATERMARK FOR ts AS ts) WITH (connector = 'datagen', nodes = '{node}', seed = {seed},
    rows_per_second = 50, rows = 100, 'start' = '2026-01-01T00:00:00');
"""


def test_what_two_sources_send_to_another_host_came_by_two_ways(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: dict[str, set[int]] = {}
    receive = Flow.receive

    def watched(self, message, node, reply) -> None:
        if message.rows:
            seen.setdefault(message.link, set()).add(message.path)
        receive(self, message, node, reply)

    monkeypatch.setattr(Flow, "receive", watched)
    world = settled_world(3, seed=5, settings={"optimiser": {"enabled": False}})
    sources = "".join(SOURCE.format(name=f"s{number}", node=world.nodes[number], seed=number) for number in (1, 2))
    query = world.submit(f"{sources} SELECT ts, value FROM s1 WHERE value > 0.5 UNION ALL SELECT ts, value FROM s2 WHERE value > 0.5;")
    tail = world.tail(query)
    world.run_until(lambda: tail.finished)

    plan = [instance for agent in world.agents for instance in agent.execution.engine.instances.values()]
    feeds = {link: instance for instance in plan for link in instance.outputs}
    assert len(tail.rows) > 50
    assert len(set().union(*seen.values())) >= 2
    for link, paths in seen.items():
        operator = feeds[link]
        before = [way(0, incoming.link.source) for incoming in operator.inputs.values()] or [0]
        assert paths <= {way(path, operator.id) for path in before}
