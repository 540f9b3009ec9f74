"""Hashes of column values that are equal on every machine and with every version of polars, so that sketches made on different hosts
can merge."""

import numpy as np
import numpy.typing as npt
import polars as pl

HashArray = npt.NDArray[np.uint64]

_STEP = np.uint64(0x9E3779B97F4A7C15)
_FIRST, _SECOND = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_WORD_BYTES = 8


def hashes(values: pl.Series) -> HashArray:
    """Returns a 64-bit hash of each value; equal values have equal hashes, and integers and texts share none by design.

    Parameters
    ----------
    values : (n,)
        Of any type of a stream, none NULL. NaNs are one value, and so are 0.0 and -0.0.
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
