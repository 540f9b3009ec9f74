"""A stateless operator with one input passes the origins of rows on, so that it may be lost together with the union before it."""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import pytest

from sbon.delivery.safety import tell_behind
from sbon.engine.task_accounting import origin_of
from sbon.execution.chains import backlog
from sbon.execution.ends import Input, Output
from sbon.execution.instance import Instance, mark_of
from sbon.execution.life import State
from sbon.links.batch import Batch
from sbon.links.config import LinkConfig
from sbon.links.link_names import link_id
from sbon.links.origins import folded, unfolded
from sbon.links.receiver import LinkReceiver
from sbon.links.sender import LinkSender
from sbon.query.expression import Column
from sbon.query.params.rowwise import FunctionParams, MapParams
from sbon.query.params.source import SinkParams, SourceParams
from sbon.query.params.streams import ExchangeParams
from sbon.query.params.windowed import SessionParams
from sbon.query.plan import LinkSpec, OperatorSpec
from sbon.supervision.continuation import Continuation
from sbon.supervision.crash_analysis import Crash, continuations
from sbon.wire.deployment import Renewed

CONFIG = LinkConfig()


class Rows:
    """Rows without columns."""

    size_bytes = 8

    def __init__(self, rows: int) -> None:
        self.rows = rows


def link(source: str, target: str) -> LinkSpec:
    return LinkSpec(link_id(source, target, 0), source, target, 0, 1.0, 1.0)


def spec(name: str, params: object) -> OperatorSpec:
    return OperatorSpec(name, params, (), None, None, "")  # type: ignore[arg-type]


MAP = MapParams(None, None)
SPECS = {name: spec(name, SourceParams(name, "tcp", (), (), None)) for name in "ab"}
SPECS |= {"u": spec("u", MAP), "f": spec("f", MAP), "g": spec("g", MAP), "k": spec("k", SinkParams("k", "file", ()))}
A, B, UF, FG, GK = link("a", "u"), link("b", "u"), link("u", "f"), link("f", "g"), link("g", "k")
CHAIN = [A, B, UF, FG, GK]


def instance(params: object = MAP) -> tuple[Instance, Input, Output]:
    """Returns an operator with one input and one output, which passes origins on."""
    made = Instance(spec("f", params), 0, State.RUNNING)
    incoming = made.inputs[UF.id] = Input(UF, "far", (), LinkReceiver(UF.id, CONFIG))
    output = made.outputs[FG.id] = Output(FG, "far", 0, (), LinkSender(FG.id, CONFIG), {"q"})
    made.number_inputs()
    incoming.origin.made_by_origin = () if made.passes_origins else None
    return made, incoming, output


def test_it_counts_what_it_makes_of_each_origin_and_passes_the_origin_on() -> None:
    operator, incoming, _ = instance()
    for number, (origin, taken, made) in enumerate([(2, 5, 3), (1, 4, 0), (2, 6, 6)], 1):
        batch = Batch(number, 0.0, 0, Rows(taken), origin=origin)
        assert origin_of(operator, incoming, batch) == origin
        incoming.origin.has_made(origin, lambda made=made: (made,))  # type: ignore[misc]
        incoming.count(batch)
    assert incoming.origin.by_origin() == ((4, 0), (11, 9))
    assert mark_of(operator, incoming).by_origin == ((4, 0), (11, 9))
    incoming.origin.has_made(0, lambda: (1,))
    assert incoming.origin.by_origin() is None, "rows without an origin"
    assert origin_of(operator, incoming, Batch(4, 0.0, 0, Rows(1), origin=2)) == 0, "it is unknown how many rows came before"


def test_what_keeps_state_tells_no_origins() -> None:
    operator, incoming, _ = instance(SinkParams("k", "file", ()))
    assert not operator.passes_origins
    assert origin_of(operator, incoming, Batch(1, 0.0, 0, Rows(1), origin=2)) == 0


@pytest.mark.parametrize(("passes", "joined"), [(True, [1, 2]), (False, [1, 2, 3, 4])])
def test_it_joins_batches_of_one_origin_only(passes: bool, joined: list[int]) -> None:
    _, incoming, _ = instance()
    incoming.origin.made_by_origin = () if passes else None
    for number, origin in enumerate([2, 2, 1, 2], 1):
        incoming.queue.append(Batch(number, 0.0, 0, Rows(1), origin=origin))
    assert [batch.sequence for batch in backlog(incoming, 1_000)] == joined


def test_numbers_of_several_links_are_folded_into_one_row() -> None:
    told = folded([(UF.id, (1, 2)), (FG.id, ()), (GK.id + "+7", (3,))])
    assert [unfolded(told, one) for one in (UF.id, FG.id + "+9", GK.id, A.id)] == [(1, 2), (), (3,), None]
    assert unfolded(told[:-1], GK.id) is None
    assert unfolded(told[:1], UF.id) is None


def test_an_acknowledgement_tells_what_the_operators_behind_have_made_of_the_origin() -> None:
    _, incoming, output = instance()
    output.made, output.behind, output.by_origin = (7, 30), (20,), ((9, 4), (21, 16))
    incoming.unsafe.begin(3, 30, (), ((10, 9), (25, 21)))
    tell_behind(incoming, [(output, 7)])
    assert incoming.unsafe.behind == (30, 20)
    assert incoming.unsafe.by_origin is not None
    assert [(own[:2], unfolded(own[2:], FG.id)) for own in incoming.unsafe.by_origin] == [((10, 9), (9, 4)), ((25, 21), (21, 16))]
    incoming.origin.number = 2
    tell_behind(incoming, [(output, 7)])
    assert unfolded(incoming.unsafe.behind, FG.id) == (21, 16)
    incoming.origin.number = 3
    tell_behind(incoming, [(output, 7)])
    assert unfolded(incoming.unsafe.behind, FG.id) == (), "no rows of origin 3 have come"
    output.by_origin = None
    tell_behind(incoming, [(output, 7)])
    assert incoming.unsafe.behind == ()


def given(one: LinkSpec, made: int, behind: tuple[int, ...] = (), **more: Any) -> Renewed:
    return Renewed(one, 3, 9, 0, made=made, behind=behind, passes=True, sent_us=0, **more)


def go_on(
    lost: str, consumers: Mapping[str, Renewed], feeders: Sequence[Renewed], specs: Mapping[str, OperatorSpec] = SPECS, **more: Any
) -> dict[str, Continuation]:
    return continuations(Crash(specs, CHAIN, set(lost), consumers, {one.link.id: one for one in feeders}, {}, **more))


def test_a_union_lost_with_the_two_operators_behind_it_loses_and_repeats_nothing() -> None:
    """u had made 10 rows of the safe input from a. Of a, f had taken 12 rows and made 6, g had taken 7 and made 3, k has had 5."""
    of_a = folded([(UF.id, (12, 6, *folded([(FG.id, (7, 3))])))])
    of_b = folded([(UF.id, (30, 30, *folded([(FG.id, (30, 10))])))])
    found = go_on("ufg", {GK.id: Renewed(GK, 9, 19, 0, origins=(5, 14))}, [given(A, 10, of_a), given(B, 25, of_b)])
    assert {name: dict(one.skips) for name, one in found.items()} == {"u": {UF.id: (2, 5)}, "f": {FG.id: (1, 0)}, "g": {GK.id: (2, 4)}}
    assert [found[name].rows_out for name in "ufg"] == [35, 36, 13]
    assert [found[name].made_by_origin for name in "fg"] == [((6,), (30,)), ((3,), (10,))]
    assert found["u"].given(UF) == (12, 30)
    assert found["f"].given(FG) == (7, 30)
    assert all(one.is_exact for one in found.values())
    assert not any(sum(one.lost_rows.values()) for one in found.values())


def test_two_operators_behind_a_union_that_lives_go_on_by_its_answer() -> None:
    """g had been further than the batch up to which f is safe."""
    numbers = ((12, 6, *folded([(FG.id, (7, 3))])), (30, 30, *folded([(FG.id, (30, 10))])))
    found = go_on("fg", {GK.id: Renewed(GK, 9, 19, 0, origins=(5, 14))}, [given(UF, 36, by_origin=numbers)])
    assert {name: dict(one.skips) for name, one in found.items()} == {"f": {FG.id: (1, 0)}, "g": {GK.id: (2, 4)}}
    assert all(one.is_exact for one in found.values())


def test_rows_of_an_origin_that_the_operator_had_not_seen_are_skipped_too() -> None:
    found = go_on("f", {FG.id: Renewed(FG, 9, 19, 0, origins=(5, 14))}, [given(UF, 3, by_origin=((4, 3),))])["f"]
    assert (dict(found.skips), found.made_by_origin, found.is_exact) == ({FG.id: (2, 14)}, ((3,), (0,)), True)


def test_if_nobody_knows_how_far_the_operator_behind_was_the_count_is_a_rough_one() -> None:
    consumers = {FG.id: Renewed(FG, 9, 22, 0, origins=(8, 14))}
    of_a = folded([(UF.id, (12, 6))])
    for behind in ((), folded([(GK.id, (1, 2))]), folded([(UF.id, (12,))])):
        found = go_on("uf", consumers, [given(A, 10, of_a), given(B, 25, behind)])
        assert not found["u"].is_exact
        assert not found["f"].skips
    found = go_on("uf", consumers, [given(A, 10, of_a), given(B, 0)])
    assert (dict(found["f"].skips), found["f"].is_exact) == ({FG.id: (2, 14)}, True), "f has had nothing of b"


@pytest.mark.parametrize("origins", [None, (5, 13)], ids=["unknown", "others than its rows"])
def test_if_the_consumer_does_not_know_its_origins_the_count_is_a_rough_one(origins: tuple[int, ...] | None) -> None:
    of_a, of_b = (folded([(UF.id, numbers)]) for numbers in ((12, 6), (30, 30)))
    found = go_on("uf", {FG.id: Renewed(FG, 9, 19, 0, origins=origins)}, [given(A, 10, of_a), given(B, 25, of_b)])
    assert not found["u"].is_exact
    assert not any(one.skips for one in found.values())


def test_a_window_behind_it_that_is_lost_too_has_no_cut() -> None:
    ranked = spec("f", SessionParams("ts", 1_000_000, (), ()))
    told = Renewed(FG, 9, 19, 0, origins=(5, 14), is_whole=True)
    found = go_on("uf", {FG.id: told}, [given(A, 0), given(B, 0)], SPECS | {"f": ranked})
    assert not found["f"].skips
    assert found["u"].is_exact, "what was under way belongs to sessions that are left out"


def test_a_function_behind_it_goes_on_by_its_cut_if_it_passes_acknowledgements_on() -> None:
    specs = SPECS | {"f": spec("f", FunctionParams("f", "1", (), (), (), None))}
    consumers = {FG.id: Renewed(FG, 9, 22, 0, origins=(8, 14))}
    of_a, nothing = folded([(UF.id, (12, 6))]), folded([(UF.id, ())])
    found = go_on("uf", consumers, [given(A, 10, of_a), given(B, 0, nothing)], specs)
    assert (dict(found["f"].skips), found["f"].is_exact, found["u"].is_exact) == ({FG.id: (2, 14)}, True, True)
    assert not go_on("uf", consumers, [given(A, 10, of_a), given(B, 0)], specs)["u"].is_exact, "f may keep state"


def test_files_that_are_read_again_are_worked_through_by_all_that_is_lost_behind_them() -> None:
    specs = SPECS | {name: spec(name, SourceParams(name, "file", (), (), None)) for name in "ab"}
    consumers = {FG.id: Renewed(FG, 9, 19, 0, origins=(5, 14))}
    found = go_on("abuf", consumers, [], specs)
    assert (dict(found["u"].skips), dict(found["f"].skips)) == ({UF.id: (0, 0)}, {FG.id: (5, 14)})
    assert found["u"].is_exact
    assert found["f"].is_exact
    of_b = folded([(UF.id, (30, 30))])
    found = go_on("auf", consumers, [given(B, 25, of_b)], specs)
    assert (dict(found["u"].skips), dict(found["f"].skips)) == ({UF.id: (0, 5)}, {FG.id: (5, 0)})


def test_a_file_that_is_away_counts_as_read_again_though_the_operator_behind_is_lost_too() -> None:
    """If the file's host has only been cut off, its source is made again."""
    specs = SPECS | {"a": spec("a", SourceParams("a", "file", (), (), None))}
    of_b = folded([(UF.id, (30, 30))])
    found = go_on("uf", {FG.id: Renewed(FG, 9, 19, 0, origins=(5, 14))}, [given(B, 25, of_b)], specs, absent_files={"a"})
    assert (dict(found["u"].skips), dict(found["f"].skips)) == ({UF.id: (0, 5)}, {FG.id: (5, 0)})
    assert found["u"].is_exact
    found = go_on("uf", {FG.id: Renewed(FG, 9, 19, 0)}, [given(B, 25, of_b)], specs, absent_files={"a"})
    assert (found["u"].is_exact, dict(found["f"].skips)) == (False, {})


def test_an_exchange_behind_a_union_counts_each_part_of_each_origin() -> None:
    specs = SPECS | {"f": spec("f", ExchangeParams((Column("k"),), 2))}
    of_a, of_b = (folded([(UF.id, numbers)]) for numbers in ((12, 6, 2), (30, 0, 30)))
    found = go_on("uf", {}, [given(A, 10, of_a), given(B, 25, of_b)], specs)
    assert found["f"].made_by_origin == ((6, 2), (0, 30))
    assert found["f"].rows_out == 38


def test_what_a_new_copy_counts_as_made_is_told_in_its_end() -> None:
    read = msgspec.msgpack.decode(msgspec.msgpack.encode(given(UF, 3, by_origin=((4, 3),))), type=Renewed)
    assert read.by_origin == ((4, 3),)
