"""The `datagen` connector: a seed determines all rows."""

from datetime import datetime
from itertools import accumulate, product
from typing import Any

import msgspec
import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from polars.testing import assert_frame_equal

from sbon.connectors.fields import TEXTS_MAX, Ranks
from sbon.errors import ConnectorError
from sbon.types import FloatArray
from sbon.watermarks import WATERMARK_END
from sbon_agent.connectors import Polled
from tests.connector_world import WALL, columns, context, drain, source
from tests.examples import examples

SCHEMA = columns(ts="time", i="int", f="float", s="text", b="bool", d="interval")


def test_a_limited_stream_ends_with_all_its_rows():
    rows, answers = drain(source("datagen", SCHEMA, time="ts", rows=10_000, rows_per_second="max", start="2020-01-01"))
    assert rows.height == 10_000
    assert rows["ts"].to_list()[:2] == [datetime(2020, 1, 1), datetime(2020, 1, 1, 0, 0, 0, 1)]
    assert [answer.frame.height for answer in answers if answer.frame is not None] == [4096, 4096, 1808]
    assert answers[-1].finished
    assert answers[-1].watermark_us == WATERMARK_END


def test_rows_come_when_they_are_due():
    stream = source("datagen", SCHEMA, time="ts", rows_per_second=10, delay_us=50_000)
    first = stream.poll(100.0, WALL)
    assert first.frame is not None
    assert first.frame["ts"].to_list() == [datetime(2020, 9, 13, 12, 26, 40)]
    assert first.watermark_us == int(WALL * 1e6) - 50_000
    assert first.next_poll == pytest.approx(100.1)
    assert stream.poll(100.05, WALL).frame is None
    second = stream.poll(100.3, WALL)
    assert second.frame is not None
    assert second.frame.height == 3
    assert second.next_poll == pytest.approx(100.4)


@examples(30)
@given(st.integers(1, 400), st.integers(0, 5))
def test_a_row_depends_on_seed_and_number_alone_not_on_its_batch(batch: int, seed: int):
    options = {"rows": 500, "rows_per_second": "max", "start": "2020-01-01", "seed": seed, "disorder": "1 ms"}
    whole, _ = drain(source("datagen", SCHEMA, time="ts", **options))
    cut, _ = drain(source("datagen", SCHEMA, time="ts", batch_rows_max=batch, **options))
    assert_frame_equal(whole, cut)


@examples(30)
@given(st.integers(1, 50), st.integers(1, 60), st.sampled_from([1e6, 3e5, 7e6]), st.sampled_from(["0 s", "1 ms"]))
def test_rows_of_a_pool_come_again_and_again_with_event_times_of_their_own(pool: int, batch: int, pace: float, behind: str):
    options = {"rows": 200, "rows_per_second": "max", "start": "2020-01-01", "event_rows_per_second": pace, "disorder": behind}
    made, _ = drain(source("datagen", SCHEMA, time="ts", **options))
    pooled, answers = drain(source("datagen", SCHEMA, time="ts", pool_rows=pool, batch_rows_max=batch, **options))
    assert pooled.columns == made.columns
    assert_frame_equal(pooled.select("ts"), made.select("ts"))
    again = [row % pool for row in range(200)]
    assert_frame_equal(pooled.drop("ts"), made.drop("ts")[again])
    assert max(answer.frame.height for answer in answers if answer.frame is not None) <= batch


@examples(30)
@given(st.integers(1, 120), st.sampled_from(["0 s", "1 ms"]), st.data())
def test_promised_batches_are_those_of_polls_in_whatever_order_they_are_made(batch: int, behind: str, data: st.DataObject):
    options = {"rows": 500, "rows_per_second": "max", "start": "2020-01-01", "disorder": behind, "batch_rows_max": batch}
    whole, polls = drain(source("datagen", SCHEMA, time="ts", **options))
    stream: Any = source("datagen", SCHEMA, time="ts", **options)

    answers: list[Polled] = [stream.poll(0.0, WALL)]
    while not answers[-1].finished:
        promises = [work for _ in range(data.draw(st.integers(0, 4))) if (work := stream.prefetch(1.0, WALL)) is not None]
        made = {number: promises[number]() for number in data.draw(st.permutations(range(len(promises))))}
        answers += [made[number] for number in range(len(promises))]
        answers.append(stream.poll(1.0, WALL))

    assert_frame_equal(pl.concat([answer.frame for answer in answers if answer.frame is not None]), whole)
    assert [answer.rows for answer in answers if answer.rows] == [answer.rows for answer in polls]
    reached = list(accumulate((answer.watermark_us for answer in answers if answer.rows), max))
    assert reached[:-1] == [answer.watermark_us for answer in polls][:-1], "the highest watermark so far counts"


def test_only_whole_batches_that_are_due_are_promised():
    stream: Any = source("datagen", SCHEMA, time="ts", rows=101, rows_per_second=10, batch_rows_max=20)
    assert stream.prefetch(100.0, WALL) is None, "the clock starts with the first poll"
    assert stream.poll(100.0, WALL).rows == 1
    assert stream.prefetch(101.8, WALL) is None, "19 rows are due, a batch has 20"
    work = stream.prefetch(102.0, WALL)
    assert work is not None
    assert (work().rows, work().next_poll) == (20, 102.0)
    assert stream.due_rows(102.0) == 0
    assert [stream.prefetch(1000.0, WALL) is not None for _ in range(5)] == [True, True, True, True, False]
    assert stream.poll(1000.0, WALL) == Polled(None, WATERMARK_END, None, finished=True)


def test_rows_of_a_pool_are_not_promised():
    stream: Any = source("datagen", SCHEMA, time="ts", rows_per_second="max", pool_rows=100)
    stream.poll(0.0, WALL)
    assert stream.prefetch(0.0, WALL) is None


def test_a_source_of_nothing_but_times_may_have_a_pool_too():
    rows, _ = drain(source("datagen", columns(ts="time"), time="ts", rows=3, rows_per_second="max", start="2020-01-01", pool_rows=2))
    assert rows["ts"].cast(pl.Int64).diff().to_list() == [None, 1, 1]


def test_another_seed_gives_other_rows_and_nodes_differ_where_asked():
    options = {"rows": 100, "rows_per_second": "max", "start": "2020-01-01"}
    first, _ = drain(source("datagen", SCHEMA, **options))
    assert not first.equals(drain(source("datagen", SCHEMA, seed=1, **options))[0])
    assert not first.equals(drain(source("datagen", SCHEMA, per_node="true", **options))[0])


LAG_MAX = 1_000
STREAM_ROWS = 3_096
SPECTRUM_ROWS = 4_096
"""Long enough that a shift by LAG_MAX does not wrap around."""
BOUND = 0.13
"""The largest of ten million correlations of independent series of 3,096 rows is about 0.1."""


def spectra(seed: int, node: str = "") -> FloatArray:
    """Returns the spectra of columns, of a mask of NULLs and of the disorder of event times; shape (series, frequencies)."""
    rows, _ = drain(
        source(
            "datagen",
            columns(**{"ts": "time", "i": "int", "s": "text", "b": "bool", "f": "float", "null/f": "float", "disorder": "float"}),
            msgspec.structs.replace(context(), node=node or "n1"),
            time="ts",
            rows=STREAM_ROWS,
            rows_per_second="max",
            start="2020-01-01",
            disorder="1 second",
            seed=seed,
            per_node="true" if node else "false",
            fields__b__null_fraction=0.3,
            fields__f__kind="normal",
        )
    )
    found = [rows["i"], rows["s"].str.slice(2).cast(pl.Int64), rows["b"].fill_null(False), rows["b"].is_null(), rows["f"]]
    found += [rows["null/f"], rows["disorder"], rows["ts"].cast(pl.Int64) - pl.Series(np.arange(STREAM_ROWS))]
    return spectra_of(np.array([series.cast(pl.Float64).to_numpy() for series in found]))


def spectra_of(values: FloatArray) -> FloatArray:
    """Returns the spectrum of each row, after scaling it to mean 0 and norm 1."""
    values = values - values.mean(axis=1, keepdims=True)
    found: FloatArray = np.fft.rfft(values / np.linalg.norm(values, axis=1, keepdims=True), SPECTRUM_ROWS)
    return found


def correlations(one: FloatArray, other: FloatArray) -> FloatArray:
    """Returns the largest correlation of each pair at any lag up to LAG_MAX, in either direction; shape (series, series)."""
    by_lag = np.abs(np.fft.irfft(one[:, None] * other[None].conj()))
    found: FloatArray = np.maximum(by_lag[..., : LAG_MAX + 1].max(axis=-1), by_lag[..., -LAG_MAX:].max(axis=-1))
    return found


def test_a_stream_is_found_in_itself_moved_by_some_rows():
    """Checks the measure itself: it finds a shifted copy of a stream."""
    values = np.random.default_rng(1).random((1, STREAM_ROWS))
    for lag in (-LAG_MAX, -1, 0, 1, LAG_MAX):
        assert correlations(spectra_of(values), spectra_of(np.roll(values, lag))) > 0.6


def test_seeds_columns_null_masks_and_disorder_have_nothing_in_common_at_any_lag():
    """Compares 100 pairs of neighbouring seeds, and the series of each seed. A mask of NULLs correlates with its own column."""
    found = [spectra(seed) for seed in (*range(51), *range(2**63 - 51, 2**63))]
    for number, one in enumerate(found):
        assert number == 0 or correlations(one, found[number - 1]).max() < BOUND
        own = correlations(one, one) - np.eye(8)
        own[2, 3] = own[3, 2] = 0.0
        assert own.max() < BOUND


def test_nodes_of_a_logical_source_have_nothing_in_common_at_any_lag():
    found = [spectra(seed, node) for seed, node in product(range(3), ("n1", "n2", "n3"))]
    for number, one in enumerate(found):
        for other in found[:number]:
            assert correlations(one, other).max() < BOUND


def test_the_same_seed_gives_these_rows_on_every_machine():
    rows, _ = drain(source("datagen", columns(i="int", s="text", b="bool"), rows=5, rows_per_second="max", seed=7))
    assert rows.rows() == [(964, "s-2", False), (65, "s-97", False), (516, "s-3", False), (222, "s-39", True), (540, "s-10", True)]


def test_every_kind_fills_its_column_as_described():
    rows, _ = drain(
        source(
            "datagen",
            columns(r="int", q="int", t="text", n="float", z="int", c="text", w="text", g="text", p="bool", u="float", d="interval"),
            context(region="eu"),
            rows=20_000,
            rows_per_second="max",
            fields__r__min=-2,
            fields__r__max=2,
            fields__q__kind="sequence",
            fields__q__start=5,
            fields__q__step=2,
            fields__q__modulo=3,
            fields__t__kind="sequence",
            fields__t__prefix="row ",
            fields__n__kind="normal",
            fields__n__mean=10,
            fields__n__stddev=2,
            fields__z__kind="zipf",
            fields__z__count=10,
            fields__c__kind="choice",
            fields__c__values="x, y",
            fields__c__weights="3,1",
            fields__w__kind="node",
            fields__g__kind="label",
            fields__g__label="region",
            fields__p__probability=0.25,
            fields__u__null_fraction=0.5,
        )
    )
    assert sorted(set(rows["r"].to_list())) == [-2, -1, 0, 1, 2]
    assert rows["q"].to_list()[:4] == [5, 7, 9, 5]
    assert rows["t"].to_list()[:2] == ["row 0", "row 1"]
    assert rows["n"].mean() == pytest.approx(10, abs=0.05)
    assert rows["n"].std() == pytest.approx(2, abs=0.05)
    ranks = rows["z"].value_counts().sort("z")["count"].to_list()
    assert len(ranks) == 10
    assert ranks[0] / ranks[1] == pytest.approx(2, rel=0.1)
    assert (rows["c"] == "x").mean() == pytest.approx(0.75, abs=0.02)
    assert set(rows["w"]) == {"n1"}
    assert set(rows["g"]) == {"eu"}
    assert rows["p"].mean() == pytest.approx(0.25, abs=0.02)
    assert rows["u"].is_null().mean() == pytest.approx(0.5, abs=0.02)
    assert rows["u"].mean() == pytest.approx(0.5, abs=0.02)  # which rows are NULL does not depend on the value
    assert rows.schema["d"] == pl.Duration("us")


@examples(60)
@given(st.lists(st.sampled_from([0.0, 1e-9, 0.25, 1.0, 3.0]), min_size=1, max_size=70).filter(any), st.integers(0, 2**32))
def test_the_rank_of_a_number_is_the_share_that_it_falls_into(weights: list[float], seed: int):
    shares = np.cumsum(weights) / sum(weights)
    shares[-1] = 1.0
    edges = np.concatenate([shares, np.arange(64 * len(weights)) / (64 * len(weights)), [0.0]])
    numbers = np.concatenate([np.random.default_rng(seed).random(500), edges, np.nextafter(edges, 0), np.nextafter(edges, 1)])
    numbers = numbers[(numbers >= 0) & (numbers < 1)]

    ranks = Ranks(shares).of(numbers)

    expected = [next(rank for rank, end in enumerate(shares) if number < end) for number in numbers.tolist()]
    assert ranks.tolist() == expected


@pytest.mark.parametrize("count", [7, TEXTS_MAX, TEXTS_MAX + 1])
def test_texts_by_rank_are_prefix_and_rank_however_many_there_are(count: int):
    options = {"rows": 3000, "rows_per_second": "max", "fields__x__kind": "zipf", "fields__x__count": count, "fields__x__exponent": 0}
    texts, _ = drain(source("datagen", columns(x="text"), fields__x__prefix="p/", **options))
    ranks, _ = drain(source("datagen", columns(x="int"), **options))
    assert texts["x"].to_list() == [f"p/{rank}" for rank in ranks["x"]]
    assert len(set(ranks["x"])) > min(count, 2000) * 0.9


def test_disorder_moves_event_times_back_by_less_than_it_says():
    rows, _ = drain(source("datagen", SCHEMA, time="ts", rows=1000, rows_per_second="max", start="2020-01-01", disorder="100 us"))
    times = rows["ts"].cast(pl.Int64).to_numpy() - 1_577_836_800_000_000
    behind = range(1000) - times
    assert min(behind) >= 0
    assert max(behind) <= 101
    assert len(set(behind.tolist())) > 50


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rows_per_second": "-1"}, "rows_per_second = '-1', expected a number from"),
        ({"rows_per_second": "fast"}, "rows_per_second"),
        ({"rows_per_secnd": "1"}, "did you mean rows_per_second"),
        ({"seed": "x"}, "seed = 'x', expected a whole number"),
        ({"start": "soon"}, "start = 'soon', expected a time"),
        ({"disorder": "3 parsecs"}, "disorder = '3 parsecs', expected a span"),
        ({"fields__i__kind": "quantum"}, "expected one of random, sequence"),
        ({"fields__nosuch__kind": "random"}, "fields.nosuch.kind is unknown"),
        ({"fields__i__min": "9", "fields__i__max": "3"}, "fields.i.max"),
        ({"fields__s__kind": "choice"}, "fields.s.values"),
        ({"fields__i__kind": "choice", "fields__i__values": "1,b"}, "values of type int"),
        ({"fields__s__kind": "choice", "fields__s__values": "a,b", "fields__s__weights": "1"}, "2 numbers"),
        ({"fields__s__kind": "sequence", "fields__s__count": "3"}, "fields.s.count is unknown"),
    ],
)
def test_bad_options_are_refused_in_one_line_that_names_them(options: dict[str, str], message: str):
    with pytest.raises(ConnectorError) as refusal:
        source("datagen", SCHEMA, **options)
    assert message in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_an_unknown_connector_is_refused_with_the_known_ones():
    said = r"'datagn' is unknown, expected one of datagen, file, http, mqtt, tcp; did you mean 'datagen'\?"
    with pytest.raises(ConnectorError, match=said):
        source("datagn", SCHEMA)
