"""Connectors: where rows enter and leave the overlay.

`build_source` and `build_sink` make the connector that a CREATE SOURCE or CREATE SINK names; the engine calls them. The options of each
WITH clause are documented at the head of its module: `datagen`, `file_source`, `file_sink`, `tcp`, `system_source`, `discard`. Packages add
more: see `sbon_agent.extensions`.
"""

from sbon_agent.connectors.base import Congested, Connector, ConnectorContext, Polled, SinkConnector, SourceConnector
from sbon_agent.connectors.registry import build_sink, build_source
from sbon_agent.connectors.system import SystemStreams

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
