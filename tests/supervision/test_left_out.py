"""Answers that are left out after a crash, by the operator that has lost its state and by those behind it."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbon.links.link_names import link_id
from sbon.query.expression import Column
from sbon.query.params.aggregate import Aggregate
from sbon.query.params.joined import JoinParams, WindowJoinParams
from sbon.query.params.ordered import DeduplicateParams, OverParams, TopParams
from sbon.query.params.rowwise import MapParams
from sbon.query.params.source import SinkParams, SourceParams
from sbon.query.params.windowed import SessionParams, WindowParams
from sbon.query.plan import Begin, LinkSpec, OperatorSpec
from sbon.schema import ColumnType
from sbon.supervision.crash_analysis import Crash, continuations
from sbon.supervision.left_out import Stretch, begin, has_told_all, stretches
from sbon.watermarks import WATERMARK_END, WATERMARK_MIN
from sbon.wire.deployment import Renewed
from tests.query_worlds import plan_of

KEY = (Column("k"),)
WINDOW = WindowParams("ts", 10, 10, (), ())
SESSION = SessionParams("ts", 10, (), ())
INCOMPLETE = WindowParams("ts", 10, 10, (), (), omits_begun=False)
OVER = OverParams("ts", (), (), (Aggregate("n", "count", None),), (3,))
TIMES = (("a", 0, "a"), ("b", 1, "b"))
LEFT = (ColumnType.TIME,)


def join(before_us: int = 0, after_us: int = 0, columns: tuple[tuple[str, int, str], ...] = TIMES, **more: object) -> JoinParams:
    return JoinParams("a", "b", KEY, KEY, before_us, after_us, columns, **more)  # type: ignore[arg-type]


def chain(*params: object) -> tuple[dict[str, OperatorSpec], list[LinkSpec]]:
    """Returns a source `0`, operators `1`, `2`, ..., a sink, and the links between them."""
    kinds = [SourceParams("s", "tcp", (), (), None), *params, SinkParams("k", "file", ())]
    specs = {str(number): OperatorSpec(str(number), one, (), None, None, "") for number, one in enumerate(kinds)}  # type: ignore[arg-type]
    return specs, [LinkSpec(link_id(a, b, 0), a, b, 0, 1.0, 1.0) for a, b in itertools.pairwise(specs)]


def told(link: LinkSpec, watermark_us: int = 30, sent_us: int = 50, *, is_whole: bool = True) -> Renewed:
    return Renewed(link, 3, 9, watermark_us, sent_us=sent_us, is_whole=is_whole)


@pytest.mark.parametrize(
    ("params", "until", "first"),
    [
        (WindowParams("ts", 10, 10, (), ()), 35, 40),
        (WindowParams("ts", 10, 10, (), ()), 30, 40),
        (WindowParams("ts", 10, 3, (), ()), 35, 36),
        (SESSION, 35, 45),
        (WindowJoinParams("a", "b", KEY, KEY, 10, 5, ()), 35, 40),
        (DeduplicateParams("ts", ("k",), (), (), 10), 35, 40),
        (DeduplicateParams("ts", ("k",), (), (), 10, session=True), 35, 45),
        (TopParams("ts", (), (), 3), 35, 36),
        (TopParams("ts", (), (), 3, omits_begun=False), 35, None),
        (join(), 35, 36),
        (join(columns=TIMES[1:]), 35, 36),
        (join(columns=TIMES[1:], outer=LEFT), 35, None),
        (join(columns=()), 35, None),
        (join(omits_begun=False), 35, None),
        (INCOMPLETE, 35, None),
        (SessionParams("ts", 10, (), (), omits_begun=False), 35, None),
        (SESSION, None, None),
        (MapParams(None, None), 35, None),
    ],
)
def test_answers_are_left_out_as_far_as_the_lost_state_may_reach(params: object, until: int | None, first: int | None):
    found = begin(params, until)  # type: ignore[arg-type]
    assert (None if found is None else found.us) == first


def test_what_runs_on_behind_a_lost_window_leaves_out_what_lacks_its_answers():
    specs, links = chain(WINDOW, MapParams(None, None), WindowParams("ts", 20, 20, (), ()))
    go_on = continuations(Crash(specs, links, {"1"}, {links[1].id: told(links[1])}, {links[0].id: told(links[0])}, {}))["1"]
    assert (go_on.begin, go_on.begin_behind) == (Begin("window_start", 40), {"3": Begin("window_start", 60)})
    assert (go_on.whole_us, go_on.is_exact) == (60, True)


def test_what_is_lost_with_a_window_before_it_leaves_out_what_lacks_its_answers():
    specs, links = chain(WINDOW, WindowParams("ts", 20, 20, (), ()))
    found = continuations(Crash(specs, links, {"1", "2"}, {links[2].id: told(links[2])}, {links[0].id: told(links[0])}, {}))
    assert (found["1"].begin, found["2"].begin) == (Begin("window_start", 40), Begin("window_start", 60))
    assert all(one.is_exact and not one.begin_behind for one in found.values())


def test_what_former_copies_lacked_is_left_out_by_those_behind_them_too():
    """The window began empty earlier, and its stretch is not over when the host of the window behind it crashes."""
    specs, links = chain(WINDOW, WINDOW)
    taken = {"2": 20}
    found = stretches(specs, links, {"2"}, taken, taken, {"1": 95}, {links[2].id: told(links[2])})
    assert found["2"].begin == Begin("window_start", 110)


@pytest.mark.parametrize(("params", "begins_us"), [(WINDOW, 40), (join(), 51)])
def test_answers_that_consumers_tell_of_are_left_out_by_their_watermark_and_others_as_far_as_rows_were_sent(params: object, begins_us: int):
    """A join gives pairs whatever the watermark is, so its consumers never tell."""
    specs, links = chain(params)
    feeders = {links[0].id: told(links[0])}
    for answer, us in ((told(links[1]), begins_us), (told(links[1], is_whole=False), {40: 60}.get(begins_us, begins_us))):
        go_on = continuations(Crash(specs, links, {"1"}, {links[1].id: answer}, feeders, {}))["1"]
        assert go_on.begin is not None
        assert (go_on.begin.us, go_on.is_exact) == (us, True)


def test_an_agent_of_an_earlier_release_does_not_say_what_it_has_sent():
    specs, links = chain(WINDOW)
    feeders, consumers = {links[0].id: Renewed(links[0], 3, 9, 30)}, {links[1].id: told(links[1], is_whole=False)}
    go_on = continuations(Crash(specs, links, {"1"}, consumers, feeders, {}))["1"]
    assert (go_on.begin, go_on.is_exact) == (Begin("window_start", 40), False)


@pytest.mark.parametrize("between", [(), (MapParams(None, None),)])
def test_a_sink_that_is_lost_with_the_window_before_it_skips_nothing(between: tuple[object, ...]):
    """The answers that it had written all begin before those that are to come."""
    specs, links = chain(WINDOW, *between)
    lost = {*specs} - {"0"}
    found = continuations(Crash(specs, links, lost, {}, {links[0].id: told(links[0])}, {}, begun_at=(links[-1].target,)))
    assert found["1"].begin == Begin("window_start", 60)
    assert (found[links[-1].target].fresh, found[links[-1].target].is_fresh) == ((links[-1].id,), True)
    assert all(one.is_exact for one in found.values())


@pytest.mark.parametrize("connector", ["file", "datagen"])
def test_a_sink_skips_rows_if_all_come_again(connector: str):
    specs, links = chain(WINDOW)
    specs["0"] = OperatorSpec("0", SourceParams("s", connector, (), (), None), (), None, None, "")
    found = continuations(Crash(specs, links, {*specs}, {}, {}, {}, begun_at=("2",)))
    assert found["2"].fresh == ()


@pytest.mark.parametrize(
    ("behind", "is_known"),
    [
        ((), True),
        ((SESSION,), True),
        ((SESSION, MapParams(None, None)), True),
        ((SESSION, WINDOW), False),
        ((OVER,), True),
        ((OVER, WINDOW), False),
        ((INCOMPLETE,), False),
        ((join(),), True),
        ((join(outer=LEFT),), True),
        ((join(outer=LEFT, columns=TIMES[1:]),), False),
    ],
)
def test_the_end_of_a_stretch_is_known_behind_operators_that_leave_out_or_pass_on(behind: tuple[object, ...], is_known: bool):
    specs, links = chain(WINDOW, *behind)
    found = stretches(specs, links, {"1"}, {"1": 35}, {"1": 35}, {}, {links[1].id: told(links[1])})
    assert found[links[-1].target].is_known is is_known
    assert all(one.out_us is None or one.out_us < WATERMARK_END for one in found.values())


def test_an_operator_that_cannot_be_told_makes_the_end_unknown():
    specs, links = chain(WINDOW, WINDOW)
    found = stretches(specs, links, {"1"}, {"1": 35}, {"1": 35}, {}, {links[1].id: told(links[1])}, {"2"})
    assert (found["1"].is_known, found["2"].is_known, found["3"].is_known) == (True, False, False)


def test_nothing_is_left_out_if_nothing_is_missing():
    specs, links = chain(WINDOW, WINDOW)
    taken = {"1": WATERMARK_MIN}
    assert stretches(specs, links, {"1"}, taken, taken, {}, {links[1].id: told(links[1])}) == {}


def test_nothing_is_left_out_if_nobody_knows_what_is_missing():
    specs, links = chain(WINDOW)
    found = stretches(specs, links, {"1"}, {"1": None}, {"1": None}, {}, {links[1].id: told(links[1])})
    assert found == {name: Stretch(None, None, None, WATERMARK_END, is_known=False) for name in ("1", "2")}


def test_consumers_tell_all_unless_a_sink_is_lost_too():
    specs, links = chain(WINDOW, MapParams(None, None), WINDOW)
    living = {link.id: told(link) for link in links}
    assert has_told_all("1", specs, links, {"1", "2"}, living)
    assert has_told_all("1", specs, links, {"1", "2", "3", "4"}, {}), "the second window is lost with all that it had been given"
    assert not has_told_all("3", specs, links, {"3", "4"}, {})
    assert not has_told_all("1", specs, links, {"1"}, {})


# -------------------------------------------------------------------------------- against windows and joins that lack rows

rows = st.lists(st.integers(0, 60), max_size=30)
"""Event times of rows, each with one key."""
spans = st.tuples(st.integers(1, 12), st.integers(1, 12)).map(lambda one: (max(one), min(one)))
"""Sizes and slides of windows."""


def windows(times: list[int], size: int, slide: int) -> dict[int, tuple[int, ...]]:
    """Returns the rows of each window, by its start."""
    starts = {start for at in times for start in range((at // slide) * slide, at - size, -slide)}
    return {start: tuple(sorted(at for at in times if start <= at < start + size)) for start in starts}


@given(rows, spans, spans, st.integers(0, 60))
def test_windows_over_windows_are_whole_from_the_first_one_that_is_given(
    times: list[int], inner: tuple[int, int], outer: tuple[int, int], lost_us: int
):
    specs, links = chain(WindowParams("ts", *inner, (), ()), WindowParams("window_end", *outer, (), ()))
    taken: dict[str, int | None] = {"1": lost_us}
    found = stretches(specs, links, {"1"}, taken, taken, {}, {links[1].id: told(links[1])})
    first, second = found["1"].begin, found["2"].begin
    assert first is not None
    assert second is not None
    whole = windows(times, *inner)
    given_there = {start: members for start, members in whole.items() if start >= first.us}
    later = windows([at for at in times if at > lost_us], *inner)
    assert given_there == {start: members for start, members in later.items() if start >= first.us}
    for start, members in windows([start + inner[0] for start in whole], *outer).items():
        if start >= second.us:
            assert windows([start + inner[0] for start in given_there], *outer).get(start) == members


@given(rows, rows, st.integers(-5, 10), st.integers(-5, 10), st.integers(0, 60), st.booleans())
def test_pairs_are_whole_from_the_first_one_that_is_given(
    left: list[int], right: list[int], before: int, after: int, lost_us: int, by_right: bool
):
    specs, links = chain(join(before, after, TIMES[1:] if by_right else TIMES))
    taken: dict[str, int | None] = {"1": lost_us}
    found = stretches(specs, links, {"1"}, taken, taken, {}, {links[1].id: told(links[1])})["1"]
    assert found.begin is not None

    def pairs(lefts: list[int], rights: list[int]) -> list[tuple[int, int]]:
        made = [(a, b) for a in lefts for b in rights if a - before <= b <= a + after]
        return sorted(pair for pair in made if pair[by_right] >= found.begin.us)  # type: ignore[union-attr]

    def alone(lefts: list[int], rights: list[int]) -> list[int]:
        return sorted(a for a in lefts if a >= found.begin.us and not any(a - before <= b <= a + after for b in rights))  # type: ignore[union-attr]

    remaining = [at for at in left if at > lost_us], [at for at in right if at > lost_us]
    assert pairs(*remaining) == pairs(left, right)
    if not by_right:
        assert alone(*remaining) == alone(left, right)
    missing = sorted(set(pairs_of(left, right, before, after)) - set(pairs_of(*remaining, before, after)))
    assert all(max(pair) < found.whole_us for pair in missing)


def pairs_of(lefts: list[int], rights: list[int], before: int, after: int) -> list[tuple[int, int]]:
    return [(a, b) for a in lefts for b in rights if a - before <= b <= a + after]


def test_a_left_join_keeps_the_time_that_it_leaves_rows_out_by():
    plan = plan_of(
        "CREATE SINK o AS SELECT u.ts, s.k FROM s LEFT JOIN u ON s.k = u.k AND u.ts BETWEEN s.ts AND s.ts + INTERVAL '2 s' "
        "WITH (connector = 'file', path = 'o.csv')"
    )
    [params] = [one.params for one in plan.operators if isinstance(one.params, JoinParams)]
    assert begin(params, 35) is not None
