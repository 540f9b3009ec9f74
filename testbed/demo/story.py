"""The script of the demo: its agents' settings, its queries, and the event."""

from typing import Any, NamedTuple

NODES = 16
CABLE = "atlantic"
FACTOR = 2.0

SOURCES = ("sao-paulo", "frankfurt", "san-francisco", "mumbai")
"""Nodes of the generated stream. Frankfurt is the best node for the operator that needs all four, but with twice the latency of the
Atlantic cable Mumbai is better, by a third."""
ROWS_PER_S = 2_500
"""Rows a second of each source: 10,000 together."""
STREAM_S = 45.0
"""Seconds after which the generated stream ends, so that all its rows can be counted."""
ROWS_PER_SOURCE = int(ROWS_PER_S * STREAM_S)

SETTINGS: dict[str, Any] = {
    "membership": {"interval_s": 0.25, "gossip_interval_s": 0.1},
    "optimiser": {"interval_s": 1.5, "lookup_interval_s": 4.5, "candidates": 8, "cooldown_s": 20.0, "answer_timeout_s": 2.0},
    "telemetry": {"flush_interval_s": 1.0},
    "load": {"full_ms": 0.0},
}
"""Settings of the demo. Intervals are a few times shorter than the defaults, because people watch it. The load dimension is off, because
the load of this machine, which all agents share, does not tell them apart."""


class Question(NamedTuple):
    """A statement, the node that takes it, and its name for people."""

    name: str
    agent: str
    sql: str


SOURCE_SQL = f"""
CREATE SOURCE readings (ts TIMESTAMP, id BIGINT, sensor TEXT, value DOUBLE, WATERMARK FOR ts AS ts - INTERVAL '1 second')
WITH (connector = 'datagen', nodes = '{",".join(SOURCES)}', rows_per_second = {ROWS_PER_S}, rows = {ROWS_PER_SOURCE},
      per_node = 'true', seed = 7, "fields.id.kind" = 'sequence', "fields.sensor.kind" = 'zipf', "fields.sensor.count" = 20,
      "fields.sensor.prefix" = 's', "fields.value.kind" = 'normal')
"""

READINGS = "10,000 readings a second, per sensor"

QUESTIONS = (
    Question(
        "slow both ways, Europe and North America",
        "london",
        """
SELECT a.ts, a.node, a.peer, a.rtt_ms, b.rtt_ms AS back_ms
FROM sys.probes a JOIN sys.probes b
  ON a.node = b.peer AND a.peer = b.node
  AND b.ts BETWEEN a.ts - INTERVAL '5 seconds' AND a.ts + INTERVAL '5 seconds'
WHERE a.region = 'eu' AND b.region = 'na' AND a.rtt_ms > a.estimated_ms * 1.5 AND b.rtt_ms > b.estimated_ms * 1.5
""",
    ),
    Question(
        "load per region",
        "tokyo",
        """
SELECT window_start, region, COUNT(*) AS samples, AVG(cpu) AS cpu, MAX(operators) AS operators
FROM TUMBLE(sys.load, ts, INTERVAL '5 seconds')
GROUP BY window_start, region
""",
    ),
    Question(
        "busiest links",
        "new-york",
        """
SELECT window_start, link, AVG(bytes_per_s) AS bytes_per_s
FROM TUMBLE(sys.links, ts, INTERVAL '5 seconds')
GROUP BY window_start, link
HAVING AVG(bytes_per_s) > 20000
""",
    ),
    Question(
        READINGS,
        "paris",
        """
SELECT window_start, sensor, COUNT(*) AS n, SUM(id) AS ids, AVG(value) AS mean
FROM TUMBLE(readings, ts, INTERVAL '1 second')
GROUP BY window_start, sensor
""",
    ),
)
