"""A splitter that asks a dealer: owners of turns, costs measured while the query runs, what the dealer is told, and its state."""

from dataclasses import replace

import numpy as np
import polars as pl
import pytest

from sbon.dealing.asking import Asking, dealer_of
from sbon.dealing.dealer import Silent
from sbon.dealing.instance_records import InstanceRecords, Setting
from sbon.dealing.measured import InstanceTold, Measured
from sbon.dealing.owners import TURNS_MAX, Known, Owners, noted, read_note
from sbon.errors import QueryError, RemoteProtocolError, StateError
from sbon.operators.asking_splitter import AskingSplitter
from sbon.operators.frames import polars_schema
from sbon.operators.match.log import NO_ROW, Log
from sbon.operators.match.operator import MatchRows
from sbon.operators.registry import build
from sbon.query.instances import sets_of
from sbon.query.options import Wishes
from sbon.query.params.matched import MatchParams
from sbon.query.params.streams import DEALERS, SplitParams, Turns, told_column
from sbon.types import IntArray
from tests.dealing.test_dealt_windows import EPISODE, MATCH, QUERIES, sink
from tests.query_worlds import lines, plan_of, run

S = 1_000_000
NOTHING = InstanceTold(0, 0, 0, 0.0)
BY_DEALER = ", dealer = 'round-robin', turn = '2 s'"
PARAMS = SplitParams(Turns("ts", 10, 25), 3, "opens", "round-robin", 1.0)


class Given(Silent):
    """Deals as told beforehand, and remembers what it was told."""

    def __init__(self, setting: Setting, records: InstanceRecords, owners: list[int]) -> None:
        super().__init__(setting, records)
        self.owners, self.rows, self.asked = list(owners), list[tuple[float, int]](), list[tuple[float, float]]()

    def arrived(self, at_s: float, kind: int) -> None:
        self.rows.append((at_s, kind))

    def deal(self, at_s: float, closes_s: float) -> int:
        self.asked.append((at_s, closes_s))
        return self.owners.pop(0)


def asking(owners: list[int], *, instances: int = 3, turn_us: int = S, within_us: int = 2 * S) -> tuple[Asking, Given]:
    """Returns it with its dealer, after a first report."""
    made: list[Given] = []

    def make(setting: Setting, records: InstanceRecords) -> Given:
        made.append(Given(setting, records, owners))
        return made[0]

    found = Asking(make, Owners(instances, turn_us, within_us), 1.0)
    found.told(0.0, {0: NOTHING})
    return found, made[0]


def frame(times: list[int | None]) -> pl.DataFrame:
    return pl.DataFrame({"ts": times, "n": range(len(times))}, schema={"ts": pl.Datetime("us"), "n": pl.Int64()})


def shown(parts: list[pl.DataFrame]) -> list[list[tuple[int, bool]]]:
    return [part.select("n", "opens").rows() for part in parts]


def test_the_dealer_is_asked_once_for_each_turn_and_its_windows_stay_where_they_are() -> None:
    one, dealer = asking([2, 0, 2])
    one.take(np.array([10 * S, 10 * S + 5, 11 * S]))
    one.take(np.array([11 * S + 1, 12 * S]))
    assert dealer.asked == [(0.0, 3.0), (1.0, 4.0), (2.0, 5.0)]
    gets, opens = one.owners.of_rows(np.array([10 * S, 11 * S + 1, 12 * S, 12 * S - 1]))
    assert opens.astype(int).tolist() == [[0, 1, 0, 1], [0, 0, 0, 0], [1, 0, 1, 0]]
    # A row is in windows of its turn and of the two before.
    assert gets[:, 2].tolist() == [True, False, True]
    assert [record.open for record in one.records.of] == [1, 0, 2]


def test_a_row_behind_later_rows_finds_its_turn_decided_and_a_window_of_it_has_the_later_rows() -> None:
    one, dealer = asking([1, 2])
    one.take(np.array([10 * S]))
    one.take(np.array([12 * S]))
    owners = dict(one.owners.of)
    late: IntArray = np.array([11 * S])
    one.take(late)
    assert len(dealer.asked) == 2
    assert one.owners.of == owners | {turn: one.owners.of[turn] for turn in (9,)}
    mine = one.owners.of[11]
    gets, opens = one.owners.of_rows(np.array([11 * S, 12 * S]))
    assert opens[mine, 0]
    assert gets[mine, 1]


def test_the_turns_that_were_decided_last_are_remembered_and_instances_are_told_of_gaps() -> None:
    one = Owners(2, 10, 10)
    for turn in range(TURNS_MAX):
        one.decide(turn, lambda _: 1, by_number=False)
    one.told(0)
    for turn in range(TURNS_MAX, 2 * TURNS_MAX):
        one.decide(turn, lambda _: 0, by_number=False)
    one.forget()
    assert (len(one.of), min(one.of), one.is_whole) == (TURNS_MAX, TURNS_MAX, False)
    behind, ahead = Known(), Known()
    behind.take(one.note(0))
    ahead.take(one.note(1))
    assert behind.of == ahead.of == one.of
    assert (behind.is_whole, ahead.is_whole) == (True, False)
    one.told(0)
    assert one.note(0) == ""


def test_an_instance_remembers_the_turns_that_it_heard_of_last() -> None:
    known = Known()
    for turn in range(2 * TURNS_MAX - 1):
        known.take(noted([(turn, turn % 3)]))
    assert (len(known.of), known.is_whole) == (2 * TURNS_MAX - 1, True)
    known.take(noted([(2 * TURNS_MAX, 2)]))
    assert (len(known.of), known.is_whole, known.of[2 * TURNS_MAX]) == (TURNS_MAX, False, 2)


@pytest.mark.parametrize("note", ["", "x", "1", "1=", "1=a", "1=0;", "1=0=0", "~"])
def test_a_note_of_something_else_is_refused(note: str) -> None:
    with pytest.raises(RemoteProtocolError, match="owners of turns"):
        read_note(note)


def test_a_splitter_tells_each_instance_what_was_decided_since_its_last_rows() -> None:
    splitter, knows = build(PARAMS), [Known() for _ in range(3)]
    assert isinstance(splitter, AskingSplitter)
    for at in ([0], [12, 3], [25, 33], [140], [141, 150]):
        for index, rows in enumerate(splitter.process(0, frame(list(at)))):
            notes = rows[told_column("opens")].to_list()
            assert notes[1:] == [None] * len(notes[1:])
            for note in notes[:1]:
                if note is not None:
                    knows[index].take(note)
            if rows.height:
                assert knows[index].of == splitter.known()[0]
    assert splitter.known() == (knows[0].of | knows[1].of | knows[2].of, True)


def test_a_splitter_that_begins_after_a_crash_deals_as_before_and_tells_all_until_rows_arrive_again() -> None:
    splitter, due = build(PARAMS), [True, False, False]
    assert isinstance(splitter, AskingSplitter)
    splitter.begins_again()
    splitter.takes_up([(0, 2), (-1, 2), (-2, 2), (-3, 2), (1, 1)], lambda index: due[index], is_whole=True)
    expected = [[], [(1, True), (2, True)], [(0, True), (1, False), (2, False), (3, True)]]
    given = list(splitter.process(0, frame([0, 12, 19, 3])))
    assert shown(given) == expected
    turns = {-3: 2, -2: 2, -1: 2, 0: 2, 1: 1}
    assert splitter.known() == (turns, True)
    for rows in given[1:]:
        assert dict(read_note(rows[told_column("opens")][0])[0]) == turns
    due[1] = True
    for _ in range(2):  # the second instance is told until its rows arrive
        _, second, third = splitter.process(0, frame([20, 25]))
        assert second[told_column("opens")][0] is not None
    assert third[told_column("opens")].to_list() == [None, None]


def test_an_instance_that_moves_knows_what_it_was_told() -> None:
    plan = plan_of(sink(MATCH, 3, BY_DEALER))
    spec = next(spec for spec in plan.operators if isinstance(spec.params, MatchParams))
    [fed] = [one for one in plan.operators if isinstance(one.params, SplitParams)]
    one, other = build(spec.params), build(spec.params)
    assert isinstance(one, MatchRows)
    assert isinstance(other, MatchRows)
    rows = pl.DataFrame({field.name: [None] for field in fed.schema}, schema=polars_schema(fed.schema))
    one.process(0, rows.with_columns(pl.lit("4=0.2").alias(fed.schema[-1].name)))
    assert one.known() == ({4: 0, 5: 2}, True)
    other.restore(one.snapshot())
    assert other.known() == one.fork().known() == one.known()
    one.begins_again()
    assert one.known() == ({4: 0, 5: 2}, False)
    one.takes_up([(3, 1)], lambda index: False, is_whole=True)
    assert one.known() == ({3: 1}, True)


def test_a_splitter_fails_after_a_crash_if_nobody_has_asked_its_instances() -> None:
    splitter = build(PARAMS)
    assert isinstance(splitter, AskingSplitter)
    splitter.begins_again()
    with pytest.raises(StateError, match="submit the query again"):
        splitter.process(0, frame([0]))


def test_before_a_report_owners_follow_from_numbers_and_so_they_do_in_copies() -> None:
    one = Asking(lambda setting, records: Given(setting, records, []), Owners(3, S, 2 * S), 1.0)
    one.take(np.array([7 * S, 8 * S]))
    assert (one.owners.of[7], one.owners.of[8]) == (1, 2)
    assert one.records.of[1].open == one.records.of[2].open == 1


def test_many_rows_are_told_as_parcels_and_cost_so_much_more() -> None:
    one, dealer = asking([0] * 20)
    rng = np.random.default_rng(1)
    for turn in range(12):
        one.take(np.sort(rng.integers(turn * S, (turn + 1) * S, 1_000)))
    parcels = sum(kind == 0 for _, kind in dealer.rows[-200:])
    assert parcels <= 200
    told = [at_s for at_s, kind in dealer.rows if kind == 0 and at_s >= 11.0]
    assert 16 <= len(told) <= 32 + 1
    rows = [0, 0, 0]
    for second in range(1, 20):  # a row costs 10 us, and 5 us for each open turn; the clock goes as fast as event time
        reports = {}
        for number, turns in enumerate((1, 3, 5)):
            one.records.of[number].open = turns
            rows[number] += 1_000
            cpu_ns = 1_000 * second * (10_000 + 5_000 * turns)
            reports[number] = InstanceTold(rows[number], cpu_ns, 0, 0.0)
        one.told(float(second), reports)
    law = one.records.law
    assert law is not None
    parcel = round(1_000 / len(told))
    assert law.kinds[0].row_s == pytest.approx(parcel * 10e-6 * one.measured.speed, rel=0.3)
    assert law.kinds[0].window_s == pytest.approx(parcel * 5e-6 * one.measured.speed, rel=0.3)
    assert law.kinds[1].cost_s(True, 5, 0.0) == 0.0


def test_costs_in_bursts_are_measured_by_their_mean() -> None:
    measured, rows, cpu_ns = Measured(), 0, 0
    for second in range(200):
        list(measured.costs(float(second), {0: InstanceTold(rows, cpu_ns, 0, 0.0)}, lambda _: 4))
        rows += 300
        cpu_ns += 300 * (100_000 if second % 4 else 4_000_000)
    assert measured.row is not None
    assert measured.row.cost_s(False, 4, 0.0) == pytest.approx(1.075e-3, rel=0.1)
    assert measured.row.row_s < 4 * measured.row.window_s


def test_an_instance_that_is_never_idle_costs_the_time_that_has_passed() -> None:
    measured = Measured()
    for second in range(20):  # 50 rows a second, by 2 ms of processor time each, while the oldest row waits for longer than that
        list(measured.costs(float(second), {0: InstanceTold(50 * second, 100_000_000 * second, 9, 3.0)}, lambda _: 2))
    assert measured.row is not None
    assert measured.row.cost_s(False, 2, 0.0) == pytest.approx(0.02, rel=0.01)
    idle = Measured()
    for second in range(20):
        list(idle.costs(float(second), {0: InstanceTold(50 * second, 100_000_000 * second, 9, 0.1)}, lambda _: 2))
    assert idle.row is not None
    assert idle.row.cost_s(False, 2, 0.0) == pytest.approx(0.002, rel=0.01)


def test_costs_of_instances_with_as_many_turns_each_are_those_of_turns_whatever_chance_says() -> None:
    measured, rng, rows, cpu_ns = Measured(), np.random.default_rng(3), 0, 0
    for second in range(100):
        turns: dict[int, float] = {0: 4 + second % 2}
        list(measured.costs(float(second), {0: InstanceTold(rows, cpu_ns, 0, 0.0)}, turns.__getitem__))
        rows += 300
        cpu_ns += 300 * int(rng.exponential(100_000))
    assert measured.row is not None
    assert measured.row.row_s < measured.row.window_s * 4.5


def test_an_instance_that_was_made_again_is_measured_anew() -> None:
    measured = Measured()
    told = [(1_000, 10**9), (0, 0), (1_000, 10**7)]
    found = [list(measured.costs(float(at), {0: InstanceTold(*one, 0, 0.0)}, lambda _: 1)) for at, one in enumerate(told)]
    assert found == [[], [], [(0, 1e-5, 1)]]


def test_few_rows_between_two_reports_are_no_measurement() -> None:
    measured = Measured()
    assert list(measured.costs(0.0, {0: InstanceTold(0, 0, 0, 0.0)}, lambda _: 1)) == []
    assert list(measured.costs(1.0, {0: InstanceTold(20, 10**9, 0, 0.25)}, lambda _: 1)) == []
    assert list(measured.costs(2.0, {0: InstanceTold(100, 10**9, 0, 0.25)}, lambda _: 1)) == [(0, 0.01, 1)]
    assert measured.row is None
    assert measured.peak_s == 0.25
    list(measured.costs(100.0, {0: InstanceTold(40, 10**9, 0, 0.125)}, lambda _: 1))
    assert measured.peak_s == 0.125


def test_event_time_that_goes_faster_than_the_clock_makes_rows_cost_more() -> None:
    measured = Measured()
    measured.pace(0.0, 0.0, 0)
    measured.pace(2.0, 20.0, 500)
    assert (measured.speed, measured.rate) == (10.0, 250.0)
    measured.pace(4.0, 21.0, 500)
    assert (measured.speed, measured.rate) == (1.0, 0.0)


def test_figures_say_what_is_used_and_predict_a_peak_above_that_of_an_empty_instance() -> None:
    one, _ = asking([0, 1] * 10, turn_us=S, within_us=4 * S)
    figures = None
    for second in range(1, 15):
        one.take(second * S + np.arange(0, S, 1_000))
        turns = [record.open for record in one.records.of]
        told = {number: InstanceTold(1_000 * second, 100_000 * 1_000 * second, 0, 0.5) for number in (0, 1) if turns[number]}
        figures = one.told(float(second), told)
    assert figures is not None
    assert (figures.used, figures.decisions, figures.peak_measured_s) == (2, 14, 0.5)
    assert figures.row_ns is not None
    assert figures.turn_ns is not None
    assert figures.row_ns + 3 * figures.turn_ns == pytest.approx(100_000, rel=0.5)
    assert figures.peak_predicted_s is not None
    assert 0.6 < figures.peak_predicted_s < 1.5  # rows are 0.5 s old when they come, and a batch takes 0.1 s


@pytest.mark.parametrize("name", DEALERS)
@pytest.mark.parametrize("bound_s", [0.1, 30.0])
def test_each_dealer_deals_by_reports(name: str, bound_s: float) -> None:
    one = Asking(lambda setting, records: dealer_of(name, setting, records), Owners(4, S, 10 * S), bound_s)
    sums = [[0, 0] for _ in range(4)]
    for second in range(60):
        one.take(second * S + np.arange(0, S, 10_000))
        for number, record in enumerate(one.records.of):
            if record.open:
                sums[number][0] += 100
                sums[number][1] += 100 * (20_000 + 10_000 * record.open)
        one.told(float(second), {number: InstanceTold(*both, 3, 0.01) for number, both in enumerate(sums)})
    used = len({one.owners.of[turn] for turn in range(40, 60)})
    assert used == {"round-robin": 4}.get(name, 1)


def test_a_splitter_flags_the_rows_that_open_windows_and_gives_rows_without_a_time_to_the_first_instance() -> None:
    splitter = build(PARAMS)
    found = shown(list(splitter.process(0, frame([0, 12, None, 21]))))
    assert found == [
        [(0, True), (1, False), (2, False), (3, False)],
        [(0, False), (1, True), (3, False)],
        [(0, False), (1, False), (3, True)],
    ]


def test_a_copy_goes_on_as_the_splitter_itself_would() -> None:
    splitter = build(PARAMS)
    assert isinstance(splitter, AskingSplitter)
    splitter.process(0, frame([0, 12]))
    splitter.told(0.0, 0, NOTHING)
    splitter.process(0, frame([21, 35, 44]))
    splitter.told(1.0, 0, NOTHING)  # heard by neither
    copy, restored = splitter.fork(), build(PARAMS)
    restored.restore(splitter.snapshot())
    more = frame([47, 52, 60, 77, 91, 30])
    expected = shown(list(splitter.process(0, more)))
    assert shown(list(copy.process(0, more))) == expected
    assert shown(list(restored.process(0, more))) == expected


@pytest.mark.parametrize("change", [{"owner": [3]}, {"owner": [-1]}, {"turn": ["x"]}, {"turn": [None]}])
def test_a_snapshot_of_something_else_is_refused(change: dict[str, list[object]]) -> None:
    splitter = build(PARAMS)
    splitter.process(0, frame([0]))
    parts = splitter.parts()
    assert parts is not None
    wrong = pl.DataFrame({"turn": [1], "owner": [1]} | change)
    with pytest.raises(RemoteProtocolError, match="snapshot"):
        build(PARAMS).adopt(parts._replace(frames=parts.frames | {"owners": wrong}))


def test_a_splitter_needs_its_columns() -> None:
    splitter = build(PARAMS)
    with pytest.raises(RemoteProtocolError, match="no time column"):
        splitter.process(0, pl.DataFrame({"ts": [1]}))
    with pytest.raises(RemoteProtocolError, match="that the splitter adds"):
        splitter.process(0, frame([1]).with_columns(opens=True))


def test_flags_stay_with_their_rows_when_rows_are_dropped() -> None:
    log = Log(["ts", "opens"], "ts", links=False, opens="opens")
    rows = pl.DataFrame({"\0time": [1, 2, 3], "ts": [1, 2, 3], "opens": [False, True, None]})
    log.add(rows, np.zeros(3, np.int64), np.arange(3), np.array([NO_ROW]), np.array([0]))
    assert log.opens.values.tolist() == [False, True, False]
    log.compact(np.array([False, True, True]))
    assert log.opens.values.tolist() == [True, False]


def test_a_plan_has_one_splitter_behind_a_union_of_the_branches() -> None:
    assert lines(plan_of(sink(MATCH, 2, BY_DEALER)))[4:8] == [
        "4 - union all <- 1 3",
        "5 - splitter of windows of 6 s to 2 instances by dealer round-robin each 2 s <- 4",
        "6 - match a b+ within 6 s <- 5",
        "7 - match a b+ within 6 s <- 5",
    ]
    [told] = sets_of(plan_of(sink(MATCH, 2, ", dealer = 'auto', max_latency = '1 s'")))
    assert told.keys == ("windows of 6 s by dealer auto each 750 ms, at most 2.00 copies of a row",)


def test_one_instance_needs_no_splitter() -> None:
    told = lines(plan_of(sink(MATCH, "'auto'", BY_DEALER)))
    assert not [line for line in told if "splitter" in line or "merger" in line]


def test_the_bound_of_instances_is_half_of_that_of_the_query() -> None:
    plan = plan_of(sink(EPISODE, 2, ", dealer = 'turns', max_latency = '3 s'"))
    assert [spec.params.bound_s for spec in plan.operators if isinstance(spec.params, SplitParams)] == [1.5]


@pytest.mark.parametrize(
    ("number", "more", "asked"),
    [
        (2, ", max_latency = '3 s'", ["auto"]),
        (2, ", max_latency = '3 s', turn = '2 s'", ["auto"]),
        (2, ", max_latency = '3 s', dealer = 'turns'", ["turns"]),
        (2, ", max_latency = '3 s', dealer = 'none'", []),
        (2, ", dealer = 'none'", []),
        (2, "", []),
        ("'auto'", ", max_latency = '3 s'", []),
    ],
)
def test_a_dealer_is_asked_where_there_is_a_bound_and_a_number_of_instances(number: int | str, more: str, asked: list[str]) -> None:
    plan = plan_of(sink(EPISODE, number, more))
    assert [spec.params.dealer for spec in plan.operators if isinstance(spec.params, SplitParams)] == asked


def test_a_bound_of_a_query_that_reads_a_view_asks_a_dealer_for_the_view() -> None:
    view, query = Wishes(instances=2, dealing="window"), Wishes(latency_ms=1000.0)
    assert (view.asks, query.below(view).asks, view.below(query).asks) == (None, "auto", "auto")
    assert replace(view, dealer="none").below(query).asks is None


@pytest.mark.parametrize("name", QUERIES)
@pytest.mark.parametrize("number", [2, 5])
def test_answers_are_those_of_one_instance(name: str, number: int) -> None:
    one, several = (run(plan_of(sink(QUERIES[name], *how))) for how in ((1,), (number, BY_DEALER)))
    assert one.height >= 10
    assert several.equals(one)


@pytest.mark.parametrize(
    ("select", "message"),
    [
        (f"CREATE SINK o AS {MATCH} WITH (connector = 'file', path = 'o', dealer = 'auto', max_latency = '1 s')", "no windows are dealt"),
        (sink(MATCH, 2, ", dealer = 'auto'"), "keeps max_latency, which is not given"),
        (sink(MATCH, 2, ", dealer = 'best', max_latency = '1 s'"), "dealer is 'best', expected"),
    ],
)
def test_refusals(select: str, message: str) -> None:
    with pytest.raises(QueryError, match=message):
        plan_of(select)


def of_known_cost() -> tuple[Asking, int]:
    """Returns it after reports: a row costs 10 ms, and 1 ms for each turn open. Also returns the rows that each instance has taken."""
    one, _ = asking([])
    cpu_ns, rows = [0, 0, 0], 0
    for second in range(1, 40):
        rows += 100
        for number, record in enumerate(one.records.of):
            record.open = 2 + (second + 3 * number) % 7
            cpu_ns[number] += 100 * (10 + record.open) * 1_000_000
        one.sent(np.array([100, 100, 100]))
        for record in one.records.of:
            record.open = 1  # its turns are over before it reports
        one.told(float(second), {number: InstanceTold(rows, spent, 0, 0.0) for number, spent in enumerate(cpu_ns)})
    return one, rows


def test_costs_are_those_of_the_turns_that_rows_had_not_of_those_at_the_report() -> None:
    one, _ = of_known_cost()
    row = one.measured.row
    assert row is not None
    assert row.cost_s(False, 2, 0.0) == pytest.approx(0.012, rel=0.1)
    assert row.cost_s(False, 8, 0.0) == pytest.approx(0.018, rel=0.1)


def test_rows_sent_since_a_report_wait_and_cost_as_much_as_their_turns() -> None:
    one, rows = of_known_cost()
    first, second, third = one.records.of
    assert [record.backlog_s(0.0) for record in one.records.of] == [0.0] * 3
    first.open, second.open = 8, 2
    one.sent(np.array([10, 20, 0]))
    assert first.backlog_s(0.0) == pytest.approx(0.18, rel=0.1)
    assert second.backlog_s(0.0) == pytest.approx(0.24, rel=0.1)
    assert third.backlog_s(0.0) == 0.0
    one.sent(np.array([10, 0, 0]))
    assert first.backlog_s(0.0) == pytest.approx(0.36, rel=0.1)
    first.open = 1  # other turns are over, but their rows still wait
    one.told(50.0, {0: InstanceTold(rows + 5, 10**12, 15, 0.1), 2: InstanceTold(rows, 10**12, 30, 0.1)})
    assert first.backlog_s(0.0) == pytest.approx(15 * 0.018, rel=0.1)
    assert third.backlog_s(0.0) == pytest.approx(30 * 0.011, rel=0.2), "rows that a former copy has sent"


def test_a_splitter_notes_the_rows_that_each_instance_gets() -> None:
    splitter = build(PARAMS)
    assert isinstance(splitter, AskingSplitter)
    splitter.process(0, frame([0, 12, None, 21]))
    assert [sent.rows for sent in splitter._asking._sent] == [4, 3, 3]


def test_turns_without_rows_do_not_count_in_the_predicted_peak() -> None:
    """Ten rows come at once each second, in one of a hundred turns; a row costs 1 ms for each of the five turns that are open for it."""
    one, _ = asking([0] * 200, turn_us=S // 100, within_us=4 * S)
    figures, rows, cpu_ns = None, 0, 0
    for second in range(200):
        one.take(np.full(10, second * S))
        one.sent(np.array([10, 0, 0]))
        rows, cpu_ns = rows + 10, cpu_ns + 10 * one.records.of[0].open * 1_000_000
        figures = one.told(float(second), {0: InstanceTold(rows, cpu_ns, 0, 0.0)})
    assert figures is not None
    assert one.records.of[0].open == 5
    assert figures.peak_predicted_s is not None
    assert 0.05 <= figures.peak_predicted_s < 0.3, "a batch takes 0.05 s; a hundred turns a second would make that 4 s"
