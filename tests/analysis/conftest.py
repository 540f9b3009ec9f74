"""One Spark session and one generated log, with its report, for all tests of the analysis."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from sbon.errors import SbonError
from sbon_testbed.telemetry.files import write_tables
from sbon_testbed.telemetry.generator import generate
from sbon_testbed.topology import CitiesConfig, build
from sbon_testbed.virtual.harness import World

SETTINGS = {"optimiser": {"interval_s": 1.0}, "telemetry": {"latency_window_s": 5.0, "flush_interval_s": 1.0}}
SQL = """
SELECT window_start, COUNT(*) AS n, MAX(rtt_ms) AS worst
FROM TUMBLE(sys.probes, ts, INTERVAL '2 seconds') GROUP BY window_start"""


class Analysed(NamedTuple):
    """A log, and what the report says of it."""

    log: Path
    out: Path
    numbers: dict[str, Any]
    html: str


@pytest.fixture(scope="session")
def spark(tmp_path_factory) -> Iterator[Any]:
    pytest.importorskip("pyspark", reason="the extra 'analysis' is not installed")
    from sbon.analysis.session import open_session

    try:
        session = open_session("local[2]", tmp_path_factory.mktemp("spark") / "spark.log", small=True)
    except SbonError as problem:
        if "no Java" in str(problem):
            pytest.skip(str(problem))
        raise
    yield session
    session.stop()


@pytest.fixture(scope="session")
def analyse(spark):
    """Analyse a folder with the shared session."""
    from sbon.analysis.run import analyse_logs

    def run(log: Path, out: Path, **options: Any) -> Analysed:
        report = analyse_logs([log], out, spark=spark, **options)
        return Analysed(log, out, json.loads((out / "report.json").read_text()), report.path.read_text())

    return run


@pytest.fixture(scope="session")
def generated(tmp_path_factory) -> Path:
    """Fifty-four minutes of twelve agents, one of which crashes: so long that a moment is 20 s and holds two samples of everything."""
    log = tmp_path_factory.mktemp("generated")
    generate(log, agents=12, hours=0.9, queries=10, probe_interval_s=2.0, seed=14)
    return log


@pytest.fixture(scope="session")
def overlay(tmp_path_factory) -> Path:
    """What five real agents recorded in the virtual world: two queries that share, an operator moved by hand, a crash."""
    log = tmp_path_factory.mktemp("overlay")
    world = World(build(CitiesConfig(), 5, 3), seed=3, data_dir=log, settings=SETTINGS)
    for name in world.nodes:
        world.start(name)
    world.run(15)
    for at in (0, 1):
        world.submit(SQL, at=at)
        world.run(12)
    window, here = next((found["id"], node) for node in world.nodes for found in world.ask(node, "operators") if found["kind"] == "window")
    world.ask(here, "migrate", operator=window, node=next(name for name in world.nodes if name != here))
    world.run(25)
    world.kill(world.nodes[-1], silent=True)
    world.run(20)
    world.close()
    write_tables(log)
    return log


@pytest.fixture(scope="session", params=["generated", "overlay"])
def analysed(request, analyse, tmp_path_factory) -> Analysed:
    return analyse(request.getfixturevalue(request.param), tmp_path_factory.mktemp("analysed"))
