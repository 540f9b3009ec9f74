"""The points at which operators resume that were lost in a crash."""

import itertools

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from sbon.links.link_names import link_id
from sbon.query.expression import Column
from sbon.query.params.aggregate import Aggregate
from sbon.query.params.joined import JoinParams
from sbon.query.params.ordered import OverParams, TopParams
from sbon.query.params.rowwise import FunctionParams, MapParams
from sbon.query.params.source import SinkParams, SourceParams
from sbon.query.params.streams import ExchangeParams, MergeParams, UnionParams
from sbon.query.params.windowed import AssignParams, SessionParams, WindowParams
from sbon.query.plan import Begin, LinkSpec, OperatorSpec, Part
from sbon.supervision.account import Account
from sbon.supervision.continuation import Continuation, taken_up
from sbon.supervision.crash_analysis import Crash, continuations
from sbon.supervision.left_out import Stretch
from sbon.supervision.lost_state import Ahead, ahead_of, lacks_until, newest_answered, newest_given, windows_left_out
from sbon.supervision.recovery import Recovered
from sbon.supervision.replayed_inputs import from_zero
from sbon.watermarks import WATERMARK_END, WATERMARK_MIN
from sbon.wire.deployment import Renewed

WINDOW = WindowParams("ts", 10, 10, (), ())
KEY = (Column("k"),)


def spec(name: str, params: object) -> OperatorSpec:
    return OperatorSpec(name, params, (), None, None, "")  # type: ignore[arg-type]


def chain(*operators: OperatorSpec) -> tuple[dict[str, OperatorSpec], list[LinkSpec]]:
    links = [LinkSpec(link_id(a.id, b.id, 0), a.id, b.id, 0, 1.0, 1.0) for a, b in itertools.pairwise(operators)]
    return {one.id: one for one in operators}, links


def answer(link: LinkSpec, after: int, rows: int, watermark_us: int = 0, made: int | None = None, sent_us: int | None = None) -> Renewed:
    return Renewed(link, after, rows, watermark_us, made=made, sent_us=watermark_us if sent_us is None else sent_us, is_whole=True)


SOURCE, FILTER, SINK = (
    spec("s", SourceParams("s", "tcp", (), (), None)),
    spec("f", MapParams(None, None)),
    spec("k", SinkParams("k", "file", ())),
)
FILE = spec("s", SourceParams("s", "file", (), (), None, watermark_delay_us=5))


def test_rows_that_the_other_instances_have_taken_do_not_count_as_lost():
    exchange = spec("x", ExchangeParams((Column("k"),), 2))
    specs, links = chain(SOURCE, exchange)
    parts = [LinkSpec(link_id("x", name, 0), "x", name, 0, 1.0, 1.0, part=Part(index, 2)) for index, name in enumerate("ab")]
    consumers = {link.id: answer(link, 1, rows) for link, rows in zip(parts, (30, 60), strict=True)}
    found = continuations(Crash(specs, [*links, *parts], {"x"}, consumers, {links[0].id: answer(links[0], 1, 9, made=100)}, {}))

    assert sum(found["x"].lost_rows.values()) == 10
    assert found["x"].lost_rows.keys() == consumers.keys()


@pytest.mark.parametrize("operator", [FILTER, spec("f", WINDOW)], ids=["without state", "window"])
@pytest.mark.parametrize(("lost", "end_us"), [({"f"}, WATERMARK_END), ({"f", "k2"}, WATERMARK_END - 1)])
def test_the_end_of_a_stream_is_given_again_where_a_consumer_is_lost_too(operator: OperatorSpec, lost: set[str], end_us: int):
    specs, links = chain(SOURCE, operator, SINK)
    specs["k2"] = spec("k2", SinkParams("k2", "file", ()))
    links.append(LinkSpec(link_id("f", "k2", 0), "f", "k2", 0, 1.0, 1.0))
    living = [link for link in links if link.source == "f" and link.target not in lost]
    consumers = {link.id: answer(link, 3, 7, WATERMARK_END) for link in living}
    found = continuations(Crash(specs, links, lost, consumers, {links[0].id: answer(links[0], 1, 9)}, {}))["f"]

    assert (found.watermark_us, found.watermark_out_us) == (end_us, end_us)


def test_a_source_that_reads_again_skips_what_it_had_given_before_a_later_plan_got_its_link():
    specs, links = chain(FILE, FILTER)
    name = links[0].id
    found = continuations(Crash(specs, links, {"s"}, {name: answer(links[0], 1, 7)}, {}, {}, joined={name: 40}))

    assert found["s"].skip_rows == {name: 47}


@given(st.integers(0, 1000), st.integers(0, 1000), st.integers(0, 50))
def test_rows_of_a_filter_are_skipped_or_lost_so_that_each_counts_once(made: int, taken: int, missing: int):
    specs, links = chain(SOURCE, FILTER, SINK)
    name = links[1].id
    found = continuations(
        Crash(specs, links, {"f"}, {name: answer(links[1], 1, taken)}, {links[0].id: answer(links[0], 1, 9, made=made)}, {name: missing})
    )

    go_on = found["f"]
    # Rows that the consumer has got, will never get, or gets later add up to the rows that the filter makes.
    assert taken + missing + go_on.lost_rows[name] == go_on.rows_out + go_on.skip_rows[name]
    assert min(go_on.lost_rows[name], go_on.skip_rows[name]) == 0
    assert go_on.is_exact


def test_without_a_count_nothing_is_skipped():
    specs, links = chain(SOURCE, FILTER, SINK)
    go_on = continuations(Crash(specs, links, {"f"}, {links[1].id: answer(links[1], 1, 7)}, {links[0].id: answer(links[0], 1, 9)}, {}))["f"]
    assert (go_on.rows_out, dict(go_on.skip_rows), go_on.is_exact) == (7, {}, False)


def test_source_that_begins_again_at_its_first_row_is_said_to_repeat():
    specs, links = chain(spec("s", SourceParams("s", "datagen", (), (), None)), SINK)
    go_on = continuations(Crash(specs, links, {"s"}, {links[0].id: answer(links[0], 1, 7)}, {}, {}))
    account = Account()
    account.add(Recovered({"s": "ams"}, 65536, (), go_on, 1, 0.5))

    assert account.sentences(lambda operator: "datagen") == [
        "s (datagen) runs again on ams after a crash and gives its rows from the first one again: those that it had given come twice"
    ]
    assert not continuations(Crash(*chain(SOURCE, SINK), {"s"}, {}, {}, {}))["s"].repeats_all


def test_without_a_living_consumer_what_was_on_its_way_is_not_known():
    specs, links = chain(SOURCE, FILTER, SINK)
    for begun_at, is_exact in (set(), False), ({"k"}, True):  # a sink in `begun_at` finds its rows in its file and leaves them out
        found = continuations(Crash(specs, links, {"f", "k"}, {}, {links[0].id: answer(links[0], 1, 9, made=5)}, {}, begun_at))
        assert (found["f"].rows_out, found["f"].is_exact) == (5, is_exact)


def test_operators_without_state_that_are_lost_together_lose_nothing():
    second, exchange = spec("g", MapParams(None, None)), spec("x", ExchangeParams((Column("k"),), 2))
    specs, links = chain(SOURCE, FILTER, second, exchange)
    parts = [LinkSpec(link_id("x", name, 0), "x", name, 0, 1.0, 1.0, part=Part(index, 2)) for index, name in enumerate("ab")]
    consumers = {link.id: answer(link, 1, rows) for link, rows in zip(parts, (30, 60), strict=True)}
    given = Renewed(links[0], 1, 50, 0, made=40, behind=(35, 35, 25, 10), passes=True)
    found = continuations(Crash(specs, [*links, *parts], {"f", "g", "x"}, consumers, {links[0].id: given}, {}))

    assert (found["f"].rows_out, found["g"].rows_out) == (40, 35)
    assert dict(found["x"].skip_rows) == {parts[0].id: 5, parts[1].id: 50}
    assert sum(found["x"].lost_rows.values()) == 0
    assert all(one.is_exact for one in found.values())


def test_an_exchange_that_has_lost_rows_of_a_part_counts_that_part_on_from_what_its_consumer_has_had():
    exchange = spec("x", ExchangeParams((Column("k"),), 2))
    specs, links = chain(SOURCE, exchange)
    parts = [LinkSpec(link_id("x", name, 0), "x", name, 0, 1.0, 1.0, part=Part(index, 2)) for index, name in enumerate("ab")]
    consumers = {link.id: answer(link, 1, rows) for link, rows in zip(parts, (30, 60), strict=True)}
    given = Renewed(links[0], 1, 100, 0, made=100, behind=(35, 58), passes=True)
    found = continuations(Crash(specs, [*links, *parts], {"x"}, consumers, {links[0].id: given}, {parts[1].id: 7}))["x"]

    assert dict(found.lost_rows) == {parts[0].id: 5, parts[1].id: 0}
    assert dict(found.skip_rows) == {parts[0].id: 0, parts[1].id: 2}


def test_a_stateless_function_is_exact_because_it_passes_acknowledgements_on():
    function = spec("f", FunctionParams("f", "1", (), (), (), None))
    specs, links = chain(SOURCE, function, SINK)
    for passes in (True, False):
        given = Renewed(links[0], 3, 9, 5, made=5, passes=passes)
        go_on = continuations(Crash(specs, links, {"f"}, {links[1].id: answer(links[1], 1, 7)}, {links[0].id: given}, {}))["f"]
        assert go_on.is_exact is passes
        assert dict(go_on.skip_rows) == ({links[1].id: 2} if passes else {})
        assert (go_on.state_until_us is None) is passes


def test_a_union_is_not_exact():
    specs, links = chain(SOURCE, spec("u", UnionParams()), SINK)
    go_on = continuations(
        Crash(specs, links, {"u"}, {links[1].id: answer(links[1], 1, 7)}, {links[0].id: answer(links[0], 1, 9, made=9)}, {})
    )["u"]
    assert (go_on.rows_out, dict(go_on.skip_rows), dict(go_on.lost_rows), go_on.is_exact) == (9, {}, {links[1].id: 2}, False)


def test_behind_a_file_everything_is_worked_through_once_more():
    specs, links = chain(FILE, FILTER, spec("w", WINDOW), SINK)
    assert from_zero(specs, links, {"s", "f", "w"}) == {"s", "f", "w"}
    found = continuations(Crash(specs, links, {"s", "f", "w"}, {links[2].id: answer(links[2], 3, 12)}, {}, {}))
    assert found["w"].skip_rows == {links[2].id: 12}
    assert found["w"].state_until_us is None


def test_where_inputs_meet_rows_may_come_in_another_order():
    """The new union skips as many rows as its consumer has taken, but its two inputs may now mix in another order."""
    union, other = spec("u", UnionParams()), spec("t", FILE.params)
    specs, links = chain(FILE, union, FILTER, SINK)
    specs = {"t": other, **specs}
    links.append(LinkSpec(link_id("t", "u", 1), "t", "u", 1, 1.0, 1.0))
    lost = {"s", "t", "u", "f"}
    for rows, is_exact in ((0, True), (7, False)):
        found = continuations(Crash(specs, links, lost, {links[2].id: answer(links[2], 1, rows)}, {}, {}))
        assert found["f"].is_exact is is_exact
        assert found["s"].is_exact, "its rows come from one file, always in the same order"
    found = continuations(Crash(specs, links, {*lost, "k"}, {}, {}, {}))
    assert not found["k"].is_exact
    found = continuations(Crash(specs, links, {*lost, "k"}, {}, {}, {}, {"k"}))
    assert (found["k"].is_exact, found["k"].by_word, found["f"].made_by_origin) == (True, True, ((0,), (0,)))
    specs, links = chain(FILE, FILTER, SINK)
    found = continuations(Crash(specs, links, {"s", "f", "k"}, {}, {}, {}, {"k"}))
    assert (found["k"].is_exact, found["k"].by_word) == (True, False)


def test_a_sink_does_not_begin_from_zero():
    specs, links = chain(FILE, SINK)
    assert from_zero(specs, links, {"s", "k"}) == {"s"}


def test_a_lost_file_source_before_a_living_operator_gives_what_that_has_not_taken():
    specs, links = chain(FILE, FILTER, SINK)
    assert continuations(Crash(specs, links, {"s"}, {links[0].id: answer(links[0], 5, 500)}, {}, {}))["s"].skip_rows == {links[0].id: 500}


def test_state_is_lost_up_to_the_newest_time_that_was_acknowledged():
    specs, links = chain(FILE, spec("w", WINDOW), SINK)
    feeders = {links[0].id: answer(links[0], 4, 40, watermark_us=100)}
    go_on = continuations(Crash(specs, links, {"w"}, {links[1].id: answer(links[1], 2, 3, watermark_us=90)}, feeders, {}))["w"]
    assert go_on.state_until_us == 105
    assert (go_on.watermark_us, go_on.watermark_out_us) == (89, 90)


def test_a_merge_gives_nothing_again_that_its_consumer_has_seen():
    merge = spec("m", MergeParams("known", ("k",), delay_us=7))
    specs, links = chain(FILE, spec("w", WINDOW), merge, SINK)
    feeders = {links[1].id: answer(links[1], 4, 40, watermark_us=100)}
    consumers = {links[2].id: answer(links[2], 2, 3, watermark_us=90)}
    assert continuations(Crash(specs, links, {"m"}, consumers, feeders, {}))["m"].watermark_us == 97

    feeders = {links[0].id: answer(links[0], 4, 40, watermark_us=100)}
    both = continuations(Crash(specs, links, {"w", "m"}, consumers, feeders, {}))
    assert both["w"].watermark_us == 89, "an operator that is lost with its consumer resumes where the consumer was"
    specs, links = chain(FILE, spec("j", SessionParams("ts", 10, (), ())), spec("w", WINDOW), SINK)
    both = continuations(Crash(specs, links, {"j", "w"}, {links[2].id: answer(links[2], 2, 3, watermark_us=90)}, feeders, {}))
    assert both["j"].watermark_us == WATERMARK_MIN, "the end of an open window does not tell which rows the window had got"


def test_no_state_is_lost_if_nothing_was_acknowledged():
    specs, links = chain(FILE, spec("w", WINDOW), SINK)
    feeders = {links[0].id: answer(links[0], 0, 0, watermark_us=100)}
    assert continuations(Crash(specs, links, {"w"}, {links[1].id: answer(links[1], 0, 0)}, feeders, {}))["w"].state_until_us is None


def test_the_newest_time_does_not_go_beyond_the_end():
    link = chain(FILE, SINK)[1][0]
    assert newest_given(answer(link, 1, 1, WATERMARK_END), Ahead(7, True), 0) == WATERMARK_END


def test_what_went_on_without_a_lost_operator_is_said_to_lack_its_rows_though_a_file_gives_all_again():
    """Seed 8051: one side of a join was away for long. The join answered without that side, and the query ended without saying so."""
    specs, links = chain(FILE, FILTER, spec("j", WINDOW), SINK)
    for ahead_us, until_us in ((WATERMARK_MIN, None), (70, 70)):
        told = Renewed(links[1], 3, 30, 50, ahead_us=ahead_us)
        found = continuations(Crash(specs, links, {"s", "f"}, {links[1].id: told}, {}, {}))["f"]
        assert (found.late_until_us, found.is_exact) == (until_us, until_us is None)
        account = Account()
        account.add(Recovered({"f": "osl"}, 65_536, (), {"f": found}, 1, 0.5))
        assert ("what it feeds went on without it" in " ".join(account.sentences(lambda operator: "a filter"))) is (until_us is not None)


def test_what_an_operator_lacks_of_a_source_that_was_away_is_said_as_soon_as_it_is_known():
    specs, links = chain(FILE, spec("w", WINDOW), SINK)
    feeders = {links[0].id: answer(links[0], 4, 40, watermark_us=1_000_000)}
    go_on = continuations(Crash(specs, links, {"w"}, {links[1].id: answer(links[1], 2, 3, watermark_us=90)}, feeders, {}))
    account = Account()
    account.add(Recovered({"w": "ams"}, 65536, (), go_on, 1, 0.5))
    account.add(Recovered({"other": "ams"}, 65536, (), {"other": Continuation()}, 1, 0.5))
    for until_us, told in ((7_000_000, "1970-01-01T00:00:07+00:00"), (3_000_000, "1970-01-01T00:00:07+00:00")):
        account.lacks("w", {"w": Stretch(until_us, None, until_us, until_us, True)}, ahead_us=0, is_told=True)
        assert account.told(lambda operator: "window")[0]["operators"][0]["state_lost_until"] == told
    assert account.told(lambda operator: "window")[1]["operators"][0]["state_lost_until"] is None


@given(st.integers(1, 30), st.integers(1, 30), st.integers(-50, 200), st.integers(-50, 200))
@example(size=11, slide=1, seen=-50, until=0)  # the first window begins at -61
@example(size=30, slide=1, seen=-50, until=200)
def test_windows_that_are_left_out_are_those_that_have_not_been_answered_and_lack_rows(size: int, slide: int, seen: int, until: int):
    params = WindowParams("ts", size, slide, (), ())
    starts = range(-80 * slide, 201 * slide, slide)  # from the least `seen - size` to the greatest `until`
    unanswered = [start for start in starts if start + size >= seen and start <= until]
    assert windows_left_out(params, seen, until) == len(unanswered)


def test_how_many_windows_are_left_out_is_not_known_before_the_first_answer_or_at_an_open_end():
    assert windows_left_out(WINDOW, WATERMARK_MIN, 35) is None
    assert windows_left_out(WINDOW, 20, WATERMARK_END) is None
    assert windows_left_out(WINDOW, 20, None) == windows_left_out(WINDOW, WATERMARK_END, 35) == 0
    assert windows_left_out(SessionParams("ts", 10, (), ()), 20, 35) is None


def test_rows_are_ahead_of_their_watermark_by_the_delay_of_their_source_and_what_operators_add():
    two = spec("p", SourceParams("p", "file", (), (), None, watermark_delay_us=9))
    assigned, union, join = (
        spec("a", AssignParams("ts", 10, 10)),
        spec("u", UnionParams()),
        spec("j", JoinParams("a", "b", KEY, KEY, 7, 2, ())),
    )
    specs = {one.id: one for one in (FILE, two, assigned, union, join, FILTER, spec("w", WINDOW))}
    feeds = (("s", "a"), ("a", "u"), ("p", "u"), ("u", "f"), ("f", "w"), ("s", "j"), ("p", "j"))
    found = ahead_of(specs, [LinkSpec(link_id(one, other, 0), one, other, 0, 1.0, 1.0) for one, other in feeds])
    assert found == {
        "s": (5, True),
        "p": (9, True),
        "a": (15, True),
        "u": (15, False),
        "f": (15, False),
        "w": (15, True),
        "j": (16, True),
    }


def test_what_a_state_had_taken_is_known_where_inputs_meet_next_to_it_and_not_further_away():
    link = chain(FILE, SINK)[1][0]
    asked = answer(link, 3, 3, watermark_us=100)
    assert [newest_given(asked, ahead, inputs) for ahead, inputs in ((Ahead(5, True), 1), (Ahead(5, False), 2), (Ahead(5, False), 1))] == [
        105,
        105,
        None,
    ]
    assert newest_given(answer(link, 0, 0, watermark_us=100), Ahead(5, False), 1) == WATERMARK_MIN


def test_answers_over_preceding_rows_may_lack_some_for_ever():
    aggregate = Aggregate("n", "count", None)
    assert lacks_until(OverParams("ts", (), (), (aggregate,), (3,), omits_begun=False), 35) == WATERMARK_END
    assert lacks_until(OverParams("ts", (), (), (aggregate,), (3,)), 35) == 35


def test_rows_over_a_lost_state_are_left_out_until_their_frames_are_full():
    aggregates = (Aggregate("n", "count", None), Aggregate("m", "count", None))
    over = spec("o", OverParams("ts", ("k",), (), aggregates, (3, 5)))
    specs, links = chain(SOURCE, over, FILTER, SINK)
    consumers, feeders = {links[1].id: answer(links[1], 2, 3, watermark_us=90)}, {links[0].id: answer(links[0], 4, 40, watermark_us=100)}
    go_on = continuations(Crash(specs, links, {"o"}, consumers, feeders, {}))["o"]
    assert (go_on.begin, go_on.is_exact, go_on.whole_us) == (Begin("ts", 101, 5), True, WATERMARK_END)
    account = Account()
    account.add(Recovered({"o": "ams"}, 65536, (), {"o": go_on}, 1, 0.5))
    [sentence] = account.sentences(lambda operator: "rows")
    assert sentence.endswith("those that begin before 1970-01-01T00:00:00.000101+00:00 are left out, and the next 5 rows of each key")


def test_a_state_that_is_lost_together_with_the_filter_before_it_is_said_to_be_lost():
    specs, links = chain(SOURCE, FILTER, spec("w", WINDOW), SINK)
    consumers = {links[2].id: answer(links[2], 2, 3, watermark_us=90)}
    feeders = {links[0].id: answer(links[0], 4, 40, watermark_us=100)}
    go_on = continuations(Crash(specs, links, {"f", "w"}, consumers, feeders, {}))["w"]
    assert (go_on.state_until_us, go_on.begin, go_on.is_exact) == (100, Begin("window_start", 110), True)


@pytest.mark.parametrize(
    ("behind", "lost", "is_exact"),
    [
        ((FILTER,), {"w"}, True),
        ((FILTER,), {"w", "f"}, True),
        ((FILTER,), {"w", "f", "k"}, True),
        ((spec("v", WINDOW),), {"w"}, True),
        ((spec("v", WINDOW),), {"w", "v"}, True),
        ((spec("v", SessionParams("ts", 10, (), ())),), {"w"}, True),
        ((spec("v", SessionParams("ts", 10, (), ())), spec("z", WINDOW)), {"w"}, False),
        ((spec("v", OverParams("ts", (), (), (Aggregate("n", "count", None),), (3,))),), {"w"}, True),
        ((spec("v", OverParams("ts", (), (), (Aggregate("n", "count", None),), (3,))), spec("z", WINDOW)), {"w"}, False),
        ((spec("v", OverParams("ts", (), (), (Aggregate("n", "count", None),), (3,), omits_begun=False)),), {"w"}, False),
        ((spec("v", WindowParams("ts", 10, 10, (), (), omits_begun=False)),), {"w"}, False),
        ((), {"w"}, True),
        ((), {"w", "k"}, True),
    ],
)
def test_windows_are_exact_apart_from_those_left_out_if_operators_behind_them_leave_out_what_lacks_these(
    behind: tuple[OperatorSpec, ...], lost: set[str], is_exact: bool
):
    specs, links = chain(SOURCE, spec("w", WINDOW), *behind, SINK)
    consumers = {link.id: answer(link, 2, 3, watermark_us=90) for link in links if link.source in lost and link.target not in lost}
    feeders = {links[0].id: answer(links[0], 4, 40, watermark_us=100, made=9)}
    found = continuations(Crash(specs, links, lost, consumers, feeders, {}, begun_at=("k",)))
    assert all(go_on.is_exact for go_on in found.values()) == is_exact
    assert not is_exact or not any(sum(go_on.lost_rows.values()) for go_on in found.values())


def test_a_file_that_is_read_again_beside_another_input_gives_what_the_lost_state_had_taken():
    """Only the rows of the other input are missing."""
    window = spec("w", WINDOW)
    specs = {one.id: one for one in (FILE, spec("p", SOURCE.params), window, SINK)}
    links = [LinkSpec(link_id(one, other, 0), one, other, 0, 1.0, 1.0) for one, other in (("s", "w"), ("p", "w"), ("w", "k"))]
    consumers, feeders = {links[2].id: answer(links[2], 2, 3, watermark_us=90)}, {links[1].id: answer(links[1], 4, 40, watermark_us=100)}
    go_on = continuations(Crash(specs, links, {"s", "w"}, consumers, feeders, {}))["w"]
    assert (go_on.begin, go_on.is_exact) == (Begin("window_start", 110), True)


def test_a_window_that_had_left_answers_out_goes_on_by_its_watermark_when_a_file_gives_all_again():
    specs, links = chain(FILE, spec("w", WINDOW), SINK)
    consumers = {links[1].id: answer(links[1], 5, 7, watermark_us=90)}
    go_on = continuations(Crash(specs, links, {"s", "w"}, consumers, {}, {}, lacking={"w": 60}))["w"]
    assert (go_on.skip_rows, go_on.watermark_us, go_on.begin, go_on.is_exact) == ({}, 89, None, True)
    assert continuations(Crash(specs, links, {"s", "w"}, consumers, {}, {}))["w"].skip_rows == {links[1].id: 7}


def joined_files(params: object = UnionParams()) -> tuple[dict[str, OperatorSpec], list[LinkSpec]]:
    """Two files, an operator that both feed, a filter and a sink."""
    specs, links = chain(FILE, spec("j", params), FILTER, SINK)
    specs = {"t": spec("t", FILE.params), **specs}
    return specs, [LinkSpec(link_id("t", "j", 1), "t", "j", 1, 1.0, 1.0), *links]


def test_a_sink_that_still_compares_rows_cannot_count_them():
    specs, links = chain(SOURCE, FILTER, SINK)
    for matching, is_exact in ((), True), (("k",), False):
        found = continuations(
            Crash(specs, links, {"f", "k"}, {}, {links[0].id: answer(links[0], 1, 9, made=5)}, {}, {"k"}, matching=matching)
        )
        assert found["f"].is_exact is is_exact


@pytest.mark.parametrize(
    ("known", "answered"),
    [("st", {"u": 60, "w": 30}), ("s", {"u": None, "w": 60}), ("t", {"u": None, "w": 30}), ("", {"u": None, "w": None})],
)
def test_a_window_behind_a_union_has_answered_at_most_what_the_input_that_is_furthest_behind_allows(
    known: str, answered: dict[str, object]
):
    """The union itself may have given rows of either input."""
    union, plain = spec("u", UnionParams()), SourceParams("s", "tcp", (), (), None)
    specs = {one.id: one for one in (spec("s", plain), spec("t", plain), union, spec("w", WINDOW))}
    links = [LinkSpec(link_id(a, b, 0), a, b, 0, 1.0, 1.0) for a, b in ("su", "tu", "uw")]
    sent = {"s": 60, "t": 30}
    feeders = {link.id: answer(link, 1, 9, watermark_us=5, sent_us=sent[link.source]) for link in links[:2] if link.source in known}
    assert newest_answered(specs, links, {"u", "w"}, feeders) == answered


@pytest.mark.parametrize(
    ("params", "whole", "by_watermark"),
    [
        (WINDOW, True, True),
        (TopParams("ts", (), (), 3), True, True),
        (WINDOW, False, False),
        (SessionParams("ts", 10, (), ()), True, False),
    ],
    ids=["window", "top", "a part of an answer", "session"],
)
def test_a_window_over_files_that_come_again_in_another_order_goes_on_by_its_watermark(params: object, whole: bool, by_watermark: bool):
    """The rows of its open windows come again; a session that is open may have begun long before."""
    specs, links = joined_files(params)
    consumers = {links[-1].id: msgspec.structs.replace(answer(links[-1], 4, 35, watermark_us=40), is_whole=whole)}
    found = continuations(Crash(specs, links, {*"tsjf"}, consumers, {}, {}))
    if by_watermark:
        assert (found["j"].watermark_us, found["j"].state_until_us, found["j"].is_exact) == (39, None, True)
        assert (found["f"].skip_rows, found["f"].is_exact) == ({}, True)
    else:
        assert (found["j"].watermark_us, found["f"].skip_rows, found["f"].is_exact) == (WATERMARK_MIN, {links[-1].id: 35}, False)


def test_a_window_does_not_go_on_by_its_watermark_if_one_consumer_has_had_more_than_another():
    specs, links = joined_files(WINDOW)
    specs["k2"] = spec("k2", SinkParams("k2", "file", ()))
    links.append(LinkSpec(link_id("f", "k2", 0), "f", "k2", 0, 1.0, 1.0))
    for other_us, is_exact in ((40, True), (30, False)):
        consumers = {link.id: answer(link, 4, 35, us) for link, us in zip(links[-2:], (40, other_us), strict=True)}
        assert continuations(Crash(specs, links, {*"tsjf"}, consumers, {}, {}))["f"].is_exact is is_exact


@pytest.mark.parametrize("unable", [(), ("k",)])
@pytest.mark.parametrize("taken_us", [30, WATERMARK_MIN])
def test_a_sink_counts_the_rows_of_one_input_though_those_of_another_are_new(unable: tuple[str, ...], taken_us: int):
    """The window has lost its state with the sink, and answers later windows. The filter has repeated nothing."""
    window = spec("w", WINDOW)
    specs = {one.id: one for one in (SOURCE, window, FILTER, SINK)}
    links = [LinkSpec(link_id(a, b, 0), a, b, 0, 1.0, 1.0) for a, b in ("sw", "sf", "wk", "fk")]
    feeders = {links[0].id: answer(links[0], 3, 9, taken_us), links[3].id: answer(links[3], 3, 9, 30)}
    found = continuations(Crash(specs, links, {"w", "k"}, {}, feeders, {}, {"k"}, unable=unable))["k"]
    assert (found.fresh, found.is_fresh) == ((links[2].id,), False)
    assert (found.is_exact, found.by_word) == (not unable, not unable)
    told = taken_up(found, 1, 0.0, 7, (), 0)
    assert (told.fresh, told.is_fresh) == (((), True) if unable else ((links[2].id,), msgspec.UNSET))
