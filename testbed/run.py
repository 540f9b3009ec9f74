"""Runs a scenario in one of the worlds."""

import math
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from sbon.errors import ConfigError, UsageError
from sbon_testbed.backend import Backend
from sbon_testbed.director import Director, Progress
from sbon_testbed.leftovers import remove_leftovers, run_directory
from sbon_testbed.prepare import check_events, check_settings, loaded_nodes, mistakes_of_usage, scenario_topology, settings_of
from sbon_testbed.result import result_of
from sbon_testbed.scenario import Scenario
from sbon_testbed.statements import check_statements
from sbon_testbed.telemetry.files import write_tables
from sbon_testbed.topology import Topology

BACKENDS = ("sim", "local", "netns")


def run_scenario(
    scenario: Scenario,
    backend_name: str,
    *,
    seed: int | None = None,
    duration_s: float | None = None,
    nodes: int | None = None,
    folder: Path | None = None,
    out: Path | None = None,
    text: str = "",
    origin: str = "scenario",
    progress: Progress = lambda now_s, what: None,
) -> dict[str, Any]:
    """Runs a scenario and returns its result (`sbon_testbed.result`).

    Parameters
    ----------
    backend_name : one of `BACKENDS`
    seed, duration_s, nodes : values that replace the scenario's; events after the end, or of removed nodes, are skipped and listed
    folder : base of relative paths in the scenario
    out : folder for the agents' state, telemetry and logs; None keeps nothing
    text, origin : the TOML text of the scenario and its name, for places in messages

    Raises
    ------
    UsageError
        The scenario, or another argument, is wrong.
    SbonError
        The world could not be created.
    """
    seed = scenario.seed if seed is None else seed
    duration_s = scenario.duration_s if duration_s is None else duration_s
    if not 0 < duration_s < math.inf:
        raise UsageError(f"--duration {duration_s:g}, expected seconds above 0")
    with mistakes_of_usage():
        check_settings(scenario)
        whole = scenario_topology(scenario, seed, None, folder)
        if nodes is None:
            check_events(scenario, whole)
        check_statements(scenario, whole, text, origin)
        topology = scenario_topology(scenario, seed, nodes, folder)
        layers = [settings_of(scenario, topology, number) for number in range(len(topology.nodes))]
        _check_settings(topology, layers)
    remove_leftovers()
    with ExitStack() as cleanup:
        directory = out or cleanup.enter_context(run_directory())
        if out is not None:
            cleanup.callback(write_tables, out)  # after the agents have ended
        backend = _make(backend_name, scenario, topology, seed, directory, layers, telemetry=out is not None)
        cleanup.callback(backend.close)
        director = Director(scenario, backend, duration_s, progress)
        director.play()
        return result_of(director, backend_name, seed)


def _make(
    backend_name: str,
    scenario: Scenario,
    topology: Topology,
    seed: int,
    directory: Path,
    layers: list[dict[str, Any]],
    *,
    telemetry: bool,
) -> Backend:
    if backend_name not in BACKENDS:
        raise ConfigError(f"backend {backend_name}, expected one of {', '.join(BACKENDS)}")
    if not telemetry:  # nobody could read it: the folder is removed with the run
        layers = [layer | {"telemetry": {**layer.get("telemetry", {}), "enabled": False}} for layer in layers]
    directory.mkdir(parents=True, exist_ok=True)
    makers: dict[str, Callable[[], Backend]] = {
        "sim": lambda: _simulated(scenario, topology, seed, directory, layers),
        "local": lambda: _local(scenario, topology, directory, layers),
        "netns": lambda: _netns(scenario, topology, seed, directory, layers),
    }
    return makers[backend_name]()


def _simulated(scenario: Scenario, topology: Topology, seed: int, directory: Path, layers: list[dict[str, Any]]) -> Backend:
    from sbon_testbed.simulator.harness import World
    from sbon_testbed.simulator.logs import LOG_NAME

    return World(
        topology,
        seed=seed,
        network=scenario.network,
        cpu=scenario.cpu,
        settings={"optimiser": {"predictions": "fine"}},
        settings_of=lambda number: layers[number],
        data_dir=directory,
        log_file=directory / LOG_NAME,
    )


def _local(scenario: Scenario, topology: Topology, directory: Path, layers: list[dict[str, Any]]) -> Backend:
    from sbon_testbed.processes.local import LocalWorld

    return LocalWorld(topology, directory.absolute(), scenario.network, layers)


def _netns(scenario: Scenario, topology: Topology, seed: int, directory: Path, layers: list[dict[str, Any]]) -> Backend:
    from sbon_testbed.netns.world import NetnsWorld

    return NetnsWorld(topology, directory.absolute(), scenario.network, layers, seed, loaded_nodes(scenario, topology))


def _check_settings(topology: Topology, layers: list[dict[str, Any]]) -> None:
    from sbon.config import load
    from sbon_agent.config import AgentConfig

    for node, layer in zip(topology.nodes, layers, strict=True):
        try:
            load(AgentConfig, "", "", layer)
        except ConfigError as problem:
            raise ConfigError(f"settings of {node}: {str(problem).removeprefix('command line: ')}") from problem
