"""Publishes telemetry to a broker: a bounded queue of rows, sent in batches, one in flight.

An absent broker does not affect streams. `sbon_agent.telemetry.carriers` starts the publisher.
"""

import asyncio
from collections import deque
from typing import TYPE_CHECKING

import msgspec

from sbon.telemetry.rows import VERSION, Row
from sbon_agent.logs import structlog
from sbon_agent.mqtt import RETRY_S_MIN, Pauses, quiet_logger
from sbon_agent.telemetry.broker import Access, Broker, client_options
from sbon_agent.telemetry.log import Telemetry

if TYPE_CHECKING:
    import aiomqtt

BATCH_RECORDS_MAX = 500
BATCH_BYTES_MAX = 256 * 2**10
"""Most bytes of a batch; a larger row is sent alone."""
LINGER_S = 1.0
"""Seconds that rows wait for others to fill a batch. Shorter: fresher rows, more messages."""
FINISH_S_MAX = 5.0
"""Longest time, in seconds, that a stopping agent waits for the broker to take the remaining rows."""


class MqttPublisher:
    """Publisher of one agent's rows."""

    def __init__(self, telemetry: Telemetry, broker: Broker, let_in: Access) -> None:
        self.counters = {"mqtt_published": 0, "mqtt_dropped": 0, "mqtt_disconnects": 0, "mqtt_connected": 0}
        self._telemetry = telemetry
        self._broker = broker
        self._options = client_options(broker, let_in)
        self._log = structlog.get_logger("telemetry", broker=str(broker))
        self._waiting: deque[bytes] = deque()
        self._encode = msgspec.msgpack.Encoder().encode
        self._in_flight = 0
        self._more = asyncio.Event()
        self._closing = asyncio.Event()
        self._down = False
        telemetry.listen(self._take)
        self._task: asyncio.Task[None] | None = None

    def begin(self) -> None:
        """Starts to publish, after the agent's run has begun."""
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def finish(self) -> None:
        """Publishes remaining rows for a limited time, after the agent has stopped; counts the others as dropped."""
        self._closing.set()
        self._more.set()
        if self._task is None:
            return
        _, late = await asyncio.wait({self._task}, timeout=FINISH_S_MAX)
        if late:
            self._task.cancel()
            await asyncio.wait({self._task}, timeout=FINISH_S_MAX)
        self.counters["mqtt_dropped"] += len(self._waiting)
        if self._waiting:
            self._log.warning("telemetry.broker_missed_the_end", records_lost=len(self._waiting))
            self._waiting.clear()

    def hurry(self) -> None:
        """Stops publishing without waiting."""
        if self._task is not None:
            self._task.cancel()

    def _take(self, time_us: int, sequence: int, row: Row) -> None:
        if len(self._waiting) - self._in_flight >= self._telemetry.config.mqtt_buffer_records_max:
            # Drop the oldest rows that are not in flight: new ones say more about an overlay in trouble.
            del self._waiting[self._in_flight]
            self.counters["mqtt_dropped"] += 1
        self._waiting.append(self._encode((time_us, sequence, row)))
        self._more.set()

    async def _run(self) -> None:
        import aiomqtt

        quiet = quiet_logger()
        identifier = f"sbon-{self._telemetry.agent}-{self._telemetry.start}"
        pauses = Pauses()
        while self._waiting or not self._closing.is_set():
            try:
                async with aiomqtt.Client(**self._options, identifier=identifier, clean_session=True, logger=quiet) as client:
                    self._connected()
                    pauses.reset()
                    await self._publish(client)
            except (aiomqtt.MqttError, OSError, ValueError) as problem:
                self._disconnected(problem)
                await self._pause(pauses.next())

    async def _publish(self, client: "aiomqtt.Client") -> None:
        topic = self._broker.topic(self._telemetry.agent)
        while True:
            if not self._waiting:
                if self._closing.is_set():
                    return
                self._more.clear()
                await self._more.wait()
                await self._pause(LINGER_S)
                continue
            batch = self._batch()
            self._in_flight = len(batch)
            try:
                await client.publish(topic, self._message(batch), qos=1)
            finally:
                self._in_flight = 0
            for _ in batch:
                self._waiting.popleft()
            self.counters["mqtt_published"] += len(batch)

    def _batch(self) -> list[bytes]:
        batch: list[bytes] = []
        size = 0
        for line in self._waiting:
            size += len(line)
            if batch and (size > BATCH_BYTES_MAX or len(batch) == BATCH_RECORDS_MAX):
                break
            batch.append(line)
        return batch

    def _message(self, batch: list[bytes]) -> bytes:
        lines = [msgspec.Raw(line) for line in batch]
        return self._encode((VERSION, self._telemetry.agent, self._telemetry.start, lines))

    async def _pause(self, seconds: float) -> None:
        """Waits for some seconds, or less if the agent ends."""
        try:
            await asyncio.wait_for(self._closing.wait(), seconds)
        except TimeoutError:
            return
        await asyncio.sleep(min(seconds, RETRY_S_MIN))  # even then, pause before the next attempt at an absent broker

    def _connected(self) -> None:
        self.counters["mqtt_connected"] = 1
        self._log.info("telemetry.broker_connected")
        self._down = False

    def _disconnected(self, problem: Exception) -> None:
        self.counters["mqtt_connected"] = 0
        self.counters["mqtt_disconnects"] += 1
        if not self._down:
            self._down = True
            self._log.warning("telemetry.broker_lost", reason=str(problem) or type(problem).__name__, doing="trying again")
