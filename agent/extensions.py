"""What installed packages add to an agent, by the entry point groups `sbon.connectors` and `sbon.functions`.

    [project.entry-points."sbon.connectors"]
    kafka = "our_package.kafka:CONNECTOR"        # an agent.connectors.Connector

Nothing is loaded before it is wanted: an agent that hosts nothing stays small. No code ever arrives over the wire; what a query names must
be installed on every agent that is to run it.
"""

from functools import cache
from typing import Any

from agent.connectors.base import Connector
from sbon.errors import ConnectorError
from sbon.extensions import Extensions

CONNECTORS = "sbon.connectors"


@cache
def installed() -> Extensions:
    """What is installed for this process."""
    return Extensions(connectors=tuple(sorted(_entries(CONNECTORS))))


def load_connector(name: str) -> Connector:
    """An installed connector.

    Raises
    ------
    ConnectorError
        It cannot be loaded, or is none.
    """
    entry = _entries(CONNECTORS)[name]
    try:
        found = entry.load()
    except Exception as problem:  # somebody else's code: whatever it does, it must not end the agent
        raise ConnectorError(f"connector '{name}' ({entry.value}) cannot be loaded: {type(problem).__name__}: {problem}") from problem
    if not isinstance(found, Connector):
        raise ConnectorError(f"connector '{name}' ({entry.value}) is a {type(found).__name__}, expected an agent.connectors.Connector")
    return found


@cache
def _entries(group: str) -> dict[str, Any]:
    from importlib import metadata  # loads a parser of e-mail: not for an agent that hosts nothing

    return {entry.name: entry for entry in metadata.entry_points(group=group)}
