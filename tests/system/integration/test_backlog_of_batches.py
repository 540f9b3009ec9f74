"""A filter gives the same rows however many small batches it processes together: one agent, a file in batches of ten, eight equal sinks."""

import json
import random
import signal
from pathlib import Path

import pytest

from tests.processes import Process, wait_until

ROWS = 2_000
SINKS = 8
CONDITION = "(CASE WHEN b THEN i END) = ABS(-3)"


def write_input(path: Path, seed: int) -> list[dict[str, object]]:
    """Writes the rows of the source; returns those that meet the condition."""
    rng = random.Random(seed)
    rows: list[dict[str, object]] = [
        {"ts": n, "i": rng.choice([1, 2, 3, 4, 5, None]), "b": rng.choice([True, False, None])} for n in range(ROWS)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return [row for row in rows if row["b"] and row["i"] == 3]


def answers_of_sinks(directory: Path, seed: int) -> tuple[list[dict[str, object]], list[list[dict[str, object]]]]:
    """Returns the rows that meet the condition, and the rows that each sink has written."""
    expected = write_input(directory / "z.ndjson", seed)
    agent = Process(directory, "a", "--bind", "127.0.0.1:0")
    try:
        agent.wait_until_ready()
        source = (
            "CREATE SOURCE z (ts BIGINT, i BIGINT, b BOOLEAN) WITH "
            f"(connector = 'file', path = '{directory / 'z.ndjson'}', batch_rows_max = 10, nodes = 'a');"
        )
        sinks = [
            f"CREATE SINK k{n} AS SELECT ts, i, b FROM z WHERE {CONDITION} WITH (connector = 'file', path = '{directory}/k{n}.ndjson');"
            for n in range(SINKS)
        ]
        agent.ask("submit", sql="\n".join([source, *sinks]))
        wait_until(lambda: [query["state"] for query in agent.ask("queries")] == ["finished"] * SINKS)
    finally:
        agent.end(signal.SIGTERM)
    written = [(directory / f"k{n}.ndjson").read_text().splitlines() for n in range(SINKS)]
    return expected, [[json.loads(line) for line in lines] for lines in written]


def test_equal_sinks_over_a_backlog_of_small_batches_give_what_the_condition_holds_for(tmp_path):
    expected, answers = answers_of_sinks(tmp_path, seed=0)

    assert [len(answer) for answer in answers] == [len(expected)] * SINKS
    assert answers == [expected] * SINKS


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(1, 11))
def test_equal_sinks_give_what_the_condition_holds_for_every_time(tmp_path, seed):
    expected, answers = answers_of_sinks(tmp_path, seed)

    assert answers == [expected] * SINKS
