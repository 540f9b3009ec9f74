"""Converts names, types and intervals of sqlglot trees."""

from sqlglot import exp

from sbon.errors import QueryError
from sbon.query.dialect import Text
from sbon.query.spans import parse_interval
from sbon.schema import STRUCT_DEPTH_MAX, STRUCT_LENGTH_MAX, ColumnType, Field, array_type, struct_type

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
    "TIMESTAMPLTZ": ColumnType.TIME,
    "TIMESTAMPNTZ": ColumnType.TIME,
    "INTERVAL": ColumnType.INTERVAL,
    "JSON": ColumnType.JSON,
    "JSONB": ColumnType.JSON,
}

_HINTS = {
    **dict.fromkeys(("TIME", "DATE"), "write TIMESTAMP for an instant"),
    **dict.fromkeys(("MAP", "OBJECT"), "declare it JSON, and take its members with -> and ->>"),
}
"""Hints: what to declare instead of these types."""


def column_type(text: Text, kind: exp.Expr | None, where: exp.Expr) -> ColumnType:
    """Returns the column type for an SQL type.

    Raises
    ------
    QueryError
        The type has no counterpart.
    """
    if isinstance(kind, exp.DataType) and kind.this in (exp.DType.ARRAY, exp.DType.LIST):
        return _array_type(text, kind, where)
    if isinstance(kind, exp.DataType) and kind.this is exp.DType.STRUCT:
        return _struct_type(text, kind, where)
    name = kind.this.name if isinstance(kind, exp.DataType) and isinstance(kind.this, exp.DType) else ""
    if name == "" and isinstance(kind, exp.Interval):
        name = "INTERVAL"
    if name not in _TYPES:
        hint = _HINTS.get(
            name, "use BOOLEAN, BIGINT, DOUBLE, TEXT, TIMESTAMP, INTERVAL, JSON, an array such as BIGINT[], or STRUCT<a BIGINT>"
        )
        shown = kind.sql(dialect="risingwave") if kind is not None else "no type"
        typed = f"{text.written(where)}: " if isinstance(where, exp.Cast) and "typed" in where.meta else ""
        raise text.error(where, f"{typed}type {shown} is not supported", hint)
    return _TYPES[name]


def _array_type(text: Text, kind: exp.DataType, where: exp.Expr) -> ColumnType:
    """Returns the column type for BIGINT[] or ARRAY<BIGINT>.

    Raises
    ------
    QueryError
        There is no array of such elements.
    """
    (element,) = kind.expressions or (None,)
    found = None
    if isinstance(element, exp.DataType) and element.this not in (exp.DType.ARRAY, exp.DType.LIST, exp.DType.MAP):
        found = array_type(column_type(text, element, where))
    if found is None:
        shown = kind.sql(dialect="risingwave") if element is not None else "an array without a type"
        raise text.error(where, f"type {shown} is not supported", "declare it JSON[], and take its elements apart with -> and ->>")
    return found


def _struct_type(text: Text, kind: exp.DataType, where: exp.Expr) -> ColumnType:
    """Returns the column type for STRUCT<lat DOUBLE, lon DOUBLE>; accepts round brackets, and ROW for STRUCT.

    Raises
    ------
    QueryError
        A field has no name or a type that fields cannot have, or the struct is too long or nested too deeply.
    """
    form = "write STRUCT<lat DOUBLE, lon DOUBLE>"
    fields: list[Field] = []
    for item in kind.expressions:
        if not isinstance(item, exp.ColumnDef) or item.args.get("kind") is None:
            raise text.error(where, "each field of a STRUCT has a name and a type", form)
        if item.args.get("constraints"):
            raise text.error(item, "a field of a STRUCT has a name and a type, and no more", f"{form}: any field may be NULL")
        name, type_ = column_name(text, item.this), column_type(text, item.args["kind"], item)
        if type_ is ColumnType.INTERVAL:
            raise text.error(item, f"field {name} is an INTERVAL, which a STRUCT does not hold", "declare it DOUBLE, in seconds")
        if any(field.name == name for field in fields):
            raise text.error(item, f"field {name} is declared twice", "give each field its own name")
        fields.append(Field(name, type_))
    if not fields:
        raise text.error(where, "a STRUCT has fields", form)
    try:
        return struct_type(fields)
    except ValueError:
        most = f"a STRUCT has at most {STRUCT_LENGTH_MAX:,} characters, and structs within it {STRUCT_DEPTH_MAX} deep"
        raise text.error(where, most, "declare a part of it JSON") from None


def identifier(tree: exp.Expr | None) -> str:
    """Returns an identifier as stored: lower case unless quoted."""
    if isinstance(tree, exp.Identifier):
        return str(tree.this) if tree.args.get("quoted") else str(tree.this).lower()
    return tree.name.lower() if tree is not None else ""


def column_name(text: Text, tree: exp.Expr) -> str:
    """Returns a valid column name.

    Raises
    ------
    QueryError
        polars would read the name as a pattern for several columns.
    """
    name = identifier(tree)
    if name == "*" or (name.startswith("^") and name.endswith("$")):
        raise text.error(tree, f'"{name}" cannot be the name of a column', 'nor can a name that begins with "^" and ends with "$"')
    return name


def interval_of(text: Text, tree: exp.Expr | None) -> int | None:
    """Returns the microseconds of an INTERVAL literal, negated or not; None if the tree is something else.

    Raises
    ------
    QueryError
        The interval cannot be read.
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
