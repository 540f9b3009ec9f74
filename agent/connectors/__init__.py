"""Connectors: where rows enter and leave the overlay.

`build_source` and `build_sink` make the connector that a CREATE SOURCE or CREATE SINK names; the engine calls them. The docstring of a
connector's module lists its options in the WITH clause, one `name : meaning` a line; `docs/reference/connectors.md` is made from these
lists. Packages add connectors: see `sbon_agent.extensions`.
"""

from sbon.connectors.interface import Congested, Polled, SinkConnector, SourceConnector
from sbon.connectors.system_streams import SystemStreams
from sbon_agent.connectors.base import Connector, ConnectorContext
from sbon_agent.connectors.registry import build_sink, build_source

__all__ = [
    "Congested",
    "Connector",
    "ConnectorContext",
    "Polled",
    "SinkConnector",
    "SourceConnector",
    "SystemStreams",
    "build_sink",
    "build_source",
]
