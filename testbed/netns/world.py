"""The world of network namespaces: each agent has a namespace of its own, uses the kernel's TCP and UDP, and reaches the others over a WAN
in user space."""

import os
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from sbon.config import Layer
from sbon.errors import ConfigError
from sbon.sealing import KEY_BYTES, generate_key
from sbon_testbed.backend import Node, node_number
from sbon_testbed.netns.devices import ip_address
from sbon_testbed.netns.wan import Wan
from sbon_testbed.processes.world import ProcessWorld
from sbon_testbed.simulator.network import NetworkConfig
from sbon_testbed.topology import Topology

PORT = 7946


class NetnsWorld(ProcessWorld):
    """Agents as processes in network namespaces. Satisfies `sbon_testbed.backend.Backend`.

    Agents listen beyond loopback here, and therefore get a cluster key, made for the run.

    Parameters
    ----------
    topology : the nodes
    directory : gets a folder for configuration, state and logs of each agent, named after it, and the router's log and the key
    network : jitter, loss and rate limit between nodes
    settings : layers of settings for each agent, by number
    seed : seed of the WAN's random draws
    loaded : numbers of nodes whose load will be set; their agents read the load from the testbed, as all share the machine's processors

    Raises
    ------
    ConfigError
        This machine or user cannot have namespaces and devices.
    SbonError
        The router did not start.
    """

    def __init__(
        self,
        topology: Topology,
        directory: Path,
        network: NetworkConfig,
        settings: Sequence[Layer],
        seed: int,
        loaded: Collection[int] = (),
    ) -> None:
        count = len(topology.nodes)
        self._key = directory / "cluster.key"
        self._loaded = frozenset(loaded)
        self.wan = Wan(count, network, seed, directory / "router.log")
        super().__init__(topology, directory, settings, [f"{ip_address(number)}:{PORT}" for number in range(count)])
        try:
            self._write_key()
            self._paths_changed()
        except BaseException:
            self.wan.close()
            raise

    def run(self, seconds: float) -> None:
        """Lets time pass, watching for processes that end by themselves; raises SbonError if the router has ended."""
        super().run(seconds)
        self.wan.check()

    def load(self, node: Node, fraction: float) -> None:
        """Sets the share of its machine's CPU that the agent believes to be in use; raises ConfigError unless it was named as `loaded`."""
        number = node_number(self.topology, node)
        if number not in self._loaded:
            raise ConfigError(f"the load of {self.topology.nodes[number]} cannot be set: name it as loaded when the world is made")
        self._loads[number] = fraction
        if self.alive(number):
            self.ask(number, "shape", load=fraction)

    def counters(self) -> dict[str, int]:
        """Returns the testbed's counters; the network's begin with `network_`."""
        report = self.wan.report()
        used = {"network_cpu_ms": round(report.cpu_s * 1000)}
        return super().counters() | {f"network_{name}": value for name, value in report.counters.items()} | used

    def close(self) -> None:
        """Ends every process, the agents first, and with them namespaces and devices."""
        try:
            super().close()
        finally:
            self.wan.close()

    def _paths_changed(self) -> None:
        self.wan.set_paths(self.latencies.rtt_ms() / 2, self._group, sorted(self._off))

    def _namespace(self, number: int) -> int:
        return self.wan.namespaces[number]

    def _world_settings(self) -> dict[str, Any]:
        return {"key_file": str(self._key)}

    def _shaper_arguments(self, number: int, directory: Path) -> list[str]:
        if number not in self._loaded:
            return []
        table = directory / "shaper.json"
        load = self._loads.get(number)
        table.write_text("{}" if load is None else f'{{"load": {load!r}}}', encoding="ascii")
        return ["--testbed-shaper", str(table)]

    def _write_key(self) -> None:
        self._key.unlink(missing_ok=True)
        with open(os.open(self._key, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="ascii") as file:
            file.write(generate_key(os.urandom(KEY_BYTES)) + "\n")
