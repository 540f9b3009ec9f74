"""The events through which an operator with most partials on disk goes beside one with all in memory; shared by windows and sessions.

Moving a state in pieces is shared by deduplication, too.
"""

import math
import random
from collections.abc import Callable
from itertools import count
from typing import TypeVar

import numpy as np
import polars as pl
from hypothesis import strategies as st

from sbon.errors import StateFullError
from sbon.operators.deduplicate import Deduplicate
from sbon.operators.windowed import Windowed
from sbon.query.expression import Column
from sbon.query.params.aggregate import Aggregate
from sbon.state.room import StateRoom
from sbon.watermarks import WATERMARK_END
from sbon_testbed.simulator.disk import VirtualDisk
from tests.operators.stream_twins import frame, rows_of
from tests.operators.test_windows import AGGREGATES

F, I, K = Column("f"), Column("i"), Column("k")  # noqa: E741
MORE = (
    *(one for one in AGGREGATES if one.function in ("count", "avg", "first", "count_distinct")),
    Aggregate("median_i", "percentile_cont", I, share=0.5),
    Aggregate("texts", "string_agg", K),
)
FEW = (Aggregate("n", "count", None), Aggregate("sum_i", "sum", I), Aggregate("max_f", "max", F))
LITTLE = 12_000
"""Memory in bytes, enough for some twenty groups with all aggregates."""
EVENTS = st.lists(st.sampled_from(["rows", "rows", "rows", "pass", "pass far", "fork", "move", "copy", "full", "free"]), max_size=20)
ROOMS = count()
Kind = TypeVar("Kind", bound=Windowed)
Moving = TypeVar("Moving", bound=Windowed | Deduplicate)
KEYS = {"text": (("k", K),), "text and float": (("k", K), ("f", F)), "whole": (("i", I),)}


def room_of(disk: VirtualDisk, memory_bytes: int = LITTLE) -> StateRoom:
    return StateRoom(disk, memory_bytes, 10**9, 10**12, 40, f"{next(ROOMS)}-")


def drawn(now: int, many: int, draw: np.random.Generator) -> pl.DataFrame:
    numbers = (draw.zipf(1.3, many) % 300).tolist()
    keys = [None if one == 7 else ("k" if one % 3 else "a key longer than twelve bytes ") + str(one) for one in numbers]
    floats = draw.choice(np.array([None, 0.0, -0.0, 2.5, 1e16, -1e16, math.nan, math.inf], object), many).tolist()
    return frame(list(zip((now + draw.integers(-40, 60, many)).tolist(), keys, floats, numbers, strict=True)), "tkfi")


def moved(operator: Moving, to: Moving, rng: random.Random) -> Moving:
    """Moves the operator's state to `to` in randomly cut pieces; returns `to`."""
    head, pieces = operator.pieces()
    take = to.adopting(head)
    assert take is not None
    for name, rows in pieces:
        cut = rng.randint(0, rows.height)
        take(name, rows[:cut])
        if cut < rows.height:
            take(name, rows[cut:])
    return to


def same(part: Windowed, whole: Windowed, watermark: int) -> None:
    """Advances both; checks that they give the same rows in the same order."""
    assert list(map(repr, rows_of(part.advance(watermark)))) == list(map(repr, rows_of(whole.advance(watermark))))


def go_through(events: list[str], make: Callable[[StateRoom | None], Kind], alike: Callable[[Kind, Kind], None], seed: int) -> None:
    """Checks that an operator on disk answers through all events as one in memory does.

    Parameters
    ----------
    make : the operator with this room; None: with all in memory
    alike : checks that two operators, which are not used afterwards, have the same state
    """
    rng, draw = random.Random(seed), np.random.default_rng(seed)
    disk, now, forks = VirtualDisk(), 0, list[Kind]()
    whole, part = make(None), make(room_of(disk))
    for event in [*events, "free", "end"]:
        match event:
            case "rows":
                rows = drawn(now, rng.randint(1, 80), draw)
                try:
                    part.process(0, rows)
                except StateFullError:
                    alike(part.fork(), whole.fork())
                    disk.capacity_bytes = float("inf")
                    part.process(0, rows)
                whole.process(0, rows)
            case "pass" | "pass far" | "end":
                now += rng.randint(1, 60) if event == "pass" else rng.randint(100, 2_000)
                same(part, whole, WATERMARK_END if event == "end" else now - rng.choice([0, 50]))
            case "fork":  # continues with the copy; changing the original must not change it
                forks.append(part)
                part = part.fork()
                if disk.capacity_bytes == float("inf"):
                    forks[-1].process(0, drawn(now, 40, draw))
                forks[-1].advance(now + 10)
            case "move" | "copy" if disk.capacity_bytes == float("inf"):
                if event == "move":
                    part = moved(part, make(room_of(disk)), rng)
                else:  # through a host that keeps all in memory
                    there = make(None)
                    there.restore(part.snapshot())
                    alike(there.fork(), whole.fork())
                    part = make(room_of(disk))
                    part.restore(there.snapshot())
            case "full":
                disk.capacity_bytes = disk.used_bytes + rng.choice([0, 3_000])
            case "free":
                disk.capacity_bytes = float("inf")
    assert (part.late_rows, part.state_rows) == (whole.late_rows, 0)
    forks.clear()
    assert disk.files == {}
