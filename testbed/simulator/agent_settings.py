"""Settings and folders of the agents of a virtual world."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from sbon.config import Layer, load
from sbon.execution.settings import EngineConfig
from sbon_agent.config import AgentConfig
from sbon_testbed.simulator.world import PORT
from sbon_testbed.topology import Topology


class AgentSettings:
    """Settings of each agent of a world, and the folder of its state.

    Parameters
    ----------
    ips : address of each machine
    common : settings of every agent, as in its TOML file
    single : more settings for single agents, by number
    data_dir : folder for the agents' states, one folder each; None: agents keep nothing, and telemetry is off
    """

    def __init__(
        self, topology: Topology, ips: Sequence[str], common: Layer, single: Callable[[int], Layer], data_dir: Path | None
    ) -> None:
        self._topology, self._ips = topology, ips
        self._common, self._single, self._data_dir = common, single, data_dir
        self._data_lost: dict[int, int] = {}

    @property
    def keeps_data(self) -> bool:
        """True if agents keep their states."""
        return self._data_dir is not None

    def config_of(self, number: int) -> AgentConfig:
        """Returns the settings of one agent.

        Raises
        ------
        ConfigError
            The settings given for the agent are wrong.
        """
        directory = str(self.data_dir_of(number)) if self._data_dir else ""
        fixed: dict[str, Any] = {
            "name": self._topology.nodes[number],
            "bind": f"{self._ips[number]}:{PORT}",
            "join": [f"{ip}:{PORT}" for ip in self._ips[:3] if ip != self._ips[number]],
            "data_dir": directory,
            "labels": dict(self._topology.labels[number]),
        }
        # Many small batches cost real time, so a source's pause is always the longest one, unless a test overrides it.
        pause_s = {**self._common.get("engine", {}), **self._single(number).get("engine", {})}.get("batch_interval_s")
        fixed["engine"] = {"batch_interval_min_s": EngineConfig().batch_interval_s if pause_s is None else pause_s}
        # Predictions take no virtual time, and few stories look at them.
        fixed["optimiser"] = {"predictions": "coarse"}
        if not directory:
            fixed["telemetry"] = {"enabled": False}
        return load(AgentConfig, "", "agent settings", fixed, self._common, self._single(number))

    def data_dir_of(self, number: int) -> Path:
        """Returns the folder of an agent's state, a new one after its data was lost."""
        lost = self._data_lost.get(number, 0)
        return (self._data_dir or Path()) / (self._topology.nodes[number] + (f"-{lost}" if lost else ""))

    def lose_data(self, number: int) -> None:
        """Gives an agent another, empty folder."""
        self._data_lost[number] = self._data_lost.get(number, 0) + 1
