"""Statements kept over a restart: what is saved and when, and when the queries run again, without agents."""

from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest

from sbon.errors import LinkError, QueryError
from sbon.membership.members import MemberStatus
from sbon.queries.replication import Replication
from sbon.queries.resuming import ASK_PEERS_S, HEAR_S, Resuming
from sbon.query.catalog import Entry
from sbon.query.ids import query_id
from sbon.supervision.claiming import Outcome
from sbon.supervision.record import SERVES_OTHERS
from sbon.supervision.register import Register
from sbon.supervision.resumption import FORMAT, Kept, KeptQuery
from tests.query_worlds import make_catalog
from tests.recorder import FakeGossip, FakeHost, Recorder, member

OLD, NEW = query_id("b", 0, 1), query_id("b", 1, 1)
SQL = "SELECT k FROM plain"
PLAIN = KeptQuery(OLD, SQL, "", ())


def kept(*queries: KeptQuery, entries: tuple[Entry, ...] = (), peers: tuple[str, ...] = ()) -> Kept:
    return Kept(FORMAT, "b", entries, (), queries, peers, (), ())


class World:
    """Agent b, which has just started; the test decides what its file holds and how its queries fare."""

    def __init__(self, saved: Kept | None = None, *others: str, joins: bool = False, inherits: bool = False, path: bool = True) -> None:
        self.host = FakeHost()
        self.gossip = FakeGossip("b", *others)
        self.directory = Recorder(me="b")
        self.reaches = Recorder(own_words=(), own_sinks=())
        self.tables = Replication(self.directory, self.gossip, self.host.wall, lambda why: None)
        self.written: list[Kept] = []
        self.broken = False
        file = Recorder(path=Path("kept") if path else None, remembers=True, load=lambda me: saved, save=self.save)
        self.resuming = Resuming(self.host, self.directory, self.gossip, self.tables, self.reaches, file)
        numbers = iter(range(1, 99))
        self.ended: list[str] = []
        promises = SimpleNamespace(restore=lambda promises: None, all=())
        inheriting = SimpleNamespace(remembers=False, promises=promises, ended=self.ended.append)
        self.former = Recorder(anew={})
        self.runs: list[KeptQuery] = []
        self.runner = Recorder(
            register=Register("b"),
            ownership=SimpleNamespace(inheriting=inheriting, former=self.former),
            new_id=lambda: query_id("b", 1, next(numbers)),
            kept_queries=lambda: list(self.runs),
        )
        self.resuming.start(self.runner, joins, inherits)

    def save(self, kept: Kept) -> None:
        if self.broken:
            raise OSError("disk full")
        self.written.append(kept)

    def resumed(self) -> list[str]:
        """Returns the ids of the queries that are being placed again."""
        return [given[0].id for given in self.runner.calls_of("run_again")]

    @property
    def reasons(self) -> list[str]:
        return [row["reason"] for row in self.resuming.rows()]


# ---------------------------------------------------------------------------------------------------------------- keeping


def test_nothing_is_written_where_nothing_is_to_be_known() -> None:
    world, told = World(), []
    world.resuming.keep(told.append)
    assert told == [""]
    assert world.host.work == []


def test_what_has_changed_is_written_once_and_then_told() -> None:
    world, told = World(), []
    world.tables.put("view", "seen", sql="SELECT 1", stamp=1)
    world.resuming.keep(told.append)
    assert told == []
    world.host.run()
    world.resuming.keep(told.append)
    assert (told, len(world.written), world.host.work) == (["", ""], 1, [])
    assert [entry.name for entry in world.written[0].entries] == ["seen"]


def test_changes_during_a_write_are_written_together_after_it() -> None:
    world, told = World(), []
    for number, name in enumerate(("one", "two", "three")):
        world.tables.put("view", name, sql="SELECT 1", stamp=number)
        world.resuming.keep(lambda problem, name=name: told.append(name))
    assert len(world.host.work) == 1
    world.host.run()
    assert told == ["one", "two", "three"]
    assert [len(kept.entries) for kept in world.written] == [1, 3]


def test_an_answer_says_what_a_restart_would_forget_and_the_next_change_is_tried_again() -> None:
    world, answers = World(), []
    world.broken = True
    world.tables.put("view", "seen", sql="SELECT 1", stamp=1)
    world.resuming.then(answers.append)([{"message": "view seen"}])
    world.host.run()
    assert answers[0][0]["message"].endswith("a restart of b would forget it, because saving it failed: disk full")
    world.broken = False
    world.resuming.then(answers.append)([{"message": "again"}])
    world.host.run()
    assert (answers[1], len(world.written)) == ([{"message": "again"}], 1)


def test_an_error_is_told_as_it_is_though_nothing_can_be_kept() -> None:
    world, answers = World(), []
    world.broken = True
    world.tables.put("view", "seen", sql="SELECT 1", stamp=1)
    world.resuming.then(answers.append)(problem := QueryError("no"))
    world.host.run()
    assert answers == [problem]


@pytest.mark.parametrize("path", [False, True])
def test_without_a_file_or_after_the_end_nothing_is_written(path: bool) -> None:
    world, told = World(path=path), []
    world.tables.put("view", "seen", sql="SELECT 1", stamp=1)
    if path:
        world.resuming.close()
    world.resuming.keep(told.append)
    assert (told, world.host.work) == ([""], [])


def test_running_waiting_and_former_queries_and_living_peers_are_kept_in_order() -> None:
    world = World(kept(PLAIN), "a", "c")
    world.gossip.members["c"].status = MemberStatus.FAILED
    world.runs = [KeptQuery(query_id("b", 1, 9), SQL, "", ())]
    world.resuming.keep()
    world.host.run()
    assert [query.id for query in world.written[-1].queries] == [NEW, query_id("b", 1, 9)]
    assert world.written[-1].peers == ("a:1",)


def test_members_from_before_the_restart_are_kept_while_no_other_lives() -> None:
    world = World(kept(peers=("127.0.0.1:5",)))
    world.tables.put("view", "seen", sql="SELECT 1", stamp=1)
    world.resuming.keep()
    world.host.run()
    assert world.written[-1].peers == ("127.0.0.1:5",)


# --------------------------------------------------------------------------------------------------------------- resuming


def test_an_agent_alone_runs_its_queries_at_once_under_new_ids() -> None:
    world = World(kept(PLAIN))
    assert world.resumed() == [NEW]
    assert (world.resuming.count, world.resuming.find(OLD).id) == (1, NEW)
    assert world.resuming.rows()[0]["id"] == NEW
    assert f"before the restart of b it was {OLD}" in world.reasons[0]
    world.host.run()
    assert [query.id for query in world.written[-1].queries] == [NEW]


def test_a_query_that_runs_does_not_wait_any_more() -> None:
    world = World(kept(PLAIN))
    assert world.resuming.runs(NEW)
    world.runner.pop("run_again").done(None)
    world.host.wait(1000.0)
    assert (world.resuming.count, world.resumed(), world.host.pending) == (0, [], [])


def test_a_query_that_was_dropped_while_it_was_placed_must_be_ended() -> None:
    world = World(kept(PLAIN))
    assert world.resuming.forget(NEW)
    assert not world.resuming.runs(NEW)
    world.runner.pop("run_again").done(None)
    assert not world.resuming.forget(NEW)


def test_a_query_that_cannot_be_placed_says_why_and_is_tried_again() -> None:
    world = World(kept(PLAIN))
    world.runner.pop("run_again").done(LinkError("a does not answer"))
    assert "could not be placed again yet: a does not answer" in world.reasons[0]
    world.host.wait(60.0)
    assert world.resumed() == [NEW]


@pytest.mark.parametrize("news", ["member", "name"])
def test_a_pause_ends_when_something_changes_that_the_query_may_wait_for(news: str) -> None:
    world = World(kept(PLAIN))
    for _ in range(6):  # pauses grow
        world.runner.pop("run_again").done(LinkError("no"))
        world.host.wait(200.0)
    world.runner.pop("run_again").done(LinkError("no"))
    world.host.wait(0.2)
    assert world.resumed() == []
    if news == "member":
        world.resuming.member_alive()
    else:
        world.tables.updated(SimpleNamespace(entries=tuple(make_catalog().entries())))
    world.host.wait(0.2)
    assert world.resumed() == [NEW]


def test_others_are_heard_first_and_asked_until_one_answers() -> None:
    world = World(kept(PLAIN, peers=("127.0.0.1:5", "nonsense")))
    assert world.resumed() == []
    assert [address for address, *_ in world.directory.calls_of("request_at")] == [("127.0.0.1", 5)]
    world.host.wait(ASK_PEERS_S)
    assert len(world.directory.calls_of("request_at")) == 2
    world.gossip.members["a"] = member("a")
    world.tables.heard()
    world.host.wait(ASK_PEERS_S)
    assert (world.resumed(), len(world.directory.calls_of("request_at"))) == ([NEW], 2)


@pytest.mark.parametrize(("joins", "peers"), [(True, ()), (False, ("127.0.0.1:5",))])
def test_an_agent_that_hears_nobody_goes_on_without(joins: bool, peers: tuple[str, ...]) -> None:
    world = World(kept(PLAIN, peers=peers), joins=joins)
    world.host.wait(HEAR_S - 0.5)
    assert world.resumed() == []
    world.host.wait(1.0)
    assert world.resumed() == [NEW]
    asked = len(world.directory.calls_of("request_at"))
    world.host.wait(60.0)
    assert len(world.directory.calls_of("request_at")) == asked


def sink() -> tuple[Kept, Entry]:
    catalog = make_catalog("CREATE SOURCE far (k TEXT) WITH (connector = 'file', path = 'x')")
    entry = catalog.put("sink", "out", sql=SQL, owner="b", stamp=1, query=OLD)
    return kept(KeptQuery(OLD, SQL, "out", ()), entries=(entry,)), entry


def test_a_sinks_name_gets_the_new_id_everywhere() -> None:
    saved, _ = sink()
    world = World(saved, "a")
    assert world.resumed() == [NEW]
    assert world.tables.catalog.living["out"].query == NEW
    assert {message.entries[0].query for _, message in world.directory.calls_of("tell")} == {NEW}


def test_a_sink_that_others_have_dropped_meanwhile_does_not_run_and_is_forgotten() -> None:
    saved, _ = sink()
    world = World(saved, joins=True)
    world.tables.catalog.drop("sink", "out", owner="a", stamp=9)
    world.tables.heard()
    world.host.wait(1.0)
    assert (world.resumed(), world.resuming.count) == ([], 0)
    world.host.run()
    assert world.written[-1].queries == ()


def test_nobody_is_asked_before_another_agent_is_a_member() -> None:
    """An agent that asked only itself ran a query that others ran by then."""
    world = World(kept(PLAIN), joins=True, inherits=True)
    world.tables.heard()
    world.host.wait(1.0)
    assert world.former.calls_of("claims") == []
    world.gossip.members["a"] = member("a")
    world.resuming.member_alive()
    world.host.wait(1.0)
    assert len(world.former.calls_of("claims")) == 1


def test_a_finished_sink_keeps_its_name_and_does_not_run() -> None:
    _, entry = sink()
    world = World(kept(KeptQuery(OLD, SQL, "out", (), finished=True), entries=(entry,)))
    world.host.wait(100.0)
    assert world.resumed() == []
    assert [row["state"] for row in world.resuming.rows()] == ["finished"]


def test_a_query_waits_for_the_nodes_that_it_used_but_not_for_ever() -> None:
    world = World(kept(KeptQuery(OLD, SQL, "", ("a",))))
    assert world.resumed() == []
    assert "waits for a" in world.reasons[0]
    world.gossip.members["a"] = member("a")
    world.resuming.member_alive()
    world.host.wait(0.2)
    assert world.resumed() == [NEW]
    world = World(kept(KeptQuery(OLD, SQL, "", ("a",))))
    world.host.wait(600.0)
    assert world.resumed() == [NEW]


@pytest.mark.parametrize("outcome", list(Outcome))
def test_where_queries_are_taken_over_their_owners_are_asked_first(outcome: Outcome) -> None:
    world = World(kept(PLAIN), inherits=True)
    assert (world.resumed(), world.runner.register.undecided) == ([], {OLD: OLD})
    world.former.pop("claims").given[2]({OLD: outcome})
    world.host.wait(0.0)
    assert world.resumed() == ([NEW] if outcome is Outcome.FREE else [])
    assert bool(world.runner.calls_of("owned_elsewhere")) is (outcome is Outcome.ELSEWHERE)
    if outcome not in (Outcome.FREE, Outcome.ELSEWHERE, Outcome.OVER):
        world.host.wait(60.0)
        assert world.former.calls_of("claims")  # the owners are asked again


def test_a_query_that_another_agent_runs_by_now_is_forgotten_for_good() -> None:
    world = World(kept(PLAIN), inherits=True)
    world.former.pop("claims").given[2]({OLD: Outcome.OVER})
    world.host.wait(600.0)
    assert (world.resuming.rows(), world.resumed(), world.former.calls_of("claims")) == ([], [], [])
    world.host.run()
    assert world.written[-1].queries == ()


def test_a_query_that_runs_under_a_new_id_runs_no_more_under_its_former_one() -> None:
    world = World(kept(PLAIN))
    assert world.former.calls_of("runs_anew") == [(msgspec.structs.replace(PLAIN, id=NEW, former=OLD, first=OLD),)]


def test_a_waiting_query_of_which_only_operators_of_others_are_left_says_so() -> None:
    world = World(kept(KeptQuery(OLD, SQL, "", dropped=True)), inherits=True)
    assert world.reasons[0].startswith(f"{SERVES_OTHERS}; ")


def test_after_the_end_nothing_is_asked_and_nothing_runs() -> None:
    world = World(kept(PLAIN, peers=("127.0.0.1:5",)))
    world.resuming.close()
    world.tables.heard()
    world.resuming.member_alive()
    world.directory.calls.clear()
    world.host.wait(600.0)
    assert (world.resumed(), world.directory.calls) == ([], [])
