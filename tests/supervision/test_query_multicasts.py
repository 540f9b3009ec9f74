"""The home of a query knows the multicasts on its links from reports alone."""

import pytest

from sbon.query.params.rowwise import MapParams
from sbon.query.plan import LinkSpec, OperatorSpec, Plan
from sbon.supervision.deployment import Deployed
from sbon.supervision.multicasts import MISSED_MAX, QueryMulticasts
from sbon.supervision.record import QueryRecord
from sbon.wire.reports import OperatorReport

QUERY = "ams.0000001.01"


def report(operator: str, *multicasts: tuple[str, str, int], links: tuple[tuple[str, float], ...] = ()) -> OperatorReport:
    sent = tuple((link, 0, 0, 0.0, rate) for link, rate in links)
    return OperatorReport(id=operator, state="running", node="n", multicasts=multicasts, links=sent)


@pytest.fixture
def known() -> tuple[QueryMulticasts, dict[str, str]]:
    """Returns the multicasts of a query, where an operator feeds a multicast that feeds another, and the nodes."""
    multicasts, nodes = QueryMulticasts(), {"q.1": "ams"}
    assert multicasts.heard(report("q.1", ("m", "fra", 2)), nodes) == []
    assert multicasts.heard(report("m", ("m2", "sin", 1)), nodes) == []
    return multicasts, nodes


def test_multicasts_are_learnt_from_the_operators_that_feed_them(known):
    multicasts, nodes = known
    assert multicasts.feeders == {"m": "q.1", "m2": "m"}
    assert nodes == {"q.1": "ams", "m": "fra", "m2": "sin"}


def test_a_multicast_that_its_feeder_lists_no_more_has_ended_and_those_behind_it(known):
    multicasts, nodes = known
    assert multicasts.heard(report("q.1"), nodes) == ["m", "m2"]
    assert multicasts.feeders == {}
    assert nodes == {"q.1": "ams"}


def test_a_multicast_counts_as_lost_after_several_misses_and_not_if_it_is_heard_in_between(known):
    multicasts, nodes = known
    assert [multicasts.missed("m") for _ in range(MISSED_MAX + 1)] == [False] * MISSED_MAX + [True]
    multicasts.heard(report("m"), nodes)
    assert not multicasts.missed("m")


def test_a_link_may_be_carried_by_a_multicast_that_has_not_reported_yet(known):
    multicasts, _ = known
    assert multicasts.carry("q.1", "a>b:0", {})
    assert not multicasts.carry("q.1", "a>b:0", {"m": report("m"), "m2": report("m2")})
    assert multicasts.carry("q.1", "a>b:0", {"m": report("m"), "m2": report("m2", links=(("a>b:0", 1.0),))})
    assert not multicasts.carry("other", "a>b:0", {})


def test_a_multicast_that_has_ended_without_its_feeder_carries_nothing(known):
    multicasts, _ = known
    told = {"m": report("m", links=(("a>b:0", 1.0),)), "m2": report("m2", links=(("a>b:0", 1.0),))}
    assert not multicasts.carry("q.1", "a>b:0", told, ["m"])
    assert not multicasts.carry("q.1", "a>b:0", {}, ["m"])
    assert multicasts.carry("q.1", "a>b:0", told, ["m2"])


def test_queries_that_share_a_multicast_share_what_feeds_it(known):
    multicasts, _ = known
    reports = {"q.1": report("q.1", links=(("q.1>m:0", 80.0), ("q.1>x:0", 5.0))), "m": report("m", links=(("m>m2:0", 30.0),))}
    assert list(multicasts.feeding(reports)) == [("q.1", "m", 40.0), ("m", "m2", 30.0)]


def test_a_link_of_a_multicast_that_is_missing_on_its_host_is_not_fed_though_the_feeder_lists_it() -> None:
    """A feeder that has sent everything does not notice that its multicast is gone."""
    source, target, cast = f"{QUERY}.0", f"{QUERY}.1", f"{QUERY}.0~0123456789"
    link = LinkSpec("a>b:0", source, target, 0, 1.0, 1.0)
    specs = tuple(OperatorSpec(name, MapParams(None, None), (), None, None, "") for name in (source, target))
    record = QueryRecord(Plan(QUERY, "k", "", specs, (link,)), Deployed(specs, (link,), {source: "fra", target: "osl"}), "ams", 0.0)
    record.reported(OperatorReport(source, "finished", "fra", multicasts=((cast, "rio", 1),)))
    record.reported(OperatorReport(target, "running", "osl"))
    record.reported(OperatorReport(cast, "running", "rio", links=((link.id, 0, 0, 0.0, 0.0),)))
    assert record.unfed_links() == []
    for _ in range(MISSED_MAX + 1):
        record.reported(OperatorReport(cast, "missing", "rio"))
    assert record.unfed_links() == [link]
