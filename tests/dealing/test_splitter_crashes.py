"""A splitter that asks a dealer, made again after crashes, deals rows that come once more as its former copies did. Then each row opens a
window at one instance, which has all rows of the window, once and in order.

Rows in a lost state do not come again. If the splitter is lost, too, with all instances that knew some turn, that turn is decided anew, and
may get an owner that lacks those rows.
"""

from collections.abc import Iterator, Sequence
from random import Random
from typing import NamedTuple

import polars as pl
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from sbon.dealing.dealer import Silent
from sbon.dealing.measured import InstanceTold
from sbon.dealing.owners import Known
from sbon.execution.rows import Rows
from sbon.operators import asking_splitter
from sbon.operators.asking_splitter import AskingSplitter
from sbon.query.params.streams import SplitParams, Turns, told_column
from sbon.schema import ColumnType, Field
from tests.examples import examples

OPENS = "opens"
SCHEMA = (
    Field("ts", ColumnType.TIME),
    Field("n", ColumnType.INT),
    Field(OPENS, ColumnType.BOOL),
    Field(told_column(OPENS), ColumnType.TEXT),
)


class Erratic(Silent):
    """Deals at random, never twice alike."""

    random = Random()

    def deal(self, at_s: float, closes_s: float) -> int:
        return self.random.randrange(self.setting.instances)


class Instance:
    """An instance: the rows that it has taken, with what opens a window there, and what it knows."""

    def __init__(self) -> None:
        self.rows: list[tuple[int, bool]] = []
        self.before = 0
        """Rows that its former copies had taken, whose state is lost."""
        self.known = Known()
        self.is_whole = True
        """False if it has lost a state."""

    @property
    def taken(self) -> int:
        return self.before + len(self.rows)

    def take(self, frame: pl.DataFrame) -> None:
        for note in frame[told_column(OPENS)].drop_nulls():
            self.known.take(note)
        self.rows += frame.select("n", OPENS).rows()


class Forgotten(NamedTuple):
    """A crash of the splitter and of some instances."""

    safe: int
    """Rows that did not come again."""
    known: frozenset[int]
    """The turns that living instances knew; all others were decided anew."""
    rows: frozenset[int]
    """Rows in the lost states, and in those that the same instances had lost earlier."""

    def excuses(self, opener: int, turn: int, row: int) -> bool:
        """Tells whether the window that `opener` opens, in `turn`, may lack a row. Such a window begins no later than the latest lost row,
        so it is among those that the query says to lack rows."""
        return opener >= self.safe > row and turn not in self.known and row in self.rows


class Story:
    """A feeder that keeps rows until all instances have them, a splitter and instances. Links deliver in order, with any delay."""

    def __init__(self, random: Random) -> None:
        self.random, self.number = random, random.randint(2, 4)
        self.within = random.randint(5, 60)
        self.params = SplitParams(Turns("ts", random.randint(1, 40), self.within), self.number, OPENS, "auto", 1.0)
        late, step = random.choice([0, self.within // 3, self.within]), random.choice([1, 3, self.within])
        self.times = [max(0, n * step - random.randint(0, late)) for n in range(random.randint(10, 60))]
        self.instances = [Instance() for _ in range(self.number)]
        self.flying: list[list[tuple[Rows, dict[int, int]]]] = [[] for _ in range(self.number)]
        """Rows under way to each instance, and what it must know then."""
        self.splitter, self.at = self._made(), 0
        self.made = {0: (0,) * self.number}
        """Rows made for each instance, by the number of rows that the splitter had taken."""
        self.due = [0] * self.number
        self.safe = 0
        self.lost: list[set[int]] = [set() for _ in range(self.number)]
        """Rows that lost copies of each instance had taken."""
        self.forgotten: list[Forgotten] = []

    def _made(self) -> AskingSplitter:
        return AskingSplitter(self.params)

    def run(self) -> None:
        while self.at < len(self.times) or any(self.flying):
            choice = self.random.random()
            if choice < 0.4:
                self.deal()
            elif choice < 0.8:
                self.deliver(self.random.randrange(self.number))
            elif choice < 0.86:
                self.safe = max(self.safe, self.all_taken())
            elif choice < 0.9:
                self.move()
            else:
                self.crash(self.random.random() < 0.7, [one for one in range(self.number) if self.random.random() < 0.08])

    def deal(self) -> None:
        if self.random.random() < 0.4:
            self.splitter.told(0.0, 0, InstanceTold(0, 0, 0, 0.0))
        end = min(len(self.times), self.at + self.random.randint(1, 12))
        if end == self.at:
            return
        batch = pl.DataFrame({"ts": self.times[self.at : end], "n": range(self.at, end)}, schema={"ts": pl.Datetime("us"), "n": pl.Int64()})
        parts = self.splitter.process(0, batch)
        rows = Rows.dealt(parts, SCHEMA, self.splitter.noted)
        self.made[end] = tuple(had + part.height for had, part in zip(self.made[self.at], parts, strict=True))
        self.at = end
        for index, part in enumerate(rows._dealt):
            if part is None:
                continue
            skipped = min(self.due[index], part.rows)
            self.due[index] -= skipped
            if skipped < part.rows:
                pieces = self.cut(part.behind(skipped) if skipped else part)
                self.flying[index] += [(piece, self.splitter.known()[0]) for piece in pieces]

    def cut(self, rows: Rows) -> Iterator[Rows]:
        """Yields rows as a link might carry them."""
        if rows.rows > 1 and self.random.random() < 0.3:
            place = self.random.randint(1, rows.rows - 1)
            yield rows._piece(rows.frame()[:place])
            yield rows._piece(rows.frame()[place:])
        else:
            yield rows

    def deliver(self, index: int) -> None:
        if self.flying[index]:
            rows, turns = self.flying[index].pop(0)
            self.instances[index].take(rows.frame())
            assert turns.items() <= self.instances[index].known.of.items()

    def all_taken(self) -> int:
        """Returns a number of rows of which all instances have taken all that was made."""
        taken = [one.taken for one in self.instances]
        return max(rows for rows, made in self.made.items() if all(got >= gave for got, gave in zip(taken, made, strict=True)))

    def move(self) -> None:
        other = self._made()
        other.restore(self.splitter.snapshot())
        other._skips = lambda index: self.due[index] > 0
        self.splitter = other

    def crash(self, takes_splitter: bool, lost: Sequence[int]) -> None:
        """Takes the splitter or some instances, or both, and makes them again as their home would."""
        living = [one for index, one in enumerate(self.instances) if index not in lost]
        answers = [(dict(one.known.of), one.known.is_whole) for one in living] + ([] if takes_splitter else [self.splitter.known()])
        turns = {turn: owner for of, _ in answers for turn, owner in of.items()}
        known = (tuple(turns.items()), bool(answers) and all(is_whole for _, is_whole in answers))
        safe = self.safe
        for index in lost:
            former, made = self.instances[index], Instance()
            made.is_whole = False
            self.lost[index] |= {n for n, _ in former.rows}
            # Without the splitter, what was not acknowledged comes again; with it, its link sends on what has not been acknowledged.
            made.before = self.made[safe][index] if takes_splitter else former.taken
            made.known.add(known[0], is_whole=known[1])
            self.instances[index] = made
        if takes_splitter and lost:
            rows = frozenset[int]().union(*[self.lost[index] for index in lost])
            self.forgotten.append(Forgotten(safe, frozenset(turns), rows))
        if takes_splitter:
            self.flying = [[] for _ in range(self.number)]
            self.splitter, self.at = self._made(), safe
            self.made = {rows: made for rows, made in self.made.items() if rows <= safe}
            self.due = [one.taken - gave for one, gave in zip(self.instances, self.made[safe], strict=True)]
            assert min(self.due) >= 0
            self.splitter.takes_up(known[0], lambda index: self.due[index] > 0, is_whole=known[1])

    def check(self) -> int:
        """Checks what instances have in the end; returns the number of windows of instances that have lost no state."""
        opened = [n for one in self.instances for n, opens in one.rows if opens]
        assert len(set(opened)) == len(opened)
        if all(one.is_whole for one in self.instances):
            assert sorted(opened) == list(range(len(self.times)))
        windows = 0
        for one in self.instances:
            numbers = [n for n, _ in one.rows]
            assert len(set(numbers)) == len(numbers)
            assert numbers == sorted(numbers)
            if one.is_whole:
                there = set(numbers)
                for n in [n for n, opens in one.rows if opens]:
                    inside = {row for row, at in enumerate(self.times) if 0 <= at - self.times[n] < self.within}
                    turn = self.times[n] // self.params.turns.turn_us
                    missing = [row for row in inside - there if not any(crash.excuses(n, turn, row) for crash in self.forgotten)]
                    assert missing == []
                    windows += inside <= there
        return windows


def check(seed: int) -> int:
    random = Random(seed)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(asking_splitter, "dealer_of", lambda _, setting, records: Erratic(setting, records))
        Erratic.random = random
        story = Story(random)
        story.run()
        return story.check()


@examples(30)
@given(seed=st.integers(0, 2**40))
@example(seed=8_424_955_032)  # the splitter is lost with the only instance that knew a turn
def test_after_crashes_each_row_opens_a_window_once_where_all_rows_of_the_window_are(seed: int) -> None:
    check(seed)


@pytest.mark.soak
@pytest.mark.parametrize("thousand", range(10))
def test_ten_thousand_stories_of_a_splitter(thousand: int) -> None:
    assert sum(check(seed) for seed in range(thousand * 1_000, (thousand + 1) * 1_000)) > 1_000
