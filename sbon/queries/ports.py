"""Interfaces that the queries of an agent use: its connectors, the resources that these may reach, and the file of kept statements."""

from collections.abc import Mapping
from pathlib import PurePath
from typing import Protocol

from sbon.query.params.source import SourceParams
from sbon.query.plan import Plan
from sbon.supervision import statements
from sbon.supervision.resumption import GivenSink, Kept
from sbon.types import NodeId, OperatorId, QueryId


class Connectors(statements.Connectors, Protocol):
    """The connectors that are installed on an agent."""

    def check_sinks(self, plan: Plan, nodes: Mapping[OperatorId, NodeId]) -> None:
        """Checks the options of sinks on these hosts, without making the sinks.

        Raises
        ------
        ConnectorError
            An option is wrong.
        """


class Reaches(Protocol):
    """Notes the sources and sinks that people have submitted to this agent itself. They may reach more than those of other agents."""

    @property
    def own_words(self) -> tuple[SourceParams, ...]:
        """Returns the sources that have been defined over the control socket."""

    @property
    def own_sinks(self) -> tuple[GivenSink, ...]:
        """Returns the sinks of queries that have been given over the control socket."""

    def declared(self, source: SourceParams) -> None:
        """Notes a source that has been defined."""

    def dropped(self, name: str) -> None:
        """Forgets a source that has been dropped."""

    def given(self, sink: GivenSink) -> None:
        """Notes the sink of a query."""

    def ended(self, query: QueryId) -> None:
        """Forgets the sink of a query that has ended."""


class KeptFile(Protocol):
    """The file of statements that are run again after a restart."""

    @property
    def path(self) -> PurePath | None:
        """Returns the path of the file; None if nothing is kept."""

    @property
    def remembers(self) -> bool:
        """True if everything that the agent's former processes kept has been loaded."""

    def load(self, agent: NodeId) -> Kept | None:
        """Returns what the agent of this name kept last."""

    def save(self, kept: Kept) -> None:
        """Replaces the file; blocks until it is on disk.

        Raises
        ------
        OSError, ValueError
            The file cannot be written, or would be too large; it stays as it was.
        """
