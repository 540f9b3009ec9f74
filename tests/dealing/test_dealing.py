"""Dealers, the law of overlapping windows, the tail of queues, and forecasts."""

import math
from collections import deque

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbon.cost.overlap import OverlapFit, OverlapLaw, RowLaw
from sbon.dealing.choice import best_by_replay, last, turns
from sbon.dealing.dealer import OneCopy, Reactive, RoundRobin
from sbon.dealing.forecast import Course, Steady
from sbon.dealing.instance_records import InstanceRecord, InstanceRecords, Setting, Window
from sbon.dealing.last import Last
from sbon.dealing.model import Model
from sbon.dealing.replay import Candidate, Replaying, Trace, replay
from sbon.dealing.tail import THETAS, SteadyTails, log_tail, log_tails
from sbon.dealing.turns import Turns
from sbon.errors import ShapeError
from sbon_testbed.cep.stories import FACES, STORIES, TRAFFIC, cars
from tests.examples import examples

LAW = OverlapLaw((RowLaw(0.01, 0.3, 0.02, 0.001), RowLaw(0.02, 0.0, 0.05, 0.004)), (True, False))


def setting(bound_s: float = 5.0, instances: int = 3, **changes) -> Setting:
    told = Setting(
        instances=instances, bound_s=bound_s, scope_s=10.0, opens=(True, False), closes=(False, False), counted=(True, False), law=LAW
    )
    return msgspec.structs.replace(told, **changes)


def small_trace(seed: int, rows: int = 60) -> Trace:
    rng = np.random.default_rng(seed)
    at = np.sort(rng.uniform(0, 40, rows))
    kind = rng.integers(0, 2, rows)
    return Trace(at, kind, np.where(kind == 0, at + 10.0, 0.0))


# -------------------------------------------------------------------------------------------------------------------- law


def test_the_fit_tells_the_parts_of_a_law_apart():
    rng = np.random.default_rng(1)
    fit = OverlapFit((True, False))
    for _ in range(200):
        kind, opens, others, pairs = int(rng.integers(2)), bool(rng.integers(2)), int(rng.integers(20)), float(rng.integers(500))
        opens = opens and kind == 0
        windows = others + max(1, opens)
        fit.took(kind, opens, windows, pairs, LAW.kinds[kind].cost_s(opens, windows, pairs))

    assert fit.is_known
    for found, expected in zip(fit.law().kinds, LAW.kinds, strict=True):
        assert msgspec.structs.astuple(found) == pytest.approx(msgspec.structs.astuple(expected), rel=1e-3, abs=1e-6)


def test_what_is_not_told_apart_is_for_the_windows():
    """If all measured rows were in one window each, their cost counts per window: in five windows a row costs five times as much."""
    fit = OverlapFit((False,))
    for _ in range(20):
        fit.took(0, False, 1, 0.0, 0.25)

    assert fit.law().kinds[0].cost_s(False, 5, 0.0) == pytest.approx(1.25, rel=0.01)


def test_rows_without_a_window_or_a_sound_cost_are_left_out():
    fit = OverlapFit((False,))
    for windows, cost in ((0, 1.0), (1, 0.0), (1, math.inf), (1, math.nan)):
        fit.took(0, False, windows, 0.0, cost)

    assert fit.taken == 0
    assert fit.law().kinds[0] == RowLaw()


def test_a_negative_cost_is_no_law():
    with pytest.raises(ShapeError, match="negative"):
        RowLaw(window_s=-1.0)


# ------------------------------------------------------------------------------------------------------------------- tail


@pytest.mark.parametrize(("load", "bound_s"), [(0.5, 6.0), (0.7, 8.0), (0.85, 12.0)])
def test_the_tail_is_above_what_happens_in_a_queue(load, bound_s):
    """Gaps are exponential with mean 1 / load, rows take 1 s. Observed: the tail is 4 to 40 times above the simulated share."""
    rng = np.random.default_rng(7)
    gaps = rng.exponential(1 / load, 200_000)
    waited, late = 0.0, 0
    for gap in gaps.tolist():
        waited = max(0.0, waited + 1.0 - gap)
        late += waited + 1.0 > bound_s

    tail = log_tail(np.full((1, 20), load), np.ones((1, 1, 20)), 20.0, np.zeros(1), bound_s)

    assert late / len(gaps) < math.exp(float(tail.max())) < 100 * max(1, late) / len(gaps)


def test_the_tail_counts_what_waits_at_the_start():
    rates, costs = np.full((1, 4), 0.1), np.ones((1, 2, 4))
    empty, full = log_tail(rates, costs, 1.0, np.array([0.0, 9.5]), 10.0)

    assert empty[0] < -5 < full[0]
    assert full[0] > full[-1] - 1e-9


@examples(60)
@given(seed=st.integers(0, 2**32))
def test_tails_of_steady_rates_say_what_those_of_any_rates_say(seed):
    rng = np.random.default_rng(seed)
    kinds, drops = [(0.1, 0.3), (0.0, 0.25)], [np.sort(rng.integers(0, 21, rng.integers(0, 6))).tolist() for _ in range(3)]
    rates, begun_s, limit = rng.exponential(0.7, 2), rng.exponential(4, 3), float(rng.uniform(-12, 0))
    windows = np.array([[1 + sum(end > place for end in one) for place in range(20)] for one in drops])
    costs = np.array([row_s + window_s * windows for row_s, window_s in kinds])

    tails = log_tails(np.repeat(rates[:, None], 20, axis=1), costs, 0.5, begun_s, 15.0)

    steady = SteadyTails(kinds, 15.0, 20, limit)
    assert steady.tails(rates.tolist(), drops, 0.5, begun_s.tolist()) == pytest.approx(tails, rel=1e-9, abs=1e-9)
    for number, (one, begun) in enumerate(zip(drops, begun_s.tolist(), strict=True)):
        within = (tails[:, number].max(axis=-1) <= limit).tolist()
        assert [steady.keeps(theta, rates.tolist(), one, 0.5, begun) for theta in range(THETAS)] == within
        assert begun <= steady.hopeless_s or not any(within)


def test_no_theta_is_within_the_limit_above_what_is_hopeless():
    steady = SteadyTails([(0.1, 0.3), (0.0, 0.25)], 15.0, 20, -6.0)
    nothing_comes = [0.0, 0.0]

    assert steady.keeps(THETAS - 1, nothing_comes, [], 0.5, steady.hopeless_s - 1e-6)
    assert not any(steady.keeps(theta, nothing_comes, [], 0.5, steady.hopeless_s + 1e-6) for theta in range(THETAS))


def test_a_passing_overload_may_be_within_the_bound():
    """Twice the capacity for 5 s leaves 5 s of work; a bound of 30 s holds, a bound of 4 s does not."""
    rates = np.full((1, 20), 20.0)
    costs = np.zeros((1, 1, 20))
    costs[..., :10] = 0.1

    assert log_tail(rates, costs, 0.5, np.zeros(1), 30.0).max() < -10
    assert log_tail(rates, costs, 0.5, np.zeros(1), 4.0).max() >= 0


# -------------------------------------------------------------------------------------------------------------- the world


def by_loops(trace: Trace, law: OverlapLaw, instances: list[int]) -> tuple[int, float]:
    """The plain twin: returns rows sent and the longest latency, by loops over rows and windows."""
    windows = [
        (at, closes, owner)
        for (at, closes), owner in zip(
            [(at, closes) for at, closes in zip(trace.at_s, trace.closes_s, strict=True) if closes], instances, strict=True
        )
    ]
    busy: dict[int, float] = {}
    sent, peak = 0, 0.0
    for place, (at, kind) in enumerate(zip(trace.at_s, trace.kind, strict=True)):
        for instance in sorted(set(instances)):
            mine = [opened for opened, closes, owner in windows if owner == instance and opened <= at <= closes]
            if not mine:
                continue
            pairs = sum(1 for opened in mine for other in range(place) if law.counted[trace.kind[other]] and trace.at_s[other] >= opened)
            opens = trace.closes_s[place] > 0 and at in mine
            one = law.kinds[kind]
            cost = one.row_s + one.pair_s * pairs + one.window_s * (len(mine) - opens) + (one.opening_s if opens else 0.0)
            busy[instance] = max(busy.get(instance, -math.inf), at) + cost
            sent += 1
            peak = max(peak, busy[instance] - at)
    return sent, peak


class Listed:
    """A dealer that follows a list."""

    needs_queues = False

    def __init__(self, instances: list[int]) -> None:
        self._left = deque(instances)

    def arrived(self, at_s: float, kind: int) -> None:
        pass

    def deal(self, at_s: float, closes_s: float) -> int:
        return self._left.popleft()


@examples(40)
@given(st.integers(0, 10_000))
def test_the_world_equals_loops_over_windows_and_rows(seed):
    trace = small_trace(seed)
    rng = np.random.default_rng(seed)
    instances = rng.integers(0, 3, int((trace.closes_s > 0).sum())).tolist()

    found = replay(trace, setting(), LAW, lambda told, records: Listed(instances))

    assert (found.rows_sent, found.peak_s) == (by_loops(trace, LAW, instances)[0], pytest.approx(by_loops(trace, LAW, instances)[1]))


DEALERS = {
    "round-robin": RoundRobin,
    "one-copy": OneCopy,
    "reactive": lambda told, records: Reactive(told, records, 0.5),
    "model": Model,
    "turns": turns(10.0).make,
    "last": last(1e-3).make,
    "replay": best_by_replay,
}


@examples(60)
@given(st.integers(0, 10_000), st.sampled_from(sorted(DEALERS)), st.integers(1, 5), st.floats(0.05, 50), st.booleans())
def test_any_dealer_names_an_instance_and_the_same_one_again(seed, name, instances, bound_s, knows):
    """An instance that does not exist would fail. No dealer sends fewer rows than `OneCopy`, or more than every row to every instance."""
    trace = small_trace(seed)
    told = setting(bound_s, instances, law=LAW if knows else None)

    found = replay(trace, told, LAW, DEALERS[name])

    assert found == replay(trace, told, LAW, DEALERS[name])
    assert found.decisions == int((trace.closes_s > 0).sum())
    assert replay(trace, told, LAW, OneCopy).rows_sent <= found.rows_sent <= instances * len(trace.at_s)


@given(seed=st.integers(0, 10**6), silent_s=st.floats(0, 15), limit=st.integers(0, 200))
def test_a_replay_is_cut_off_only_where_it_is_sure_to_be_worse(seed, silent_s, limit):
    """Rows before the first window and after the last one go to no instance, so they must not count as copies still to come."""
    trace = small_trace(seed)
    opens = (trace.at_s >= silent_s) & (trace.at_s < 20) & (trace.closes_s > 0)
    trace = Trace(trace.at_s, trace.kind, np.where(opens, trace.closes_s, 0.0))
    whole = replay(trace, setting(), LAW, RoundRobin)

    cut = replay(trace, setting(), LAW, RoundRobin, beaten=(whole.over, limit))

    if whole.rows_sent <= limit:
        assert cut == whole
    else:
        assert limit < cut.rows_sent <= whole.rows_sent


@given(st.lists(st.tuples(st.floats(0, 9), st.integers(0, 99)), min_size=1, unique=True), st.randoms(use_true_random=False))
def test_the_numbers_of_open_windows_are_those_of_the_windows(windows, order):
    """Windows may close in any order."""
    record = InstanceRecord()
    held = [Window(0.0, closes_s, mark) for closes_s, mark in windows]
    for one in held:
        record.opened(one)
    order.shuffle(held)

    while held:
        record.closed(held.pop())

        assert list(zip(record.closes_s, record.marks_of, strict=True)) == [(one.closes_s, one.mark) for one in record.windows]
        assert len(record.windows) == record.open == len(held)


def test_windows_that_close_in_another_order_than_they_open_are_refused():
    with pytest.raises(ShapeError, match="out of order"):
        Trace(np.array([0.0, 1.0]), np.zeros(2, dtype=np.int64), np.array([10.0, 5.0]))


def test_a_bound_of_nothing_is_refused():
    with pytest.raises(ShapeError, match="bound"):
        setting(0.0)


# ---------------------------------------------------------------------------------------------------------------- dealers


def test_reactive_goes_on_to_the_next_when_the_instance_is_late():
    told = setting(5.0)
    records = InstanceRecords(told)
    dealer = Reactive(told, records, 0.5)

    assert dealer.deal(1.0, 11.0) == 0
    records.of[0].latency_s = 0.6
    assert dealer.deal(2.0, 12.0) == 1
    assert dealer.deal(3.0, 13.0) == 1


def steady_cars(gap_s: float, seconds: float = 2500.0) -> Trace:
    rng = np.random.default_rng(11)
    passes = np.cumsum(rng.exponential(gap_s, int(2 * seconds / gap_s)))
    return cars(passes[passes < seconds], 500.0, seconds)


def test_turns_takes_more_instances_the_more_there_is_to_do():
    counts = []
    for gap_s in (1.0, 0.32, 0.22):
        trace, made = steady_cars(gap_s), []

        def make(told, records, made=made):
            made.append(turns(10.0).make(told, records))
            return made[0]

        found = replay(trace, TRAFFIC.setting(0.5, 500.0, knows_law=True), TRAFFIC.law, make)
        counts.append(made[0].k)
        assert found.over == 0

    assert counts[0] == 1 < counts[1] < counts[2] < 8


def test_turns_deals_to_all_until_the_costs_are_known():
    trace, made = steady_cars(1.0, 450.0), []

    def make(told, records):
        made.append(turns(10.0).make(told, records))
        return made[0]

    replay(trace, TRAFFIC.setting(0.5, 500.0), TRAFFIC.law, make)

    assert made[0].k == 8


def test_turns_opens_no_instance_where_that_helps_nothing():
    """The work that waits at the first instance exceeds the bound, whichever instance gets the next window."""
    told = setting(5.0, 3, law=OverlapLaw((RowLaw(window_s=1e-6), RowLaw(window_s=1e-6)), (False, False)), counted=(False, False))
    records = InstanceRecords(told)
    records.of[0].opened(Window(0.0, 10.0, 0))
    records.of[0].busy_until_s = 50.0
    dealer = Turns(told, records, Course(told))

    assert dealer.deal(1.0, 11.0) == 0


@pytest.mark.parametrize(("cost_s", "expected"), [(0.0001, 1), (0.0014, 2), (0.0026, 3), (0.1, 3)])
def test_turns_deals_to_as_many_as_carry_the_rows_even_if_no_number_keeps_the_bound_now(cost_s, expected):
    """The work that waits at the first instance exceeds the bound, and 100 rows a second cost `cost_s` for each of ten windows."""
    law = OverlapLaw((RowLaw(window_s=cost_s), RowLaw()), (False, False))
    told = setting(5.0, 3, law=law, counted=(False, False), opens=(False, True))
    records = InstanceRecords(told)
    dealer = Turns(told, records, Course(told, intervals=25))
    for at in range(2_000):
        dealer.arrived(at / 100, at % 100 == 0)
    records.of[0].opened(Window(15.0, 25.0, 0))
    records.of[0].busy_until_s = 70.0
    dealer.deal(20.0, 30.0)

    assert dealer.k == expected


def test_last_prefers_the_open_instance_that_closes_last():
    told = setting(20.0, 3)
    records = InstanceRecords(told)
    records.of[1].opened(Window(0.0, 10.0, 0))
    records.of[2].opened(Window(0.5, 10.5, 0))

    assert Last(told, records, Steady(told)).deal(1.0, 11.0) == 2
    records.of[2].busy_until_s = 20.5
    assert Last(told, records, Steady(told)).deal(1.0, 11.0) == 1


def test_last_takes_the_least_bad_where_none_keeps_the_bound():
    told = setting(1.0, 3)
    records = InstanceRecords(told)
    for number, busy_s in enumerate((9.0, 4.0, 7.0)):
        records.of[number].busy_until_s = busy_s

    assert Last(told, records, Steady(told)).deal(1.0, 11.0) == 1


def test_replays_choose_the_dealer_that_sends_least_among_those_that_keep_the_bound():
    story = STORIES["faces"]
    trace = story.make(np.random.default_rng(2), 420.0)
    names, made = [], []

    def make(told, records):
        candidates = (Candidate("one", OneCopy), Candidate("round", RoundRobin), last(1e-3))
        made.append(Replaying(told, records, candidates))
        return made[0]

    replay(trace, FACES.setting(30.0, 10.0, knows_law=True), FACES.law, make, seen=lambda *_: names.append(made[0].name))

    assert names[0] == "one"
    assert names[-1] == "last 0.001"


@pytest.mark.parametrize(("bound_s", "is_asked"), [(1.0, True), (60.0, False)])
def test_a_safer_candidate_is_replayed_only_where_the_bolder_one_was_late(bound_s, is_asked):
    trace = STORIES["faces"].make(np.random.default_rng(2), 420.0)
    made = []

    def safe(told, records):
        made.append(RoundRobin(told, records))
        return made[-1]

    def make(told, records):
        return Replaying(told, records, (last(1e-3), Candidate("safe", safe, bolder="last 0.001")))

    replay(trace, FACES.setting(bound_s, 10.0, knows_law=True), FACES.law, make)

    assert (len(made) > 1) is is_asked


def test_turns_is_a_candidate_within_a_scope_and_last_beyond_little_of_it():
    def names(bound_s):
        told = setting(bound_s, scope_s=10.0)
        return [one.name for one in best_by_replay(told, InstanceRecords(told)).candidates]

    assert names(0.9) == ["turns 10", "turns 1"]
    assert names(2.0) == ["turns 10", "turns 1", "last 0.001", "last 1e-05"]
    assert names(9.0) == ["last 0.001", "last 1e-05", "turns 10", "turns 1"]
    assert names(10.0) == ["last 0.001", "last 1e-05"]


# --------------------------------------------------------------------------------------------------------------- forecast


def fed(forecast, rates, width_s: float):
    rng = np.random.default_rng(3)
    for number, rate in enumerate(rates):
        for at in np.sort(rng.uniform(0, width_s, rng.poisson(rate * width_s))).tolist():
            forecast.arrived(number * width_s + at, 0)
    return len(rates) * width_s


def test_a_course_that_comes_again_is_foreseen():
    """Rates of 2 and 20 alternate. Shortly before the end of a low phase, the forecast expects the high rate."""
    told = setting(scope_s=250.0)
    wave = [2.0] * 40 + [20.0] * 40
    forecast = Course(told)
    now = fed(forecast, (wave * 4)[:-42], 10.0)

    upper = forecast.upper(now, 10.0, 25)[0]

    assert upper[10:].mean() == pytest.approx(20.0, rel=0.25)
    assert Course(told, course=6).upper(0.0, 10.0, 25)[0].mean() < 1.0


def test_growth_that_is_sure_goes_on_and_noise_does_not():
    told = setting(scope_s=250.0)
    flat, growing = Course(told), Course(told)
    now = fed(flat, [10.0] * 30, 10.0)
    fed(growing, [4.0] * 20 + list(np.linspace(4, 12, 20)), 10.0)

    assert flat.upper(now, 10.0, 25)[0].max() < 12
    assert growing.upper(400.0, 10.0, 25)[0][-1] > 15


def test_steady_takes_the_latest_where_it_is_surely_more():
    told = setting(scope_s=10.0)
    forecast = Steady(told)
    now = fed(forecast, [1.0] * 300 + [6.0] * 20, 1.0)

    assert forecast.upper(now, 0.5, 20)[0][0] == pytest.approx(6.0, rel=0.25)
