"""The workloads of the benches: their rows, and the expected answers, which are checked against DuckDB."""

from pathlib import Path

import duckdb
import polars as pl
import pytest

from sbon.errors import ConfigError
from sbon_testbed.answers import equal, written
from sbon_testbed.bench.rows import FORMS, START_MS, check_rows, read_from, table, write_workload
from sbon_testbed.bench.workloads import EVENT_ROWS_PER_S, WORKLOADS, expected, removal, statements

SQL = {
    "W1": "SELECT key, value * 2 AS doubled FROM a WHERE value > 0.5 AND key % 4 = 0",
    "W2": "SELECT time_bucket(INTERVAL '1 second', ts) + INTERVAL '1 second' AS window_end, key, COUNT(*) AS n, SUM(value) AS total, "
    "MAX(value) AS most FROM a GROUP BY ALL",
    "W3": "SELECT a.key, a.value AS left_value, b.value AS right_value FROM a JOIN b ON a.key = b.key "
    "AND time_bucket(INTERVAL '1 second', a.ts) = time_bucket(INTERVAL '1 second', b.ts)",
}
READ = {
    "csv": "SELECT make_timestamp(column0 * 1000) AS ts, column1 AS key, column2 AS value FROM read_csv('{}', header = false)",
    "csv-iso": "SELECT column0::TIMESTAMP AS ts, column1 AS key, column2 AS value FROM read_csv('{}', header = false)",
    "ndjson": "SELECT make_timestamp(ts * 1000) AS ts, key, value FROM read_ndjson('{}')",
    "parquet": "SELECT ts, key, value FROM read_parquet('{}')",
}


def tables(name: str, rows: int) -> list[pl.DataFrame]:
    return [table(name, side, rows) for side in range(WORKLOADS[name].sources)]


def asked(sql: str, directory: Path) -> pl.DataFrame:
    """Returns DuckDB's answer."""
    path = directory / "answer.parquet"
    with duckdb.connect() as connection:
        connection.execute(f"COPY ({sql}) TO '{path}'")
    return pl.read_parquet(path)


@pytest.mark.parametrize("name", list(WORKLOADS))
def test_a_batch_run_gives_what_duckdb_gives(name: str, tmp_path: Path) -> None:
    made = tables(name, 250_000)
    for letter, rows in zip("ab", made, strict=False):
        rows.write_parquet(tmp_path / f"{letter}.parquet")
    named = [f"{letter} AS (FROM '{tmp_path / letter}.parquet')" for letter, _ in zip("ab", made, strict=False)]
    found = asked(f"WITH {', '.join(named)} {SQL[name]}", tmp_path)
    answers = expected(name, made)
    assert answers.height > {"W1": 30_000, "W2": 2_500, "W3": 2_000}[name]
    assert equal(found.select(pl.col(column).cast(dtype) for column, dtype in answers.schema.items()), answers)


def test_rows_are_as_the_peers_have_them() -> None:
    """W1 passes an eighth of its rows, W2's most frequent key has a share of 1 / H(1000), and one row in a hundred of W3 has a partner."""
    assert expected("W1", tables("W1", 200_000)).height == pytest.approx(25_000, rel=0.03)
    (zipf,) = tables("W2", 200_000)
    assert (zipf["key"].min(), zipf["key"].max(), zipf["key"].n_unique()) == (0, 999, 1_000)
    assert zipf.filter(pl.col("key") == 0).height == pytest.approx(200_000 / 7.485, rel=0.03)
    left, right = tables("W3", 200_000)
    assert expected("W3", [left, right]).height == pytest.approx(2_000, rel=0.1)
    assert left["key"].max() < 10_000_000  # type: ignore[operator]
    assert (left["key"] == right["key"]).sum() < 10
    for rows in (zipf, left):
        assert rows["ts"].to_physical()[0] == START_MS * 1_000
        assert rows["ts"].is_sorted()
        assert rows.group_by(pl.col("ts").dt.truncate("1s")).len()["len"].to_list() == [EVENT_ROWS_PER_S] * 2
        assert 0 <= rows["value"].min() < rows["value"].max() < 1  # type: ignore[operator]


@pytest.mark.parametrize("form", list(FORMS))
def test_files_have_the_rows_in_every_form(tmp_path: Path, form: str) -> None:
    (left, right) = write_workload(tmp_path, "W3", form, 4_000, parts=2)
    for side, paths in enumerate((left, right)):
        for part, path in enumerate(paths):
            found = asked(READ[form].format(path), tmp_path).with_columns(pl.col("ts").cast(pl.Datetime("us")))
            assert found.equals(table("W3", side, 2_000).gather_every(2, part))
    assert f"path = '{left[0]}'" in read_from(left[0], form)


def test_a_number_of_rows_beyond_memory_is_refused() -> None:
    check_rows(1_000)
    for rows in (999, 50_000_001):
        with pytest.raises(ConfigError, match=rf"--rows {rows}, expected 1000 to 50000000"):
            check_rows(rows)


def test_statements_name_each_source_of_a_run_once() -> None:
    text = statements("W3", "r1", [["connector = 'x'"], ["connector = 'y'"]], "connector = 'discard'")
    assert text.count("CREATE SOURCE w3_r1_left (ts TIMESTAMP") == 1
    assert text.count("FROM TUMBLE(w3_r1_left, ") == text.count("JOIN TUMBLE(w3_r1_right, ") == 1
    assert "CREATE SINK w3_r1_answers FROM (SELECT x.key" in text
    assert "CREATE SINK w3_r1_answers FROM (SELECT x.window_end" in statements("W3", "r1", [["a = 'b'"]] * 2, "c = 'd'", aged=True)


def test_a_source_of_several_parts_is_their_union_and_all_is_taken_away() -> None:
    text = statements("W1", "r", [["a = '0'", "a = '1'"]], "c = 'd'")
    assert "CREATE VIEW w1_r_left AS SELECT ts, key, value FROM w1_r_left_0 UNION ALL SELECT ts, key, value FROM w1_r_left_1;" in text
    made = {line.split()[2] for line in text.splitlines()}
    assert {line.split()[2].rstrip(";") for line in removal("W1", "r", 2).splitlines()} == made
    assert removal("W3", "r", 1).split("\n") == ["DROP SINK w3_r_answers;", "DROP SOURCE w3_r_left;", "DROP SOURCE w3_r_right;"]


@pytest.mark.parametrize("form", ["parquet", "csv", "ndjson"])
def test_answers_that_a_sink_has_not_written_are_none(tmp_path: Path, form: str) -> None:
    schema = expected("W2", tables("W2", 1_000)).schema
    assert written(tmp_path / "missing", form, schema).equals(pl.DataFrame(schema=schema))


def test_answers_are_equal_in_any_order_and_not_with_a_row_changed() -> None:
    answers = expected("W2", tables("W2", 20_000))
    assert equal(answers.sample(fraction=1.0, shuffle=True, seed=1), answers)
    assert equal(answers.with_columns(pl.col("total") * (1 + 1e-13)), answers)
    assert not equal(answers.with_columns(pl.col("total") * (1 + 1e-6)), answers)
    assert not equal(answers.head(-1), answers)
    assert not equal(answers.with_columns(pl.col("n") + (pl.col("key") == 3)), answers)
