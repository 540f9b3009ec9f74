"""Source definitions, and the system streams that every agent offers without a declaration."""

from collections.abc import Mapping

import msgspec

from sbon.query.params.source import SourceParams
from sbon.schema import ColumnType, Field, Schema
from sbon.types import NodeId

SOURCE_CONNECTORS = ("datagen", "file", "http", "mqtt", "tcp")
"""Built-in connectors of CREATE SOURCE."""
SINK_CONNECTORS = ("discard", "file", "http", "mqtt", "sse", "tcp", "websocket")
"""Built-in connectors of CREATE SINK; plain queries use `tail`."""


class SourceDefinition(msgspec.Struct, frozen=True):
    """A logical source: one physical source on each node that `nodes` or `labels` choose."""

    name: str
    connector: str
    options: tuple[tuple[str, str], ...]
    """The connector's options, sorted by key."""
    columns: Schema
    time_column: str | None
    watermark_delay_us: int = 0
    nodes: tuple[NodeId, ...] = ()
    """Names of the nodes with a physical source. If both this and `labels` are empty, `everywhere` or `home` decides."""
    labels: tuple[tuple[str, str], ...] = ()
    """(label, value), sorted. A node is chosen if for every label named here it has one of the values."""
    home: NodeId = ""
    """The agent that took the statement. It has the only physical source if neither nodes nor labels are given."""
    everywhere: bool = False
    """There is a physical source on every node, as of system streams."""
    rows_per_s: float | None = None
    """Expected rows a second of each physical source, if the statement gives it."""
    idle_after_us: int = 0
    """Silence after which the watermark of a physical source follows the wall clock; 0: never."""
    not_null: tuple[str, ...] = ()
    """Columns that may not be NULL."""
    profile: tuple[tuple[str, float], ...] = ()
    """Target points and the rows a second that each physical source is expected to reach there (`sbon.query.profiles`)."""

    @property
    def params(self) -> SourceParams:
        """Returns the parameters of each physical source."""
        times = self.time_column, self.watermark_delay_us, self.idle_after_us
        return SourceParams(self.name, self.connector, self.options, self.columns, *times, self.not_null)

    def hosts(self, nodes: Mapping[NodeId, Mapping[str, str]]) -> list[NodeId]:
        """Returns the nodes with a physical source, sorted, among the given ones (labels by node)."""
        return sorted(node for node, labels in nodes.items() if self._chooses(node, labels))

    def _chooses(self, node: NodeId, labels: Mapping[str, str]) -> bool:
        if self.everywhere:
            return True
        if self.nodes:
            return node in self.nodes
        if not self.labels:
            return node == self.home
        wanted: dict[str, list[str]] = {}
        for label, value in self.labels:
            wanted.setdefault(label, []).append(value)
        return all(labels.get(label) in values for label, values in wanted.items())

    def absent(self, nodes: Mapping[NodeId, Mapping[str, str]]) -> list[NodeId]:
        """Returns the nodes that the statement names and that are not among the given ones, sorted."""
        named = self.nodes or (() if self.labels or self.everywhere else (self.home,))
        return sorted(node for node in named if node not in nodes)


def _fields(**columns: ColumnType) -> Schema:
    return tuple(Field(name, type_) for name, type_ in columns.items())


_TIME, _TEXT, _FLOAT, _INT = ColumnType.TIME, ColumnType.TEXT, ColumnType.FLOAT, ColumnType.INT

PROBES = _fields(ts=_TIME, node=_TEXT, region=_TEXT, peer=_TEXT, peer_region=_TEXT, rtt_ms=_FLOAT, estimated_ms=_FLOAT)
"""One row per answered probe: the measured RTT and the estimate from coordinates. `region` is the node's label of that name, else NULL."""
LOAD = _fields(ts=_TIME, node=_TEXT, region=_TEXT, cpu=_FLOAT, memory=_FLOAT, load_ms=_FLOAT, operators=_INT)
"""One row a second: share of CPU and memory in use (0 to 1), the load dimension of the coordinate, and the number of operators hosted."""
LINKS = _fields(
    ts=_TIME, node=_TEXT, region=_TEXT, peer=_TEXT, link=_TEXT, operator=_TEXT, rows_per_s=_FLOAT, bytes_per_s=_FLOAT, queued=_INT
)
"""One row a second per outgoing link: its rates, and the batches not yet acknowledged."""


def _stream(name: str, columns: Schema, rows_per_s: float) -> SourceDefinition:
    # Rows are made on the agent's own thread in the order of their times, so the watermark needs no delay.
    return SourceDefinition(name, "system", (), columns, "ts", everywhere=True, rows_per_s=rows_per_s)


SYSTEM_STREAMS: dict[str, SourceDefinition] = {
    "sys.probes": _stream("sys.probes", PROBES, 1.0),
    "sys.load": _stream("sys.load", LOAD, 1.0),
    "sys.links": _stream("sys.links", LINKS, 4.0),
}
"""System streams by name. The connector `system` takes no options; `SourceParams.name` selects the stream."""


def known_columns(source: SourceDefinition, node: NodeId, labels: Mapping[str, str]) -> dict[str, str | None]:
    """Returns the columns whose value is the same in every row of the physical source on one node; the planner prunes with them.

    Every source has `_node` and `_<label>` for each label of any node (NULL where this node lacks it), hidden from `SELECT *`; system
    streams have `node` and `region` as ordinary columns.
    """
    known: dict[str, str | None] = {"_node": node}
    known.update({f"_{label}": value for label, value in labels.items() if label != "node"})
    if source.everywhere:
        known["node"] = node
        known["region"] = labels.get("region")
    return known
