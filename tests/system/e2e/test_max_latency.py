"""Latency bounds on real agents: an impossible bound is refused with the prediction from measured costs; a possible bound is kept."""

import re

import pytest

from sbon.errors import SbonError
from tests.processes import Process, two_agents, wait_until

SOURCE = """CREATE SOURCE readings (ts TIMESTAMP, key BIGINT, value DOUBLE, WATERMARK FOR ts AS ts)
WITH (connector = 'datagen', nodes = 'ams', rows_per_second = 500, fields.key.min = 0, fields.key.max = 9);"""
QUERY = """CREATE SINK {name} AS SELECT window_end, key, count(*) AS n FROM TUMBLE(readings, ts, INTERVAL '1 second') WHERE value > 0.2
GROUP BY window_end, key WITH (connector = 'discard', node = 'nyc'{bound});"""


agents = pytest.fixture(two_agents)


def test_an_impossible_bound_is_refused_with_the_predicted_figure_and_a_possible_one_is_kept(agents: tuple[Process, Process]) -> None:
    """Rows wait up to 10 ms at their source for their batch, so no machine keeps 2 ms. A bound of a minute holds under any load."""
    _, nyc = agents
    nyc.ask("submit", sql=SOURCE + QUERY.format(name="free", bound=""))

    def costs_are_measured() -> bool:
        found = nyc.ask("explain", sql=QUERY.format(name="asked", bound=""))["prediction"]["operators"]
        return bool(found["measured"] > 0 and found["rule"] <= 1)  # every sink is new

    wait_until(costs_are_measured)
    with pytest.raises(SbonError) as refused:
        nyc.ask("submit", sql=QUERY.format(name="impossible", bound=", max_latency = '2 ms'"))
    nyc.ask("submit", sql=QUERY.format(name="possible", bound=", max_latency = '60 s'"))

    said = str(refused.value)
    predicted = re.search(r"max_latency = 2 ms cannot be kept: .*?([\d.]+) ms", said)
    assert predicted is not None, said
    assert float(predicted[1]) > 2
    what_would_help = said.rpartition("; ")[2]
    assert re.match(
        r"ask for \d+ ms, or (use fewer rows, or a faster node than (ams|nyc)$|give the nodes|bring sources)", what_would_help
    ), said
    rows = {row["name"]: row for row in nyc.ask("queries")}
    assert "impossible" not in rows
    assert rows["possible"]["max_latency_ms"] == 60_000.0

    def has_been_measured() -> bool:
        rows.update({row["name"]: row for row in nyc.ask("queries")})
        told = rows["possible"]["prediction"]
        return told is not None and told["measured"] is not None and told["measured"]["rows"] > 0

    wait_until(has_been_measured)
    told = rows["possible"]["prediction"]
    assert not told["rests_on_rules"]
    assert told["worst_high_ms"] <= 60_000.0
    assert told["measured"]["max_ms"] <= 60_000.0
    assert rows["possible"]["state"] == "running"
