"""Identities of keys: hashes of 128 bits, so that keys are found without comparing them.

The chance that any two of 10 million keys have the same identity is 10^-25. The hashes depend on the version of polars, so identities never
leave the host.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import polars as pl

Words = npt.NDArray[np.uint64]
Places = npt.NDArray[np.int64]

_SEEDS = (0x5851F42D4C957F2D, 0x14057B7EF767814F)
_FACTOR = np.uint64(0x9E3779B97F4A7C15)
_HALF = np.uint64(32)


class Grouped(NamedTuple):
    """Rows grouped by key; the keys are in the order of their first rows."""

    ids: Words
    """Identity of each key, (keys, 2)."""
    first: Places
    """First row of each key, (keys,)."""
    key_of: Places
    """Key of each row, (rows,)."""
    rows: Places
    """Number of rows of each key, (keys,)."""


def identities(keys: Sequence[pl.Series]) -> Words:
    """Returns the identity of each row of key columns, (rows, 2). NULL and NaN are values like any other; 0.0 equals -0.0."""
    found = np.zeros((keys[0].len(), 2), np.uint64)
    for half, seed in enumerate(_SEEDS):
        mixed = np.zeros(keys[0].len(), np.uint64)
        for key in keys:
            mixed ^= key.hash(seed).to_numpy()
            mixed *= _FACTOR
            mixed ^= mixed >> _HALF
        found[:, half] = mixed
    return found


def grouped(ids: Words) -> Grouped:
    """Groups rows by identity, (rows, 2)."""
    order = sorted_by_id(ids)
    ordered = ids[order]
    begins = np.concatenate([np.ones(min(1, len(ids)), np.bool_), (ordered[1:] != ordered[:-1]).any(axis=1)])
    starts = np.flatnonzero(begins)
    first = order[starts]  # the sort is stable
    rank = np.argsort(first)
    number = np.empty(starts.size, np.int64)
    number[rank] = np.arange(starts.size)
    key_of = np.empty(len(ids), np.int64)
    key_of[order] = number[np.cumsum(begins) - 1]
    sizes = np.diff(np.append(starts, len(ids)))
    return Grouped(ids[first[rank]], first[rank], key_of, sizes[rank])


def sorted_by_id(ids: Words) -> Places:
    """Returns the stable order of identities, (n, 2), by their first half, then by the second half."""
    order = np.argsort(ids[:, 0], kind="stable")
    first, second = ids[order, 0], ids[order, 1]
    if ((first[1:] == first[:-1]) & (second[1:] < second[:-1])).any():
        return np.lexsort((ids[:, 1], ids[:, 0]))
    return order
