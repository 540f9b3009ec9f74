"""Latency of two stages: claims of latency-constrained analytics, sections 3.1 to 3.4, and of our additions."""

import math
from statistics import NormalDist

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbon.cost.phase_sums import chernoff_quantile_s, distribution, of_histograms
from sbon.cost.queues import largest_of_normals
from sbon.cost.stage_parts import Kind, Part, cornish_fisher, greatest
from sbon.cost.stage_waits import periodic_wait, queue_wait, scaled_tail, slowdown
from sbon.cost.stages import Cluster, Finalising, Job, Settings, Step, dealt_shares, latency, saturation_rate
from sbon.digest import GROWTH, Digest
from sbon.errors import ConfigError, ShapeError
from sbon.search.resources import Wanted, best_of, greatest_rates, plan_resources
from sbon_testbed.deadlines.world import Setting, simulate
from tests.examples import examples
from tests.paper.stages_plain import phases_of, slowdown_of, wait_of

WORDS = Job(
    map=Step(per_batch_ns=1e5, per_row_ns=8000, scatter=0.2),
    update=Step(per_batch_ns=1e5, per_row_ns=700, scatter=0.2),
    rows_out=10,
    row_bytes=140,
    sent_bytes=20,
)
SINGLY = Job(map=Step(per_batch_ns=2e4, per_row_ns=900, whole=False), update=Step(per_batch_ns=1e4, per_row_ns=700, whole=False))
HOT = msgspec.structs.replace(WORDS, hot_shares=(0.01, 0.006, 0.004))
CLUSTER = Cluster(cores=4)


def setting(
    nodes: float = 10, maps: float = 2, updates: float = 2, exchange_s: float = 0.2, poll_s: float = 0.2, pace_s: float = 0.005
) -> Settings:
    return Settings(nodes=nodes, maps=maps, updates=updates, pace_s=pace_s, exchange_s=exchange_s, poll_s=poll_s)


@examples(40)
@given(
    st.integers(1, 20),
    st.integers(1, 8),
    st.integers(1, 8),
    st.floats(0.002, 0.02),
    st.floats(0.02, 1.0),
    st.one_of(st.just(0.0), st.floats(0.02, 1.0)),
    st.floats(0.1, 0.9),
    st.booleans(),
)
def test_all_settings_at_once_are_as_one_by_one_with_plain_numbers(nodes, maps, updates, pace_s, exchange_s, poll_s, share, whole):
    job = (
        WORDS
        if whole
        else Job(map=Step(per_batch_ns=2e4, per_row_ns=900, whole=False), update=Step(per_batch_ns=1e4, per_row_ns=700, whole=False))
    )
    chosen = setting(nodes, maps, updates, exchange_s, poll_s, pace_s)
    rate = share * float(saturation_rate(job, CLUSTER, chosen))
    if rate < 1000:
        return

    found = latency(job, CLUSTER, chosen, rate)

    if np.isfinite(found.mean_s):
        plain = phases_of(job, CLUSTER, nodes, maps, updates, pace_s, exchange_s, poll_s, rate)
        assert found.phase_means_s == pytest.approx(plain, rel=1e-5, abs=1e-9)
        assert found.mean_s == pytest.approx(sum(plain), rel=1e-5)


def test_a_grid_has_the_latency_of_each_of_its_settings():
    exchange = np.array([0.05, 0.2, 0.7])

    many = latency(WORDS, CLUSTER, setting(exchange_s=exchange, updates=np.array([1, 2, 4])), 300_000)  # type: ignore[arg-type]

    for number, updates in enumerate((1, 2, 4)):
        one = latency(WORDS, CLUSTER, setting(exchange_s=float(exchange[number]), updates=updates), 300_000)
        assert many.cumulants[:, number] == pytest.approx(one.cumulants, rel=1e-9)


def test_a_row_that_leaves_alone_has_half_the_time_of_its_batch_on_average():
    """Section 3.2, equation 2: u / (2 min(1 - p, 1/n) C), here for a thread with its own core."""
    alone = Job(map=Step(per_batch_ns=0, per_row_ns=1000, whole=False), update=Step(per_batch_ns=0, per_row_ns=1000, whole=False))

    found = latency(alone, CLUSTER, setting(1, 1, 1, 0.1, 0.0, 0.01), 100_000)

    rows = 100_000 * 0.01
    assert found.phase_means_s[4] == pytest.approx(rows * 1000e-9 / 2)


def test_threads_beyond_the_cores_slow_each_other_down():
    busy = np.array([0.1, 0.5, 0.9])

    assert slowdown(np.array([3, 3, 3]), busy, 0.0, 4).tolist() == [1.0, 1.0, 1.0]
    for number, share in enumerate(busy):
        assert slowdown(np.array([7, 7, 7]), busy, 0.0, 4)[number] == pytest.approx(slowdown_of(7, float(share), 4))
    assert slowdown(np.array([0]), np.array([0.5]), 7, 4)[0] == 2.0  # eight threads at work on four cores


def test_the_wait_of_a_queue_is_that_of_the_plain_formula():
    for gap_scv, service_scv, load in ((0.0, 0.3, 0.7), (1.0, 1.0, 0.5), (3.0, 0.2, 0.9)):
        mean, _ = queue_wait(np.array([1.0]), gap_scv, np.array([load]), np.array([service_scv]))
        assert mean[0] == pytest.approx(wait_of(1.0, gap_scv, load, service_scv))
    assert math.isinf(queue_wait(np.array([1.0]), 1.0, np.array([1.0]), np.array([1.0]))[0][0])


def test_periodic_senders_wait_as_lindley_says():
    """N D/D/1: each sender sends once per interval, at its own phase."""
    rng = np.random.default_rng(1)
    for senders, load in ((20, 0.6), (40, 0.85)):
        service = load / senders
        waits = []
        for _ in range(200):
            arrivals = np.sort(rng.random(senders))
            arrivals = np.concatenate([arrivals, arrivals + 1, arrivals + 2])
            free = 0.0
            for number, at in enumerate(arrivals):
                if number >= 2 * senders:
                    waits.append(max(0.0, free - at))
                free = max(free, at) + service
        mean, _ = periodic_wait(np.array([float(senders)]), np.array([service]), np.array([load]), np.array([0.0]))
        assert mean[0] == pytest.approx(np.mean(waits), rel=0.15)  # 0.4 to 8 % when written


def test_scaled_tail_is_that_of_the_error_function():
    for x in (0.0, 0.3, 1.0, 3.0):
        assert scaled_tail(np.array([x]))[0] == pytest.approx(math.exp(x * x) * math.erfc(x), rel=1e-6)


def test_a_bulk_is_not_a_queue_of_its_batches():
    """20 batches of 2 ms wait until a poll, load 0.9. A G/G/1 queue with these gaps predicts 171 ms; the mean wait in the bulk is 19 ms."""
    gap_s = 20 * 0.002 / 0.9
    as_batches, _ = queue_wait(np.array([gap_s / 20]), 19.0, np.array([0.002]), np.array([0.0]))
    job = Job(map=Step(per_batch_ns=0, per_row_ns=1), update=Step(per_batch_ns=2e6, per_row_ns=0.001), row_bytes=1e-9, sent_bytes=1e-9)

    found = latency(job, Cluster(cores=8, bandwidth_bytes_per_s=1e12), setting(20, 1, 1, gap_s, gap_s), 20_000)

    assert as_batches[0] == pytest.approx(0.171, abs=0.001)
    assert found.phase_means_s[10] == pytest.approx(0.019, abs=0.001)


def test_batches_have_a_cost_of_their_own_so_short_intervals_run_away():
    """Table 4: intervals of 10 ms and 10 ms give two of three workloads unbounded latency. The formula u = m u_t cannot show this."""
    free = Job(map=Step(per_batch_ns=0, per_row_ns=8000), update=Step(per_batch_ns=0, per_row_ns=700), rows_out=10)
    short = setting(maps=4, updates=4, exchange_s=0.01, poll_s=0.01)

    assert math.isfinite(float(latency(free, CLUSTER, short, 500_000).mean_s))
    assert math.isinf(float(latency(WORDS, CLUSTER, short, 1_500_000).mean_s))
    assert math.isfinite(float(latency(WORDS, CLUSTER, setting(maps=4, updates=4), 1_500_000).mean_s))


def test_the_keys_of_a_window_are_finalised_one_after_the_other():
    """Section 3.3: E = (1 + 1/k)(t2 - t1) / 2, Var = (1 - 1/k^2)(t2 - t1)^2 / 12."""
    for keys in (1.0, 4.0, 1000.0):
        job = Job(map=WORDS.map, update=WORDS.update, finalising=Finalising(keys=keys, per_key_ns=1e6))
        last = latency(job, CLUSTER, setting(1, 1, 1), 10_000).parts[-1]
        whole_s = keys * 1e6 / 1e9

        assert last.mean_s == pytest.approx((1 + 1 / keys) * whole_s / 2)
        assert last.variance == pytest.approx((1 - 1 / keys**2) * whole_s**2 / 12)


def test_the_latest_of_many_senders_is_that_of_order_statistics():
    """Section 3.3: mean + a * deviation, variance (a' * deviation)^2; a and a' are constants of the largest of n normal variables."""
    for count in (2, 20, 200):
        one = Part(6, Kind.NORMAL, np.array(5.0), np.array(4.0))
        found = greatest([one], np.array(float(count)))
        a, a_prime = largest_of_normals(count)

        assert found.mean_s == pytest.approx(5 + 2 * a, rel=0.01)
        assert math.sqrt(found.variance) == pytest.approx(2 * a_prime, rel=0.05)
    even = greatest([Part(6, Kind.UNIFORM, np.array(0.5), np.array(1 / 12))], np.array(20.0))
    assert even.mean_s == pytest.approx(20 / 21, rel=0.06)  # the normal constants would give 1.04, above the greatest value


def test_quantiles_are_normal_or_cantelli_s():
    found = latency(WORDS, CLUSTER, setting(), 300_000)
    mean, deviation = float(found.mean_s), float(found.deviation_s)

    assert found.normal_quantile_s(0.99) == pytest.approx(NormalDist(mean, deviation).inv_cdf(0.99))
    assert found.cantelli_quantile_s(0.99) == pytest.approx(mean + deviation * math.sqrt(99))


def test_cumulants_give_the_quantile_of_what_is_not_normal():
    two = [Part(6, Kind.UNIFORM, np.array(0.5), np.array(1 / 12))] * 2
    exact = 2 - math.sqrt(2 * 0.01)

    found = float(cornish_fisher(np.sum([one.cumulants for one in two], axis=0), 0.99))

    assert found == pytest.approx(exact, rel=0.025)
    assert 1 + 2.326 * math.sqrt(1 / 6) > exact * 1.04  # a normal distribution would be off by over 4 %


@pytest.mark.parametrize("poll_s", [0.0, 0.2])
def test_what_is_convolved_is_the_quantile_and_chernoff_s_bound_is_above(poll_s: float):
    found = latency(WORDS, CLUSTER, setting(poll_s=poll_s), 700_000)
    whole = distribution(found)
    bound = chernoff_quantile_s(found, 0.99)

    assert whole.mean_s == pytest.approx(float(found.mean_s), rel=0.01)
    assert whole.quantile_s(0.99) < bound < float(found.cantelli_quantile_s(0.99)) / 1.5
    assert bound < 1.3 * whole.quantile_s(0.99)


def test_measured_phases_are_convolved():
    rng = np.random.default_rng(2)
    phases = [rng.exponential(5.0, 20_000), rng.uniform(0, 20, 20_000), rng.gamma(9, 1.0, 20_000)]
    digests = []
    for phase in phases:
        digest = Digest()
        for value in phase:
            digest.add(float(value), 1)
        digests.append([(GROWTH**number / 1000, GROWTH ** (number + 1) / 1000, float(rows)) for number, rows in digest.buckets])

    found = of_histograms(digests)

    for share in (0.5, 0.9, 0.99):
        assert 1000 * found.quantile_s(share) == pytest.approx(np.quantile(sum(phases), share), rel=0.03)
    with pytest.raises(ShapeError, match="without a measured row"):
        of_histograms([digests[0], ()])


@pytest.mark.parametrize(
    ("chosen", "rate"),
    [
        (Setting(nodes=4, maps=2, updates=2, pace_s=0.005, exchange_s=0.2, poll_s=0.2), 500_000),
        (Setting(nodes=4, maps=4, updates=4, pace_s=0.005, exchange_s=0.1, poll_s=0.05), 700_000),
        (Setting(nodes=4, maps=3, updates=2, pace_s=0.005, exchange_s=0.1), 500_000),
    ],
)
def test_the_model_is_near_virtual_time(chosen: Setting, rate: float):
    """Figure 6 (a, b, d, e): the paper's mean is within 15 % in 31 of 34 runs, its 99th percentile within 20 % in 19 of 22."""
    seen = simulate(HOT, CLUSTER, chosen, rate, 2.0, np.random.default_rng(5), settling_s=1.0)
    found = latency(HOT, CLUSTER, setting(chosen.nodes, chosen.maps, chosen.updates, chosen.exchange_s, chosen.poll_s), rate)

    assert found.mean_s == pytest.approx(seen.mean_s, rel=0.08)  # within 4 % when written
    assert distribution(found).quantile_s(0.99) == pytest.approx(seen.quantile_s(0.99), rel=0.08)
    measured = seen.phases_s.mean(axis=0)
    for phase in np.flatnonzero(measured > 0.005):
        assert found.phase_means_s[phase] == pytest.approx(measured[phase], rel=0.2)  # the senders' phases are random, once per run


def test_windows_are_near_virtual_time():
    job = Job(
        **{**{field: getattr(WORDS, field) for field in WORDS.__struct_fields__}, "finalising": Finalising(keys=200_000, per_key_ns=5000)}
    )
    chosen = Setting(nodes=4, maps=2, updates=2, pace_s=0.005, exchange_s=0.2, poll_s=0.05, window_s=1.0)
    seen = simulate(job, CLUSTER, chosen, 400_000, 6.0, np.random.default_rng(5), settling_s=0.0)
    found = latency(job, CLUSTER, setting(4, 2, 2, 0.2, 0.05), 400_000)

    assert found.mean_s == pytest.approx(seen.mean_s, rel=0.1)


def test_hot_keys_make_their_instances_late():
    hot = Job(map=WORDS.map, update=WORDS.update, rows_out=10, sent_bytes=20, hot_shares=(0.03, 0.02))

    assert dealt_shares((0.3, 0.1), 4).sum() == pytest.approx(1)
    assert dealt_shares((0.3, 0.1), 4)[0] == pytest.approx(0.3 + 0.6 / 4)
    assert latency(hot, CLUSTER, setting(), 600_000).load > latency(WORDS, CLUSTER, setting(), 600_000).load
    assert latency(hot, CLUSTER, setting(), 600_000).mean_s > latency(WORDS, CLUSTER, setting(), 600_000).mean_s


# ------------------------------------------------------------------------------------------------------------------ planning


def test_the_rate_falls_with_the_bound_and_rises_with_the_nodes():
    """Section 3.1."""
    by_bound = [greatest_rates(WORDS, CLUSTER, setting(updates=3), Wanted(latency_s=bound))[0] for bound in (0.22, 0.25, 0.3, 0.5)]
    by_nodes = [best.rate_max for nodes in (1, 2, 4, 8) if (best := best_of(WORDS, CLUSTER, nodes, Wanted(latency_s=0.3)))]

    assert by_bound == sorted(by_bound)
    assert by_bound[0] < by_bound[-1]
    assert by_nodes == sorted(by_nodes)
    assert len(by_nodes) == 4


def test_a_plan_has_the_least_nodes_that_carry_the_rate():
    wanted = Wanted(latency_s=0.3, rate=1_000_000, quantile=0.99)

    plan = plan_resources(WORDS, CLUSTER, wanted)

    assert plan.best.rate_max >= 1_000_000
    less = best_of(WORDS, CLUSTER, plan.best.nodes - 1, wanted)
    assert less is None or less.rate_max < 1_000_000
    assert plan.latency_s <= 0.3


def test_a_plan_is_near_the_best_of_all_settings():
    wanted = Wanted(latency_s=0.1)
    best = best_of(WORDS, CLUSTER, 4, wanted)
    counts = np.arange(1.0, 9.0)
    maps, updates, exchange = (one.ravel() for one in np.meshgrid(counts, counts, np.geomspace(0.005, 0.2, 40), indexing="ij"))

    rates = greatest_rates(WORDS, CLUSTER, setting(4, maps, updates, exchange, 0.0), wanted)  # type: ignore[arg-type]

    assert best is not None
    assert best.rate_max >= 0.985 * rates.max()


@pytest.mark.parametrize(
    ("wanted", "job", "said"),
    [
        (Wanted(latency_s=0.003), WORDS, "the least that can be had is"),
        (Wanted(latency_s=0.5, rate=1e8), WORDS, "do not fit 100 nodes within 500 ms: at most"),
        (
            Wanted(latency_s=0.5, rate=1e6),
            Job(map=WORDS.map, update=WORDS.update, rows_out=10, hot_shares=(0.2,)),
            "one key has 20.0% of all rows",
        ),
    ],
)
def test_what_cannot_be_planned_is_said(wanted: Wanted, job: Job, said: str):
    with pytest.raises(ConfigError, match=said):
        plan_resources(job, CLUSTER, wanted)


def test_what_makes_no_sense_is_refused():
    for wrong in (
        {"latency_s": 0.0},
        {"latency_s": 1.0, "quantile": 99.0},
        {"latency_s": 1.0, "rate": -1.0},
        {"latency_s": 1.0, "nodes_max": 0},
    ):
        with pytest.raises(ConfigError):
            Wanted(**wrong)
    with pytest.raises(ShapeError):
        latency(WORDS, CLUSTER, setting(nodes=0), 1.0)
    with pytest.raises(ShapeError):
        dealt_shares((0.9, 0.9), 4)


def test_what_is_used_up_has_no_latency():
    """Sixteen threads share four cores: no single thread is overloaded, but the cores are."""
    many = setting(1, 8, 8, 0.1, 0.0)
    most = float(saturation_rate(WORDS, CLUSTER, many))

    assert math.isinf(float(latency(WORDS, CLUSTER, many, 1.01 * most).mean_s))
    assert math.isfinite(float(latency(WORDS, CLUSTER, many, 0.9 * most).mean_s))


def test_a_bound_of_a_quantile_is_harder_to_keep():
    mean, tail = (best_of(WORDS, CLUSTER, 4, Wanted(latency_s=0.05, quantile=share)) for share in (None, 0.99))

    assert mean is not None
    assert tail is not None
    assert tail.exchange_s < mean.exchange_s
    assert tail.rate_max < mean.rate_max


def test_a_map_may_cost_nothing():
    free = msgspec.structs.replace(WORDS, map=Step(per_batch_ns=0.0, per_row_ns=0.0))

    found = latency(free, CLUSTER, setting(), 100_000)

    assert found.phase_means_s[4] == 0
    assert found.mean_s == pytest.approx(float(found.phase_means_s.sum()))


@pytest.mark.parametrize("job", [WORDS, HOT, SINGLY])
def test_the_rate_that_uses_something_up_is_where_its_use_is_one(job: Job):
    """Each thread has its own core, so threads do not slow each other down."""
    wide = Cluster(cores=64)
    for chosen in (setting(), setting(1, 1, 8, 0.02, 0.0), setting(4, 8, 1, 0.5, 0.1)):
        most = float(saturation_rate(job, wide, chosen))

        assert float(latency(job, wide, chosen, most).load) == pytest.approx(1.0)
