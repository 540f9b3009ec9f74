"""Every number of the report equals the one that plain polars and loops compute from the same rows."""

import math
import statistics
from datetime import timedelta

import polars as pl
import pytest

from sbon.analysis.quantiles import MILLISECONDS, RELATIVE_ERROR
from tests.analysis.twin import Twin, digest_quantile, nearest_rank

STEPS_S = (10, 20, 30, 45, 60, 90, 120, 180, 300, 450, 600, 900, 1200, 1800)


@pytest.fixture(scope="module")
def twin(analysed) -> Twin:
    return Twin(analysed.log, analysed.numbers["log"]["moment_s"])


@pytest.fixture(scope="module")
def costs(twin):
    return twin.costs()


def test_log_is_counted_and_spanned(analysed, twin):
    log = analysed.numbers["log"]
    kinds = {path.name.removeprefix("kind=") for path in analysed.log.glob("**/telemetry/kind=*")}
    frames = {kind: twin.rows(kind) for kind in kinds}
    common = pl.concat([frame.select("time", "agent", "start", "sequence") for frame in frames.values()])

    assert log["rows_by_kind"] == {kind: frame.height for kind, frame in sorted(frames.items())}
    assert log["rows"] == common.height
    assert (log["first"], log["last"]) == (common["time"].min().isoformat(), common["time"].max().isoformat())
    assert (log["agents"], log["runs"]) == (common["agent"].n_unique(), common["start"].n_unique())
    assert (log["rows_twice_min"], log["rows_missing"]) == (0, 0)


def test_coordinates(analysed, twin):
    found = analysed.numbers["coordinates"]
    errors = twin.errors()
    pairs, violated, savings = twin.triangles()

    assert found["probes"] == len(errors)
    assert found["median_relative_error"] == pytest.approx(nearest_rank(errors, 0.5), abs=RELATIVE_ERROR.width / 2)
    assert found["p90_relative_error"] == pytest.approx(nearest_rank(errors, 0.9), abs=RELATIVE_ERROR.width / 2)
    assert found["drift_ms_per_s"] == pytest.approx(twin.drift())
    assert (found["pairs"], found["triangle_pairs"]) == (pairs, pairs)
    assert found["triangle_violations"] == pytest.approx(violated / pairs)
    assert found["detour_saving"] == pytest.approx(pl.Series(savings).median())
    assert found["converged_s"] == twin.converged(found["median_relative_error"], STEPS_S)


def test_network_usage(analysed, twin, costs):
    found = analysed.numbers["network_usage"]
    queries, totals, pairs = costs
    known = [one for one in queries if all(math.isfinite(value) for value in one.values() if isinstance(value, float))]
    moments = {one["moment"] for one in known}

    def mean(name: str) -> float:
        return sum(one[name] for one in known) / len(moments)

    assert found["queries"] == len({one["query"] for one in queries})
    assert found["links"] == twin.rows("links")["link"].n_unique()
    assert (found["query_moments"], found["query_moments_left_out"]) == (len(queries), len(queries) - len(known))
    assert found["mean_usage_bytes"] == pytest.approx(sum(v for v in totals.values() if math.isfinite(v)) / len(totals))
    assert found["mean_usage_alone_bytes"] == pytest.approx(mean("usage"))
    for name in ("unmoved", "producer", "consumer", "optimal"):
        assert found[f"mean_{name}_bytes"] == pytest.approx(mean(name)), name
        assert found[f"over_{name}"] == pytest.approx(mean("usage") / mean(name)), name
    for name, times in pairs.items():
        assert found[f"latencies_{name}"] == pytest.approx(times / sum(pairs.values())), name
    assert mean("optimal") <= mean("usage")


def test_migrations(analysed, twin, costs):
    found = analysed.numbers["migrations"]
    moves = twin.rows("migrations")
    done = moves.filter("committed").sort("ended_at")
    flaps, came = 0, {}
    for operator, source, target, at in done.select("operator", "from_node", "to_node", "ended_at").iter_rows():
        flaps += operator in came and came[operator][0] == target and at - came[operator][1] <= timedelta(minutes=30)
        came[operator] = (source, at)
    before = done.filter(pl.col("usage_before_bytes") > 0)

    assert (found["committed"], found["abandoned"], found["flaps"]) == (done.height, moves.height - done.height, flaps)
    assert found["operators_moved"] == done["operator"].n_unique()
    assert found["median_pause_ms"] == pytest.approx(done["pause_ms"].median())
    assert found["p90_pause_ms"] == pytest.approx(done["pause_ms"].quantile(0.9, "nearest"))
    assert found["max_pause_ms"] == pytest.approx(done["pause_ms"].max())
    assert found["median_duration_ms"] == pytest.approx(done["duration_ms"].median())
    assert found["median_state_bytes"] == done["state_bytes"].median()
    assert found["median_saving_predicted"] == pytest.approx((1 - before["usage_after_bytes"] / before["usage_before_bytes"]).median())
    assert found["reviews"] == dict(twin.rows("reviews").group_by("verdict").len().iter_rows())

    queries = [one for one in costs[0] if all(math.isfinite(one[name]) for name in ("usage", "unmoved", "delay_ms", "delay_unmoved_ms"))]
    sums = {}
    for one in queries:
        own = sums.setdefault(one["query"], [0, 0.0, 0.0, 0.0, 0.0])
        for place, value in enumerate((1, one["usage"], one["unmoved"], one["delay_ms"], one["delay_unmoved_ms"])):
            own[place] += value
    times = {}
    for names in done["queries"].to_list():
        for name in names:
            times[name] = times.get(name, 0) + 1
    moved = [name for name in times if name in sums and sums[name][2] > 0]
    usage, unmoved, delay, delay_unmoved = (sum(sums[name][place] / sums[name][0] for name in moved) for place in (1, 2, 3, 4))
    assert found["queries_moved"] == len(moved)
    assert found["migrations_per_query"] == pytest.approx(sum(times[name] for name in moved) / len(moved))
    assert found["queries_better"] == pytest.approx(sum(sums[name][1] < sums[name][2] for name in moved) / len(moved))
    assert found["usage_change"] == pytest.approx(usage / unmoved - 1)
    assert found["delay_change"] == pytest.approx(delay / delay_unmoved - 1)


def test_recoveries(analysed, twin):
    found = analysed.numbers["recoveries"]
    rows = twin.rows("recoveries").to_dicts()
    operators = [one for row in rows for one in row["operators"]]
    seconds = sorted(row["duration_ms"] / 1000 for row in rows)

    assert (found["recoveries"], found["operators"]) == (len(rows), len(operators))
    assert found["queries"] == len({row["query"] for row in rows})
    assert found["again"] == sum(row["attempts"] > 1 for row in rows)
    assert found["median_s"] == pytest.approx(statistics.median(seconds))
    assert found["max_s"] == pytest.approx(seconds[-1])
    assert found["rows_lost"] == sum(row["rows_lost"] for row in rows)
    assert found["inexact"] == sum(not row["rows_exact"] for row in rows)
    assert found["windows_lost"] == sum(row["windows_lost"] or 0 for row in rows)
    assert found["states_lost"] == sum(one["state_lost"] for one in operators)
    assert found["moved_share"] == pytest.approx(sum(one["from_node"] != one["to_node"] for one in operators) / len(operators))
    # A phase that was not reached lasts 0 s; the phase before it lasts until the next one reached.
    instants = [[row[name] for name in ("placing_at", "fencing_at", "making_at", "beginning_at", "recovered_at")] for row in rows]
    for place, name in enumerate(("placing", "fencing", "making", "beginning")):
        took = []
        for told in instants:
            begin = next(at for at in told[place:] if at is not None)
            end = next(at for at in told[place + 1 :] if at is not None)
            took.append((end - begin).total_seconds())
        assert found[f"median_{name}_s"] == pytest.approx(statistics.median(took)), name
    for one in {one["from_node"] for one in operators}:
        assert f">{one}</td>" in analysed.html.partition("By host that was lost")[2].partition("</table>")[0]


def test_effect_of_each_migration_as_measured(analysed, twin):
    found = analysed.numbers["migrations"]
    links = twin.rows("links").filter(pl.col("latency_ms").is_not_null())
    changes = []
    for operator, asked, ended in twin.rows("migrations").filter("committed").select("operator", "asked_at", "ended_at").iter_rows():
        mine = links.filter((pl.col("source") == operator) | (pl.col("target") == operator))
        usages = []
        for begin, end in ((asked - timedelta(seconds=30), asked), (ended + timedelta(seconds=15), ended + timedelta(seconds=45))):
            inside = mine.filter((pl.col("time") >= begin) & (pl.col("time") < end))
            each = inside.group_by("link").agg((pl.col("bytes_per_s").mean() * pl.col("latency_ms").mean() / 1000).alias("usage"))
            usages.append(each["usage"].sum() if each.height else None)
        if None not in usages and usages[0] > 0:
            changes.append(usages[1] / usages[0] - 1)

    assert found["measured"] == len(changes)
    assert found["median_saving_measured"] == pytest.approx(-pl.Series(changes).median())
    assert found["share_that_saved"] == pytest.approx(sum(change < 0 for change in changes) / len(changes))


def test_sharing(analysed, twin):
    found = analysed.numbers["sharing"]
    carried, saved, saved_usage = [], [], []
    shared = set()
    latencies = twin.latencies()
    for (moment,), rows in twin.rows("links").group_by("moment"):
        now_carried = now_saved = now_saved_usage = 0.0
        for (_link,), own in rows.group_by("link"):
            for agent, there, queries, rate in own.select("agent", "target_node", "queries", "bytes_per_s").iter_rows():
                if len(queries) > 1:
                    shared.add(_link)
                if agent != there:
                    now_carried += rate / own.height
                    now_saved += rate / own.height * (len(queries) - 1)
                    if len(queries) > 1:
                        one_way_ms = latencies[moment][1].get(frozenset((agent, there)), math.inf)
                        now_saved_usage += rate / own.height * (len(queries) - 1) * one_way_ms / 1000
        carried.append(now_carried)
        saved_usage.append(now_saved_usage)
        saved.append(now_saved)
    placed = [one for operators in twin.rows("placements")["operators"].to_list() for one in [operators]]

    assert found["carried_bytes_per_s"] == pytest.approx(sum(carried) / len(carried))
    assert found["saved_bytes_per_s"] == pytest.approx(sum(saved) / len(saved))
    assert found["saved_share"] == pytest.approx(sum(saved) / (sum(saved) + sum(carried)))
    assert found["saved_usage_bytes"] == pytest.approx(sum(saved_usage) / len(saved_usage))
    assert found["shared_links"] == len(shared)
    multicasts = [] if not any(analysed.log.glob("**/kind=multicasts")) else twin.rows("multicasts")["event"].to_list()
    assert (found["multicasts_made"], found["multicasts_folded"]) == (multicasts.count("made"), multicasts.count("folded"))
    assert found["queries_placed"] == len(placed)
    assert found["queries_with_reuse"] == sum(any(one["reused"] is not None for one in operators) for operators in placed)


def test_latencies(analysed, twin):
    found = analysed.numbers["latencies"]
    buckets = twin.digest()

    assert found["rows"] == sum(buckets.values()) == twin.rows("latencies")["rows"].sum()
    assert found["queries"] == twin.rows("latencies")["query"].n_unique()
    assert found["max_ms"] == twin.rows("latencies")["max_ms"].max()
    for name, share in (("p50_ms", 0.5), ("p90_ms", 0.9), ("p99_ms", 0.99)):
        assert found[name] == pytest.approx(min(digest_quantile(buckets, share), found["max_ms"])), name
        assert MILLISECONDS.half_width(found[name]) < 0.03 * found[name]


def test_operators(analysed, twin):
    found = analysed.numbers["operators"]
    rows = twin.rows("operators")
    each = rows.group_by("operator", "operator_kind").agg(
        pl.col("rows_per_s_in", "rows_per_s_out", "estimated_rows_per_s_out", "selectivity_estimated").mean(),
        pl.col("late_rows", "dropped_rows").max(),
    )
    rates = [
        out / expected for out, expected in each.select("rows_per_s_out", "estimated_rows_per_s_out").iter_rows() if expected and out > 0
    ]
    inner = each.filter(pl.col("operator_kind").is_in(["window", "map", "join", "union", "multicast"]) & (pl.col("rows_per_s_in") > 0))
    selectivities = [
        out / into / expected
        for into, out, expected in inner.select("rows_per_s_in", "rows_per_s_out", "selectivity_estimated").iter_rows()
        if expected and out
    ]

    assert found["operators"] == each.height
    assert (found["late_rows"], found["dropped_rows"]) == (each["late_rows"].sum(), each["dropped_rows"].sum())
    assert found["operators_with_late_rows"] == each.filter(pl.col("late_rows") > 0).height
    assert found["operators_failed"] == 0
    assert found["blocked_share"] == pytest.approx((rows["state"] == "blocked").mean())
    assert (found["rates_compared"], found["selectivities_compared"]) == (len(rates), len(selectivities))
    assert found["median_rate_ratio"] == pytest.approx(pl.Series(rates).median())
    assert found["median_selectivity_ratio"] == pytest.approx(pl.Series(selectivities).median())
    assert found["rates_near"] == pytest.approx(sum(0.5 <= ratio <= 2 for ratio in rates) / len(rates))
    assert found["selectivities_near"] == pytest.approx(sum(0.5 <= ratio <= 2 for ratio in selectivities) / len(selectivities))


def test_health(analysed, twin):
    found = analysed.numbers["health"]
    members = twin.rows("members")
    load = twin.rows("load")
    every = pl.concat(
        [twin.rows(kind).select("start", "agent", "time") for kind in ("probes", "load", "coordinates", "operators", "links", "members")]
    )
    failed = members.filter(pl.col("after") == "failed").sort("time")
    lost, calls = failed["member"].unique().to_list(), failed["time"]
    last = every.filter((pl.col("agent") == lost[0]) & (pl.col("time") < calls[0]))["time"].max()
    per_run = load.group_by("start").agg(pl.col("records_dropped").max())
    links = twin.rows("links")

    assert (found["crashes"], len(lost)) == (1, 1)
    assert found["median_detection_s"] == found["max_detection_s"] == pytest.approx((calls[0] - last).total_seconds())
    assert found["median_all_noticed_s"] == pytest.approx((calls[-1] - last).total_seconds())
    assert found["suspicions"] == members.filter(pl.col("after") == "suspect").height
    assert found["suspicions_refuted"] == members.filter((pl.col("before") == "suspect") & (pl.col("after") == "alive")).height
    assert found["failed_while_alive"] == 0
    assert found["batches_resent"] == links.group_by("link", "agent", "start").agg(pl.col("batches_resent").max())["batches_resent"].sum()
    assert found["stalled_share"] == pytest.approx(links["stalled"].mean())
    assert found["mean_cpu"] == pytest.approx(load["cpu"].mean())
    assert found["max_cpu"] == pytest.approx(load["cpu"].max())
    assert found["mean_cpu_waiting"] == pytest.approx(load["cpu_waiting"].mean())
    assert 0 <= found["mean_cpu"] <= found["max_cpu"] <= 1
    by_moment = load.group_by("moment", "agent").agg(pl.col("cpu").mean())
    assert found["busy_agents"] == by_moment.filter(pl.col("cpu") > 0.9)["agent"].n_unique()
    assert found["records_dropped"] == per_run["records_dropped"].sum()


def test_neither_log_passes_for_want_of_anything_to_count(analysed):
    """Checks that each log has rows for every section; otherwise the comparisons with the twin would be empty."""
    numbers = analysed.numbers
    for section, name in (
        ("coordinates", "probes"),
        ("coordinates", "drift_ms_per_s"),
        ("network_usage", "mean_usage_bytes"),
        ("network_usage", "mean_optimal_bytes"),
        ("migrations", "committed"),
        ("migrations", "measured"),
        ("sharing", "shared_links"),
        ("latencies", "rows"),
        ("operators", "selectivities_compared"),
        ("recoveries", "operators"),
        ("health", "crashes"),
        ("health", "suspicions"),
    ):
        assert numbers[section][name] > 0, (section, name)


def test_generated_log_has_the_rarer_things_too(analysed, twin, request):
    if analysed.log != request.getfixturevalue("generated"):
        return
    # With one sample in a moment, its mean, minimum and maximum would be equal.
    for kind, key in (("links", "link"), ("operators", "operator"), ("load", "agent"), ("coordinates", "agent")):
        several = twin.rows(kind).group_by("moment", key).len()["len"]
        assert several.median() > 1, kind
    numbers = analysed.numbers
    assert numbers["log"]["runs"] == numbers["log"]["agents"] + 1
    assert min(numbers["migrations"][name] for name in ("flaps", "queries_moved", "median_saving_predicted")) > 0
    assert min(numbers["recoveries"][name] for name in ("rows_lost", "inexact", "median_fencing_s")) > 0
    assert min(numbers["health"][name] for name in ("batches_resent", "stalled_share", "suspicions_refuted")) > 0
    assert min(numbers["network_usage"][name] for name in ("latencies_remembered", "query_moments_left_out")) > 0
    assert numbers["operators"]["late_rows"] > 0
