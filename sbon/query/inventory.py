"""Answers DESCRIBE and SHOW with tables made from the catalogue and from the installed functions."""

from collections.abc import Iterable, Mapping, Sequence
from typing import TypeAlias

from sbon.errors import QueryError
from sbon.extensions import Extensions, described
from sbon.query.aggregate_names import AGGREGATE_NAMES
from sbon.query.binder import bind
from sbon.query.catalog import Catalog, Entry, did_you_mean
from sbon.query.listing import Listing
from sbon.query.named_calls import function_names
from sbon.query.relation import Relation
from sbon.query.show import ShowStatement
from sbon.query.sql import CreateSink, CreateView, parse
from sbon.query.system import SYSTEM_STREAMS, SourceDefinition
from sbon.query.text import duration_text
from sbon.schema import TYPE_NAMES
from sbon.types import NodeId

Labels: TypeAlias = Mapping[NodeId, Mapping[str, str]]


def listing(statement: ShowStatement, catalog: Catalog, nodes: Labels, extensions: Extensions) -> Listing:
    """Returns the answer to a DESCRIBE or SHOW, except SHOW QUERIES, which the agent answers.

    Parameters
    ----------
    nodes : labels of the living nodes, by node

    Raises
    ------
    QueryError
        The name does not exist, or its definition cannot be bound here.
    """
    match statement.what:
        case "columns":
            return Listing(("column", "type", "remarks"), tuple(_columns(statement.name, catalog, nodes, extensions)))
        case "create":
            return Listing(("name", "statement"), ((statement.name, _named(statement, catalog).sql),))
        case "sources":
            sources = [entry.source for entry in _entries(catalog, "source") if entry.source is not None]
            rows = ((source.name, source.connector, ", ".join(source.hosts(nodes)) or None) for source in sources)
            return Listing(("name", "connector", "nodes"), tuple(rows))
        case "views":
            return Listing(("name", "created at"), tuple((entry.name, entry.owner) for entry in _entries(catalog, "view")))
        case "sinks":
            sinks = ((entry.name, _connector(entry, extensions), entry.query) for entry in _entries(catalog, "sink"))
            return Listing(("name", "connector", "query"), tuple(sinks))
        case "tables":
            kinds = [(entry.name, entry.kind) for entry in _entries(catalog, "source", "view")]
            return Listing(("name", "kind"), (*kinds, *((name, "system stream") for name in SYSTEM_STREAMS)))
        case "functions":
            return Listing(("name", "kind", "call"), tuple(_functions(extensions)))
    raise QueryError(f"SHOW {statement.what.upper()} has no answer", hint="write SHOW TABLES")


def _entries(catalog: Catalog, *kinds: str) -> list[Entry]:
    return [entry for entry in catalog.living.values() if entry.kind in kinds]


def _named(statement: ShowStatement, catalog: Catalog) -> Entry:
    name, entry = statement.name, catalog.get(statement.name)
    if entry is not None and entry.kind != statement.kind:
        raise QueryError(f"{name} is a {entry.kind}, not a {statement.kind}", hint=f"write SHOW CREATE {entry.kind.upper()} {name}")
    if entry is not None:
        return entry
    if name in SYSTEM_STREAMS:
        raise QueryError(f"{name} is a system stream, which no statement has made", hint=f"write DESCRIBE {name}")
    raise _nothing(name, catalog)


def _nothing(name: str, catalog: Catalog) -> QueryError:
    known = [*catalog.names(), *SYSTEM_STREAMS]
    return QueryError(f"there is no source, view or sink {name}", hint=did_you_mean(name, known) or "SHOW TABLES lists what there is")


def _columns(name: str, catalog: Catalog, nodes: Labels, extensions: Extensions) -> Iterable[tuple[str, str, str | None]]:
    source = catalog.source(name)
    if source is not None:
        return [(column.name, TYPE_NAMES[column.type], "; ".join(_remarks(source, column.name)) or None) for column in source.columns]
    entry = catalog.get(name)
    if entry is None:
        raise _nothing(name, catalog)
    (statement,) = parse(entry.sql, extensions)
    if not isinstance(statement, CreateView | CreateSink):
        raise QueryError(f"the text of {name} in the catalogue is no {entry.kind}")
    relation, _ = bind(statement, catalog, nodes, extensions)
    times = _times(relation)
    return [(column.name, TYPE_NAMES[column.type], "event time" if column.name in times else None) for column in relation.schema]


def _remarks(source: SourceDefinition, column: str) -> Iterable[str]:
    if column == source.time_column:
        delay = source.watermark_delay_us
        yield f"event time, up to {duration_text(delay)} out of order" if delay else "event time, in order"
    if column in source.not_null:
        yield "NOT NULL"


def _times(relation: Relation) -> Sequence[str]:
    return [column.name for column in relation.schema if column.name in relation.times]


def _connector(entry: Entry, extensions: Extensions) -> str | None:
    try:
        (statement,) = parse(entry.sql, extensions)
    except QueryError:  # defined on an agent with a connector that is not installed here
        return None
    return statement.connector if isinstance(statement, CreateSink) else None


def _functions(extensions: Extensions) -> Iterable[tuple[str | None, ...]]:
    yield from ((name.upper(), "scalar", None) for name in sorted(function_names()))
    yield from ((name.upper(), "aggregate", None) for name in sorted(AGGREGATE_NAMES))
    windows = {"TUMBLE": "TUMBLE(stream, ts, size)", "HOP": "HOP(stream, ts, slide, size)", "SESSION": "SESSION(stream, ts, gap)"}
    yield from ((name, "window", call) for name, call in windows.items())
    yield from ((row["name"], "of a package", row["call"]) for row in described(extensions))
