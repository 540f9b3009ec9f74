"""Links compress their batches on slow lines only; the rows that arrive are the same."""

from typing import Any

import pytest

from sbon_testbed.simulator.harness import World
from sbon_testbed.simulator.network import NetworkConfig
from tests.worlds import settled_world

ROWS = 120_000


def link_of(world: World) -> dict[str, Any]:
    """Returns the only link from the source's host to the sink's."""
    found = [link for operator in world.ask(1, "operators") for link in operator["links"] if link["node"] == world.nodes[0]]
    assert len(found) == 1
    link: dict[str, Any] = found[0]
    return link


@pytest.mark.parametrize(
    ("bandwidth", "compression", "codec"),
    [(100_000, "auto", "zstd"), (0, "auto", "none"), (100_000, "none", "none"), (0, "lz4", "lz4")],
    ids=["slow", "fast", "slow but told not to", "fast but told to"],
)
def test_a_link_packs_what_its_line_asks_for(bandwidth: int, compression: str, codec: str) -> None:
    settings = {"optimiser": {"enabled": False}, "links": {"compression": compression}}
    # A stream buffers the bytes in transit, as a kernel does; with a smaller buffer a long path would look like a slow line.
    network = NetworkConfig(bandwidth_bytes_per_s=bandwidth, stream_buffer_bytes=1 << (18 if bandwidth else 25))
    world = settled_world(2, seed=1, settings=settings, network=network)
    source = f"""
    CREATE SOURCE readings (ts TIMESTAMP, key BIGINT, value BIGINT, WATERMARK FOR ts AS ts) WITH (connector = 'datagen',
        nodes = '{world.nodes[1]}', rows_per_second = 'max', rows = {ROWS}, batch_rows_max = 2000, fields.key.max = 9,
        fields.value.kind = 'sequence', event_rows_per_second = 1000, 'start' = '2026-01-01T00:00:00');
    """
    world.submit(source)
    query = world.submit("CREATE SINK all_rows FROM (SELECT ts, key, value FROM readings) WITH (connector = 'discard')")
    sinks: list[dict[str, Any]] = []

    def arrived() -> bool:
        sinks[:] = [operator for operator in world.ask(0, "operators") if operator["kind"] == "sink"]
        return bool(sinks) and sinks[0]["rows_in"] == ROWS

    world.run_until(arrived, timeout_s=120.0)
    link = link_of(world)
    assert query
    assert link["codec"] == codec
    assert (link["packed_ratio"] < 0.7) is (codec != "none")
    assert sinks[0]["received"] == [{"id": link["id"], "rows": ROWS}]
    assert world.ask(0, "status")["counters"]["frames_bad"] == 0
