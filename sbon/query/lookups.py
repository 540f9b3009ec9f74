"""Binds joins with a lookup table: `s JOIN sites FOR SYSTEM_TIME AS OF s.ts ON s.site = sites.id`.

In such a JOIN a definition is read as a table; in FROM, the same CREATE TABLE is a stream of the file's rows. As in Flink, AS OF names a
time of the left rows or PROCTIME(). Which one it names makes no difference: a row is joined with the newest version that its host knows
at that moment.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from sqlglot import exp

from sbon.query.catalog import did_you_mean
from sbon.query.expression import Column, Expression
from sbon.query.join_keys import crossing, key_of
from sbon.query.literals import identifier
from sbon.query.relation import Lookup, Relation, Scan, Select
from sbon.query.rewrite import substitute
from sbon.query.scope import Scope, scope_of
from sbon.query.system import SourceDefinition
from sbon.schema import ColumnType

if TYPE_CHECKING:
    from sbon.query.binder import Binder

_NOW = ("PROCTIME", "NOW")
_FORM = "write JOIN sites FOR SYSTEM_TIME AS OF s.ts, where s.ts is a TIMESTAMP of a stream before it"
_FILE = "a lookup table is read from a file: CREATE TABLE name (column type, ...) WITH (connector = 'file', path = 'name.csv')"
_WITHIN = "JOIN it within an interval, with AND d.ts BETWEEN a.ts - INTERVAL '1 hour' AND a.ts; " + _FILE


def is_lookup(tree: exp.Expr) -> bool:
    """Tells whether the input of a JOIN is read FOR SYSTEM_TIME AS OF some instant."""
    return isinstance(tree, exp.Table) and tree.args.get("version") is not None


def lookup_table(binder: Binder, join: exp.Expr, names: Scope) -> tuple[Scan, Scope]:
    """Returns the table of a lookup, and the scope of its columns.

    Parameters
    ----------
    names : scope of the inputs before the table

    Raises
    ------
    QueryError
        The input is no table, the instant is invalid, or the kind of JOIN would need table rows without a matching stream row.
    """
    text, tree = binder.text, join.this
    binder.count_input(tree)
    side = str(join.args.get("side") or "").upper()
    if side not in ("", "LEFT"):
        message = f"{side} JOIN with a table FOR SYSTEM_TIME AS OF is not supported: rows of the table may find a partner for ever"
        raise text.keyword_error(tree, side, message, "write JOIN or LEFT JOIN, the stream on its left")
    _check_instant(binder, tree, names)
    binder.refuse_parts(tree, ("this", "alias", "db", "catalog", "version"))
    alias_tree = tree.args.get("alias")
    if alias_tree is not None and alias_tree.args.get("columns"):
        raise text.error(alias_tree, "column names are not expected here", "name columns in the SELECT, with AS")
    if not isinstance(tree.this, exp.Identifier):
        raise text.error(tree, "FOR SYSTEM_TIME AS OF goes with the name of a table alone", _FORM)
    scan = Scan(_definition(binder, tree), ())
    alias = identifier(alias_tree.this) if alias_tree is not None and alias_tree.this is not None else identifier(tree.this)
    return scan, scope_of(scan, alias)


def _check_instant(binder: Binder, tree: exp.Expr, names: Scope) -> None:
    version = tree.args["version"]
    instant = version.expression
    if version.args.get("kind") != "AS OF" or version.name != "TIMESTAMP":
        raise binder.text.error(tree, "a table is read FOR SYSTEM_TIME AS OF an instant", _FORM)
    if isinstance(instant, exp.CurrentTimestamp) or (isinstance(instant, exp.Anonymous) and str(instant.this).upper() in _NOW):
        return
    if not isinstance(instant, exp.Column):
        raise binder.text.error(tree, "FOR SYSTEM_TIME AS OF takes a column of a stream before it, or PROCTIME()", _FORM)
    column = names.resolve(binder.text, instant)
    if column.type is not ColumnType.TIME:
        message = f"FOR SYSTEM_TIME AS OF takes a TIMESTAMP, {binder.text.written(instant)} is {column.type.value.upper()}"
        raise binder.text.error(instant, message, "take a TIMESTAMP of the stream, or PROCTIME()")


def _definition(binder: Binder, tree: exp.Table) -> SourceDefinition:
    text, catalog = binder.text, binder.environment.catalog
    name = ".".join(identifier(tree.args[part]) for part in ("catalog", "db", "this") if tree.args.get(part) is not None)
    definition = None if name in binder.tables else catalog.source(name)
    if definition is None:
        entry = catalog.get(name)
        if name in binder.tables or entry is not None:
            kind = "SELECT" if name in binder.tables or entry is None else entry.kind
            raise text.error(tree, f"{name} is a {kind}: nothing can be looked up in it", _FILE)
        raise text.error(tree, f"there is no table {name}", did_you_mean(name, catalog.names("source")) or _FILE)
    if definition.connector != "file":
        raise text.error(tree, f"{name} is a stream (connector '{definition.connector}'): nothing can be looked up in it", _WITHIN)
    return definition


def lookup_join(binder: Binder, tree: exp.Expr, left: Relation, right: Select, conditions: Sequence[Expression]) -> Lookup:
    """Returns the lookup of a JOIN.

    Parameters
    ----------
    right : the table, with the column names of the JOIN

    Raises
    ------
    QueryError
        There is no equality to look up by.
    """
    assert isinstance(right.input, Scan)
    sides = {column.name for column in left.schema}, {column.name for column in right.schema}
    types = {column.name: column.type for side in (left, right) for column in side.schema}
    both, residual = crossing(conditions, sides)
    inner = {name: value for name, value, _ in right.columns}
    keys: list[tuple[Expression, Expression]] = []
    for condition in both:
        key = key_of(condition, sides, types)
        if key is None:
            residual.append(condition)
        else:
            keys.append((key[0], substitute(key[1], inner)))
    if not keys:
        raise binder.text.error(tree.this, "lookup in a table without an equality between both sides", "add ON s.key = table.key")
    columns = [(column.name, 0, column.name) for column in left.schema]
    columns += [(name, 1, value.name) for name, value, _ in right.columns if isinstance(value, Column)]
    return Lookup(left, right.input.source, tuple(keys), tuple(columns), tuple(residual), tree.args.get("side") is not None)
