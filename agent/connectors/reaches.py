"""Determines whose statement a source or sink comes from, and what it may therefore access (`sbon.reach`).

The engine asks before it builds one.

A sink is this agent's own if this agent has asked itself to run it: its statement came over the control socket. (The handshake refuses a
peer with this agent's name, so nobody else can ask in that name.) For a source the definition counts, since the catalogue belongs to
everybody: it is this agent's own if exactly this definition was given over its control socket, before a restart or since, whichever agent's
query uses it.
"""

import os.path
from pathlib import Path

import msgspec

from sbon.errors import ConfigError
from sbon.query.plan import SinkParams, SourceParams
from sbon.reach import ConnectorsConfig, Reach, reach_of_others
from sbon.types import NodeId

DECLARED_MAX = 10_000
"""Most sources whose definitions are remembered; beyond it the oldest is forgotten, and counts as another agent's."""


class Reaches:
    """What sources and sinks of this agent may access.

    Parameters
    ----------
    data_dir : folder where relative paths of own statements start
    node : name of the agent, for messages
    """

    def __init__(self, config: ConnectorsConfig, data_dir: str, node: NodeId) -> None:
        self._node = node
        self._data_dir = os.path.abspath(data_dir)
        self._declared: dict[str, SourceParams] = {}
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

    def dropped(self, name: str) -> None:
        """Forgets a source that has been dropped over the control socket."""
        self._declared.pop(name, None)

    def of(self, params: SourceParams | SinkParams, *, asked_by_us: bool) -> Reach:
        """Returns what this source or sink may access.

        Parameters
        ----------
        asked_by_us : whether this agent asks itself to run it
        """
        if isinstance(params, SourceParams):
            # Read as a stream or as a lookup table, in whole or in part, it is the same definition.
            definition = msgspec.structs.replace(params, is_table=False, reads=None)
            return self.own if self._declared.get(params.name) == definition else self._others
        return self.own if asked_by_us else self._others
