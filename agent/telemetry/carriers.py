"""Who carries the telemetry of a real agent on: the writer's process, and the publisher where there is a broker."""

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING

from sbon_agent.telemetry.broker import access, parse_broker
from sbon_agent.telemetry.log import Telemetry
from sbon_agent.telemetry.process import WriterProcess

if TYPE_CHECKING:
    from sbon_agent.telemetry.mqtt import MqttPublisher


class TelemetryCarriers:
    """Made before the agent starts, so that they hear of it. In the virtual world there are none: rows stay in the spool until the run
    is over.

    Raises
    ------
    ConfigError
        What lets the agent in at the broker cannot be read.
    """

    def __init__(self, telemetry: Telemetry) -> None:
        self.counters: list[Mapping[str, int]] = []
        """What each counts, for `sbon status`."""
        self._writer: WriterProcess | None = None
        if telemetry.directory is not None and telemetry.config.parquet:
            self._writer = WriterProcess(telemetry)
            self.counters.append(self._writer.counters)
        self._publisher: MqttPublisher | None = None
        config = telemetry.config
        if config.enabled and config.mqtt:
            # Loaded only where there is a broker.
            from sbon_agent.telemetry.mqtt import MqttPublisher as Publisher

            let_in = access(config.mqtt_password_file, config.mqtt_ca_file)
            self._publisher = Publisher(telemetry, parse_broker(config.mqtt), let_in)
            self.counters.append(self._publisher.counters)

    def begin(self) -> None:
        """The agent has started."""
        if self._writer is not None:
            self._writer.begin()
        if self._publisher is not None:
            self._publisher.begin()

    def hurry(self) -> None:
        """The agent is to end at once."""
        if self._writer is not None:
            self._writer.hurry()
        if self._publisher is not None:
            self._publisher.hurry()

    async def finish(self) -> None:
        """The agent has stopped: carry on what is left, though not for ever."""
        ending = []
        if self._writer is not None:
            ending.append(self._writer.finish())
        if self._publisher is not None:
            ending.append(self._publisher.finish())
        await asyncio.gather(*ending)
