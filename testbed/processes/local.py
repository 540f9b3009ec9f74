"""The world of local processes: real agents on loopback, with the topology's latencies added to their transport.

In each agent the testbed's shaper (`sbon_agent.network.shaper`) delays messages to and from the other agents. It gets changes over the
control socket.
"""

import os
import socket
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from sbon.cli.client import UnreachableError
from sbon.config import Layer
from sbon.errors import ConfigError
from sbon_testbed.backend import Node, node_number
from sbon_testbed.processes.world import ProcessWorld
from sbon_testbed.simulator.network import NetworkConfig
from sbon_testbed.topology import Topology

_PORT_FIRST, _PORT_LAST = 20_000, 32_000
"""Range of ports, below the kernel's range for outgoing connections."""


class LocalWorld(ProcessWorld):
    """Agents as processes on loopback. Satisfies `sbon_testbed.backend.Backend`.

    Parameters
    ----------
    topology : the nodes
    directory : gets a folder for configuration, state and logs of each agent, named after it
    network : jitter and loss; other settings have no effect here
    settings : layers of settings for each agent, by number
    """

    def __init__(self, topology: Topology, directory: Path, network: NetworkConfig, settings: Sequence[Layer]) -> None:
        super().__init__(topology, directory, settings, [f"127.0.0.1:{port}" for port in free_ports(len(topology.nodes))])
        self._network = network

    def load(self, node: Node, fraction: float) -> None:
        """Sets the share of its machine's CPU that the agent believes to be in use, as all agents here share the real CPU."""
        self._loads[node_number(self.topology, node)] = fraction
        self._paths_changed()

    def _shaper_arguments(self, number: int, directory: Path) -> list[str]:
        table = directory / "shaper.json"
        table.write_bytes(msgspec.json.encode(self._shape(number)))
        return ["--testbed-shaper", str(table)]

    def _paths_changed(self) -> None:
        for number in sorted(self._processes):
            (self.agent_directory(number) / "shaper.json").write_bytes(msgspec.json.encode(self._shape(number)))
            with suppress(UnreachableError):
                self._client(number).ask("shape", **self._shape(number))

    def _shape(self, number: int) -> dict[str, Any]:
        rtt_ms = self.latencies.rtt_ms()
        others = [other for other in range(len(self.addresses)) if other != number]
        return {
            "delays_ms": {self.addresses[other]: round(float(rtt_ms[number, other]) / 2, 4) for other in others},
            "jitter_ms": self._network.jitter_ms,
            "loss": self._network.loss,
            "load": self._loads.get(number),
            "blocked": [
                self.addresses[other]
                for other in others
                if self._group[other] != self._group[number] or other in self._off or number in self._off
            ],
        }


def free_ports(count: int) -> list[int]:
    """Returns ports of loopback that are free for UDP and TCP now.

    Raises
    ------
    ConfigError
        There are not enough free ports.
    """
    found = []
    start = _PORT_FIRST + os.getpid() * 61 % (_PORT_LAST - _PORT_FIRST)
    for step in range(_PORT_LAST - _PORT_FIRST):
        port = _PORT_FIRST + (start - _PORT_FIRST + step) % (_PORT_LAST - _PORT_FIRST)
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as tcp, socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as udp:
            try:
                tcp.bind(("127.0.0.1", port))
                udp.bind(("127.0.0.1", port))
            except OSError:
                continue
        found.append(port)
        if len(found) == count:
            return found
    raise ConfigError(f"found {len(found)} free ports on loopback, needed {count}")
