"""Splitter, instances and merger answer as one instance does, with any dealer, any number of instances, resizes and crashes."""

import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbon.dealing.choice import best_by_replay
from sbon.dealing.dealer import OneCopy, RoundRobin, Silent
from sbon.dealing.instance_records import InstanceRecords, Setting
from sbon.dealing.merging import Candidate, Merger
from sbon.dealing.splitting import Splitter
from sbon.errors import ShapeError
from tests.examples import examples

SCOPE_S = 8.0
PATTERN = re.compile("ab*c")
LETTERS = "abcd"


class Anyhow(Silent):
    """Deals each window to a random instance."""

    def __init__(self, setting: Setting, records: InstanceRecords, rng: np.random.Generator) -> None:
        super().__init__(setting, records)
        self._rng = rng

    def deal(self, at_s: float, closes_s: float) -> int:
        return int(self._rng.integers(self.setting.instances))


def told(instances: int) -> Setting:
    kinds = (True, False, False, False)
    return Setting(instances=instances, bound_s=3.0, scope_s=SCOPE_S, opens=kinds, closes=(False,) * 4, counted=kinds)


def candidate_of(start: int, rows: dict[int, tuple[float, int, str]], skip_to_next: bool) -> Candidate | None:
    """Returns an instance's match for a start among its rows of the start's partition within the scope."""
    at_s, partition, _ = rows[start]
    window = [number for number in sorted(rows) if number >= start and rows[number][1] == partition and rows[number][0] < at_s + SCOPE_S]
    found = PATTERN.match("".join(rows[number][2] for number in window))
    if not found:
        return None
    matched = window[: found.end()]
    return Candidate(start, start + 1 if skip_to_next else matched[-1] + 1, tuple(matched))


def by_one(rows: dict[int, tuple[float, int, str]], skip_to_next: bool) -> list[tuple[int, ...]]:
    """The plain twin: returns the answers of one instance that works row by row."""
    answers, resumes = [], {}
    for number in sorted(rows):
        partition = rows[number][1]
        if rows[number][2] == "a" and number >= resumes.get(partition, 0):
            found = candidate_of(number, rows, skip_to_next)
            if found:
                answers.append(found.answer)
                resumes[partition] = found.resumes
    return answers


class Instances:
    """Instances that keep the rows sent to them and answer for a start once its window has closed."""

    def __init__(self) -> None:
        self.rows: dict[int, dict[int, tuple[float, int, str]]] = {}
        self.starts: dict[int, list[int]] = {}

    def send(self, instance: int, number: int, row: tuple[float, int, str]) -> None:
        self.rows.setdefault(instance, {})[number] = row

    def own(self, instance: int, start: int) -> None:
        self.starts.setdefault(instance, []).append(start)

    def settle(self, now: float, merger: Merger, skip_to_next: bool, instance: int) -> None:
        left = []
        for start in self.starts.get(instance, []):
            rows = self.rows[instance]
            if rows[start][0] + SCOPE_S <= now:
                merger.found(start, candidate_of(start, rows, skip_to_next))
            else:
                left.append(start)
        self.starts[instance] = left

    def crash(self, instance: int) -> None:
        self.rows.pop(instance, None)
        self.starts.pop(instance, None)


@examples(60)
@given(st.integers(0, 2**31), st.sampled_from(["round-robin", "one-copy", "chance", "replay"]), st.integers(1, 6), st.booleans())
def test_answers_are_those_of_one_instance(seed, dealer, instances, skip_to_next):
    rng = np.random.default_rng(seed)
    make = {"round-robin": RoundRobin, "one-copy": OneCopy, "replay": best_by_replay}.get(
        dealer, lambda setting, records: Anyhow(setting, records, np.random.default_rng(seed + 1))
    )
    count = int(rng.integers(1, 80))
    at = np.round(np.cumsum(rng.exponential(1.0, count) * (rng.random(count) < 0.8)), 1)
    letters = rng.choice(list(LETTERS), count, p=[0.3, 0.3, 0.2, 0.2])
    partitions = rng.integers(0, 2, count)
    rows = {number: (float(at[number]), int(partitions[number]), str(letters[number])) for number in range(count)}
    splitter, merger, world = Splitter(told(instances), make), Merger(), Instances()
    kinds = np.array([LETTERS.index(letter) for letter in letters])
    answers: list[tuple[int, ...]] = []
    place = 0
    while place < count:
        size = int(rng.integers(1, 12))
        part = slice(place, min(count, place + size))
        split = splitter.take(at[part], kinds[part], letters[part] == "a")
        assert split.first == place
        merger.dealt(
            [(split.first + row, int(partitions[split.first + row])) for row in np.flatnonzero(split.owners >= 0).tolist()], part.stop
        )
        for row in range(len(split.masks)):
            for instance in range(64):
                if int(split.masks[row]) >> instance & 1:
                    world.send(instance, place + row, rows[place + row])
            if split.owners[row] >= 0:
                world.own(int(split.owners[row]), place + row)
        place = part.stop
        for instance in rng.permutation(list(world.starts)).tolist():
            if rng.random() < 0.7:
                world.settle(float(at[part][-1]), merger, skip_to_next, instance)
        answers += merger.leave()
        splitter.answered(merger.answered)
        if rng.random() < 0.2 and len(splitter.records.of) > 1:
            lost = int(rng.integers(len(splitter.records.of)))
            world.crash(lost)
            for one in splitter.lost(lost):
                assert splitter.kept_from <= one.start < one.end <= place
                for number in range(one.start, one.end):
                    world.send(one.instance, number, rows[number])
                world.own(one.instance, one.start)
        if rng.random() < 0.2:
            splitter.resize(int(rng.integers(1, 6)))
    for instance in list(world.starts):
        world.settle(np.inf, merger, skip_to_next, instance)
    answers += merger.leave()
    splitter.answered(merger.answered)

    assert answers == by_one(rows, skip_to_next)
    assert merger.waiting == 0
    assert splitter.kept_from == count


def test_a_second_answer_for_a_start_is_dropped():
    merger = Merger()
    merger.dealt([(0, "k")], 3)
    merger.found(0, Candidate(0, 2, "first"))
    merger.found(0, None)

    assert merger.leave() == ["first"]
    merger.found(0, Candidate(0, 2, "late"))
    assert merger.leave() == []
    assert merger.repeated == 2


def test_a_candidate_waits_for_the_starts_before_it():
    merger = Merger()
    merger.dealt([(0, "k"), (1, "k")], 5)
    merger.found(1, Candidate(1, 4, "second"))

    assert merger.leave() == []
    assert merger.answered == 0
    merger.found(0, None)
    assert merger.leave() == ["second"]
    assert merger.answered == 5


def test_starts_of_other_partitions_are_not_void():
    merger = Merger()
    merger.dealt([(0, "k"), (1, "l"), (2, "k")], 3)
    for start in range(3):
        merger.found(start, Candidate(start, 9, start))

    assert merger.leave() == [0, 1]


def test_a_row_at_the_end_of_the_scope_is_not_in_the_window():
    splitter = Splitter(told(2), RoundRobin)

    split = splitter.take(np.array([0.0, SCOPE_S - 0.1, SCOPE_S]), np.array([0, 1, 1]), np.array([True, False, False]))

    assert split.masks.tolist() == [1, 1, 0]


def test_rows_that_go_back_are_refused():
    splitter = Splitter(told(2), RoundRobin)
    splitter.take(np.array([5.0]), np.array([1]), np.array([False]))

    with pytest.raises(ShapeError, match="in order"):
        splitter.take(np.array([4.0]), np.array([1]), np.array([False]))


def test_the_only_instance_cannot_be_lost():
    with pytest.raises(ShapeError, match="another"):
        Splitter(told(1), RoundRobin).lost(0)
