"""Prepares a run: builds the scenario's topology and settings, and finds its mistakes."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sbon.config import overlay, toml_value
from sbon.errors import ConfigError, UsageError
from sbon_testbed.director import latency_pairs
from sbon_testbed.scenario import Heal, Latency, Load, Migrate, Partition, Scenario, Statement
from sbon_testbed.topology import Topology, build


def scenario_topology(scenario: Scenario, seed: int, nodes: int | None, folder: Path | None) -> Topology:
    """Returns the topology of a scenario, cut to its first `nodes` nodes if that is given, with the labels of its overrides."""
    topology = build(scenario.topology, scenario.nodes, seed, folder)
    if nodes is not None:
        if not 1 <= nodes <= scenario.nodes:
            raise UsageError(f"nodes = {nodes}, expected 1 to the scenario's {scenario.nodes}")
        topology = topology.first(nodes)
    labels = [dict(of_node) for of_node in topology.labels]
    for override in scenario.override:
        for node in _selected(topology, override.agents, nodes is not None):
            labels[node].update(override.labels)
    return Topology(topology.kind, topology.nodes, tuple(labels), topology.rtt_ms, topology.access_ms, topology.cables)


GIVEN = {
    "name": "the topology names the agents: select one by it, and tell agents apart by labels = {{ role = {value} }} in an [[override]]",
    "labels": "write labels = {{ ... }} in an [[override]], beside its agents: selectors and statements know them then",
    "bind": "the testbed gives every agent an address: leave it out",
    "join": "every agent joins through the first: leave it out",
    "data_dir": "every agent has a folder of its own, in that of --out: leave it out",
}
"""Settings of an agent that the testbed controls, and hints what to do instead of setting them."""


@contextmanager
def mistakes_of_usage() -> Iterator[None]:
    """Converts errors of configuration to errors of usage: the scenario or an option of the command is wrong."""
    try:
        yield
    except UsageError:
        raise
    except ConfigError as problem:
        raise UsageError(str(problem)) from problem


def check_settings(scenario: Scenario) -> None:
    """Refuses settings of agents that the testbed controls.

    Raises
    ------
    ConfigError
        A setting is controlled by the testbed; the message says what to write instead.
    """
    tables = [("", scenario.agent), *((f"override {number}: ", override.agent) for number, override in enumerate(scenario.override, 1))]
    for place, settings in tables:
        for name in settings.keys() & GIVEN.keys():
            value = toml_value(settings[name])
            raise ConfigError(f"{place}agent.{name} = {value} cannot be set; " + GIVEN[name].format(value=value))


def check_events(scenario: Scenario, topology: Topology) -> None:
    """Finds mistakes in selectors and cables before anything runs.

    Raises
    ------
    ConfigError
        A selector or cable is wrong; the message has the number of the statement or event.
    """
    for number, item in enumerate((*scenario.statement, *scenario.event)):
        kind, count = ("statement", number + 1) if number < len(scenario.statement) else ("event", number + 1 - len(scenario.statement))
        try:
            if isinstance(item, Latency):
                latency_pairs(topology, item)
            elif isinstance(item, Partition):
                for group in item.groups:
                    for selector in group:
                        topology.select(selector)
            elif isinstance(item, Statement):
                topology.select(item.agent)
            elif isinstance(item, Migrate):
                topology.select(item.to)
            elif not isinstance(item, Heal):
                topology.select(item.agents)
        except ConfigError as problem:
            raise ConfigError(f"{kind} {count}: {problem}") from problem


def loaded_nodes(scenario: Scenario, topology: Topology) -> frozenset[int]:
    """Returns the numbers of the nodes whose load an event sets."""
    return frozenset(node for event in scenario.event if isinstance(event, Load) for node in _selected(topology, event.agents, True))


def settings_of(scenario: Scenario, topology: Topology, number: int) -> dict[str, Any]:
    """Returns the settings that the scenario gives to one agent."""
    settings: dict[str, Any] = overlay({}, scenario.agent)
    for override in scenario.override:
        if number in _selected(topology, override.agents, True):
            settings = overlay(settings, override.agent)
    return settings


def _selected(topology: Topology, selector: str, tolerant: bool) -> tuple[int, ...]:
    try:
        return topology.select(selector)
    except ConfigError:
        if tolerant:
            return ()
        raise
