"""Pattern windows dealt to several instances give the answers of one instance, in its order, however far the instances lag."""

from collections import deque
from random import Random
from typing import Any

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbon.dealing.dealer import Silent
from sbon.dealing.measured import InstanceTold
from sbon.errors import QueryError
from sbon.operators import asking_splitter
from sbon.operators.asking_splitter import AskingSplitter
from sbon.operators.frames import column_type
from sbon.operators.match import sequential
from sbon.operators.operator import Operator
from sbon.operators.registry import build
from sbon.query.instances import Asked, Dealing, dealing_of_windows
from sbon.query.params.matched import MatchParams
from sbon.schema import Field
from sbon.watermarks import WATERMARK_END, WATERMARK_MIN
from tests.examples import examples
from tests.operators.match_twin import Query, answers
from tests.operators.test_match import CONDITIONS, MEASURES, frame, pieces, plain, planned, random_query, random_rows, run

SECOND_US = 1_000_000


def reads_outside(text: str) -> bool:
    return any(word in text for word in ("PREV(", "NEXT(")) and "CLASSIFIER" not in text


INSIDE = [one for one in CONDITIONS if not reads_outside(one[0])]
"""Conditions that read no rows outside the match."""


class Dealt:
    """A splitter, instances and a merger, connected as by links. A link delivers batches in order, with any delay."""

    def __init__(self, dealt: Dealing, number: int, random: Random) -> None:
        self._params = dealt.exchange(0, number), [dealt.part(index, number)[0] for index in range(number)], dealt.merge
        self._splitter, self._merger = build(self._params[0]), build(self._params[2])
        self._instances = [build(params) for params in self._params[1]]
        self._waiting: list[deque[Any]] = [deque() for _ in range(number)]
        self._passed = [WATERMARK_MIN] * number
        self._number, self._random = number, random
        self.sent = [0] * number
        self.answers: list[pl.DataFrame] = []

    def take(self, batch: pl.DataFrame, mark: int | None) -> None:
        """Deals a batch and the watermark after it, then lets some instances work."""
        if isinstance(self._splitter, AskingSplitter) and self._random.random() < 0.5:
            self._splitter.told(self._random.random(), 0, InstanceTold(0, 0, 0, 0.0))
        for number, part in enumerate(self._splitter.process(0, batch) if batch.height else ()):
            if part.height:
                self._waiting[number].append(part)
                self.sent[number] += part.height
        for waiting in self._waiting:
            waiting.extend([] if mark is None else [mark])
        if mark is not None:
            assert not list(self._splitter.advance(mark))
        if self._random.random() < 0.2:
            self._splitter = self._moved(self._splitter, self._params[0])
        for number in self._random.sample(range(self._number), self._random.randint(0, self._number)):
            self._work(number, self._random.randint(0, 3))

    def _work(self, number: int, most: int) -> None:
        waiting, instance = self._waiting[number], self._instances[number]
        for _ in range(min(most, len(waiting))):
            event = waiting.popleft()
            for given_ in instance.advance(event) if isinstance(event, int) else instance.process(0, event):
                if given_.height:
                    self.answers += self._merger.process(0, given_)
            if isinstance(event, int):
                self._passed[number] = max(self._passed[number], instance.output_watermark(event))
                self.answers += self._merger.advance(min(self._passed))
            if self._random.random() < 0.2:
                instance = self._instances[number] = self._moved(instance, self._params[1][number])
            if self._random.random() < 0.2:
                self._merger = self._moved(self._merger, self._params[2])

    def _moved(self, operator: Operator, params: Any) -> Operator:
        other = build(params)
        if self._random.random() < 0.5 or not isinstance(operator, AskingSplitter):
            other.restore(operator.snapshot())
        else:
            operator.fork()
            other = operator
        return other

    def end(self) -> list[Any]:
        """Lets the instances finish one after the other; returns the rows of all answers."""
        for waiting in self._waiting:
            waiting.append(WATERMARK_END)
        for number in self._random.sample(range(self._number), self._number):
            self._work(number, len(self._waiting[number]))
        assert self._merger.late_rows == 0
        assert self._merger.state_rows == 0
        return [row for answer in self.answers for row in answer.rows()]


def windowed(random: Random) -> Query:
    """Returns a random query. The windows of most such queries can be dealt."""
    query = random_query(random, INSIDE)
    told = [one for one in query.measures if not reads_outside(one[0])] or [("COUNT(*)", dict(MEASURES)["COUNT(*)"])]
    if random.random() < 0.3:
        told.append(("MATCH_NUMBER()", dict(MEASURES)["MATCH_NUMBER()"]))
    mode = random.choice(["ONE ROW PER MATCH", "ALL ROWS PER MATCH"])
    pattern = query.pattern if random.random() < 0.7 else ("seq", [("var", "a"), query.pattern])
    return query._replace(measures=told, mode=mode, within=random.randint(1, 12), pattern=pattern)


def schema_of(params: MatchParams, rows: pl.DataFrame) -> tuple[Field, ...]:
    """Returns the columns of the answers. Columns that are not in `rows` are integers."""
    names = [*(params.passed or ()), *(name for name, _ in params.measures)]
    return tuple(Field(name, column_type(rows.schema.get(name, pl.Int64()))) for name in names)


class Erratic(Silent):
    """Deals at random."""

    def deal(self, at_s: float, closes_s: float) -> int:
        assert closes_s > at_s >= 0
        return Random(f"{at_s} {closes_s}").randrange(self.setting.instances)


def check(seed: int, *, asks: bool = False) -> bool:
    """Compares a random query's answers from several instances, one instance and the twin; False if the planner refuses it. With `asks`, a
    dealer without sense is asked."""
    random = Random(seed)
    query, rows = windowed(random), random_rows(random)
    sql = query.sql.replace("PARTITION BY k ", "")
    made = planned(sql) if "MEASURES" in sql else None
    if made is None:
        return False
    before, params, columns = made
    number, turn_us = random.randint(2, 5), random.choice([None, None, random.randint(1, 9) * SECOND_US, random.randint(1, 9_999_999)])
    given_ = random.sample(rows, len(rows)) if random.random() < 0.5 else sorted(rows, key=lambda row: row.ts)
    parts = list(pieces(given_, [random.randint(1, 13) for _ in range(random.randint(0, 6))]))
    batches, marks = [frame(part, before, params) for part, _ in parts], [mark for _, mark in parts]
    try:
        dealt = dealing_of_windows(params, schema_of(params, batches[0]), number, turn_us)
        if asks:
            turn_us = random.choice([None, SECOND_US, random.randint(20_000, 9_999_999)])
            dealt = dealing_of_windows(params, schema_of(params, batches[0]), number, turn_us, Asked("auto", 1.0, "opens window"))
    except QueryError:
        return False
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(asking_splitter, "dealer_of", lambda _, setting, records: Erratic(setting, records))
        several = Dealt(dealt, number, random)
        if random.random() < 0.5:
            patch.setattr(sequential, "ROWS_MIN", 0)
        last = WATERMARK_MIN
        for batch, mark in zip(batches, marks, strict=True):
            last = last if mark is None else max(last, mark)
            several.take(batch, None if mark is None else last)
        found = several.end()
    expected = run(build(params), batches, marks, [False] * len(parts), params)
    assert found == expected
    assert sum(several.sent) >= len(rows)
    names = [*(params.passed or ()), *(name for name, _ in params.measures)]
    shown = [dict(zip(names, plain(row), strict=True)) for row in found]
    order = [inner for _, inner in columns] if columns is not None else names
    twin = answers(query, sorted(rows, key=lambda row: (row.ts, -row.n if query.descending else row.n)))
    at = slice(1, None) if params.passed is None else slice(None)
    if params.passed is None:
        assert [tuple(row[name] for name in order) for row in shown] == [row[at] for row in twin]
    return True


@examples(150)
@given(seed=st.integers(0, 2**40))
def test_dealt_windows_are_answered_as_by_one_instance(seed: int) -> None:
    check(seed)


@examples(150)
@given(seed=st.integers(0, 2**40))
def test_windows_dealt_by_a_dealer_that_changes_its_mind_are_answered_as_by_one_instance(seed: int) -> None:
    check(seed, asks=True)


@pytest.mark.soak
@pytest.mark.parametrize("thousand", range(10))
def test_ten_thousand_patterns(thousand: int) -> None:
    assert sum(check(seed) for seed in range(thousand * 1_000, (thousand + 1) * 1_000)) > 300
    assert sum(check(seed, asks=True) for seed in range(thousand * 1_000, (thousand + 1) * 1_000)) > 300
