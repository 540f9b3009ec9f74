"""Exact arithmetic on many numbers in base 2^32, stored as rows of digits with one column per number: carrying, dividing, rounding.

A table of digits is (bins, numbers), the lowest bin first; `lowest` is the bin of its first row, worth 2^(32 * lowest). Digits are
balanced, from -2^31 to below 2^31. An integer has exactly one such form, however it was summed, and its sign is that of its first digit.
"""

import math

import numpy as np

from sbon.operators.exact import BIN_BITS, Digits
from sbon.types import FloatArray, IntArray

_HALF = np.int64(2 ** (BIN_BITS - 1))
_LOW = np.int64(2**BIN_BITS - 1)
_PRECISE = 2.0**-1021
"""Floats below this have fewer bits; numbers that are no sums of floats are rounded differently there."""
_COUNT_MAX = 2**31


def balanced(digit: IntArray) -> tuple[IntArray, IntArray]:
    """Splits each digit, at most 2^62 in magnitude, into a balanced digit and the carry to the next bin."""
    kept = ((digit + _HALF) & _LOW) - _HALF
    return kept, (digit - kept) >> BIN_BITS


def table(parts: Digits, count: int) -> tuple[IntArray, int]:
    """Builds a table of `count` balanced numbers from digits by bin and number, and returns it with its lowest bin."""
    numbers, bins, digits = parts
    lowest = int(bins.min()) if bins.size else 0
    rows = (int(bins.max()) if bins.size else 0) - lowest + 2
    found = np.zeros((rows, count), np.int64)
    found[bins - lowest, numbers] = digits
    return _carried(found), lowest


def _carried(digits: IntArray) -> IntArray:
    for row in range(len(digits) - 1):
        digits[row], carry = balanced(digits[row])
        digits[row + 1] += carry
    return digits


def integers(digits: IntArray) -> list[int]:
    """Returns the numbers as integers, in units of the lowest bin."""
    return [sum(digit << (BIN_BITS * row) for row, digit in enumerate(column)) for column in digits.T.tolist()]


def rounded(digits: IntArray, lowest: int) -> FloatArray:
    """Returns each number as the nearest float, ties to even; infinite beyond the range of floats. Denormal results are exact only if
    the number is a multiple of the least float, as sums of floats are.

    The first digit that is not 0, the two after it and the sign of the rest decide the result. The first digit alone is at least 2^64 units
    of the third, which is more than the 53 bits of a float and the rounding bit.

    Source
    ------
    Boldo, Melquiond, Emulation of a FMA and correctly rounded sums: proved algorithms using rounding to odd, IEEE Trans. Computers 57
    (2008), section 4: the sum of three floats, rounded once.
    """
    digits = np.vstack([np.zeros((2, digits.shape[1]), np.int64), digits])
    rows = len(digits)
    first = np.maximum(rows - 1 - np.argmax(digits[::-1] != 0, axis=0), 2)
    sign = np.zeros(digits.shape[1])
    for row in range(rows - 3):
        sign = np.where((row < first - 2) & (digits[row] != 0), np.sign(digits[row]), sign)
    one, two, three = (np.take_along_axis(digits, (first - back)[None], axis=0)[0].astype(np.float64) for back in range(3))
    total = _three(one * 2.0**64, two * 2.0**32, three + 0.5 * sign)
    with np.errstate(over="ignore"):
        result: FloatArray = np.ldexp(total, (BIN_BITS * (lowest - 2 + first - 2)).astype(np.int64))
    return result + 0.0


def quotients(digits: IntArray, lowest: int, counts: IntArray) -> FloatArray:
    """Divides each number by its count, at least 1, by long division; returns the nearest floats."""
    padded = np.vstack([np.zeros((4, digits.shape[1]), np.int64), digits])
    divisor = np.minimum(counts, _COUNT_MAX)
    parts = np.empty((len(padded) + 1, digits.shape[1]), np.int64)
    rest = np.zeros(digits.shape[1], np.int64)
    for row in range(len(padded) - 1, -1, -1):
        parts[row + 1], rest = np.divmod((rest << BIN_BITS) + padded[row], divisor)
    parts[0] = rest != 0  # marks a remainder above 0 and below one unit
    result = rounded(_carried(np.vstack([parts, np.zeros((1, digits.shape[1]), np.int64)])), lowest - 5)
    unusual = np.flatnonzero((np.abs(result) < _PRECISE) & (digits != 0).any(axis=0) | (counts >= _COUNT_MAX))
    if unusual.size:
        numbers = integers(digits[:, unusual])
        pairs = zip(numbers, counts[unusual].tolist(), strict=True)
        result[unusual] = [to_float(number, BIN_BITS * lowest, count) for number, count in pairs]
    return result


def _three(a: FloatArray, b: FloatArray, c: FloatArray) -> FloatArray:
    """Returns a + b + c, rounded once."""
    upper, lower = _two(b, c)
    top, middle = _two(a, upper)
    rest, error = _two(middle, lower)
    even = (rest.view(np.int64) & 1) == 0
    odd = np.where(even & (error != 0.0), np.nextafter(rest, np.copysign(np.inf, error)), rest)
    return top + odd


def _two(a: FloatArray, b: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Returns a + b rounded, and the rounding error (Knuth, TAOCP 2, section 4.2.2)."""
    total = a + b
    of_b = total - a
    return total, (a - (total - of_b)) + (b - of_b)


def to_float(number: int, exponent: int, divisor: int = 1) -> float:
    """Returns number * 2^exponent / divisor, rounded once; infinite beyond the range of floats.

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
