"""Only a batch that is too large for a frame is lost: it is counted and reported, its query is degraded, and all else continues."""

import json
from pathlib import Path
from typing import Any

from sbon_testbed.simulator.harness import World
from tests.worlds import settled_world

SOURCE = """CREATE SOURCE {name} (ts TIMESTAMP, n BIGINT, t TEXT, WATERMARK FOR ts AS ts)
    WITH (connector = 'file', path = '{path}', nodes = '{node}', replay = 'event_time')"""
LARGE = 100_000
"""More characters than the smallest frame can hold."""
FRAME_BYTES_MAX = 65_536


def row_of(world: World, query: str) -> dict[str, Any]:
    return next(row for row in world.ask(0, "queries") if row["id"] == query)


def test_query_with_a_row_too_large_for_its_link_is_degraded_and_gets_all_the_others(tmp_path: Path):
    settings = {"peers": {"frame_bytes_max": FRAME_BYTES_MAX}, "optimiser": {"enabled": False}}
    world = settled_world(3, settings=settings, data_dir=tmp_path / "agents", log_file=tmp_path / "log")
    there = world.nodes[1]
    lines = [{"ts": f"2026-01-01T00:00:{n // 20:02}", "n": n, "t": "x" * (LARGE if n == 60 else 3)} for n in range(200)]
    for name in ("with_large", "others"):
        path = world.data_dir_of(1) / f"{name}.ndjson"
        path.write_text("".join(json.dumps(line) + "\n" for line in lines if name == "with_large" or line["n"] != 60))
        world.submit(SOURCE.format(name=name, path=path, node=there), at=1)
    world.run(2)
    tails = {name: world.tail(world.submit(f"SELECT n FROM {name} WHERE length(t) < 10", at=0)) for name in ("others",)}
    query = world.submit("SELECT n, t FROM with_large", at=0)
    tails["with_large"] = world.tail(query)

    world.run_until(lambda: row_of(world, query)["state"] == "degraded", 30)
    row = row_of(world, query)
    world.run_until(lambda: all(tail.finished for tail in tails.values()), 60)

    got = sorted(int(row[0]) for row in tails["with_large"].rows)
    lost = 200 - len(got)
    assert 1 <= lost < 50
    assert 60 not in got
    assert {0, 199} <= set(got)
    assert len(tails["others"].rows) == 199
    assert f"could not pack {lost} rows" in row["reason"]
    assert "(peers.frame_bytes_max)" in row["reason"]
    assert row["lost_rows"] == lost
    assert world.ask(1, "status")["counters"]["batches_unpackable"] == 1
    assert world.ask(1, "status")["counters"]["rows_unpackable"] == lost
    said = [json.loads(line) for line in (tmp_path / "log").read_text().splitlines() if "batch.unpackable" in line]
    assert [(line["node"], line["rows"]) for line in said] == [(there, lost)]
