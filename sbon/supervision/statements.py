"""Translates SQL text to the effects to carry out.

It loads the SQL parser and takes long, so `sbon.queries.queries` calls it on an executor thread.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import Enum
from typing import Protocol

import msgspec

from sbon.errors import QueryError, SbonError
from sbon.extensions import Extensions
from sbon.query.catalog import Catalog, Entry, did_you_mean
from sbon.query.listing import Listing
from sbon.query.places import Places, located
from sbon.query.plan import UNCHANGED, Build, Changed, Plan
from sbon.query.system import SourceDefinition
from sbon.supervision.homes import Doubt
from sbon.types import NodeId, QueryId


class Effect(Enum):
    """The effect that a statement asks for."""

    NOTHING = "nothing"
    ENTER = "enter"
    """Enter a name into the catalogue."""
    FORGET = "forget"
    """Remove a name from the catalogue."""
    RUN = "run"
    END = "end"
    """End a running query, by its name."""
    TELL = "tell"
    """Only answer."""


class Connectors(Protocol):
    """The connectors of the agent that takes the statements."""

    def extensions(self) -> Extensions:
        """Returns the extensions that are installed here."""

    def check_source(self, source: SourceDefinition, runs_here: bool) -> str:
        """Checks the options of a source's connector; returns a note on what cannot be checked here.

        Raises
        ------
        ConnectorError
            An option is wrong.
        """


class Prepared(msgspec.Struct, frozen=True):
    """One parsed and checked statement."""

    effect: Effect
    kind: str
    """One of "source", "view", "sink", "query", "drop" or "show"."""
    name: str
    sql: str
    message: str
    source: SourceDefinition | None = None
    plan: Plan | None = None
    build: Build | None = None
    """Returns `plan` with other numbers of instances of its `sizings`."""
    if_exists: bool = False
    """True if it is no error to find nothing to end."""
    places: Places = {}
    replaces: QueryId = ""
    """Former query of this name, whose home is gone; it is ended first."""
    notes: tuple[str, ...] = ()
    """Notes for the user; they are part of the message."""
    listing: Listing | None = None
    """The answer, if one is asked for; None for SHOW QUERIES, which needs the other agents' answers."""


def prepare(
    sql: str,
    entries: Sequence[Entry],
    nodes: Mapping[NodeId, Mapping[str, str]],
    here: NodeId,
    ids: Iterator[QueryId],
    stamp: int,
    connectors: Connectors,
    doubts: Mapping[str, Doubt],
    changed: Changed = UNCHANGED,
) -> list[Prepared]:
    """Parses and checks all statements of a text, each with the names that the earlier ones would make.

    Parameters
    ----------
    doubts : sinks among the entries whose queries have no home that answers
    changed : choices that were made for earlier plans of the queries

    Raises
    ------
    QueryError
        A statement cannot be run; the error is that of the first such statement. Nothing has been done.
    """
    from sbon.query.sql import parse

    catalog = Catalog()
    catalog.merge(entries)
    extensions = connectors.extensions()
    prepared = []
    for statement in parse(sql, extensions):
        try:
            effect = _prepare_one(statement, catalog, nodes, here, ids, stamp, connectors, doubts, changed)
        except SbonError as problem:
            raise located(problem, statement.places) from problem
        prepared.append(msgspec.structs.replace(effect, places=statement.places))
    return prepared


def _prepare_one(
    statement: object,
    catalog: Catalog,
    nodes: Mapping[NodeId, Mapping[str, str]],
    here: NodeId,
    ids: Iterator[QueryId],
    stamp: int,
    connectors: Connectors,
    doubts: Mapping[str, Doubt],
    changed: Changed,
) -> Prepared:
    from sbon.query.dependents import dependents
    from sbon.query.inventory import listing
    from sbon.query.planner import plan, planning
    from sbon.query.sql import CreateSink, CreateSource, CreateView, DropStatement, SelectQuery, ShowStatement

    extensions = connectors.extensions()
    notes: list[str] = []
    match statement:
        case CreateSource():
            existing = catalog.get(statement.name)
            if statement.if_not_exists and existing is not None:
                message = f"source {statement.name} exists already"
                # Since the same source has been declared here too, this agent may read what it names (`sbon_agent.connectors.reaches`).
                same = existing.source is not None and existing.source.params == statement.definition.params
                known = existing.source if same else None
                return Prepared(Effect.NOTHING, "source", statement.name, statement.sql, message, source=known)
            source = msgspec.structs.replace(statement.definition, home=here)
            hosts = source.hosts(nodes)
            note = connectors.check_source(source, here in hosts)
            catalog.put("source", statement.name, sql=statement.sql, owner=here, stamp=stamp, source=source)
            message = f"source {statement.name} on {_some(hosts)}{_missing(source.absent(nodes), nodes)}{note}"
            return Prepared(Effect.ENTER, "source", statement.name, statement.sql, message, source=source)
        case CreateView():
            if statement.if_not_exists and catalog.get(statement.name) is not None:
                return Prepared(Effect.NOTHING, "view", statement.name, statement.sql, f"view {statement.name} exists already")
            plan(
                statement.query, catalog, nodes, here, "check", extensions=extensions
            )  # a view that cannot be run is refused when it is made, not when it is used
            catalog.put("view", statement.name, sql=statement.sql, owner=here, stamp=stamp)
            return Prepared(Effect.ENTER, "view", statement.name, statement.sql, f"view {statement.name}")
        case CreateSink():
            replaced = _replaced(statement.name, catalog, doubts, here, stamp)
            if statement.if_not_exists and catalog.get(statement.name) is not None:
                return Prepared(Effect.NOTHING, "sink", statement.name, statement.sql, f"sink {statement.name} exists already")
            planned, build = planning(statement, catalog, nodes, here, next(ids), notes=notes, extensions=extensions, changed=changed)
            catalog.put("sink", statement.name, sql=statement.sql, owner=here, stamp=stamp, query=planned.query)
            if replaced is not None:
                notes.append(f"it replaces {replaced.query}, as {replaced.why}")
            message, former = "; ".join([f"sink {statement.name} runs", *notes]), "" if replaced is None else replaced.query
            return Prepared(
                Effect.RUN, "sink", statement.name, statement.sql, message, plan=planned, replaces=former, notes=tuple(notes), build=build
            )
        case SelectQuery():
            planned, build = planning(statement, catalog, nodes, here, next(ids), notes=notes, extensions=extensions, changed=changed)
            message = "; ".join([*notes, f"follow it with: sbon tail {planned.query}"])
            return Prepared(Effect.RUN, "query", planned.query, statement.sql, message, plan=planned, notes=tuple(notes), build=build)
        case DropStatement():
            lost = dependents(statement.name, catalog, nodes, extensions) if statement.kind in ("source", "view") else []
            return _prepare_drop(statement.kind, statement.name, statement.if_exists, statement.sql, catalog, here, stamp, lost)
        case ShowStatement():
            if statement.what == "queries":
                return Prepared(Effect.TELL, "show", "", statement.sql, "")
            told = listing(statement, catalog, nodes, extensions)
            return Prepared(Effect.TELL, "show", statement.name, statement.sql, "", listing=told)
    raise AssertionError(f"unknown statement {type(statement).__name__}")


def _replaced(name: str, catalog: Catalog, doubts: Mapping[str, Doubt], here: NodeId, stamp: int) -> Doubt | None:
    """Frees the name of a sink whose home is gone. Returns that sink, or None if the name is free or rightly taken."""
    entry, doubt = catalog.get(name), doubts.get(name)
    if entry is None or entry.kind != "sink" or doubt is None or entry.query != doubt.query:
        return None
    if not doubt.gone:
        raise QueryError(f"there is a sink {name}, but {doubt.why}", hint="try again in some seconds: it may come back, or have failed")
    catalog.drop("sink", name, owner=here, stamp=stamp)
    return doubt


def _prepare_drop(kind: str, name: str, if_exists: bool, sql: str, catalog: Catalog, here: NodeId, stamp: int, lost: list[str]) -> Prepared:
    if kind == "query":
        return Prepared(Effect.END, "drop", name, sql, f"query {name} dropped", if_exists=if_exists)
    if if_exists and catalog.get(name) is None:
        return Prepared(Effect.NOTHING, "drop", name, sql, f"there is no {kind} {name}")
    catalog.drop(kind, name, owner=here, stamp=stamp)
    if kind == "sink":
        return Prepared(Effect.END, "drop", name, sql, f"sink {name} dropped")
    views = f"; {'view' if len(lost) == 1 else 'views'} {_some(lost)} cannot be used without it" if lost else ""
    return Prepared(Effect.FORGET, kind, name, sql, f"{kind} {name} dropped{views}")


def _missing(absent: Sequence[NodeId], nodes: Iterable[NodeId]) -> str:
    """Returns a note on nodes that are not alive: they may come later, or be misspelt."""
    if not absent:
        return ""
    guess = did_you_mean(absent[0], nodes)
    hint = f"; {guess}" if guess.startswith("did you mean") else ""
    return f"; {_some(list(absent))} {'is' if len(absent) == 1 else 'are'} not alive{hint}"


def _some(names: list[NodeId]) -> str:
    if not names:
        return "no living node yet"
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")


def as_refusal(problem: BaseException, places: Places) -> SbonError:
    """Returns the error that people see, with its place in their text; anything but an SbonError is a bug."""
    if isinstance(problem, SbonError):
        return located(problem, places)
    return QueryError(f"the statement broke the planner ({type(problem).__name__}: {problem})", hint="please report it")
