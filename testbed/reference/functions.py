"""Makes the page of the SQL functions from the tables that check calls, and from the forms in which calls are written."""

from collections.abc import Callable, Iterator
from functools import partial
from itertools import product
from math import prod
from typing import TypeAlias

from sbon.errors import QueryError
from sbon.query.aggregate_names import AGGREGATE_NAMES
from sbon.query.forms import AGGREGATES, AGGREGATES_ALSO, CALLS, MADE_OF_OTHERS, OPERATORS, PARSED_AS
from sbon.query.function_names import EXTRACTS, SYNONYMS
from sbon.query.functions import FUNCTIONS, Function, aggregate_type
from sbon.query.named_calls import function_names
from sbon.query.params.aggregate import AGGREGATE_FUNCTIONS, PAIR_FUNCTIONS
from sbon.schema import ARRAY_TYPES, ELEMENT_TYPES, TYPE_NAMES, ColumnType
from sbon_testbed.reference.markdown import code, page, prose, table

Accepted: TypeAlias = dict[tuple[ColumnType, ...], ColumnType]
"""Accepted types of arguments, with the type of the result."""

INTRODUCTION = """\
A function returns NULL when an argument is NULL, unless its description says otherwise. An undefined result is NULL rather than an error: a
division by zero, the root of a negative number, a CAST of a value that does not convert. A *number* is a BIGINT or a DOUBLE; a BIGINT
beside a DOUBLE is converted to DOUBLE.

Names may be written in any case. `SHOW FUNCTIONS` lists them, with the functions of installed packages."""

OF_AGGREGATES = """\
Aggregates are used in the SELECT list or in HAVING over a window with GROUP BY, each optionally with `FILTER (WHERE condition)`. All but
`COUNT(*)` ignore NULLs. Without any value, counts are 0 and all other aggregates are NULL. Answers do not depend on how rows were batched,
to the last bit."""

_NUMBERS = (ColumnType.INT, ColumnType.FLOAT)
_INSTEAD_OF = {"median": "percentile_cont", "any_value": "min"}
"""Aggregates that are implemented by another one, with the same types of arguments."""
_OF_JSON_ALONE = ("json_get", "json_text", "json_typeof")
"""Functions that the planner does not call for arrays, although hosts accept arrays."""


def functions_page() -> str:
    """Returns the page."""
    signature = ("arguments", "result", "meaning")
    return page(
        "SQL functions",
        "`sbon/query/functions.py` and `sbon/query/forms.py`",
        prose(INTRODUCTION),
        "## Operators and conditions",
        table(("written as", *signature), _operators()),
        table(("written as", "result", "meaning"), [(code(form.call), form.result, form.meaning) for form in MADE_OF_OTHERS]),
        "## Functions",
        table(("function", *signature), sorted(_functions(), key=lambda row: row[0].lower())),
        "## Other names",
        table(("name", "function"), sorted((code(name.upper()), code(same.upper())) for name, same in (SYNONYMS | PARSED_AS).items())),
        "## Aggregates",
        prose(OF_AGGREGATES),
        table(("aggregate", "also", "takes", "result", "meaning"), _aggregates()),
    )


def _operators() -> Iterator[tuple[str, str, str, str]]:
    for name, written in OPERATORS.items():
        arguments, result = signature(FUNCTIONS[name])
        yield code(written), arguments, result, FUNCTIONS[name].meaning


def _functions() -> Iterator[tuple[str, str, str, str]]:
    """Yields one row for each function that is called by its name, without synonyms."""
    for name in {*function_names(), *CALLS} - {*SYNONYMS, *PARSED_AS, "extract", "cast"}:
        if name in CALLS:
            yield code(CALLS[name].call), CALLS[name].arguments, CALLS[name].result, CALLS[name].meaning
        elif name in EXTRACTS:
            function = FUNCTIONS[f"extract_{EXTRACTS[name]}"]
            yield code(f"{name.upper()}(ts)"), *signature(function), f"As EXTRACT({EXTRACTS[name]} FROM ts): {function.meaning}"
        else:
            yield code(name.upper()), *signature(FUNCTIONS[name]), FUNCTIONS[name].meaning
    for name, function in FUNCTIONS.items():
        if name.startswith("extract_"):
            yield code(f"EXTRACT({name.removeprefix('extract_')} FROM x)"), *signature(function), function.meaning


def _aggregates() -> Iterator[tuple[str, str, str, str, str]]:
    for name in sorted(AGGREGATE_NAMES):
        form = AGGREGATES[name]
        yield code(form.call), code(AGGREGATES_ALSO.get(name, "")), _taken(name), form.result, form.meaning


def _taken(name: str) -> str:
    """Returns the types that an aggregate accepts, found by trying each type."""
    if name == "string_agg":
        return "any"  # other values are cast to TEXT
    if name == "array_agg":
        return _types(set(ARRAY_TYPES))
    known = _INSTEAD_OF.get(name, name)
    if known not in AGGREGATE_FUNCTIONS:
        return TYPE_NAMES[ColumnType.BOOL]  # COUNT_IF is COUNT with a FILTER
    by = ColumnType.INT if known in PAIR_FUNCTIONS else None
    taken = {kind for kind in ColumnType if _result(partial(aggregate_type, known, kind, by)) is not None}
    return _types(taken | ({ColumnType.BOOL} if name == "any_value" else set()))


def signature(function: Function) -> tuple[str, str]:
    """Returns arguments and result of a function in words, as its rule accepts and returns them.

    Examples
    --------
    >>> signature(FUNCTIONS["substr"])
    ('TEXT, BIGINT [, BIGINT]', 'TEXT')
    >>> signature(FUNCTIONS["greatest"])
    ('any but JSON and array, all of one type', 'that of the arguments')
    """
    count = max(2 if function.arguments_max is None else 1, function.arguments_min)
    accepted = _accepted(function, count)
    listed = _listed(accepted)
    most = function.arguments_max
    if most is None:
        listed += "" if "all of one type" in listed else ", ..."
    for place in range(count, most or 0):
        first = next(iter(accepted))
        optional = {kinds[-1] for kinds in _accepted(function, place + 1, first)}
        listed += f" [, {_types(optional)}]"
    return listed, _results(accepted)


def _accepted(function: Function, count: int, first: tuple[ColumnType, ...] = ()) -> Accepted:
    """Returns the combinations of `count` argument types that a function accepts; all begin with the types in `first`."""
    accepted: Accepted = {}
    for rest in product(ColumnType, repeat=count - len(first)):
        kinds = (*first, *rest)
        if kinds[0] in ELEMENT_TYPES and function.name in _OF_JSON_ALONE:
            continue
        result = _result(partial(function.rule, function.name, kinds))
        if result is not None:
            accepted[kinds] = result
    return accepted


def _result(rule: Callable[[], ColumnType | None]) -> ColumnType | None:
    try:
        return rule()
    except QueryError:
        return None


def _listed(accepted: Accepted) -> str:
    """Returns the arguments in words: the types of each place, or "all of one type", or every combination."""
    places = [set(kinds) for kinds in zip(*accepted, strict=True)]
    if len(accepted) == prod(map(len, places)):
        return ", ".join(map(_types, places))
    if all(map(_is_one_type, accepted)):
        return f"{_types(places[0])}, all of one type"
    return "; ".join(dict.fromkeys(", ".join(_type(kind) for kind in kinds) for kinds in accepted))


def _is_one_type(kinds: tuple[ColumnType, ...]) -> bool:
    return len({ColumnType.FLOAT if kind in _NUMBERS else kind for kind in kinds}) == 1


def _results(accepted: Accepted) -> str:
    results = set(accepted.values())
    if len(results) == 1:
        return TYPE_NAMES[results.pop()]
    if all(result in kinds and _is_one_type(kinds) for kinds, result in accepted.items()):
        return "that of the argument" if len(next(iter(accepted))) == 1 else "that of the arguments"
    return "; ".join(dict.fromkeys(_type(result) for result in accepted.values()))


def _types(kinds: set[ColumnType]) -> str:
    """Returns a set of types in words.

    Examples
    --------
    >>> _types({ColumnType.INT, ColumnType.FLOAT, ColumnType.INTERVAL})
    'number or INTERVAL'
    """
    missing = _words(set(ColumnType) - kinds)
    if not missing:
        return "any"
    return f"any but {' and '.join(missing)}" if len(missing) <= 2 else " or ".join(_words(kinds))


def _words(kinds: set[ColumnType]) -> list[str]:
    """Returns the names of types; all numbers together become one word, and so do all arrays."""
    groups = {"number": set(_NUMBERS), "array": set(ELEMENT_TYPES)}
    whole = [word for word, members in groups.items() if members <= kinds]
    rest = kinds.difference(*(groups[word] for word in whole))
    named = [TYPE_NAMES[kind] for kind in ColumnType if kind in rest]
    return [word for word in whole if word == "number"] + named + [word for word in whole if word == "array"]


def _type(kind: ColumnType) -> str:
    return "number" if kind in _NUMBERS else TYPE_NAMES[kind]
