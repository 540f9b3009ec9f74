"""MATCH_RECOGNIZE in a real agent: from a file, through the engine, into a file."""

import json
from itertools import groupby
from pathlib import Path
from random import Random

from sbon_testbed.bench.agent_process import one_agent

ROWS = 5_000
SOURCE = """
CREATE SOURCE payments (ts TIMESTAMP, card TEXT, ok BOOLEAN, amount BIGINT, WATERMARK FOR ts AS ts - INTERVAL '5 seconds')
    WITH (connector = 'file', path = '{path}', time_unit = 'ms');
CREATE SINK alarms AS SELECT card, failures, first_s, amount FROM payments MATCH_RECOGNIZE (
    PARTITION BY card ORDER BY ts
    MEASURES COUNT(f.*) AS failures, EXTRACT(EPOCH FROM FIRST(f.ts)) AS first_s, w.amount AS amount
    PATTERN (f{{2,}} w) WITHIN INTERVAL '30 seconds'
    DEFINE f AS NOT ok, w AS ok AND amount > LAST(f.amount))
    WITH (connector = 'file', path = 'alarms', format = 'ndjson')
"""


def expected(payments: list[dict[str, object]]) -> list[tuple[object, ...]]:
    """Returns the expected matches, by loops over each card's rows: the longest run of failures, then the withdrawal right after it."""
    found = []
    ordered = sorted(payments, key=lambda row: (str(row["card"]), int(str(row["ts"]))))
    for card, group in groupby(ordered, key=lambda row: row["card"]):
        rows, start = list(group), 0
        while start < len(rows):
            end = start
            while end < len(rows) and not rows[end]["ok"] and int(str(rows[end]["ts"])) < int(str(rows[start]["ts"])) + 30_000:
                end += 1
            is_late = end < len(rows) and int(str(rows[end]["ts"])) >= int(str(rows[start]["ts"])) + 30_000
            if end - start < 2 or end == len(rows) or is_late or int(str(rows[end]["amount"])) <= int(str(rows[end - 1]["amount"])):
                start += 1
                continue
            found.append((card, end - start, int(str(rows[start]["ts"])) / 1000, rows[end]["amount"]))
            start = end + 1
    return sorted(found)


def test_patterns_over_a_file_in_disorder_are_those_of_a_loop(tmp_path: Path) -> None:
    random = Random(7)
    payments = [
        {"ts": 1_000_000_000_000 + n * 500, "card": f"c{random.randrange(9)}", "ok": random.random() < 0.4, "amount": random.randrange(50)}
        for n in range(ROWS)
    ]
    arrived = sorted(payments, key=lambda row: int(str(row["ts"])) + random.randrange(4_000))
    path = tmp_path / "payments.ndjson"
    path.write_text("".join(json.dumps(row) + "\n" for row in arrived), encoding="utf-8")

    with one_agent() as agent:
        agent.submit(SOURCE.format(path=path))
        agent.wait_until(lambda: [q["state"] for q in agent.client.ask("queries")] == ["finished"], "the query ends")
        written = [json.loads(line) for part in sorted(agent.data_dir.glob("alarms*")) for line in lines(part)]

    answers = sorted((row["card"], row["failures"], row["first_s"], row["amount"]) for row in written)
    assert len(answers) > 100
    assert answers == expected(payments)


def lines(part: Path) -> list[str]:
    files = sorted(part.iterdir()) if part.is_dir() else [part]
    return [line for file in files for line in file.read_text(encoding="utf-8").splitlines()]
