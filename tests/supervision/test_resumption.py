"""Tests of the queries that an agent keeps over a restart, and of the moment when they are submitted again."""

from collections.abc import Iterator

import msgspec
import numpy as np
import pytest

from sbon.query.catalog import Catalog, Entry
from sbon.query.params.source import SinkParams, SourceParams
from sbon.query.plan import OperatorSpec, Plan
from sbon.schema import ColumnType, Field
from sbon.supervision.claiming import Outcome
from sbon.supervision.resumption import (
    FORMAT,
    MISSING_S,
    RETRY_S_MAX,
    TOGETHER_MAX,
    Action,
    AskOwners,
    Kept,
    KeptQuery,
    LiveOn,
    Renamed,
    Resume,
    Resumption,
    Taken,
    decode_kept,
    encode_kept,
    taking_up,
)
from sbon_agent.kept_file import KeptFile

PLAIN = KeptQuery("a.old.01", "SELECT 1", nodes=("b",))
SINK = KeptQuery("a.old.02", "CREATE SINK k ...", "k")
ENTRY = Entry("sink", "k", 7, "a", False, SINK.sql, query="a.old.02")
KEPT = Kept(
    FORMAT,
    "a",
    (ENTRY,),
    (SourceParams("s", "file", (("path", "x"),), (Field("n", ColumnType.INT),), None),),
    (PLAIN, msgspec.structs.replace(SINK, finished=True)),
    ("127.0.0.1:7946",),
)


class Machine:
    """A resumption, with the catalogue and the living agents that it looks at."""

    def __init__(self, *queries: KeptQuery, hear_s: float = 10.0, inherits: bool = False) -> None:
        self.catalog = Catalog()
        self.catalog.merge([ENTRY])
        self.machine = Resumption(queries, 0.0, hear_s, np.random.default_rng(1), inherits=inherits)
        self.alive = {"a", "b"}
        self.ids: Iterator[str] = (f"a.new.{number:02}" for number in range(1, 100))

    def look(self, now: float) -> list[Action]:
        actions = self.machine.look(now, self.alive, self.catalog.latest, lambda: next(self.ids))
        for action in actions:
            if isinstance(action, Renamed) and action.query.sink:
                self.catalog.renew(action.query.sink, action.query.id, owner="a")
        return actions

    def resumed(self, now: float) -> list[str]:
        return [action.query.id for action in self.look(now) if isinstance(action, Resume)]

    def reasons(self) -> list[str]:
        return [waiting.reason for waiting in self.machine.queries]


def test_nothing_runs_before_others_were_heard_or_time_is_up():
    machine = Machine(PLAIN, SINK)
    assert machine.look(9.9) == []
    assert machine.machine.next_wake(9.9) == 10.0
    renamed = [
        msgspec.structs.replace(PLAIN, id="a.new.01", former=PLAIN.id, first=PLAIN.id),
        msgspec.structs.replace(SINK, id="a.new.02", former=SINK.id, first=SINK.id),
    ]
    assert machine.look(10.0) == [*map(Renamed, renamed), *map(Resume, renamed)]
    assert machine.catalog.get("k") == msgspec.structs.replace(ENTRY, version=8, query="a.new.02")


def test_others_are_heard_before_the_time_is_up():
    machine = Machine(SINK)
    machine.machine.heard(2.0)
    assert machine.resumed(2.0) == ["a.new.01"]


def test_with_nobody_to_hear_from_it_begins_at_once():
    assert Machine(SINK, hear_s=0.0).resumed(0.0) == ["a.new.01"]


@pytest.mark.parametrize("when", ["hearing", "waiting", "trying"])
def test_what_others_dropped_is_not_run_again(when: str):
    machine = Machine(PLAIN, SINK)
    if when != "hearing":
        machine.machine.heard(0.0)
        machine.alive = {"a"} if when == "waiting" else machine.alive
        machine.look(0.0)
    plain, sink = (waiting.query for waiting in machine.machine.queries)
    machine.catalog.drop("sink", "k", owner="b", stamp=100)
    machine.catalog.bury("a.old.01", owner="c", stamp=100)
    assert machine.look(1.0)[:2] == [Taken(plain, "c has dropped it"), Taken(sink, "b has dropped k")]
    assert machine.machine.queries == []
    assert not machine.machine.runs(sink.id)


def test_a_query_that_was_being_taken_over_waits_until_its_name_is_heard_of():
    machine = Machine(SINK, hear_s=0.0, inherits=True)
    machine.catalog = Catalog()
    assert machine.look(0.0) == [AskOwners({SINK.id: ()}, {SINK.id: SINK.id})]
    machine.catalog.merge([msgspec.structs.replace(ENTRY, owner="b")])
    machine.machine.decided({SINK.id: Outcome.FREE}, 1.0)
    assert machine.resumed(1.0) == ["a.new.01"]


def test_a_query_whose_name_nobody_knows_is_forgotten_a_minute_after_others_were_heard():
    machine = Machine(SINK, hear_s=0.0, inherits=True)
    machine.catalog = Catalog()
    machine.look(0.0)
    machine.machine.decided({SINK.id: Outcome.FREE}, 1.0)
    assert machine.look(1.0) == []
    assert [waiting.reason for waiting in machine.machine.queries] == ["waits to hear of the name k"]
    assert machine.machine.next_wake(1.0) == MISSING_S
    assert machine.look(MISSING_S) == [Taken(SINK, "the name k has been forgotten everywhere")]


def test_a_query_that_nobody_else_owns_runs_once_its_name_is_heard_of():
    machine = Machine(SINK, hear_s=0.0, inherits=True)
    machine.catalog = Catalog()
    machine.look(0.0)
    machine.machine.decided({SINK.id: Outcome.FREE}, 1.0)
    assert machine.resumed(1.0) == []
    machine.catalog.merge([msgspec.structs.replace(ENTRY, owner="b")])
    assert machine.resumed(2.0) == ["a.new.01"]


def test_what_others_replaced_is_not_run_again():
    machine = Machine(SINK)
    machine.catalog.merge([msgspec.structs.replace(ENTRY, version=9, owner="b", query="b.new.01")])
    assert machine.look(0.0) == [Taken(SINK, "b has made another sink k")]


def test_a_drop_made_meanwhile_counts_more_than_the_new_id_whenever_it_is_heard():
    machine = Machine(SINK, hear_s=0.0)
    elsewhere = Catalog()
    elsewhere.merge([ENTRY])
    elsewhere.drop("sink", "k", owner="0", stamp=20)
    machine.look(0.0)
    machine.catalog.merge(elsewhere.entries())
    assert [type(action) for action in machine.look(1.0)] == [Taken]


def test_a_query_waits_for_its_nodes_but_not_for_ever():
    machine = Machine(PLAIN, hear_s=0.0)
    machine.alive = {"a"}
    assert machine.resumed(0.0) == []
    assert machine.reasons() == ["waits for b, where it had operators: not alive"]
    assert machine.machine.next_wake(1.0) == MISSING_S
    assert machine.resumed(MISSING_S - 0.1) == []
    assert machine.resumed(MISSING_S) == ["a.new.01"]


def test_a_query_is_submitted_as_soon_as_its_nodes_are_alive():
    machine = Machine(PLAIN, hear_s=0.0)
    machine.alive = {"a"}
    machine.look(0.0)
    machine.alive = {"a", "b"}
    assert machine.resumed(3.0) == ["a.new.01"]


def test_what_cannot_be_placed_is_tried_again_after_a_growing_pause():
    machine = Machine(SINK, hear_s=0.0)
    now, pauses = 0.0, []
    for _ in range(12):
        assert machine.resumed(now) == ["a.new.01"]
        assert machine.resumed(now + 100.0) == []  # placing is being tried
        machine.machine.failed("a.new.01", "no room", now)
        due = machine.machine.next_wake(now)
        assert due is not None
        assert machine.resumed(due - 0.01) == []
        assert machine.reasons() == ["could not be placed again yet: no room"]
        pauses.append(due - now)
        now = due
    assert all(0.5 * 2**n <= pause <= 2**n for n, pause in enumerate(pauses[:6]))
    assert all(RETRY_S_MAX / 2 <= pause <= RETRY_S_MAX for pause in pauses[6:])
    machine.resumed(now)
    machine.machine.failed("a.new.01", "no room", now)
    machine.machine.hurry(now + 1.0)
    assert machine.resumed(now + 1.0) == ["a.new.01"]
    assert machine.machine.runs("a.new.01")
    assert machine.machine.next_wake(now + 1.0) is None


def test_a_few_are_tried_at_once_in_their_order():
    machine = Machine(*(KeptQuery(f"a.old.{number:02}", "SELECT 1") for number in range(10)), hear_s=0.0)
    first = machine.resumed(0.0)
    assert first == [f"a.new.{number:02}" for number in range(1, TOGETHER_MAX + 1)]
    assert machine.machine.runs(first[1])
    assert machine.resumed(0.1) == [f"a.new.{TOGETHER_MAX + 1:02}"]


def test_a_finished_sink_keeps_its_name_and_does_not_run():
    machine = Machine(msgspec.structs.replace(SINK, finished=True), hear_s=0.0)
    assert [type(action) for action in machine.look(0.0)] == [Renamed]
    assert machine.machine.next_wake(0.0) is None
    assert machine.reasons() == ["had finished before its home restarted"]


def test_a_query_is_found_by_its_id_its_former_id_and_its_name():
    machine = Machine(PLAIN, SINK, hear_s=0.0)
    machine.look(0.0)
    found = {name: machine.machine.find(name) for name in ("a.new.02", "a.old.02", "k", "", "01")}
    assert {name: query.id if query else None for name, query in found.items()} == {
        "a.new.02": "a.new.02",
        "a.old.02": "a.new.02",
        "k": "a.new.02",
        "": None,
        "01": None,
    }
    short = machine.machine.find_short("01")
    assert short is not None
    assert short.id == "a.new.01"
    machine.machine.forget("a.new.01")
    assert machine.machine.find_short("01") is None


# ------------------------------------------------------------------------------------------------------------- the file


def test_what_is_kept_comes_back(tmp_path):
    KeptFile(tmp_path).save(KEPT)
    assert KeptFile(tmp_path).load("a") == KEPT
    assert decode_kept(encode_kept(KEPT)) == KEPT
    assert [path.name for path in tmp_path.iterdir()] == ["statements.json"]


def test_no_directory_keeps_nothing():
    KeptFile("").save(KEPT)
    assert KeptFile("").load("a") is None


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "does not decode"),
        (encode_kept(KEPT)[:-20], "does not decode"),
        (b"\xff\xfe", "does not decode"),
        (b"[" * 100_000, "does not decode"),
        (encode_kept(msgspec.structs.replace(KEPT, format=2)), "it has format 2, expected 1"),
        (encode_kept(msgspec.structs.replace(KEPT, agent="b")), "it belongs to agent b"),
    ],
)
def test_a_damaged_file_is_set_aside_with_one_line(tmp_path, capsys, content: bytes, reason: str):
    for aside in ("statements.json.damaged", "statements.json.damaged-2"):
        (tmp_path / "statements.json").write_bytes(content)
        assert KeptFile(tmp_path).load("a") is None
        assert (tmp_path / aside).read_bytes() == content
        said = "".join(capsys.readouterr())
        assert said.count("statements.damaged") == 1
        assert reason in said
    assert not (tmp_path / "statements.json").exists()


def test_a_file_that_is_too_large_is_not_written(tmp_path, monkeypatch):
    KeptFile(tmp_path).save(KEPT)
    monkeypatch.setattr("sbon.supervision.resumption.KEPT_BYTES_MAX", 1000)
    with pytest.raises(ValueError, match="expected at most 1000; drop queries and names that are not used"):
        KeptFile(tmp_path).save(msgspec.structs.replace(KEPT, queries=(PLAIN,) * 100))
    assert KeptFile(tmp_path).load("a") == KEPT


# ------------------------------------------------------------------------------------------------------- the statements


@pytest.mark.parametrize(
    ("connector", "mode", "after"), [("file", "replace", "resume"), ("file", "append", "append"), ("x", "replace", "replace")]
)
def test_a_file_that_replaces_another_is_taken_up(connector: str, mode: str, after: str):
    options = (("mode", mode), ("path", "replace"))
    sink = OperatorSpec("q.0", SinkParams("k", connector, options), (), None, "a", "")
    (spec,) = taking_up(Plan("q", "k", "CREATE SINK", (sink,), ())).operators
    assert isinstance(spec.params, SinkParams)
    assert spec.params.options == (("mode", after), ("path", "replace"))


@pytest.mark.parametrize("dropped", [False, True])
@pytest.mark.parametrize("inherits", [False, True])
def test_what_others_use_of_a_query_lives_on_if_nobody_keeps_it(dropped: bool, inherits: bool) -> None:
    used = msgspec.structs.replace(PLAIN, dropped=dropped, record=b"record")
    machine = Machine(used, hear_s=0.0, inherits=inherits)
    assert machine.look(0.0) == [AskOwners({PLAIN.id: ()}, {} if dropped else {PLAIN.id: PLAIN.id})]
    machine.machine.decided({PLAIN.id: Outcome.KEPT}, 1.0)
    assert not any(isinstance(action, LiveOn) for action in machine.look(1.0)), "the keepers take the query over"
    machine.machine.decided({PLAIN.id: Outcome.FREE}, 4.0)
    first, *others = machine.look(4.0)
    assert first == LiveOn((used,), frozenset())
    assert [type(action) for action in others] == ([] if dropped else [Renamed, Resume])
    assert not any(isinstance(action, LiveOn) for action in machine.look(5.0))
    assert [one.query.record for one in machine.machine.queries] == ([] if dropped else [b""])


@pytest.mark.parametrize("inherits", [False, True])
def test_former_queries_of_this_agent_that_nobody_used_are_no_users_of_its_other_ones(inherits: bool) -> None:
    used = msgspec.structs.replace(PLAIN, record=b"record")
    machine = Machine(SINK, used, hear_s=0.0, inherits=inherits)
    machine.look(0.0)
    machine.machine.decided({PLAIN.id: Outcome.FREE} | ({SINK.id: Outcome.FREE} if inherits else {}), 1.0)
    assert machine.look(1.0)[0] == LiveOn((used,), frozenset({SINK.id}))


@pytest.mark.parametrize("outcome", [Outcome.FREE, Outcome.KEPT])
def test_what_others_use_of_a_dropped_query_is_left_to_its_keepers_and_never_runs_anew(outcome: Outcome) -> None:
    dropped = msgspec.structs.replace(PLAIN, dropped=True)
    machine = Machine(dropped, hear_s=0.0, inherits=True)
    assert machine.look(0.0) == [AskOwners({PLAIN.id: ()}, {})], "operators do not end before the keepers have been asked"
    machine.machine.decided({PLAIN.id: outcome}, 1.0)
    assert machine.look(1.0) == []
    assert [one.query for one in machine.machine.queries] == ([dropped] if outcome is Outcome.KEPT else [])
    assert (PLAIN.id in machine.machine.undecided) is (outcome is Outcome.KEPT)
    assert Machine(dropped, hear_s=0.0).look(0.0) == [], "nobody else can have the query"


def test_a_query_keeps_the_id_under_which_it_was_submitted() -> None:
    machine = Machine(msgspec.structs.replace(PLAIN, former="a.older.03", first="c.oldest.01"), hear_s=0.0, inherits=True)
    assert machine.look(0.0) == [AskOwners({PLAIN.id: ()}, {PLAIN.id: "c.oldest.01"})]
    machine.machine.decided({PLAIN.id: Outcome.FREE}, 1.0)
    renamed = machine.look(1.0)[0]
    assert isinstance(renamed, Renamed)
    assert (renamed.query.former, renamed.query.first) == (PLAIN.id, "c.oldest.01")
