"""The statements of the dialect, and how CREATE and DROP are read. SELECTs are kept as trees for `sbon.query.binder`.

    CREATE SOURCE [IF NOT EXISTS] name (column type, ... [, WATERMARK FOR column AS column [- INTERVAL '2 seconds']])
        WITH (connector = '...', [nodes = 'a,b' | labels = 'region=eu,site=x',] [estimated_rows_per_second = 100,] option = value, ...)
    CREATE [MATERIALIZED] VIEW name AS select
    CREATE SINK name AS select WITH (connector = '...', [node = 'a',] option = value, ...)
    CREATE SINK name FROM source_or_view WITH (...)
    DROP SOURCE | VIEW | SINK | QUERY [IF EXISTS] name
    select

`nodes` and `labels` say where a source has physical sources: on the named nodes, or on all nodes whose labels match (values of one
label are alternatives, different labels must all match). Without either the one physical source is on the agent that takes the statement.
"""

from dataclasses import dataclass
from itertools import pairwise
from typing import TypeAlias

from sqlglot import exp
from sqlglot.tokenizer_core import Token, TokenType

from sbon.errors import QueryError
from sbon.query.catalog import NAME_LENGTH_MAX, did_you_mean
from sbon.query.dialect import Text, parse_tree
from sbon.query.schema import ColumnType, Field, Schema
from sbon.query.spans import parse_interval
from sbon.query.system import SINK_CONNECTORS, SOURCE_CONNECTORS, SourceDefinition

COLUMNS_MAX = 500
OPTIONS_MAX = 500


@dataclass(frozen=True)
class CreateSource:
    """A source to be entered into the catalogue. `definition.home` is empty: the agent that takes the statement fills it in."""

    name: str
    definition: SourceDefinition
    if_not_exists: bool
    sql: str


@dataclass(frozen=True)
class SelectQuery:
    """A query; its answers go to `sbon tail` at the agent that takes it."""

    text: Text
    tree: exp.Query
    sql: str


@dataclass(frozen=True)
class CreateView:
    """A named query, worked into the queries that use it; by itself it runs nowhere."""

    name: str
    query: SelectQuery
    if_not_exists: bool
    sql: str


@dataclass(frozen=True)
class CreateSink:
    """A query whose answers go to a connector."""

    name: str
    query: SelectQuery
    connector: str
    options: tuple[tuple[str, str], ...]
    node: str | None
    """Where the sink is; None: at the agent that takes the statement."""
    if_not_exists: bool
    sql: str


@dataclass(frozen=True)
class DropStatement:
    """A name to be taken away."""

    kind: str
    """"source", "view", "sink" or "query"."""
    name: str
    if_exists: bool
    sql: str


Statement: TypeAlias = CreateSource | CreateView | CreateSink | SelectQuery | DropStatement

_INSTEAD = {
    "EXPLAIN": "use the command `sbon explain`",
    "DESCRIBE": "use the command `sbon explain`",
    "SHOW": "use the commands `sbon queries`, `sbon operators`, `sbon members`",
    "INSERT": "rows come from sources: CREATE SOURCE",
    "UPDATE": "streams do not change: write a SELECT that computes the new value",
    "DELETE": "streams do not change: write a SELECT with the rows to keep",
    "ALTER": "DROP it and CREATE it again",
    "SET": "settings are in the agent's configuration",
}
_READABLE = "write CREATE SOURCE, CREATE VIEW, CREATE SINK, DROP or SELECT"

_TYPES = {
    "BOOLEAN": ColumnType.BOOL,
    "TINYINT": ColumnType.INT,
    "SMALLINT": ColumnType.INT,
    "INT": ColumnType.INT,
    "BIGINT": ColumnType.INT,
    "FLOAT": ColumnType.FLOAT,
    "DOUBLE": ColumnType.FLOAT,
    "DECIMAL": ColumnType.FLOAT,
    "TEXT": ColumnType.TEXT,
    "VARCHAR": ColumnType.TEXT,
    "CHAR": ColumnType.TEXT,
    "BPCHAR": ColumnType.TEXT,
    "TIMESTAMP": ColumnType.TIME,
    "TIMESTAMPTZ": ColumnType.TIME,
    "TIMESTAMPNTZ": ColumnType.TIME,
    "INTERVAL": ColumnType.INTERVAL,
}


def column_type(text: Text, kind: exp.Expr | None, where: exp.Expr) -> ColumnType:
    """The column type that a type of SQL stands for.

    Raises
    ------
    QueryError
        There is none.
    """
    name = kind.this.name if isinstance(kind, exp.DataType) and isinstance(kind.this, exp.DType) else ""
    if name == "" and isinstance(kind, exp.Interval):
        name = "INTERVAL"
    if name not in _TYPES:
        hint = "write TIMESTAMP for an instant" if name in ("TIME", "DATE") else "use BOOLEAN, BIGINT, DOUBLE, TEXT, TIMESTAMP or INTERVAL"
        shown = kind.sql(dialect="risingwave") if kind is not None else "no type"
        raise text.error(where, f"type {shown} is not supported", hint)
    return _TYPES[name]


def identifier(tree: exp.Expr | None) -> str:
    """A name as we keep it: lower case unless it was quoted."""
    if isinstance(tree, exp.Identifier):
        return str(tree.this) if tree.args.get("quoted") else str(tree.this).lower()
    return tree.name.lower() if tree is not None else ""


def read_statement(text: Text, tokens: list[Token]) -> Statement:
    """One statement from its tokens.

    Raises
    ------
    QueryError
        It is not of the dialect; points at the place.
    """
    first = tokens[0]
    word = first.text.upper()
    if first.token_type == TokenType.DROP:
        return _read_drop(text, tokens)
    if first.token_type == TokenType.CREATE:
        return _read_create(text, tokens)
    if first.token_type not in (TokenType.SELECT, TokenType.WITH, TokenType.L_PAREN):
        raise text.error(first, f"{first.text} is not a statement of this dialect", _INSTEAD.get(word, _READABLE))
    tree = parse_tree(text, tokens)
    return SelectQuery(text, as_query(text, tree), text.slice(tokens))


def as_query(text: Text, tree: exp.Expr) -> exp.Query:
    """The tree, if it is a SELECT, a union of them, or one of them in brackets."""
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
    if kind not in ("source", "view", "sink", "query"):
        raise text.error(kind_token, f"DROP {kind_token.text} is not supported", "write DROP SOURCE, DROP VIEW, DROP SINK or DROP QUERY")
    if_exists = [token.text.upper() for token in words[:2]] == ["IF", "EXISTS"]
    words = words[2:] if if_exists else words
    if not words:
        raise text.error(tokens[-1].end + 1, f"the name of the {kind} is missing", f"write DROP {kind.upper()} name")
    name = text.slice(words)
    quoted = len(words) == 1 and words[0].token_type == TokenType.IDENTIFIER
    # Query names hold dots and dashes, which are tokens of their own; blanks end a name.
    if not quoted and any(name_part.isspace() for name_part in name):
        stray = next((token for before, token in pairwise(words) if token.start > before.end + 1), words[0])
        raise text.error(stray, f"{stray.text} is one word too many", f"write DROP {kind.upper()} name")
    plain = name.strip("'")
    name = words[0].text if quoted else plain if kind == "query" else plain.lower()
    return DropStatement(kind, name, if_exists, text.slice(tokens))


def _read_create(text: Text, tokens: list[Token]) -> Statement:
    kind_token = next((t for t in tokens[1:] if t.text.upper() in ("SOURCE", "SINK", "VIEW", "TABLE", "INDEX", "FUNCTION")), tokens[0])
    kind = kind_token.text.upper()
    if kind in ("TABLE", "INDEX", "FUNCTION", "CREATE"):
        raise text.error(kind_token, f"{'CREATE ' * (kind != 'CREATE')}{kind} is not supported", _READABLE)
    tree = parse_tree(text, tokens)
    if not isinstance(tree, exp.Create) or tree.kind != kind:
        raise text.error(tokens[0], "the statement cannot be read", _READABLE)
    if tree.args.get("replace"):
        raise text.error(tokens[1], "OR REPLACE is not supported", "DROP it first")
    sql = text.slice(tokens)
    if kind == "SOURCE":
        return _create_source(text, tree, sql)
    name = _create_name(text, tree)
    if_not_exists = bool(tree.args.get("exists"))
    body = tree.expression
    if body is None:
        raise text.error(tree, f"what the {kind.lower()} is made of is missing", f"write CREATE {kind} {name} AS SELECT ...")
    query = SelectQuery(text, as_query(text, body), sql)
    if kind == "VIEW":
        _refuse_options_of_view(text, tree)
        return CreateView(name, query, if_not_exists, sql)
    return _create_sink(text, tree, name, query, if_not_exists, sql)


def _refuse_options_of_view(text: Text, tree: exp.Create) -> None:
    properties = tree.args.get("properties")
    for item in properties.expressions if properties is not None else []:
        if not isinstance(item, exp.MaterializedProperty):
            raise text.error(item, "a view takes no options", "give the options to its sources and sinks")


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


@dataclass(frozen=True)
class _Option:
    value: str
    where: exp.Expr


def _options(text: Text, tree: exp.Create) -> dict[str, _Option]:
    """The WITH clause, keys in lower case."""
    properties = tree.args.get("properties")
    options: dict[str, _Option] = {}
    for item in properties.expressions if properties is not None else []:
        if type(item) is not exp.Property:
            raise text.error(item, f"{item.sql(dialect='risingwave')} is not supported", "give options as WITH (name = 'value', ...)")
        key = _option_key(item.this)
        value = item.args.get("value")
        if isinstance(value, exp.Neg) and isinstance(value.this, exp.Literal) and not value.this.is_string:
            plain = f"-{value.this.this}"
        elif isinstance(value, exp.Literal):
            plain = str(value.this)
        elif isinstance(value, exp.Boolean):
            plain = "true" if value.this else "false"
        else:
            raise text.error(item, f"the value of {key} is neither a text nor a number", f"write {key} = '...'")
        if key in options:
            raise text.error(item, f"option {key} is given twice", "leave one of them out")
        options[key] = _Option(plain, item)
    if len(options) > OPTIONS_MAX:
        raise text.error(tree, f"{len(options)} options, expected at most {OPTIONS_MAX}")
    return options


def _option_key(key: exp.Expr) -> str:
    if isinstance(key, exp.Literal):
        return str(key.this)
    if isinstance(key, exp.Dot):
        return f"{_option_key(key.this)}.{_option_key(key.expression)}"
    if isinstance(key, exp.Column):
        return ".".join(identifier(part) for part in key.parts)
    return identifier(key)


def _connector(text: Text, tree: exp.Create, options: dict[str, _Option], known: tuple[str, ...]) -> str:
    option = options.pop("connector", None)
    if option is None:
        raise text.error(tree, "the connector is missing", f"add WITH (connector = '{known[0]}', ...); there is {', '.join(known)}")
    if option.value not in known:
        raise text.error(option.where, f"there is no connector {option.value!r} for this", did_you_mean(option.value, known))
    return option.value


def _create_source(text: Text, tree: exp.Create, sql: str) -> CreateSource:
    name = _create_name(text, tree)
    options = _options(text, tree)
    connector = _connector(text, tree, options, SOURCE_CONNECTORS)
    if not isinstance(tree.this, exp.Schema):
        raise text.error(tree, f"the columns of source {name} are missing", f"write CREATE SOURCE {name} (column type, ...) WITH (...)")
    columns, time_column, delay = _source_columns(text, tree.this)
    nodes = _list_option(text, options, "nodes")
    labels = []
    for pair in _list_option(text, options, "labels"):
        label, equals, value = (part.strip() for part in pair.partition("="))
        if not (label and equals and value):
            raise text.error(tree, f"label {pair!r} has no value", "write labels = 'region=eu,site=x'")
        labels.append((label, value))
    if nodes and labels:
        raise text.error(tree, "both nodes and labels are given", "give one of them")
    definition = SourceDefinition(
        name,
        connector,
        _rest(options, "estimated_rows_per_second"),
        columns,
        time_column,
        delay,
        nodes=tuple(sorted(set(nodes))),
        labels=tuple(sorted(set(labels))),
        rows_per_s=_estimated_rate(text, options),
    )
    return CreateSource(name, definition, bool(tree.args.get("exists")), sql)


def _rest(options: dict[str, _Option], *ours: str) -> tuple[tuple[str, str], ...]:
    return tuple(sorted((key, option.value) for key, option in options.items() if key not in ours))


def _estimated_rate(text: Text, options: dict[str, _Option]) -> float | None:
    option = options.get("estimated_rows_per_second")
    if option is None:
        return None
    try:
        rate = float(option.value)
    except ValueError:
        rate = -1.0
    if not 0 <= rate <= 1e12:
        raise text.error(option.where, f"estimated_rows_per_second = {option.value}, expected a number from 0 to 1e12")
    return rate


def _list_option(text: Text, options: dict[str, _Option], key: str) -> list[str]:
    option = options.pop(key, None)
    if option is None:
        return []
    values = [value.strip() for value in option.value.split(",") if value.strip()]
    if not values:
        raise text.error(option.where, f"{key} is empty", f"name at least one, or leave {key} out")
    return values


def _source_columns(text: Text, schema: exp.Schema) -> tuple[Schema, str | None, int]:
    columns: dict[str, Field] = {}
    watermarks: list[exp.WatermarkColumnConstraint] = []
    for item in schema.expressions:
        if isinstance(item, exp.WatermarkColumnConstraint):
            watermarks.append(item)
            continue
        if not isinstance(item, exp.ColumnDef):
            raise text.error(item, "a column or WATERMARK FOR is expected", "write name type")
        name = identifier(item.this)
        if name in columns:
            raise text.error(item, f"column {name} is declared twice", "give each column its own name")
        if item.args.get("constraints"):
            raise text.error(item, f"column {name} has a constraint", "write its name and type only")
        columns[name] = Field(name, column_type(text, item.args.get("kind"), item))
    if not columns or len(columns) > COLUMNS_MAX:
        raise text.error(schema, f"{len(columns)} columns, expected 1 to {COLUMNS_MAX}")
    if not watermarks:
        return tuple(columns.values()), None, 0
    if len(watermarks) > 1:
        raise text.error(watermarks[1], "a source has one event time", "leave one WATERMARK out")
    time_column, delay = _watermark(text, watermarks[0], columns)
    return tuple(columns.values()), time_column, delay


def _watermark(text: Text, watermark: exp.WatermarkColumnConstraint, columns: dict[str, Field]) -> tuple[str, int]:
    name = identifier(watermark.this.this) if isinstance(watermark.this, exp.Column) else ""
    if name not in columns:
        raise text.error(watermark, f"there is no column {name or 'here'}", did_you_mean(name, columns))
    if columns[name].type is not ColumnType.TIME:
        raise text.error(watermark, f"the event time {name} is {columns[name].type.value}", "declare it as TIMESTAMP")
    form = f"write WATERMARK FOR {name} AS {name} - INTERVAL '2 seconds'"
    bound = watermark.expression
    if isinstance(bound, exp.Column) and identifier(bound.this) == name:
        return name, 0
    if isinstance(bound, exp.Sub) and isinstance(bound.this, exp.Column) and identifier(bound.this.this) == name:
        delay = interval_of(text, bound.expression)
        if delay is not None and delay >= 0:
            return name, delay
    raise text.error(bound if isinstance(bound, exp.Expr) else watermark, "the watermark cannot be read", form)


def interval_of(text: Text, tree: exp.Expr | None) -> int | None:
    """Microseconds of an INTERVAL literal, negated or not; None if the tree is something else.

    Raises
    ------
    QueryError
        It is an interval that cannot be read.
    """
    if isinstance(tree, exp.Paren | exp.Neg):
        inner = interval_of(text, tree.this)
        return inner if inner is None or isinstance(tree, exp.Paren) else -inner
    if not isinstance(tree, exp.Interval) or not isinstance(tree.this, exp.Literal):
        return None
    unit = tree.args.get("unit")
    words = f"{tree.this.this} {unit.name if unit is not None else ''}"
    try:
        return parse_interval(words)
    except QueryError as error:
        raise text.error(tree, error.message, error.hint) from None


def _create_sink(text: Text, tree: exp.Create, name: str, query: SelectQuery, if_not_exists: bool, sql: str) -> CreateSink:
    options = _options(text, tree)
    connector = _connector(text, tree, options, SINK_CONNECTORS)
    node = options.pop("node", None)
    return CreateSink(name, query, connector, _rest(options), None if node is None else node.value, if_not_exists, sql)
