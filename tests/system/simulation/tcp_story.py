"""A query from a `tcp` source to a `tcp` sink in virtual time, with programs outside the overlay at both ends, and faults from a seed.

The story watches every byte that the virtual streams deliver and that the sink writes, and so knows which rows the source has received,
which ones the sink has written, and which ones have arrived. It compares them with what `docs/connectors.md` says is lost, and with nothing
that the connector says of itself, except the rows that wait in the sink's buffer when its agent is killed.
"""

import json
from collections.abc import Iterable
from itertools import pairwise
from typing import Any

import numpy as np

from sbon_testbed.simulator.harness import World
from sbon_testbed.simulator.network import NetworkConfig
from sbon_testbed.simulator.tcp_programs import Program
from sbon_testbed.simulator.world import SimulatedHost

HOME, SOURCE, SINK, OUTSIDE = range(4)
IN, OUT = 9000, 9001
BUFFER_BYTES = 2048
"""Buffers of the source and the sink, and of every stream."""
WINDOW_BATCHES = 2
"""Batches on the link to the sink that may be unacknowledged."""
PACE_S = 0.02
"""Pause between two rows of the feeder."""
FAULTS = ("source loses its peer", "sink loses its peer", "slow reader", "cut", "source restarts", "sink restarts")


def is_wanted(number: int) -> bool:
    """Tells whether the query passes a row on."""
    return number % 3 != 0


class Feeder(Program):
    """Writes numbered rows, each once, while it has a stream with room."""

    def __init__(self, process: SimulatedHost, host: str, port: int, *, listens: bool) -> None:
        self.next = 0
        self.last = 10**9
        """Number of the last row to write."""
        super().__init__(process, host, port, listens=listens)
        self._feed()

    @property
    def waits(self) -> bool:
        """Tells whether the agent does not read what has been written."""
        return self.stream is not None and self.stream.congested

    def _feed(self) -> None:
        if self.stream is not None and not self.stream.congested and self.next <= self.last:
            self.stream.write(b'{"ts": "2026-01-01T00:00:00Z", "n": %d}\n' % self.next)
            self.next += 1
        self.process.call_at(self.process.now() + PACE_S, self._feed)


class Tap:
    """The whole lines among the bytes at one end of one direction of a stream."""

    def __init__(self) -> None:
        self.batches: list[list[int]] = []
        """Numbers of the lines that each piece of bytes has completed."""
        self._rest = b""

    @property
    def numbers(self) -> list[int]:
        """Returns the numbers of all lines."""
        return [number for batch in self.batches for number in batch]

    def see(self, data: bytes) -> None:
        """Takes bytes; text without a line end at the end of the stream is no line."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        self.batches.append([int(json.loads(line)["n"]) for line in lines])


class TcpStory:
    """Agents at home, at the source and at the sink, and programs on a fourth machine.

    Parameters
    ----------
    seed : decides delays, cuts in deliveries, and the faults
    source_listens, sink_listens : the modes of both; default: decided by the seed
    """

    def __init__(self, seed: int, monkeypatch: Any, *, source_listens: bool | None = None, sink_listens: bool | None = None) -> None:
        self.rng = np.random.default_rng([seed, 77])
        network = NetworkConfig(jitter_ms=2.0, split=0.4, stream_buffer_bytes=BUFFER_BYTES, stream_timeout_s=3.0)
        settings = {
            "connectors": {"tcp": {"allow": ["10.0.0.0/8"]}},
            "engine": {"batch_interval_s": 0.1},
            "links": {"window_batches": WINDOW_BATCHES},
            "optimiser": {"enabled": False},
            "telemetry": {"enabled": False},
        }
        self.world = World(4, seed=seed, settings=settings, network=network)
        for number in (HOME, SOURCE, SINK):
            self.world.start(number)
        self.world.settle()
        self.process = self.world.world.boot(OUTSIDE)
        self.fed: dict[Any, Tap] = {}
        """What the feeder has written, by its end of the stream."""
        self.received: dict[Any, Tap] = {}
        """What has been delivered to the source, by its end of the stream."""
        self.written: dict[Any, Tap] = {}
        """What the sink has written, by its end of the stream."""
        self.arrived: dict[Any, Tap] = {}
        """What has been delivered to the collector, by its end of the stream."""
        self.held_at_kills: set[int] = set()
        """Rows in the sink's buffer when its agent was killed."""
        self.cut_off: list[Any] = []
        """Streams of the source that were open when its agent was killed, or when the source was made once more."""
        self.lives: list[int] = []
        """Number of the sink's streams when its agent was killed, for each time."""
        self.kills = 0
        self._watch(monkeypatch)
        ips = [machine.ip for machine in self.world.world.machines]
        drawn = [bool(draw) for draw in self.rng.integers(2, size=2)]
        source_listens = drawn[0] if source_listens is None else source_listens
        sink_listens = drawn[1] if sink_listens is None else sink_listens
        self.feeder = Feeder(self.process, ips[SOURCE], IN, listens=not source_listens)
        self.collector = Program(self.process, ips[SINK], OUT, listens=not sink_listens)

        def options(node: int, port: int, listens: bool) -> str:
            mode, host = ("listen", ips[node]) if listens else ("connect", ips[OUTSIDE])
            return f"connector = 'tcp', host = '{host}', port = {port}, mode = '{mode}', buffer_bytes_max = {BUFFER_BYTES}"

        self.world.submit(
            "CREATE SOURCE r (ts TIMESTAMP, n BIGINT, WATERMARK FOR ts AS ts) "
            f"WITH ({options(SOURCE, IN, source_listens)}, nodes = '{self.world.nodes[SOURCE]}')"
        )
        self.query = self.world.submit(
            "CREATE SINK k AS SELECT n FROM r WHERE n % 3 <> 0 "
            f"WITH ({options(SINK, OUT, sink_listens)}, node = '{self.world.nodes[SINK]}')"
        )

    @property
    def record(self) -> Any:
        """Returns the home's record of the query."""
        agent: Any = self.world.agents[HOME]
        return agent.queries.owned.find(self.query)

    def connector(self, number: int) -> Any:
        """Returns the source or the sink of an agent; None if it does not run."""
        agent: Any = self.world.agents[number]
        found = [] if agent is None else [one.source or one.sink for one in agent.execution.engine.instances.values()]
        return next(filter(None, found), None)

    def _watch(self, monkeypatch: Any) -> None:
        from sbon_testbed.simulator.stream import SimulatedStream

        take, write = SimulatedStream.take, SimulatedStream.write
        takers, writers = {SOURCE: self.received, OUTSIDE: self.arrived}, {OUTSIDE: self.fed, SINK: self.written}

        def taken(stream: Any, data: bytes) -> None:
            if stream.open and self._is_outer(stream) and stream.node in takers:
                takers[stream.node].setdefault(stream, Tap()).see(data)
            take(stream, data)

        def wrote(stream: Any, data: bytes) -> None:
            if stream.open and self._is_outer(stream) and stream.node in writers:
                writers[stream.node].setdefault(stream, Tap()).see(bytes(data))
            write(stream, data)

        monkeypatch.setattr(SimulatedStream, "take", taken)
        monkeypatch.setattr(SimulatedStream, "write", wrote)

    def _is_outer(self, stream: Any) -> bool:
        return OUTSIDE in (stream.node, stream.out.target.node)

    # ------------------------------------------------------------------------------------------------------------- faults

    def fault(self, kind: str) -> None:
        """Lets one fault happen, and ends it."""
        seconds = float(self.rng.uniform(0.5, 5.0))
        if kind == "source loses its peer" and self.feeder.stream is not None:
            self.feeder.stream.abort() if self.rng.integers(2) else self.feeder.stream.close()
        elif kind == "sink loses its peer" and self.collector.stream is not None:
            self.collector.stream.abort() if self.rng.integers(2) else self.collector.stream.close()
        elif kind == "slow reader" and self.collector.stream is not None:
            stream = self.collector.stream
            stream.pause()
            self.run(seconds)
            stream.resume()
        elif kind == "cut":
            self.world.partition([[OUTSIDE]])
            self.run(seconds)
            self.world.heal()
        elif kind.endswith("restarts"):
            self.restart(SOURCE if kind.startswith("source") else SINK, seconds, silent=bool(self.rng.integers(2)))

    def restart(self, number: int, seconds: float, *, silent: bool) -> None:
        """Kills an agent, starts it after some seconds, and waits until the query runs again."""
        self.kills += 1
        held = getattr(self.connector(number), "_held", ())
        self.held_at_kills |= {int(json.loads(line)["n"]) for data, _ in held for line in data.splitlines()}
        self.lives += [len(self.written)] if number == SINK else []
        self.cut_off += [stream for stream in self.received if number == SOURCE and stream.open]
        known = list(self.received)
        before = self.record.health.healing.account.recoveries
        self.world.kill(number, silent=silent)
        self.run(seconds)
        self.world.start(number)
        self.world.run_until(lambda: self.record.health.healing.account.recoveries > before, 60.0, "the query is recovered")
        if number == SOURCE:  # a recovery of several attempts makes the source several times, and each one loses its buffer
            self.cut_off += [stream for stream in self.received if stream not in known and not stream.open]

    def run(self, seconds: float) -> None:
        """Lets time pass, and looks at the buffers."""
        looks = 1 + int(seconds / 0.1)
        for _ in range(looks):
            self.world.run(seconds / looks)
            self.expect_bounds()

    def finish(self) -> None:
        """Waits until rows flow again, lets the feeder write another few, and waits until the last one has arrived."""
        since = self.feeder.next
        self.world.run_until(lambda: max(self.arrived_numbers(), default=0) >= since, 120.0, "rows flow again")
        self.feeder.last = last = (self.feeder.next + 30) // 3 * 3 + 1
        self.world.run_until(lambda: last in self.arrived_numbers(), 120.0, "the last row arrives")
        self.expect_bounds()

    def arrived_numbers(self) -> list[int]:
        """Returns the rows that have arrived."""
        return _numbers(self.arrived.values())

    # ------------------------------------------------------------------------------------------------------------- oracle

    def expect_bounds(self) -> None:
        """Expects that neither buffer holds more than it may, except for one delivery of a stream, or one batch."""
        source, sink = self.connector(SOURCE), self.connector(SINK)
        assert source is None or source._buffer.size_bytes <= 3 * BUFFER_BYTES
        assert sink is None or sink._held_bytes <= 2 * BUFFER_BYTES

    def expect_guarantees(self) -> None:
        """Compares the rows at each place with those at the place before it."""
        for before, after in ((self.fed, self.received), (self.written, self.arrived)):
            for stream, tap in before.items():  # what a broken stream loses is the end of what was written to it
                got = after[stream.out.target].numbers if stream.out.target in after else []
                assert got == tap.numbers[: len(got)]
                assert not stream.open or len(got) == len(tap.numbers)
        received = [number for number in _numbers(self.received.values()) if is_wanted(number)]
        assert received == sorted(set(received))
        self._expect_few_repeated()
        written = set(_numbers(self.written.values()))
        assert written <= set(received)
        missing = set(received) - written - self.held_at_kills
        for stream in self.cut_off:  # what a killed source had read and not passed on is the end of what it had read
            rows = [number for number in self.received[stream].numbers if is_wanted(number)]
            while rows and rows[-1] in missing:
                missing.remove(rows.pop())
        counted = self.record.health.healing.account.rows
        assert len(missing) <= counted, (sorted(missing), counted)
        assert self.kills or not counted

    def _expect_few_repeated(self) -> None:
        """Expects rows in order; a sink that begins again may repeat only the batches that had not been acknowledged."""
        taps = list(self.written.values())
        for begin, end in pairwise([0, *self.lives, len(taps)]):
            numbers = _numbers(taps[begin:end])
            assert numbers == sorted(set(numbers))
            batches = [batch for tap in taps[:begin] for batch in tap.batches]
            known = {number for batch in batches for number in batch}
            last = {number for batch in batches[-WINDOW_BATCHES:] for number in batch}
            assert set(numbers) & known <= last, (sorted(set(numbers) & known), sorted(last))


def _numbers(taps: Iterable[Tap]) -> list[int]:
    """Returns the rows of several streams, one after the other."""
    return [number for tap in taps for number in tap.numbers]
