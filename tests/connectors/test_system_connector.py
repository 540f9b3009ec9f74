"""The agent's own measurements as streams."""

from datetime import datetime

import pytest

from sbon.connectors.system_streams import QUEUE_ROWS_MAX, SystemStreams
from sbon.errors import ConnectorError
from sbon.query.system import LOAD, PROBES, SYSTEM_STREAMS
from tests.connector_world import WALL, columns, context, source

NOW_US = int(WALL * 1e6)


def probe(ts: int, rtt: float | None = 12.5) -> tuple[object, ...]:
    return (ts, "n1", "eu", "n2", None, rtt, 11.0)


def test_measurements_reach_every_query_that_listens():
    where = context()
    first, second = (source("system", PROBES, where, name="sys.probes", time="ts") for _ in range(2))
    where.system.push("sys.probes", probe(NOW_US - 5))
    for stream in (first, second):
        polled = stream.poll(0.0, WALL)
        assert polled.frame is not None
        assert polled.frame.rows() == [(datetime(2020, 9, 13, 12, 26, 39, 999995), "n1", "eu", "n2", None, 12.5, 11.0)]


def test_columns_may_be_fewer_and_in_another_order():
    where = context()
    stream = source("system", columns(rtt_ms="float", ts="time"), where, name="sys.probes", time="ts")
    where.system.push("sys.probes", probe(NOW_US))
    polled = stream.poll(0.0, WALL)
    assert polled.frame is not None
    assert polled.frame.columns == ["rtt_ms", "ts"]


def test_the_watermark_of_a_quiet_stream_follows_the_clock_and_the_row_itself_is_not_late():
    where = context()
    stream = source("system", PROBES, where, name="sys.probes", time="ts")
    assert stream.poll(0.0, WALL).watermark_us == NOW_US
    assert stream.poll(1.0, WALL + 1).watermark_us == NOW_US + 1_000_000
    where.system.push("sys.probes", probe(NOW_US + 1_000_000))
    assert stream.poll(1.0, WALL + 1).watermark_us == NOW_US + 1_000_000


def test_a_stream_tells_when_it_has_rows_again():
    where = context()
    stream = source("system", LOAD, where, name="sys.load", time="ts")
    calls: list[int] = []
    stream.start(lambda: calls.append(1))
    for _ in range(3):
        where.system.push("sys.load", (NOW_US, "n1", None, 0.5, 0.5, 1.0, 0))
    assert len(calls) == 1
    stream.poll(0.0, WALL)
    where.system.push("sys.load", (NOW_US, "n1", None, 0.5, 0.5, 1.0, 0))
    assert len(calls) == 2


def test_a_full_queue_lets_the_oldest_go_and_counts_them():
    streams = SystemStreams()
    subscription = streams.subscribe("sys.load", rows_max=3)
    for i in range(5):
        streams.push("sys.load", (i,))
    assert subscription.take(10) == [(2,), (3,), (4,)]
    assert subscription.dropped_rows == 2
    assert QUEUE_ROWS_MAX > 1000


def test_nobody_is_told_after_the_end():
    where = context()
    stream = source("system", PROBES, where, name="sys.probes", time="ts")
    assert where.system.wanted("sys.probes")
    stream.stop()
    stream.stop()
    assert not where.system.wanted("sys.probes")


def test_unknown_streams_columns_and_options_are_refused():
    with pytest.raises(ConnectorError, match=r"no such system stream, expected one of sys\.probes"):
        source("system", PROBES, name="sys.moods")
    with pytest.raises(ConnectorError, match="no column mood"):
        source("system", columns(mood="text"), name="sys.load")
    with pytest.raises(ConnectorError, match="option x is unknown"):
        source("system", LOAD, name="sys.load", x=1)


@pytest.mark.parametrize("name", sorted(SYSTEM_STREAMS))
def test_rows_in_the_declared_order_fit(name: str):
    where = context()
    definition = SYSTEM_STREAMS[name]
    stream = source("system", definition.columns, where, name=name, time=definition.time_column)
    samples = {"time": NOW_US, "text": "x", "float": 0.5, "int": 3, "bool": True}
    where.system.push(name, tuple(samples[field.type.value] for field in definition.columns))
    polled = stream.poll(0.0, WALL)
    assert polled.frame is not None
    assert polled.frame.columns == [field.name for field in definition.columns]


def test_a_measurement_that_does_not_fit_is_a_clear_error():
    where = context()
    stream = source("system", LOAD, where, name="sys.load", time="ts")
    where.system.push("sys.load", (NOW_US, "n1", None, "a lot", 0.5, 1.0, 0))
    with pytest.raises(ConnectorError, match="does not fit"):
        stream.poll(0.0, WALL)
