"""The stories: streams, and operators with the costs of their rows.

The laws of costs are fitted to figure 5 of the paper. Traffic: a car passes L1, which opens its window, and L2, which closes it; an L2 row
is compared with each L1 row that its windows have seen. Faces: a query opens a window of fixed length; a face is compared with the query of
each window.
"""

import math
from collections.abc import Callable

import msgspec
import numpy as np

from sbon.cost.overlap import OverlapLaw, RowLaw
from sbon.dealing.instance_records import Setting
from sbon.dealing.model import ModelOptions
from sbon.dealing.replay import Trace
from sbon.types import FloatArray, IntArray

INSTANCES = 8


class Operator(msgspec.Struct, frozen=True):
    """The operator of the instances: the true cost of rows, and their size."""

    law: OverlapLaw
    opens: tuple[bool, ...]
    closes: tuple[bool, ...]
    row_bytes: tuple[int, ...]

    def setting(self, bound_s: float, scope_s: float, instances: int = INSTANCES, *, knows_law: bool = False) -> Setting:
        """Returns the setting that a dealer gets: everything except the operator's costs, unless `knows_law`."""
        return Setting(
            instances=instances,
            bound_s=bound_s,
            scope_s=scope_s,
            opens=self.opens,
            closes=self.closes,
            counted=self.law.counted,
            law=self.law if knows_law else None,
        )


TRAFFIC = Operator(
    OverlapLaw((RowLaw(opening_s=1e-6, window_s=1e-6), RowLaw(pair_s=0.115e-6)), (True, False)), (True, False), (False, True), (64, 64)
)
"""Kinds of rows: L1, L2."""
FACES = Operator(
    OverlapLaw((RowLaw(opening_s=1.25, window_s=0.30), RowLaw(window_s=0.28)), (False, False)),
    (True, False),
    (False, False),
    (200_000, 20_000),
)
"""Kinds of rows: query (some pictures of a person), face (one picture)."""
FRAME_S = 2.0
WITHIN_FRAME_S = 0.01


def cars(passes_s: FloatArray, scope_s: float, until_s: float = np.inf) -> Trace:
    """Returns the rows of cars that pass L1 at these instants, and L2 `scope_s` later."""
    count = len(passes_s)
    at = np.concatenate([passes_s, passes_s + scope_s])
    kind = np.concatenate([np.zeros(count, dtype=np.int64), np.ones(count, dtype=np.int64)])
    closes = np.concatenate([passes_s + scope_s, np.zeros(count)])
    order = np.argsort(at, kind="stable")
    order = order[at[order] < until_s]
    return Trace(at[order], kind[order], closes[order])


def gaps_along(rng: np.random.Generator, mean_gap_s: Callable[[float], float], duration_s: float) -> FloatArray:
    """Returns instants with exponential gaps; the mean of a gap depends on when the gap begins."""
    found: list[float] = []
    at_s = 0.0
    while True:
        at_s += float(rng.exponential(mean_gap_s(at_s)))
        if at_s >= duration_s:
            return np.array(found)
        found.append(at_s)


def pictures(faces: IntArray, queries_s: FloatArray, scope_s: float) -> Trace:
    """Returns the rows of frames, with `faces[i]` faces in frame i, and of queries at these instants."""
    frame = np.repeat(np.arange(len(faces)), faces)
    place = np.arange(len(frame)) - np.repeat(np.cumsum(faces) - faces, faces)
    at = np.concatenate([queries_s, FRAME_S * frame + WITHIN_FRAME_S * place])
    kind = np.concatenate([np.zeros(len(queries_s), dtype=np.int64), np.ones(len(frame), dtype=np.int64)])
    closes = np.concatenate([queries_s + scope_s, np.zeros(len(frame))])
    order = np.argsort(at, kind="stable")
    return Trace(at[order], kind[order], closes[order])


class Story(msgspec.Struct, frozen=True):
    """A stream, its latency bounds, and the paper's settings for it."""

    operator: Operator
    bounds_s: tuple[float, ...]
    threshold_s: float
    """Threshold TH of the reactive dealer."""
    model: ModelOptions
    make: Callable[[np.random.Generator, float], Trace]
    """Returns a stream of the given length in seconds."""
    duration_s: float


SCOPE_TRAFFIC_S = 500.0
SCOPE_FACES_S = 10.0
_MODEL_TRAFFIC = ModelOptions(bins=8, monitored_s=60.0, gap_bias=0.75, cost_bias=2.0)
_MODEL_FACES = ModelOptions(bins=2, monitored_s=10.0, gap_bias=1.0, cost_bias=0.0)
_HOURS_5_S = 18_000.0
_MINUTES_150_S = 9_000.0


def _traffic(mean_gap_s: Callable[[float], float]) -> Story:
    return Story(
        TRAFFIC,
        (0.5, 1.0, 2.0),
        0.1,
        _MODEL_TRAFFIC,
        lambda rng, duration_s: cars(gaps_along(rng, mean_gap_s, duration_s), SCOPE_TRAFFIC_S, duration_s),
        _HOURS_5_S,
    )


def _faces(mean_faces: Callable[[float], float]) -> Story:
    def make(rng: np.random.Generator, duration_s: float) -> Trace:
        frames = FRAME_S * np.arange(int(duration_s / FRAME_S))
        faces = rng.poisson([mean_faces(float(at_s)) for at_s in frames])
        return pictures(faces, gaps_along(rng, lambda at_s: 2.0, duration_s), SCOPE_FACES_S)

    return Story(FACES, (15.0, 30.0, 60.0), 6.0, _MODEL_FACES, make, _MINUTES_150_S)


STORIES: dict[str, Story] = {
    # Of five curves between 2000 and 200 ms, this one sends as many rows as the paper's round robin.
    "traffic": _traffic(lambda at_s: 1.1 - 0.9 * math.sin(math.pi * at_s / _HOURS_5_S)),
    "traffic-fast": _traffic(lambda at_s: 1.1 + 0.9 * math.cos(2 * math.pi * at_s / 3600)),
    "traffic-steps": _traffic(lambda at_s: (0.2, 1.0)[int(at_s // 2500) % 2]),
    "faces": _faces(lambda at_s: 2.0),
    "faces-bursts": _faces(lambda at_s: (1.0, 3.0)[int(at_s // 300) % 2]),
}
