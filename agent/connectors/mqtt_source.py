"""Connector `mqtt` (source): messages of a broker, by MQTT 5. `docs/mqtt.md` says what is kept through which failure.

Options, beside those of `mqtt_settings`
----------------------------------------
topics : required; topic filters, separated by commas, with `+` for a level and `#` for all that follow
format : `json` (default), `msgpack` or `text`, see `mqtt_payloads`
topic_columns : columns that are filled from the levels of the topic, in their order, such as `_, site, _`; `_` leaves a level out. A topic
    with fewer levels leaves NULL
topic_column : a TEXT column that gets the whole topic
qos : at most this quality of service; 0, 1 (default) or 2. At 1, a message is acknowledged when its rows have been processed
session : `persistent` (default at QoS 1 and 2): the broker keeps what comes while there is no connection; or `clean`
session_expiry : how long it does so, default 1 hour
shared_group : each message goes to one member of this group only (a shared subscription)
receive_max : messages at QoS 1 and 2 that the broker may have under way, default 1000; beyond it the broker keeps them
message_bytes_max : larger payloads are left out and counted; default 1 MiB, at most 16 MiB
buffer_bytes_max : messages waiting for the overlay; beyond it the socket is not read; default 4 MiB
time_format, time_unit, batch_rows_max, ahead_max : as of `tcp`

A broker that is away is tried again, with pauses; `sbon operators` shows why there is no connection.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from paho.mqtt.client import MQTTMessage
from paho.mqtt.subscribeoptions import SubscribeOptions

from sbon.misfits import Misfits
from sbon.query.plan import SourceParams
from sbon_agent.connectors.base import ConnectorContext, Polled
from sbon_agent.connectors.line_batches import LineBatches
from sbon_agent.connectors.mqtt_connection import BrokerClient, BrokerConnection
from sbon_agent.connectors.mqtt_payloads import PayloadReader
from sbon_agent.connectors.mqtt_settings import BrokerSettings
from sbon_agent.connectors.mqtt_topics import topic_filters
from sbon_agent.connectors.options import Options

MESSAGE_BYTES = 256
"""What a message takes in memory beside its topic and payload."""
EXPIRY_US_MAX = (2**32 - 2) * 1_000_000
LINE_BYTES = 1024
"""Of a message that is too large, as much is shown at most."""
_REFUSED_FROM = 0x80
"""Reasons of a broker from here on are refusals."""


class _Message(NamedTuple):
    topic: str
    payload: bytes | None
    """None: it was too large."""
    position: int
    """How many messages have come up to this one."""
    rows_max: int

    @property
    def size_bytes(self) -> int:
        return len(self.topic) + len(self.payload or b"") + MESSAGE_BYTES


class MqttSource:
    """Takes messages as they come, gives their rows, and acknowledges messages whose rows have been processed."""

    def __init__(self, params: SourceParams, context: ConnectorContext) -> None:
        what = f"source {params.name}"
        options = Options(what, params.connector, params.options)
        self._filters = topic_filters(options)
        group = options.optional("shared_group")
        if group is not None and (not group or set(group) & set("/+#\0")):
            raise options.refuse("shared_group", group, "a name without '/', '+' and '#'")
        self._subscriptions = [f"$share/{group}/{one}" if group is not None else one for one in self._filters]
        digest = hashlib.blake2b("\0".join(self._subscriptions).encode(), digest_size=4).hexdigest()
        self._settings = BrokerSettings(what, options, f"sbon-{context.node}-{params.name}-{digest}", context)
        self._qos = options.integer("qos", 1, 0, 2)
        persistent = options.choice("session", ("persistent", "clean"), "persistent" if self._qos else "clean") == "persistent"
        if options.given("session_expiry") and not persistent:
            raise options.refuse("session_expiry", options.text("session_expiry", ""), "session = 'persistent' beside it")
        expiry_us = options.duration_us("session_expiry", 3_600_000_000)
        if not 1_000_000 <= expiry_us <= EXPIRY_US_MAX:
            raise options.refuse("session_expiry", options.text("session_expiry", ""), "a span from 1 s to 136 years")
        receive_max = options.integer("receive_max", 1000, 1, 65_535)
        self._message_bytes_max = options.integer("message_bytes_max", 1 << 20, 16, 16 << 20)
        self._buffer_bytes_max = options.integer("buffer_bytes_max", 4 << 20, 1024, 1 << 30)
        self.misfits = Misfits()
        self._payloads = PayloadReader(what, options, params.columns, self.misfits)
        self._batches = LineBatches(params, options, self.misfits)
        options.finish()
        self._connection = BrokerConnection(
            self._settings,
            context,
            manual=self._qos == 1,
            clean_start=not persistent,
            session_expiry_s=expiry_us // 1_000_000 if persistent else 0,
            receive_max=receive_max,
        )
        self._messages: deque[_Message] = deque()
        self._held_bytes = self._held_rows = 0
        self._lines: deque[bytes] = deque()
        """Of the message that is being given."""
        self._opened = self._given = self._count = self._processed = 0
        """Positions: of the message being given, of the last one given in full, of the last one that came, of the last one processed."""
        self._unacknowledged: dict[int, tuple[int, int]] = {}
        """Packet id -> position and hash of a message at QoS 1, while the broker's session knows it under this id."""
        self._owed: deque[tuple[int, int]] = deque()
        """The same in order: position, packet id."""
        self._ready: Callable[[], None] | None = None

    @property
    def dropped_rows(self) -> int:
        """Messages that could not be read, and rows that did not fit."""
        return self.misfits.rows

    @property
    def remark(self) -> str:
        """Of the broker, or of rows from the future."""
        return self._connection.remark or self._batches.remark

    def open(self) -> None:
        """Read password and certificates; see whether the broker's address may be used."""
        self._settings.open()

    def start(self, ready: Callable[[], None]) -> None:
        """Connect."""
        self._ready = ready
        self._connection.start(self)

    def stop(self) -> None:
        """Disconnect. What has not been acknowledged stays with the broker."""
        self._connection.stop()
        self._messages.clear()
        self._lines.clear()
        self._ready = None

    def due_rows(self, now: float) -> int:
        """Returns how many rows there may be in what has come."""
        return len(self._lines) + self._held_rows

    def poll(self, now: float, wall: float) -> Polled:
        """Rows of the messages that are here."""
        if self._connection.error is not None:
            raise self._connection.error
        lines: list[bytes] = []
        while len(lines) < self._batches.rows_max and (self._lines or self._messages):
            if not self._lines:
                self._open_next()
            while self._lines and len(lines) < self._batches.rows_max:
                lines.append(self._lines.popleft())
            if not self._lines:
                self._given = self._opened
        client = self._connection.client
        if client is not None and not client.reading and self._held_bytes <= self._buffer_bytes_max // 2:
            client.resume()
        polled = self._batches.polled(lines, wall, now if self._lines or self._messages else None)
        return polled._replace(upto=self._given) if self._qos == 1 else polled

    def _open_next(self) -> None:
        message = self._messages.popleft()
        self._held_bytes -= message.size_bytes
        self._held_rows -= message.rows_max
        self._opened = message.position
        if message.payload is not None:
            self._lines.extend(self._payloads.lines(message.topic, message.payload))

    def acknowledged(self, upto: int) -> None:
        """Acknowledge the messages up to there to the broker, if it still knows them."""
        client = self._connection.client
        self._processed = upto
        while self._owed and self._owed[0][0] <= upto:
            position, mid = self._owed[0]
            if self._unacknowledged.get(mid, (0, 0))[0] == position:
                if client is None or not client.is_open:
                    return  # until there is a connection again
                del self._unacknowledged[mid]
                client.acknowledge(mid)
            self._owed.popleft()

    # ------------------------------------------------------------------------------------------ mqtt_connection.Owner

    async def connected(self, client: BrokerClient) -> None:
        """Subscribe, where the broker has not kept that."""
        if client.session_present:
            self.acknowledged(self._processed)
            return
        self._unacknowledged.clear()
        self._owed.clear()
        wanted = [(one, SubscribeOptions(qos=self._qos)) for one in self._subscriptions]
        answers = await client.subscribe(wanted)
        for one, answer in zip(self._filters, answers, strict=False):
            code = getattr(answer, "value", answer)
            if isinstance(code, int) and code >= _REFUSED_FROM:
                raise ValueError(f"the broker refuses the topics '{one}': {answer}")

    def received(self, message: MQTTMessage) -> None:
        """Keep a message until it is asked for."""
        payload: bytes | None = bytes(message.payload)
        try:
            topic = message.topic
        except UnicodeDecodeError:
            topic = ""
        if message.qos == 1 and self._qos == 1 and not self._is_new(message, topic):
            return
        if len(message.payload) > self._message_bytes_max:
            text = f"the message is larger than {self._message_bytes_max} bytes (message_bytes_max)"
            self.misfits.add("", "is too large", text=text, line=bytes(message.payload[:LINE_BYTES]))
            payload = None
        kept = _Message(topic, payload, self._count, 0 if payload is None else self._payloads.rows_max(payload))
        empty = not self._messages and not self._lines
        self._messages.append(kept)
        self._held_bytes += kept.size_bytes
        self._held_rows += kept.rows_max
        client = self._connection.client
        if client is not None and self._held_bytes > self._buffer_bytes_max:
            client.pause()
        if empty and self._ready is not None:
            self._ready()

    def _is_new(self, message: MQTTMessage, topic: str) -> bool:
        """Notes a message to acknowledge; one that is here already, and is sent again after a broken connection, is not new."""
        mark = hash((topic, message.payload))
        known = self._unacknowledged.get(message.mid)
        if message.dup and known is not None and known[1] == mark:
            return False
        self._count += 1
        self._unacknowledged[message.mid] = (self._count, mark)
        self._owed.append((self._count, message.mid))
        return True

    def published(self, mid: int) -> None:
        """A source publishes nothing."""

    def disconnected(self) -> None:
        """Something has happened that a poll should see."""
        if self._connection.error is not None and self._ready is not None:
            self._ready()
