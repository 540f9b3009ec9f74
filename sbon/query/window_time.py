"""Supports Flink's window_time, the last millisecond of a window, an event time like window_start and window_end.

It is rewritten as `window_end - INTERVAL '1 millisecond'` wherever a SELECT that reads windows names it.
"""

from sqlglot import exp

from sbon.query.literals import identifier

NAME = "window_time"
_WINDOWS = ("TUMBLE", "HOP", "SESSION")


def with_window_time(tree: exp.Select) -> exp.Select:
    """Returns the SELECT with window_time expanded, if it reads from windows; subqueries are handled separately."""
    if not any(_is_window(table) for table in _inputs(tree)):
        return tree
    named = [column for column in _own_columns(tree) if identifier(column.this) == NAME]
    if not named:
        return tree
    copy = tree.copy()
    for column in [column for column in _own_columns(copy) if identifier(column.this) == NAME]:
        value = _value(column)
        bare = isinstance(column.parent, exp.Select) and column.arg_key == "expressions"
        column.replace(exp.Alias(this=value, alias=exp.to_identifier(NAME)) if bare else value)
    return copy


def end_of(tree: exp.Expr) -> exp.Expr:
    """Returns window_end for window_time, which is equivalent as a key; any other expression unchanged."""
    return tree.this.this if isinstance(tree, exp.Paren) and tree.meta.get(NAME) else tree


def _value(column: exp.Column) -> exp.Paren:
    """Returns `(window_end - INTERVAL '1 millisecond')` at the place of the column."""
    end = column.copy()
    end.set("this", exp.to_identifier("window_end"))
    end.this.meta.update(column.this.meta)
    span = exp.Interval(this=exp.Literal.string("1"), unit=exp.Var(this="MILLISECOND"))
    value = exp.Paren(this=exp.Sub(this=end, expression=span))
    value.meta[NAME] = True
    return value


def _inputs(tree: exp.Select) -> list[exp.Expr]:
    source = tree.args.get("from_")
    return [part.this for part in (source, *(tree.args.get("joins") or ())) if part is not None]


def _is_window(table: exp.Expr) -> bool:
    call = table.this if isinstance(table, exp.Table) else None
    return isinstance(call, exp.Func) and str(call.this if isinstance(call, exp.Anonymous) else call.sql_name()).upper() in _WINDOWS


def _own_columns(tree: exp.Select) -> list[exp.Column]:
    """Returns the columns that a SELECT names outside its inputs and subqueries."""
    others = exp.Table, exp.Subquery, exp.With
    parts = tree.walk(prune=lambda node: isinstance(node, others) or (node is not tree and isinstance(node, exp.Query)))
    return [part for part in parts if isinstance(part, exp.Column) and isinstance(part.this, exp.Identifier)]
