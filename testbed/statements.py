"""Checks the SQL of a scenario before an agent starts: every statement is planned with the declarations of the earlier statements.

The check is that of an agent (`sbon.supervision.statements`), with all nodes of the topology alive.
"""

import re
from itertools import count
from typing import Any

from sbon.connectors.system_streams import SystemStreams
from sbon.errors import LocalProtocolError, QueryError, SbonError, UsageError
from sbon.query.catalog import Catalog
from sbon.query.places import located
from sbon.reach import Reach
from sbon.supervision.statements import Effect, Prepared, prepare
from sbon_agent.connectors.base import ConnectorContext
from sbon_agent.connectors.checking import InstalledConnectors
from sbon_agent.extensions import installed
from sbon_testbed.prepare import settings_of
from sbon_testbed.scenario import Scenario, statement_name
from sbon_testbed.topology import Topology

_HEADER = re.compile(r"^[ \t]*\[\[[ \t]*statement[ \t]*\]\]", re.MULTILINE)
_SQL = re.compile(r"^[ \t]*sql[ \t]*=[ \t]*", re.MULTILINE)
_QUOTES = ("'''\n", '"""\n', "'''", '"""', "'", '"')


class _NoHost:
    """Replaces an agent's host while nothing runs."""

    def __getattr__(self, name: str) -> Any:
        raise LocalProtocolError(f"{name} of a host was asked for where options are only checked")


def check_statements(scenario: Scenario, topology: Topology, text: str = "", origin: str = "scenario") -> None:
    """Finds mistakes in the SQL of all statements, in the order of their times.

    Parameters
    ----------
    topology : topology of the whole scenario
    text, origin : the TOML text and its name, for the place in the message

    Raises
    ------
    UsageError
        A statement would be refused; the message is one line with its place in the TOML text.
    """
    catalog, ids, stamps = Catalog(), (f"check.{number:02}" for number in count(1)), count(1)
    nodes = {
        name: {**topology.labels[number], **settings_of(scenario, topology, number).get("labels", {})}
        for number, name in enumerate(topology.nodes)
    }
    for number in sorted(range(len(scenario.statement)), key=lambda number: scenario.statement[number].at_s):
        statement, stamp = scenario.statement[number], next(stamps)
        here = topology.nodes[topology.select(statement.agent)[0]]
        connectors = InstalledConnectors(_context(here, nodes[here]))
        try:
            for prepared in prepare(statement.sql, catalog.entries(), nodes, here, ids, stamp, connectors, {}):
                _check_sinks(prepared, here, connectors)
                _enter(prepared, catalog, here, stamp)
        except SbonError as problem:
            line, column = (problem.line, problem.column) if isinstance(problem, QueryError) else (0, 0)
            said = "; ".join(filter(None, (problem.message, problem.hint))) if isinstance(problem, QueryError) else str(problem)
            where = sql_place(text, number, statement.sql, line, column)
            place = f"{origin}:{where[0]}:{where[1]}" if where else origin
            inside = f", line {line}, column {column} of its SQL" if line and not where else ""
            raise UsageError(f"{place}: statement {statement_name(scenario, number)}{inside}: {said}") from problem


def sql_place(text: str, number: int, sql: str, line: int, column: int) -> tuple[int, int] | None:
    """Returns line and column, in a TOML text, of a place in the SQL of statement `number` (from 0). None if the TOML text writes the SQL
    in another form, such as with escapes.

    Examples
    --------
    >>> sql_place("[[statement]]\\nsql = 'SELECT x'\\n", 0, "SELECT x", 1, 8)
    (2, 15)
    """
    headers = list(_HEADER.finditer(text))
    if number >= len(headers) or line < 1:
        return None
    end = headers[number + 1].start() if number + 1 < len(headers) else len(text)
    key = _SQL.search(text, headers[number].end(), end)
    begins = next((key.end() + len(quote) for quote in _QUOTES if text.startswith(quote, key.end())), None) if key else None
    if begins is None or not text.startswith(sql, begins):
        return None
    at = begins + sum(len(one) for one in sql.splitlines(keepends=True)[: line - 1]) + column - 1
    return text.count("\n", 0, at) + 1, at - text.rfind("\n", 0, at)


def _context(here: str, labels: dict[str, str]) -> ConnectorContext:
    host: Any = _NoHost()
    return ConnectorContext(
        host=host, node=here, labels=labels, data_dir=".", reach=Reach(here, "."), system=SystemStreams(), extensions=installed
    )


def _check_sinks(prepared: Prepared, here: str, connectors: InstalledConnectors) -> None:
    if prepared.plan is None:
        return
    nodes = {operator.id: operator.pinned or here for operator in prepared.plan.operators}
    try:
        connectors.check_sinks(prepared.plan, nodes)
    except SbonError as problem:
        raise located(problem, prepared.places) from problem


def _enter(prepared: Prepared, catalog: Catalog, here: str, stamp: int) -> None:
    """Applies a statement's definition, or drop, for the statements after it."""
    if prepared.effect is Effect.ENTER:
        catalog.put(prepared.kind, prepared.name, sql=prepared.sql, owner=here, stamp=stamp, source=prepared.source)
    elif prepared.effect is Effect.RUN and prepared.kind == "sink" and prepared.plan is not None:
        catalog.put("sink", prepared.name, sql=prepared.sql, owner=here, stamp=stamp, query=prepared.plan.query)
    elif prepared.effect is Effect.FORGET:
        catalog.drop(prepared.kind, prepared.name, owner=here, stamp=stamp)
    elif prepared.effect is Effect.END and catalog.get(prepared.name) is not None:
        catalog.drop("sink", prepared.name, owner=here, stamp=stamp)
