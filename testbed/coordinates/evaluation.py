"""How good coordinates are on a matrix of RTTs: `sbon testbed coordinates`.

Every node runs the library's own `Localiser`. In each round each node, in random order, probes one peer. News of peers' coordinates
spreads by gossip: by default a node knows the latest coordinate of every peer that it remembers, or so many random ones a round.
"""

import json as json_module
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from sbon.cost_space.config import CoordinateConfig
from sbon.cost_space.localiser import Localiser
from sbon.cost_space.peer_table import PeerTable
from sbon.errors import ConfigError, SbonError, ShapeError
from sbon.types import FloatArray
from testbed.coordinates.liars import ATTACKS, Liar
from testbed.matrix import load_matrix

WARMUP_ROUNDS = (20, 50, 100)
ROUND_S = 1.0
"""A round is as long as the agents' probe interval: samples age by it."""


class Space:
    """The localisers of one overlay, and what each tells the others."""

    def __init__(
        self,
        nodes: int,
        config: CoordinateConfig,
        rng: np.random.Generator,
        gossip: int | None,
        liars: Sequence[int] = (),
        liar: Liar | None = None,
    ) -> None:
        self.nodes = nodes
        self.names = [f"n{i}" for i in range(nodes)]
        self._shared = PeerTable() if gossip is None else None
        self._gossip = gossip or 0
        self._rng = rng
        self._liars = frozenset(liars)
        self._liar = liar
        self.localisers = [Localiser(config, own, table=self._shared) for own in rng.spawn(nodes)]
        self._told = [localiser.coordinate for localiser in self.localisers]
        self.update_s = 0.0
        self.updates = 0
        for node in range(nodes):
            self._tell(node, 0)

    def probe(self, node: int, peer: int, rtt_ms: float, round_number: int) -> None:
        """`node` measures its RTT to `peer`, and hears some gossip."""
        localiser = self.localisers[node]
        now = round_number * ROUND_S
        if self._liar is not None and peer in self._liars:
            rtt_ms = self._liar.rtt_ms(peer, rtt_ms, round_number)
        heard = self._rng.integers(self.nodes, size=self._gossip).tolist() if self._gossip else ()
        started = time.thread_time()  # What the update costs, however busy the machine is.
        for other in heard:
            localiser.heard(self.names[other], self._told[other], now)
        localiser.observe(self.names[peer], self._told[peer], rtt_ms, now)
        self.update_s += time.thread_time() - started
        self.updates += 1
        self._tell(node, round_number)

    def _tell(self, node: int, round_number: int) -> None:
        coordinate = self.localisers[node].coordinate
        if self._liar is not None and node in self._liars:
            coordinate = self._liar.tell(node, coordinate, round_number)
        self._told[node] = coordinate
        if self._shared is not None:
            self._shared.put(self.names[node], coordinate)

    def positions(self) -> FloatArray:
        """(nodes, 4): vector and height of every node by its own account, in ms."""
        return np.array([(*c.vector, c.height_ms) for c in (localiser.coordinate for localiser in self.localisers)])


def predicted_rtt_ms(positions: FloatArray) -> FloatArray:
    """(n, n) RTTs that positions of shape (n, 4) predict."""
    vectors, heights = positions[:, :3], positions[:, 3]
    square = np.zeros((len(positions), len(positions)))
    for axis in range(3):  # One axis at a time, to hold one difference of n x n in memory and not three.
        difference = vectors[:, axis, None] - vectors[None, :, axis]
        square += difference * difference
    predicted: FloatArray = np.sqrt(square) + heights[:, None] + heights[None, :]
    return predicted


def score(positions: FloatArray, truth: FloatArray, only: Sequence[int] | None = None) -> dict[str, float]:
    """Errors over all measured pairs of different nodes (of `only` these nodes), each direction by itself.

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
    measured = np.isfinite(truth) & ~np.eye(len(truth), dtype=bool)
    absolute = np.abs(predicted_rtt_ms(positions) - truth)[measured]
    relative = absolute / truth[measured]
    return {
        "median_relative_error": float(np.median(relative)),
        "p90_relative_error": float(np.percentile(relative, 90)),
        "median_absolute_error_ms": float(np.median(absolute)),
    }


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
    progress: Callable[[int], None] | None = None,
    trace: dict[int, float] | None = None,
) -> dict[str, Any]:
    """Let an overlay find its coordinates on a matrix, and score them.

    Parameters
    ----------
    matrix : [n, n] or [t, n, n] ms, NaN where not measured; slices follow each other in equal parts of the rounds
    rounds : each node probes one peer a round
    neighbours : size of the fixed random set that a node draws its peers from; None for all others
    seed : same seed, same numbers (times aside)
    gossip : random coordinates that a node hears each round; None: always the latest of the peers it remembers
    liar, liars_share : what so many of the nodes tell instead of the truth; then only honest pairs are scored
    progress : called after each round
    trace : takes the median relative error against the current slice after each round

    Returns
    -------
    dict
        Plain values for JSON; errors are relative to the measured RTT, over all measured pairs, against the last slice.

    Raises
    ------
    ConfigError
        Too few rounds or neighbours.
    """
    if rounds < 1:
        raise ConfigError(f"rounds = {rounds}, expected at least 1")
    if neighbours is not None and neighbours < 1:
        raise ConfigError(f"neighbours = {neighbours}, expected at least 1, or all")
    if gossip is not None and gossip < 0:
        raise ConfigError(f"gossip = {gossip}, expected 0 or more, or latest")
    slices = matrix if matrix.ndim == 3 else matrix[None]
    nodes = slices.shape[1]
    rng = np.random.default_rng(seed)
    peers = draw_peers(slices, neighbours, rng)
    liars = tuple(int(i) for i in np.sort(rng.permutation(nodes)[: round(nodes * liars_share)])) if liar is not None else ()
    honest = None if liar is None else [i for i in range(nodes) if i not in frozenset(liars)]
    space = Space(nodes, config or CoordinateConfig(), rng, gossip, liars, liar)

    started = time.perf_counter()
    warmup: dict[str, dict[str, float]] = {}
    drift_from = rounds - max(1, rounds // 10)
    before, drift = space.positions(), []
    for number in range(1, rounds + 1):
        current = slices[(number - 1) * len(slices) // rounds]
        play_round(space, current, peers, rng, number)
        if number in WARMUP_ROUNDS:
            warmup[str(number)] = score(space.positions(), slices[-1], honest)
        if number >= drift_from:
            positions = space.positions()
            if number > drift_from:
                drift.append(np.linalg.norm(positions - before, axis=1))
            before = positions
        if trace is not None:
            trace[number] = score(space.positions(), current, honest)["median_relative_error"]
        if progress is not None:
            progress(number)
    final = space.positions()
    result: dict[str, Any] = {
        "nodes": nodes,
        "rounds": rounds,
        "neighbours": "all" if neighbours is None else neighbours,
        "seed": seed,
        "gossip": "latest" if gossip is None else gossip,
        **({} if liar is None else {"attack": type(liar).__name__.lower(), "liars": len(liars)}),
        **score(final, slices[-1], honest),
    }
    if len(slices) > 1:
        result["against_median"] = score(final, per_pair_median(slices), honest)
    result["warmup"] = warmup
    # Nodes do not move with every sample, so that the median over rounds would hide the moves; the mean over rounds does not.
    result["drift_ms_per_round"] = float(np.median(np.mean(drift, axis=0))) if drift else 0.0
    result["updates_per_second"] = space.updates / space.update_s if space.update_s > 0 else 0.0
    result["seconds"] = time.perf_counter() - started
    return result


def play_round(space: Space, current: FloatArray, peers: Sequence[Sequence[int]], rng: np.random.Generator, number: int) -> None:
    """Each node, in random order, probes one of its peers; a pair without a measurement gives no answer."""
    picks = rng.random(space.nodes).tolist()
    for node in rng.permutation(space.nodes).tolist():
        known = peers[node]
        if known:
            peer = known[int(picks[node] * len(known))]
            rtt_ms = float(current[node, peer])
            if rtt_ms == rtt_ms:
                space.probe(node, peer, rtt_ms, number)


def draw_peers(slices: FloatArray, neighbours: int | None, rng: np.random.Generator) -> list[list[int]]:
    """For each node the peers it may probe: others to whom at least one slice has an RTT."""
    reachable = np.logical_and(np.isfinite(slices).any(axis=0), ~np.eye(slices.shape[1], dtype=bool))
    peers = []
    for row in reachable:
        others = np.flatnonzero(row)
        if neighbours is not None:
            others = np.sort(rng.permutation(others)[:neighbours])
        peers.append(others.tolist())
    return peers


def per_pair_median(slices: FloatArray) -> FloatArray:
    """(n, n) median over the slices that measured the pair; NaN where none did."""
    measured = np.isfinite(slices).any(axis=0)
    filled = np.where(measured, slices, 0.0)
    median: FloatArray = np.where(measured, np.nanmedian(filled, axis=0), np.nan)
    return median


def coordinates_command(
    matrix: Annotated[Path, typer.Option(help="RTTs in ms: .npz (key rtt, [n,n] or [t,n,n], NaN for missing) or a text matrix.")],
    rounds: Annotated[int, typer.Option(help="Each node probes one peer a round.")] = 500,
    neighbours: Annotated[str, typer.Option(metavar="K|all", help="Probe only K fixed random peers, or any.")] = "32",
    seed: Annotated[int, typer.Option(help="Same seed, same result.")] = 0,
    algorithm: Annotated[str, typer.Option(help="refit or vivaldi.")] = "refit",
    gossip: Annotated[str, typer.Option(metavar="N|latest", help="Coordinates of others heard each round.")] = "latest",
    attack: Annotated[str, typer.Option(metavar="NAME", help=f"Let a tenth of the nodes lie: {', '.join(ATTACKS)}.")] = "none",
    json: Annotated[str | None, typer.Option(metavar="FILE", help="Write the result as JSON; - for standard output.")] = None,
) -> None:
    """Find coordinates on a matrix of RTTs, and say how well they predict it."""
    try:
        if algorithm not in ("refit", "vivaldi"):
            raise ConfigError(f"--algorithm {algorithm}, expected refit or vivaldi")
        if attack not in (*ATTACKS, "none"):
            raise ConfigError(f"--attack {attack}, expected one of {', '.join(ATTACKS)}, none")
        result = evaluate(
            load_matrix(matrix),
            rounds,
            _number("--neighbours", neighbours, "all"),
            seed,
            config=CoordinateConfig(algorithm="vivaldi" if algorithm == "vivaldi" else "refit"),
            gossip=_number("--gossip", gossip, "latest"),
            liar=ATTACKS[attack]() if attack in ATTACKS else None,
            progress=_progress(rounds) if sys.stderr.isatty() else None,
        )
        _write(result, json)
    except SbonError as error:
        print(f"sbon: {error}", file=sys.stderr)
        raise typer.Exit(1) from error


def _number(option: str, text: str, nothing: str) -> int | None:
    if text == nothing:
        return None
    try:
        return int(text)
    except ValueError as error:
        raise ConfigError(f"{option} {text}, expected a number or {nothing}") from error


def _progress(rounds: int) -> Callable[[int], None]:
    def show(number: int) -> None:
        if number % 10 == 0 or number == rounds:
            print(f"\rround {number} of {rounds}", end="\n" if number == rounds else "", file=sys.stderr, flush=True)

    return show


def _write(result: dict[str, Any], target: str | None) -> None:
    text = json_module.dumps(result, indent=2)
    if target == "-":
        print(text)
        return
    if target is not None:
        try:
            Path(target).write_text(text + "\n", encoding="utf-8")
        except OSError as error:
            raise ConfigError(f"--json {target}: {error.strerror}") from error
    print(f"{result['nodes']} nodes, {result['rounds']} rounds, neighbours {result['neighbours']}, seed {result['seed']}")
    rows = [(f"after {name} rounds", values) for name, values in result["warmup"].items()] + [("at the end", result)]
    if "against_median" in result:
        rows.append(("against the median over time", result["against_median"]))
    for name, values in rows:
        print(
            f"  {name:29} median {values['median_relative_error']:7.1%}   p90 {values['p90_relative_error']:7.1%}"
            f"   median {values['median_absolute_error_ms']:6.1f} ms"
        )
    print(
        f"  drift {result['drift_ms_per_round']:.3f} ms a round; {result['updates_per_second']:,.0f} updates/s; {result['seconds']:.1f} s"
    )
