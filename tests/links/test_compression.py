"""A link chooses its codec by the measured bandwidth and by how well its batches compress."""

from itertools import pairwise

import pytest

from sbon.compression import FORGET_S, GROWTH_S, Codec, DrainMeter, Packing

BATCH = 1_000_000
LEFT = {Codec.NONE: 1.0, Codec.LZ4: 0.6, Codec.ZSTD: 0.4}
PACK_S = {Codec.NONE: 0.0, Codec.LZ4: 1e-9, Codec.ZSTD: 3e-9}


def flood(packing: Packing, bandwidth: float, begin_s: float, seconds: float, left: dict[Codec, float] = LEFT) -> list[Codec]:
    """Sends as many batches as a line of this bandwidth (bytes/s) takes; returns their codecs."""
    now, used = begin_s, []
    while now < begin_s + seconds:
        codec = packing.codec
        wire = int(BATCH * left[codec])
        now += max(wire / bandwidth, PACK_S[codec] * BATCH)
        packing.sent(codec, BATCH, wire, PACK_S[codec] * BATCH, now)
        if wire / bandwidth > PACK_S[codec] * BATCH:
            packing.drained(bandwidth, now)
        used.append(codec)
    return used


@pytest.mark.parametrize(
    ("bandwidth", "expected"),
    [(2e9, Codec.NONE), (6e8, Codec.NONE), (1.1e8, Codec.LZ4), (1e7, Codec.ZSTD), (1e5, Codec.ZSTD)],
    ids=["loopback", "machine room", "gigabit", "100 Mbit", "1 Mbit"],
)
def test_the_codec_follows_the_bandwidth(bandwidth: float, expected: Codec) -> None:
    used = flood(Packing(), bandwidth, 0.0, 200 * BATCH / bandwidth)
    assert used[0] is Codec.NONE
    assert set(used[20:]) == {expected}


def test_a_way_that_was_never_full_is_not_packed_for() -> None:
    packing = Packing()
    for second in range(100):
        packing.sent(Codec.NONE, BATCH, BATCH, 0.0, float(second))
    assert packing.codec is Codec.NONE


def test_rows_that_cannot_be_packed_travel_as_they_are_and_are_tried_again_later() -> None:
    packing = Packing()
    stubborn = {Codec.NONE: 1.0, Codec.LZ4: 1.0, Codec.ZSTD: 0.99}
    used = flood(packing, 1e7, 0.0, FORGET_S / 2, stubborn)
    assert used[-1] is Codec.NONE
    assert used.count(Codec.NONE) > 0.9 * len(used)
    assert set(flood(packing, 1e7, FORGET_S * 2, FORGET_S)[-20:]) == {Codec.ZSTD}


def test_a_trickle_over_a_line_that_was_full_once_is_left_alone_again() -> None:
    packing = Packing()
    flood(packing, 1e7, 0.0, 20.0)
    assert packing.codec is Codec.ZSTD
    for tick in range(100):
        packing.sent(packing.codec, 10_000, 10_000, 0.0, 30.0 + tick / 10)
    assert packing.codec is Codec.NONE


def test_a_line_that_has_become_faster_is_noticed() -> None:
    packing = Packing()
    flood(packing, 1e6, 0.0, 100.0)
    assert packing.codec is Codec.ZSTD
    assert flood(packing, 2e9, 100.0, 15 * GROWTH_S)[-1] is Codec.NONE


def test_figures_near_each_other_do_not_change_the_codec_again_and_again() -> None:
    packing = Packing()
    used = []
    for turn in range(200):
        used += flood(packing, 1.0e8 if turn % 2 else 1.3e8, turn * 2.0, 0.2)
    changes = sum(a is not b for a, b in pairwise(used))
    assert changes <= 3


@pytest.mark.parametrize("name", ["none", "lz4", "zstd"])
def test_a_codec_that_was_set_stays(name: str) -> None:
    packing = Packing(name)  # type: ignore[arg-type]
    assert set(flood(packing, 1e5, 0.0, 1000.0)) | set(flood(packing, 1e9, 1000.0, 1.0)) == {Codec(name)}


def test_the_ratio_is_that_of_all_batches() -> None:
    packing = Packing()
    assert packing.ratio == 1.0
    packing.sent(Codec.NONE, 100, 100, 0.0, 0.0)
    packing.sent(Codec.ZSTD, 300, 100, 0.0, 1.0)
    assert packing.ratio == 0.5


def test_a_drain_is_what_left_while_the_buffer_was_full() -> None:
    meter = DrainMeter()
    meter.wrote(500, 500, full=False, now=0.0)
    assert not meter.emptied(0, 1.0)
    meter.wrote(700, 1000, full=True, now=2.0)
    meter.wrote(100, 1050, full=True, now=2.5)
    assert meter.emptied(200, 4.0)
    assert meter.bytes_per_s == pytest.approx((1000 + 100 - 200) / 2)
    assert not meter.emptied(0, 5.0)


def test_a_drain_for_most_of_which_the_receiver_read_nothing_does_not_count() -> None:
    held_up_s = 5.0
    meter = DrainMeter(lambda: held_up_s)
    meter.wrote(1000, 1000, full=True, now=1.0)
    held_up_s = 5.9
    assert meter.emptied(0, 3.0)
    assert meter.bytes_per_s == pytest.approx(500)

    meter.wrote(1000, 1000, full=True, now=4.0)
    held_up_s = 7.0
    assert not meter.emptied(0, 6.0)
    assert meter.bytes_per_s == 0.0
