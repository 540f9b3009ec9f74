"""Options out of range: exit code 2, one clear line, and nothing begun."""

import shlex
from pathlib import Path

import numpy as np
import pytest

from sbon.cli.__main__ import run

SMOKE = Path(__file__).parents[2] / "testbed/scenarios/smoke.toml"


@pytest.mark.parametrize(
    ("typed", "told"),
    [
        ("bench engine --seconds 0", "--seconds 0, expected at least 0.5"),
        ("bench engine --seconds nan", "--seconds nan, expected"),
        ("bench engine --seconds inf", "--seconds inf, expected"),
        ("bench engine --runs 0", "--runs 0, expected at least 1"),
        ("bench engine --workload W9", "--workload W9, expected one of W1, W2, W3"),
        ("bench engine --stalled 1", "--stalled 1, expected at least 2"),
        ("bench link --seconds 0.1", "--seconds 0.1, expected"),
        ("bench link --runs 0", "--runs 0, expected"),
        ("bench outage --seconds 0", "--seconds 0, expected"),
        ("bench outage --rate 0", "--rate 0, expected 1 to"),
        ("bench recovery --kills 0", "--kills 0, expected 1 to"),
        ("bench nexmark --query q99", "--query q99, expected one of q0"),
        ("bench nexmark --events 1", "--events 1, expected"),
        ("bench migrate --states 1XB", "--states '1XB', expected"),
        ("bench migrate --rtt nan", "--rtt 'nan', expected"),
        ("bench migrate --runs 0", "--runs 0, expected"),
        ("bench operators --seconds 0", "--seconds 0, expected"),
        ("bench operators --rows 0", "expected 1 to 10000000 rows"),
        ("bench match --only nothing", "no pattern has 'nothing' in its name"),
        ("bench operators --rows 1000000000000", "expected 1 to 10000000 rows"),
        ("bench closing --keys 0", "--keys"),
        ("bench closing --keys 100000000000", "--keys"),
        ("bench probe --seconds 0", "--seconds 0, expected"),
        ("bench wan --seconds 0", "--seconds 0, expected"),
        ("bench placement --nodes 1", "--nodes 1, expected"),
        ("bench telemetry --seconds nan", "--seconds nan, expected"),
        (f"testbed run {SMOKE} --duration nan", "--duration nan, expected"),
        (f"testbed run {SMOKE} --nodes 0", "nodes = 0, expected 1 to"),
        (f"testbed run {SMOKE} --seed -1", "--seed"),
        ("testbed topologies cities --nodes 0", "nodes = 0, expected"),
        ("testbed topologies transit-stub --nodes 100000", "has 1500 stub nodes"),
        ("testbed exactly-once --seeds 0", "--seeds 0"),
        ("testbed membership --agents 1", "agents = 1, expected"),
        ("testbed membership --slow-s nan", "--slow-s nan, expected"),
        ("testbed membership --apart-s -1", "--apart-s -1, expected"),
        ("testbed placement --topology transit-stub --seed -1", "--seed"),
        ("testbed telemetry --out nowhere --hours nan", "nan hours"),
        ("testbed coordinates --matrix {matrix} --rounds 0", "rounds = 0, expected"),
        ("testbed coordinates --matrix {matrix} --gossip x", "--gossip x, expected"),
        ("testbed adversaries --matrix {matrix} --fraction 1", "fraction = 1.0, expected"),
    ],
)
def test_a_value_out_of_range_is_wrong_usage(typed: str, told: str, tmp_path: object, capsys: pytest.CaptureFixture[str]) -> None:
    matrix = f"{tmp_path}/rtt.txt"
    np.savetxt(matrix, np.array([[0.0, 10.0], [10.0, 0.0]]))

    assert run(shlex.split(typed.format(matrix=shlex.quote(matrix)))) == 2

    out, err = capsys.readouterr()
    assert told in err
    assert (out, err.count("\n")) == ("", 1)
