"""Keeps a connection to an MQTT broker open, for the `mqtt` connector, on the agent's event loop.

It speaks MQTT 5, by aiomqtt and the paho client below that. A source or sink keeps one client through all its connections, because paho's
knowledge of messages under way at QoS 2 must survive a lost connection. This module replaces two parts of aiomqtt's client: how it treats a
broker whose messages are not read for a while, and how it reads. `mqtt_packets` cuts received bytes into packets; messages go to the owner,
who acknowledges them, and other packets go to paho.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from typing import Any, Protocol

import aiomqtt
import paho.mqtt.client as paho
from paho.mqtt.enums import MessageState
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from sbon.errors import ConnectorError
from sbon.formats.mqtt_packets import Message, PacketReader
from sbon_agent.connectors.addresses import loop_of
from sbon_agent.connectors.base import ConnectorContext
from sbon_agent.connectors.mqtt_settings import BrokerSettings
from sbon_agent.logs import structlog
from sbon_agent.mqtt import KEEPALIVE_S, TIMEOUT_S, Pauses, quiet_logger

SHORT_S, SHORT_MAX = 1.0, 3
"""After SHORT_MAX connections in a row shorter than SHORT_S, another client with our client id is suspected to take them over."""
CHECK_S = 1.0
"""Seconds between two checks whether a ping is due."""
READ_BYTES_MIN, READ_BYTES_MAX = 4096, 256 * 1024
"""Limits of the bytes read from a socket at once."""
_UNSPECIFIED = 0x80
"""Reason that the client library gives for a socket that has been closed."""
PACKET_BYTES_MAX = 16 * 2**20 + 70_000
"""Largest packet that the broker may send: room for a payload of 16 MiB, a topic and properties."""


class Owner(Protocol):
    """The source or sink behind a connection. Everything is called on the event loop's thread."""

    async def connected(self, client: BrokerClient) -> None:
        """Called when the broker has accepted the connection; `client.session_present` says whether it has kept the session."""

    def received(self, messages: list[Message]) -> None:
        """Called with new messages; acknowledge those at QoS 1 and 2 by `BrokerClient.write`."""

    def released(self, mids: list[int]) -> None:
        """Called when the broker has released messages at QoS 2 (PUBREL); answer by `BrokerClient.write`."""

    def published(self, mid: int) -> None:
        """Called when the broker has acknowledged a message or, at QoS 0, when the message has been written to the socket."""

    def disconnected(self) -> None:
        """Called when the connection is lost or cannot be made. `BrokerConnection.error` is set if no further attempt follows."""


class BrokerClient(aiomqtt.Client):
    """A client of aiomqtt that passes messages and acknowledgements to its owner at once, and may stop reading."""

    def __init__(self, owner: Owner, read_bytes: int, **options: Any) -> None:
        super().__init__(**options)
        self._owner, self._read_bytes = owner, read_bytes
        self._packets = PacketReader(PACKET_BYTES_MAX)
        self._receive: Callable[[int], bytes] = self._client._sock_recv
        self._client._sock_recv = self._octets_for_library  # type: ignore[method-assign]
        self._for_library = b""
        """Bytes of a packet for paho that it has not read yet."""
        self._ended = False
        """True once the broker has closed the connection."""
        self._reader: tuple[int, Callable[[], None]] | None = None
        self.session_present = False
        self.receive_maximum = 65_535
        """Most unacknowledged messages that the broker accepts."""
        self.reading = True

    async def connect(self, address: str) -> None:
        """Connects, and returns when the broker has accepted the connection."""
        self._hostname = address
        self._connected = asyncio.Future()  # after a broken connection, aiomqtt keeps the old future
        self.reading, self._reader = True, None
        self._packets, self._for_library, self._ended = PacketReader(PACKET_BYTES_MAX), b"", False
        await self.__aenter__()
        if not self._client.is_connected():  # lost before this turn of the event loop, without a trace in aiomqtt
            raise aiomqtt.MqttError("the broker has closed the connection")

    async def close(self) -> None:
        """Disconnects, if still connected."""
        with contextlib.suppress(aiomqtt.MqttError, OSError, ValueError):
            await self.__aexit__(None, None, None)
        self._client._sock_close()  # a socket that failed in reading is still open

    async def lost(self) -> None:
        """Returns when the connection is lost."""
        await asyncio.wait({self._disconnected})

    @property
    def is_open(self) -> bool:
        """Tells whether the broker has accepted the connection, and it has not been lost."""
        return self._connected.done() and not self._disconnected.done() and self._client.is_connected()

    @property
    def loss(self) -> str:
        """Returns why the connection was lost; empty if the reason is unknown."""
        if not self._disconnected.done() or self._disconnected.cancelled():
            return ""
        problem = self._disconnected.exception()
        if problem is None or (isinstance(problem, aiomqtt.MqttCodeError) and getattr(problem.rc, "value", 0) == _UNSPECIFIED):
            return ""
        return str(problem) or type(problem).__name__

    def send(self, topic: str, payload: bytes, qos: int, retain: bool) -> int | None:
        """Starts to publish a message; returns the number with which `published` will be called, or None if the message was not
        accepted."""
        info = self._client.publish(topic, payload, qos, retain)
        kept = qos > 0 and info.rc == paho.MQTT_ERR_NO_CONN  # the client sends it when there is a connection again
        return info.mid if kept or info.rc == paho.MQTT_ERR_SUCCESS else None

    def write(self, packets: bytes) -> None:
        """Sends whole packets, such as acknowledgements."""
        if packets:
            self._client._packet_queue(packets[0], packets, 0, 0)

    def pause(self) -> None:
        """Stops reading from the broker, so that TCP slows it down."""
        if self.reading and self._reader is not None:
            self.reading = False
            self._loop.remove_reader(self._reader[0])

    def resume(self) -> None:
        """Resumes reading."""
        if not self.reading and self._reader is not None:
            self.reading = True
            self._loop.add_reader(*self._reader)

    # ------------------------------------------------------------------------------------ what the library calls

    def _on_connect(self, client: Any, userdata: Any, flags: Any, reason_code: Any, properties: Any = None) -> None:
        self.session_present = bool(flags.session_present)
        self.receive_maximum = int(getattr(properties, "ReceiveMaximum", 65_535))
        if not reason_code.is_failure:
            if self._clean_start == paho.MQTT_CLEAN_START_FIRST_ONLY:
                self._clean_start = False  # otherwise paho would take each call of its `connect` for the first one
            if not self.session_present:
                self._publish_again(client)
        super()._on_connect(client, userdata, flags, reason_code, properties)

    def _publish_again(self, client: paho.Client) -> None:
        """Marks messages to be published again after the broker has lost the session, because it would not understand their releases
        (PUBREL)."""
        for message in client._out_messages.values():
            message.dup = False
            if message.state == MessageState.MQTT_MS_RESEND_PUBREL:
                message.state = MessageState.MQTT_MS_PUBLISH

    def _on_publish(self, client: Any, userdata: Any, mid: int, reason_code: Any, properties: Any) -> None:
        self._owner.published(mid)

    def _on_socket_open(self, client: Any, userdata: Any, sock: Any) -> None:
        def read() -> None:
            try:
                while True:
                    self._read()
                    # TLS may hold decoded bytes that the event loop does not see.
                    if not self.reading or not hasattr(sock, "pending") or not sock.pending():
                        break
            except Exception as problem:
                self._broken(problem)

        def begin() -> None:
            self._misc_task = self._loop.create_task(self._misc_loop())
            if sock.fileno() > -1:
                self._reader = (sock.fileno(), read)
                self._loop.add_reader(*self._reader)

        self._loop.call_soon_threadsafe(begin)  # the library connects on a thread of its own

    def _read(self) -> None:
        """Reads available bytes, and passes messages to the owner and other packets to paho."""
        try:
            data = self._receive(self._read_bytes)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._ended = True
            self._client.loop_read()
            return
        packets = self._packets.take(data)
        for self._for_library in packets.others:
            while self._for_library and self._client.loop_read() == paho.MQTT_ERR_SUCCESS:
                pass
        if packets.messages:
            self._owner.received(packets.messages)
        if packets.released:
            self._owner.released(packets.released)

    def _octets_for_library(self, bufsize: int) -> bytes:
        """Returns at most `bufsize` received bytes; paho calls it instead of reading its socket."""
        if not self._for_library and not self._ended:
            raise BlockingIOError
        octets, self._for_library = self._for_library[:bufsize], self._for_library[bufsize:]
        return octets

    def _on_socket_close(self, client: Any, userdata: Any, sock: Any) -> None:
        self._reader = None
        if sock.fileno() > -1:
            self._loop.remove_writer(sock.fileno())
        super()._on_socket_close(client, userdata, sock)

    def _on_socket_register_write(self, client: Any, userdata: Any, sock: Any) -> None:
        def write() -> None:
            try:
                client.loop_write()
            except Exception as problem:
                self._broken(problem)

        def begin() -> None:
            # The library may have closed the socket or written everything by now; it would not remove a writer that it does not know.
            if sock.fileno() > -1 and client._registered_write:
                try:
                    self._loop.add_writer(sock.fileno(), write)
                except (RuntimeError, OSError) as problem:
                    self._broken(problem)

        self._loop.call_soon_threadsafe(begin)

    def _broken(self, problem: Exception) -> None:
        if not self._connected.done():  # `connect` waits for it
            self._connected.set_exception(aiomqtt.MqttError(str(problem)))
        if not self._disconnected.done():
            self._disconnected.set_exception(problem)
            self._disconnected.exception()  # `loss` reports it; a future whose exception nobody has retrieved would also print a traceback

    async def _misc_loop(self) -> None:
        while self._client.loop_misc() == paho.MQTT_ERR_SUCCESS:
            await asyncio.sleep(CHECK_S)
            if not self.reading:
                self._client._ping_t = 0.0  # the answer to a ping is not read either, and must not count as missing
                self._client._last_bytes_received = time.monotonic()


class BrokerConnection:
    """Keeps a client connected.

    Parameters
    ----------
    session_expiry_s : how long the broker keeps the session after a connection; 0: the session ends with the connection
    read_bytes : most bytes read from the socket at once
    clean_start : True for a new session with every connection, False to resume the session, or paho's `MQTT_CLEAN_START_FIRST_ONLY`
    """

    def __init__(
        self,
        settings: BrokerSettings,
        context: ConnectorContext,
        *,
        clean_start: bool | int,
        session_expiry_s: int,
        receive_max: int | None = None,
        in_flight_max: int | None = None,
        will: aiomqtt.Will | None = None,
        read_bytes: int = READ_BYTES_MAX,
    ) -> None:
        self.loop = loop_of(settings.what, "mqtt", context)
        self.settings = settings
        self.error: ConnectorError | None = None
        """Why the connection has been given up; None if it has not."""
        self.trouble = "not connected yet"
        """Why there is no connection at present; empty if there is one."""
        self.client: BrokerClient | None = None
        self._read_bytes = max(READ_BYTES_MIN, min(read_bytes, READ_BYTES_MAX))
        self._options: dict[str, Any] = {"clean_start": clean_start, "max_inflight_messages": in_flight_max, "will": will}
        self._properties: Any = Properties(PacketTypes.CONNECT)  # type: ignore[no-untyped-call]
        self._properties.SessionExpiryInterval = session_expiry_s
        self._properties.MaximumPacketSize = PACKET_BYTES_MAX
        if receive_max is not None:
            self._properties.ReceiveMaximum = receive_max
        self._log = structlog.get_logger("connector", of=settings.what, broker=str(settings))
        self._told_down = False
        self._short = 0
        """Number of connections in a row that the broker has closed at once."""
        self._task: asyncio.Task[None] | None = None

    def start(self, owner: Owner) -> None:
        """Starts to connect. Call it on the loop's thread."""
        self._task = self.loop.create_task(self._run(owner))

    def stop(self) -> None:
        """Disconnects in the background. Call it on the loop's thread."""
        if self._task is not None:
            self._task.cancel()

    @property
    def is_open(self) -> bool:
        """Tells whether there is a connection."""
        return not self.trouble and self.client is not None and self.client.is_open

    @property
    def remark(self) -> str:
        """Describes the connection's problem, for people; empty if there is none."""
        return f"no connection to {self.settings}: {self.trouble}; trying again" if self.trouble else ""

    async def _run(self, owner: Owner) -> None:
        pauses = Pauses()
        client = self.client = self._made(owner)
        try:
            while True:
                try:
                    await self._connect(client)
                    await owner.connected(client)
                    self._up()
                    began = time.monotonic()
                    await client.lost()
                    self._short = self._short + 1 if time.monotonic() - began < SHORT_S else 0
                    self._down(client.loss or "the broker has closed the connection")
                    if not self._short:
                        pauses.reset()
                except (aiomqtt.MqttError, OSError, ValueError) as problem:
                    self._down(str(problem) or type(problem).__name__)
                owner.disconnected()
                await client.close()
                await asyncio.sleep(pauses.next())
        except ConnectorError as problem:
            self.error, self.trouble = problem, str(problem)
            owner.disconnected()
        finally:
            await client.close()

    def _made(self, owner: Owner) -> BrokerClient:
        settings = self.settings
        return BrokerClient(
            owner,
            self._read_bytes,
            hostname=settings.host,
            port=settings.port,
            identifier=settings.client_id,
            protocol=aiomqtt.ProtocolVersion.V5,
            logger=quiet_logger(),
            timeout=TIMEOUT_S,
            keepalive=KEEPALIVE_S,
            properties=self._properties,
            tls_context=settings.tls_context(),
            **settings.credentials(),
            **self._options,
        )

    async def _connect(self, client: BrokerClient) -> None:
        """Connects to the first address of the broker that answers."""
        problem: Exception = aiomqtt.MqttError("the broker's name has no address")
        for address in await self.settings.place.addresses(self.loop):
            try:
                await client.connect(address)
            except aiomqtt.MqttError as refused:
                problem = refused
            else:
                return
        raise problem

    def _up(self) -> None:
        self.trouble = ""
        if self._short < SHORT_MAX:
            self._told_down = False
            self._log.info("mqtt.connected")

    def _down(self, reason: str) -> None:
        if self._short >= SHORT_MAX:
            # Many brokers do not say that another client has taken over the session.
            name = self.settings.client_id
            reason += f" at once, repeatedly: does another client connect as client_id = '{name}'? give each its own"
        self.trouble = reason
        if not self._told_down:
            self._told_down = True
            self._log.warning("mqtt.connection_lost", reason=reason, doing="trying again")
