"""Finds connectors and functions of installed packages, by the entry point groups `sbon.connectors` and `sbon.functions`.

    [project.entry-points."sbon.connectors"]
    kafka = "our_package.kafka:CONNECTOR"        # an sbon_agent.connectors.Connector

    [project.entry-points."sbon.functions"]
    smooth = "our_package.functions:smooth"      # an sbon.functions.BatchFunction of that name

Nothing is loaded before it is needed, so an agent that hosts nothing stays small. Code never travels between agents: a connector or
function must be installed on every agent that is to run it.
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
    """Returns the connectors and functions installed for this process."""
    functions = {name: partial(load_function, name) for name in sorted(_entries(FUNCTIONS))}
    return Extensions(tuple(sorted(_entries(CONNECTORS))), functions, _offered)


def _offered(name: str) -> tuple[str, ...]:
    """Returns whether a connector is a source, a sink, or both. A connector that cannot be loaded counts as both; its use reports the
    error."""
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
        The connector cannot be loaded, or is not a `Connector`.
    """
    found = _load(CONNECTORS, name, Connector, "connector", ConnectorError)
    assert isinstance(found, Connector)
    return found


def load_function(name: str) -> BatchFunction:
    """Loads an installed function.

    Raises
    ------
    FunctionError
        The function cannot be loaded, is not a `BatchFunction`, or has another name than its entry point.
    """
    found = _load(FUNCTIONS, name, BatchFunction, "function", FunctionError)
    assert isinstance(found, BatchFunction)
    if found.name != name:
        raise FunctionError(f"the entry point {name} in {FUNCTIONS} leads to function {found.name}: give both the same name")
    return found


def _load(group: str, name: str, kind: type, what: str, error: type[SbonError]) -> object:
    entry = _entries(group)[name]
    try:
        found = entry.load()
    except Exception as problem:  # other people's code: no exception of it may end the agent
        raise error(f"{what} {name} ({entry.value}) cannot be loaded: {type(problem).__name__}: {problem}") from problem
    if not isinstance(found, kind):
        raise error(f"{what} {name} ({entry.value}) is a {type(found).__name__}, expected {kind.__module__}.{kind.__name__}")
    return found


@cache
def _entries(group: str) -> dict[str, Any]:
    from importlib import metadata  # imported here, because it loads the e-mail parser, which an agent that hosts nothing does not need

    return {entry.name: entry for entry in metadata.entry_points(group=group)}
