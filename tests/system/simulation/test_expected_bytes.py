"""Compares the bytes that `explain` expects on a link with those measured, in virtual time."""

import pytest

from tests.worlds import settled_world

SOURCE = """
CREATE SOURCE readings (ts TIMESTAMP, symbol TEXT, price DOUBLE, WATERMARK FOR ts AS ts) WITH (connector = 'datagen', nodes = '{node}',
rows_per_second = {rate}, seed = 5, fields.symbol.kind = 'zipf', fields.symbol.count = 5)
"""
QUERY = "SELECT ts, symbol, price FROM readings"


@pytest.mark.parametrize("rate", [20, 1_000])
def test_a_link_carries_about_what_explain_expects(rate: int) -> None:
    """They agree within a quarter if a source gives 100 batches a second; the engine estimates the bytes of a batch within a tenth."""
    world = settled_world(2, seed=3, settings={"optimiser": {"enabled": False}, "engine": {"batch_interval_s": 0.01}})
    world.submit(SOURCE.format(node=world.nodes[1], rate=rate))
    (expected,) = world.ask(0, "explain", sql=QUERY)["links"]
    world.submit(QUERY)
    world.run(8)
    (sent,) = (link for operator in world.ask(1, "operators") for link in operator["links"])
    assert sent["bytes_per_s"] == pytest.approx(expected["rate_bytes_per_s"], rel=0.25)
