"""Steps of a query over visits to pages, as an installed function that really works: each row takes processor time, and some rows pass.

The work and the choice of a row follow from its number and the step alone, so that the testbed knows the right answers. Work is hashing in
the interpreter, as a user's function in Python would compute.
"""

import time
from hashlib import sha256

import numpy as np
import polars as pl

from sbon.functions import batch_function
from sbon.types import FloatArray, IntArray

SHAPE = 4
"""Shape of the gamma distribution of a row's work: its standard deviation is half its mean, as in virtual time."""
_BLOCK = b"visit" * 8
_PASSES = 99
"""Number of the draw that decides whether a row passes; smaller numbers are for its work."""


def drawn(numbers: IntArray, step: int, draw: int) -> FloatArray:
    """Returns a number from 0 to 1 for each row at a step, always the same one (SplitMix64)."""
    with np.errstate(over="ignore"):
        state = numbers.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15) + np.uint64(1_000_003 * step + 7_919 * draw + 1)
        for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
            state = (state ^ (state >> np.uint64(shift))) * np.uint64(factor)
    found: FloatArray = (state ^ (state >> np.uint64(31))).astype(np.float64) / 2.0**64
    return found


def passes(numbers: IntArray, step: int, keep: float) -> "np.ndarray[tuple[int], np.dtype[np.bool_]]":
    """Tells which rows a step passes on: this share of them."""
    return drawn(numbers, step, _PASSES) < keep


def rounds_of(numbers: IntArray, step: int, rounds: int) -> IntArray:
    """Returns the rounds of work of each row at a step: `rounds` on average."""
    weight = sum((-np.log(np.maximum(drawn(numbers, step, draw), 1e-12)) for draw in range(SHAPE)), np.zeros(len(numbers))) / SHAPE
    return np.round(rounds * weight).astype(np.int64)


def work(rounds: int) -> None:
    """Works for so many rounds."""
    for _ in range(rounds):
        sha256(_BLOCK).digest()


def round_s(seconds: float = 0.2) -> float:
    """Returns the processor time in s of one round on this machine, measured for so many seconds."""
    each, done, began_s = 1000, 0, time.thread_time()
    while time.thread_time() - began_s < seconds:
        work(each)
        done += each
    return (time.thread_time() - began_s) / done


@batch_function(
    name="visit_step",
    version="1",
    inputs={"ts": "time", "visit": "int"},
    outputs={"ts": "time", "visit": "int"},
    arguments={"step": int, "rounds": int, "keep": 1.0},
    event_time="ts",
)
def visit_step(frame: pl.DataFrame, step: int, rounds: int, keep: float) -> pl.DataFrame:
    """Works on each row, and passes a share of the rows on."""
    numbers = frame["visit"].to_numpy()
    for one in rounds_of(numbers, step, rounds).tolist():
        work(one)
    return frame if keep >= 1.0 else frame.filter(pl.Series(passes(numbers, step, keep)))
