"""Notes up to which position the rows of a source are safe, if the source can begin there, and has it keep the position (docs/recovery.md,
Positions).

`sbon.engine.task_accounting` uses it.

A position is kept only if three facts are known exactly for one batch of the source's link: the place of the source after the batch, the
rows that it had given by then, and the rows that stateless operators had made of exactly these. So the position stays true of the file's
rows, whatever happens later to hosts, links and batch numbers.
"""

from collections import deque
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

from sbon.execution.ends import Output
from sbon.execution.instance import Instance
from sbon.links.link_names import first_name
from sbon.ports import Clock

EVERY_S = 1.0
"""Seconds between two positions of a source that are kept. Longer: less is written; after a crash more of the file is read again."""


class Mark(NamedTuple):
    """The state of a source after one batch of its link."""

    sequence: int
    rows: int
    """Rows that the source had given."""
    place: Any
    """The place in the file, as the source itself describes it (`Polled.place`)."""


class _Marks:
    """Batches of one source that are under way, and its last kept position."""

    def __init__(self, output: Output) -> None:
        self.sender = output.sender
        self.offered = output.sender.offered
        self.marks: deque[Mark] = deque()
        self.kept_s = float("-inf")
        self.kept_rows = 0
        self.made = 0
        """Number of counts of rows made in the kept position (`FilePosition.made`)."""


class SourcePositions:
    """Positions of this host's sources."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._of: WeakKeyDictionary[Instance, _Marks] = WeakKeyDictionary()

    def entered(self, source: Instance, place: Any) -> None:
        """Notes that all batches of a poll are in the links, and keeps a position if one is due.

        Parameters
        ----------
        place : `Polled.place` of that poll
        """
        output = _only_output(source)
        if output is None:
            self._of.pop(source, None)
            return
        known = self._of.get(source)
        if known is None or known.sender is not output.sender:
            self._of[source] = _Marks(output)  # the batches in the link may be a former copy's
            return
        sequence = output.sender.offered
        if sequence > known.offered:
            known.offered = sequence
            known.marks.append(Mark(sequence, source.figures.rows_out, place))
        self._look(source, output, known)

    def _look(self, source: Instance, output: Output, known: _Marks) -> None:
        """Keeps the position after the last safe batch, if everything is known of it and a position is due."""
        passes = output.behind is not None
        safe = min(output.made[0], output.sender.safe) if passes else output.sender.safe
        found: Mark | None = None
        while known.marks and known.marks[0].sequence <= safe:
            found = known.marks.popleft()
        now = self._clock.now()
        if found is None or found.place is None or now - known.kept_s < EVERY_S or found.rows <= known.kept_rows:
            return
        made: tuple[int, ...] = ()
        if passes:
            if found.sequence != output.made[0] or output.made[1] is None:
                return
            made = (output.made[1], *(output.behind or ()))
        if len(made) >= known.made:
            known.kept_s, known.kept_rows, known.made = now, found.rows, len(made)
            connector: Any = source.source
            connector.places.keep(found.place, first_name(output.link.id), found.rows, made)


def _only_output(source: Instance) -> Output | None:
    """Returns the only output of a source, if it was given every row of the source and no row was left out; otherwise None."""
    if len(source.outputs) != 1:
        return None
    [output] = source.outputs.values()
    sender = output.sender
    is_whole = output.giving.is_whole and not output.giving.is_due and output.link.part is None and not sender.rows_left_out
    return output if is_whole and sender.rows_offered == source.figures.rows_out else None
