"""The record of a query holds all that its next owner needs; reports of hosts override the record."""

import msgspec
import pytest

from sbon.links.link_names import link_id
from sbon.query.params.rowwise import MapParams
from sbon.query.params.source import SinkParams
from sbon.query.plan import LinkSpec, OperatorSpec, Plan
from sbon.supervision import kept_record
from sbon.supervision.continuation import Continuation
from sbon.supervision.deployment import Deployed
from sbon.supervision.dropped import drop_all_but, is_dropped, is_unused, used_by_others
from sbon.supervision.generations import first_epoch
from sbon.supervision.kept_record import decode_content, encode_content, left_of, record_from
from sbon.supervision.owning import Owning, Phase
from sbon.supervision.record import QueryRecord, QueryState
from sbon.supervision.recovering import given_up, picture_of
from sbon.supervision.recovery import Recovered
from sbon.supervision.resumption import KeptQuery
from sbon.supervision.succession import Owned
from sbon.wire.deployment import User
from sbon.wire.ownership import Holder, Record
from sbon.wire.reports import OperatorReport

QUERY = "ams.0000001.01"
FIRST = "rio.0000000.01"
MAP, SINK = f"{QUERY}.0", f"{QUERY}.1"
CAST = f"{MAP}~4e6ee81651"
SPECS = (
    OperatorSpec(MAP, MapParams(None, None), (), None, None, "s"),
    OperatorSpec(SINK, SinkParams("k", "file", (("path", "k.csv"),)), (), None, "nyc", ""),
)
LINK = LinkSpec(link_id(MAP, SINK, 0), MAP, SINK, 0, 10.0, 20.0)
PLAN = Plan(QUERY, "k", "CREATE SINK k ...", SPECS, (LINK,), max_latency_ms=50.0)


def record() -> QueryRecord:
    one = QueryRecord(PLAN, Deployed(SPECS, (LINK,), {MAP: "fra", SINK: "nyc"}), "ams", 100.0)
    one.epochs.update({MAP: 3})
    one.former, one.history.first, one.bounds.told_ms = "ams.0000000.01", FIRST, 7.5
    one.history.placed(one.nodes, 100.0)
    one.history.migrations = 2
    one.reported(OperatorReport(MAP, "running", "fra", epoch=3, multicasts=((CAST, "rio", 2),)))
    one.reported(OperatorReport(CAST, "running", "rio", links=((LINK.id, 0, 0, 0.0, 0.0),)))
    healing = one.health.healing
    healing.attempted, healing.turned = 2**17, frozenset({SINK, "another"})
    healing.begun_at[SINK], healing.named = 12, 7
    healing.over.add("x")
    healing.account.add(Recovered({MAP: "fra"}, 65_536, (LINK,), {MAP: Continuation(lost_rows={LINK.id: 4}, is_exact=False)}, 1, 2.5))
    return one


def carriers(one: QueryRecord) -> dict[str, str]:
    return one.multicasts.carriers(one.links, one.reports)


def test_the_next_owner_knows_what_the_former_one_knew():
    before = record()
    after = record_from(decode_content(encode_content(before)), "ams", (), "osl", 1000.0, 130.0)
    assert (after.plan, after.specs, after.links) == (before.plan, before.specs, before.links)
    assert (after.nodes, after.epochs, after.former, after.history.migrations) == (before.nodes, before.epochs, before.former, 2)
    assert after.history.first == FIRST
    assert [one.event for one in after.history.latest(9)] == ["placed", "inherited"]
    assert after.multicasts.feeders == {CAST: MAP}
    assert carriers(after) == carriers(before) == {LINK.id: CAST}
    assert (after.started_wall_s, after.bounds.told_ms, after.owner) == (100.0, 7.5, "osl")
    ours, theirs = after.health.healing, before.health.healing
    assert ours.is_on
    assert (ours.attempted, ours.begun_at, ours.over, ours.named) == (theirs.attempted, theirs.begun_at, theirs.over, 7)
    assert ours.turned == {SINK}
    assert ours.began_s == 970.0
    assert (ours.account.rows, ours.account.missing, ours.account.is_exact, ours.account.recoveries) == (4, {LINK.id: 4}, False, 1)
    assert ours.account.told(str) == theirs.account.told(str)


def test_the_next_owner_knows_that_a_query_has_been_dropped_and_what_is_to_end():
    before = record()
    drop_all_but(before, frozenset({MAP}))
    after = record_from(decode_content(encode_content(before)), "ams", (), "osl", 1000.0, 130.0)
    assert (is_dropped(after), is_dropped(record())) == (True, False)
    assert (after.name, after.nodes, after.links, after.health.healing.turned) == (QUERY, {MAP: "fra"}, (), frozenset())
    assert after.health.healing.plans.retiring == {SINK: "nyc", CAST: "rio"}
    after.settle()
    assert after.state is QueryState.SHARED
    coming = Owned(Owning(QUERY, Holder("osl", 1)), Record(QUERY, 1, 1, Holder("ams", 1), (), encode_content(before)))
    coming.holders = ((Holder("osl", 1),),)
    assert coming.coming == KeptQuery(QUERY, PLAN.sql, "", ("nyc",), "ams.0000000.01", holders=coming.holders, dropped=True, first=FIRST)


def test_the_next_owner_makes_lost_operators_again_for_others_that_use_them_too():
    before, theirs = record(), (User(QUERY, "ams"), User("nyc.0000001.01", "nyc"))
    before.reported(OperatorReport(MAP, "running", "fra", users=theirs))
    before.reported(OperatorReport(SINK, "running", "nyc", users=theirs[:1]))
    content = decode_content(encode_content(before))
    assert content.others == {MAP: theirs[1:]}, "only operators with other users are written"
    after = record_from(content, "ams", (), "osl", 1000.0, 130.0)
    assert picture_of(after, frozenset(), 0.0).users == {MAP: theirs[1:]}
    drop_all_but(after, frozenset({MAP}))
    assert not is_unused(after)


def test_a_dropped_query_keeps_what_others_use_and_what_feeds_that():
    one, theirs = record(), (User(QUERY, "ams"), User("nyc.0000001.01", "nyc"))
    assert not used_by_others(one)
    one.reported(OperatorReport(SINK, "running", "nyc", users=theirs))
    assert not used_by_others(one), "nobody uses the sink of another query, whatever its host says"
    one.reported(OperatorReport(CAST, "running", "rio", users=theirs))
    assert not used_by_others(one), "a multicast serves the users of the operator that it carries"
    one.reported(OperatorReport(MAP, "running", "fra", users=theirs, multicasts=((CAST, "rio", 2),)))
    assert used_by_others(one) == {MAP, CAST}
    behind = f"{QUERY}.2"
    one.nodes[behind], one.links = "osl", (LinkSpec(link_id(MAP, behind, 0), MAP, behind, 0, 10.0, 20.0),)
    one.health.healing.others = {behind: theirs[1:]}
    one.specs[behind] = SPECS[0]
    assert used_by_others(one) == {MAP, behind}, "users of an operator use its feeders; where a host is silent, the record counts"


def test_a_dropped_query_is_over_when_nobody_else_uses_it():
    one, theirs = record(), (User(QUERY, "ams"), User("nyc.0000001.01", "nyc"))
    drop_all_but(one, frozenset({MAP}))
    one.health.healing.others.clear()
    assert not is_unused(one), "the hosts have not reported"
    one.reported(OperatorReport(MAP, "running", "fra", users=theirs))
    assert not is_unused(one)
    one.node_failed("fra")
    assert one.lost == {MAP}
    assert not is_unused(one), "the lost operator is made again for the others"
    one.reported(OperatorReport(MAP, "finished", "fra", users=theirs))
    assert not is_unused(one)
    one.node_failed("fra")
    assert (one.lost, is_unused(one)) == (frozenset(), True), "the lost operator had finished"
    one.reported(OperatorReport(MAP, "running", "fra", users=theirs[:1]))
    assert is_unused(one)


def test_the_next_owner_knows_what_an_attempt_that_is_not_over_has_thrown_away():
    before = record()
    lost = Recovered({MAP: "osl"}, 2 * 65_536, (), {MAP: Continuation(lost_rows={LINK.id: 3})}, 2, 1.5)
    before.health.healing.account.begun(lost)
    after = record_from(decode_content(encode_content(before)), "ams", (), "osl", 1000.0, 130.0).health.healing.account
    assert after.rows == 7
    assert [one.is_open for one in after.history] == [False, True]


def test_what_hosts_say_counts_more_than_the_record():
    content = decode_content(encode_content(record()))
    later = OperatorReport(MAP, "running", "rio", epoch=65_536, links=((f"{LINK.id}+1", 0, 0, 0.0, 0.0),))
    older = OperatorReport(MAP, "running", "fra", epoch=2, links=((f"{LINK.id}+9", 0, 0, 0.0, 0.0),))
    after = record_from(content, "ams", (later, older), "osl", 0.0, 0.0)
    assert (after.nodes[MAP], after.epochs[MAP]) == ("rio", 65_536)
    assert [link.id for link in after.links] == [f"{LINK.id}+1"]
    sink = OperatorReport(SINK, "running", "nyc", received=((f"{LINK.id}+2", 0),))
    apart = record_from(content, "ams", (later, sink), "osl", 0.0, 0.0)
    assert [link.id for link in apart.links] == [f"{LINK.id}+2"], "the latest of the names at the two ends counts"
    stale = record_from(content, "ams", (older,), "osl", 0.0, 0.0)
    assert (stale.nodes[MAP], stale.epochs[MAP]) == ("fra", 3)
    waits = OperatorReport(MAP, "prepared", "rio", epoch=4, links=((f"{LINK.id}+4", 0, 0, 0.0, 0.0),))
    unmoved = record_from(content, "ams", (waits,), "osl", 0.0, 0.0)
    assert (unmoved.nodes[MAP], unmoved.links) == ("fra", (LINK,)), "a prepared copy may never be told to run"
    other = record_from(content, "ams", (OperatorReport("other.1", "running", "rio"),), "osl", 0.0, 0.0)
    assert other.nodes == {MAP: "fra", SINK: "nyc", CAST: "rio"}


def test_the_next_process_of_a_new_owner_knows_the_query_while_it_is_being_taken_over():
    me = Holder("osl", 4)
    version = Record(QUERY, 0, 3, Holder("ams", 1), ((Holder("ams", 1), Holder("nyc", 2), me),), encode_content(record()))
    one = Owned(Owning(QUERY, me, 1, version), version)
    assert one.coming is None, "no other holder has a version"
    one.holders = version.sets
    assert one.coming == KeptQuery(QUERY, PLAN.sql, "k", ("nyc",), "ams.0000000.01", holders=version.sets, first=FIRST)
    one.holders = ()
    one.machine.phase = Phase.ALONE
    assert one.coming == KeptQuery(QUERY, PLAN.sql, "k", ("nyc",), "ams.0000000.01", first=FIRST), "this agent alone has it"
    unreadable = msgspec.structs.replace(version, content=b"?")
    assert Owned(Owning(QUERY, me, 1, unreadable), unreadable).coming is None
    one.inherited = None
    assert one.coming is None, "the query runs here"


def used_by(user: str, query: str = QUERY) -> bytes:
    """Returns the record's content for a query of ams whose first operator another query uses."""
    one = record()
    one.health.healing.others[MAP] = (User(user, "ams"),)
    return encode_content(one).replace(QUERY.encode(), query.encode())


def test_of_queries_that_use_operators_of_one_another_those_live_on_that_a_living_one_uses_in_the_end():
    second, third = "ams.0000001.02", "ams.0000001.03"
    records = {QUERY: used_by(second), second: used_by(third, second)}
    assert not left_of(records, {third}, {}, "ams", 0.0, 0.0)
    left = left_of(records, (), {second: 3}, "ams", 0.0, 0.0)
    assert {query: (record.state, *record.specs) for query, record in left.items() if isinstance(record, QueryRecord)} == {
        second: (QueryState.SHARED, f"{second}.0"),
        QUERY: (QueryState.SHARED, MAP),
    }
    unreadable = left_of({QUERY: b"?"}, (), {}, "ams", 0.0, 0.0)[QUERY]
    assert isinstance(unreadable, ValueError)


def test_what_begins_anew_under_the_next_owner_has_numbers_that_no_former_one_had():
    after = record_from(decode_content(encode_content(record())), "ams", (), "osl", 0.0, 0.0, ownership=3)
    assert after.health.healing.begins_anew() > first_epoch(3) > 2**17
    assert after.health.healing.begins_anew() < first_epoch(4)


def test_a_multicast_that_has_ended_since_carries_nothing():
    after = record_from(decode_content(encode_content(record())), "ams", (), "osl", 0.0, 0.0)
    after.reported(OperatorReport(MAP, "running", "fra", epoch=3, links=((LINK.id, 0, 0, 0.0, 0.0),)))
    assert carriers(after) == {LINK.id: MAP}
    assert CAST not in after.nodes


def test_a_link_is_given_up_once_its_source_has_not_got_it_and_the_multicast_that_had_it_is_lost():
    after = record_from(decode_content(encode_content(record())), "ams", (), "osl", 0.0, 0.0)
    after.node_failed("rio")
    assert given_up(after) == frozenset(), "no host has reported yet"
    after.reported(OperatorReport(MAP, "running", "fra", epoch=3, multicasts=((CAST, "rio", 2),)))
    assert given_up(after) == {LINK.id}
    after.reported(OperatorReport(CAST, "running", "rio", links=((LINK.id, 0, 0, 0.0, 0.0),)))
    assert given_up(after) == frozenset(), "the multicast is back and has the link"


def test_a_multicast_that_has_not_reported_may_have_the_link():
    before = QueryRecord(PLAN, Deployed(SPECS, (LINK,), {MAP: "fra", SINK: "nyc"}), "ams", 100.0)
    before.reported(OperatorReport(MAP, "running", "fra", multicasts=((CAST, "rio", 2),)))
    assert given_up(before) == frozenset()
    before.reported(OperatorReport(CAST, "running", "rio"))
    assert given_up(before) == {LINK.id}


def test_a_record_that_is_too_large_is_not_kept(monkeypatch: pytest.MonkeyPatch):
    size = len(encode_content(record()))
    monkeypatch.setattr(kept_record, "RECORD_BYTES_MAX", size - 1)
    with pytest.raises(ValueError, match=f"has {size} bytes, expected at most {size - 1}: no other agent can take it over"):
        encode_content(record())


@pytest.mark.parametrize("data", [b"", b"\x80", b"\xc1", b"\x91" * 5000, msgspec.msgpack.encode({"format": 1})])
def test_other_bytes_are_no_record(data: bytes):
    with pytest.raises(ValueError, match="does not decode"):
        decode_content(data)


def test_a_later_format_is_refused():
    content = msgspec.msgpack.decode(encode_content(record()))
    with pytest.raises(ValueError, match="format 2, expected 1"):
        decode_content(msgspec.msgpack.encode({**content, "format": 2}))
