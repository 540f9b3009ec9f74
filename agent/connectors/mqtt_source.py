"""Connector `mqtt` (source): takes messages from a broker, by MQTT 5. `docs/mqtt.md` says what survives which failure.

Options, besides those of `mqtt_settings`
-----------------------------------------
topics : required; topic filters, separated by commas, with `+` for one level and `#` for all further levels
format : `json` (default), `msgpack` or `text`, see `mqtt_payloads`
topic_columns : columns that get the levels of the topic, in order, such as `_, site, _`; `_` skips a level. Levels that a topic lacks give
    NULL
topic_column : a TEXT column that gets the whole topic
qos : highest quality of service; 0, 1 (default) or 2. At 1 and 2, a message is acknowledged when its rows have been processed
session : `persistent` (default at QoS 1 and 2): the broker keeps messages that arrive while there is no connection; or `clean`
session_expiry : how long the broker keeps a persistent session without a connection, default 1 hour
shared_group : name of a shared subscription: each message goes to one member of the group only
shared_connections : number of connections, 1 to 16 (default 1), as members of one group, by default a group of this source alone; the
    broker promises no order between messages of different connections
receive_max : most messages at QoS 1 and 2 that the broker may have under way, default 1000; the broker keeps further ones
message_bytes_max : larger payloads are left out and counted; default 1 MiB, at most 16 MiB
buffer_bytes_max : memory for messages that wait for the overlay; when it is full, the socket is not read; default 4 MiB
batch_rows_max : most rows of a batch, default 65536; fewer if they would take longer than the engine's quantum
time_format, time_unit, ahead_max : as for `tcp`

The source reconnects to an unreachable broker, with pauses; `sbon operators` shows why there is no connection.
"""

from __future__ import annotations

import hashlib
import threading
from collections import deque
from collections.abc import Callable
from itertools import islice

from sbon.connectors.interface import BATCH_ROWS, BATCH_ROWS_MAX, Polled
from sbon.connectors.mqtt_rows import MessageRows
from sbon.connectors.row_batches import RowBatches, Rows, count, cut
from sbon.formats.mqtt_topics import topic_filters
from sbon.misfits import Misfits
from sbon.operators.values import FEW_ROWS
from sbon.options import Options
from sbon.query.params.source import SourceParams
from sbon_agent.connectors.base import ConnectorContext
from sbon_agent.connectors.mqtt_settings import BrokerSettings
from sbon_agent.connectors.mqtt_subscriber import Held, Positions, Subscriber

MESSAGE_BYTES = 256
"""Bytes of memory that a message takes in addition to its topic and payload."""
DECODED_ROWS = 16_384
"""Least rows decoded at once, if so many wait, because each block has a fixed cost; they are given out in batches."""
EXPIRY_US_MAX = (2**32 - 2) * 1_000_000
CONNECTIONS_MAX = 16


class MqttSource:
    """Takes messages, gives out their rows, and acknowledges messages whose rows have been processed.

    Messages arrive on the event loop, `poll` runs on an executor thread; `_lock` guards the number of bytes, which both change.
    """

    threaded = True

    def __init__(self, params: SourceParams, context: ConnectorContext) -> None:
        what = f"source {params.name}"
        options = Options(what, params.connector, params.options)
        self._qos = options.integer("qos", 1, 0, 2)
        self._buffer_bytes_max = options.integer("buffer_bytes_max", 4 << 20, 1024, 1 << 30)
        self._batch_rows_max = options.integer("batch_rows_max", BATCH_ROWS, 1, 1_000_000)
        self.batch_rows = BATCH_ROWS_MAX
        self.misfits = Misfits()
        self._messages = MessageRows(what, params, options, self.misfits)
        self._batches = RowBatches(params)
        self._subscribers = self._made(params, options, context)
        options.finish()
        self._held: deque[Held] = deque()
        self._held_bytes = 0
        self._lock = threading.Lock()
        self._paused = False
        self._rows: Rows | None = None
        """Decoded rows that have not been given out yet."""
        self._decoded = self._given = 0
        """Positions of the last decoded message, and of the last message all of whose rows have been given out."""
        self._ready: Callable[[], None] | None = None

    def _made(self, params: SourceParams, options: Options, context: ConnectorContext) -> list[Subscriber]:
        """Makes the connections, without starting them."""
        what = f"source {params.name}"
        filters = topic_filters(options)
        group = options.optional("shared_group")
        if group is not None and (not group or set(group) & set("/+#\0")):
            raise options.refuse("shared_group", group, "a name without '/', '+' and '#'")
        connections = options.integer("shared_connections", 1, 1, CONNECTIONS_MAX)
        if connections > 1 and group is None:
            group = f"sbon-{context.node}-{params.name}".translate(dict.fromkeys(map(ord, "/+#"), "-"))
        subscriptions = [f"$share/{group}/{one}" if group is not None else one for one in filters]
        digest = hashlib.blake2b("\0".join(subscriptions).encode(), digest_size=4).hexdigest()
        settings = BrokerSettings(what, options, f"sbon-{context.node}-{params.name}-{digest}", context)
        persistent = options.choice("session", ("persistent", "clean"), "persistent" if self._qos else "clean") == "persistent"
        if options.given("session_expiry") and not persistent:
            raise options.refuse("session_expiry", options.text("session_expiry", ""), "session = 'persistent' as well")
        expiry_us = options.duration_us("session_expiry", 3_600_000_000)
        if not 1_000_000 <= expiry_us <= EXPIRY_US_MAX:
            raise options.refuse("session_expiry", options.text("session_expiry", ""), "a span from 1 s to 136 years")
        receive_max = options.integer("receive_max", 1000, 1, 65_535)
        positions = Positions()
        self._settings = [settings if number == 1 else settings.with_number(number) for number in range(1, connections + 1)]
        return [
            Subscriber(
                one,
                context,
                subscriptions,
                self._qos,
                positions,
                self._keep,
                self._tell,
                clean_start=not persistent,
                session_expiry_s=expiry_us // 1_000_000 if persistent else 0,
                receive_max=receive_max,
                read_bytes=self._buffer_bytes_max // 4,
            )
            for one in self._settings
        ]

    @property
    def dropped_rows(self) -> int:
        """Messages that could not be read, and rows that did not fit."""
        return self.misfits.rows

    @property
    def remark(self) -> str:
        """Describes a problem with the broker, or rows from the future."""
        remarks = (one.connection.remark for one in self._subscribers)
        return next((remark for remark in remarks if remark), "") or self._messages.remark

    def open(self) -> None:
        """Reads password and certificates, and checks that the broker's address may be used."""
        for settings in self._settings:
            settings.open()

    def start(self, ready: Callable[[], None]) -> None:
        """Starts to connect."""
        self._ready = ready
        for one in self._subscribers:
            one.connection.start(one)

    def stop(self) -> None:
        """Disconnects. The broker keeps the messages that have not been acknowledged."""
        for one in self._subscribers:
            one.connection.stop()
        self._held.clear()
        self._rows = None
        self._ready = None

    def acknowledged(self, upto: int) -> None:
        """Acknowledges the messages up to that position to the broker, if it still knows them."""
        for one in self._subscribers:
            one.processed(upto)

    # ------------------------------------------------------------------------------------------- on the event loop

    def _keep(self, messages: list[Held]) -> None:
        """Keeps messages until they are polled."""
        size = sum([len(one.topic) + len(one.payload) for one in messages]) + MESSAGE_BYTES * len(messages)
        with self._lock:
            self._held.extend(messages)
            self._held_bytes += size
            full = self._held_bytes > self._buffer_bytes_max
        if full:
            self._paused = True
            for one in self._subscribers:
                one.pause()
        self._tell()

    def _resume(self) -> None:
        """Resumes reading."""
        self._paused = False
        for one in self._subscribers:
            one.resume()

    def _tell(self) -> None:
        """Reports that a poll has something to do."""
        if self._ready is not None:
            self._ready()

    # ----------------------------------------------------------------------------------------- on the thread of `poll`

    def due_rows(self, now: float) -> int:
        """Returns the most rows that the waiting messages may hold; for many messages, a number that exceeds a batch."""
        rows = 0 if self._rows is None else count(self._rows)
        if len(self._held) > FEW_ROWS:
            return rows + self._batch_rows_max
        return rows + sum([self._messages.rows_max(one.payload) for one in islice(self._held, FEW_ROWS)])

    def poll(self, now: float, wall: float) -> Polled:
        """Returns rows of the messages that have arrived."""
        for one in self._subscribers:
            if one.connection.error is not None:
                raise one.connection.error
        room = max(1, min(self.batch_rows, self._batch_rows_max))
        if self._rows is None:
            self._rows = self._decode(room, wall)
        part, rest = cut(self._rows, room)
        if count(rest):
            self._rows = rest
        else:
            self._rows, self._given = None, self._decoded
        polled = self._batches.polled([part], now if self._rows is not None or self._held else None)
        return polled._replace(upto=self._given) if self._qos else polled

    def _decode(self, rows: int, wall: float) -> Rows:
        """Decodes the oldest waiting messages, until there are `rows` rows (at least `DECODED_ROWS`) or no message is left."""
        freed, rows = 0, max(rows, DECODED_ROWS)
        while self._held and self._messages.rows < rows:
            topic, payload, self._decoded = self._held.popleft()
            self._messages.take(topic, payload)
            freed += len(topic) + len(payload) + MESSAGE_BYTES
        with self._lock:
            self._held_bytes -= freed
            resume = self._paused and self._held_bytes <= self._buffer_bytes_max // 2
        if resume:
            self._subscribers[0].connection.loop.call_soon_threadsafe(self._resume)
        return self._messages.given(wall)
