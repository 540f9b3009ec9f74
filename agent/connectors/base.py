"""Entries for connectors, and the parts of its agent that a connector may use. Its interfaces are in `sbon.connectors.interface`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

import msgspec

from sbon.connectors.interface import SinkConnector, SourceConnector
from sbon.connectors.system_streams import SystemStreams
from sbon.extensions import Extensions
from sbon.query.params.source import SinkParams, SourceParams
from sbon.reach import Reach
from sbon.schema import Schema
from sbon.types import NodeId, OperatorId
from sbon_agent.host import Host
from sbon_agent.positions import Positions


class Connector(NamedTuple):
    """A package's entry in the entry point group `sbon.connectors`: a source, a sink, or both."""

    source: Callable[[SourceParams, ConnectorContext], SourceConnector] | None = None
    """Makes a source without starting it; raises ConnectorError for options that it does not accept (`sbon.options`).
    CREATE SOURCE makes one just to check its options, and stops it; so open nothing before `start`."""
    sink: Callable[[SinkParams, Schema, ConnectorContext], SinkConnector] | None = None


class ConnectorContext(msgspec.Struct, frozen=True, kw_only=True):
    """The parts of an agent that its connectors may use."""

    host: Host
    node: NodeId
    labels: Mapping[str, str]
    data_dir: str
    """Folder of the agent."""
    reach: Reach
    """Files and addresses outside the overlay that this source or sink may access. A connector that opens files or sockets must respect it
    (`sbon_agent.connectors.opening` does so for files), because its statement may come from any member of the overlay."""
    system: SystemStreams
    """Streams of the agent's own measurements."""
    extensions: Callable[[], Extensions] = Extensions
    """Returns the extensions installed here; called when needed."""
    positions: Positions = msgspec.field(default_factory=Positions)
    """Positions from which sources continue in the midst of their files after a crash."""
    operator: OperatorId = ""
    """Id of the operator that the connector is made for; empty if there is none."""
