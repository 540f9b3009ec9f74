"""Extreme operator parameters, as a peer could send them, are refused when decoded or run within bounded memory and time."""

import random
import resource
import subprocess
import sys
from pathlib import Path

import msgspec
import polars as pl
import pytest

from sbon.errors import SbonError
from sbon.operators.registry import build
from sbon.query.params.joined import JoinParams, WindowJoinParams
from sbon.query.params.source import SinkParams, SourceParams
from sbon.watermarks import WATERMARK_END
from sbon.wire.messages import decode
from tests.query.test_plan_limits import CASES, forged, message_of

MEMORY_BYTES = 4 * 2**30
EXTREMES = [-(2**63), -(2**60), -1, 0, 1, 2, 7, 10_000, 10**6, 10**9, 2**45, 2**59, 2**60, 2**60 + 1, 2**62, 2**63 - 1]
TIMES = [0, 1, 5, 10**6, 10**9, 1_700_000_000_000_000, 253_402_300_799_999_999, -62_135_596_800_000_000]


def tried(rng: random.Random) -> str:
    """Decodes and runs one operator; returns the outcome."""
    kind = rng.choice(sorted(CASES))
    params = CASES[kind].params
    for field in msgspec.structs.fields(params):
        if field.type is int and rng.random() < 0.7:
            try:
                params = decode(forged(message_of(params), field.name, rng.choice(EXTREMES))).spec.params  # type: ignore[union-attr]
            except SbonError:
                return f"{kind} refused"
    if isinstance(params, SourceParams | SinkParams):
        return f"{kind} decoded"
    times = pl.Series([rng.choice(TIMES) + rng.randrange(3) for _ in range(8)])
    frame = pl.DataFrame({"t": times.cast(pl.Datetime("us")), "k": ["a", "b"] * 4, "x": [1.5] * 8})
    try:
        operator = build(params)
        rows = 0
        for port in (0, 1) if isinstance(params, JoinParams | WindowJoinParams) else (0,):
            rows += sum(one.height for one in operator.process(port, frame))
        for watermark in (rng.choice(TIMES), WATERMARK_END):
            for frames in operator.advance_in_steps(watermark):
                rows += sum(one.height for one in frames)
            operator.output_watermark(watermark)
    except SbonError as error:
        return f"{kind} failed: {type(error).__name__}"
    return f"{kind} gave {rows} rows"


def run(seed: int, cases: int) -> None:
    """Tries `cases` operators after limiting this process's memory."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    for number in range(cases):
        print(number, tried(random.Random(seed * 1_000_003 + number)), flush=True)


def fuzzed(seed: int, cases: int, timeout_s: float) -> list[str]:
    program = f"from tests.query.test_plan_fuzz import run; run({seed}, {cases})"
    root = Path(__file__).parents[2]
    done = subprocess.run([sys.executable, "-c", program], cwd=root, capture_output=True, text=True, timeout=timeout_s, check=False)
    assert done.returncode == 0, (done.stdout[-300:], done.stderr[-1000:])
    return done.stdout.splitlines()


def test_parameters_at_their_extremes_are_refused_or_run():
    lines = fuzzed(1, 40, 120.0)
    assert len(lines) == 40
    assert any("refused" in line for line in lines)
    assert any("gave" in line for line in lines)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(2, 12))
def test_many_parameters_at_their_extremes_are_refused_or_run(seed: int):
    assert len(fuzzed(seed, 1_000, 900.0)) == 1_000
