"""The analysis reports faults of a log before Spark reads it."""

import shutil
from datetime import UTC, datetime

import polars as pl
import pytest

from sbon.analysis.log_files import read_log
from sbon.errors import SbonError
from sbon.telemetry.schema import TABLES, VERSION_KEY
from sbon_testbed.telemetry.generator import generate


@pytest.fixture(scope="module")
def pristine(tmp_path_factory):
    """Returns a log of two agents over three hours."""
    log = tmp_path_factory.mktemp("pristine")
    generate(log, agents=2, hours=3, queries=1, probe_interval_s=60, seed=1)
    return log


@pytest.fixture
def log(pristine, tmp_path):
    shutil.copytree(pristine, tmp_path / "log")
    return tmp_path / "log"


def one_file(log, kind="probes", hour="01"):
    return sorted((log / "telemetry" / f"kind={kind}").glob(f"date=*/hour={hour}/*.parquet"))[0]


def said_of(log, path):
    return [problem.what for problem in read_log([log]).problems if problem.where == str(path)]


def test_whole_log_is_read_and_only_what_never_happened_is_missing(log):
    found = read_log([log])

    assert found.rows("probes") == 2 * 3 * 60
    assert found.rows() == sum(file.rows for file in found.files)
    rare = {"kind=multicasts", "kind=members", "kind=migrations", "kind=predictions", "kind=recoveries", "kind=dealings"}
    assert {problem.where for problem in found.problems} <= rare


@pytest.mark.parametrize("keep", [0, 3, 200, -1, -4])
def test_half_written_file_is_named_and_left_out(log, keep):
    path = one_file(log)
    data = path.read_bytes()
    path.write_bytes(data[:keep])

    assert len(said_of(log, path)) == 1
    assert all(file.path != path for file in read_log([log]).files)


def test_damaged_end_is_named(log):
    path = one_file(log)
    data = bytearray(path.read_bytes())
    data[-60:-8] = b"\xff" * 52
    path.write_bytes(bytes(data))

    assert "is damaged" in said_of(log, path)[0]


@pytest.mark.parametrize(
    ("metadata", "said"), [({VERSION_KEY: "999"}, "has schema version 999, expected 1"), ({}, "has no schema version")]
)
def test_unknown_schema_version_is_named(log, metadata, said):
    path = one_file(log)
    pl.read_parquet(path, hive_partitioning=False).write_parquet(path, metadata=metadata)

    assert said in said_of(log, path)[0]


def test_missing_column_and_other_type_are_named(log):
    first, second = one_file(log, hour="00"), one_file(log, hour="01")
    rows = pl.read_parquet(first, hive_partitioning=False)
    rows.drop("rtt_ms").write_parquet(first, metadata={VERSION_KEY: "1"})
    rows.with_columns(pl.col("rtt_ms").cast(pl.String)).write_parquet(second, metadata={VERSION_KEY: "1"})

    assert said_of(log, first) == ["has no column rtt_ms; not read"]
    assert said_of(log, second) == ["has column rtt_ms of type String, expected Float64; not read"]


def test_columns_that_came_later_may_be_missing(log):
    path = one_file(log, kind="operators")
    pl.read_parquet(path, hive_partitioning=False).drop("cpu_ns", "quanta").write_parquet(path, metadata={VERSION_KEY: "1"})

    assert said_of(log, path) == []


def test_leftovers_strange_folders_and_unwritten_spools_are_named(log):
    path = one_file(log)
    leftover = path.with_name(".half.parquet.tmp")
    leftover.write_bytes(b"PAR1")
    (log / "telemetry" / "kind=dreams" / "date=2026-11-01" / "hour=00").mkdir(parents=True)
    (log / "telemetry" / "kind=probes" / "date=2026-11-01" / "hour=99").mkdir(parents=True)
    (log / "telemetry" / "spool").mkdir()
    (log / "telemetry" / "spool" / "ams-1-000001.ndjson").write_text("{}")

    said = {problem.where.rsplit("/telemetry/")[-1]: problem.what for problem in read_log([log]).problems}

    assert "cut off" in said[str(leftover).rsplit("/telemetry/")[-1]]
    assert "a kind that this version does not know" in said["kind=dreams/date=2026-11-01/hour=00"]
    assert "no folder of an hour" in said["kind=probes/date=2026-11-01/hour=99"]
    assert "not in tables yet" in said["spool"]


def test_empty_hours_and_missing_kinds_are_named(log):
    shutil.rmtree(one_file(log, "load").parent)
    empty = one_file(log, "coordinates")
    for path in empty.parent.iterdir():
        pl.DataFrame(schema=TABLES["coordinates"].polars_schema()).write_parquet(path, metadata={VERSION_KEY: "1"})
    shutil.rmtree(log / "telemetry" / "kind=links")

    said = {problem.where: problem.what for problem in read_log([log]).problems}

    assert said["kind=load"] == said["kind=coordinates"] == "has no rows in the hour 2026-11-01 01:00"
    assert "has no rows: parts of the report that need them are left out" in said["kind=links"]


def test_hours_outside_the_times_asked_for_are_not_opened(log):
    one_file(log, hour="02").write_bytes(b"damaged")

    found = read_log([log], datetime(2026, 11, 1, 0, 30, tzinfo=UTC), datetime(2026, 11, 1, 2, tzinfo=UTC))

    assert {file.hour.hour for file in found.files} == {0, 1}
    assert not any("damaged" in problem.what or "Parquet" in problem.what for problem in found.problems)


def test_same_folder_given_twice_is_read_once(log):
    assert read_log([log, log / "telemetry"]).rows() == read_log([log]).rows()


def test_folder_that_is_not_there_or_has_nothing_is_one_line(tmp_path):
    with pytest.raises(SbonError, match=r"no directory .*missing, expected one with telemetry"):
        read_log([tmp_path / "missing"])
    with pytest.raises(SbonError, match="no telemetry to read in"):
        read_log([tmp_path])
