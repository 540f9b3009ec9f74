"""Several instances of an operator give the answers of one, in its order, however far the instances lag."""

import random
from collections import deque
from collections.abc import Sequence
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbon.operators.exchange import FILTERS_MAX, Exchange, part_of_slices
from sbon.operators.frames import column_type
from sbon.operators.hashes import SLICES, slices
from sbon.operators.operator import Operator
from sbon.operators.registry import build
from sbon.query.expression import Column
from sbon.query.instances import Dealing, dealing_of
from sbon.query.params.joined import WindowJoinParams
from sbon.query.params.kinds import Params
from sbon.query.params.matched import MatchParams
from sbon.query.params.ordered import DeduplicateParams
from sbon.query.params.streams import ExchangeParams, MergeParams
from sbon.query.params.windowed import SessionParams, WindowParams
from sbon.schema import Field
from sbon.watermarks import WATERMARK_END, WATERMARK_MIN
from tests.examples import examples
from tests.operators.operators import EVENTS, OPERATORS, frames_of

KEYED = (WindowParams, SessionParams, DeduplicateParams, WindowJoinParams, MatchParams)
NUMBERS = st.sampled_from([2, 3, 8, 64])


def schema_of(params: Params) -> tuple[Field, ...]:
    """The output columns, from answers to some rows."""
    operator = build(params)
    rows = [(n % 50, "ab"[n % 2], n % 5 + 1, float(n % 7), n % 3 == 0) for n in range(60)]
    (_, left), (_, right) = frames_of("union", [(0, rows), (1, rows)])
    made = [*operator.process(0, left), *(operator.process(1, right) if isinstance(params, WindowJoinParams) else ())]
    made += operator.advance(WATERMARK_END)
    return tuple(Field(name, column_type(dtype)) for name, dtype in made[0].schema.items())


def dealings() -> dict[str, tuple[Params, Dealing]]:
    found = {}
    for kind, params in OPERATORS.items():
        dealt = dealing_of(params, schema_of(params), None) if isinstance(params, KEYED) else None
        if dealt is not None:
            found[kind] = params, dealt
    return found


DEALINGS = dealings()


class Instances:
    """Exchanges, instances and a merge, connected as by links. A link delivers batches in order, with any delay."""

    def __init__(self, dealt: Dealing, number: int, rng: random.Random) -> None:
        self._exchanges = [Exchange(ExchangeParams(keys, number)) for keys in dealt.keys]
        self._instances = [build(dealt.params) for _ in range(number)]
        self._merge = build(MergeParams(dealt.time_column, dealt.order, dealt.hidden, dealt.delay_us))
        self._waiting: list[deque[Any]] = [deque() for _ in range(number)]
        self._passed = [WATERMARK_MIN] * number
        self._number, self._rng = number, rng
        self.answers: list[pl.DataFrame] = []

    def take(self, event: Any) -> None:
        """Deals one event, then lets some instances work."""
        if isinstance(event, int):
            for waiting in self._waiting:
                waiting.append(event)
        else:
            port, frame = event
            for waiting, part in zip(self._waiting, self._exchanges[port].process(port, frame), strict=True):
                if part.height:
                    waiting.append((port, part))
        for number in self._rng.sample(range(self._number), self._rng.randint(0, self._number)):
            self._work(number, self._rng.randint(0, 3))

    def _work(self, number: int, most: int) -> None:
        waiting, instance = self._waiting[number], self._instances[number]
        for _ in range(min(most, len(waiting))):
            event = waiting.popleft()
            given = instance.advance(event) if isinstance(event, int) else instance.process(*event)
            for frame in given:
                if frame.height:
                    self.answers += self._merge.process(0, frame)
            if isinstance(event, int):
                out = instance.output_watermark(event) if event < WATERMARK_END else WATERMARK_END
                self._passed[number] = max(self._passed[number], out)
                self.answers += self._merge.advance(min(self._passed))
            if self._rng.random() < 0.1:
                self._instances[number], self._merge = moved(instance), moved(self._merge)
                instance = self._instances[number]

    def end(self) -> None:
        """Lets the instances finish one after the other."""
        for number in self._rng.sample(range(self._number), self._number):
            self._work(number, len(self._waiting[number]))
        assert self._merge.late_rows == 0
        assert self._merge.state_rows == 0

    @property
    def late_rows(self) -> int:
        """Returns the number of late rows of all instances."""
        return sum(instance.late_rows for instance in self._instances)


def moved(operator: Operator) -> Operator:
    """Returns the operator as a migration would restore it."""
    other = build(operator._params if hasattr(operator, "_params") else operator._shared)  # type: ignore[attr-defined]
    other.restore(operator.snapshot())
    return other


def rows_of(frames: Sequence[pl.DataFrame]) -> list[str]:
    return [repr(row) for frame in frames for row in frame.rows()]


def test_all_kinds_with_keys_are_there() -> None:
    assert {type(params) for params, _ in DEALINGS.values()} == set(KEYED)


@pytest.mark.parametrize("kind", DEALINGS)
@examples(15)
@given(events=EVENTS, number=NUMBERS, seed=st.integers(0, 2**32))
def test_instances_answer_as_one_row_by_row_and_in_its_order(kind: str, events: list[Any], number: int, seed: int) -> None:
    params, dealt = DEALINGS[kind]
    one, several = build(params), Instances(dealt, number, random.Random(seed))
    expected: list[pl.DataFrame] = []
    mark = WATERMARK_MIN
    for event in [*frames_of(kind, events), WATERMARK_END]:
        if isinstance(event, int):
            mark = event = max(mark, event)
        elif not isinstance(params, WindowJoinParams):
            event = (0, event[1])
        several.take(event)
        expected += one.advance(event) if isinstance(event, int) else one.process(*event)
    several.end()

    assert rows_of(several.answers) == rows_of(expected)
    assert several.late_rows == one.late_rows


KEYS = st.lists(
    st.tuples(st.sampled_from(["a", "bb", "ccc", "", None]), st.sampled_from([0.0, -0.0, float("nan"), 1.5, None])), max_size=40
)


@examples(60)
@given(rows=KEYS, number=NUMBERS, cut=st.integers(0, 40))
def test_a_key_goes_to_one_instance_and_rows_stay_in_order(rows: list[Any], number: int, cut: int) -> None:
    frame = pl.DataFrame(rows, schema={"k": pl.String(), "x": pl.Float64()}, orient="row").with_row_index("n").cast({"n": pl.Int64()})
    exchange = Exchange(ExchangeParams((Column("k"), Column("x")), number))
    parts = [exchange.process(0, piece) for piece in (frame[:cut], frame[cut:]) if piece.height]
    owner: dict[Any, int] = {}
    seen: list[int] = []
    for batch in parts:
        assert len(batch) == number
        for index, part in enumerate(batch):
            assert part["n"].is_sorted()
            seen += part["n"].to_list()
            for key, x in part.select("k", "x").rows():
                same = (key, None if x is None else "nan" if x != x else x + 0.0)
                assert owner.setdefault(same, index) == index
    assert sorted(seen) == list(range(len(rows)))


@pytest.mark.parametrize("number", [2, FILTERS_MAX, FILTERS_MAX + 1, 64])
def test_instances_have_ranges_of_slices_of_about_equal_length(number: int) -> None:
    part = part_of_slices(number)
    sizes = np.bincount(part)
    assert sizes.sum() == SLICES
    assert sizes.max() - sizes.min() <= 1
    assert (np.diff(part.astype(int)) >= 0).all()


def test_keys_are_spread_evenly_over_slices() -> None:
    for keys in (pl.Series(range(64_000)), pl.Series([f"key {n}" for n in range(64_000)])):
        counts = np.bincount(slices([keys]), minlength=SLICES)
        assert counts.min() > 800
        assert counts.max() < 1_200
