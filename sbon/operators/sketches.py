"""Sketches: small tables with approximate answers that merge in any order and are the same on every machine.

APPROX_COUNT_DISTINCT keeps the LEAST_KEPT least hashes of a group's values. With fewer values the answer is their number; otherwise it is
estimated from the k-th least of n uniform draws, which lies near k / n. APPROX_PERCENTILE counts values in buckets, OCTAVE_BUCKETS to each
power of two, cut from the bits of the floats, so that no logarithm rounds differently elsewhere.
"""

import numpy as np
import polars as pl

from sbon.errors import RemoteProtocolError
from sbon.operators.grouping import Groups, physical, positions
from sbon.operators.hashes import HashArray, hashes
from sbon.operators.partials import Table, distinct
from sbon.operators.runs import runs_of, starts_of
from sbon.types import FloatArray, IntArray

LEAST_KEPT = 2048
"""Number of hashes kept. Smaller answers are exact; from this number on the standard error is 1 / sqrt(LEAST_KEPT - 2), 2.2 %."""
OCTAVE_BITS = 6
"""Buckets per octave, as a power of two. Half a bucket is at most 2 ** -(OCTAVE_BITS + 1) of its values, 0.8 %; integers below 128 have
buckets of their own."""

_BILLION = 10**9
_SHIFT = np.int64(52 - OCTAVE_BITS)
_SIGN = np.int64(2**63 - 1)
_BUCKET_MAX = 2 ** (11 + OCTAVE_BITS)


class LeastHashTable(Table):
    """The least hashes of an operand's values, one row per group and hash.

    Source
    ------
    Bar-Yossef et al., Counting distinct elements in a data stream, RANDOM 2002, the second algorithm; the estimate (k - 1) / h_k and its
    error are from Beyer et al., On synopses for distinct-value estimation under multiset operations, SIGMOD 2007, section 3.
    """

    def __init__(self, operand: str) -> None:
        super().__init__()
        self._operand = operand

    def partial(self, rows: pl.DataFrame, groups: Groups) -> pl.DataFrame:
        """Returns the hashes of the values that are not NULL."""
        values = rows[self._operand]
        if values.dtype != pl.Float64:  # repeated values are hashed once; floats seldom repeat
            found = distinct(groups, values)
            return self.merge(found.drop(self._operand).hstack([_column(hashes(found[self._operand]))]), groups.keys.columns)
        there = values.is_not_null()
        ids = groups.ids if there.all() else groups.ids[there.to_numpy()]
        slots, least = _least(ids, hashes(values.drop_nulls()))
        return groups.keys_at(slots).hstack([_column(least)])

    def merge(self, partials: pl.DataFrame, by: list[str]) -> pl.DataFrame:
        """Returns the least hashes, each once."""
        groups = Groups.of(partials, by)
        slots, least = _least(groups.ids, partials["h"].to_numpy())
        return groups.keys_at(slots).hstack([_column(least)])

    def ordered(self, partials: pl.DataFrame, by: list[str]) -> pl.DataFrame:
        """Orders by group and hash."""
        return partials.sort([*by, "h"])

    def check(self, partials: pl.DataFrame) -> None:
        """Checks that every row has a hash."""
        if partials["h"].null_count():
            raise RemoteProtocolError("sketch of distinct values with a row without a hash")

    def counts(self, merged: pl.DataFrame, by: list[str], groups: pl.DataFrame) -> pl.Series:
        """Estimates the number of distinct values of each of `groups`, in their order."""
        place = positions(groups, merged, by)
        kept = np.bincount(place, minlength=groups.height)
        last = np.zeros(groups.height)
        np.maximum.at(last, place, merged["h"].to_numpy().astype(np.float64))
        full = kept >= LEAST_KEPT
        guess = np.rint((LEAST_KEPT - 1) / np.where(full, last / 2.0**64, 1.0)).astype(np.int64)
        return pl.Series(np.where(full, guess, kept))


def _column(least: HashArray) -> pl.Series:
    return pl.Series("h", least, dtype=pl.UInt64)


def _least(ids: IntArray, hashed: HashArray) -> tuple[IntArray, HashArray]:
    """Returns the LEAST_KEPT least hashes of each slot, each once, by slot and hash."""
    slot_bits = np.uint64(int(ids.max(initial=0)).bit_length())
    # Slot and most of the hash in one number, which sorts several times as fast as two columns.
    packed = (ids.astype(np.uint64) << (np.uint64(64) - slot_bits)) | (hashed >> slot_bits) if slot_bits else hashed
    order = np.argsort(packed)
    packed, slots, least = packed[order], ids[order], hashed[order]
    if ((packed[1:] == packed[:-1]) & (least[1:] != least[:-1])).any():  # hashes that differ only in the bits left out
        order = np.lexsort((hashed, ids))
        slots, least = ids[order], hashed[order]
    starts = starts_of(slots, least)
    slots, least = slots[starts], least[starts]
    groups = starts_of(slots)
    within = np.arange(slots.size) - np.repeat(groups, np.diff(groups, append=slots.size))
    kept = within < LEAST_KEPT
    return (slots, least) if kept.all() else (slots[kept], least[kept])


class BucketTable(Table):
    """Number of an operand's values in each bucket, with the least and the greatest of them; one row per group and bucket.

    NaN and NULL are left out. Values of a magnitude below 1e-308 share a bucket.

    Source
    ------
    Buckets of equal relative width are those of Masson et al., DDSketch, VLDB 2019, section 2; cut linearly within an octave, as their
    section 4 does for speed.
    """

    def __init__(self, operand: str) -> None:
        super().__init__()
        self._operand = operand

    def partial(self, rows: pl.DataFrame, groups: Groups) -> pl.DataFrame:
        """Returns the values counted by group and bucket."""
        values, ids = rows[self._operand].cast(pl.Float64), groups.ids
        there = values.is_not_null() & values.is_not_nan()
        if not there.all():
            values, ids = values.filter(there), ids[there.to_numpy()]
        numbers = values.to_numpy()
        bucket = (numbers.view(np.int64) & _SIGN) >> _SHIFT
        if numbers.min(initial=0.0) < 0.0:
            bucket = np.where(numbers < 0.0, -bucket, bucket)
        return _cells(groups, ids, bucket, None, numbers, numbers)

    def merge(self, partials: pl.DataFrame, by: list[str]) -> pl.DataFrame:
        """Returns one row per group and bucket."""
        groups = Groups.of(partials, by)
        bucket, counts = physical(partials["b"]), physical(partials["n"])
        return _cells(groups, groups.ids, bucket, counts, partials["lo"].to_numpy(), partials["hi"].to_numpy())

    def ordered(self, partials: pl.DataFrame, by: list[str]) -> pl.DataFrame:
        """Orders by group and bucket."""
        return partials.sort([*by, "b"])

    def check(self, partials: pl.DataFrame) -> None:
        """Checks that buckets are in the range of floats and contain values."""
        sane = partials["b"].is_between(-_BUCKET_MAX, _BUCKET_MAX) & (partials["n"] > 0)
        if any(partials[name].null_count() for name in ("b", "n", "lo", "hi")) or not sane.all():
            raise RemoteProtocolError(f"sketch with a bucket beyond {_BUCKET_MAX}, or one without values")

    def percentiles(self, share: float, merged: pl.DataFrame, by: list[str], groups: pl.DataFrame) -> pl.Series:
        """Estimates for each of `groups`, in their order, the least value with at least this share of the values at or below it.

        The least and the greatest value of a bucket are known; for a value between them, their middle is returned.
        """
        if merged.is_empty():
            return pl.Series([None] * groups.height, dtype=pl.Float64)
        place, bucket = positions(groups, merged, by), physical(merged["b"])
        least, extent = _range(bucket)
        order = runs_of(place * extent + (bucket - least), groups.height * extent).order
        counts = physical(merged["n"])[order]
        upto = np.cumsum(counts)
        total = np.zeros(groups.height, np.int64)
        np.add.at(total, place, physical(merged["n"]))
        ahead = np.cumsum(total) - total
        rank = ranks(total, share)
        cell = np.minimum(np.searchsorted(upto, ahead + rank), order.size - 1)
        first, last = upto[cell] - counts[cell] - ahead, upto[cell] - ahead
        low, high = (merged[name].to_numpy()[order[cell]] for name in ("lo", "hi"))
        with np.errstate(invalid="ignore"):  # infinities have no middle
            middle = low + (high - low) / 2
        values = np.where((rank == first + 1) | (low == high), low, np.where(rank == last, high, middle))
        if total.all():
            return pl.Series(values)
        return pl.select(pl.when(pl.Series(total > 0)).then(pl.Series(values))).to_series()


def _range(bucket: IntArray) -> tuple[int, int]:
    """Returns the least bucket, and the number of buckets from it to the greatest."""
    least = int(bucket.min())
    return least, int(bucket.max()) - least + 1


def _cells(groups: Groups, ids: IntArray, bucket: IntArray, counts: IntArray | None, low: FloatArray, high: FloatArray) -> pl.DataFrame:
    """Returns one row per group and bucket; `ids` are slots of the groups, and counts default to 1."""
    if not ids.size:
        return _with_cells(groups.keys.clear(), ids, ids, low, high)
    least, extent = _range(bucket)
    order, starts = runs = runs_of(ids * extent + (bucket - least), groups.size * extent)
    number = runs.lengths if counts is None else np.add.reduceat(counts[order], starts)
    lowest = low[order]
    highest = lowest if high is low else high[order]
    at = order[starts]
    keys = groups.keys_at(ids[at])
    return _with_cells(keys, bucket[at], number, np.minimum.reduceat(lowest, starts), np.maximum.reduceat(highest, starts))


def _with_cells(keys: pl.DataFrame, bucket: IntArray, number: IntArray, low: FloatArray, high: FloatArray) -> pl.DataFrame:
    return keys.hstack([pl.Series("b", bucket), pl.Series("n", number), pl.Series("lo", low), pl.Series("hi", high)])


def ranks(total: IntArray, share: float) -> IntArray:
    """Returns the share of each total, rounded up, at least 1; exact, computed in parts that fit into 64 bits."""
    billionths = round(share * _BILLION)
    whole, rest = np.divmod(total, _BILLION)
    found: IntArray = np.maximum(whole * billionths + (rest * billionths + _BILLION - 1) // _BILLION, 1)
    return found
