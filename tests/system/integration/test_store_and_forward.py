"""A far end is stopped for a while, on real sockets and disks: undeliverable rows wait in files, and arrive in order."""

import signal
from pathlib import Path

from sbon_testbed.processes.local import free_ports
from tests.processes import Process, wait_until

ROWS = 400_000
ROWS_PER_S = 200_000
"""Rows flow for two seconds, so that the far end is stopped before they end, even if this process has to wait for a processor."""

SQL = f"""
CREATE SOURCE flood (ts TIMESTAMP, key BIGINT, value DOUBLE, WATERMARK FOR ts AS ts) WITH (connector = 'datagen', nodes = 'far',
    rows_per_second = {ROWS_PER_S}, rows = {ROWS}, batch_rows_max = 4096, fields.key.kind = 'sequence');
CREATE SINK kept FROM (SELECT key FROM flood) WITH (connector = 'file', path = 'kept.csv');
"""

SETTINGS = """
[links]
window_batches = 4
spill_bytes = 67108864
spill_after_s = 0.1
"""


def test_rows_wait_on_disk_while_the_far_end_stands_still_and_arrive_in_order(tmp_path: Path) -> None:
    config = tmp_path / "agent.toml"
    config.write_text(SETTINGS)
    first, second = (f"127.0.0.1:{port}" for port in free_ports(2))
    near = Process(tmp_path, "near", "--config", str(config), "--bind", first)
    far = Process(tmp_path, "far", "--config", str(config), "--bind", second, "--join", first)
    try:
        for agent in (near, far):
            agent.wait_until_ready()
            wait_until(lambda agent=agent: agent.ask("status")["members"]["alive"] == 2)
        near.ask("submit", sql=SQL)
        kept, spill = near.directory / "kept.csv", far.directory / "spill"
        wait_until(lambda: kept.exists() and kept.stat().st_size > 100)
        near.process.send_signal(signal.SIGSTOP)
        wait_until(lambda: far.ask("operators")[0]["rows_out"] == ROWS)
        assert any(spill.iterdir())
        used = far.ask("status")["spill"]
        assert 0 < used["used_bytes"] <= used["limit_bytes"] == 67108864
        near.process.send_signal(signal.SIGCONT)
        wait_until(lambda: kept.read_bytes().count(b"\n") == ROWS + 1)
        assert kept.read_text().split() == ["key", *map(str, range(ROWS))]
        wait_until(lambda: not any(spill.iterdir()))
        assert {"spill.began", "spill.drained"} <= set(far.events())
    finally:
        near.process.send_signal(signal.SIGCONT)
        for agent in (far, near):
            agent.end()
