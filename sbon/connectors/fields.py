"""Columns of the `datagen` connector: functions of the row's number, which need no earlier rows.

Random numbers are those of PCG64 (O'Neill, PCG: A family of simple fast space-efficient statistically good algorithms for random number
generation, HMC-CS-2014-0905), as numpy has it. A row takes one step of the generator, and a generator may be moved by any number of steps
at once, so any row can be made by itself. Each column has a generator of its own, whose seed is a cryptographic hash of the stream's seed
and the column.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Protocol, TypeAlias

import numpy as np
import numpy.typing as npt
import polars as pl

from sbon.errors import ConnectorError
from sbon.operators.frames import polars_type
from sbon.options import Options
from sbon.schema import TYPE_NAMES, ColumnType, Field
from sbon.types import FloatArray, NodeId

Index = npt.NDArray[np.int64]
Column: TypeAlias = Callable[[int, int], pl.Series]
"""Takes the number of the first row and the number of rows; returns their values."""


class NodeWithLabels(Protocol):
    """The node that makes the rows, with its labels."""

    @property
    def node(self) -> NodeId: ...
    @property
    def labels(self) -> Mapping[str, str]: ...


COUNT_MAX = 1_000_000
"""Most ranks of a zipf column: its table takes 8 bytes for each."""

TEXTS_MAX = 65_536
"""Most ranks of a text column whose texts are made once and kept."""
STEPS_PER_RANK = 64
STEPS_MAX = 65_536
"""Size of the table that finds the rank of a number: steps per rank, and most steps."""
_KINDS = {
    ColumnType.INT: ("random", "sequence", "normal", "zipf", "choice"),
    ColumnType.FLOAT: ("random", "sequence", "normal", "choice"),
    ColumnType.TEXT: ("zipf", "sequence", "choice", "node", "label"),
    ColumnType.BOOL: ("random", "choice"),
    ColumnType.INTERVAL: ("random",),
}


def node_seed(seed: int, node: str) -> int:
    """Returns the seed of one node of a logical source: 63 bits that differ from node to node, the same in every process."""
    return hashed(seed, f"node/{node}") >> 1


@lru_cache(maxsize=4096)
def hashed(seed: int, purpose: str) -> int:
    """Returns 64 bits that differ from seed to seed and from purpose to purpose, such as `column/price`; a seed is below 2^63."""
    return int.from_bytes(hashlib.blake2b(seed.to_bytes(8, "big") + purpose.encode(), digest_size=8).digest(), "big")


class Chance:
    """Numbers from 0 to below 1, one for each row; numbers of different seeds or purposes are independent.

    One call makes the numbers of a batch, while other threads run Python. If a batch took many calls, each would have to wait for the
    interpreter, and two threads would make hardly more batches than one.

    Parameters
    ----------
    seed : from 0 to 2^63 - 1
    purpose : such as `column/price`
    """

    def __init__(self, seed: int, purpose: str) -> None:
        self._seed = hashed(seed, purpose)
        self._idle: list[tuple[np.random.Generator, int]] = []
        """Generators that no thread uses, each with the row whose number it would give next."""

    def __call__(self, first: int, rows: int) -> FloatArray:
        """Returns the numbers of some rows; on any thread, and on several at the same time."""
        try:
            generator, place = self._idle.pop()
        except IndexError:
            generator, place = np.random.Generator(np.random.PCG64(self._seed)), 0
        if place != first:
            generator.bit_generator.advance(first - place)  # type: ignore[attr-defined]
        numbers = generator.random(rows)
        self._idle.append((generator, first + rows))
        return numbers


def build_column(field: Field, options: Options, seed: int, context: NodeWithLabels) -> Column | None:
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
    null_chance = Chance(seed, f"null/{field.name}")
    dtype = polars_type(field.type)

    def column(first: int, rows: int) -> pl.Series:
        series = values(first, rows)
        if series.dtype != dtype:
            series = series.cast(dtype)
        if null_fraction:
            kept = pl.Series(null_chance(first, rows) >= null_fraction)
            series = pl.select(pl.when(kept).then(series)).to_series()
        return series

    return column


def _numbers(first: int, rows: int) -> Index:
    return np.arange(first, first + rows, dtype=np.int64)


def _chance(field: Field, seed: int) -> Chance:
    return Chance(seed, f"column/{field.name}")


def _random(field: Field, prefix: str, options: Options, seed: int, context: NodeWithLabels) -> Column:
    chance = _chance(field, seed)
    if field.type is ColumnType.BOOL:
        probability = options.number(prefix + "probability", 0.5, 0.0, 1.0)
        return lambda first, rows: pl.Series(chance(first, rows) < probability)
    if field.type is ColumnType.INT:
        least = options.integer(prefix + "min", 0, -(2**52), 2**52)
        most = options.integer(prefix + "max", max(1000, least), least, 2**52)
        return lambda first, rows: pl.Series(_whole(chance(first, rows), most - least + 1, least))
    low = options.number(prefix + "min", 0.0, -1e300, 1e300)
    high = options.number(prefix + "max", max(low, 1.0 if field.type is ColumnType.FLOAT else 60.0), low, 1e300)
    if field.type is ColumnType.FLOAT:
        return lambda first, rows: pl.Series(_between(chance(first, rows), low, high))
    return lambda first, rows: pl.Series(np.round(_between(chance(first, rows), low, high) * 1e6).astype(np.int64))


def _whole(chance: FloatArray, count: int, least: int) -> Index:
    """Converts `chance`, in place, to `count` different whole numbers from `least` on."""
    # Here and below, calls without effect are left out: after each call, the thread waits for the interpreter if another one holds it.
    chance *= count
    numbers = chance.astype(np.int64)  # rounds down, as no number is negative
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


def _sequence(field: Field, prefix: str, options: Options, seed: int, context: NodeWithLabels) -> Column:
    modulo = options.integer(prefix + "modulo", 0, 0, 2**62)

    def index(first: int, rows: int) -> Index:
        numbers = _numbers(first, rows)
        return numbers % modulo if modulo else numbers

    if field.type is ColumnType.FLOAT:
        low = options.number(prefix + "start", 0.0, -1e300, 1e300)
        stride = options.number(prefix + "step", 1.0, -1e300, 1e300)
        return lambda first, rows: pl.Series(low + index(first, rows) * stride)
    start = options.integer(prefix + "start", 0, -(2**62), 2**62)
    step = options.integer(prefix + "step", 1, -(2**31), 2**31)
    text = options.text(prefix + "prefix", "") if field.type is ColumnType.TEXT else None

    def values(first: int, rows: int) -> pl.Series:
        numbers = pl.Series(start + index(first, rows) * step)
        return numbers if text is None else _prefixed(text, numbers)

    return values


def _prefixed(prefix: str, numbers: pl.Series) -> pl.Series:
    return pl.select(pl.concat_str([pl.lit(prefix), numbers.cast(pl.String)])).to_series()


def _normal(field: Field, prefix: str, options: Options, seed: int, context: NodeWithLabels) -> Column:
    chance, angle = _chance(field, seed), Chance(seed, f"angle/{field.name}")
    mean = options.number(prefix + "mean", 0.0, -1e15, 1e15)
    stddev = options.number(prefix + "stddev", 1.0, 0.0, 1e15)

    def values(first: int, rows: int) -> pl.Series:
        # Box and Muller, A note on the generation of random normal deviates, Ann. Math. Statist. 29 (1958).
        radius = np.sqrt(-2.0 * np.log(1.0 - chance(first, rows)))
        numbers = mean + stddev * radius * np.cos(2.0 * np.pi * angle(first, rows))
        return pl.Series(np.round(numbers).astype(np.int64) if field.type is ColumnType.INT else numbers)

    return values


def _zipf(field: Field, prefix: str, options: Options, seed: int, context: NodeWithLabels) -> Column:
    chance = _chance(field, seed)
    count = options.integer(prefix + "count", 100, 1, COUNT_MAX)
    exponent = options.number(prefix + "exponent", 1.0, 0.0, 20.0)
    shares = np.cumsum(np.arange(1, count + 1, dtype=np.float64) ** -exponent)
    shares /= shares[-1]
    ranks = Ranks(shares)
    if field.type is ColumnType.INT:
        least = options.integer(prefix + "min", 0, -(2**62), 2**62)
        return lambda first, rows: pl.Series(ranks.of(chance(first, rows)) + least)
    text = options.text(prefix + "prefix", f"{field.name}-")
    if count > TEXTS_MAX:
        return lambda first, rows: _prefixed(text, pl.Series(ranks.of(chance(first, rows))))
    texts = _prefixed(text, pl.Series(np.arange(count)))
    return lambda first, rows: texts.gather(ranks.of(chance(first, rows)))


class Ranks:
    """Finds the share that a number falls into, like `np.searchsorted` on the right side, which takes twenty times as long.

    The range from 0 to 1 is cut into equal steps. Most steps lie within one share, which is looked up; numbers in other steps are found by
    binary search.

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


def _choice(field: Field, prefix: str, options: Options, seed: int, context: NodeWithLabels) -> Column:
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
        raise options.refuse(prefix + "weights", ",".join(weights), f"{len(words)} numbers, one per value, not all 0")
    shares /= shares[-1]
    values = pl.Series(_parsed(field, prefix, options, words))
    last = len(words) - 1
    ranks = Ranks(shares)
    return lambda first, rows: values.gather(np.minimum(ranks.of(chance(first, rows)), last))


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


def _node(field: Field, prefix: str, options: Options, seed: int, context: NodeWithLabels) -> Column:
    return lambda first, rows: pl.repeat(context.node, rows, dtype=pl.String(), eager=True)


def _label(field: Field, prefix: str, options: Options, seed: int, context: NodeWithLabels) -> Column:
    value = context.labels.get(options.required(prefix + "label", "region"))
    return lambda first, rows: pl.repeat(value, rows, dtype=pl.String(), eager=True)


_BUILDERS: dict[str, Callable[[Field, str, Options, int, NodeWithLabels], Column]] = {
    "random": _random,
    "sequence": _sequence,
    "normal": _normal,
    "zipf": _zipf,
    "choice": _choice,
    "node": _node,
    "label": _label,
}
