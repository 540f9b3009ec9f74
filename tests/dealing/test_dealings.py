"""Figures of instances on their way to the splitter that deals windows to them."""

from types import SimpleNamespace
from typing import Any, cast

import msgspec
import polars as pl
import pytest

from sbon.errors import StateError
from sbon.execution.dealings import WAIT_MS_MAX, Dealings
from sbon.execution.dealt_turns import dealt_turns, take_up
from sbon.execution.ends import Input, Output
from sbon.execution.instance import Instance
from sbon.execution.life import State
from sbon.execution.rows import Rows
from sbon.links.batch import Batch
from sbon.links.config import LinkConfig
from sbon.links.receiver import LinkReceiver
from sbon.links.sender import LinkSender
from sbon.migration.state_copy import InputLog
from sbon.operators.frames import polars_schema
from sbon.operators.registry import build
from sbon.query.plan import LinkSpec, OperatorSpec
from sbon.wire.deployment import DealtTurns, TakenUp
from sbon.wire.reports import InstanceFigures
from sbon_agent.engine.building import build as build_operator
from tests.dealing.test_asking import BY_DEALER, MATCH, SplitParams, sink
from tests.query_worlds import plan_of

CONFIG = LinkConfig()


class Clock:
    def now(self) -> float:
        return 5.0

    def wall(self) -> float:
        return 100.0


class Host:
    """A host with operators of a plan with two instances."""

    def __init__(self, name: str, *kinds: type) -> None:
        plan = plan_of(sink(MATCH, 2, BY_DEALER))
        self.sent: list[tuple[str, InstanceFigures]] = []
        self.instances: dict[str, Instance] = {}
        for spec in plan.operators:
            if type(spec.params) in kinds:
                self.instances[spec.id] = self._made(spec, plan.links)
        self.dealings = Dealings(name, self.instances, self.gives, Clock(), self.send)

    def _made(self, spec: OperatorSpec, links: tuple[LinkSpec, ...]) -> Instance:
        instance = Instance(spec, 0, State.RUNNING)
        instance.operator = build(spec.params)
        for link in links:
            if link.target == spec.id:
                instance.inputs[link.id] = Input(link, "there", (), LinkReceiver(link.id, CONFIG))
            if link.source == spec.id:
                instance.outputs[link.id] = Output(link, "there", 0, (), LinkSender(link.id, CONFIG), set())
        return instance

    def gives(self, link: str) -> tuple[Instance, Output] | None:
        return next(((one, one.outputs[link]) for one in self.instances.values() if link in one.outputs), None)

    def send(self, node: str, message: InstanceFigures) -> bool:
        self.sent.append((node, message))
        return True

    @property
    def splitter(self) -> Instance:
        return next(one for one in self.instances.values() if isinstance(one.spec.params, SplitParams))

    @property
    def heard(self) -> list[Any]:
        return cast(Any, self.splitter.operator)._reports


def kinds_of(*names: str) -> tuple[type, ...]:
    from sbon.query.params.matched import MatchParams

    return tuple({"match": MatchParams, "split": SplitParams}[name] for name in names)


def test_an_instance_tells_the_host_of_its_splitter() -> None:
    host = Host("here", *kinds_of("match"))
    first = next(iter(host.instances.values()))
    [incoming] = first.inputs.values()
    first.figures.rows_in, first.figures.accounts.cpu_ns = 70, 9_000
    first.waiting.enqueue(incoming, Batch(1, 99.5, 0, SimpleNamespace(rows=30, size_bytes=1)))
    host.dealings.sample()
    [(node, told), (_, other)] = host.sent
    assert node == "there"
    assert told == InstanceFigures(incoming.link.id, 70, 9_000, 30, 500.0)
    assert (other.waiting, other.wait_ms) == (0, 0.0)
    assert other.wait_ms < WAIT_MS_MAX


def test_a_splitter_hears_of_its_instances_by_their_numbers() -> None:
    host = Host("there", *kinds_of("match", "split"))
    host.dealings.sample()
    assert host.sent == []
    assert [(clock_s, number) for clock_s, number, _ in host.heard] == [(5.0, 0), (5.0, 1)]


def test_a_splitter_passes_acknowledgements_on_and_an_instance_does_not() -> None:
    """A splitter keeps no rows: those under way to instances must be sent again if its host crashes."""
    host = Host("there", *kinds_of("match", "split"))

    passing = {type(one.spec.params).__name__: one.passes for one in host.instances.values()}

    assert passing == {"MatchParams": False, "SplitParams": True}


def test_a_splitter_hears_nothing_while_it_is_copied_or_does_not_run() -> None:
    host = Host("there", *kinds_of("match", "split"))
    host.splitter.log = InputLog()
    host.dealings.sample()
    assert host.heard == []
    host.splitter.log = None
    for state in (State.PAUSED, State.FORKING, State.EXPORTED, State.PREPARED):
        host.splitter.state = state
        host.dealings.sample()
        assert host.heard == []


def test_figures_of_unknown_links_are_ignored() -> None:
    host = Host("there", *kinds_of("split"))
    host.dealings.told(InstanceFigures("unknown", 1, 1, 1, 1.0))
    [output, _] = host.splitter.outputs.values()
    host.dealings.told(InstanceFigures(output.link.id, 1, 1, 1, 1.0))
    assert len(host.heard) == 1


# -------------------------------------------------------------------------------------------------- after a crash


def rows_with(spec: OperatorSpec, *notes: str | None) -> Rows:
    """Returns rows for an instance, with notes of its splitter."""
    rows = pl.DataFrame({field.name: [None] * len(notes) for field in spec.schema}, schema=polars_schema(spec.schema))
    return Rows.of_frame(rows.with_columns(pl.Series(spec.schema[-1].name, notes, pl.String)), spec.schema)


def test_an_instance_tells_the_turns_of_rows_that_wait_and_others_tell_none() -> None:
    host = Host("here", *kinds_of("match", "split"))
    [splitter, first, _] = host.instances.values()
    [incoming] = first.inputs.values()
    assert first.operator is not None
    first.operator.process(0, rows_with(splitter.spec, "3=0", None).frame())
    assert dealt_turns(first) == DealtTurns(((3, 0),), is_whole=True)
    first.waiting.enqueue(incoming, Batch(1, 0.0, 0, rows_with(splitter.spec, "4=1.0")))
    first.waiting.enqueue(incoming, Batch(2, 0.0, 0, None))
    first.waiting.enqueue(incoming, Batch(3, 0.0, 0, rows_with(splitter.spec, "~9=1")))
    assert dealt_turns(first) == DealtTurns(((3, 0), (4, 1), (5, 0), (9, 1)), is_whole=False)
    assert dealt_turns(splitter) == DealtTurns((), is_whole=True)
    first.operator = None
    assert dealt_turns(first) is msgspec.UNSET


@pytest.mark.parametrize("place", [0, 1])
def test_a_new_copy_begins_with_what_its_neighbours_know_and_a_splitter_fails_if_they_do_not_tell(place: int) -> None:
    host = Host("here", *kinds_of("match", "split"))
    instance = list(host.instances.values())[place]
    instance.state = State.BUILDING
    build_operator(
        instance, cast(Any, SimpleNamespace(extensions=lambda: None)), lambda *_: None, TakenUp(1, dealt=DealtTurns(((3, 1),), True))
    )
    assert dealt_turns(instance) == DealtTurns(((3, 1),), is_whole=True)
    build_operator(instance, cast(Any, SimpleNamespace(extensions=lambda: None)), lambda *_: None, TakenUp(1))
    if place == 0:
        with pytest.raises(StateError, match="submit the query again"):
            cast(Any, instance.operator).process(0, pl.DataFrame())
    else:
        assert dealt_turns(instance) == DealtTurns((), is_whole=False)


def test_notes_are_repeated_as_long_as_rows_of_their_output_may_be_skipped() -> None:
    host = Host("here", *kinds_of("split"))
    splitter: Any = host.splitter.operator
    splitter.begins_again()
    take_up(host.splitter, TakenUp(1, dealt=DealtTurns((), is_whole=True)))
    first = next(iter(host.splitter.outputs.values()))
    first.giving.rows = 1
    assert (splitter._skips(0), splitter._skips(1)) == (True, False)
    first.giving.take(1, 0)
    assert not splitter._skips(0)
