"""Sums of floats that do not depend on the order of the terms.

Float addition is not associative: two hosts that cut the same rows into other batches would give answers that differ in the last bits,
and a query that migrated could not be compared with one that did not. Here every float is cut at multiples of 2^32 into three integers:
x = (part0 + part1 * 2^32 + part2 * 2^64) * 2^(32 * bin), which integer sums by bin add up exactly, in any order. The total is rounded once.

The idea is the superaccumulator of Kulisch (Computer Arithmetic and Validity, 2008), kept sparse: a group holds only the bins that its
values touch, mostly one or two.
"""

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from sbon.types import FloatArray

IntArray = npt.NDArray[np.int64]

BIN_BITS = 32
_LOW = np.int64(2**BIN_BITS - 1)
_SPLITTER = 2.0**27 + 1.0


def split(x: FloatArray) -> tuple[IntArray, IntArray, IntArray, IntArray]:
    """Bin and three integer parts of each float.

    Parameters
    ----------
    x : (n,)
        Finite.

    Returns
    -------
    bin, part0, part1, part2 : each (n,)
        The parts are below 2^33 in magnitude, so that 2^30 of them add up within 64 bits.
    """
    mantissa, exponent = np.frexp(x)
    return _cut(mantissa, exponent.astype(np.int64))


def split_squares(x: FloatArray) -> tuple[IntArray, IntArray, IntArray, IntArray]:
    """The same for the squares, exact to the last bit; each (2n,): a square takes twice the bits of a float.

    Source
    ------
    Dekker, A floating-point technique for extending the available precision, Numer. Math. 18 (1971): the product of two floats as the
    sum of two. Mantissas alone are multiplied, so that nothing overflows or vanishes.
    """
    mantissa, exponent = np.frexp(x)
    upper = _SPLITTER * mantissa
    upper = upper - (upper - mantissa)
    lower = mantissa - upper
    square = mantissa * mantissa
    rest = lower * lower - ((square - upper * upper) - 2.0 * upper * lower)
    both, more = np.frexp(np.concatenate([square, rest]))
    return _cut(both, more.astype(np.int64) + 2 * np.tile(exponent.astype(np.int64), 2))


def _cut(mantissa: FloatArray, exponent: IntArray) -> tuple[IntArray, IntArray, IntArray, IntArray]:
    integer = np.ldexp(mantissa, 53).astype(np.int64)
    position = exponent - 53
    low = (integer & _LOW) << (position & 31)
    high = (integer >> BIN_BITS) << (position & 31)
    return position >> 5, low & _LOW, (low >> BIN_BITS) + (high & _LOW), high >> BIN_BITS


def total(bins: Sequence[int], parts: Sequence[Sequence[int]]) -> tuple[int, int]:
    """The exact sum as (n, e), meaning n * 2^e; (0, 0) of nothing.

    Parameters
    ----------
    bins : (m,)
    parts : three of (m,), summed by bin
    """
    if not bins:
        return 0, 0
    lowest = min(bins)
    number = 0
    for index, bin_ in enumerate(bins):
        value = parts[0][index] + (parts[1][index] << BIN_BITS) + (parts[2][index] << (2 * BIN_BITS))
        number += value << (BIN_BITS * (bin_ - lowest))
    return number, BIN_BITS * lowest


def to_float(number: int, exponent: int, divisor: int = 1) -> float:
    """number * 2^exponent / divisor, rounded once; infinite beyond the range of floats.

    Examples
    --------
    >>> to_float(3, -1)
    1.5
    """
    if exponent >= 0:
        number <<= exponent
    else:
        divisor <<= -exponent
    try:
        return number / divisor
    except OverflowError:
        return math.inf if number > 0 else -math.inf


def deviation(count: int, sum_: tuple[int, int], squares: tuple[int, int]) -> float | None:
    """Sample standard deviation from exact sums; None of fewer than two values.

    Source
    ------
    variance = (n * sum(x^2) - sum(x)^2) / (n * (n - 1)): useless in floats, where the difference cancels; exact in integers.
    """
    if count < 2:
        return None
    plain, plain_exponent = count * squares[0], squares[1]
    cross, cross_exponent = sum_[0] ** 2, 2 * sum_[1]
    exponent = min(plain_exponent, cross_exponent)
    difference = (plain << (plain_exponent - exponent)) - (cross << (cross_exponent - exponent))
    return math.sqrt(to_float(difference, exponent, count * (count - 1)))
