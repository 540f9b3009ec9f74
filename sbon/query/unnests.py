"""Binds UNNEST in FROM: `FROM s CROSS JOIN UNNEST(s.items) AS t(item)`, or with a comma for CROSS JOIN.

Each row becomes one row for each element; a row without elements is dropped, as in PostgreSQL. An array of JSON has elements of JSON.
`WITH ORDINALITY AS t(item, n)` numbers the elements of each array from 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from sqlglot import exp

from sbon.query.dialect import counted
from sbon.query.literals import column_name, identifier
from sbon.query.nested import as_array
from sbon.query.projection import free_name
from sbon.query.relation import BOUNDS, Relation, Unnest
from sbon.query.scalar import Scalars
from sbon.query.scope import Scope, ScopeColumn
from sbon.schema import ColumnType, element_type

if TYPE_CHECKING:
    from sbon.query.binder import Binder

_FORM = "write FROM s CROSS JOIN UNNEST(s.items) AS t(item)"
_NUMBERED_FORM = "write FROM s CROSS JOIN UNNEST(s.items) WITH ORDINALITY AS t(item, n)"


def unnest_of(tree: exp.Expr) -> exp.Unnest | None:
    """Returns the UNNEST that an input of FROM is, also after LATERAL; None if it is something else."""
    inner = tree.this if isinstance(tree, exp.Lateral) else tree
    return inner if isinstance(inner, exp.Unnest) else None


def unnested(binder: Binder, joins: Sequence[exp.Expr], relation: Relation, scope: Scope) -> tuple[Relation, Scope]:
    """Returns the stream with the arrays of all UNNESTs expanded, and the scope of its columns and elements.

    Parameters
    ----------
    joins : the inputs after the stream, at least one of them an UNNEST

    Raises
    ------
    QueryError
        A stream is joined as well, the kind of UNNEST is not supported, its value is no array, or its name is taken.
    """
    for join in joins:
        unnest = unnest_of(join.this)
        if unnest is None:
            hint = "join them in a SELECT in brackets, and UNNEST the array of its answer"
            raise binder.text.keyword_error(join.this, "JOIN", "UNNEST beside a JOIN of streams is not supported", hint)
        _refuse_kind(binder, join, unnest)
        binder.count_input(unnest)
        relation, scope = _taken_apart(binder, unnest, join.this.args.get("alias"), relation, scope)
    return relation, scope


def _refuse_kind(binder: Binder, join: exp.Expr, unnest: exp.Unnest) -> None:
    text = binder.text
    kind = " ".join(str(join.args[part]) for part in ("method", "side", "kind") if join.args.get(part)).upper()
    on = join.args.get("on")
    if kind not in ("", "CROSS", "INNER"):
        message = f"{kind} JOIN with UNNEST is not supported: a row without elements is dropped"
        raise text.keyword_error(unnest, "UNNEST", message, _FORM)
    if join.args.get("using") or (on is not None and not (isinstance(on, exp.Boolean) and on.this)):
        raise text.keyword_error(unnest, "UNNEST", "a condition of JOIN does not go with UNNEST", f"{_FORM}, and the condition after WHERE")
    if "with_offset" in unnest.meta:
        raise text.keyword_error(unnest, "UNNEST", "UNNEST WITH OFFSET is not supported", f"{_NUMBERED_FORM}: n counts from 1")
    if len(unnest.expressions) != 1:
        raise text.keyword_error(unnest, "UNNEST", f"UNNEST got {counted(len(unnest.expressions), 'array')}, expected 1", _FORM)


def _taken_apart(
    binder: Binder, unnest: exp.Unnest, alias_tree: exp.Expr | None, relation: Relation, scope: Scope
) -> tuple[Relation, Scope]:
    text, tree = binder.text, unnest.expressions[0]
    scalars = Scalars(text, scope)
    array, kind = as_array(scalars, tree, scalars.bind(tree))
    names = [] if alias_tree is None else alias_tree.args.get("columns") or []
    offset = unnest.args.get("offset")
    if len(names) > 1 and offset:
        raise text.error(names[1], f"UNNEST WITH ORDINALITY gives two columns, not {len(names) + 1}", _NUMBERED_FORM)
    if len(names) > 1:
        raise text.error(names[1], f"UNNEST gives one column, not {len(names)}", f"{_FORM}; of JSON, take item -> 'name' in the SELECT")
    alias = "unnest" if alias_tree is None or alias_tree.this is None else identifier(alias_tree.this)
    if alias in scope.aliases:
        raise text.keyword_error(unnest, "UNNEST", f"UNNEST: two inputs are named {alias}", "name one of them with AS")
    name = column_name(text, names[0]) if names else alias
    of = element_type(kind) or ColumnType.JSON
    element = free_name(name, (*BOUNDS, *(column.name for column in relation.schema)))
    added = [ScopeColumn(alias, name, element, of)]
    ordinal = None
    if offset:
        number = column_name(text, offset) if isinstance(offset, exp.Identifier) else "ordinality"
        ordinal = free_name(number, (*BOUNDS, element, *(column.name for column in relation.schema)))
        added.append(ScopeColumn(alias, number, ordinal, ColumnType.INT))
    return Unnest(relation, array, of, element, ordinal), Scope((*scope.columns, *added))
