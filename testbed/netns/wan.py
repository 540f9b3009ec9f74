"""The testbed's side of the WAN: starts the router, holds the namespaces, and changes paths while packets travel."""

import os
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec

from sbon.errors import ConfigError, SbonError
from sbon.types import FloatArray
from sbon_testbed.netns.devices import NETNS_NODES_MAX, ip_address, refuse_without_rights
from sbon_testbed.netns.lateness import LatenessProbe
from sbon_testbed.netns.messages import DESCRIPTORS_MAX, Ask, Done, Message, Paths, Report, Setup, receive, send
from sbon_testbed.simulator.network import NetworkConfig

PROBE_DELAY_MS = 20.0
"""Delay between the two namespaces of the lateness probe, in ms."""
_PROBE_SITES = 2
_ANSWER_TIMEOUT_S = 30.0
_END_TIMEOUT_S = 5.0


class Wan:
    """Network namespaces, one for each node, joined by a router process.

    Parameters
    ----------
    nodes : number of nodes
    network : jitter, loss, rate limit; `set_paths` sets delays
    seed : seed of random draws
    log : file for the router's standard error

    Raises
    ------
    ConfigError
        This machine or user cannot have namespaces and devices.
    SbonError
        The router did not start.
    """

    def __init__(self, nodes: int, network: NetworkConfig, seed: int, log: Path) -> None:
        if nodes > NETNS_NODES_MAX:
            raise ConfigError(f"nodes = {nodes}, expected at most {NETNS_NODES_MAX} with backend netns")
        refuse_without_rights()
        self.run = os.urandom(3).hex()
        self.nodes = nodes
        self.namespaces: list[int] = []
        """Descriptors of the namespaces: the nodes', then the probe's."""
        self._log = log
        self._probe: LatenessProbe | None = None
        self._control, theirs = socket.socketpair()
        self._control.settimeout(_ANSWER_TIMEOUT_S)
        with theirs, log.open("ab") as out:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "sbon_testbed.netns.router", str(os.getpid()), str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                process_group=0,
                pass_fds=(theirs.fileno(),),
                env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},
            )
        try:
            self._begin(network, seed)
        except BaseException:
            self.close()
            raise

    @property
    def process_id(self) -> int:
        """Returns the router's process id."""
        return self._process.pid

    def _begin(self, network: NetworkConfig, seed: int) -> None:
        sites = self.nodes + _PROBE_SITES
        with self._router_answering():
            send(self._control, Setup(run=self.run, sites=sites, plain=_PROBE_SITES, seed=seed, network=network))
            while len(self.namespaces) < sites:
                said, descriptors, _, _ = socket.recv_fds(self._control, 1, DESCRIPTORS_MAX)
                if not said:
                    raise EOFError
                self.namespaces += descriptors
        self.set_paths([[0.0] * self.nodes] * self.nodes, [0] * self.nodes, [])
        sender, receiver = self.nodes, self.nodes + 1
        self._probe = LatenessProbe(
            (self.namespaces[sender], ip_address(sender)), (self.namespaces[receiver], ip_address(receiver)), PROBE_DELAY_MS
        )

    def set_paths(self, delay_ms: FloatArray | Sequence[Sequence[float]], group: Sequence[int], off: Sequence[int]) -> None:
        """Sets one-way delays, (nodes, nodes), and blocks packets between groups and packets from or to nodes that are off.

        Raises
        ------
        SbonError
            The router has ended.
        """
        rows = [[*map(float, row), *[0.0] * _PROBE_SITES] for row in delay_ms]
        rows += [[0.0] * self.nodes + [PROBE_DELAY_MS] * _PROBE_SITES for _ in range(_PROBE_SITES)]
        self._ask(Paths(delay_ms=rows, group=[*group, *[-1] * _PROBE_SITES], off=sorted(off)))

    def report(self) -> Report:
        """Returns the router's counters with the probe's figures; raises SbonError if the router has ended."""
        report = self._ask(Ask())
        if not isinstance(report, Report):
            raise SbonError(f"the router answered with {type(report).__name__}, expected Report")
        return msgspec.structs.replace(report, counters=report.counters | (self._probe.counters() if self._probe else {}))

    def check(self) -> None:
        """Checks that the router still runs; raises SbonError with its last output if it does not."""
        if self._process.poll() is not None:
            raise SbonError(f"the router of the WAN has ended (exit code {self._process.returncode}): {self._last_words()}")

    def close(self) -> None:
        """Ends the router, and with it the devices. Each namespace ends with the last process in it."""
        if self._probe is not None:
            self._probe.close()
            self._probe = None
        self._control.close()
        try:
            self._process.wait(_END_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        while self.namespaces:
            os.close(self.namespaces.pop())

    def _ask(self, message: Message) -> Done | Report:
        with self._router_answering():
            send(self._control, message)
            answer = receive(self._control)
            if not isinstance(answer, Done | Report):
                raise EOFError
            return answer

    @contextmanager
    def _router_answering(self) -> Iterator[None]:
        """Converts a broken connection into an error about the router."""
        try:
            yield
        except TimeoutError as problem:
            raise SbonError(f"the router of the WAN has not answered for {_ANSWER_TIMEOUT_S:g} s: the machine is overloaded") from problem
        except (OSError, EOFError) as problem:
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(_END_TIMEOUT_S)
            self.check()
            raise SbonError(f"the router of the WAN does not answer: {problem}") from problem

    def _last_words(self) -> str:
        with suppress(OSError):
            lines = self._log.read_text(encoding="utf-8", errors="replace").splitlines()
            if lines:
                return lines[-1][:500]
        return "its log is empty"
