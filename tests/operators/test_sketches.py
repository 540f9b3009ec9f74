"""Sketches stay within their stated error, and are equal however rows are split, merged or stored."""

import math
import random
from itertools import pairwise
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbon.errors import RemoteProtocolError
from sbon.operators.grouping import Groups
from sbon.operators.hashes import hashes
from sbon.operators.sketches import LEAST_KEPT, OCTAVE_BITS, BucketTable, LeastHashTable
from sbon.operators.window import Window
from sbon.query.expression import Column
from sbon.query.params.aggregate import Aggregate
from sbon.query.params.windowed import WindowParams
from sbon.watermarks import WATERMARK_END
from tests.examples import examples
from tests.operators.stream_twins import rows_of

SHARES = (0.0, 0.1, 0.5, 0.9, 0.99, 1.0)
ERROR = 2.0 ** -(OCTAVE_BITS + 1)
VALUES = st.one_of(st.none(), st.floats(allow_nan=True), st.floats(-100, 100), st.sampled_from([0.0, -0.0, 1.0, 1.001, 1.002, -5.0]))


def params(slide: int = 10) -> WindowParams:
    shares = [Aggregate(f"p{share}", "approx_percentile", Column("f"), share) for share in SHARES]
    return WindowParams("t", 10, slide, (), (*shares, Aggregate("n", "approx_count_distinct", Column("f"))))


def frame(values: list[Any], times: list[int] | None = None) -> pl.DataFrame:
    at = [n % 10 for n in range(len(values))] if times is None else times
    return pl.DataFrame({"t": at, "f": values}, schema={"t": pl.Int64, "f": pl.Float64}).with_columns(pl.col("t").cast(pl.Datetime("us")))


def answer(batches: list[pl.DataFrame]) -> tuple[Any, ...]:
    window = Window(params())
    for batch in batches:
        window.process(0, batch)
        other = Window(params())
        other.restore(window.snapshot())
        window = other
    (row,) = rows_of(window.advance(WATERMARK_END))
    return row[2:]


@examples(60)
@given(st.lists(VALUES, min_size=1, max_size=60), st.lists(st.integers(0, 60), max_size=3), st.integers(0, 2**32))
def test_percentiles_are_within_their_error_however_rows_are_cut_and_mixed(values: list[Any], cuts: list[int], seed: int) -> None:
    places = sorted({0, len(values), *(c % (len(values) + 1) for c in cuts)})
    mixed = random.Random(seed).sample(values, len(values))
    one, other = answer([frame(values)]), answer([frame(mixed[a:b]) for a, b in pairwise(places)])
    assert repr(one) == repr(other)
    known = sorted(value for value in values if value is not None and not math.isnan(value))
    for share, found in zip(SHARES, one, strict=False):
        if not known:
            assert found is None
            continue
        exact = known[max(1, math.ceil(round(share * 1e9) * len(known) / 1e9 - 1e-9)) - 1]
        assert found == exact or abs(found - exact) <= ERROR * abs(exact) * 1.0001 + 1e-300


@examples(30)
@given(st.lists(st.integers(-127, 127), min_size=1, max_size=200), st.sampled_from(SHARES))
def test_percentiles_of_small_whole_numbers_are_exact(values: list[int], share: float) -> None:
    found = answer([frame([float(value) for value in values])])[SHARES.index(share)]
    assert found == sorted(values)[max(1, -(-round(share * 100) * len(values) // 100)) - 1]


@pytest.mark.parametrize("count", [1, LEAST_KEPT - 1, LEAST_KEPT, 20_000, 300_000])
def test_counts_of_distinct_values_are_within_their_error(count: int) -> None:
    """Each value comes twice, in a different order. The bound is 4 standard errors; counts below the number kept are exact."""
    numbers = np.arange(count, dtype=np.float64) * 1.25
    batches = [frame(part.tolist(), [0] * part.size) for part in (numbers, numbers[::-1])]
    found = answer(batches)[-1]
    assert abs(found - count) <= (0 if count < LEAST_KEPT else 4 * count / math.sqrt(LEAST_KEPT - 2))


@examples(25)
@given(st.integers(0, 2**32), st.integers(1, 5), st.booleans())
def test_of_each_group_the_least_hashes_are_kept(seed: int, keys: int, alike: bool) -> None:
    """Draws random hashes, of which 40 repeat others, or with `alike` differ from others in the last bit only."""
    rng = np.random.default_rng(seed)
    drawn = rng.integers(0, 2**64, 50 + 3 * LEAST_KEPT * alike, dtype=np.uint64, endpoint=False)
    drawn = np.concatenate([drawn, drawn[:40] ^ np.uint64(alike)])
    partials = pl.DataFrame({"k": rng.integers(0, keys, drawn.size), "h": drawn})
    merged = LeastHashTable("x").merge(partials, ["k"])
    for key in range(keys):
        expected = sorted(set(partials.filter(k=key)["h"]))[:LEAST_KEPT]
        assert merged.filter(k=key)["h"].to_list() == expected


@examples(25)
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(1, 2**33), st.integers(1, 50)), min_size=1, max_size=30), st.integers(0, 10**9))
def test_ranks_among_billions_are_exact(cells: list[tuple[int, int, int]], billionths: int) -> None:
    """Buckets have the counts of long streams; the twin finds the rank's bucket with unbounded integers."""
    counts: dict[tuple[int, int], int] = {(key, value): count for key, count, value in cells}
    rows = [(key, value << 46, count, float(value), float(value)) for (key, value), count in counts.items()]
    merged = pl.DataFrame(rows, schema=["k", "b", "n", "lo", "hi"], orient="row")
    wanted = pl.DataFrame({"k": [3, 0, 1, 2]})
    found = BucketTable("x").percentiles(billionths / 1e9, merged, ["k"], wanted)
    for key, value in zip(wanted["k"], found, strict=True):
        mine = sorted((at, count) for (k, at), count in counts.items() if k == key)
        rank = max(1, -(-sum(count for _, count in mine) * billionths // 10**9))
        passed = [at for place, (at, _) in enumerate(mine) if sum(count for _, count in mine[: place + 1]) >= rank]
        assert value == (float(passed[0]) if mine else None)


def test_nothing_but_null_and_nan_has_no_percentile() -> None:
    rows = pl.DataFrame({"k": [1, 2, 2], "f": [None, math.nan, 3.0]})
    table = BucketTable("f")
    table.add(table.partial(rows, Groups.of(rows, ["k"])), ["k"])
    merged = table.folded(["k"])
    assert merged is not None
    assert table.percentiles(0.5, merged, ["k"], pl.DataFrame({"k": [1, 2]})).to_list() == [None, 3.0]
    assert table.percentiles(0.5, merged.clear(), ["k"], pl.DataFrame({"k": [1, 2]})).to_list() == [None, None]


@pytest.mark.parametrize("column", [{"b": 2**40}, {"n": 0}, {"lo": None}])
def test_a_snapshot_with_buckets_that_no_float_has_is_refused(column: dict[str, Any]) -> None:
    cells = pl.DataFrame({"k": [1], "b": [1], "n": [1], "lo": [0.0], "hi": [0.0]})
    BucketTable("f").check(cells)
    with pytest.raises(RemoteProtocolError, match="sketch with a bucket"):
        BucketTable("f").check(cells.with_columns(pl.lit(value).cast(cells[name].dtype).alias(name) for name, value in column.items()))


def test_panes_of_hopping_windows_merge() -> None:
    window = Window(params(slide=5))
    window.process(0, frame([float(n) for n in range(100)], [5] * 50 + [10] * 50))
    rows = rows_of(window.advance(WATERMARK_END))
    assert [(row[0], row[4], row[-1]) for row in rows] == [(0, 24.0, 50), (5, 49.0, 100), (10, 74.0, 50)]


@examples(35)
@given(st.lists(st.text(max_size=30), max_size=20, unique=True))
def test_texts_have_hashes_of_their_own_whatever_stands_beside_them(texts: list[str]) -> None:
    together = hashes(pl.Series(texts, dtype=pl.String))
    alone = [int(hashes(pl.Series([text], dtype=pl.String))[0]) for text in texts]
    assert together.tolist() == alone
    assert len(set(alone)) == len(texts)


def test_hashes_are_those_that_other_machines_have() -> None:
    assert hashes(pl.Series([0, 1], dtype=pl.Int64)).tolist() == [0xE220A8397B1DCDAF, 0x910A2DEC89025CC1]
    assert len(set(hashes(pl.Series([0.0, 1.0, math.nan, -math.nan]))[2:].tolist())) == 1
