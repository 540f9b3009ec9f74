"""Reads column constraints of CREATE SOURCE: NOT NULL, PRIMARY KEY, comments.

NOT NULL is enforced: a row with NULL there is dropped where the source is read, and counted. A PRIMARY KEY is accepted but not
enforced, also without NOT ENFORCED: rows of a stream are not compared with all rows before them.
"""

from sqlglot import exp

from sbon.query.catalog import did_you_mean
from sbon.query.dialect import Text
from sbon.query.literals import identifier

_HINTS: dict[type[exp.Expr], tuple[str, str]] = {
    exp.ComputedColumnConstraint: (
        "column {name} is computed, which is not supported in a source",
        "declare the columns that come in, and compute it in a view: CREATE VIEW v AS SELECT *, {value} AS {name} FROM {source}",
    ),
    exp.UniqueColumnConstraint: (
        "UNIQUE is not supported: rows of a stream are not compared with all rows before them",
        "leave it out; SELECT DISTINCT ON (window_start, {name}) * FROM TUMBLE(...) gives the first row of each value in a window",
    ),
    exp.DefaultColumnConstraint: ("column {name} has a DEFAULT", "leave it out, and write COALESCE({name}, {value}) in the SELECT"),
    exp.CheckColumnConstraint: ("column {name} has a CHECK", "leave it out, and write WHERE {value} in the SELECT"),
    exp.Reference: ("column {name} REFERENCES another table", "leave it out, and JOIN the streams within an interval"),
}
_HINTS[exp.GeneratedAsIdentityColumnConstraint] = _HINTS[exp.ComputedColumnConstraint]
_OTHER = ("column {name} has a constraint that is not supported", "write its name, its type, and NOT NULL or PRIMARY KEY at most")


def is_required(text: Text, column: exp.ColumnDef, source: str) -> bool:
    """Tells whether a column of a definition may not be NULL.

    Raises
    ------
    QueryError
        The column has a constraint that is not supported; points at it.
    """
    required = False
    for constraint in column.args.get("constraints") or ():
        match constraint.kind if isinstance(constraint, exp.ColumnConstraint) else constraint:
            case exp.NotNullColumnConstraint() as kind:
                required = required or not kind.args.get("allow_null")
            case exp.PrimaryKeyColumnConstraint() | exp.CommentColumnConstraint():
                pass
            case exp.ComputedColumnConstraint(this=exp.Anonymous() as call) if call.name.upper() == "PROCTIME":
                hint = "leave it out: windows and joins take the event time, WATERMARK FOR ts AS ts - INTERVAL '2 seconds'"
                raise text.error(column, f"column {identifier(column.this)} is the time of processing, which rows do not have", hint)
            case kind:
                message, hint = _HINTS.get(type(kind), _OTHER)
                name, value = identifier(column.this), _value_of(kind)
                words = {"name": name, "value": value, "source": source}
                raise text.error(column, message.format(**words), hint.format(**words))
    return required


def check_key(text: Text, item: exp.Expr, columns: dict[str, object]) -> bool:
    """Tells whether an item of the column list is a primary key over columns of the source.

    Raises
    ------
    QueryError
        The key names unknown columns, or the item is another constraint; points at it.
    """
    if isinstance(item, exp.Constraint):
        return all(check_key(text, part, columns) for part in item.expressions)
    if isinstance(item, exp.UniqueColumnConstraint | exp.CheckColumnConstraint | exp.ForeignKey):
        word = (
            "UNIQUE"
            if isinstance(item, exp.UniqueColumnConstraint)
            else "CHECK"
            if isinstance(item, exp.CheckColumnConstraint)
            else "FOREIGN KEY"
        )
        raise text.error(item, f"{word} is not supported: a source keeps no rows to compare with", "leave it out")
    if not isinstance(item, exp.PrimaryKey):
        return False
    for part in item.expressions:
        name = identifier(part.this if isinstance(part, exp.Ordered | exp.Column) else part)
        if name not in columns:
            raise text.error(part, f"there is no column {name} for the PRIMARY KEY", did_you_mean(name, columns))
    return True


def _value_of(constraint: exp.Expr) -> str:
    value = constraint.this if isinstance(constraint.this, exp.Expr) else constraint.args.get("expression")
    return str(value.unnest().sql(dialect="risingwave")) if isinstance(value, exp.Expr) else "..."
