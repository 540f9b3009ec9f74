"""Columns of the `datagen` connector: functions of the row's number, computed from a hash of seed, column and number.

The numbers are SplitMix64's (Steele, Lea and Flood, Fast splittable pseudorandom number generators, OOPSLA 2014), whose output function
turns any sequence of numbers into one that passes tests of randomness; so any row can be made without the earlier ones. All streams of
SplitMix64 with the same step are one cycle of 2^64 numbers, and differ only in where they begin. The position of the first row is therefore
a cryptographic hash of seed and column: two streams of 10^9 rows overlap with a probability of about 10^-10. A position that grows with the
seed would make the stream of seed 1 that of seed 0 shifted by some rows.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable
from functools import lru_cache
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import polars as pl

from sbon.errors import ConnectorError
from sbon.operators.frames import polars_type
from sbon.options import Options
from sbon.query.schema import TYPE_NAMES, ColumnType, Field
from sbon.types import FloatArray
from sbon_agent.connectors.base import ConnectorContext

Index = npt.NDArray[np.int64]
Column: TypeAlias = Callable[[Index], pl.Series]

COUNT_MAX = 1_000_000
"""Most ranks of a zipf column: its table takes 8 bytes for each."""

TEXTS_MAX = 65_536
"""Most ranks of a text column whose texts are made once and kept."""
STEPS_PER_RANK = 64
STEPS_MAX = 65_536
"""Size of the table that finds the rank of a number: steps per rank, and at most."""
_STEP = np.uint64(0x9E3779B97F4A7C15)
_KINDS = {
    ColumnType.INT: ("random", "sequence", "normal", "zipf", "choice"),
    ColumnType.FLOAT: ("random", "sequence", "normal", "choice"),
    ColumnType.TEXT: ("zipf", "sequence", "choice", "node", "label"),
    ColumnType.BOOL: ("random", "choice"),
    ColumnType.INTERVAL: ("random",),
}


def node_seed(seed: int, node: str) -> int:
    """Returns the seed of one node of a logical source: 63 bits that differ from node to node, the same in every process."""
    return _first(seed, f"node/{node}") >> 1


def uniform(seed: int, purpose: str, index: Index) -> FloatArray:
    """Returns numbers from 0 to below 1, one for each row number; numbers of different seeds or purposes are independent.

    Parameters
    ----------
    seed : from 0 to 2^63 - 1
    purpose : such as `column/price`
    index : (n,)
        Numbers of the rows.
    """
    with np.errstate(over="ignore"):
        z = index.view(np.uint64) * _STEP
        z += np.uint64(_first(seed, purpose))
        # In place: two arrays of a large batch stay in a core's cache where ten would not.
        shifted = z >> np.uint64(30)
        z ^= shifted
        z *= np.uint64(0xBF58476D1CE4E5B9)
        np.right_shift(z, np.uint64(27), out=shifted)
        z ^= shifted
        z *= np.uint64(0x94D049BB133111EB)
        np.right_shift(z, np.uint64(31), out=shifted)
        z ^= shifted
        z >>= np.uint64(11)
    # 53 bits are left: as signed numbers, which processors turn into floats faster.
    return np.multiply(z.view(np.int64), 2.0**-53, out=shifted.view(np.float64))


@lru_cache(maxsize=4096)
def _first(seed: int, purpose: str) -> int:
    """Returns the 64-bit position in SplitMix64's cycle for row 0."""
    return int.from_bytes(hashlib.blake2b(seed.to_bytes(8, "big") + purpose.encode(), digest_size=8).digest(), "big")


def disorder(seed: int) -> Callable[[Index], FloatArray]:
    """Returns a function that gives how far each row is behind its place, as a share of the maximum."""
    return lambda index: uniform(seed, "disorder", index)


def build_column(field: Field, options: Options, seed: int, context: ConnectorContext) -> Column | None:
    """Makes a column as the options say; returns None for times, which are the event time.

    Raises
    ------
    ConnectorError
        An option of the column is out of range.
    """
    if field.type is ColumnType.TIME:
        return None
    prefix = f"fields.{field.name}."
    if field.type not in _KINDS:
        held = f"column {field.name} is {TYPE_NAMES[field.type]}, which the generator does not make"
        raise ConnectorError(f"{held}: make a TEXT and cast it in a SELECT, CAST(x AS {TYPE_NAMES[field.type]})")
    kinds = _KINDS[field.type]
    kind = options.choice(prefix + "kind", kinds, kinds[0])
    values = _BUILDERS[kind](field, prefix, options, seed, context)
    null_fraction = options.number(prefix + "null_fraction", 0.0, 0.0, 1.0)
    dtype = polars_type(field.type)

    def column(index: Index) -> pl.Series:
        series = values(index)
        if series.dtype != dtype:
            series = series.cast(dtype)
        if null_fraction:
            kept = pl.Series(uniform(seed, f"null/{field.name}", index) >= null_fraction)
            series = pl.select(pl.when(kept).then(series)).to_series()
        return series

    return column


def _chance(field: Field, seed: int) -> Callable[[Index], FloatArray]:
    """Returns a function that gives numbers from 0 to below 1, independent of other columns."""
    return lambda index: uniform(seed, f"column/{field.name}", index)


def _random(field: Field, prefix: str, options: Options, seed: int, context: ConnectorContext) -> Column:
    chance = _chance(field, seed)
    if field.type is ColumnType.BOOL:
        probability = options.number(prefix + "probability", 0.5, 0.0, 1.0)
        return lambda index: pl.Series(chance(index) < probability)
    if field.type is ColumnType.INT:
        least = options.integer(prefix + "min", 0, -(2**52), 2**52)
        most = options.integer(prefix + "max", max(1000, least), least, 2**52)
        return lambda index: pl.Series(_whole(chance(index), most - least + 1, least))
    low = options.number(prefix + "min", 0.0, -1e300, 1e300)
    high = options.number(prefix + "max", max(low, 1.0 if field.type is ColumnType.FLOAT else 60.0), low, 1e300)
    if field.type is ColumnType.FLOAT:
        return lambda index: pl.Series(_between(chance(index), low, high))
    return lambda index: pl.Series(np.round(_between(chance(index), low, high) * 1e6).astype(np.int64))


def _whole(chance: FloatArray, count: int, least: int) -> Index:
    """Converts `chance`, in place, to `count` different whole numbers from `least` on."""
    # Here and below, calls without effect are left out: after each, the thread waits for the interpreter if another one holds it.
    chance *= count
    numbers = chance.astype(np.int64)  # rounds down, as there are no negative ones
    if least:
        numbers += least
    return numbers


def _between(chance: FloatArray, low: float, high: float) -> FloatArray:
    """Scales `chance`, in place, to numbers from `low` to `high`."""
    if high - low != 1.0:
        chance *= high - low
    if low:
        chance += low
    return chance


def _sequence(field: Field, prefix: str, options: Options, seed: int, context: ConnectorContext) -> Column:
    modulo = options.integer(prefix + "modulo", 0, 0, 2**62)
    if field.type is ColumnType.FLOAT:
        low = options.number(prefix + "start", 0.0, -1e300, 1e300)
        stride = options.number(prefix + "step", 1.0, -1e300, 1e300)
        return lambda index: pl.Series(low + (index % modulo if modulo else index) * stride)
    start = options.integer(prefix + "start", 0, -(2**62), 2**62)
    step = options.integer(prefix + "step", 1, -(2**31), 2**31)
    text = options.text(prefix + "prefix", "") if field.type is ColumnType.TEXT else None

    def values(index: Index) -> pl.Series:
        numbers = pl.Series(start + (index % modulo if modulo else index) * step)
        return numbers if text is None else _prefixed(text, numbers)

    return values


def _prefixed(prefix: str, numbers: pl.Series) -> pl.Series:
    return pl.select(pl.concat_str([pl.lit(prefix), numbers.cast(pl.String)])).to_series()


def _normal(field: Field, prefix: str, options: Options, seed: int, context: ConnectorContext) -> Column:
    chance = _chance(field, seed)
    mean = options.number(prefix + "mean", 0.0, -1e15, 1e15)
    stddev = options.number(prefix + "stddev", 1.0, 0.0, 1e15)

    def values(index: Index) -> pl.Series:
        # Box and Muller, A note on the generation of random normal deviates, Ann. Math. Statist. 29 (1958).
        radius = np.sqrt(-2.0 * np.log(1.0 - chance(index)))
        numbers = mean + stddev * radius * np.cos(2.0 * np.pi * uniform(seed, f"angle/{field.name}", index))
        return pl.Series(np.round(numbers).astype(np.int64) if field.type is ColumnType.INT else numbers)

    return values


def _zipf(field: Field, prefix: str, options: Options, seed: int, context: ConnectorContext) -> Column:
    chance = _chance(field, seed)
    count = options.integer(prefix + "count", 100, 1, COUNT_MAX)
    exponent = options.number(prefix + "exponent", 1.0, 0.0, 20.0)
    shares = np.cumsum(np.arange(1, count + 1, dtype=np.float64) ** -exponent)
    shares /= shares[-1]
    ranks = Ranks(shares)
    if field.type is ColumnType.INT:
        least = options.integer(prefix + "min", 0, -(2**62), 2**62)
        return lambda index: pl.Series(ranks.of(chance(index)) + least)
    text = options.text(prefix + "prefix", f"{field.name}-")
    if count > TEXTS_MAX:
        return lambda index: _prefixed(text, pl.Series(ranks.of(chance(index))))
    texts = _prefixed(text, pl.Series(np.arange(count)))
    return lambda index: texts.gather(ranks.of(chance(index)))


class Ranks:
    """Finds the share that a number falls into, like `np.searchsorted` on the right side, which takes twenty times as long.

    The range from 0 to 1 is cut into equal steps. Most steps lie within one share, which is looked up; numbers in other steps are searched
    for.

    Parameters
    ----------
    shares : (ranks,)
        End of each share; the last one is 1.
    """

    def __init__(self, shares: FloatArray) -> None:
        self._shares = shares
        # A power of two makes the step of a number exact.
        self._steps = int(min(STEPS_MAX, 2 ** math.ceil(math.log2(STEPS_PER_RANK * len(shares)))))
        edges = np.searchsorted(shares, np.arange(self._steps + 1) / self._steps, side="right")
        self._known = np.where(edges[:-1] == edges[1:], edges[:-1], -1)

    def of(self, chance: FloatArray) -> Index:
        """Returns the ranks of numbers from 0 to below 1."""
        ranks: Index = self._known.take((chance * self._steps).astype(np.int64))
        unknown = np.flatnonzero(ranks < 0)
        if len(unknown):
            ranks[unknown] = np.searchsorted(self._shares, chance[unknown], side="right")
        return ranks


def _choice(field: Field, prefix: str, options: Options, seed: int, context: ConnectorContext) -> Column:
    chance = _chance(field, seed)
    words = options.words(prefix + "values")
    if not words or len(words) > COUNT_MAX:
        raise options.refuse(prefix + "values", ",".join(words[:3]), "a list such as 'a,b,c'")
    weights = options.words(prefix + "weights") or ["1"] * len(words)
    try:
        shares = np.cumsum([float(weight) for weight in weights])
    except ValueError:
        shares = np.zeros(0)
    if len(shares) != len(words) or not np.all(np.isfinite(shares)) or np.any(np.diff(shares, prepend=0.0) < 0) or shares[-1] <= 0:
        raise options.refuse(prefix + "weights", ",".join(weights), f"{len(words)} numbers, one a value, not all 0")
    shares /= shares[-1]
    values = pl.Series(_parsed(field, prefix, options, words))
    last = len(words) - 1
    ranks = Ranks(shares)
    return lambda index: values.gather(np.minimum(ranks.of(chance(index)), last))


def _parsed(field: Field, prefix: str, options: Options, words: list[str]) -> list[int] | list[float] | list[bool] | list[str]:
    try:
        if field.type is ColumnType.INT:
            return [int(word) for word in words]
        if field.type is ColumnType.FLOAT:
            return [float(word) for word in words]
    except ValueError:
        raise options.refuse(prefix + "values", ",".join(words), f"values of type {field.type.value}") from None
    if field.type is ColumnType.BOOL:
        if not set(words) <= {"true", "false"}:
            raise options.refuse(prefix + "values", ",".join(words), "true and false")
        return [word == "true" for word in words]
    return words


def _node(field: Field, prefix: str, options: Options, seed: int, context: ConnectorContext) -> Column:
    return lambda index: pl.repeat(context.node, len(index), dtype=pl.String(), eager=True)


def _label(field: Field, prefix: str, options: Options, seed: int, context: ConnectorContext) -> Column:
    value = context.labels.get(options.required(prefix + "label", "region"))
    return lambda index: pl.repeat(value, len(index), dtype=pl.String(), eager=True)


_BUILDERS: dict[str, Callable[[Field, str, Options, int, ConnectorContext], Column]] = {
    "random": _random,
    "sequence": _sequence,
    "normal": _normal,
    "zipf": _zipf,
    "choice": _choice,
    "node": _node,
    "label": _label,
}
