"""Finds what installed packages add to an agent, by the entry point groups `sbon.connectors` and `sbon.functions`.

    [project.entry-points."sbon.connectors"]
    kafka = "our_package.kafka:CONNECTOR"        # an sbon_agent.connectors.Connector

    [project.entry-points."sbon.functions"]
    smooth = "our_package.functions:smooth"      # an sbon.functions.BatchFunction of that name

Nothing is loaded before it is needed, so an agent that hosts nothing stays small. No code ever arrives over the wire; what a query names
must be installed on every agent that is to run it.
"""

from functools import cache, partial
from typing import Any

from sbon.errors import ConnectorError, SbonError
from sbon.extensions import Extensions
from sbon.functions import BatchFunction, FunctionError
from sbon_agent.connectors.base import Connector

CONNECTORS = "sbon.connectors"
FUNCTIONS = "sbon.functions"


@cache
def installed() -> Extensions:
    """Returns what is installed for this process."""
    functions = {name: partial(load_function, name) for name in sorted(_entries(FUNCTIONS))}
    return Extensions(tuple(sorted(_entries(CONNECTORS))), functions, _offered)


def _offered(name: str) -> tuple[str, ...]:
    """Returns whether a connector is a source, a sink, or both; both if it cannot be loaded, which is reported when it is used."""
    try:
        connector = load_connector(name)
    except ConnectorError:
        return ("source", "sink")
    return tuple(kind for kind in ("source", "sink") if getattr(connector, kind) is not None)


def load_connector(name: str) -> Connector:
    """Loads an installed connector.

    Raises
    ------
    ConnectorError
        It cannot be loaded, or is not a connector.
    """
    found = _load(CONNECTORS, name, Connector, "connector", ConnectorError)
    assert isinstance(found, Connector)
    return found


def load_function(name: str) -> BatchFunction:
    """Loads an installed function.

    Raises
    ------
    FunctionError
        It cannot be loaded, is not a function, or has another name than its entry point.
    """
    found = _load(FUNCTIONS, name, BatchFunction, "function", FunctionError)
    assert isinstance(found, BatchFunction)
    if found.name != name:
        raise FunctionError(f"the entry point {name} in {FUNCTIONS} leads to function {found.name}: give both one name")
    return found


def _load(group: str, name: str, kind: type, what: str, error: type[SbonError]) -> object:
    entry = _entries(group)[name]
    try:
        found = entry.load()
    except Exception as problem:  # other people's code: whatever it raises, it must not end the agent
        raise error(f"{what} {name} ({entry.value}) cannot be loaded: {type(problem).__name__}: {problem}") from problem
    if not isinstance(found, kind):
        raise error(f"{what} {name} ({entry.value}) is a {type(found).__name__}, expected {kind.__module__}.{kind.__name__}")
    return found


@cache
def _entries(group: str) -> dict[str, Any]:
    from importlib import metadata  # loads the e-mail parser: not for an agent that hosts nothing

    return {entry.name: entry for entry in metadata.entry_points(group=group)}
