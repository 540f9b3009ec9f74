"""Binds JSON, arrays and structs in expressions: ->, ->>, a[1] and (x).name, and PostgreSQL's functions for them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from sqlglot import exp

from sbon.query.catalog import did_you_mean
from sbon.query.dialect import counted
from sbon.query.expression import Call, Expression, Literal
from sbon.query.literals import identifier
from sbon.query.scalar_calls import Bound, chosen
from sbon.schema import TYPE_NAMES, ColumnType, element_type, held_type, members_of, type_name

if TYPE_CHECKING:
    from sbon.query.scalar import Scalars

JSON, TEXT, INT = ColumnType.JSON, ColumnType.TEXT, ColumnType.INT
_PATH_HINT = "write x -> 'a' -> 0 ->> 'b': names of members, and places of elements from 0"


def as_json(scalars: Scalars, tree: exp.Expr, bound: Bound) -> Bound:
    """Returns the value as JSON; parses a TEXT.

    Raises
    ------
    QueryError
        The value has another type.
    """
    if bound[1] in (JSON, None):
        return bound
    if members_of(bound[1]):
        told = f"{scalars.text.written(tree)} is {type_name(bound[1])}, expected JSON"
        raise scalars.refuse(tree, told, "write (x).name for a field, or CAST(x AS JSON) -> 'name'")
    if element_type(bound[1]) is not None:
        hint = "write a[1] for the first element, or CAST(a AS JSON) -> 0"
        raise scalars.refuse(tree, f"{scalars.text.written(tree)} is {TYPE_NAMES[bound[1]]}, expected JSON", hint)
    if bound[1] is not TEXT:
        what = f"{scalars.text.written(tree)} is {TYPE_NAMES[bound[1]]}, expected JSON or a TEXT that is JSON"
        raise scalars.refuse(tree, what, "declare the column JSON")
    return scalars.call(tree, "json", [bound])


def _step(scalars: Scalars, tree: exp.Expr) -> Bound:
    """Binds x -> key and x ->> key. A chain becomes one call, which reads its JSON once."""
    name = "json_text" if isinstance(tree, exp.JSONExtractScalar) else "json_get"
    if "typed" in tree.meta:  # JSON_EXTRACT(x, '$.a') and its like
        raise scalars.refuse(tree, f"{scalars.typed(tree)}: paths of JSON are not supported", _PATH_HINT)
    return _path(scalars, tree, name, tree.this, [tree.expression])


def _path(scalars: Scalars, tree: exp.Expr, name: str, document: exp.Expr, keys: list[exp.Expr]) -> Bound:
    value = as_json(scalars, document, scalars.bind(document))
    bound = [scalars.bind(key) for key in keys]
    inner = value[0]
    if isinstance(inner, Call) and inner.function == "json_get":
        scalars.call(tree, name, [value, *bound])  # for its checks
        whole, result = Call(name, (*inner.arguments, *(key for key, _ in bound))), JSON if name == "json_get" else TEXT
        return whole, result
    return scalars.call(tree, name, [value, *bound], [document, *keys])


def _extract_path(name: str) -> Callable[[Scalars, exp.Expr], Bound]:
    def bind(scalars: Scalars, tree: exp.Expr) -> Bound:
        if len(tree.expressions) < 2:
            raise scalars.refuse(tree, f"{tree.this} got {counted(len(tree.expressions), 'argument')}, expected 2 or more", _PATH_HINT)
        return _path(scalars, tree, name, tree.expressions[0], list(tree.expressions[1:]))

    return bind


def _of_json(name: str) -> Callable[[Scalars, exp.Expr], Bound]:
    def bind(scalars: Scalars, tree: exp.Expr) -> Bound:
        if len(tree.expressions) != 1:
            raise scalars.refuse(tree, f"{tree.this} got {counted(len(tree.expressions), 'argument')}, expected 1", f"write {tree.this}(x)")
        (value,) = tree.expressions
        return scalars.call(tree, name, [as_json(scalars, value, scalars.bind(value))])

    return bind


def _element(scalars: Scalars, tree: exp.Expr) -> Bound:
    """Binds a[1]. Places count from 1; NULL where there is no such element."""
    array, kind = scalars.bind(tree.this)
    element = element_type(kind)
    if element is None:
        told = f"{scalars.text.written(tree)}: {scalars.text.written(tree.this)} is {TYPE_NAMES[kind or TEXT]}, expected an array"
        hint = "write x -> 0 for the first element of JSON" if kind is JSON else "write SUBSTR(text, 1, 1) for the first character"
        raise scalars.refuse(tree, told, hint if kind in (JSON, TEXT) else "declare it as an array, such as BIGINT[]")
    if len(tree.expressions) != 1 or isinstance(tree.expressions[0], exp.Slice):
        told = f"{scalars.text.written(tree)}: a part of an array is not supported"
        raise scalars.refuse(tree, told, "write a[1] for one element, or UNNEST it")
    place = scalars.bind(tree.expressions[0])
    if place[1] not in (INT, None):
        told = f"{scalars.text.written(tree)}: the place of an element is a BIGINT, not {TYPE_NAMES[place[1]]}"
        raise scalars.refuse(tree, told, "write a[1] for the first element")
    one, null = (Literal(1, INT), INT), (Literal(None, INT), INT)
    counted_from_1, _ = scalars.call(tree, "ge", [place, one])
    key = chosen(scalars, tree, [(counted_from_1, scalars.call(tree, "sub", [place, one]))], null)
    return _part(scalars, tree, (array, JSON), key, element)


def _part(scalars: Scalars, tree: exp.Expr, whole: Bound, key: Bound, kind: ColumnType) -> Bound:
    """Returns an element of an array or a field of a struct, of the given type."""
    if held_type(kind) is kind:
        return scalars.cast(tree, scalars.call(tree, "json_text", [whole, key]), kind)
    return scalars.cast(tree, scalars.call(tree, "json_get", [whole, key]), kind)


def _field(scalars: Scalars, tree: exp.Expr) -> Bound:
    """Binds (place).lat and a[1].lat."""
    if not isinstance(tree.expression, exp.Identifier):
        raise scalars.refuse(tree, f"{scalars.text.written(tree)} is not supported", "write (x).name for a field of a STRUCT")
    return field(scalars, tree, scalars.bind(tree.this), identifier(tree.expression))


def field(scalars: Scalars, tree: exp.Expr, bound: Bound, name: str) -> Bound:
    """Returns a field of a struct; NULL where the struct is NULL.

    Raises
    ------
    QueryError
        The value is no struct, or its type has no such field.
    """
    value, kind = bound
    members = {member.name: member.type for member in members_of(kind)}
    if name in members:
        return _part(scalars, tree, (value, JSON), (Literal(name, TEXT), TEXT), members[name])
    if members:
        told = f"{scalars.text.written(tree)}: {type_name(kind or TEXT)} has no field {name}"
        raise scalars.refuse(tree, told, did_you_mean(name, members))
    hint = "write x -> 'name' for a member of JSON" if kind is JSON else "declare it STRUCT<a BIGINT>, with the fields that it has"
    told = f"{scalars.text.written(tree)}: .{name} of {type_name(kind or TEXT)}, expected a STRUCT"
    raise scalars.refuse(tree, told, hint)


def as_array(scalars: Scalars, tree: exp.Expr, bound: Bound) -> tuple[Expression, ColumnType]:
    """Returns an array and its type. JSON counts as an array of JSON, as its value is known only when rows come.

    Raises
    ------
    QueryError
        The value is neither an array nor JSON.
    """
    value, kind = bound
    if kind is JSON:
        return value, ColumnType.DOCUMENTS
    if kind is None or element_type(kind) is None:
        told = f"{scalars.text.written(tree)} is {TYPE_NAMES[kind or TEXT]}, expected an array or JSON"
        raise scalars.refuse(tree, told, "declare it as an array, such as BIGINT[], or CAST a text to JSON")
    return value, kind


def _cardinality(scalars: Scalars, tree: exp.Expr) -> Bound:
    if len(tree.expressions) != 1:
        raise scalars.refuse(tree, f"{tree.this} got {counted(len(tree.expressions), 'argument')}, expected 1", f"write {tree.this}(a)")
    array, _ = as_array(scalars, tree.expressions[0], scalars.bind(tree.expressions[0]))
    return scalars.call(tree, "json_length", [(array, JSON)])


def to_json(scalars: Scalars, tree: exp.Expr, bound: Bound) -> Bound:
    """Returns the value as JSON, as sinks write it; a text becomes a JSON string."""
    if members_of(bound[1]) or element_type(bound[1]) is not None:
        return scalars.call(tree, "json", [bound])
    return bound if bound[1] is JSON else scalars.call(tree, "to_json", [bound])


def _to_json(scalars: Scalars, tree: exp.Expr) -> Bound:
    if len(tree.expressions) != 1:
        raise scalars.refuse(tree, f"{tree.this} got {counted(len(tree.expressions), 'argument')}, expected 1", f"write {tree.this}(x)")
    return to_json(scalars, tree, scalars.bind(tree.expressions[0]))


NESTED_TREES: dict[type[exp.Expr], Callable[[Scalars, exp.Expr], Bound]] = {
    exp.JSONExtract: _step,
    exp.JSONExtractScalar: _step,
    exp.Bracket: _element,
    exp.Dot: _field,
}
NESTED_NAMES: dict[str, Callable[[Scalars, exp.Expr], Bound]] = {
    **dict.fromkeys(("json_extract_path", "jsonb_extract_path"), _extract_path("json_get")),
    **dict.fromkeys(("json_extract_path_text", "jsonb_extract_path_text"), _extract_path("json_text")),
    **dict.fromkeys(("json_array_length", "jsonb_array_length"), _of_json("json_length")),
    **dict.fromkeys(("json_typeof", "jsonb_typeof"), _of_json("json_typeof")),
    **dict.fromkeys(("to_json", "to_jsonb"), _to_json),
    "cardinality": _cardinality,
}
