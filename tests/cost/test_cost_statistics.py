"""Statistics by signature: measured here, reported by peers, kept over a restart."""

import math

import msgspec
import numpy as np
import pytest

from sbon.cost.figure import Edge, Source
from sbon.cost.statistics import OTHERS, PEERS_MAX, PER_PEER_MAX, OperatorFit, OperatorStatistics, StatisticsBook, middle
from sbon.errors import ShapeError
from sbon.execution.port_costs import PortCosts


def operator(
    *, per_row_ns: float = 20.0, share: float = 0.25, batches: int = 100, signature: str = "map", ports: int = 1, seed: int = 0
) -> OperatorFit:
    """Returns the fit of an operator whose port n costs n times `per_row_ns` per row, counted from 1."""
    fit = OperatorFit(signature, ports)
    rng = np.random.default_rng(seed)
    for _ in range(batches):
        for number, port in enumerate(fit.ports, 1):
            rows = int(rng.integers(100, 10_000))
            port.took(rows, int(rng.binomial(rows, share)), (50_000 + number * per_row_ns * rows) * rng.uniform(0.9, 1.1), at_s=5.0)
    return fit


def told(**changes: float) -> dict[str, object]:
    """Returns the report of a peer, as decoded from a message."""
    plain = msgspec.to_builtins(operator(**changes).statistics(5.0))  # type: ignore[arg-type]
    assert isinstance(plain, dict)
    return plain


def test_each_port_has_its_own_law_and_selectivity():
    found = operator(ports=2).statistics(5.0)

    assert [port.law.per_row_ns for port in found.ports] == [pytest.approx(20, rel=0.1), pytest.approx(40, rel=0.1)]
    for port in found.ports:
        assert port.selectivity.low <= 0.25 <= port.selectivity.high
        assert port.selectivity.error < 0.02
        assert port.service is not None
    assert found.source is Source.MEASURED
    assert found.samples == pytest.approx(100, abs=15)


def test_moments_of_the_service_time_are_those_of_the_batches():
    fit = OperatorFit("map", 1, speed=2.0)
    for ns in (100.0, 300.0, 800.0):
        fit.ports[0].took(10, 10, ns, at_s=0.0)
    service = fit.statistics(0.0).ports[0].service

    assert service is not None
    assert service.first == pytest.approx(2 * (100 + 300 + 800) / 3, rel=2e-3)
    assert service.third == pytest.approx(8 * (100**3 + 300**3 + 800**3) / 3, rel=3e-3)


def test_a_selectivity_of_no_row_out_has_an_upper_bound():
    fit = OperatorFit("map", 1)
    fit.ports[0].took(1_000, 0, 1e5, at_s=0.0)
    found = fit.statistics(0.0).ports[0].selectivity

    assert (found.value, found.low, found.high) == (0.0, 0.0, 0.003)


def test_the_error_of_a_share_of_rows_is_that_of_rows_that_pass_or_not():
    """Lets all, four fifths or half of 2,000 rows pass, drawn one by one, in batches of 4."""
    rng = np.random.default_rng(3)
    for share in (0.5, 0.8, 1.0):
        fit = OperatorFit("map", 1)
        for _ in range(500):
            fit.ports[0].took(4, int(rng.binomial(4, share)), 1e5, at_s=0.0)
        found = fit.statistics(0.0).ports[0].selectivity
        rows = fit.ports[0]._sums[0]

        deviation = max(math.sqrt(share * (1 - share) / rows), 1.5 / rows)
        assert (found.high - found.value) / 2 == pytest.approx(deviation, rel=0.15)
        assert found.low < share < found.high


def test_an_operator_that_gives_several_rows_for_one_is_known_as_well_as_rows_are_counted():
    """A single batch does not tell whether each row gives two, or some give many."""
    fit = OperatorFit("map", 1)
    fit.ports[0].took(100, 200, 1e5, at_s=0.0)
    found = fit.statistics(0.0).ports[0].selectivity

    assert found.high - found.value == pytest.approx(2 * math.sqrt(200) / 100)


def test_a_selectivity_that_comes_in_bursts_is_less_certain():
    """Windows give no rows for most batches, and all rows for one."""
    even, bursts = OperatorFit("map", 1), OperatorFit("map", 1)
    for number in range(50):
        even.ports[0].took(1_000, 100, 1e5, at_s=0.0)
        bursts.ports[0].took(1_000, 1_000 if number % 10 == 9 else 0, 1e5, at_s=0.0)
    evenly, burst = (fit.statistics(0.0).ports[0].selectivity for fit in (even, bursts))

    assert burst.value == pytest.approx(evenly.value, rel=0.05)
    assert burst.error > 5 * evenly.error


def test_an_operator_without_a_row_rests_on_rules_and_not_on_zero():
    found = OperatorFit("map", 1).statistics(0.0)

    assert found.source is Source.RULE
    assert found.samples == 0
    assert found.ports[0].selectivity.low > 0
    assert found.ports[0].flow(Edge.LOW, 100).per_row_ns > 0


def test_the_flow_of_a_port_costs_its_bound():
    port = operator(batches=40).statistics(5.0).ports[0]
    low, high = port.flow(Edge.LOW, 500), port.flow(Edge.HIGH, 500)

    assert low.per_batch_ns + 500 * low.per_row_ns == pytest.approx(port.law.cost_ns(500).low)
    assert high.per_batch_ns + 500 * high.per_row_ns == pytest.approx(port.law.cost_ns(500).high)
    assert low.selectivity < port.selectivity.value < high.selectivity


def test_state_grows_with_the_rate_and_rows_have_bytes():
    fit = operator()
    fit.state(1_000_000, 500.0, at_s=5.0)
    fit.sent(100, 2_400)
    found = fit.statistics(5.0)

    doubled = found.state_at(1_000.0)
    assert doubled is not None
    assert doubled.value == 2_000_000
    assert found.row_bytes is not None
    assert found.row_bytes.value == 24.0
    assert operator().statistics(5.0).state_at(1.0) is None


def book_with_own_batches(batches: int) -> StatisticsBook:
    book = StatisticsBook()
    port = book.fit("map", 1, now=0.0).ports[0]
    for number in range(batches):
        port.took(1_000 + number, 500, 50_000 + 20 * (1_000 + number), at_s=5.0)
    return book


def test_own_batches_come_before_what_peers_tell_and_what_is_kept():
    book = book_with_own_batches(100)
    assert book.told("peer", told(per_row_ns=900.0), 5.0)
    book.restore([operator(per_row_ns=700.0).statistics(5.0)], 5.0)

    found = book.of("map", 5.0)

    assert found is not None
    assert found.ports[0].law.cost_ns(1_000).value == pytest.approx(70_000, rel=0.05)


def test_a_few_own_batches_do_not_replace_what_is_kept_and_are_all_there_is_without():
    few, kept = book_with_own_batches(3), operator(per_row_ns=700.0).statistics(5.0)
    alone = few.of("map", 5.0)
    assert alone is not None
    assert alone.samples == 3
    few.restore([kept], 5.0)

    found = few.of("map", 65.0)

    assert found is not None
    assert found.ports[0].law.per_row_ns == kept.ports[0].law.per_row_ns
    assert found.ports[0].law.age_s == 60.0
    assert found.ports[0].selectivity.high > kept.ports[0].selectivity.high


def test_of_what_peers_tell_the_middle_one_counts():
    book = StatisticsBook()
    for peer, per_row_ns in (("a", 20.0), ("b", 22.0), ("liar", 1e9)):
        assert book.told(peer, told(per_row_ns=per_row_ns), 0.0)

    found = book.of("map", 0.0)

    assert found is not None
    assert found.ports[0].law.per_row_ns == pytest.approx(22, rel=0.1)
    assert book.of("other", 0.0) is None
    book.forget("liar")
    book.forget("b")
    after = book.of("map", 0.0)
    assert after is not None
    assert after.ports[0].law.per_row_ns == pytest.approx(20, rel=0.1)


def test_a_new_fit_begins_with_what_is_kept():
    book = StatisticsBook()
    book.restore([operator(per_row_ns=700.0).statistics(5.0)], 5.0)
    begun = book.fit("map", 1, now=5.0)
    law = begun.statistics(5.0).ports[0].law

    assert law.per_row_ns == pytest.approx(700, rel=0.1)
    assert law.cost_ns(1_000).error > 0.5
    for _ in range(100):
        begun.ports[0].took(1_000, 500, 100_000, at_s=6.0)
    assert begun.statistics(6.0).ports[0].law.cost_ns(1_000).value == pytest.approx(100_000, rel=0.05)


def test_a_new_fit_begins_with_what_an_operator_that_is_alike_has_cost():
    book = StatisticsBook()
    first = book.fit("map of one source", 1, now=5.0, alike="map")
    for rows in (10, 100, 1_000) * 40:
        first.ports[0].took(rows, rows, 20_000 + 1_000 * rows, at_s=5.0)

    later = book.fit("map of another source", 1, now=5.0, alike="map")
    other = book.fit("another map", 1, now=5.0, alike="another")
    for fit in (later, other):
        for _ in range(100):  # batches of one size do not tell the fixed cost from the cost of rows
            fit.ports[0].took(1_000, 1_000, 20_000 + 1_000 * 1_000, at_s=6.0)

    assert later.statistics(6.0).ports[0].law.per_row_ns == pytest.approx(1_000, rel=0.02)
    assert other.statistics(6.0).ports[0].law.per_row_ns < 600
    assert book.fit("one more", 1, now=6.0).statistics(6.0).source is Source.RULE


def test_a_join_tells_its_rows_in_from_its_rows_out_and_at_which_rates_they_met():
    fit = OperatorFit("join", 2)
    rng = np.random.default_rng(1)
    costs = PortCosts(fit, pairs=True)
    for second in range(40):
        for _ in range(10):
            for port, rows in enumerate((100, 50)):
                out = int(rng.integers(0, 2_000))
                costs.took(port, rows, out, 10_000 + 300 * rows + 70 * out)
        costs.sample(float(second))
    port = fit.statistics(40.0).ports[0]
    flow, per_row_out_ns = port.flow_of_join(Edge.EXPECTED, 100.0)

    assert per_row_out_ns == pytest.approx(70, rel=0.05)
    assert flow.per_batch_ns + 100 * flow.per_row_ns == pytest.approx(10_000 + 300 * 100, rel=0.1)
    assert [one.rows_per_s for one in fit.statistics(40.0).ports] == [pytest.approx(1_000), pytest.approx(500)]


def test_a_pause_is_no_low_rate():
    fit = OperatorFit("map", 1)
    costs = PortCosts(fit)
    for second in (0.0, 1.0, 2.0, 3.0, 1_000.0, 1_001.0, 1_002.0):
        costs.took(0, 100, 100, 10_000)
        costs.sample(second)

    assert fit.statistics(0.0).ports[0].rows_per_s == pytest.approx(100)


def test_what_is_kept_survives_as_json():
    book = book_with_own_batches(100)
    text = msgspec.json.encode(book.kept(5.0))
    other = StatisticsBook()
    other.restore(msgspec.json.decode(text, type=list[OperatorStatistics]), 0.0)

    assert other.of("map", 0.0) == book.of("map", 5.0)


def deeply(report: dict[str, object], path: tuple[object, ...], value: object) -> dict[str, object]:
    """Returns a copy of the report with another value at one place."""
    copied = msgspec.json.decode(msgspec.json.encode(report))
    place = copied
    for step in path[:-1]:
        place = place[step]
    place[path[-1]] = value
    assert isinstance(copied, dict)
    return copied


LAW = ("ports", 0, "law")
FREE = [0.0] * 5


@pytest.mark.parametrize(
    ("path", "value", "reason"),
    [
        ((*LAW, "coefficients"), FREE, "absurd cost"),
        ((*LAW, "coefficients", 2), 1e300, "absurd cost"),
        ((*LAW, "coefficients", 2), -5.0, "not finite or negative"),
        ((*LAW, "coefficients", 0), math.nan, "not finite or negative"),
        ((*LAW, "coefficients", 0), math.inf, "not finite or negative"),
        ((*LAW, "coefficients"), [1.0], "not finite or negative"),
        ((*LAW, "covariance", 0, 0), 1e300, "absurd cost"),
        ((*LAW, "covariance", 0, 1), -1e300, "absurd cost"),
        ((*LAW, "shares"), [1e308], "absurd cost"),
        ((*LAW, "scatter"), 1e9, "absurd cost"),
        ((*LAW, "samples"), 1e17, "absurd samples or age"),
        ((*LAW, "age_s"), 1e12, "absurd samples or age"),
        ((*LAW, "source"), "oracle", "malformed"),
        (("ports", 0, "selectivity", "high"), 1e9, "absurd selectivity"),
        (("ports", 0, "selectivity", "low"), 5.0, "not finite or negative"),
        (("ports", 0, "service", "second"), 0.0, "not finite or negative"),
        (("ports", 0, "open_windows"), math.inf, "absurd windows"),
        (("ports",), [], "absurd shape"),
        (("signature",), "x" * 2000, "absurd shape"),
        (("signature",), 7, "malformed"),
        (("state_rows_per_s",), math.nan, "absurd state"),
        (("row_bytes", "high"), 1e12, "absurd row"),
        (("state_bytes", "high"), 1e18, "absurd state"),
    ],
)
def test_a_hostile_figure_is_refused_and_counted(path: tuple[object, ...], value: object, reason: str):
    fit = operator()
    fit.state(1_000, 10.0, at_s=5.0)
    fit.sent(10, 100)
    report = msgspec.to_builtins(fit.statistics(5.0))
    book = StatisticsBook()
    assert book.told("honest", report, 0.0)
    # JSON has no NaN, so the value is put into the copy after decoding.
    assert not book.told("peer", deeply(report, path, value), 0.0)

    assert book.refused == {("peer", reason): 1}
    for nonsense in (None, 5, [], {"signature": "map"}):
        assert not book.told("peer", nonsense, 0.0)
    assert book.refused["peer", "malformed"] == (5 if reason == "malformed" else 4)


def test_one_peer_cannot_fill_the_book_nor_many_the_counters():
    book = StatisticsBook()
    report = told()
    for number in range(PER_PEER_MAX + 3):
        assert book.told("peer", report | {"signature": f"s{number}"}, 0.0)
    for number in range(PEERS_MAX + 5):
        book.told(f"p{number}", None, 0.0)

    assert [book.of(f"s{number}", 0.0) is None for number in (0, 1, 2, 3, PER_PEER_MAX + 2)] == [True, True, True, False, False]
    assert book.refused[OTHERS, "malformed"] == 5
    assert book.told("peer", report | {"signature": "s1"}, 0.0)
    book.forget("peer")
    assert book.told("peer", report | {"signature": "new"}, 0.0)


def test_a_damaged_file_is_left_out():
    good = operator().statistics(0.0)
    bad = msgspec.structs.replace(good, signature="x" * 2000)
    book = StatisticsBook()
    book.restore([bad, good], 0.0)

    assert book.of("map", 0.0) is not None
    assert book.refused == {("kept", "absurd shape"): 1}


def test_the_middle_of_nothing_and_an_operator_without_ports_are_refused():
    with pytest.raises(ShapeError):
        middle([])
    with pytest.raises(ShapeError):
        OperatorFit("map", 0)
