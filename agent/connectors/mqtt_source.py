"""Connector `mqtt` (source): messages of a broker, by MQTT 5. `docs/mqtt.md` says what is kept through which failure.

Options, beside those of `mqtt_settings`
----------------------------------------
topics : required; topic filters, separated by commas, with `+` for a level and `#` for all that follow
format : `json` (default), `msgpack` or `text`, see `mqtt_payloads`
topic_columns : columns that are filled from the levels of the topic, in their order, such as `_, site, _`; `_` leaves a level out. A topic
    with fewer levels leaves NULL
topic_column : a TEXT column that gets the whole topic
qos : highest quality of service; 0, 1 (default) or 2. At 1 and 2, a message is acknowledged when its rows have been processed
session : `persistent` (default at QoS 1 and 2): the broker keeps what comes while there is no connection; or `clean`
session_expiry : how long the broker keeps a persistent session without a connection, default 1 hour
shared_group : name of a shared subscription: each message goes to one member of the group only
shared_connections : number of connections, 1 to 16 (default 1), as members of one group, by default a group of this source alone; the
    broker then promises no order between their messages
receive_max : messages at QoS 1 and 2 that the broker may have under way, default 1000; beyond it the broker keeps them
message_bytes_max : larger payloads are left out and counted; default 1 MiB, at most 16 MiB
buffer_bytes_max : memory for messages that wait for the overlay; beyond it the socket is not read; default 4 MiB
batch_rows_max : most rows of a batch, default 65536; fewer where they would take longer than the engine's quantum
time_format, time_unit, ahead_max : as of `tcp`

A broker that is away is tried again, with pauses; `sbon operators` shows why there is no connection.
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
"""Bytes that a message takes in memory beside its topic and payload."""
DECODED_ROWS = 16_384
"""Rows that are decoded at once, at least, where so many wait, and then given in batches: a block has costs of its own."""
EXPIRY_US_MAX = (2**32 - 2) * 1_000_000
CONNECTIONS_MAX = 16


class MqttSource:
    """Takes messages as they come, gives their rows, and acknowledges messages whose rows have been processed.

    Messages come on the event loop, `poll` on an executor thread; `_lock` is for the number of bytes that both change.
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
        """Decoded, and not yet given."""
        self._decoded = self._given = 0
        """Positions of the last message that has been decoded, and of the last one that has been given in full."""
        self._ready: Callable[[], None] | None = None

    def _made(self, params: SourceParams, options: Options, context: ConnectorContext) -> list[Subscriber]:
        """Returns the connections, none of them begun."""
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
            raise options.refuse("session_expiry", options.text("session_expiry", ""), "session = 'persistent' beside it")
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
        """Returns what is to be said of the broker, or of rows from the future."""
        remarks = (one.connection.remark for one in self._subscribers)
        return next((remark for remark in remarks if remark), "") or self._messages.remark

    def open(self) -> None:
        """Reads password and certificates, and checks that the broker's address may be used."""
        for settings in self._settings:
            settings.open()

    def start(self, ready: Callable[[], None]) -> None:
        """Connects."""
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
        """Keeps messages until they are asked for."""
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
        """Reads again."""
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
        """Returns the rows of the messages that have waited longest: of all, or of as many as it takes for so many rows."""
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
