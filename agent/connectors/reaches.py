"""Determines whose statement a source or sink comes from, and what it may therefore access (`sbon.reach`).

The engine asks before it builds one.

The definition counts, not who asks: another agent may have taken a query over that this one has taken, or this one a query of another. A
sink is this agent's own if its query's statement was given over this agent's control socket, before a restart or since, and named exactly
this sink. A source is, if exactly this definition was given there, whichever agent's query uses it, since the catalogue belongs to
everybody.
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
"""Most sources, and most sinks, whose definitions are remembered; beyond it the oldest is forgotten, and counts as another agent's."""


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
        """Notes a source that has been defined over the control socket. Call it on the agent's thread."""
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
        """Notes the sink of a query that has been given over the control socket. Call it on the agent's thread."""
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
        """Returns what this source or sink of a query may access."""
        if isinstance(params, SourceParams):
            # Read as a stream or as a lookup table, in whole or in part, it is the same definition.
            definition = msgspec.structs.replace(params, is_table=False, reads=None)
            return self.own if self._declared.get(params.name) == definition else self._others
        return self.own if self._sinks.get(query) == given_sink(query, params) else self._others
