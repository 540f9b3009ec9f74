"""What CREATE SOURCE and CREATE SINK say in their columns, watermark and WITH clause."""

from dataclasses import dataclass

from sqlglot import exp

from sbon.query.catalog import did_you_mean
from sbon.query.dialect import Text
from sbon.query.literals import column_type, identifier, interval_of
from sbon.query.schema import ColumnType, Field, Schema
from sbon.query.system import SOURCE_CONNECTORS, SourceDefinition

COLUMNS_MAX = 500
OPTIONS_MAX = 500


@dataclass(frozen=True)
class Option:
    """One entry of a WITH clause."""

    value: str
    where: exp.Expr


def read_options(text: Text, tree: exp.Create) -> dict[str, Option]:
    """The WITH clause, keys in lower case."""
    properties = tree.args.get("properties")
    options: dict[str, Option] = {}
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
        options[key] = Option(plain, item)
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


def read_connector(text: Text, tree: exp.Create, options: dict[str, Option], known: tuple[str, ...]) -> str:
    """Take the connector out of the options; QueryError if it is missing or none of the known."""
    option = options.pop("connector", None)
    if option is None:
        raise text.error(tree, "the connector is missing", f"add WITH (connector = '{known[0]}', ...); there is {', '.join(known)}")
    if option.value not in known:
        raise text.error(option.where, f"there is no connector {option.value!r} for this", did_you_mean(option.value, known))
    return option.value


def read_source(text: Text, tree: exp.Create, name: str) -> SourceDefinition:
    """The definition of a source; its home is for the agent to fill in.

    Raises
    ------
    QueryError
        A column, the watermark or an option that cannot be used; points at it.
    """
    options = read_options(text, tree)
    connector = read_connector(text, tree, options, SOURCE_CONNECTORS)
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
    return SourceDefinition(
        name,
        connector,
        rest_of(options, "estimated_rows_per_second"),
        columns,
        time_column,
        delay,
        nodes=tuple(sorted(set(nodes))),
        labels=tuple(sorted(set(labels))),
        rows_per_s=_estimated_rate(text, options),
    )


def rest_of(options: dict[str, Option], *ours: str) -> tuple[tuple[str, str], ...]:
    """The options but ours, sorted, as connectors take them."""
    return tuple(sorted((key, option.value) for key, option in options.items() if key not in ours))


def _estimated_rate(text: Text, options: dict[str, Option]) -> float | None:
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


def _list_option(text: Text, options: dict[str, Option], key: str) -> list[str]:
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
