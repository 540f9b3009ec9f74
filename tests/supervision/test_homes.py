"""Queries whose home answers for them, and reports about orphans."""

from types import SimpleNamespace
from typing import Any

import pytest

from sbon.errors import LinkError
from sbon.membership.members import Member, MemberStatus
from sbon.queries.homes import Homes
from sbon.query.catalog import Entry
from sbon.query.ids import query_id
from sbon.supervision.homes import Doubt, HomeState, OrphanExpired, OrphanFound, Orphans, home_state, orphan_rows, still_doubted
from sbon.supervision.owners import Owner, Owners
from sbon.wire.ownership import Claims, Holder, Own
from sbon.wire.replication import Orphan, OrphanEnded, OrphanOperator, Unwanted, WantedAsk

OLD, NEW = 7, 8
QUERY = query_id("ams", OLD, 1)
SOURCE = OrphanOperator(f"{QUERY}.0", "source", "source s", True, 0)
AMS = Owner("ams", OLD)
SINK = OrphanOperator(f"{QUERY}.1", "sink", "sink k", True, 42)


def member(status: MemberStatus = MemberStatus.ALIVE, boot: int = OLD, since_s: float = 0.0) -> Member:
    return Member(name="ams", address=("127.0.0.1", 1), status=status, incarnation=1, boot=boot, labels={}, since_s=since_s)


def homes_among(members: dict[str, Member]) -> Any:
    host, gossip = SimpleNamespace(now=lambda: 0.0), SimpleNamespace(members=members)
    made: Any = Homes(host, SimpleNamespace(me="nyc"), gossip, None, None, Owners())  # type: ignore[arg-type]
    return made


def entry(query: str = QUERY) -> Entry:
    return Entry("sink", "k", 1, "ams", False, "CREATE SINK k ...", query=query)


@pytest.mark.parametrize(
    ("home", "state"),
    [
        (member(), HomeState.PRESENT),
        (member(MemberStatus.SUSPECT), HomeState.PRESENT),
        (member(boot=NEW), HomeState.RESTARTED),
        (member(MemberStatus.SUSPECT, boot=NEW), HomeState.RESTARTED),
        (member(MemberStatus.FAILED), HomeState.FAILED),
        (member(MemberStatus.LEFT, boot=NEW), HomeState.LEFT),
        (None, HomeState.UNKNOWN),
    ],
)
def test_a_home_is_present_while_the_process_that_took_the_query_is_a_living_member(home, state):
    assert home_state(home, OLD) is state


def test_an_orphan_is_told_once_and_forgotten_when_its_home_is_back():
    orphans = Orphans()
    failed = member(MemberStatus.FAILED, since_s=10.0)
    assert orphans.look({QUERY: AMS}, {"ams": member()}, 5.0, 0.0) == []
    assert orphans.look({QUERY: AMS}, {"ams": failed}, 12.0, 0.0) == [OrphanFound(QUERY, "ams", HomeState.FAILED)]
    assert orphans.look({QUERY: AMS}, {"ams": failed}, 13.0, 0.0) == []
    assert orphans.look({QUERY: AMS}, {}, 500.0, 0.0) == []
    assert orphans.since == {QUERY: 10.0}, "the orphan stays known when its home is no longer in the table of members"
    assert orphans.look({QUERY: AMS}, {"ams": member()}, 501.0, 0.0) == []
    assert orphans.since == {}


def test_an_orphan_expires_after_the_time_given_and_never_without_one():
    orphans = Orphans()
    failed = {"ams": member(MemberStatus.FAILED, since_s=10.0)}
    orphans.look({QUERY: AMS}, failed, 12.0, 30.0)
    assert orphans.look({QUERY: AMS}, failed, 39.9, 30.0) == []
    assert orphans.look({QUERY: AMS}, failed, 40.0, 30.0) == [OrphanExpired(QUERY, "ams", 30.0)]
    assert orphans.look({QUERY: AMS}, failed, 1e9, 0.0) == []


def test_a_restarted_home_is_gone_since_it_was_seen_not_since_it_is_alive():
    orphans = Orphans()
    orphans.look({QUERY: AMS}, {"ams": member(boot=NEW, since_s=1.0)}, 100.0, 30.0)
    assert orphans.since == {QUERY: 100.0}


def test_a_home_that_is_back_as_another_process_is_so_since_it_was_seen_however_long_it_had_failed():
    orphans = Orphans()
    orphans.look({QUERY: AMS}, {"ams": member(MemberStatus.FAILED, since_s=10.0)}, 12.0, 0.0)
    assert orphans.restarted == {}
    for now in (100.0, 101.0):
        orphans.look({QUERY: AMS}, {"ams": member(boot=NEW, since_s=99.0)}, now, 0.0)
        assert (orphans.since, orphans.restarted) == ({QUERY: 10.0}, {QUERY: 100.0})
    orphans.look({QUERY: AMS}, {"ams": member()}, 102.0, 0.0)
    assert orphans.restarted == {}


@pytest.mark.parametrize(
    ("members", "seconds", "asked"),
    [
        ({"ams": member()}, 0.0, "ams"),
        ({"ams": member(MemberStatus.FAILED)}, 0.0, None),
        ({"ams": member(MemberStatus.FAILED)}, 100.0, None),
        ({"ams": member(boot=NEW)}, 29.0, None),
        ({"ams": member(boot=NEW)}, 30.0, "ams"),
    ],
)
def test_a_home_is_asked_whether_a_query_is_over_unless_keepers_may_be_about_to_take_it_over(members, seconds, asked):
    homes, clock = homes_among(members), members["ams"].since_s
    homes._orphans.look({QUERY: AMS}, members, clock, 0.0)
    homes._host.now = lambda: clock + seconds
    assert homes.to_ask(QUERY, "ams", inherits=True) == asked
    assert homes.to_ask(QUERY, "ams", inherits=False) == "ams"


def test_whom_operators_were_made_for_is_asked_where_the_owner_heard_of_since_is_gone():
    failed = member(MemberStatus.FAILED)
    homes = homes_among({"ams": member(), "fra": member()})
    homes._owners.heard(QUERY, fra := Owner("fra", OLD, 1))
    assert homes.to_ask(QUERY, "ams", inherits=True) == "fra"
    homes._gossip.members["fra"] = failed
    homes._orphans.look({QUERY: fra}, homes._gossip.members, 0.0, 0.0)
    assert homes.to_ask(QUERY, "ams", inherits=True) is None
    homes._host.now = lambda: 31.0
    assert homes.to_ask(QUERY, "ams", inherits=True) == "ams"


def test_an_owner_that_operators_were_told_and_this_host_never_heard_of_is_not_known():
    """A query had started again under another id. Operators that were made again kept its former id, with the name of a former owner."""
    homes = homes_among({"ams": member(), "fra": member()})
    homes._operators = SimpleNamespace(instances={SOURCE.id: SimpleNamespace(users={QUERY: "fra"})})
    assert homes.without_owner() == {QUERY}
    homes._owners.heard(QUERY, Owner("fra", OLD, 1))
    assert homes.without_owner() == set()
    homes._operators.instances[SOURCE.id].users[QUERY] = "ams"
    assert homes.without_owner() == set()
    homes = homes_among({"ams": member()})
    homes._operators = SimpleNamespace(instances={SOURCE.id: SimpleNamespace(users={QUERY: "ams"})})
    assert homes.without_owner() == set()


def told_to_end(homes: Any, *said: tuple[str, Any]) -> Any:
    """Tells a host with an operator that was made for ams to end its query; other agents answer as given, in this order.

    Returns the host's answer.
    """
    answers, out = list(said), []

    def request(node, message, done, timeout_s):
        assert message == WantedAsk(queries=(QUERY,))
        expected, answer = answers.pop(0)
        assert node == expected
        done(answer)

    instances = {SOURCE.id: SimpleNamespace(users={QUERY: "ams"})}
    homes._operators = SimpleNamespace(instances=instances, release=lambda query: [SOURCE.id])
    homes._directory = SimpleNamespace(me="nyc", request=request)
    homes._gossip.address_of = lambda node: homes._gossip.members[node].address
    homes.end_hosted(QUERY, out.append)
    assert answers == []
    (answer,) = out
    return answer


FRA = Own(query=QUERY, epoch=1, owner=Holder("fra", OLD))
MINE, WANTED, UNWANTED = Unwanted(queries=(), taken=(FRA,)), Unwanted(queries=()), Unwanted(queries=(QUERY,))
SILENCE = LinkError("no answer")
ENDED = OrphanEnded(operators=(SOURCE.id,))


@pytest.mark.parametrize(
    ("fra", "said", "problem"),
    [
        (member(), (("ams", MINE), ("fra", Unwanted(queries=(), taken=(FRA,)))), "fra, the home of"),
        (member(), (("ams", MINE), ("fra", UNWANTED)), ""),
        (member(boot=NEW), (("ams", MINE), ("fra", UNWANTED)), ""),
        (member(boot=NEW), (("ams", MINE), ("fra", SILENCE)), ""),
        (member(), (("ams", MINE), ("fra", SILENCE)), "fra, the home of"),
        (member(MemberStatus.FAILED), (("ams", MINE),), ""),
        (member(), (("ams", MINE), ("fra", Unwanted(queries=(), taken=(Own(query=QUERY, epoch=1, owner=Holder("ams", OLD)),)))), ""),
        (member(), (("ams", WANTED),), "ams, the home of"),
    ],
    ids=["wants it", "does not", "restarted", "restarted and silent", "silent", "failed", "names the former one", "no other owner"],
)
def test_a_host_asks_the_owner_that_a_former_one_names_whether_it_wants_the_query(fra, said, problem):
    """The former home of a dropped query had given it to an agent that had restarted: the host took the home for its owner."""
    answer = told_to_end(homes_among({"ams": member(), "fra": fra}), *said)
    if problem:
        assert str(answer).startswith(problem)
    else:
        assert answer == ENDED


@pytest.mark.parametrize(
    ("said", "problem"),
    [
        ((("ams", WANTED),), "ams, the home of"),
        ((("ams", MINE),), ""),
        ((("ams", SILENCE),), ""),
    ],
    ids=["wants it", "has given it up", "silent"],
)
def test_whom_operators_were_made_for_may_want_a_query_whose_later_owner_is_gone(said, problem):
    homes = homes_among({"ams": member(), "fra": member(MemberStatus.FAILED)})
    homes._owners.heard(QUERY, Owner("fra", OLD, 1))
    answer = told_to_end(homes, *said)
    assert str(answer).startswith(problem) if problem else answer == ENDED


def test_what_several_hosts_serve_is_one_row():
    told = {"nyc": [Orphan(QUERY, "ams", "failed", 3.0, (SOURCE,))], "fra": [Orphan(QUERY, "ams", "failed", 4.0, (SINK,))]}
    (row,) = orphan_rows(told, (), [entry()], {QUERY: HomeState.FAILED}, ("nyc", "fra"))
    assert (row["id"], row["name"], row["state"], row["sink_node"], row["rows_out"]) == (QUERY, "k", "orphaned", "fra", 42)
    assert {operator["id"]: operator["node"] for operator in row["operators"]} == {SINK.id: "fra", SOURCE.id: "nyc"}
    assert row["reason"].startswith("its home ams failed 4 s ago and takes it up again when it is back; its operators on fra, nyc run on")


@pytest.mark.parametrize(
    ("state", "hosts", "answered", "shown"),
    [
        (HomeState.PRESENT, True, True, False),  # the query begins or ends at this moment
        (HomeState.PRESENT, True, False, True),  # the host has noticed, this agent has not
        (HomeState.PRESENT, False, True, True),  # the home does not know the query of a name
        (HomeState.PRESENT, False, False, False),
        (HomeState.RESTARTED, True, True, True),
        (HomeState.FAILED, False, False, True),
    ],
)
def test_a_query_is_shown_as_an_orphan_where_nobody_answers_for_it(state, hosts, answered, shown):
    told = {"nyc": [Orphan(QUERY, "ams", "failed", 3.0, (SOURCE,))]} if hosts else {}
    rows = orphan_rows(told, (), [entry()], {QUERY: state}, ("nyc", "ams") if answered else ("nyc",))
    assert bool(rows) is shown
    assert orphan_rows(told, (QUERY,), [entry()], {QUERY: state}, ("nyc",)) == [], "a home has reported the query"


def test_a_name_is_not_free_while_others_own_or_keep_its_query():
    doubts = {name: Doubt(f"{name}.1", "its home ams has restarted", gone=True) for name in ("owned", "kept", "lost")}
    still = still_doubted(doubts, Claims(owned=("owned.1",), kept=("kept.1", "owned.1")))
    assert set(still) == {"kept", "lost"}
    assert still["lost"] == doubts["lost"]
    assert not still["kept"].gone
    assert "about to take it over" in still["kept"].why
