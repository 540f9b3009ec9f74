"""An agent whose patterns dealt by windows wait as the recogniser of a story would: `python -m sbon_testbed.cep.waiting_agent ARGUMENT...`.

Users' functions cannot be called inside a pattern, so the recogniser is put before it here, in the testbed's agent alone: each row that an
instance gets takes its time there, and the instance then finds its windows as always. The time counts as processor time of the instance, as
it would if the recogniser computed. The environment variable `SBON_TESTBED_RECOGNISER` says how long rows take, and where to note when
each row was done.
"""

import itertools
import os
import struct
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
import polars as pl

from sbon.engine import execution
from sbon.execution.brief import is_brief
from sbon.execution.work import Task
from sbon.operators import registry
from sbon.operators.match.operator import MatchRows
from sbon.query.params.matched import MatchParams
from sbon.types import FloatArray, IntArray
from sbon_agent import cpu_meter
from sbon_agent.__main__ import main
from sbon_testbed.cep.recognition import Debt, Recognition
from sbon_testbed.cep.stories import STORIES

VARIABLE = "SBON_TESTBED_RECOGNISER"
OPENING = 0
"""Kind of the rows that open windows, in both stories."""
_DONE = struct.Struct("<qqd")
_numbers = itertools.count()


class Recognising(msgspec.Struct, frozen=True):
    """The story and speed of a recogniser, and where it makes its notes."""

    story: str
    speed: float
    directory: str
    """Folder for the notes: a file for each instance."""


class Done(NamedTuple):
    """Copies of rows that instances have processed; all (copies,)."""

    rows: IntArray
    """Numbers of the rows."""
    instances: IntArray
    at_s: FloatArray
    """When each was done, on the monotonic clock."""


class _Waited(threading.local):
    """Time that this thread has waited for rows since it was last asked."""

    def __init__(self) -> None:
        self.ns = 0

    def take_ns(self) -> int:
        """Returns the time, and forgets it."""
        taken, self.ns = self.ns, 0
        return taken


waited = _Waited()


class WaitingMatch(MatchRows):
    """A pattern; as an instance it lets each row wait before it takes it."""

    def __init__(self, params: MatchParams) -> None:
        super().__init__(params)
        self._recognition: Recognition | None = None
        dealt = params.dealt
        if dealt is None or dealt.opens is None or params.within_us is None:
            return
        self._opens, self._index = dealt.opens, dealt.index
        told = msgspec.json.decode(os.environ[VARIABLE], type=Recognising)
        self._recognition = Recognition(STORIES[told.story].operator.law, OPENING, params.within_us, told.speed)
        self._debt = Debt()
        path = Path(told.directory) / f"{os.getpid()}-{next(_numbers)}.done"
        self._notes = path.open("ab", buffering=0)

    def process(self, port: int, frame: pl.DataFrame) -> Sequence[pl.DataFrame]:
        """Lets each row take its time, and notes when it was done; then takes the rows."""
        if self._recognition is not None:
            columns = (frame[self._params.time_column].cast(pl.Int64), frame["kind"], frame["id"], frame[self._opens])
            for at_us, kind, row, may_open in zip(*(column.to_list() for column in columns), strict=True):
                cost_s = self._recognition.cost_s(at_us, kind, may_open=may_open)
                done_s = self._debt.pay(cost_s)
                waited.ns += round(cost_s * 1e9)
                self._notes.write(_DONE.pack(row, self._index, done_s))
        return super().process(port, frame)


def read_done(directory: Path) -> Done:
    """Returns what the instances of an agent have noted."""
    data = b"".join(path.read_bytes() for path in sorted(directory.glob("*.done")))
    found = list(_DONE.iter_unpack(data[: len(data) - len(data) % _DONE.size]))
    rows, instances, at_s = zip(*found, strict=True) if found else ((), (), ())
    return Done(np.array(rows, np.int64), np.array(instances, np.int64), np.array(at_s, np.float64))


@contextmanager
def recognising(told: Recognising) -> Iterator[None]:
    """Tells the agents that are started in the block how long rows take."""
    before = os.environ.get(VARIABLE)
    os.environ[VARIABLE] = msgspec.json.encode(told).decode()
    try:
        yield
    finally:
        if before is None:
            del os.environ[VARIABLE]
        else:
            os.environ[VARIABLE] = before


def put_in() -> None:
    """Lets patterns of this process wait, and counts this as their processor time."""
    setattr(registry, "MatchRows", WaitingMatch)  # noqa: B010 - the module's name is replaced on purpose

    def counting(lap: Callable[[Any, int], int]) -> Callable[[Any, int], int]:
        return lambda self, rows: lap(self, rows) + waited.take_ns()

    for meter in (cpu_meter.Lap, cpu_meter.OwnLap):
        setattr(meter, "lap", counting(meter.lap))  # noqa: B010

    def may_run_on_the_loop(task: Task) -> bool:
        """Tells whether a task may run on the event loop: none that waits."""
        return is_brief(task) and not any(isinstance(stage.instance.operator, WaitingMatch) for stage in task.stages)

    setattr(execution, "is_brief", may_run_on_the_loop)  # noqa: B010


if __name__ == "__main__":
    put_in()
    raise SystemExit(main())
