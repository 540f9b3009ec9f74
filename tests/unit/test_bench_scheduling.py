"""`sbon bench scheduling`, with few operations."""

import sbon_testbed.bench.scheduling as bench
from sbon.cli.__main__ import run


def test_every_combination_is_measured(monkeypatch, capsys):
    monkeypatch.setattr(bench, "WAITING", (10, 100))
    monkeypatch.setattr(bench, "OPERATIONS", 200)

    assert run(["bench", "scheduling", "--repeat", "1"]) == 0

    out, err = capsys.readouterr()
    assert len(out.splitlines()) == 1 + len(err.splitlines()) == 1 + len(bench.WAYS) * 2
    assert all(row["enqueue_ns"] > 0 < row["dequeue_ns"] for row in bench.measure(1)["queues"])
    assert run(["bench", "scheduling", "--repeat", "0"]) == 2
