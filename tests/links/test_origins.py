"""Stateless operators with several inputs tell the origin of their rows: a new copy skips the rows of each input that were taken."""

from typing import Any

import msgspec
import pytest

from sbon.engine.task_accounting import TaskAccounting
from sbon.execution.ends import Input, Output
from sbon.execution.instance import Instance, mark_of
from sbon.execution.life import State
from sbon.handshake import FULL_FRAMES, ORIGINS, ORIGINS_PASSED_ON
from sbon.links.batch import Batch
from sbon.links.config import LinkConfig
from sbon.links.frames import Data, LinkFrameReader, LinkFrameWriter
from sbon.links.link_names import link_id
from sbon.links.receiver import LinkReceiver
from sbon.links.sender import LinkSender
from sbon.query.expression import Column
from sbon.query.params.aggregate import Aggregate
from sbon.query.params.ordered import OverParams
from sbon.query.params.rowwise import FunctionParams, MapParams
from sbon.query.params.source import SinkParams, SourceParams
from sbon.query.params.streams import ExchangeParams
from sbon.query.plan import Begin, LinkSpec, OperatorSpec, Part
from sbon.supervision.crash_analysis import Crash, continuations
from sbon.wire.deployment import End, Instantiate, LeaveOut, Renewed, User
from sbon.wire.messages import protocol_of
from sbon.wire.migration import Prepare

CONFIG = LinkConfig()


class Rows:
    """Rows without columns."""

    size_bytes = 8

    def __init__(self, rows: int) -> None:
        self.rows = rows

    def of_part(self, part: object) -> "Rows":
        return self

    def parts(self) -> tuple["Rows"]:
        return (self,)

    def behind(self, rows: int) -> "Rows":
        return Rows(self.rows - rows)


def link(source: str, target: str, part: Part | None = None) -> LinkSpec:
    return LinkSpec(link_id(source, target, 0), source, target, 0, 1.0, 1.0, part=part)


def spec(name: str, params: object) -> OperatorSpec:
    return OperatorSpec(name, params, (), None, None, "")  # type: ignore[arg-type]


def union(params: object) -> Instance:
    """Returns an operator with two inputs, b first, and one output."""
    made = Instance(spec("u", params), 0, State.RUNNING)
    for name in ("b", "a"):
        incoming = Input(link(name, "u"), "far", (), LinkReceiver(name, CONFIG))
        made.inputs[incoming.link.id] = incoming
    to = link("u", "k")
    made.outputs[to.id] = Output(to, "far", 0, (), LinkSender(to.id, CONFIG), {"q"})
    made.number_inputs()
    return made


def test_the_origin_is_told_in_the_same_bytes_and_only_to_agents_that_take_it() -> None:
    told = []
    for tells, checksum in ((False, True), (True, True), (True, False)):
        writer, reader = LinkFrameWriter(checksum=checksum, frame_bytes_max=1_000), LinkFrameReader(checksum=checksum)
        writer.tells_origins = tells
        number, head = writer.head(Data("a>b:0", 1, 2.0, 3, 4, b"rows", 5, origin=64))
        told.append((len(head), reader.read(number, head + b"rows").origin))
    assert told == [(told[0][0], 0), (told[0][0], 64), (told[0][0], 64)]


def test_rows_are_counted_by_origin_until_one_comes_without() -> None:
    incoming = Input(link("u", "k"), "far", (), LinkReceiver("l", CONFIG))
    incoming.count(Batch(1, 0.0, 0, Rows(5), origin=2))
    incoming.count(Batch(2, 0.0, 0, None))
    incoming.queue.append(Batch(3, 0.0, 0, Rows(3), origin=1))
    assert (incoming.origin.taken, incoming.origins_taken) == ((0, 5), (3, 5))
    incoming.count(Batch(3, 0.0, 0, Rows(3), origin=2))
    assert incoming.origin.taken == (0, 8)
    incoming.count(Batch(4, 0.0, 0, Rows(1)))
    assert (incoming.origin.taken, incoming.origins_taken) == (None, None)


def test_a_batch_is_safe_with_the_rows_made_of_its_own_input() -> None:
    operator = union(MapParams(None, None))
    first, second = operator.inputs.values()
    assert (first.origin.number, second.origin.number, operator.passes) == (2, 1, True), "numbered in the order of link names"
    operator.figures.rows_out = 30
    first.origin.made, second.origin.made = (20,), None
    assert (mark_of(operator, first).made, mark_of(operator, second).made) == (20, None)
    dealing = union(ExchangeParams((Column("k"),), 2))
    incoming = next(iter(dealing.inputs.values()))
    incoming.origin.made = (4, 6)
    assert mark_of(dealing, incoming)[1:3] == (10, (4, 6))


def test_of_each_input_so_many_rows_are_skipped_as_were_taken_of_it() -> None:
    output = next(iter(union(MapParams(None, None)).outputs.values()))
    output.giving.by_origin = [3, 7]
    assert [output.giving.take(5, 2), output.giving.take(5, 1), output.giving.take(5, 2), output.giving.take(5, 0)] == [5, 3, 2, 0]
    assert not output.giving.is_due
    output.giving.skip(2, 5)
    assert (output.giving.due(1), output.giving.due(2), output.giving.due(3)) == (0, 5, 0)
    output.giving.skip(2, 0)
    assert not output.giving.is_due


@pytest.mark.parametrize("is_whole", [True, False])
def test_an_output_that_began_later_tells_no_origins(is_whole: bool) -> None:
    operator, sent = union(MapParams(None, None)), []

    class Flow:
        class Outgoing:
            leaves = staticmethod(lambda output: True)
            transmit = staticmethod(lambda output: sent.append(output.sender.kept()[-1]))

        outgoing = Outgoing()

    [output] = operator.outputs.values()
    output.giving.is_whole, output.giving.by_origin = is_whole, [0, 4]
    accounting: Any = TaskAccounting(Flow(), *[None] * 5)  # type: ignore[arg-type]
    accounting._emit(operator, Rows(10), 0.0, 5, 0, None, (), None, 2)
    assert [(batch.rows, batch.origin) for batch in sent] == [(6, 2 if is_whole else 0)]


UNION = {one.id: one for one in (spec(name, SourceParams(name, "tcp", (), (), None)) for name in ("b", "a"))}
UNION |= {one.id: one for one in (spec("u", MapParams(None, None)), spec("k", SinkParams("k", "file", ())))}
IN, OUT = [link("b", "u"), link("a", "u")], link("u", "k")


def given(made: int | None, one: LinkSpec = IN[0]) -> Renewed:
    return Renewed(one, 3, 9, 0, made=made, passes=True)


def test_a_lost_operator_with_several_inputs_skips_of_each_what_its_consumer_has_taken() -> None:
    consumers = {OUT.id: Renewed(OUT, 9, 47, 0, origins=(30, 17))}
    feeders = {IN[0].id: given(10), IN[1].id: given(25, IN[1])}
    found = continuations(Crash(UNION, [*IN, OUT], {"u"}, consumers, feeders, {}))["u"]
    assert dict(found.skips) == {OUT.id: (5, 7)}, "5 rows of a, 7 of b"
    assert dict(found.made) == {IN[0].id: (10,), IN[1].id: (25,)}
    assert (found.rows_out, found.is_exact, sum(found.lost_rows.values())) == (35, True, 0)


@pytest.mark.parametrize("origins", [None, (30, 18), (10, 10, 27)], ids=["unknown", "others than its rows", "more than there are"])
def test_if_the_origin_is_not_known_so_many_rows_are_skipped_as_were_taken(origins: tuple[int, ...] | None) -> None:
    """A function may keep state, but a function that passes acknowledgements on has no state to lose."""
    consumers = {OUT.id: Renewed(OUT, 9, 47, 0, origins=origins)}
    feeders = {IN[0].id: given(10), IN[1].id: given(25, IN[1])}
    for params in (MapParams(None, None), FunctionParams("f", "1", (), (), (), None)):
        found = continuations(Crash(UNION | {"u": spec("u", params)}, [*IN, OUT], {"u"}, consumers, feeders, {}))["u"]
        assert (dict(found.skip_rows), dict(found.skips), found.is_exact) == ({OUT.id: 12}, {}, False)
        assert found.state_until_us is None


def test_if_the_rows_made_of_an_input_are_not_known_it_goes_on_where_the_consumer_is() -> None:
    consumers = {OUT.id: Renewed(OUT, 9, 47, 0, origins=(30, 17))}
    feeders = {IN[0].id: given(None), IN[1].id: msgspec.structs.replace(given(25, IN[1]))}
    found = continuations(Crash(UNION, [*IN, OUT], {"u"}, consumers, feeders, {}))["u"]
    assert (dict(found.made), dict(found.skips)) == ({IN[0].id: (17,), IN[1].id: (25,)}, {OUT.id: (5, 0)})
    assert not found.is_exact


def test_rows_that_are_gone_are_counted_by_input() -> None:
    """Three rows of b were on a lost disk. That the consumer has more rows of a does not make up for them."""
    consumers = {OUT.id: Renewed(OUT, 9, 47, 0, origins=(30, 17))}
    feeders = {IN[0].id: given(20), IN[1].id: given(25, IN[1])}
    found = continuations(Crash(UNION, [*IN, OUT], {"u"}, consumers, feeders, {}))["u"]
    assert (dict(found.lost_rows), dict(found.skips), found.is_exact) == ({OUT.id: 3}, {OUT.id: (5, 0)}, False)


def test_after_a_loss_the_count_is_a_rough_one() -> None:
    """It is unknown which input the lost rows came from."""
    consumers = {OUT.id: Renewed(OUT, 9, 47, 0, origins=(30, 17))}
    feeders = {IN[0].id: given(10), IN[1].id: given(25, IN[1])}
    assert not continuations(Crash(UNION, [*IN, OUT], {"u"}, consumers, feeders, {OUT.id: 4}))["u"].is_exact


def test_a_lost_sink_behind_it_finds_its_rows_by_origin_or_makes_the_count_a_rough_one() -> None:
    feeders = {IN[0].id: given(10), IN[1].id: given(25, IN[1])}
    found = continuations(Crash(UNION, [*IN, OUT], {"u", "k"}, {}, feeders, {}, {"k"}))
    assert (found["u"].is_exact, found["k"].is_exact, found["k"].by_word) == (True, True, True)
    assert found["u"].given(OUT) == (25, 10)
    found = continuations(Crash(UNION, [*IN, OUT], {"u", "k"}, {}, feeders, {}))
    assert (found["u"].is_exact, found["k"].is_exact) == (False, False)


def test_beside_a_lost_consumer_a_file_is_not_worked_through_once_more() -> None:
    """Nobody would skip the rows that the lost consumer has passed on."""
    specs = UNION | {name: spec(name, SourceParams(name, "file", (), (), None)) for name in "ab"}
    feeders = {IN[0].id: given(10)}
    found = continuations(Crash(specs, [*IN, OUT], {"a", "u", "k"}, {}, feeders, {}))["u"]
    assert (dict(found.made), found.is_exact) == ({}, False)
    found = continuations(Crash(specs, [*IN, OUT], {"a", "u", "k"}, {}, feeders, {}, {"k"}))["u"]
    assert (dict(found.made), found.is_exact) == ({IN[0].id: (10,), IN[1].id: (0,)}, True), "the sink finds its rows by origin"
    other = link("u", "l")
    consumers = {other.id: Renewed(other, 9, 47, 0, origins=(30, 17))}
    found = continuations(
        Crash(specs | {"l": spec("l", SinkParams("l", "file", ()))}, [*IN, OUT, other], {"a", "u", "k"}, consumers, feeders, {})
    )["u"]
    assert (dict(found.made), found.is_exact) == ({IN[0].id: (10,), IN[1].id: (30,)}, False)


def test_an_exchange_counts_each_part_of_each_input() -> None:
    specs = UNION | {"u": spec("u", ExchangeParams((Column("k"),), 2))}
    outs = [link("u", name, Part(index, 2)) for index, name in enumerate("xy")]
    consumers = {one.id: Renewed(one, 9, sum(origins), 0, origins=origins) for one, origins in zip(outs, ((8, 5), (9,)), strict=True)}
    feeders = {IN[0].id: given(6), IN[1].id: given(12, IN[1])}
    feeders = {
        name: msgspec.structs.replace(one, behind=behind) for (name, one), behind in zip(feeders.items(), ((5, 0), (7, 5)), strict=True)
    }
    feeders[IN[0].id] = msgspec.structs.replace(feeders[IN[0].id], made=5)
    found = continuations(Crash(specs, [*IN, *outs], {"u"}, consumers, feeders, {}))["u"]
    assert dict(found.skips) == {outs[0].id: (1, 0), outs[1].id: (4, 0)}
    assert (found.is_exact, found.rows_out) == (True, 17)


def test_files_that_are_read_again_are_worked_through_once_more_without_the_rows_that_were_taken() -> None:
    specs = UNION | {name: spec(name, SourceParams(name, "file", (), (), None)) for name in "ab"}
    consumers = {OUT.id: Renewed(OUT, 9, 47, 0, origins=(30, 17))}
    lost, one = {"a", "b", "u"}, {"a", "u"}
    found = continuations(Crash(specs, [*IN, OUT], lost, consumers, {}, {}))["u"]
    assert (dict(found.skips), found.is_exact) == ({OUT.id: (30, 17)}, True)
    found = continuations(Crash(specs, [*IN, OUT], one, consumers, {IN[0].id: given(10)}, {}))["u"]
    assert (dict(found.skips), found.is_exact) == ({OUT.id: (30, 7)}, True)
    found = continuations(Crash(specs, [*IN, OUT], {"u"}, consumers, {IN[0].id: given(10)}, {}, absent_files={"a"}))["u"]
    assert (dict(found.skips), found.is_exact) == ({OUT.id: (30, 7)}, True)


def test_agents_of_the_former_release_read_an_end_and_are_read() -> None:
    class FormerEnd(msgspec.Struct, frozen=True, array_like=True):
        link: LinkSpec
        node: str
        schema: tuple[str, ...]
        epoch: int = 0
        after: int = 0
        rows: int = 0
        skip_rows: int = 0
        watermark_us: int = 0

    end = End(OUT, "a", (), 1, 2, 3, 4, 5, made=(6,), origins=(7, 8), skips=(9,))
    former = FormerEnd(OUT, "a", (), 1, 2, 3, 4, 5)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(end), type=FormerEnd) == former
    read = msgspec.msgpack.decode(msgspec.msgpack.encode(former), type=End)
    assert (read.made, read.origins, read.skips, read.watermark_us) == (None, None, (), 5)


@pytest.mark.parametrize("skips", [(), (0, 9)])
def test_only_agents_that_know_origins_make_an_operator_that_skips_rows_by_origin(skips: tuple[int, ...]) -> None:
    message = Instantiate(spec("u", MapParams(None, None)), (), (End(OUT, "a", (), skips=skips),), User("q", "home"))
    assert protocol_of(message) == (ORIGINS if skips else 0)
    behind = msgspec.structs.replace(message, inputs=(End(OUT, "a", (), made_by_origin=()),))
    assert protocol_of(behind) == ORIGINS_PASSED_ON


def test_only_agents_that_know_full_frames_make_aggregates_over_rows_that_a_crash_has_cut() -> None:
    over = spec("u", OverParams("ts", (), (), (Aggregate("n", "count", None),), (3,)))
    for begin, protocol in (msgspec.UNSET, 0), (Begin("ts", 7, 3), FULL_FRAMES):
        made = msgspec.structs.replace(over, begin=begin)
        assert protocol_of(Instantiate(made, (), (), User("q", "home"))) == protocol
        assert protocol_of(Prepare(made, 1, "home")) == protocol
    assert protocol_of(LeaveOut("q", "u", "ts", 7)) == FULL_FRAMES


def test_a_file_does_not_give_again_what_a_link_has_lost_before() -> None:
    """The skipped rows would include the lost ones."""
    specs = UNION | {name: spec(name, SourceParams(name, "file", (), (), None)) for name in "ab"}
    consumers = {OUT.id: Renewed(OUT, 9, 47, 0, origins=(30, 17))}
    found = continuations(Crash(specs, [*IN, OUT], {"a", "u"}, consumers, {IN[0].id: given(10)}, {IN[1].id: 4}))["u"]
    assert (dict(found.made), found.is_exact) == ({IN[0].id: (10,), IN[1].id: (30,)}, False)


def test_rows_that_were_counted_as_lost_are_not_counted_again() -> None:
    consumers = {OUT.id: Renewed(OUT, 9, 47, 0, origins=(30, 17))}
    feeders = {IN[0].id: given(20), IN[1].id: given(25, IN[1])}
    found = continuations(Crash(UNION, [*IN, OUT], {"u"}, consumers, feeders, {OUT.id: 2}))["u"]
    assert dict(found.lost_rows) == {OUT.id: 1}
