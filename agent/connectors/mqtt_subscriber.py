"""One connection of an `mqtt` source: it subscribes, gives new messages to the source, and acknowledges those that have been processed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from paho.mqtt.subscribeoptions import SubscribeOptions

from sbon.connectors.mqtt_acknowledging import Acknowledging
from sbon.formats.mqtt_packets import Message
from sbon_agent.connectors.base import ConnectorContext
from sbon_agent.connectors.mqtt_connection import BrokerClient, BrokerConnection
from sbon_agent.connectors.mqtt_settings import BrokerSettings

_REFUSED_FROM = 0x80
"""Reasons of a broker from here on are refusals."""


class Held(NamedTuple):
    """A message that waits for a poll."""

    topic: bytes
    payload: bytes
    position: int
    """Number of messages at QoS 1 and 2 that the source has received up to this one."""


class Positions:
    """Numbers of the messages of one source, over all its connections."""

    def __init__(self) -> None:
        self.last = 0


class Subscriber:
    """Owner of a connection. Everything happens on the event loop's thread.

    Parameters
    ----------
    subscriptions : topic filters as they are sent to the broker
    keep : takes messages that are new
    failed : called when the connection has been given up
    connection : options of `BrokerConnection`
    """

    def __init__(
        self,
        settings: BrokerSettings,
        context: ConnectorContext,
        subscriptions: Sequence[str],
        qos: int,
        positions: Positions,
        keep: Callable[[list[Held]], None],
        failed: Callable[[], None],
        **connection: Any,
    ) -> None:
        self.connection = BrokerConnection(settings, context, **connection)
        self.acknowledging = Acknowledging()
        self._subscriptions = [(one, SubscribeOptions(qos=qos)) for one in subscriptions]
        self._positions = positions
        self._keep = keep
        self._failed = failed
        self._processed = 0

    def processed(self, upto: int) -> None:
        """Acknowledges the messages up to a position, as soon as there is a connection."""
        self._processed = upto
        client = self.connection.client
        if client is not None and client.is_open:
            client.write(self.acknowledging.processed(upto))

    def pause(self) -> None:
        """Stops reading from the broker."""
        if self.connection.client is not None:
            self.connection.client.pause()

    def resume(self) -> None:
        """Resumes reading."""
        if self.connection.client is not None:
            self.connection.client.resume()

    # ------------------------------------------------------------------------------------------ mqtt_connection.Owner

    async def connected(self, client: BrokerClient) -> None:
        """Subscribes, if the broker has not kept the session."""
        if client.session_present:
            self.processed(self._processed)
            return
        self.acknowledging.forget()
        answers = await client.subscribe(self._subscriptions)
        for (one, _), answer in zip(self._subscriptions, answers, strict=False):
            code = getattr(answer, "value", answer)
            if isinstance(code, int) and code >= _REFUSED_FROM:
                raise ValueError(f"the broker refuses the topics '{one}': {answer}")

    def received(self, messages: list[Message]) -> None:
        """Keeps new messages until they are polled, and drops repeated ones."""
        positions, is_new, held = self._positions, self.acknowledging.is_new, []
        for message in messages:
            if message.qos:
                if not is_new(message, positions.last + 1):
                    continue
                positions.last += 1
            held.append(Held(message.topic, message.payload, positions.last))
        if self.connection.client is not None:
            self.connection.client.write(self.acknowledging.again())
        self._keep(held)

    def released(self, mids: list[int]) -> None:
        """Answers releases, so that the broker can use the packet ids again."""
        if self.connection.client is not None:
            self.connection.client.write(self.acknowledging.released(mids))

    def published(self, mid: int) -> None:
        """Does nothing: a source publishes nothing."""

    def disconnected(self) -> None:
        """Tells the source if the connection has been given up."""
        if self.connection.error is not None:
            self._failed()
