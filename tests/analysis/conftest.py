"""One Spark session and one generated log, with its report, for all tests of the analysis."""

import fcntl
import json
import shutil
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from sbon.errors import SbonError
from sbon_testbed.simulator.harness import World
from sbon_testbed.telemetry.files import write_tables
from sbon_testbed.telemetry.generator import generate
from sbon_testbed.topology import CitiesConfig, build

SETTINGS = {"optimiser": {"interval_s": 1.0}, "engine": {"heal": True}, "telemetry": {"latency_window_s": 5.0, "flush_interval_s": 1.0}}
SQL = """
SELECT window_start, COUNT(*) AS n, MAX(rtt_ms) AS worst
FROM TUMBLE(sys.probes, ts, INTERVAL '2 seconds') GROUP BY window_start"""


class Analysed(NamedTuple):
    """A log and its report."""

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
    """Returns a function that analyses a folder with the shared session."""
    from sbon.analysis.run import analyse_logs

    def run(log: Path, out: Path, **options: Any) -> Analysed:
        analyse_logs([log], out, spark=spark, **options)
        return read_report(log, out)

    return run


@pytest.fixture(scope="session")
def made_once(tmp_path_factory, worker_id) -> Callable[[str, Callable[[Path], object]], Path]:
    """Returns a function that makes a folder once for all parallel test processes: making one takes half a minute."""
    base = tmp_path_factory.getbasetemp()
    shared = (base if worker_id == "master" else base.parent) / "analysis"
    shared.mkdir(exist_ok=True)

    def folder(name: str, make: Callable[[Path], object]) -> Path:
        with open(shared / f"{name}.lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            done = shared / f"{name}.done"
            if not done.exists():
                shutil.rmtree(shared / name, ignore_errors=True)
                (shared / name).mkdir()
                make(shared / name)
                done.touch()
        return shared / name

    return folder


@pytest.fixture(scope="session")
def generated(made_once) -> Path:
    """Returns a log of 54 minutes of twelve agents; one crashes. At this length a moment is 20 s and has two samples of everything."""
    return made_once("generated", partial(generate, agents=12, hours=0.9, queries=10, probe_interval_s=2.0, seed=14))


@pytest.fixture(scope="session")
def overlay(made_once) -> Path:
    """Returns a log of five agents in virtual time: two queries that share, an operator moved by hand, a crash, a recovery."""
    return made_once("overlay", record)


def record(log: Path) -> None:
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
    world.start(world.nodes[-1])
    world.run(10)
    world.close()
    write_tables(log)


@pytest.fixture(scope="session")
def analysis_of(request, made_once) -> Callable[[str], Analysed]:
    """Returns a function that analyses a fixture's whole log, once for all tests."""

    def analysed(name: str) -> Analysed:
        log = request.getfixturevalue(name)
        return read_report(log, made_once(f"{name}-analysed", lambda out: request.getfixturevalue("analyse")(log, out)))

    return analysed


@pytest.fixture(scope="session", params=["generated", "overlay"])
def analysed(request, analysis_of) -> Analysed:
    return analysis_of(request.param)


def read_report(log: Path, out: Path) -> Analysed:
    return Analysed(log, out, json.loads((out / "report.json").read_text()), (out / "report.html").read_text())
