"""JSON functions as polars expressions. `sbon.query.functions` defines what each computes, `sbon.json_texts` how JSON is stored.

polars has no JSON functions that keep a value as it is written, so Python code handles each value, which takes about a microsecond.
"""

from collections.abc import Callable, Sequence
from functools import partial
from itertools import repeat
from typing import Any

import polars as pl

from sbon.arrays import array_text, struct_text
from sbon.errors import RemoteProtocolError
from sbon.json_texts import Key, json_of_text, json_text, kind_of, length_of, part_of, text_of_part
from sbon.operators.builder import Builder, each, plainly
from sbon.operators.division import quotient
from sbon.operators.times import format_time
from sbon.query.functions import MaybeType
from sbon.schema import ARRAY_TYPES, ColumnType, element_type

_SECOND_US = 1_000_000


def _path(take: Callable[[str, Sequence[Key]], str | None]) -> Builder:
    """Returns the builder of a function of JSON and the keys that lead into it."""

    def build(values: Sequence[pl.Expr], types: Sequence[MaybeType], literals: Sequence[Any]) -> pl.Expr:
        keys: list[Any] = list(literals[1:])
        if any(isinstance(key, bool | float) for key in keys):
            raise RemoteProtocolError(f"keys {keys!r} of JSON, expected texts and whole numbers")
        if None not in keys:
            return each(lambda text: take(text, keys), pl.String())(values[0])
        varying = [place for place, key in enumerate(keys) if key is None]

        def apply(columns: Sequence[pl.Series]) -> pl.Series:
            rows = max(map(len, columns))
            texts, *others = (repeat(column[0], rows) if len(column) == 1 else column for column in columns)
            found: list[str | None] = []
            for text, *given in zip(texts, *others, strict=True):
                if text is None or None in given:
                    found.append(None)
                    continue
                path = list(keys)
                for place, key in zip(varying, given, strict=True):
                    path[place] = key
                found.append(take(text, path))
            return pl.Series(found, dtype=pl.String)

        parts = [values[0], *(values[1 + place] for place in varying)]
        return pl.map_batches(parts, apply, return_dtype=pl.String(), is_elementwise=True)

    return build


def _to_json(values: Sequence[pl.Expr], types: Sequence[MaybeType], literals: Sequence[Any]) -> pl.Expr:
    value = values[0]
    match types[0]:
        case ColumnType.TEXT:
            return each(json_of_text, pl.String())(value)
        case ColumnType.FLOAT:
            return pl.when(value.is_finite()).then(value.cast(pl.String)).when(value.is_not_null()).then(pl.lit("null"))
        case ColumnType.BOOL:
            return pl.when(value).then(pl.lit("true")).when(~value).then(pl.lit("false"))
        case ColumnType.TIME:
            return pl.concat_str([pl.lit('"'), format_time(value), pl.lit('"')])
        case ColumnType.INTERVAL:
            return quotient(value.cast(pl.Int64), _SECOND_US).cast(pl.String)
        case _:
            return value.cast(pl.String)


def _struct_of(values: Sequence[pl.Expr], types: Sequence[MaybeType], literals: Sequence[Any]) -> pl.Expr:
    kind = ColumnType(literals[1])
    element = element_type(kind)
    make = partial(struct_text, kind=kind) if element is None else partial(array_text, kind=element)
    return each(make, pl.String())(values[0])


JSON_CALLS: dict[str, Builder] = {
    "json": plainly(each(json_text, pl.String())),
    "json_get": _path(part_of),
    "json_text": _path(text_of_part),
    "json_length": plainly(each(length_of, pl.Int64())),
    "json_typeof": plainly(each(kind_of, pl.String())),
    **{f"{kind.value}_array": plainly(each(partial(array_text, kind=kind), pl.String())) for kind in ARRAY_TYPES},
    "struct_of": _struct_of,
    "to_json": _to_json,
}
