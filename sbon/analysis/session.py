"""The Spark session: quiet, without a web page, sized for a small machine, and on loopback only if Spark runs locally."""

import logging
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

from sbon.analysis.java import java_home
from sbon.errors import SbonError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LOCAL = "local[*]"
DRIVER_MEMORY = "2g"
"""Memory of Spark with a local master; rows stream through it, so it need not grow with them."""
_LOG_SETTINGS = Path(__file__).with_name("log4j2.properties")


def open_session(master: str = LOCAL, log: Path | None = None, *, small: bool = False, cores: int | None = None) -> "SparkSession":
    """Returns a new session, or the existing one of this process.

    Parameters
    ----------
    master : `local[*]`, `local[2]`, or the address of any Spark master
    log : file for messages of Spark and its Java runtime; None: standard error
    small : True if compiling queries would take longer than reading the little data there is
    cores : number of cores of this machine; None asks the system

    Raises
    ------
    SbonError
        PySpark or Java is missing, or Spark does not start.
    """
    try:
        from pyspark.errors import PySparkException
        from pyspark.sql import SparkSession
    except ImportError:
        raise SbonError("the analysis needs PySpark, which is not installed: pip install 'sbon[analysis]'") from None
    builder = SparkSession.builder.master(master).appName("sbon analyze")
    for name, value in settings(master, cores or len(os.sched_getaffinity(0)), small).items():
        builder = builder.config(name, value)
    _hush()
    java = java_home(os.environ)
    try:
        with _started_by(java), _said_to(log), _own_interrupts(), _no_orphans():
            return builder.getOrCreate()
    except (PySparkException, OSError, RuntimeError) as problem:
        more = f"; see {log}" if log is not None else ""
        raise SbonError(f"Spark does not start with --master {master}: {_first_line(problem)}{more}") from problem


def settings(master: str, cores: int, small: bool = False) -> dict[str, str]:
    """Returns the settings that differ from Spark's defaults.

    Examples
    --------
    >>> settings("local[*]", 2)["spark.driver.host"], "spark.driver.host" in settings("spark://a:7077", 2)
    ('127.0.0.1', False)
    """
    java = f"-Dlog4j2.configurationFile={_LOG_SETTINGS.as_uri()} -XX:+UseParallelGC"
    chosen = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.extraJavaOptions": f"{java} -XX:TieredStopAtLevel=1" if small else java,
        "spark.driver.memory": DRIVER_MEMORY,
        "spark.driver.maxResultSize": "256m",
        "spark.sql.session.timeZone": "UTC",
        # Otherwise Spark writes old 96-bit times, which have no zone.
        "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
        # Logs are many small files: without this each would be a task.
        "spark.sql.files.openCostInBytes": str(128 * 1024),
        "spark.sql.files.maxPartitionBytes": str(64 * 2**20),
        # Paths are given one by one already.
        "spark.sql.sources.parallelPartitionDiscovery.threshold": "100000",
        "spark.sql.adaptive.enabled": "true",
        "spark.sql.adaptive.coalescePartitions.parallelismFirst": "false",
        "spark.sql.autoBroadcastJoinThreshold": str(32 * 2**20),
    }
    if small:
        # Half of the processor time for a log of an hour went into compiling, as measured.
        chosen |= {"spark.sql.codegen.wholeStage": "false", "spark.sql.codegen.factoryMode": "NO_CODEGEN"}
    if master.startswith("local"):
        # No other machine takes part, so nothing listens beyond loopback.
        chosen |= {
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.sql.shuffle.partitions": str(max(4, 2 * cores)),
            "spark.shuffle.compress": "true",
        }
    return chosen


def _hush() -> None:
    """Silences py4j's logging, which repeats exceptions that are raised here, partly through the root logger, which would print them."""
    logging.getLogger("py4j").setLevel(logging.CRITICAL)
    if not logging.root.handlers:
        logging.root.addHandler(logging.NullHandler())


@contextmanager
def _own_interrupts() -> Iterator[None]:
    """Keeps the present handling of Ctrl-C: PySpark's own handler would call a runtime in the middle of an answer, and fail."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGINT)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


@contextmanager
def _started_by(java: Path) -> Iterator[None]:
    """Sets the environment by which Spark's start script finds Java, and restores it."""
    before = os.environ.get("JAVA_HOME")
    os.environ["JAVA_HOME"] = str(java)
    try:
        yield
    finally:
        if before is None:
            del os.environ["JAVA_HOME"]
        else:
            os.environ["JAVA_HOME"] = before


@contextmanager
def _no_orphans() -> Iterator[None]:
    """Ends a runtime whose start is interrupted, which would otherwise wait for ever."""
    me = psutil.Process()
    before = {child.pid for child in me.children(recursive=True)}
    try:
        yield
    except BaseException:
        for child in me.children(recursive=True):
            if child.pid not in before:
                with suppress(psutil.NoSuchProcess):
                    child.kill()
        raise


@contextmanager
def _said_to(log: Path | None) -> Iterator[None]:
    """Redirects standard error of programs that are started in the block to this file, as Spark's runtime has no option for it."""
    if log is None:
        yield
        return
    own = os.dup(2)
    try:
        with log.open("ab") as file:
            os.dup2(file.fileno(), 2)
            yield
    finally:
        os.dup2(own, 2)
        os.close(own)


def _first_line(problem: BaseException) -> str:
    lines = [line.strip() for line in str(problem).splitlines() if line.strip()]
    return lines[0] if lines else type(problem).__name__
