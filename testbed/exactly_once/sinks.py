"""Sinks of a story's queries: the agent's `tail`, or a file."""

import csv
import json
from pathlib import Path
from typing import Any, Protocol

import polars as pl

from sbon.supervision.record import QueryState
from sbon_agent.node import Agent
from sbon_testbed.backend import Tail
from sbon_testbed.exactly_once.queries import Rows, normal
from sbon_testbed.simulator.harness import World

FORMATS = ("ndjson", "csv", "parquet")


class Sink(Protocol):
    """The interface of a sink to the story."""

    query: str

    @property
    def finished(self) -> bool:
        """Tells whether no further row will come."""

    @property
    def problem(self) -> str:
        """Describes why the query has failed; empty if it has not."""

    def rows(self) -> Rows:
        """Returns all rows so far."""


class Watched:
    """The rows of a SELECT, collected at the agent that took it."""

    def __init__(self, tail: Tail) -> None:
        self._tail = tail
        self.query = tail.query

    @property
    def finished(self) -> bool:
        """Tells whether the query has ended."""
        return self._tail.finished

    @property
    def problem(self) -> str:
        """Returns the agent's message about the query's end."""
        return self._tail.error

    def rows(self) -> Rows:
        """Returns the rows in order of arrival."""
        return normal(self._tail.rows)


class Filed:
    """The rows of a CREATE SINK, in a real file in the data directory of the sink's agent."""

    def __init__(self, world: World, query: str, place: "Place") -> None:
        self.query = query
        self._world, self._place = world, place

    @property
    def finished(self) -> bool:
        """Tells whether an agent that knows the query reports its end."""
        return QueryState.FINISHED in self._states

    @property
    def problem(self) -> str:
        """Reports that no agent knows the query any more; empty if one does."""
        return "" if self._states else "no agent knows it"

    @property
    def _states(self) -> set[QueryState]:
        """States of the query by all agents that know it, perhaps including an earlier owner that does not know of the new one."""
        found = (agent.queries.owned.find(self.query) for agent in self._world.agents if isinstance(agent, Agent))
        return {record.state for record in found if record is not None}

    def rows(self) -> Rows:
        """Returns the rows in the file, or in all files of the folder."""
        return self._place.rows()


class Place:
    """The file that a sink writes, and its format."""

    def __init__(self, world: World, node: int, name: str, kind: str, mode: str) -> None:
        self._node, self._kind, self._mode = world.nodes[node], kind, mode
        self._root, self._name = world.data_dir_of(node), f"{name}.{kind}"

    def sql(self, name: str, select: str) -> str:
        """Returns the statement that creates the sink."""
        options = f"connector = 'file', node = '{self._node}', path = '{self._name}', format = '{self._kind}', mode = '{self._mode}'"
        return f"CREATE SINK {name} FROM ({select}) WITH ({options})"

    def rows(self) -> Rows:
        """Returns all rows; none if there is no file."""
        found: list[tuple[Any, ...]] = []
        for path in sorted(self._root.rglob(self._name)):
            found += _READERS[self._kind](path)
        return normal(found)


def _ndjson(path: Path) -> list[tuple[Any, ...]]:
    return [tuple(json.loads(line).values()) for line in path.read_text().splitlines()]


def _csv(path: Path) -> list[tuple[Any, ...]]:
    with path.open(newline="") as file:
        return [tuple(map(_number, row)) for row in list(csv.reader(file))[1:]]


def _number(cell: str) -> Any:
    if not cell:
        return None
    try:
        return int(cell)
    except ValueError:
        pass
    try:
        return float(cell)
    except ValueError:
        return cell


def _parquet(path: Path) -> list[tuple[Any, ...]]:
    return [row for part in sorted(path.glob("part-*.parquet")) for row in pl.read_parquet(part).rows()]


_READERS = {"ndjson": _ndjson, "csv": _csv, "parquet": _parquet}
