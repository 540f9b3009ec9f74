"""Paced work takes at most its share of time and ends on any machine. A paced transfer leaves no queue on its path."""

from hypothesis import given
from hypothesis import strategies as st

from sbon.migration.pacing import TARGET_S, WAIT_S_MAX, WAIT_S_MIN, Pacer, Window

SHARES = st.floats(0.01, 3.0)
COSTS = st.lists(st.floats(0.0, 0.004), min_size=1, max_size=200)


@given(SHARES, st.floats(0.0, 0.01), COSTS)
def test_work_takes_at_most_its_share_of_the_time(share: float, burst_s: float, costs: list[float]):
    pacer, now, worked_s = Pacer(share, burst_s), 0.0, 0.0
    for cost in costs:
        now += pacer.wait_s(now) + cost
        worked_s += cost
        pacer.took(cost, now)
        # Beyond the share: the burst, the last piece, and skipped waits below WAIT_S_MIN. WAIT_S_MAX would cut waits after longer pieces.
        if max(costs) <= WAIT_S_MAX * share:
            assert worked_s <= share * now + burst_s + max(costs) + share * len(costs) * WAIT_S_MIN + 1e-9


@given(SHARES, st.lists(st.floats(0.0, 100.0), min_size=1, max_size=50))
def test_no_piece_waits_for_long_however_long_the_last_one_took(share: float, costs: list[float]):
    pacer, now = Pacer(share, 0.0), 0.0
    for cost in costs:
        wait_s = pacer.wait_s(now)
        assert 0.0 <= wait_s <= WAIT_S_MAX + 1e-9
        now += wait_s + cost
        pacer.took(cost, now)
    assert pacer.wait_s(now + WAIT_S_MAX + 1e-6) < 1e-9


@given(SHARES, COSTS, st.floats(0.0, 1.0), st.floats(0.0, 1.0))
def test_the_more_urgent_the_less_waiting(share: float, costs: list[float], one: float, other: float):
    pacer = Pacer(share, 0.0)
    for cost in costs:
        pacer.took(cost, 5.0)
    assert pacer.wait_s(5.0, max(one, other)) <= pacer.wait_s(5.0, min(one, other))
    assert pacer.wait_s(5.0, 1.0) == 0.0
    assert pacer.wait_s(5.0, float("nan")) == pacer.wait_s(5.0)


@given(st.floats(20_000, 500_000_000), st.floats(0.0, 0.2))
def test_a_path_is_filled_and_no_queue_stands_on_it(rate_bytes_per_s: float, path_s: float):
    """Pieces wait in order before a bottleneck; each answer advances the time."""
    window, least, most = Window(65_536, 2_000_000), 65_536, 2_000_000
    way: list[tuple[float, float, int]] = []  # answered at, sent at, bytes
    now, free_at, held, longest_s, sent = 0.0, 0.0, 0, 0.0, 0
    for _ in range(600):
        while held < window.within():
            size = window.piece_bytes(262_144)
            free_at = max(free_at, now) + size / rate_bytes_per_s
            way.append((free_at + path_s, now, size))
            held, sent = held + size, sent + size
        now, sent_at, size = way.pop(0)
        held -= size
        window.answered(size, now - sent_at)
        assert least <= window.bytes <= most
        longest_s = max(longest_s, free_at - now + path_s)
    full = min(rate_bytes_per_s, most / (path_s + 2 * TARGET_S))
    assert sent / now >= min(full, rate_bytes_per_s) / 4
    # Path, the smallest window's transmission, and the target delay, doubled while the window opens.
    assert longest_s <= path_s + 2 * (least + least / 4) / rate_bytes_per_s + 4 * TARGET_S


@given(st.integers(1, 10**7), st.integers(1, 10**7), st.floats(0.0, 1.0))
def test_an_urgent_window_is_as_large_as_it_may_be(least: int, most: int, urgent: float):
    window = Window(least, most)
    assert window.bytes <= window.within(urgent) <= most
    assert window.within(1.0) == most
    assert 1 <= window.piece_bytes(262_144) <= 262_144
