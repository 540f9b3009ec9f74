"""Sums of floats that do not depend on the order of the terms.

Float addition is not associative. Two hosts that cut the same rows into other batches would give answers that differ in the last bits, and
the answers of a migrated query could not be compared with those of one that stayed. Here a sum is a number in base 2^32, kept as digits:
its value is the sum of digit * 2^(32 * bin) over its bins, and whole numbers add up exactly, in any order. The total is rounded once
(`digits`).

The idea is the superaccumulator of Kulisch (Computer Arithmetic and Validity, 2008), kept sparse: a group holds only the bins that its
values touch, mostly two.

Floats are cut into digits by float arithmetic. With s = 1.5 * 2^(52 + b), the float nearest to x + s is a multiple of 2^b, since floats
there are 2^b apart. So h = (x + s) - s is x rounded to a multiple of 2^b. The rest x - h is exact as well, at most 2^b / 2. As long as a
sum of such multiples stays below 2^53 * 2^b, float addition is exact: a plain float loop adds them up by group, and only the groups' sums
become integers. Four cuts, 2^32 apart, cover all but tiny values beside huge ones; the remainders are split by their bits (`split`).
"""

import math

import numpy as np
import numpy.typing as npt

from sbon.types import FloatArray, IntArray

BIN_BITS = 32
BIN_MIN, BIN_MAX = -70, 70
"""Lowest and highest bin of floats and of their products."""

_LOW = np.int64(2**BIN_BITS - 1)
_SPLITTER = 2.0**27 + 1.0
_CUTS = 4
_CUT_BIN_MIN, _CUT_BIN_MAX = -33, 30
"""Bins between which 1.5 * 2^(52 + 32 * bin) neither underflows nor overflows with the value added."""
_ROWS_MAX = 2**20
"""Most rows summed at once: this many halves of 2^32 add up to less than 2^53."""
_CELLS_MIN = 2**16
_BLOCK_ROWS = 8192
"""Rows whose cuts fit into the processor's cache."""
_FACTOR_MIN, _FACTOR_MAX = 2.0**-450, 2.0**450
"""Magnitudes between which a product and its rounding error are floats that neither underflow nor overflow."""

Digits = tuple[IntArray, IntArray, IntArray]
"""Slot, bin and digit, each (n,). Several digits of one slot and bin add up."""


def digit_sums(x: FloatArray, ids: IntArray, size: int) -> Digits:
    """Returns the exact sums of floats by slot: one digit per slot and bin, none 0, below 2^58 in magnitude.

    Parameters
    ----------
    x : (n,)
        Finite.
    ids : (n,)
        Slots, 0 to `size` - 1.

    Examples
    --------
    >>> slots, bins, digits = digit_sums(np.array([1.0, 2.0**-32, 3.0]), np.array([0, 0, 1]), 2)
    >>> sorted(zip(slots.tolist(), bins.tolist(), digits.tolist()))
    [(0, -1, 4294967297), (1, -1, 12884901888)]
    """
    sums: dict[int, IntArray] = {}
    left: list[Digits] = []
    for start in range(0, x.size, _ROWS_MAX):
        _add_cuts(x[start : start + _ROWS_MAX], ids[start : start + _ROWS_MAX], size, sums, left)
    found: list[Digits] = []
    for bin_, values in sums.items():
        slots = np.flatnonzero(values)
        found.append((slots, np.full(slots.size, bin_, np.int64), values[slots]))
    if left:
        return _summed(_joined([*found, *left]))
    return _joined(found)


def product_sums(x: FloatArray, y: FloatArray, ids: IntArray, size: int) -> Digits:
    """Returns the exact sums of the products x * y by slot, as `digit_sums` does; for squares, `y` is `x` itself.

    Source
    ------
    Dekker, A floating-point technique for extending the available precision, Numer. Math. 18 (1971): the product of two floats as the
    sum of two.
    """
    plain = _moderate(x) if y is x else _moderate(x) & _moderate(y)
    usual = x[plain]
    product, rest = _product(usual, usual if y is x else y[plain])
    both = np.tile(ids[plain], 2)
    found = digit_sums(np.concatenate([product, rest]), both, size)
    unusual = ~plain & (x != 0.0) & (y != 0.0)
    if not unusual.any():
        return found
    return _summed(_joined([found, _of_bits(*split_products(x[unusual], y[unusual]), np.tile(ids[unusual], 2))]))


def _moderate(x: FloatArray) -> npt.NDArray[np.bool_]:
    """Tells which floats are moderate: products of two, and the rounding errors of products, neither overflow nor underflow."""
    magnitude = np.abs(x)
    found: npt.NDArray[np.bool_] = (magnitude > _FACTOR_MIN) & (magnitude < _FACTOR_MAX)
    return found


def _add_cuts(x: FloatArray, ids: IntArray, size: int, sums: dict[int, IntArray], left: list[Digits]) -> None:
    """Adds up floats by bin and slot; appends the digits of the remainders that the cuts do not cover to `left`."""
    greatest = max(float(x.max()), -float(x.min()))
    if greatest == 0.0:
        return
    # All are below 2^e in magnitude. In units of 2^b with b >= e + bits - 52, each is at most 2^(52 - bits), and their sum at most 2^52.
    top = -(-(math.frexp(greatest)[1] + x.size.bit_length() - 52) // BIN_BITS)
    bins = [bin_ for bin_ in range(top, top - _CUTS, -1) if bin_ >= _CUT_BIN_MIN] if top <= _CUT_BIN_MAX else []
    cuts = [(math.ldexp(1.5, 52 + BIN_BITS * bin_), np.zeros(size)) for bin_ in bins]
    for start in range(0, x.size, _BLOCK_ROWS):
        rest, at = x[start : start + _BLOCK_ROWS], ids[start : start + _BLOCK_ROWS]
        for splitter, total in cuts:
            high = rest + splitter
            high -= splitter
            np.add.at(total, at, high)
            rest = rest - high
            if not rest.any():
                break
        else:
            more = np.flatnonzero(rest)
            left.append(_of_bits(*split(rest[more]), at[more]))
    for bin_, (_, total) in zip(bins, cuts, strict=True):
        digits = np.ldexp(total, -BIN_BITS * bin_).astype(np.int64)
        sums[bin_] = sums[bin_] + digits if bin_ in sums else digits


def split(x: FloatArray) -> tuple[IntArray, IntArray, IntArray, IntArray]:
    """Splits each float by its bits into a bin and three digits, of that bin and the two above; works for floats of any size.

    Parameters
    ----------
    x : (n,)
        Finite.

    Returns
    -------
    bin, digit, digit of bin + 1, digit of bin + 2 : each (n,)
        Digits are below 2^33 in magnitude.
    """
    mantissa, exponent = np.frexp(x)
    return _cut(mantissa, exponent.astype(np.int64))


def split_products(x: FloatArray, y: FloatArray) -> tuple[IntArray, IntArray, IntArray, IntArray]:
    """Splits products as `split` splits floats; each array is (2n,). Only mantissas are multiplied, so nothing overflows or underflows."""
    (one, exponent), (other, more) = np.frexp(x), np.frexp(y)
    both, shift = np.frexp(np.concatenate(_product(one, other)))
    return _cut(both, shift.astype(np.int64) + np.tile(exponent.astype(np.int64) + more.astype(np.int64), 2))


def _product(x: FloatArray, y: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Returns the rounded products, and the rounding errors."""
    upper, lower = _halves(x)
    high, low = (upper, lower) if y is x else _halves(y)
    product = x * y
    return product, lower * low - (((product - upper * high) - lower * high) - upper * low)


def _halves(x: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Splits each float into a sum of two floats with half of its bits each."""
    upper = _SPLITTER * x
    upper = upper - (upper - x)
    return upper, x - upper


def _cut(mantissa: FloatArray, exponent: IntArray) -> tuple[IntArray, IntArray, IntArray, IntArray]:
    integer = np.ldexp(mantissa, 53).astype(np.int64)
    position = exponent - 53
    low = (integer & _LOW) << (position & 31)
    high = (integer >> BIN_BITS) << (position & 31)
    return position >> 5, low & _LOW, (low >> BIN_BITS) + (high & _LOW), high >> BIN_BITS


def _of_bits(bins: IntArray, low: IntArray, middle: IntArray, high: IntArray, ids: IntArray) -> Digits:
    return np.tile(ids, 3), np.concatenate([bins, bins + 1, bins + 2]), np.concatenate([low, middle, high])


def _joined(parts: list[Digits]) -> Digits:
    if not parts:
        none = np.empty(0, np.int64)
        return none, none, none
    slots, bins, digits = (np.concatenate(column) for column in zip(*parts, strict=True))
    return slots, bins, digits


def _summed(parts: Digits) -> Digits:
    """Adds up the digits of each slot and bin."""
    slots, bins, digits = parts
    if not slots.size:
        return parts
    lowest = int(bins.min())
    width, size = int(bins.max()) - lowest + 1, int(slots.max()) + 1
    if width * size <= max(_CELLS_MIN, 2 * slots.size):
        cells = np.zeros(width * size, np.int64)
        np.add.at(cells, (bins - lowest) * size + slots, digits)
        there = np.flatnonzero(cells)
        return there % size, there // size + lowest, cells[there]
    order = np.lexsort((bins, slots))
    slots, bins, digits = slots[order], bins[order], digits[order]
    begins = np.flatnonzero(np.append(True, (slots[1:] != slots[:-1]) | (bins[1:] != bins[:-1])))
    totals = np.add.reduceat(digits, begins)
    kept = totals != 0
    return slots[begins][kept], bins[begins][kept], totals[kept]
