"""Determines whose statement a source or sink comes from, and so which files and addresses it may access (`sbon.reach`). The engine asks
before it builds a source or sink.

The definition decides, not the agent that asks, because queries may change owners. A sink is this agent's own if the statement of its query
was given over this agent's control socket, even before a restart, and named exactly this sink. A source is this agent's own if exactly this
definition was given over this control socket. The agent whose query uses the source does not matter, because the catalogue belongs to all
agents.
"""

import os.path
from pathlib import Path

import msgspec

from sbon.errors import ConfigError
from sbon.query.params.source import SinkParams, SourceParams
from sbon.reach import ConnectorsConfig, Reach, reach_of_others
from sbon.supervision.resumption import GivenSink, given_sink
from sbon.types import NodeId, QueryId

DECLARED_MAX = 10_000
"""Most sources, and most sinks, whose definitions are remembered; further ones displace the oldest, which then count as another agent's."""


class Reaches:
    """The files and addresses that sources and sinks of this agent may access.

    Parameters
    ----------
    data_dir : folder where relative paths of own statements start
    node : name of the agent, for messages
    """

    def __init__(self, config: ConnectorsConfig, data_dir: str, node: NodeId) -> None:
        self._node = node
        self._data_dir = os.path.abspath(data_dir)
        self._declared: dict[str, SourceParams] = {}
        self._sinks: dict[QueryId, GivenSink] = {}
        self.own = Reach(node, self._data_dir)
        self.reconfigure(config)

    def reconfigure(self, config: ConnectorsConfig) -> None:
        """Uses other settings from now on; open files and sockets stay open.

        Raises
        ------
        ConfigError
            A folder begins with `~name`, and there is no such user.
        """
        try:
            folders = [os.path.abspath(os.path.join(self._data_dir, Path(folder).expanduser())) for folder in config.file.allow]
        except RuntimeError as problem:
            raise ConfigError(f"connectors.file.allow: {problem}") from problem
        self._others = reach_of_others(config, self._node, self._data_dir, folders)

    def declared(self, source: SourceParams) -> None:
        """Remembers a source that has been defined over the control socket. Call it on the agent's thread."""
        self._declared.pop(source.name, None)
        self._declared[source.name] = source
        while len(self._declared) > DECLARED_MAX:
            del self._declared[next(iter(self._declared))]

    @property
    def own_words(self) -> tuple[SourceParams, ...]:
        """Returns the sources that have been defined over the control socket."""
        return tuple(self._declared.values())

    @property
    def own_sinks(self) -> tuple[GivenSink, ...]:
        """Returns the sinks of queries that have been given over the control socket."""
        return tuple(self._sinks.values())

    def given(self, sink: GivenSink) -> None:
        """Remembers the sink of a query that has been given over the control socket. Call it on the agent's thread."""
        self._sinks.pop(sink.query, None)
        self._sinks[sink.query] = sink
        while len(self._sinks) > DECLARED_MAX:
            del self._sinks[next(iter(self._sinks))]

    def ended(self, query: QueryId) -> None:
        """Forgets the sink of a query that has ended."""
        self._sinks.pop(query, None)

    def dropped(self, name: str) -> None:
        """Forgets a source that has been dropped over the control socket."""
        self._declared.pop(name, None)

    def of(self, params: SourceParams | SinkParams, query: QueryId = "") -> Reach:
        """Returns the files and addresses that a source or a sink of this query may access."""
        if isinstance(params, SourceParams):
            # The definition does not depend on whether it is read as a stream or as a lookup table, in whole or in part.
            definition = msgspec.structs.replace(params, is_table=False, reads=None)
            return self.own if self._declared.get(params.name) == definition else self._others
        return self.own if self._sinks.get(query) == given_sink(query, params) else self._others
