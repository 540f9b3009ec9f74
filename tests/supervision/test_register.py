"""The register of an agent's queries, step by step."""

import pytest

from sbon.connectors.tails import Tail
from sbon.query.catalog import Entry
from sbon.query.params.source import SinkParams, SourceParams
from sbon.query.plan import OperatorSpec, Plan
from sbon.supervision import register as module
from sbon.supervision.deployment import Deployed
from sbon.supervision.record import QueryRecord, QueryState
from sbon.supervision.register import Register, with_record
from sbon.wire.deployment import User
from sbon.wire.reports import OperatorReport

ONE, OTHER = "ams.t1.01", "ams.t1.02"
SINK = f"{ONE}.1"


def make_record(query: str = ONE, name: str = "") -> QueryRecord:
    source = OperatorSpec(f"{query}.0", SourceParams("s", "datagen", (), (), None), (), None, "a", "s")
    sink = OperatorSpec(f"{query}.1", SinkParams(query, "tail", ()), (), None, "b", "t")
    plan = Plan(query, name or query, "SELECT 1", (source, sink), (), None)
    return QueryRecord(plan, Deployed(plan.operators, (), {source.id: "a", sink.id: "b"}), "b", 0.0)


def no_name(name: str) -> bool:
    return False


def finish(register: Register, record: QueryRecord) -> list[QueryRecord]:
    record.state = QueryState.FINISHED
    return register.end(record)


class SizedTail(Tail):
    """Rows of a given size."""

    def __init__(self, kept_bytes: int) -> None:
        super().__init__(SINK, ())
        self._kept_size = kept_bytes

    @property
    def kept_bytes(self) -> int:
        return self._kept_size


def test_a_query_is_known_and_wanted_from_its_beginning_to_its_end():
    register, record = Register("ams"), make_record()
    assert (register.knows(ONE), register.unwanted([ONE])) == (False, (ONE,))

    register.begin(ONE)
    assert (register.knows(ONE), register.unwanted([ONE, OTHER])) == (True, (OTHER,))
    register.enter(record)
    register.begun(ONE, runs=True)
    assert (register.knows(ONE), register.unwanted([ONE])) == (True, ())

    assert finish(register, record) == []
    assert (register.knows(ONE), register.unwanted([ONE])) == (True, (ONE,)), "the query is shown, but hosts need not serve it"


def test_whoever_has_taken_a_query_over_that_is_finished_learns_so_of_its_sink():
    register, record = Register("b"), make_record()
    sink = record.plan.operators[1]
    done = OperatorReport(sink.id, "finished", "b", rows_in=7)
    record.reported(done)
    register.enter(record)
    finish(register, record)
    missing = OperatorReport(sink.id, "missing", "b")

    assert register.as_known(missing) == done


def test_whoever_uses_an_operator_of_a_query_that_has_finished_learns_that_it_is_not_made_again_and_what_it_had_given():
    register, record = Register("b"), make_record()
    source = record.plan.operators[0].id
    record.reported(OperatorReport(source, "finished", "a", rows_out=7, epoch=3))
    register.enter(record)
    missing = OperatorReport(source, "missing", "b")
    assert register.as_known(missing).state == "moved", "the operator is where it was"
    finish(register, record)
    over = register.as_known(missing)
    assert (over.state, over.node, over.epoch, over.rows_out) == ("over", "a", 3, 7)


def test_the_sink_of_a_dropped_query_is_missing():
    register, record = Register("b"), make_record()
    sink = record.plan.operators[1]
    record.reported(OperatorReport(sink.id, "finished", "b"))
    register.enter(record)
    record.state = QueryState.STOPPING
    register.end(record)

    assert register.as_known(OperatorReport(sink.id, "missing", "b")).state == "missing"


def test_a_refused_query_leaves_nothing_behind():
    register = Register()
    register.begin(ONE)
    register.tails[ONE] = Tail(SINK, ())
    register.begun(ONE, runs=False)
    assert not register.knows(ONE)
    assert not register.tails


def test_a_query_that_is_stopped_is_forgotten_and_its_watchers_are_told():
    register, record, told = Register(), make_record(), []
    register.enter(record)
    register.tails[ONE] = Tail(SINK, ())
    register.tails[ONE].watch(told.append)
    record.state = QueryState.STOPPING

    assert register.end(record) == []
    assert told == [None]
    assert [*register.running, *register.ended, *register.tails] == []


def test_the_rows_of_a_query_that_another_agent_owns_by_now_end_with_their_sink_and_with_no_other_operator():
    register, told = Register(), []
    register.tails[ONE] = Tail(SINK, ())
    register.tails[ONE].watch(told.append)
    register.operator_gone(f"{ONE}.0")
    assert told == []
    register.operator_gone(SINK)
    assert (told, register.tails) == ([None], {})


def test_queries_are_found_by_id_name_former_id_and_short_id():
    register, named, plain = Register(), make_record(ONE, "answers"), make_record(OTHER)
    for record in (named, plain):
        register.enter(record)
    plain.former = "ams.t0.07"

    assert register.find(ONE, no_name) is register.find("answers", no_name) is named
    assert register.find("ams.t0.07", no_name) is register.find("ams.t1.02", no_name) is plain
    assert register.find("ams.t1", no_name) is None, "two ids begin so"
    finish(register, named)
    assert register.find("answers", no_name) is named

    left = make_record("ams.t0.07")
    left.specs.clear()
    register.running = {left.id: left, plain.id: plain}
    assert register.find("ams.t0.07", no_name) is plain, "not the rest of the former query that others use"


def test_records_are_kept_over_a_restart_as_far_as_there_is_room():
    used = make_record(ONE)
    used.health.healing.is_on = True
    used.health.healing.others = {SINK: (), f"{ONE}.0": (User(OTHER, "ams"),)}
    assert len(content := with_record(used).record) > 0
    assert with_record(used, len(content)).record == content
    assert with_record(used, len(content) - 1).record == b""


def test_a_name_of_the_catalogue_is_not_taken_for_the_beginning_of_an_id():
    register, record = Register(), make_record()
    register.enter(record)
    assert register.find("ams", no_name) is record
    assert register.find("ams", lambda name: name == "ams") is None


def test_only_running_queries_tell_where_operators_are():
    register, record = Register(), make_record()
    register.enter(record)
    assert [(place.node, place.epoch) for place in register.places(f"{ONE}.0")] == [("a", 0)]
    assert register.places("other") == []
    finish(register, record)
    assert register.places(f"{ONE}.0") == []


def test_what_a_restart_runs_again_and_the_names_that_stay_taken():
    register = Register()
    records = [make_record(ONE, "answers"), make_record(OTHER), make_record("ams.t1.03", "done"), make_record("ams.t1.04")]
    for record in records:
        register.enter(record)
    for record in records[2:]:
        finish(register, record)

    kept = register.kept()
    assert [(query.id, query.sink, query.finished) for query in kept] == [
        (ONE, "answers", False), (OTHER, "", False), ("ams.t1.03", "done", True),
    ]  # fmt: skip
    assert kept[0].nodes == ("a", "b")


@pytest.mark.parametrize("ended", [False, True])
def test_a_sink_that_another_agent_has_dropped_is_told_once(ended: bool):
    register, record = Register(), make_record(ONE, "answers")
    register.enter(record)
    if ended:
        finish(register, record)
    dropped = Entry("sink", "answers", 5, "zrh", True, "CREATE SINK answers")

    assert [one for one, why in register.dropped_elsewhere([dropped]) if why] == [record]
    assert ONE not in register.ended
    assert list(register.dropped_elsewhere([Entry("sink", "other", 5, "zrh", True, "CREATE SINK other")])) == []


def test_the_latest_ended_queries_are_kept_and_the_rows_of_fewer(monkeypatch):
    monkeypatch.setattr(module, "ENDED_MAX", 3)
    monkeypatch.setattr(module, "ENDED_ROWS_BYTES_MAX", 100)
    register, forgotten = Register(), []
    records = [make_record(f"ams.t1.{number:02}") for number in range(5)]
    for record in records:
        register.enter(record)
        register.tails[record.id] = SizedTail(60)
        forgotten += finish(register, record)

    assert forgotten == records[:2]
    assert list(register.ended) == [record.id for record in records[2:]]
    assert list(register.tails) == [records[4].id], "two tails would exceed the limit"
