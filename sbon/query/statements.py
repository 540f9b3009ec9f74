"""The statements of the dialect. Reads CREATE and DROP; keeps SELECTs as trees for `sbon.query.binder`.

    CREATE SOURCE [IF NOT EXISTS] name (column type [NOT NULL], ... [, PRIMARY KEY (column, ...) [NOT ENFORCED]]
                                        [, WATERMARK FOR column AS column [- INTERVAL '2 seconds']])
        WITH (connector = '...', [nodes = 'a,b' | labels = 'region=eu,site=x',] [estimated_rows_per_second = 100,]
              [idle_after = '10 seconds',] option = value, ...)
    CREATE [MATERIALIZED] VIEW name [WITH ([delay_bound = '250 ms',] [max_latency = '500 ms'])] AS select
    CREATE SINK name AS select WITH (connector = '...', [node = 'a',] [delay_bound = '250 ms',] [max_latency = '500 ms',]
        option = value, ...)
    CREATE SINK name FROM source_or_view WITH (...)
    DROP SOURCE | VIEW | SINK | QUERY [IF EXISTS] name
    DESCRIBE name, SHOW ... (see `sbon.query.show`)
    select

TABLE means the same as SOURCE. A source has physical sources on the `nodes` that it names, or on all nodes whose `labels` match (values of
one label are alternatives, different labels must all match). Without both, the only physical source is on the agent that takes the
statement.

`delay_bound` is the longest network latency from any source to the sink that is accepted. `max_latency` is the greatest predicted latency
of an answer that is accepted: network, waiting and computing. `on_miss` says what happens to rows that would be later. The bounds of a view
hold for every query that reads from it; of several bounds the shortest counts. WITH may also stand before AS.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TypeAlias

from sqlglot import exp
from sqlglot.tokenizer_core import Token, TokenType

from sbon.extensions import NOTHING, Extensions
from sbon.query.catalog import NAME_LENGTH_MAX
from sbon.query.definitions import read_source
from sbon.query.dialect import Text, parse_tree, start_of
from sbon.query.emit import without_emit
from sbon.query.flink import windows_as_ours
from sbon.query.foreign import refuse_create_words, refuse_query_words
from sbon.query.literals import identifier
from sbon.query.options import NO_WISHES, Wishes, read_options, rest_of, split_early_with, split_with, take_connector, take_wishes
from sbon.query.places import NAME, Places
from sbon.query.show import ShowStatement, read_show
from sbon.query.system import SINK_CONNECTORS, SourceDefinition


@dataclass(frozen=True)
class CreateSource:
    """A source to be entered into the catalogue. `definition.home` is empty: the agent that takes the statement fills it in."""

    name: str
    definition: SourceDefinition
    if_not_exists: bool
    sql: str
    places: Places = field(default_factory=dict, compare=False)


@dataclass(frozen=True)
class SelectQuery:
    """A query; its answers go to `sbon tail` at the agent that takes it."""

    text: Text
    tree: exp.Query
    sql: str
    places: Places = field(default_factory=dict, compare=False)


@dataclass(frozen=True)
class CreateView:
    """A named SELECT to be entered into the catalogue. It runs nothing by itself."""

    name: str
    query: SelectQuery
    if_not_exists: bool
    sql: str
    wishes: Wishes = NO_WISHES
    """Wishes for every query that uses the view."""
    places: Places = field(default_factory=dict, compare=False)


@dataclass(frozen=True)
class CreateSink:
    """A query whose answers go to a connector."""

    name: str
    query: SelectQuery
    connector: str
    options: tuple[tuple[str, str], ...]
    node: str | None
    """Node of the sink; None: the agent that takes the statement."""
    if_not_exists: bool
    sql: str
    wishes: Wishes = NO_WISHES
    places: Places = field(default_factory=dict, compare=False)


@dataclass(frozen=True)
class DropStatement:
    """A name to be dropped."""

    kind: str
    """"source", "view", "sink" or "query"."""
    name: str
    if_exists: bool
    sql: str
    places: Places = field(default_factory=dict, compare=False)


Statement: TypeAlias = CreateSource | CreateView | CreateSink | SelectQuery | DropStatement | ShowStatement

_UNCHANGED = "streams do not change: DROP what is no longer needed"
_ONE_SPACE = "leave it out: there is one name space, and no session"
_NO_RIGHTS = "leave it out: whoever can reach the control socket, or has the cluster key, may do everything"
_INSTEAD = {
    "EXPLAIN": "use the command `sbon explain`",
    "ANALYZE": "use the commands `sbon explain` and `sbon operators`",
    "INSERT": "write CREATE SINK name AS SELECT ... WITH (connector = 'file', path = '...')",
    "EXECUTE": "write CREATE SINK name AS SELECT ... WITH (connector = '...') for each INSERT",
    "UPDATE": "streams do not change: write a SELECT that computes the new value",
    "DELETE": "streams do not change: write a SELECT with the rows to keep",
    "MERGE": "streams do not change: JOIN them within an interval",
    "TRUNCATE": _UNCHANGED,
    "REFRESH": "leave it out: views are computed as rows come",
    "ALTER": "DROP it and CREATE it again",
    "SET": "settings are in the agent's configuration",
    "RESET": "settings are in the agent's configuration",
    "USE": _ONE_SPACE,
    "BEGIN": "leave it out: there are no transactions",
    "COMMIT": "leave it out: there are no transactions",
    "GRANT": _NO_RIGHTS,
    "REVOKE": _NO_RIGHTS,
    "COPY": "write CREATE SOURCE name (...) WITH (connector = 'file', path = '...') to read, CREATE SINK name AS SELECT ... to write",
    "LOAD": "write CREATE SOURCE name (...) WITH (connector = 'file', path = '...')",
    "VALUES": "write the rows into a file, and CREATE SOURCE name (...) WITH (connector = 'file', path = '...')",
    "FROM": "write SELECT first: SELECT ... FROM name",
    "TABLE": "write SELECT * FROM name",
}
_AS_TABLE = "write CREATE MATERIALIZED VIEW name AS SELECT ..., or CREATE SINK name AS SELECT ... WITH (connector = '...') to write it"
_READABLE = "write CREATE SOURCE, CREATE VIEW, CREATE SINK, DROP or SELECT"


def read_statement(text: Text, tokens: list[Token], extensions: Extensions = NOTHING) -> Statement:
    """Reads one statement from its tokens.

    Raises
    ------
    QueryError
        The statement is not in the dialect; points at the place.
    """
    first = tokens[0]
    word = first.text.upper()
    if first.token_type == TokenType.DROP:
        return _read_drop(text, tokens)
    if first.token_type == TokenType.CREATE:
        return _read_create(text, tokens, extensions)
    if word in ("DESCRIBE", "DESC", "SHOW"):
        return read_show(text, tokens)
    if first.token_type not in (TokenType.SELECT, TokenType.WITH, TokenType.L_PAREN):
        alone = len(tokens) == 1 and first.token_type == TokenType.VAR
        hint = f"to read from it, write SELECT * FROM {first.text}" if alone else _READABLE
        if word == "INSERT" and len(tokens) > 2 and tokens[1].text.upper() in ("INTO", "OVERWRITE"):
            hint = _INSTEAD[word].replace("name", tokens[2].text)
            raise text.error(first, hint=hint, message=f"{first.text} {tokens[1].text} is not a statement of this dialect")
        raise text.error(first, f"{first.text} is not a statement of this dialect", _INSTEAD.get(word, hint))
    refuse_query_words(text, tokens)
    tree = parse_tree(text, windows_as_ours(text, without_emit(text, tokens)))
    return SelectQuery(text, as_query(text, tree), text.slice(tokens), {NAME: text.place(first.start)})


def as_query(text: Text, tree: exp.Expr) -> exp.Query:
    """Returns the tree after checking that it is a SELECT, a union of them, or one of them in brackets."""
    if isinstance(tree, exp.Select | exp.SetOperation | exp.Subquery):
        return tree
    raise text.error(tree, "a SELECT is expected here", _READABLE)


def _read_drop(text: Text, tokens: list[Token]) -> DropStatement:
    words = list(tokens[1:])
    kind_token = words.pop(0) if words else tokens[0]
    kind = kind_token.text.lower()
    if kind == "materialized" and words:
        kind_token = words.pop(0)
        kind = kind_token.text.lower()
    kind = "source" if kind == "table" else kind
    if kind not in ("source", "view", "sink", "query"):
        raise text.error(kind_token, f"DROP {kind_token.text} is not supported", "write DROP SOURCE, DROP VIEW, DROP SINK or DROP QUERY")
    if_exists = [token.text.upper() for token in words[:2]] == ["IF", "EXISTS"]
    words = words[2:] if if_exists else words
    if not words:
        raise text.error(tokens[-1].end + 1, f"the name of the {kind} is missing", f"write DROP {kind.upper()} name")
    name = text.slice(words)
    quoted = len(words) == 1 and words[0].token_type == TokenType.IDENTIFIER
    # Query names contain dots and dashes, which are tokens of their own; a blank ends a name.
    if not quoted and any(name_part.isspace() for name_part in name):
        stray = next((token for before, token in pairwise(words) if token.start > before.end + 1), words[0])
        if stray.text.upper() in ("CASCADE", "RESTRICT"):
            hint = "leave it out: views that use it stay, and cannot be used without it"
            raise text.error(stray, f"{stray.text} is not supported", hint)
        raise text.error(stray, f"{stray.text} is one word too many", f"write DROP {kind.upper()} name")
    plain = name.strip("'")
    name = words[0].text if quoted else plain if kind == "query" else plain.lower()
    return DropStatement(kind, name, if_exists, text.slice(tokens), {NAME: text.place(words[0].start)})


def _read_create(text: Text, tokens: list[Token], extensions: Extensions) -> Statement:
    refuse_create_words(text, tokens)
    refuse_query_words(text, tokens)
    kind_token = next((t for t in tokens[1:] if t.text.upper() in ("SOURCE", "SINK", "VIEW", "TABLE")), tokens[0])
    kind = kind_token.text.upper()
    if kind == "CREATE":
        made = tokens[1] if len(tokens) > 1 else tokens[0]
        raise text.error(made, f"CREATE {made.text.upper()} is not supported", _READABLE)
    head, with_clause = split_with(tokens)
    if kind == "TABLE":
        head, kind = _as_source(text, head, kind_token), "SOURCE"
    if kind != "SOURCE":
        head, early = split_early_with(head)
        if early and with_clause:
            raise text.error(with_clause[0], "WITH is given twice", "put all options into one of them")
        with_clause = early or with_clause
        head = without_emit(text, head)
    tree = parse_tree(text, windows_as_ours(text, head))
    if not isinstance(tree, exp.Create) or tree.kind != kind:
        raise text.error(tokens[0], "the statement cannot be read", _READABLE)
    if tree.args.get("replace"):
        raise text.error(tokens[1], "OR REPLACE is not supported", "DROP it first")
    sql = text.slice(tokens)
    name = _create_name(text, tree)
    if_not_exists = bool(tree.args.get("exists"))
    _refuse_properties(text, tree, tokens)
    options = read_options(text, with_clause)
    places = {NAME: text.place(start_of(tree.this))} | {key: text.place(option.where.start) for key, option in options.items()}
    if kind == "SOURCE":
        return CreateSource(name, read_source(text, tree, name, options, tokens[-1], extensions), if_not_exists, sql, places)
    body = tree.expression
    if body is None:
        raise text.error(tree, f"the SELECT of the {kind.lower()} is missing", f"write CREATE {kind} {name} AS SELECT ...")
    query = SelectQuery(text, as_query(text, body), sql)
    if kind == "VIEW":
        wishes = take_wishes(text, options)
        if options:
            stray = next(iter(options.values())).where
            raise text.error(
                stray,
                "a view takes no option but delay_bound, max_latency, on_miss, shed_fairness, instances, dealing, turn, dealer "
                "and after_crash",
                "give the others to its sources and sinks",
            )
        return CreateView(name, query, if_not_exists, sql, wishes, places)
    connector = take_connector(text, options, "sink", SINK_CONNECTORS, extensions, tokens[-1], elsewhere="node" in options)
    node = options.pop("node", None)
    wishes = take_wishes(text, options)
    place = None if node is None else node.value
    return CreateSink(name, query, connector, rest_of(options), place, if_not_exists, sql, wishes, places)


def _as_source(text: Text, head: Sequence[Token], table: Token) -> list[Token]:
    """Reads CREATE TABLE, which Flink writes, as CREATE SOURCE."""
    query = next((token for token in head if token.token_type in (TokenType.ALIAS, TokenType.LIKE) and token.start > table.start), None)
    if query is not None and not any(token.token_type == TokenType.L_PAREN and token.start < query.start for token in head):
        what = "CREATE TABLE AS" if query.token_type == TokenType.ALIAS else "CREATE TABLE LIKE"
        raise text.error(table, f"{what} is not supported", _AS_TABLE if what.endswith("AS") else "write the columns: (column type, ...)")
    source = Token(TokenType.SOURCE, "SOURCE", table.line, table.col, table.start, table.end)
    return [source if token is table else token for token in head]


def _refuse_properties(text: Text, tree: exp.Create, tokens: list[Token]) -> None:
    """Refuses all properties; the caller has removed WITH (...) at the end before."""
    properties = tree.args.get("properties")
    if all(isinstance(item, exp.MaterializedProperty) for item in (properties.expressions if properties is not None else [])):
        return
    closing = max((index for index, token in enumerate(tokens) if token.token_type == TokenType.R_PAREN), default=0)
    stray = tokens[min(closing + 1, len(tokens) - 1)]
    raise text.error(stray, f"{stray.text} is not supported here", "end the statement with WITH (name = 'value', ...)")


def _create_name(text: Text, tree: exp.Create) -> str:
    table = tree.this.this if isinstance(tree.this, exp.Schema) else tree.this
    if isinstance(tree.this, exp.Schema) and tree.kind != "SOURCE":
        raise text.error(tree.this.expressions[0], "column names are not expected here", "name columns in the SELECT, with AS")
    if not isinstance(table, exp.Table) or table.args.get("db") is not None or not isinstance(table.this, exp.Identifier):
        raise text.error(tree, "a name without a dot is expected", "names that start with sys. are the system's")
    name = identifier(table.this)
    if not 0 < len(name) <= NAME_LENGTH_MAX:
        raise text.error(table, f"a name has {len(name)} characters, expected 1 to {NAME_LENGTH_MAX}")
    return name
