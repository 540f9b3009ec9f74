"""Starts and stops the writer's process and, if there is a broker, the publisher of a real agent's telemetry."""

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING

from sbon_agent.telemetry.broker import access, parse_broker
from sbon_agent.telemetry.log import Telemetry
from sbon_agent.telemetry.process import WriterProcess

if TYPE_CHECKING:
    from sbon_agent.telemetry.mqtt import MqttPublisher


class TelemetryCarriers:
    """Writer and publisher of one agent. They are made before the agent starts, so that they see its first rows.

    The simulation has none: rows stay in the spool until the run is over.

    Raises
    ------
    ConfigError
        The credentials for the broker cannot be read.
    """

    def __init__(self, telemetry: Telemetry) -> None:
        self.counters: list[Mapping[str, int]] = []
        """Counters of writer and publisher, for `sbon status`."""
        self._writer: WriterProcess | None = None
        if telemetry.directory is not None and telemetry.config.parquet:
            self._writer = WriterProcess(telemetry)
            self.counters.append(self._writer.counters)
        self._publisher: MqttPublisher | None = None
        config = telemetry.config
        if config.enabled and config.mqtt:
            # Imported only if there is a broker.
            from sbon_agent.telemetry.mqtt import MqttPublisher as Publisher

            let_in = access(config.mqtt_password_file, config.mqtt_ca_file)
            self._publisher = Publisher(telemetry, parse_broker(config.mqtt), let_in)
            self.counters.append(self._publisher.counters)

    def begin(self) -> None:
        """Starts writer and publisher, after the agent has started."""
        if self._writer is not None:
            self._writer.begin()
        if self._publisher is not None:
            self._publisher.begin()

    def hurry(self) -> None:
        """Makes `finish` return without waiting."""
        if self._writer is not None:
            self._writer.hurry()
        if self._publisher is not None:
            self._publisher.hurry()

    async def finish(self) -> None:
        """Writes and publishes the remaining rows, for a limited time, after the agent has stopped."""
        ending = []
        if self._writer is not None:
            ending.append(self._writer.finish())
        if self._publisher is not None:
            ending.append(self._publisher.finish())
        await asyncio.gather(*ending)
