"""Reads CREATE SOURCE: columns, watermark, and the nodes of its physical sources."""

from sqlglot import exp
from sqlglot.tokenizer_core import Token

from sbon.errors import QueryError
from sbon.extensions import Extensions
from sbon.query.catalog import did_you_mean
from sbon.query.constraints import check_key, is_required
from sbon.query.dialect import Text
from sbon.query.literals import column_name, column_type, identifier, interval_of
from sbon.query.options import Option, rest_of, take_connector, take_idle_after, take_list
from sbon.query.profiles import Points, parse_profile
from sbon.query.system import SOURCE_CONNECTORS, SourceDefinition
from sbon.schema import ColumnType, Field, Schema

COLUMNS_MAX = 500


def read_source(
    text: Text, tree: exp.Create, name: str, options: dict[str, Option], end: Token, extensions: Extensions
) -> SourceDefinition:
    """Reads the definition of a source. The agent fills in its home.

    Raises
    ------
    QueryError
        A column, the watermark or an option cannot be used; points at it.
    """
    elsewhere = "nodes" in options or "labels" in options
    connector = take_connector(text, options, "source", SOURCE_CONNECTORS, extensions, end, elsewhere=elsewhere)
    if not isinstance(tree.this, exp.Schema):
        raise text.error(tree, f"the columns of source {name} are missing", f"write CREATE SOURCE {name} (column type, ...) WITH (...)")
    columns, required, time_column, delay = _source_columns(text, tree.this, name)
    where = options.get("labels")
    nodes, pairs = take_list(text, options, "nodes"), take_list(text, options, "labels")
    if where is not None and nodes:
        raise text.error(where.where, "both nodes and labels are given", "give one of them")
    labels = []
    for pair in pairs:
        label, equals, value = (part.strip() for part in pair.partition("="))
        if where is not None and not (label and equals and value):
            raise text.error(where.where, f"label {pair!r} has no value", "write labels = 'region=eu,site=x'")
        labels.append((label, value))
    rate = _estimated_rate(text, options.pop("estimated_rows_per_second", None))
    profile = _profile(text, options.pop("profile", None))
    idle_us, idle = take_idle_after(text, options)
    if idle is not None and time_column is None:
        hint = "declare one: WATERMARK FOR column AS column - INTERVAL '2 seconds'"
        raise text.error(idle.where, "idle_after needs an event time, and the source has none", hint)
    if idle is not None and connector == "file":
        raise text.error(idle.where, "a file is never idle: it is read to its end", "leave idle_after out")
    return SourceDefinition(
        name,
        connector,
        rest_of(options),
        columns,
        time_column,
        delay,
        nodes=tuple(sorted(set(nodes))),
        labels=tuple(sorted(set(labels))),
        rows_per_s=rate,
        idle_after_us=idle_us,
        not_null=required,
        profile=profile,
    )


def _profile(text: Text, option: Option | None) -> Points:
    if option is None:
        return ()
    try:
        return parse_profile(option.value)
    except QueryError as error:
        raise text.error(option.where, error.message, error.hint) from None


def _estimated_rate(text: Text, option: Option | None) -> float | None:
    if option is None:
        return None
    try:
        rate = float(option.value)
    except ValueError:
        rate = -1.0
    if not 0 <= rate <= 1e12:
        raise text.error(option.where, f"estimated_rows_per_second = {option.value}, expected a number from 0 to 1e12")
    return rate


def _source_columns(text: Text, schema: exp.Schema, source: str) -> tuple[Schema, tuple[str, ...], str | None, int]:
    """Reads the column list; returns the columns, those that may not be NULL, the event time, and its delay (µs)."""
    columns: dict[str, Field] = {}
    required: list[str] = []
    others: list[exp.Expr] = []
    for item in schema.expressions:
        if not isinstance(item, exp.ColumnDef):
            others.append(item)
            continue
        name = column_name(text, item.this)
        if name in columns:
            raise text.error(item, f"column {name} is declared twice", "give each column its own name")
        if is_required(text, item, source):
            required.append(name)
        columns[name] = Field(name, column_type(text, item.args.get("kind"), item))
    if not columns or len(columns) > COLUMNS_MAX:
        raise text.error(schema, f"{len(columns)} columns, expected 1 to {COLUMNS_MAX}")
    watermarks: list[exp.WatermarkColumnConstraint] = []
    for item in others:
        if isinstance(item, exp.WatermarkColumnConstraint):
            watermarks.append(item)
        elif not check_key(text, item, dict(columns)):
            raise text.error(item, "a column or WATERMARK FOR is expected", "write name type")
    if not watermarks:
        return tuple(columns.values()), tuple(required), None, 0
    if len(watermarks) > 1:
        raise text.error(watermarks[1], "a source has one event time", "leave one WATERMARK out")
    time_column, delay = _watermark(text, watermarks[0], columns)
    return tuple(columns.values()), tuple(required), time_column, delay


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
