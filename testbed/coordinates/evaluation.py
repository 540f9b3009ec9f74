"""Runs coordinates on a matrix of RTTs (`sbon_testbed.coordinates.space`), and scores them against the measurements."""

import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from sbon.cost_space.config import CoordinateConfig
from sbon.errors import ShapeError, UsageError
from sbon.types import FloatArray
from sbon_testbed.coordinates.liars import Liar
from sbon_testbed.coordinates.space import Space, draw_peers, play_round
from sbon_testbed.matrix import per_pair_median

WARMUP_ROUNDS = (20, 50, 100)


def predicted_rtt_ms(positions: FloatArray) -> FloatArray:
    """Returns the RTTs that positions of shape (n, 4) predict, (n, n)."""
    vectors, heights = positions[:, :3], positions[:, 3]
    square = np.zeros((len(positions), len(positions)))
    for axis in range(3):  # One axis at a time holds one n x n difference in memory instead of three.
        difference = vectors[:, axis, None] - vectors[None, :, axis]
        square += difference * difference
    predicted: FloatArray = np.sqrt(square) + heights[:, None] + heights[None, :]
    return predicted


def score(positions: FloatArray, truth: FloatArray, only: Sequence[int] | None = None) -> dict[str, float]:
    """Returns the errors over all measured pairs of different nodes, or of the nodes in `only`; each direction counts separately.

    Parameters
    ----------
    positions : (n, 4)
    truth : (n, n) ms, NaN where not measured

    Raises
    ------
    ShapeError
        Positions and truth are of different sizes.
    """
    if positions.shape[0] != truth.shape[0]:
        raise ShapeError(f"{positions.shape[0]} positions, expected {truth.shape[0]} as in the matrix")
    if only is not None:
        chosen = np.asarray(only)
        positions, truth = positions[chosen], truth[np.ix_(chosen, chosen)]
    measured = _pairs(truth)
    absolute = np.abs(predicted_rtt_ms(positions) - truth)[measured]
    relative = absolute / truth[measured]
    return {
        "median_relative_error": float(np.median(relative)),
        "p90_relative_error": float(np.percentile(relative, 90)),
        "median_absolute_error_ms": float(np.median(absolute)),
    }


def score_by_probing(
    positions: FloatArray, truth: FloatArray, probed: npt.NDArray[np.bool_], only: Sequence[int] | None = None
) -> dict[str, dict[str, float] | None]:
    """Returns the errors of `score` for pairs in which a node has probed the other, and for the rest; None if there are no such pairs.

    Parameters
    ----------
    positions, truth, only : see `score`
    probed : (n, n)

    Returns
    -------
    dict
        `probed` and `unprobed`: the errors, and in `pairs` the number of ordered pairs.
    """
    result: dict[str, dict[str, float] | None] = {}
    for name, among in (("probed", probed), ("unprobed", ~probed)):
        part = np.where(among, truth, np.nan)
        chosen = np.arange(len(part)) if only is None else np.asarray(only)
        pairs = int(_pairs(part[np.ix_(chosen, chosen)]).sum())
        result[name] = {**score(positions, part, only), "pairs": pairs} if pairs else None
    return result


def _pairs(truth: FloatArray) -> npt.NDArray[np.bool_]:
    """Tells for each pair whether it is a measured pair of different nodes, (n, n)."""
    return np.logical_and(np.isfinite(truth), ~np.eye(len(truth), dtype=bool))


def evaluate(
    matrix: FloatArray,
    rounds: int = 500,
    neighbours: int | None = 32,
    seed: int = 0,
    *,
    config: CoordinateConfig | None = None,
    gossip: int | None = None,
    liar: Liar | None = None,
    liars_share: float = 0.1,
    jitter: float = 0.0,
    progress: Callable[[int], None] | None = None,
    trace: dict[int, float] | None = None,
) -> dict[str, Any]:
    """Runs an overlay on a matrix until it has coordinates, and scores them.

    Parameters
    ----------
    matrix : [n, n] or [t, n, n] ms, NaN where not measured; slices follow each other in equal parts of the rounds
    rounds : each node probes one peer a round
    neighbours : size of the fixed random set that a node draws its peers from; None for all others
    seed : the same seed gives the same numbers, except times
    gossip : number of random coordinates that a node gets each round; None: it always knows the latest of the peers that it remembers
    liar, liars_share : an attack, and the share of nodes that take part; then only honest pairs are scored
    jitter : mean of the noise by which a probe exceeds the matrix, as a share of the RTT (`sbon_testbed.coordinates.jitter`)
    progress : called after each round
    trace : gets the median relative error against the current slice, by round

    Returns
    -------
    dict
        Plain values for JSON. Errors are relative to the measured RTT, over all measured pairs of the last slice. `probed` and `unprobed`
        have the errors of pairs in which a node has probed the other, and of the other pairs.

    Raises
    ------
    UsageError
        There are too few rounds or neighbours, or the jitter is out of range.
    """
    _check(rounds, neighbours, gossip)
    slices = matrix if matrix.ndim == 3 else matrix[None]
    nodes = slices.shape[1]
    rng = np.random.default_rng(seed)
    peers = draw_peers(slices, neighbours, rng)
    liars = tuple(int(i) for i in np.sort(rng.permutation(nodes)[: round(nodes * liars_share)])) if liar is not None else ()
    honest = None if liar is None else [i for i in range(nodes) if i not in frozenset(liars)]
    space = Space(nodes, config or CoordinateConfig(), rng, gossip, liars, liar, jitter)

    started = time.perf_counter()
    course = _Course(space, rounds, slices[-1], honest)
    for number in range(1, rounds + 1):
        current = slices[(number - 1) * len(slices) // rounds]
        play_round(space, current, peers, rng, number)
        course.note(number)
        if trace is not None:
            trace[number] = score(space.positions(), current, honest)["median_relative_error"]
        if progress is not None:
            progress(number)
    final = space.positions()
    return {
        "nodes": nodes,
        "rounds": rounds,
        "neighbours": "all" if neighbours is None else neighbours,
        "seed": seed,
        "gossip": "latest" if gossip is None else gossip,
        "jitter": jitter,
        **({} if liar is None else {"attack": type(liar).__name__.lower(), "liars": len(liars)}),
        **score(final, slices[-1], honest),
        **score_by_probing(final, slices[-1], space.probed, honest),
        **({"against_median": score(final, per_pair_median(slices), honest)} if len(slices) > 1 else {}),
        "warmup": course.warmup,
        "drift_ms_per_round": course.drift_ms_per_round(),
        "updates_per_second": space.updates / space.update_s if space.update_s > 0 else 0.0,
        "seconds": time.perf_counter() - started,
    }


def _check(rounds: int, neighbours: int | None, gossip: int | None) -> None:
    if rounds < 1:
        raise UsageError(f"rounds = {rounds}, expected at least 1")
    if neighbours is not None and neighbours < 1:
        raise UsageError(f"neighbours = {neighbours}, expected at least 1, or all")
    if gossip is not None and gossip < 0:
        raise UsageError(f"gossip = {gossip}, expected 0 or more, or latest")


class _Course:
    """Records the errors of the first rounds (`WARMUP_ROUNDS`), and how far nodes move in the last tenth of the rounds."""

    def __init__(self, space: Space, rounds: int, truth: FloatArray, scored: Sequence[int] | None) -> None:
        self._space, self._truth, self._scored = space, truth, scored
        self._drifts_from = rounds - max(1, rounds // 10)
        self._before = space.positions()
        self._moved: list[FloatArray] = []
        self.warmup: dict[str, dict[str, float]] = {}

    def note(self, number: int) -> None:
        """Records the state after a round."""
        if number in WARMUP_ROUNDS:
            self.warmup[str(number)] = score(self._space.positions(), self._truth, self._scored)
        if number < self._drifts_from:
            return
        positions = self._space.positions()
        if number > self._drifts_from:
            self._moved.append(np.linalg.norm(positions - self._before, axis=1))
        self._before = positions

    def drift_ms_per_round(self) -> float:
        """Returns the mean movement a round of the median node."""
        # A node does not move in every round, so the median over rounds would hide its moves.
        return float(np.median(np.mean(self._moved, axis=0))) if self._moved else 0.0
