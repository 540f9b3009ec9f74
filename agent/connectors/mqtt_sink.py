"""Connector `mqtt` (sink): publishes a message for each row, by MQTT 5. `docs/mqtt.md` says what survives which failure.

Options, besides those of `mqtt_settings`
-----------------------------------------
topic : required, such as `alerts/{site}/{kind}`, where `{...}` stands for the value of a column, see `mqtt_topics.TopicTemplate`
format : `json` (default), `msgpack` or `text`, see `mqtt_payloads`
qos : quality of service; 0, 1 (default) or 2
retain : `true` or `false` (default): the broker keeps the last message of each topic
in_flight_max : most messages that the broker has not yet acknowledged, default 100; fewer if the broker says so
will_topic, will_payload : topic and payload of the message that the broker publishes when the agent is gone without a goodbye, with the
    same `qos` and `retain`

`write` returns when the broker has acknowledged every message of the batch (at QoS 0: when they have been written to the socket). So the
sink holds nothing: its link holds all rows that the broker does not have. Messages are sent in the order of the rows. If the broker is slow
or away, the sink refuses the batch and remembers the messages sent: they are not sent again when the batch is offered again.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from typing import TYPE_CHECKING

import aiomqtt
from paho.mqtt.client import MQTT_CLEAN_START_FIRST_ONLY

from sbon.connectors.interface import Congested
from sbon.errors import ConnectorError
from sbon.formats.formatting import LineFormat
from sbon.formats.mqtt_packets import Message as Received
from sbon.formats.mqtt_payloads import Message, PayloadWriter
from sbon.formats.mqtt_topics import plain_topic
from sbon.operators.values import Values
from sbon.options import Options
from sbon.query.params.source import SinkParams
from sbon.schema import Schema
from sbon_agent.connectors.base import ConnectorContext
from sbon_agent.connectors.mqtt_connection import BrokerClient, BrokerConnection
from sbon_agent.connectors.mqtt_settings import BrokerSettings

if TYPE_CHECKING:
    import polars as pl

WAIT_S = 0.2
"""Seconds for which `write` waits for the broker's next acknowledgement before it refuses a batch. The wait occupies an executor thread."""
WRITE_S = 1.0
"""Seconds for which `write` waits in total; it continues when the batch is offered again."""
RETRY_S, RETRY_SOON_S = 0.2, 0.01
"""Seconds until a batch is offered again: if the broker acknowledges nothing, and if it is only slow."""
SESSION_S = 3600
"""Seconds for which the broker remembers which messages at QoS 2 it has."""
WILL_BYTES_MAX = 65_535


def check_mqtt_sink(params: SinkParams, schema: Schema, context: ConnectorContext) -> None:
    """Refuses options as `MqttSink` would, without connecting."""
    MqttSink(params, schema, context)


class MqttSink:
    """Publishes rows. `write` runs on an executor thread, everything else on the event loop's."""

    def __init__(self, params: SinkParams, schema: Schema, context: ConnectorContext) -> None:
        self._what = what = f"sink {params.name}"
        options = Options(what, params.connector, params.options)
        self._settings = BrokerSettings(what, options, f"sbon-{context.node}-{params.name}", context)
        self._writer = PayloadWriter(what, options, schema)
        self._qos = options.integer("qos", 1, 0, 2)
        self._retain = options.flag("retain", False)
        self._in_flight_max = options.integer("in_flight_max", 100, 1, 65_535)
        will = self._will(options)
        options.finish()
        self._lines = LineFormat("ndjson", schema)
        self._connection = BrokerConnection(
            self._settings,
            context,
            # A new session after each start of the agent: it numbers messages from the beginning, and the broker must not take them for the
            # earlier ones.
            clean_start=MQTT_CLEAN_START_FIRST_ONLY,
            session_expiry_s=SESSION_S,
            in_flight_max=self._in_flight_max,
            will=will,
        )
        self.dropped_rows = 0
        self._changed = threading.Condition()
        self._offered: list[Message] = []
        """Messages of the batch that is being written or was refused last, and the rest of one before it."""
        self._sent = 0
        """Number of offered messages that have been sent."""
        self._done: set[int] = set()
        """Numbers of messages that the broker has acknowledged out of order."""
        self._acknowledged = 0
        """Number of offered messages, from the first, that the broker has acknowledged without a gap."""
        self._base = 0
        """Number of the first offered message, counted from the sink's first message."""
        self._under_way: dict[int, int] = {}
        """Packet id -> number of a message that is not acknowledged."""
        self._closed = False

    def _will(self, options: Options) -> aiomqtt.Will | None:
        topic = plain_topic(options, "will_topic", "agents/press-7")
        payload = options.optional("will_payload")
        if topic is None:
            if payload is not None:
                raise options.refuse("will_payload", payload, "will_topic = 'agents/press-7' as well")
            return None
        data = (payload or "").encode()
        if len(data) > WILL_BYTES_MAX:
            raise options.refuse("will_payload", f"{len(data)} bytes", f"at most {WILL_BYTES_MAX}")
        return aiomqtt.Will(topic, data, self._qos, self._retain)

    def open(self) -> None:
        """Reads password and certificates, checks that the broker's address may be used, then connects."""
        self._settings.open()
        self._connection.loop.call_soon_threadsafe(self._start)

    def _start(self) -> None:
        if not self._closed:
            self._connection.start(self)

    def write(self, frame: pl.DataFrame) -> None:
        """Publishes a batch, and waits until the broker has acknowledged it."""
        self._write(self._lines.lines(frame))

    def write_values(self, values: Values) -> None:
        """Publishes a few rows, and waits until the broker has acknowledged them."""
        self._write(self._lines.lines_of_values(values))

    def _write(self, data: bytes) -> None:
        self._expect_connection()
        messages = self._writer.messages(data.splitlines())
        with self._changed:
            self._offer(messages)
            self._connection.loop.call_soon_threadsafe(self._send)
            retry_s = self._wait(len(messages))
            if self._acknowledged < len(messages):
                self._expect_connection()
                left = len(messages) - self._acknowledged
                raise Congested(f"{self._what}: {self._settings} has not yet acknowledged {left} messages", retry_s)
            self._forget(len(messages))
        self.dropped_rows += self._writer.too_long

    def _wait(self, count: int) -> float:
        """Waits, for a bounded time, until the broker has acknowledged the first `count` messages; returns the pause in seconds before a
        retry."""
        until = time.monotonic() + WRITE_S
        while self._acknowledged < count and not self._closed and self._connection.is_open:
            before = self._acknowledged
            self._changed.wait(WAIT_S)
            if self._acknowledged == before:
                return RETRY_S
            if time.monotonic() > until:
                return RETRY_SOON_S
        return RETRY_S

    def _expect_connection(self) -> None:
        if self._connection.error is not None:
            raise self._connection.error
        if self._closed:
            raise ConnectorError(f"{self._what}: is closed")
        if not self._connection.is_open:
            raise Congested(f"{self._what}: {self._connection.remark or f'no connection to {self._settings}'}", RETRY_S)

    def _offer(self, messages: list[Message]) -> None:
        """Extends the offered messages by a batch that begins with the same messages, or replaces them."""
        common = min(len(messages), len(self._offered))
        if messages[:common] == self._offered[:common]:
            self._offered += messages[common:]
        else:
            self._base += len(self._offered)
            self._offered, self._sent, self._acknowledged = messages, 0, 0
            self._done.clear()

    def _forget(self, count: int) -> None:
        """Drops the first messages, which the broker has acknowledged."""
        del self._offered[:count]
        self._base += count
        self._sent -= count
        self._acknowledged -= count

    def close(self) -> None:
        """Disconnects. Messages that the broker has not acknowledged were never accepted from the engine, so none is lost."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        # The loop of a stopping agent may be closed already, and with it every connection.
        with contextlib.suppress(RuntimeError):
            self._connection.loop.call_soon_threadsafe(self._connection.stop)

    # -------------------------------------------------------------------------------------- on the event loop's thread

    def _send(self) -> None:
        """Publishes as many messages as may be under way."""
        client = self._connection.client
        if client is None or not self._connection.is_open:
            return
        most = min(self._in_flight_max, client.receive_maximum if self._qos else self._in_flight_max)
        with self._changed:
            while self._sent < len(self._offered) and len(self._under_way) < most:
                topic, payload = self._offered[self._sent]
                mid = client.send(topic, payload, self._qos, self._retain)
                if mid is None:
                    return
                self._under_way[mid] = self._base + self._sent
                self._sent += 1

    async def connected(self, client: BrokerClient) -> None:
        """Continues to send. The client has already sent the messages under way at QoS 1 and 2 again."""
        asyncio.get_running_loop().call_soon(self._send)

    def received(self, messages: list[Received]) -> None:
        """Does nothing: a sink subscribes to no topic."""

    def released(self, mids: list[int]) -> None:
        """Does nothing: a sink subscribes to no topic."""

    def published(self, mid: int) -> None:
        """Records that the broker has a message, and sends more."""
        with self._changed:
            number = self._under_way.pop(mid, None)
            if number is not None and number >= self._base:
                self._done.add(number)
                while self._base + self._acknowledged in self._done:
                    self._done.discard(self._base + self._acknowledged)
                    self._acknowledged += 1
            self._changed.notify_all()
        self._send()

    def disconnected(self) -> None:
        """At QoS 0, marks messages not yet written to the socket to be sent again, because the client would not send them."""
        with self._changed:
            if self._qos == 0:
                self._under_way.clear()
                self._done.clear()
                self._sent = self._acknowledged
            self._changed.notify_all()
