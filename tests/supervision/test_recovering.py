"""Recoveries of queries act only once the keepers of the queries' records know which rows are lost."""

import pytest

from sbon.errors import PlacementError, SbonError
from sbon.links.link_names import link_id
from sbon.query.params.rowwise import MapParams
from sbon.query.params.source import SinkParams, SourceParams
from sbon.query.plan import LinkSpec, OperatorSpec, Plan
from sbon.supervision.deployment import Deployed
from sbon.supervision.dropped import drop_all_but
from sbon.supervision.generations import GENERATION
from sbon.supervision.record import QueryRecord
from sbon.supervision.recovering import Recovering, over_beside, picture_of, take_over
from sbon.supervision.recovery import Recovered
from sbon.wire.deployment import Instantiate, Renew, Renewed
from sbon.wire.reports import OperatorReport
from tests.recorder import FakeHost, Recorder

QUERY = "ams.0000001.01"
SOURCE, MAP, SINK = (f"{QUERY}.{number}" for number in range(3))
SPECS = (
    OperatorSpec(SOURCE, SourceParams("s", "tcp", (), (), None), (), None, "fra", "", 0),
    OperatorSpec(MAP, MapParams(None, None), (), None, None, "s"),
    OperatorSpec(SINK, SinkParams("k", "file", (("path", "k.csv"),)), (), None, "nyc", ""),
)
LINKS = tuple(LinkSpec(link_id(a, b, 0), a, b, 0, 1.0, 1.0) for a, b in ((SOURCE, MAP), (MAP, SINK)))


@pytest.mark.parametrize("problem", [None, PlacementError("too few keepers answer")])
def test_an_operator_is_made_when_it_is_known_what_is_lost_with_the_former_one(problem: SbonError | None) -> None:
    record = QueryRecord(Plan(QUERY, "k", "", SPECS, LINKS), Deployed(SPECS, LINKS, {SOURCE: "fra", MAP: "osl", SINK: "nyc"}), "ams", 0.0)
    healing, host, messages, owners = record.health.healing, FakeHost(), Recorder(me="ams"), Recorder()
    healing.is_on = True
    alive = frozenset({"ams", "fra", "nyc", "rio"})
    recovering = Recovering(
        host, messages, lambda: alive, lambda *given: given[-1]({MAP: "rio"}), owners.permit, lambda *given: None, lambda record: None
    )
    record.node_failed("osl")
    recovering.look(record)
    owners.pop("permit").done(None)
    for node, link, rows, made in (("nyc", LINKS[1], 25, None), ("fra", LINKS[0], 70, 30)):
        call = messages.pop("request", node)
        assert isinstance(call.given[1], Renew)
        call.given[2](Renewed(link, 4, rows, 0, made=made))

    assert messages.calls == []
    assert (healing.account.rows, [one.is_open for one in healing.account.history]) == (5, [True])
    owners.pop("permit").done(problem)
    host.wait()
    asked = [call.given[1] for call in messages.calls]
    assert [type(message) for message in asked] == ([Instantiate] if problem is None else [])
    assert healing.step.endswith("are being made again on rio" if problem is None else "too few keepers answer")


def test_nothing_is_made_again_while_a_sink_may_be_about_to_take_another_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    record = QueryRecord(Plan(QUERY, "k", "", SPECS, LINKS), Deployed(SPECS, LINKS, {SOURCE: "fra", MAP: "osl", SINK: "nyc"}), "ams", 0.0)
    record.health.healing.is_on = True
    owners, alive = Recorder(), frozenset({"ams", "fra", "nyc", "rio"})
    recovering = Recovering(
        FakeHost(), Recorder(me="ams"), lambda: alive, Recorder().replace, owners.permit, lambda *given: None, lambda record: None
    )
    holds = {QUERY}
    monkeypatch.setattr(recovering.replans, "holds", holds.__contains__)
    record.node_failed("osl")
    recovering.look(record)
    assert owners.calls == []
    holds.clear()
    recovering.look(record)
    assert owners.calls_of("permit")


def test_a_sink_s_file_has_rows_of_former_plans_so_that_nobody_knows_where_those_of_the_present_one_begin() -> None:
    for is_replanned, begun_at in ((False, {SINK: 12}), (True, {})):
        record = QueryRecord(Plan(QUERY, "k", "", SPECS, LINKS), Deployed(SPECS, LINKS, {SOURCE: "fra", SINK: "nyc"}), "ams", 0.0)
        record.health.healing.plans.is_replanned = is_replanned
        record.reported(OperatorReport(SINK, "running", "nyc", begun_at=12))
        assert record.health.healing.begun_at == begun_at


def test_an_operator_that_was_over_is_lost_again_with_what_is_beside_it() -> None:
    """Otherwise its feeders would have no consumer and its consumers no feeder: the attempt would be repeated for ever."""
    record = QueryRecord(Plan(QUERY, "k", "", SPECS, LINKS), Deployed(SPECS, LINKS, {SOURCE: "fra", MAP: "osl", SINK: "nyc"}), "ams", 0.0)
    record.health.healing.over = {SOURCE, MAP}
    alive = frozenset({"ams", "fra", "nyc", "osl"})
    assert picture_of(record, alive, 1.0).lost == frozenset()
    record.node_failed("nyc")
    assert picture_of(record, alive, 1.0).lost == {SOURCE, MAP, SINK}

    take_over(record, Recovered({SINK: "nyc", MAP: "osl"}, GENERATION, (), {}, 1, 2.0, over=frozenset({SOURCE})))
    assert record.health.healing.over == {SOURCE}
    assert picture_of(record, alive, 1.0).lost == frozenset()


def test_of_what_was_over_only_what_is_beside_a_lost_one_is_lost() -> None:
    links = tuple(LinkSpec(link_id(a, b, 0), a, b, 0, 1.0, 1.0) for a, b in ("ab", "bc", "cd", "de"))
    assert over_beside(links, {"b"}, {"a", "c", "e"}) == {"a", "c"}
    assert over_beside(links, {"b"}, {"a", "c", "d", "e"}) == {"a", "c", "d", "e"}
    assert over_beside(links, set(), {"a", "c"}) == frozenset()


def test_what_had_finished_of_a_dropped_query_is_made_again_with_what_it_fed() -> None:
    """Otherwise the failed host would be asked for ever how far the finished operator had come."""
    record = QueryRecord(Plan(QUERY, "k", "", SPECS, LINKS), Deployed(SPECS, LINKS, {SOURCE: "fra", MAP: "osl", SINK: "nyc"}), "ams", 0.0)
    record.reported(OperatorReport(SOURCE, "finished", "fra"))
    drop_all_but(record, frozenset({SOURCE, MAP}))
    alive = frozenset({"ams", "nyc", "rio"})
    record.node_failed("fra")
    assert picture_of(record, alive, 1.0).lost == frozenset()
    record.node_failed("osl")
    assert picture_of(record, alive, 1.0).lost == {SOURCE, MAP}


def test_rows_without_an_event_time_are_not_late_in_another_order() -> None:
    record = QueryRecord(Plan(QUERY, "k", "", SPECS, LINKS), Deployed(SPECS, LINKS, {SOURCE: "fra", MAP: "osl", SINK: "nyc"}), "ams", 0.0)
    record.reported(OperatorReport(MAP, "running", "osl", late_rows=3, untimed_rows=3))
    assert picture_of(record, frozenset(), 1.0).late == frozenset()
    record.reported(OperatorReport(MAP, "running", "osl", late_rows=4, untimed_rows=3))
    record.reported(OperatorReport(SINK, "running", "nyc", late_rows=1))
    assert picture_of(record, frozenset(), 1.0).late == {MAP, SINK}


def test_a_multicast_that_is_gone_is_not_asked_how_far_it_is() -> None:
    """The source may have begun the link again in an attempt that has failed since."""
    cast = f"{SOURCE}~0123456789"
    record = QueryRecord(Plan(QUERY, "k", "", SPECS, LINKS), Deployed(SPECS, LINKS, {SOURCE: "fra", MAP: "osl", SINK: "nyc"}), "ams", 0.0)
    begun = (f"{LINKS[0].id}+1", 0, 0.0, 0.0, 0.0)
    record.reported(OperatorReport(SOURCE, "running", "fra", multicasts=((cast, "rio", 2),)))
    record.reported(OperatorReport(cast, "running", "rio", links=((LINKS[0].id, 0, 0.0, 0.0, 0.0),)))
    assert picture_of(record, frozenset(), 1.0).carriers == {LINKS[0].id: cast}
    record.node_failed("rio")
    assert picture_of(record, frozenset(), 1.0).given_up == {LINKS[0].id}
    record.reported(OperatorReport(SOURCE, "running", "fra", multicasts=((cast, "rio", 2),), links=(begun,)))
    assert picture_of(record, frozenset(), 1.0).carriers == {}
