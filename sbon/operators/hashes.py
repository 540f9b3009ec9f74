"""Hashes of column values that are equal on every machine and with every version of polars, so that sketches made on different hosts
can merge, and rows with equal keys meet on one host."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import polars as pl

from sbon.operators.grouping import physical

HashArray = npt.NDArray[np.uint64]

_STEP = np.uint64(0x9E3779B97F4A7C15)
_FIRST, _SECOND = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_WORD_BYTES = 8
_FACTOR = np.uint64(0x9E3779B97F4A7C15)
_HALF = np.uint64(32)
SLICES = 64
"""Ranges of the hashes of keys; rows are dealt to instances by slices, and a large window is joined slice by slice."""
_SLICE_SHIFT = np.uint64(58)
"""Shift that leaves the six highest bits of a hash."""


def key_hashes(keys: Sequence[pl.Series]) -> HashArray:
    """Returns a 64-bit hash of each row of key columns, (n,); equal keys have equal hashes, NULL is a value like any other."""
    mixed = np.zeros(keys[0].len(), np.uint64)
    for key in keys:
        mixed ^= _bits(key)
        mixed *= _FACTOR
        mixed ^= mixed >> _HALF
    mixed *= _FACTOR
    return mixed


def slices(keys: Sequence[pl.Series]) -> npt.NDArray[np.uint8]:
    """Returns the slice, from 0 to below `SLICES`, of each row of key columns, (n,): the highest bits of its hash."""
    found = key_hashes(keys)
    found >>= _SLICE_SHIFT
    return found.astype(np.uint8)


def hashes(values: pl.Series) -> HashArray:
    """Returns a 64-bit hash of each value; equal values of one type have equal hashes.

    Parameters
    ----------
    values : (n,)
        Any column type, without NULL. All NaNs count as one value, and so do 0.0 and -0.0.
    """
    if values.dtype == pl.String():
        return _text_hashes(values)
    if values.dtype == pl.Float64():
        numbers = values.to_numpy().astype(np.float64) + 0.0  # numpy, because polars simplifies x + 0.0 to x, even for x = -0.0
        bits = np.where(np.isnan(numbers), np.nan, numbers).view(np.uint64)
    else:
        bits = values.to_physical().cast(pl.Int64).to_numpy().astype(np.int64).view(np.uint64)
    return _mixed(bits)


def _mixed(x: HashArray) -> HashArray:
    """Mixes the bits of x: every input bit changes every output bit with a chance near one half.

    Source
    ------
    Steele, Lea, Flood, Fast splittable pseudorandom number generators, OOPSLA 2014, with the constants of SplitMix64.
    """
    x = x + _STEP  # arrays wrap at 64 bits without a warning
    x = (x ^ (x >> np.uint64(30))) * _FIRST
    x = (x ^ (x >> np.uint64(27))) * _SECOND
    return x ^ (x >> np.uint64(31))


def _text_hashes(values: pl.Series) -> HashArray:
    """Hashes all texts eight bytes at a time, longest texts first, so that the texts that continue are always the first rows."""
    lengths = values.str.len_bytes().to_numpy().astype(np.int64)
    starts = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)[:-1]]) if lengths.size else lengths
    whole = str(values.str.join("").item() or "").encode() + bytes(_WORD_BYTES)
    windows = np.lib.stride_tricks.sliding_window_view(np.frombuffer(whole, np.uint8), _WORD_BYTES)
    order = np.argsort(-lengths, kind="stable")
    lengths, starts = lengths[order], starts[order]
    state = _mixed(lengths.astype(np.uint64))
    for done in range(0, int(lengths[0]) if lengths.size else 0, _WORD_BYTES):
        active = int(np.searchsorted(-lengths, -done, side="left"))
        words = np.ascontiguousarray(windows[starts[:active] + done]).view("<u8").ravel()
        left = np.minimum(lengths[:active] - done, _WORD_BYTES).astype(np.uint64)
        words = words & (np.uint64(2**64 - 1) >> (np.uint64(64) - np.uint64(8) * left))
        state[:active] = _mixed(state[:active] ^ words)
    result = np.empty_like(state)
    result[order] = state
    return result


def _bits(keys: pl.Series) -> HashArray:
    """Returns 64 bits of each key, equal for equal keys and the same on every machine, since the order of answers depends on them."""
    if keys.null_count():
        there = keys.is_not_null().to_numpy()
        found = np.zeros(keys.len(), np.uint64)
        found[there] = _bits(keys.drop_nulls())
        return found
    if keys.dtype == pl.Int64() or keys.dtype.is_temporal():
        return physical(keys).view(np.uint64)
    return hashes(keys)
