"""The router: `python -m sbon_testbed.netns.router PARENT_PID DESCRIPTOR`, one thread that moves packets between the TUN devices.

It creates the namespaces, reads packets from their devices, and writes each packet to its target's device when the schedule says so. A
timer of the kernel wakes it, because epoll's resolution is 1 ms, and it runs before other programs. Its report shows overload: packets
delivered late, and packets that the devices dropped because they were not read in time.
"""

import gc
import os
import resource
import select
import socket
import sys
import time

import numpy as np

from sbon_testbed.kernel import PreciseTimer, die_with_parent, wake_punctually
from sbon_testbed.netns.devices import Site, dropped_packets, make_site
from sbon_testbed.netns.messages import DESCRIPTORS_MAX, Ask, Done, Message, Paths, Report, Setup, receive, send
from sbon_testbed.netns.schedule import Schedule

_READ_BYTES = 2048
_READS_MAX = 64
"""Most reads in a row from one device, while the others wait."""
_WRITES_MAX = 512
"""Most writes in a row, before the devices are read again."""
_LATE_STEP_NS = 10_000
_LATE_STEPS = 20_000
"""Number of steps, of 10 us each, of the histogram of lateness: up to 200 ms."""


class Lateness:
    """A histogram of the packets' lateness."""

    def __init__(self) -> None:
        self._steps = [0] * (_LATE_STEPS + 1)

    def add(self, late_ns: int) -> None:
        """Counts one packet."""
        self._steps[min(late_ns // _LATE_STEP_NS, _LATE_STEPS)] += 1

    def percentile_us(self, share: float) -> int:
        """Returns the lateness within which this share of the packets was delivered, in microseconds; 0 without packets."""
        wanted = share * sum(self._steps)
        if not wanted:
            return 0
        return int(np.searchsorted(np.cumsum(self._steps), wanted) + 1) * _LATE_STEP_NS // 1000


class Router:
    """Moves packets until the testbed ends."""

    def __init__(self, control: socket.socket, setup: Setup, sites: list[Site]) -> None:
        self._control = control
        self._sites = sites
        self._number = {site.device: number for number, site in enumerate(sites)}
        self._schedule = Schedule(setup.sites, setup.plain, setup.network, np.random.default_rng([setup.seed, 0x77_61_6E]))
        self._lateness = Lateness()
        self._failed = 0
        self._timer = PreciseTimer()
        self._epoll = select.epoll()
        for descriptor in (control.fileno(), self._timer.descriptor, *self._number):
            self._epoll.register(descriptor, select.EPOLLIN)

    def serve(self) -> None:
        """Runs the loop."""
        looked_ns = time.monotonic_ns()
        while True:
            events, slept = self._wait()
            now_ns = time.monotonic_ns()
            # Packets read now may have arrived at any time since the last read, unless the router slept until they arrived.
            came_ns = now_ns if slept else (looked_ns + now_ns) // 2
            looked_ns = now_ns
            for descriptor, _ in events:
                number = self._number.get(descriptor)
                if number is not None:
                    self._read(descriptor, number, came_ns)
                elif descriptor == self._timer.descriptor:
                    os.read(descriptor, 8)
                elif not self._answer(receive(self._control)):
                    return
            self._write()

    def _wait(self) -> tuple[list[tuple[int, int]], bool]:
        due_ns = self._schedule.next_due_ns
        if due_ns is not None:
            if due_ns <= time.monotonic_ns():
                return self._epoll.poll(0), False
            self._timer.set(due_ns)
        events = self._epoll.poll(0)
        return (events, False) if events else (self._epoll.poll(), True)

    def _read(self, device: int, number: int, came_ns: int) -> None:
        read, accept = os.read, self._schedule.accept
        try:
            for _ in range(_READS_MAX):
                accept(number, read(device, _READ_BYTES), came_ns)
        except BlockingIOError:
            pass

    def _write(self) -> None:
        write, sites, late = os.write, self._sites, self._lateness.add
        for due_ns, target, packet in self._schedule.due(time.monotonic_ns(), _WRITES_MAX):
            late(time.monotonic_ns() - due_ns)
            try:
                write(sites[target].device, packet)
            except OSError:
                self._failed += 1

    def _answer(self, message: Message | None) -> bool:
        """Handles a message; returns whether to continue."""
        if isinstance(message, Paths):
            self._schedule.set_paths(message.delay_ms, message.group, message.off)
            send(self._control, Done())
        elif isinstance(message, Ask):
            send(self._control, self._report())
        return message is not None

    def _report(self) -> Report:
        late = self._lateness.percentile_us
        counters = {
            **self._schedule.counters,
            "under_way": self._schedule.under_way,
            "refused_by_device": self._failed,
            "unread": sum(dropped_packets(site.namespace) for site in self._sites),
            "late_us_p50": late(0.5),
            "late_us_p99": late(0.99),
        }
        used = resource.getrusage(resource.RUSAGE_SELF)
        return Report(counters=counters, cpu_s=used.ru_utime + used.ru_stime)


def main() -> None:
    """Creates the namespaces, passes them to the testbed, and serves."""
    parent, descriptor = int(sys.argv[1]), int(sys.argv[2])
    die_with_parent()
    if os.getppid() != parent:
        sys.exit("the testbed has ended")
    with socket.socket(fileno=descriptor) as control:
        setup = receive(control)
        if not isinstance(setup, Setup):
            return
        sites = [make_site(setup.run, number) for number in range(setup.sites)]
        for first in range(0, len(sites), DESCRIPTORS_MAX):
            socket.send_fds(control, [b"n"], [site.namespace for site in sites[first : first + DESCRIPTORS_MAX]])
        wake_punctually()
        gc.disable()  # nothing here has reference cycles, and a collection would delay every packet
        Router(control, setup, sites).serve()


if __name__ == "__main__":
    main()
