"""Ends of links that turn to a new copy of an operator, and sinks that find out what they had written."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import polars as pl
import pytest

from sbon.errors import LocalProtocolError
from sbon.execution.ends import Input, Output
from sbon.execution.instance import Instance
from sbon.execution.life import State
from sbon.execution.link_replacement import begin_again, refeed
from sbon.execution.opening import opening
from sbon.execution.renewing import begin_anew, leave_out, renew
from sbon.execution.reporting import operator_report
from sbon.extensions import Extensions
from sbon.formats.formatting import LineFormat
from sbon.links.batch import Batch
from sbon.links.config import LinkConfig
from sbon.links.ends import Ends
from sbon.links.frames import Data
from sbon.links.link_names import link_id
from sbon.links.receiver import LinkReceiver, Verdict
from sbon.links.sender import LinkSender
from sbon.migration.handover import export, install, note_progress
from sbon.operators.map import Map
from sbon.operators.over import Over
from sbon.query.params.aggregate import Aggregate
from sbon.query.params.ordered import OverParams
from sbon.query.params.rowwise import MapParams
from sbon.query.params.source import SinkParams
from sbon.query.params.windowed import WindowParams
from sbon.query.plan import Begin, LinkSpec, OperatorSpec
from sbon.reach import Reach
from sbon.schema import ColumnType, Field
from sbon.watermarks import WATERMARK_END, WATERMARK_MIN
from sbon.wire.deployment import End, LeaveOut, Refeed, Renew, Renewed, TakenUp, User
from sbon_agent.connectors.line_file import LineSink, whole_rows
from sbon_agent.engine.building import build

LINK = LinkSpec(link_id("q.1", "q.2", 0), "q.1", "q.2", 0, 1.0, 1.0)


class Rows:
    rows, size_bytes = 1, 8


def test_the_count_of_rows_made_is_that_of_the_last_acknowledgement_or_none():
    output = Output(LINK, "a", 0, (), LinkSender(LINK.id, LinkConfig()), {"q"})
    assert output.made_by_target == 0
    output.sender.offer(1.0, 0, None)
    output.sender.offer(2.0, 0, None)
    output.sender.acknowledge(1, 5)
    output.made = (1, 10)
    assert output.made_by_target == 10
    output.sender.acknowledge(2, 5)
    assert output.made_by_target is None


def test_both_ends_of_a_link_that_is_made_anew_know_that_rows_had_been_made_before():
    """If the ends said 0 and the target crashed, its next copy would skip as many rows of the new link as had been taken."""
    new = msgspec.structs.replace(LINK, id=f"{LINK.id}+1")
    source, target = (Instance(OperatorSpec(name, MapParams(None, None), (), None, None, ""), 0, State.RUNNING) for name in ("q.1", "q.2"))
    source.users.add(User("q", "ams"))
    target.users.add(User("q", "ams"))
    target.figures.rows_out = 30
    incoming = target.inputs[LINK.id] = Input(LINK, "a", (), LinkReceiver(LINK.id, LinkConfig()))

    def connect(operator: str, end: End, query: str) -> None:
        source.outputs[end.link.id] = Output(end.link, end.node, 0, (), LinkSender(end.link.id, LinkConfig()), {query})

    operators: Any = SimpleNamespace(instances={"q.1": source, "q.2": target}, connect=connect, me="a")
    ends = SimpleNamespace(gives=lambda link: None, takes=lambda link: (target, incoming))
    links: Any = SimpleNamespace(ends=ends, replace_input=lambda instance, old, new: instance.inputs.update({new.link.id: new}))
    for gives in (False, True):
        refeed(operators, links, lambda operator: False, Refeed(query="q", lost=LINK.id, end=End(new, "a", ()), gives=gives), 1.0)

    assert source.outputs[new.id].made_by_target is None, "unknown until the target tells"
    assert [target.inputs[new.id].acknowledgement(resume=False, passes=passes).made for passes in (False, True)] == [30, 30]


def test_an_input_whose_source_nobody_makes_again_ends_under_a_new_name_once():
    new = msgspec.structs.replace(LINK, id=f"{LINK.id}+1")
    target = Instance(OperatorSpec("q.2", MapParams(None, None), (), None, None, ""), 0, State.RUNNING)
    target.users.add(User("q", "ams"))
    old, came = Input(LINK, "a", (), LinkReceiver(LINK.id, LinkConfig())), []

    def receive(message: Data, node: str, reply: object) -> None:
        target.inputs[message.link].receiver.accept(message.sequence)
        came.append((message.link, message.watermark_us))

    target.inputs[LINK.id] = old
    operators: Any = SimpleNamespace(instances={"q.2": target}, me="b")
    ends = SimpleNamespace(takes=lambda link: (target, old))
    links: Any = SimpleNamespace(
        ends=ends, replace_input=lambda instance, old, new: instance.inputs.update({new.link.id: new}), receive=receive
    )
    message = Refeed(query="q", lost=LINK.id, end=End(new, "a", ()), gives=False, is_over=True)
    for _ in range(2):
        refeed(operators, links, lambda operator: False, message, 1.0)
    assert came == [(new.id, WATERMARK_END)]


def test_an_operator_stays_until_what_came_from_a_crashed_one_is_processed():
    instance = Instance(OperatorSpec("q.2", MapParams(None, None), (), None, None, ""), 0, State.RUNNING)
    incoming = instance.inputs[LINK.id] = Input(LINK, "a", (), LinkReceiver(LINK.id, LinkConfig()))
    incoming.receiver.accept(1)
    instance.waiting.enqueue(incoming, Batch(1, 1.0, 0, None))
    assert not instance.stays_for
    incoming.begins_anew("b", 65_536)
    assert "nobody can send them again" in instance.stays_for
    incoming.receiver.process(1, 0)
    assert not instance.stays_for


def test_a_receiver_goes_on_where_a_former_one_was_unless_it_knows_better():
    receiver = LinkReceiver(LINK.id, LinkConfig())
    receiver.go_on(7, 70)
    assert receiver.accept(7) is Verdict.DUPLICATE
    assert receiver.accept(8) is Verdict.ACCEPTED
    receiver.process(8, 10)
    assert receiver.rows_processed == 80
    with pytest.raises(LocalProtocolError, match="batch 8 has come already"):
        receiver.go_on(9, 90)


def test_line_breaks_between_quotation_marks_end_no_row():
    pieces = [b'a,"x', b'\ny"\nb', b",z\n", b"torn"]
    assert whole_rows(pieces, quoted=True) == (2, 12)
    assert whole_rows(pieces, quoted=False) == (3, 12)
    assert whole_rows([], quoted=True) == (0, 0)


def test_a_sink_counts_what_it_has_written_and_removes_a_torn_row(tmp_path: Path):
    path = tmp_path / "k.csv"
    path.write_text("v\n0\n")
    schema = (Field("v", ColumnType.INT),)

    def opened(mode: str) -> LineSink:
        sink = LineSink("sink k", path, Reach("a", None), LineFormat("csv", schema), mode)
        sink.open()
        return sink

    first = opened("append")
    assert first.begun_at == 4
    first._write(b"1\n2\n3", 2)  # then the machine loses power
    again = opened("resume")
    assert again.rows_since(4) == 2
    assert path.read_text() == "v\n0\n1\n2\n"
    assert again.begun_at == 4
    again._write(b"3\n", 1)
    assert path.read_text() == "v\n0\n1\n2\n3\n"
    first.close()
    again.close()


def test_a_sink_leaves_out_what_its_former_copy_had_written_without_saying_so():
    instance = Instance(OperatorSpec("q.2", SinkParams("k", "file", ()), (), None, None, ""), 0)
    incoming = instance.inputs[LINK.id] = Input(LINK, "a", (), LinkReceiver(LINK.id, LinkConfig(), 3, 30))
    opened: list[str] = []
    instance.sink = SimpleNamespace(open=lambda: opened.append("open"), rows_since=lambda begun_at: 42)  # type: ignore[assignment]
    work = opening(instance, TakenUp(65_536, begun_at=7))
    assert work is not None
    work()
    assert (opened, incoming.written.rows) == (["open"], 12)


@pytest.mark.parametrize(("written", "lost", "skipped", "lost_then"), [(25, 0, 0, 5), (25, 5, 0, 5), (28, 5, 3, 5), (24, 5, 0, 6)])
def test_a_sink_counts_what_its_former_copies_had_taken_and_not_written(written: int, lost: int, skipped: int, lost_then: int):
    """The living end of the sink's link has given thirty rows that were acknowledged."""
    instance = Instance(OperatorSpec("q.2", SinkParams("k", "file", ()), (), None, None, ""), 0)
    incoming = instance.inputs[LINK.id] = Input(LINK, "a", (), LinkReceiver(LINK.id, LinkConfig(), 3, 30))
    instance.sink = SimpleNamespace(open=lambda: None, rows_since=lambda begun_at: written)  # type: ignore[assignment]
    work = opening(instance, TakenUp(65_536, begun_at=7, lost_rows=lost))
    assert work is not None
    work()
    assert (incoming.written.rows, instance.waiting.lost_rows) == (skipped, lost_then)


def test_an_end_turns_to_an_operator_that_begins_anew_though_the_lost_one_was_never_told_who_feeds_it():
    """The lost operator cannot answer any more; the new copy hears from its home who feeds it."""
    instance = Instance(OperatorSpec("q.1", MapParams(None, None), (), None, None, ""), 0, State.RUNNING)
    output = instance.outputs[LINK.id] = Output(LINK, "a", 0, (), LinkSender(LINK.id, LinkConfig()), {"q"})
    output.staying.add("a")
    ends: Ends[Instance, Input, Output] = Ends(10)
    ends.add_giving(instance, output)
    outgoing = SimpleNamespace(spilling=SimpleNamespace(rename=lambda link, new: None), transmit=lambda output: None)
    flow: Any = SimpleNamespace(ends=ends, outgoing=outgoing)
    new = msgspec.structs.replace(LINK, id=f"{LINK.id}+1")
    message = Renew(query="q", end=End(new, "b", (), 65_536), gives=True)
    answer = renew("here", flow, lambda operator, lost: True, lambda instance, watermark_us: None, message)
    assert answer.link == new
    assert (output.told, output.node) == (True, "b")


@pytest.mark.parametrize(("others", "watermark_us"), [((), 40), ((70,), 70)])
def test_rows_of_one_input_may_be_ahead_of_a_watermark_that_waits_for_another(others: tuple[int, ...], watermark_us: int):
    instance = Instance(OperatorSpec("q.1", MapParams(None, None), (), None, None, ""), 0, State.RUNNING)
    output = instance.outputs[LINK.id] = Output(LINK, "a", 0, (), LinkSender(LINK.id, LinkConfig()), {"q"})
    for number, us in enumerate((20, *others)):
        one = LinkSpec(f"q.{number + 5}>q.1:0", f"q.{number + 5}", "q.1", 0, 1.0, 1.0)
        instance.inputs[one.id] = Input(one, "a", (), LinkReceiver(one.id, LinkConfig()), us)
    for us in (40, 90):
        output.sender.offer(1.0, us, Rows())
    output.sender.acknowledge(1, 5)
    ends: Ends[Instance, Input, Output] = Ends(10)
    ends.add_giving(instance, output)
    outgoing = SimpleNamespace(spilling=SimpleNamespace(rename=lambda link, new: None), transmit=lambda output: None)
    message = Renew(query="q", end=End(msgspec.structs.replace(LINK, id=f"{LINK.id}+1"), "b", (), 65_536), gives=True)
    flow: Any = SimpleNamespace(ends=ends, outgoing=outgoing)
    assert renew("here", flow, lambda operator, lost: True, lambda instance, us: None, message).watermark_us == watermark_us


def test_an_operator_ends_that_hears_of_a_source_which_has_nothing_more_to_send():
    """The operator began again while the source was away, and the lost copy had taken all that the source had sent."""
    instance = Instance(OperatorSpec("q.2", MapParams(None, None), (), None, None, ""), 0, State.RUNNING)
    incoming = instance.inputs[LINK.id] = Input(LINK, "a", (), LinkReceiver(LINK.id, LinkConfig()))
    ends: Ends[Instance, Input, Output] = Ends(10)
    ends.add_taking(instance, incoming)
    flow: Any = SimpleNamespace(ends=ends, drop_input=ends.drop_taking)
    new, advanced = msgspec.structs.replace(LINK, id=f"{LINK.id}+1"), list[tuple[Instance, int]]()
    message = Renew(query="q", end=End(new, "b", (), 0, 23, 17, watermark_us=WATERMARK_END), gives=False)

    def asked() -> Renewed:
        return renew("here", flow, lambda operator, lost: True, lambda *to: advanced.append(to), message)

    instance.busy = True
    with pytest.raises(LocalProtocolError, match="still works on batches that came by"):
        asked()
    assert (list(instance.inputs), advanced) == ([LINK.id], []), "nothing has changed until it is asked again"
    instance.busy = False
    assert (asked().after, advanced) == (23, [(instance, WATERMARK_END)])
    asked()
    assert len(advanced) == 1


def test_a_running_window_leaves_out_what_it_is_told_and_never_less_than_before():
    columns = (Field("window_start", ColumnType.TIME),)
    instance = Instance(OperatorSpec("q.2", WindowParams("ts", 10, 10, (), ()), columns, None, None, ""), 0, State.RUNNING)

    def ask(us: int, column: str = "window_start", *, gives_way: bool = True) -> object:
        message = LeaveOut(query="q", operator="q.2", column=column, us=us)
        leave_out("here", {"q.2": instance}, lambda operator, lost: gives_way, message)
        return instance.spec.begin

    assert [ask(40), ask(30), ask(50)] == [Begin("window_start", 40), Begin("window_start", 40), Begin("window_start", 50)]
    with pytest.raises(LocalProtocolError, match="no column w"):
        ask(60, "w")
    with pytest.raises(LocalProtocolError, match="about to move"):
        ask(60, gives_way=False)
    instance.id = "q.3"
    with pytest.raises(LocalProtocolError, match=r"q\.2 is not on here"):
        leave_out("here", {}, lambda operator, lost: True, LeaveOut(query="q", operator="q.2", column="window_start", us=1))
    assert instance.spec.begin == Begin("window_start", 50)


def test_a_sink_that_is_to_take_all_rows_counts_them_from_the_end_of_its_file(tmp_path: Path):
    path = tmp_path / "k.csv"
    path.write_text("v\n1\n2\n3\n4")
    schema = (Field("v", ColumnType.INT),)
    instance = Instance(OperatorSpec("q.2", SinkParams("k", "file", ()), schema, None, None, ""), 0)
    incoming = instance.inputs[LINK.id] = Input(LINK, "a", (), LinkReceiver(LINK.id, LinkConfig()))
    sink = LineSink("sink k", path, Reach("a", None), LineFormat("csv", schema), "append")
    instance.sink = sink
    work = opening(instance, TakenUp(65_536, begun_at=2, is_fresh=True))
    assert work is not None
    work()
    sink.close()
    assert (incoming.written.rows, instance.waiting.lost_rows, sink.begun_at) == (0, 0, len("v\n1\n2\n3\n"))
    assert path.read_text() == "v\n1\n2\n3\n", "the row that a crash has cut off is gone"


@pytest.mark.parametrize("way", ["told while it runs", "made again", "moved"])
def test_aggregates_over_rows_are_told_from_which_instant_on_frames_count(way: str):
    columns = (Field("ts", ColumnType.TIME), Field("n", ColumnType.INT))
    params = OverParams("ts", (), (), (Aggregate("n", "count", None),), (1,))
    instance = Instance(OperatorSpec("q.2", params, columns, "ts", None, ""), 0, State.RUNNING)
    if way == "told while it runs":
        instance.operator = Over(params)
        leave_out("here", {"q.2": instance}, lambda operator, lost: True, LeaveOut(query="q", operator="q.2", column="ts", us=5))
    else:
        instance.spec = msgspec.structs.replace(instance.spec, begin=Begin("ts", 5, 1))
    if way == "made again":
        context: Any = SimpleNamespace(extensions=Extensions)
        build(instance, context, lambda *_: None)
    elif way == "moved":
        instance.operator = Over(params)
        instance = install(Over(params), export(instance)(), 1, LinkConfig())
    made = instance.operator
    assert made is not None
    made.process(0, pl.DataFrame({"ts": pl.Series([4, 5, 6, 7]).cast(pl.Datetime("us"))}))
    answers = pl.concat([frame for frames in made.advance_in_steps(WATERMARK_END) for frame in frames])
    assert answers.select(pl.col("ts").cast(pl.Int64), "n").rows() == [(6, 2), (7, 2)]


def test_an_operator_that_moves_knows_how_many_of_its_late_rows_had_no_event_time():
    """Otherwise rows seem to be late that are left out in any order, and a query cannot begin again as a whole after a crash."""
    columns = (Field("ts", ColumnType.TIME), Field("n", ColumnType.INT))
    params = OverParams("ts", (), (), (Aggregate("n", "count", None),), (1,))
    instance = Instance(OperatorSpec("q.2", params, columns, "ts", None, ""), 0, State.RUNNING)
    instance.operator = Over(params)
    instance.operator.process(0, pl.DataFrame({"ts": pl.Series([4, None]).cast(pl.Datetime("us"))}))
    moved = install(Over(params), export(instance)(), 1, LinkConfig())
    assert operator_report(moved, "here").untimed_rows == 1


@pytest.mark.parametrize(("watermark_us", "ahead_us"), [(50, WATERMARK_MIN), (60, 60)])
def test_an_operator_is_ahead_of_an_input_only_if_it_has_gone_on_since_it_began(watermark_us: int, ahead_us: int):
    instance = Instance(OperatorSpec("q.2", WindowParams("ts", 10, 10, (), ()), (), None, None, ""), 0, State.RUNNING)
    incoming = instance.inputs[LINK.id] = Input(LINK, "a", (), LinkReceiver(LINK.id, LinkConfig()))
    begin_anew(instance, TakenUp(65_536, watermark_us=50))
    instance.watermark_us = watermark_us
    ends: Ends[Instance, Input, Output] = Ends(10)
    ends.add_taking(instance, incoming)
    flow: Any = SimpleNamespace(ends=ends, drop_input=ends.drop_taking)
    new = msgspec.structs.replace(LINK, id=f"{LINK.id}+1")
    message = Renew(query="q", end=End(new, "b", (), 0), gives=False)
    assert renew("here", flow, lambda operator, lost: True, lambda instance, us: None, message).ahead_us == ahead_us


@pytest.mark.parametrize("leaves", ["source", "target"])
@pytest.mark.parametrize(("params", "made"), [(MapParams(None, None), 30), (WindowParams("ts", 10, 10, (), ()), 11)])
def test_an_end_that_leaves_a_host_knows_what_its_neighbour_there_has_made_of_batches_that_are_dropped(
    leaves: str, params: MapParams | WindowParams, made: int
):
    """A link within a host drops batches that are processed and not safe."""
    source = Instance(OperatorSpec("q.1", MapParams(None, None), (), None, None, ""), 0, State.RUNNING)
    target = Instance(OperatorSpec("q.2", params, (), None, None, ""), 0, State.RUNNING)
    output = source.outputs[LINK.id] = Output(LINK, "here", 0, (), LinkSender(LINK.id, LinkConfig()), set())
    target.inputs[LINK.id] = Input(LINK, "here", (), LinkReceiver(LINK.id, LinkConfig(), 9, 90))
    output.made, target.figures.rows_out = (7, 11), 30
    others = {one.id: one for one in (source, target)}
    note_progress(source if leaves == "source" else target, others)
    assert output.made == ((9, made) if made == 30 else (7, 11))
    output.made = (12, 40)
    note_progress(source, others)
    assert output.made == (12, 40), "a later count stays"


def test_a_feeder_that_reads_its_file_again_knows_how_far_its_former_copy_had_come():
    """It has given the first batches anew, and its consumer is lost before it has come as far as the former copy."""
    instance = Instance(OperatorSpec("q.1", MapParams(None, None), (), None, None, ""), 0, State.RUNNING)
    sender = LinkSender.restored(LINK.id, LinkConfig(), (8, 4, 4, ()))
    sender.former_us = 50
    output = instance.outputs[LINK.id] = Output(LINK, "b", 0, (), sender, set())
    instance.watermark_out_us = 20
    ends: Ends[Instance, Input, Output] = Ends(10)
    ends.add_giving(instance, output)
    flow: Any = SimpleNamespace(ends=ends, drop_output=ends.drop_giving, outgoing=SimpleNamespace(transmit=lambda output: None))
    message = Renew(query="q", end=End(LINK, "b", (), 0), gives=True)
    said = renew("here", flow, lambda operator, lost: True, lambda instance, us: None, message)
    assert (said.watermark_us, said.sent_us) == (50, 50)
    moved = install(Map(MapParams(None, None)), export(instance)(), 1, LinkConfig())
    assert moved.outputs[LINK.id].sender.former_us == 50


def test_a_feeder_says_how_far_its_batches_without_rows_have_come():
    """A filter that lets no row through passes the watermark on, and a window behind it answers what came by its other input."""
    instance = Instance(OperatorSpec("q.1", MapParams(None, None), (), None, None, ""), 0, State.RUNNING)
    sender = LinkSender(LINK.id, LinkConfig())
    instance.outputs[LINK.id] = Output(LINK, "b", 0, (), sender, set())
    for us in (20, 30, 40):
        sender.offer(0.0, us, None)
    for _ in range(2):
        batch = sender.peek()
        assert batch is not None
        sender.sent(batch)
    ends: Ends[Instance, Input, Output] = Ends(10)
    ends.add_giving(instance, instance.outputs[LINK.id])
    flow: Any = SimpleNamespace(ends=ends, drop_output=ends.drop_giving, outgoing=SimpleNamespace(transmit=lambda output: None))
    message = Renew(query="q", end=End(LINK, "b", (), 0), gives=True)
    said = renew("here", flow, lambda operator, lost: True, lambda instance, us: None, message)
    assert (said.watermark_us, said.sent_us) == (WATERMARK_MIN, 30), "the third batch cannot have arrived"
    sender.acknowledge(2, 10)
    said = renew("here", flow, lambda operator, lost: True, lambda instance, us: None, message)
    assert (said.watermark_us, said.sent_us) == (WATERMARK_MIN, 30), "no row has come, but a watermark"
    sender = LinkSender.restored(LINK.id, LinkConfig(), sender.export())
    assert sender.watermark_of(sender.highest_sent) == 40, "the former host may have sent all that it had"


@pytest.mark.parametrize("has_end", [False, True])
def test_the_source_of_a_link_that_was_given_up_begins_behind_all_that_it_has_made(has_end: bool):
    source = Instance(OperatorSpec("q.1", MapParams(None, None), (), None, None, ""), 0, State.RUNNING)
    source.users.add(User("q", "ams"))
    source.watermark_out_us = 70
    ends: Ends[Instance, Input, Output] = Ends(10)

    def connect(operator: str, end: End, query: str) -> None:
        sender = LinkSender.restored(end.link.id, LinkConfig(), (end.after + 1, end.rows, end.rows, ()))
        source.outputs[end.link.id] = Output(end.link, end.node, 0, (), sender, {query})
        ends.add_giving(source, source.outputs[end.link.id])

    operators: Any = SimpleNamespace(instances={"q.1": source}, connect=connect, me="a")
    flow: Any = SimpleNamespace(ends=ends, drop_output=ends.drop_giving, outgoing=SimpleNamespace(transmit=lambda output: None))
    if has_end:
        connect("q.1", End(LINK, "b", ()), "q")
    message = Renew(query="q", end=End(LINK, "b", (), 0), gives=True, begins=True)
    for _ in range(2):
        begin_again(operators, flow, lambda operator: False, message)
        said = renew("a", flow, lambda operator, lost: True, lambda instance, us: None, message)
        assert (said.rows, said.made) == ((0, 0) if has_end else (0, None))
        assert (said.after, said.watermark_us, said.sent_us) == ((0, WATERMARK_MIN, WATERMARK_MIN) if has_end else (1, 70, 70))
    nobody: Any = SimpleNamespace(ends=Ends(10))
    with pytest.raises(LocalProtocolError, match="about to move"):
        begin_again(operators, nobody, lambda operator: True, message)
    with pytest.raises(LocalProtocolError, match="is not on a"):
        begin_again(operators, nobody, lambda operator: False, msgspec.structs.replace(message, query="another"))
