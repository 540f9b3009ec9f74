"""Text functions as polars expressions; `sbon.query.functions` defines what each computes."""

import hashlib
from collections.abc import Callable, Sequence
from typing import Any

import polars as pl

from sbon.operators.builder import Builder, each, literal_text, plainly
from sbon.query.functions import MaybeType
from sbon.query.literal_arguments import TEXT_MADE_MAX
from sbon.query.patterns import references, replacement_of, with_flags

REPLACED_BYTES_MAX = 1_000_000
"""Longest text that REPLACE and REGEXP_REPLACE may make; nested calls would otherwise double it each time."""
_FAR = 2**40
"""Longer than any text, far from overflow."""


def _strip(apply: Callable[[pl.Expr, str], pl.Expr]) -> Builder:
    def build(values: Sequence[pl.Expr], types: Sequence[MaybeType], literals: Sequence[Any]) -> pl.Expr:
        return apply(values[0], literal_text("trim", literals[1]) if len(values) == 2 else " ")

    return build


def _replace(values: Sequence[pl.Expr], types: Sequence[MaybeType], literals: Sequence[Any]) -> pl.Expr:
    text, old, new = values[0], literal_text("replace", literals[1]), literal_text("replace", literals[2])
    if not old:
        return text
    growth = len(new.encode()) - len(old.encode())
    if growth <= 0:
        return text.str.replace_all(old, new, literal=True)
    made_bytes = text.str.len_bytes() + text.str.count_matches(old, literal=True).cast(pl.Int64) * growth
    return _unless_long(text, made_bytes, lambda short: short.str.replace_all(old, new, literal=True))


def _unless_long(text: pl.Expr, made_bytes: pl.Expr, make: Callable[[pl.Expr], pl.Expr]) -> pl.Expr:
    """Returns `make(text)`; NULL if the result would be too long, or the text is NULL.

    polars also computes values that are masked as NULL, so no long text may remain there.
    """
    fits = made_bytes <= REPLACED_BYTES_MAX
    return pl.when(fits).then(make(pl.when(fits).then(text).otherwise(pl.lit(""))))


def _position(text: pl.Expr, part: pl.Expr) -> pl.Expr:
    before = text.str.find(part, literal=True)  # in bytes
    place = text.cast(pl.Binary).bin.slice(0, before.fill_null(0)).cast(pl.String).str.len_chars().cast(pl.Int64) + 1
    return pl.when(text.is_not_null() & part.is_not_null()).then(pl.when(before.is_not_null()).then(place).otherwise(0))


def _pad(*, left: bool) -> Builder:
    def build(values: Sequence[pl.Expr], types: Sequence[MaybeType], literals: Sequence[Any]) -> pl.Expr:
        text, size = values[0], values[1].clip(0, TEXT_MADE_MAX + 1)
        fill = literal_text("pad", literals[2]) if len(values) == 3 else " "
        filling = (fill * TEXT_MADE_MAX)[:TEXT_MADE_MAX]
        lacking = (size - text.str.len_chars().cast(pl.Int64)).clip(lower_bound=0)
        parts = [pl.lit(filling).str.slice(0, lacking), text.str.slice(0, size)]
        return pl.when(size <= TEXT_MADE_MAX).then(pl.concat_str(parts if left else parts[::-1]))

    return build


def _repeat(text: pl.Expr, times: pl.Expr) -> pl.Expr:
    length = text.str.len_chars().cast(pl.Int64)
    wanted = pl.when(length > 0).then(times.clip(0, TEXT_MADE_MAX + 1)).otherwise(times.clip(0, 0))
    fits = length * wanted <= TEXT_MADE_MAX
    return pl.when(fits).then(text.repeat_by(pl.when(fits).then(wanted).otherwise(0)).list.join(""))


def _split_part(values: Sequence[pl.Expr], types: Sequence[MaybeType], literals: Sequence[Any]) -> pl.Expr:
    text, number = values[0], values[2].clip(-_FAR, _FAR)
    parts = text.str.split(literal_text("split_part", literals[1]))
    found = parts.list.get(pl.when(number > 0).then(number - 1).otherwise(number), null_on_oob=True)
    return pl.when((number != 0) & text.is_not_null()).then(found.fill_null(""))


def _split_index(values: Sequence[pl.Expr], types: Sequence[MaybeType], literals: Sequence[Any]) -> pl.Expr:
    text, index = values[0], values[2].clip(-1, _FAR)
    found = text.str.split(literal_text("split_index", literals[1])).list.get(index, null_on_oob=True)
    return pl.when(index >= 0).then(found)


def _concat_ws(values: Sequence[pl.Expr], types: Sequence[MaybeType], literals: Sequence[Any]) -> pl.Expr:
    parts = [value.cast(pl.String) for value in values[1:]]
    return pl.concat_str(parts, separator=literal_text("concat_ws", literals[0]), ignore_nulls=True)


def _initials(text: str) -> str:
    """Capitalises the first letter of each word and lowers the others; words are letters and digits."""
    made, within = "", False
    for character in text:
        made += character.lower() if within else character.upper()
        within = character.isalnum()
    return made


def _character(number: int) -> str | None:
    """Returns the character of a code point; None if no text can contain it."""
    return chr(number) if 0 < number < 0x110000 and not 0xD800 <= number < 0xE000 else None


def _regexp_like(values: Sequence[pl.Expr], types: Sequence[MaybeType], literals: Sequence[Any]) -> pl.Expr:
    flags = literal_text("regexp_like", literals[2]) if len(values) == 3 else ""
    return values[0].str.contains(with_flags("regexp_like", literal_text("regexp_like", literals[1]), flags))


def _regexp_extract(values: Sequence[pl.Expr], types: Sequence[MaybeType], literals: Sequence[Any]) -> pl.Expr:
    return values[0].str.extract(literal_text("regexp_extract", literals[1]), literals[2] if len(values) == 3 else 0)


def _regexp_replace(values: Sequence[pl.Expr], types: Sequence[MaybeType], literals: Sequence[Any]) -> pl.Expr:
    flags = literal_text("regexp_replace", literals[3]) if len(values) == 4 else ""
    pattern = with_flags("regexp_replace", literal_text("regexp_replace", literals[1]), flags)
    new = replacement_of(literal_text("regexp_replace", literals[2]))
    length = values[0].str.len_bytes().cast(pl.Int64)
    matches = values[0].str.count_matches(pattern).cast(pl.Int64) if "g" in flags else 1
    # Matches do not overlap: the text that one reference repeats is never longer than the whole text.
    made_bytes = length * (1 + references(new)) + matches * len(new.encode())
    return _unless_long(
        values[0], made_bytes, lambda text: text.str.replace_all(pattern, new) if "g" in flags else text.str.replace(pattern, new)
    )


TEXTS: dict[str, Builder] = {
    "trim": _strip(lambda text, characters: text.str.strip_chars(characters)),
    "ltrim": _strip(lambda text, characters: text.str.strip_chars_start(characters)),
    "rtrim": _strip(lambda text, characters: text.str.strip_chars_end(characters)),
    "replace": _replace,
    "strpos": plainly(_position),
    "lpad": _pad(left=True),
    "rpad": _pad(left=False),
    "repeat": plainly(_repeat),
    "reverse": plainly(lambda text: text.str.reverse()),
    "split_part": _split_part,
    "split_index": _split_index,
    "concat_ws": _concat_ws,
    "initcap": plainly(each(_initials, pl.String())),
    "ends_with": plainly(lambda text, end: text.str.ends_with(end)),
    "chr": plainly(each(_character, pl.String())),
    "ascii": plainly(each(lambda text: ord(text[0]) if text else 0, pl.Int64())),
    "md5": plainly(each(lambda text: hashlib.md5(text.encode(), usedforsecurity=False).hexdigest(), pl.String())),
    "sha256": plainly(each(lambda text: hashlib.sha256(text.encode()).hexdigest(), pl.String())),
    "regexp_like": _regexp_like,
    "regexp_extract": _regexp_extract,
    "regexp_replace": _regexp_replace,
}
