"""Positions of sources are kept once all rows before them are safe, with the numbers of rows made of exactly these rows."""

from types import SimpleNamespace
from typing import Any

from sbon.delivery.safety import tell_behind
from sbon.engine.source_positions import SourcePositions
from sbon.links.unsafe import Unsafe

LINK = "q.0>q.1:0"


class Source:
    """A source with one output, and the positions that it has been told to keep."""

    def __init__(self, *, passes: bool) -> None:
        self.kept: list[tuple[Any, ...]] = []
        self.now = 100.0
        self.sender = SimpleNamespace(offered=0, safe=0, rows_offered=0, rows_left_out=0)
        self.output = SimpleNamespace(
            link=SimpleNamespace(id=f"{LINK}+7", part=None),
            sender=self.sender,
            giving=SimpleNamespace(is_whole=True, is_due=False),
            made=(0, 0),
            behind=() if passes else None,
        )
        self.figures = SimpleNamespace(rows_out=0)
        self.outputs = {self.output.link.id: self.output}
        self.source = SimpleNamespace(places=SimpleNamespace(keep=lambda *told: self.kept.append(told)))

    def give(self, positions: SourcePositions, rows: int) -> None:
        """Gives a batch; its position is the number of rows so far."""
        self.sender.offered += 1
        self.sender.rows_offered += rows
        self.figures.rows_out += rows
        self.now += 2.0
        positions.entered(self, self.figures.rows_out)  # type: ignore[arg-type]


def made(*, passes: bool) -> tuple[Source, SourcePositions]:
    source = Source(passes=passes)
    positions = SourcePositions(SimpleNamespace(now=lambda: source.now))  # type: ignore[arg-type]
    source.give(positions, 5)  # no position is kept for the first batch: another copy may have given it
    return source, positions


def test_a_position_is_kept_behind_the_last_batch_that_is_safe():
    source, positions = made(passes=False)
    source.give(positions, 10)
    source.give(positions, 10)
    assert source.kept == []
    source.sender.safe = 2
    source.give(positions, 10)
    assert source.kept == [(15, LINK, 15, ())]


def test_a_position_has_the_rows_made_of_exactly_its_rows():
    source, positions = made(passes=True)
    source.give(positions, 10)
    source.give(positions, 10)
    source.sender.safe, source.output.made, source.output.behind = 3, (2, 7), (6,)
    source.give(positions, 10)
    assert source.kept == [(15, LINK, 15, (7, 6))]
    source.sender.safe, source.output.made = 4, (4, None)
    source.give(positions, 10)
    assert len(source.kept) == 1, "unknown how many rows were made of these"


def test_rows_made_of_a_number_that_is_no_batch_of_a_poll_are_not_used():
    source, positions = made(passes=True)
    source.give(positions, 10)
    source.sender.offered += 1  # the rows of this poll leave in two batches
    source.give(positions, 10)
    source.sender.safe, source.output.made = 3, (3, 4)
    source.give(positions, 10)
    assert source.kept == []


def test_a_source_with_two_outputs_keeps_none():
    source, positions = made(passes=False)
    source.give(positions, 10)
    source.outputs["other"] = source.output
    source.sender.safe = 2
    source.give(positions, 10)
    assert source.kept == []


def test_a_link_that_does_not_bring_all_rows_tells_no_position():
    source, positions = made(passes=False)
    source.give(positions, 10)
    source.sender.safe, source.sender.rows_offered = 2, 3
    source.give(positions, 10)
    assert source.kept == []


def test_rows_that_a_target_had_made_before_a_crash_are_not_told_as_made_of_fewer():
    """An operator skips the rows that its target has had. Until then, the target's counts may cover more rows than these."""
    output: Any = SimpleNamespace(link=SimpleNamespace(id=LINK), by_origin=None, made=(5, 9), behind=(4,))
    for is_level, behind in ((True, (9, 4)), (False, ())):
        incoming: Any = SimpleNamespace(unsafe=Unsafe(), origin=SimpleNamespace(number=0))
        tell_behind(incoming, [(output, 5)], is_level=is_level)
        assert incoming.unsafe.behind == behind
