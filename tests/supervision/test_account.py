"""The account of the losses of a query by crashes, over several attempts to make its operators again."""

import msgspec

from sbon.links.link_names import first_name
from sbon.query.params.windowed import WindowParams
from sbon.query.plan import Begin, LinkSpec
from sbon.supervision.account import Account, Healing, cost_of
from sbon.supervision.continuation import Continuation, merged
from sbon.supervision.crash_analysis import Crash, continuations
from sbon.supervision.generations import GENERATION
from sbon.supervision.recovery import Recovered
from sbon.watermarks import WATERMARK_END
from sbon.wire.deployment import Renewed
from sbon.wire.reports import OperatorReport
from tests.supervision.test_continuation import FILE, SINK, answer, chain, spec

WINDOW = WindowParams("ts", 10, 10, (), ())


def attempt(epoch: int, rows: int = 0, *, windows: int | None = 0, over: frozenset[str] = frozenset(), **nodes: str) -> Recovered:
    lost = {one: Continuation(lost_rows={f"{one}>k:0": rows}, windows=windows) for one in nodes}
    return Recovered(nodes, epoch, (), lost, 1, 0.5, over)


def test_what_an_attempt_has_thrown_away_is_lost_though_none_succeeds():
    account = Account()
    account.begun(attempt(1, 5, windows=2, a="ams"))
    account.begun(attempt(2, 3, windows=1, a="osl"))
    assert (account.rows, account.recoveries) == (8, 0)
    [cost] = map(cost_of, account.history)
    assert (cost.rows, cost.windows) == (8, 3)
    assert account.sentences(str) == ["a (a) is being made again on osl after a crash: 8 rows lost"]


def test_what_runs_again_has_cost_what_all_attempts_have():
    account = Account()
    account.begun(attempt(1, 5, a="ams"))
    account.begun(attempt(2, 3, a="osl"))
    done = account.add(attempt(2, 3, a="osl"))
    assert done is not None
    assert (account.rows, cost_of(done).rows, account.recoveries, account.history) == (8, 8, 1, [done])
    assert account.sentences(str) == ["a (a) runs again on osl after a crash: 8 rows lost"]


def test_rows_that_a_sink_had_taken_and_not_written_are_counted_once_with_its_latest_recovery():
    account = Account()
    account.not_written("a", 0)
    assert (account.rows, account.history) == (0, [])
    for epoch, rows in ((1, 5), (2, 7)):
        account.add(attempt(epoch, a="ams"))
        for _ in range(2):
            account.not_written("a", rows)
    assert (account.rows, account.missing["a"], [cost_of(one).rows for one in account.history]) == (7, 7, [5, 2])


def rejoined(made: tuple[int, ...] | None, name: str = "s>u:0+1") -> Account:
    """Returns the account after a feeder of a union is back. The consumer had 27 rows of that feeder; `made` counts the rows of the union
    that came from rows which the feeder has forgotten.
    """
    account = Account()
    go_on = Continuation(skips={"u>k:0": (27, 0)}, made={"s>u:0": (0,), "t>u:0": (11,)})
    account.add(Recovered({"u": "ams"}, GENERATION, (), {"u": go_on}, 1, 0.5))
    account.rejoined(LinkSpec(name, "s", "u", 0, 1.0, 1.0), made, [LinkSpec("u>k:0+1", "u", "k", 0, 1.0, 1.0)])
    return account


def test_what_a_feeder_that_was_away_has_forgotten_and_no_consumer_has_had_is_lost():
    account = rejoined((31,))
    assert (account.missing, account.is_exact) == ({"u>k:0": 4}, True)
    assert account.sentences(str) == ["u (u) runs again on ams after a crash: 4 rows lost"]
    assert rejoined((27,)).missing == rejoined((20,)).missing == {}


def test_what_a_feeder_has_forgotten_is_counted_about_where_it_does_not_know_it_and_only_when_it_is_back():
    account = rejoined(None)
    assert (account.missing, account.is_exact) == ({}, False)
    assert rejoined((31,), "s>u:0+2").missing == {}, "the feeder has been back since that recovery"


def test_an_operator_that_is_over_before_an_attempt_succeeds_has_cost_what_the_former_attempt_has_thrown_away():
    account = Account()
    account.begun(attempt(1, 5, a="ams"))
    done = account.add(attempt(2, over=frozenset({"a"})))
    assert done is not None
    assert (done.nodes, account.rows, account.recoveries) == ({"a": "ams"}, 5, 1)
    assert account.add(attempt(3, over=frozenset({"b"}))) is None
    assert account.recoveries == 1


def test_an_operator_that_waits_while_others_run_again_is_on_its_way_still():
    account = Account()
    account.begun(attempt(1, 5, a="ams", b="fra"))
    account.begun(attempt(2, 0, a="osl"))
    done = account.add(attempt(2, 0, a="osl"))
    assert done is not None
    assert (done.nodes, [one.nodes for one in account.history if one.is_open]) == ({"a": "osl"}, [{"b": "fra"}])
    account.add(attempt(4, 1, b="fra"))
    assert (account.rows, account.recoveries, [cost_of(one).rows for one in account.history]) == (11, 2, [5, 6])


def test_windows_that_a_former_attempt_has_left_out_are_not_counted_again():
    specs, links = chain(FILE, spec("w", WINDOW), SINK)
    account, consumers = Account(), {links[1].id: answer(links[1], 2, 3, watermark_us=20)}

    def go_on_at(until_us: int | None) -> Continuation:
        feeders: dict[str, Renewed] = {}
        if until_us is not None:
            feeders[links[0].id] = answer(links[0], 4, 40, watermark_us=until_us)
        return continuations(Crash(specs, links, {"w"}, consumers, feeders, account.missing, (), account.lacking))["w"]

    for epoch, (until_us, windows, lacks_us) in enumerate([(35, 4, 40), (35, 0, 40), (None, 0, 40), (62, 2, 67)], 1):
        go_on = go_on_at(until_us)
        assert (go_on.windows, go_on.state_until_us, go_on.begin) == (windows, lacks_us, Begin("window_start", lacks_us // 10 * 10 + 10))
        account.begun(Recovered({"w": "ams"}, epoch, (), {"w": go_on}, 1, 0.5))
    assert [cost_of(one).windows for one in account.history] == [6]


def test_of_two_attempts_the_worse_is_said():
    one = Continuation(is_exact=False, watermark_out_us=7, state_until_us=9, windows=None)
    both = merged(one, Continuation(watermark_out_us=WATERMARK_END, repeats_all=True))
    assert (both.is_exact, both.watermark_out_us, both.state_until_us, both.windows, both.repeats_all) == (False, 7, 9, None, True)


def test_a_sink_that_began_anew_has_to_say_that_it_found_its_rows_by_origin():
    account = Account()
    go_on = {"k": Continuation(is_exact=True, by_word=True)}
    account.begun(Recovered({"k": "a"}, GENERATION, (), go_on, 1, 0.5))
    account.not_found("k", 2 * GENERATION)
    account.not_found("f", GENERATION)
    assert account.is_exact
    account.not_found("k", GENERATION)
    assert not account.is_exact
    assert not account.history[0].go_on["k"].is_exact


def test_a_source_has_been_left_behind_if_its_consumer_began_anew_with_what_that_feeds():
    """The links are those of `chain`, as the recovery named them."""
    _, [link, onward] = chain(FILE, spec("u", SINK.params), SINK)
    link, onward = (msgspec.structs.replace(one, id=f"{one.id}+1") for one in (link, onward))
    alone = Continuation(made={first_name(link.id): (0,)})
    for go_on, made, epoch, is_left in (
        ({"u": alone, SINK.id: Continuation()}, (0,), GENERATION, True),
        ({"u": alone}, (0,), GENERATION, False),
        ({"u": alone, SINK.id: Continuation()}, (5,), GENERATION, False),
        ({"u": alone, SINK.id: Continuation()}, (0,), 2 * GENERATION, False),
    ):
        account = Account()
        known = {**go_on, "u": Continuation(made={first_name(link.id): made})}
        account.begun(Recovered(dict.fromkeys(known, "a"), epoch, (), known, 1, 0.5))
        assert account.has_begun_without(link, [link, onward]) is is_left


def test_a_sink_compares_rows_until_it_says_where_its_rows_begin():
    healing = Healing()
    healing.begun_at["k"] = 7
    healing.begun(Recovered({"k": "a"}, GENERATION, (), {"k": Continuation(by_word=True, matches=True)}, 1, 0.5))
    assert healing.account.matching == {"k"}
    for epoch, begun_at, is_matching in (GENERATION, None, True), (0, 7, True), (GENERATION, 7, False):
        healing.heard_begin(OperatorReport("k", "running", "a", epoch=epoch, begun_at=begun_at))
        assert (healing.account.matching == {"k"}) is is_matching
    assert healing.begun_at == {"k": 7}
