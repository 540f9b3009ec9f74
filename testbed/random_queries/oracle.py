"""Computes the expected answers in DuckDB, with macros that emulate sbon's dialect.

Times are TIMESTAMP in both engines. INTERVALs are BIGINT microseconds in DuckDB, whose own type has months and days. Where the dialects
differ on purpose, a macro or the query's text for DuckDB has sbon's meaning; everything else is DuckDB's own.
"""

from collections.abc import Iterable, Sequence
from functools import cache
from itertools import count
from typing import Any

import duckdb

from sbon_testbed.random_queries.data import BOOL, COLUMNS, FLOAT, INT, INTERVAL, TEXT, TIME, DataSet, Row, Table, time_text

MACROS = """
CREATE MACRO wrap(n) AS ((((n + 9223372036854775808::HUGEINT) % 18446744073709551616::HUGEINT + 18446744073709551616::HUGEINT)
    % 18446744073709551616::HUGEINT) - 9223372036854775808::HUGEINT)::BIGINT;
CREATE MACRO i_add(a, b) AS wrap(a::HUGEINT + b::HUGEINT);
CREATE MACRO i_sub(a, b) AS wrap(a::HUGEINT - b::HUGEINT);
CREATE MACRO i_mul(a, b) AS wrap(a::HUGEINT * b::HUGEINT);
CREATE MACRO i_div(a, b) AS wrap(a::HUGEINT // (CASE WHEN b <> 0 THEN b::HUGEINT END));
CREATE MACRO i_mod(a, b) AS (a::HUGEINT % (CASE WHEN b <> 0 THEN b::HUGEINT END))::BIGINT;
CREATE MACRO i_abs(a) AS wrap(abs(a::HUGEINT));
CREATE MACRO i_neg(a) AS wrap(-(a::HUGEINT));
CREATE MACRO f_div(a, b) AS a / (CASE WHEN b <> 0 THEN b END);
CREATE MACRO f_mod(a, b) AS a % (CASE WHEN b <> 0 THEN b END);
CREATE MACRO f_sqrt(a) AS sqrt(CASE WHEN a >= 0 THEN a END);
CREATE MACRO f_ln(a) AS ln(CASE WHEN a > 0 THEN a END);
CREATE MACRO f_log10(a) AS log10(CASE WHEN a > 0 THEN a END);
CREATE MACRO f_sin(a) AS sin(CASE WHEN isfinite(a) OR isnan(a) THEN a END);
CREATE MACRO f_cos(a) AS cos(CASE WHEN isfinite(a) OR isnan(a) THEN a END);
CREATE MACRO f_tan(a) AS tan(CASE WHEN isfinite(a) OR isnan(a) THEN a END);
CREATE MACRO f_asin(a) AS asin(CASE WHEN abs(a) <= 1 OR isnan(a) THEN a END);
CREATE MACRO f_acos(a) AS acos(CASE WHEN abs(a) <= 1 OR isnan(a) THEN a END);
CREATE MACRO f_trunc1(a) AS CASE WHEN isfinite(a) THEN trunc(a * 10) / 10 ELSE a END;
CREATE MACRO f_power(a, b) AS CASE WHEN isfinite(pow(a, b)) OR NOT isfinite(a) OR NOT isfinite(b) THEN pow(a, b) END;
CREATE MACRO f_sign(a) AS CASE WHEN isnan(a) OR a = 0 THEN a ELSE sign(a)::DOUBLE END;
CREATE MACRO one_zero(a) AS CASE WHEN a = 0 THEN 0.0::DOUBLE ELSE a END;
CREATE MACRO f_int(a) AS TRY_CAST(round(CASE WHEN isfinite(a) THEN a END) AS BIGINT);
CREATE MACRO t_bare(a) AS trim(a, ' ' || chr(9) || chr(160));
CREATE MACRO t_int(a) AS CASE WHEN regexp_full_match(t_bare(a), '[+-]?[0-9]+') THEN TRY_CAST(t_bare(a) AS BIGINT) END;
CREATE MACRO t_float(a) AS CASE WHEN regexp_full_match(lower(t_bare(a)),
    '[+-]?([0-9]+[.]?[0-9]*|[.][0-9]+)(e[+-]?[0-9]+)?|[+-]?(inf|infinity|nan)')
    THEN TRY_CAST(t_bare(a) AS DOUBLE) END;
CREATE MACRO t_bool(a) AS CASE WHEN lower(t_bare(a)) IN ('true', 't', 'yes', '1') THEN true
    WHEN lower(t_bare(a)) IN ('false', 'f', 'no', '0') THEN false END;
CREATE MACRO t_time(a) AS CASE WHEN regexp_full_match(t_bare(a),
    '[0-9]{4}-[0-9]{2}-[0-9]{2}([ T][0-9]{2}:[0-9]{2}(:[0-9]{2}([.][0-9]+)?)?Z?)?')
    THEN TRY_CAST(t_bare(a) AS TIMESTAMP) END;
CREATE MACRO t_upper(a) AS replace(upper(a), 'ẞ', 'SS');
CREATE MACRO t_lower(a) AS regexp_replace(replace(lower(replace(a, 'İ', '~~')), '~~', 'i̇'), '(\\pL)σ$', '\\1ς');
CREATE MACRO t_substr(a, start, n) AS substring(a, greatest(start, 1), CASE WHEN n IS NOT NULL AND start IS NOT NULL THEN
    greatest(0, least(start, 1000000)::HUGEINT + least(greatest(n, 0), 1000000) - least(greatest(start, 1), 1000000))::BIGINT END);
CREATE MACRO t_from(a, start) AS CASE WHEN start IS NOT NULL THEN substring(a, least(greatest(start, 1), 1000000)) END;
CREATE MACRO t_left(a, n) AS CASE WHEN n IS NOT NULL THEN left(a, greatest(least(n, 1000000), -1000000)) END;
CREATE MACRO t_strpos(a, part) AS CASE WHEN part = '' THEN CASE WHEN a IS NOT NULL THEN 1::BIGINT END ELSE strpos(a, part)::BIGINT END;
CREATE MACRO t_lpad(a, n, fill) AS CASE WHEN n <= 0 THEN CASE WHEN a IS NOT NULL THEN '' END ELSE lpad(a, n::INT, fill) END;
CREATE MACRO t_rpad(a, n, fill) AS CASE WHEN n <= 0 THEN CASE WHEN a IS NOT NULL THEN '' END ELSE rpad(a, n::INT, fill) END;
CREATE MACRO t_part(a, separator, n) AS CASE WHEN n <> 0 AND a IS NOT NULL THEN coalesce(string_split(a, separator)[n], '') END;
CREATE MACRO t_extract(a, pattern) AS CASE WHEN regexp_matches(a, pattern) THEN regexp_extract(a, pattern) END;
CREATE MACRO t_initcap(a) AS array_to_string(list_transform(string_split(regexp_replace(a, '[^a-zA-Z ]', '', 'g'), ' '),
    lambda word: upper(word[1]) || lower(word[2:])), ' ');
CREATE MACRO v_units(a, b, us) AS i_div(i_sub(epoch_us(b), epoch_us(a)), us);
CREATE MACRO t_day(a) AS CASE WHEN regexp_full_match(t_bare(a), '[0-9]{4}-[0-9]{1,2}-[0-9]{1,2}') THEN TRY_CAST(t_bare(a) AS TIMESTAMP) END;
CREATE MACRO moved(a, us) AS make_timestamp(epoch_us(a) + us);
CREATE MACRO i_floor(us, size) AS us - ((us % size) + size) % size;
CREATE MACRO v_scaled(us, a) AS TRY_CAST(trunc(us::DOUBLE * a) AS BIGINT);
CREATE MACRO v_shared(us, a) AS TRY_CAST(trunc(us::DOUBLE / (CASE WHEN a <> 0 THEN a END)) AS BIGINT);
CREATE MACRO v_seconds(us) AS f_int(us / 1000000);
CREATE MACRO m_seconds(a) AS i_floor(epoch_us(a), 1000000) // 1000000;
CREATE MACRO j_length(a) AS CASE WHEN json_type(a) = 'ARRAY' THEN json_array_length(a)::BIGINT END;
CREATE MACRO j_type(a) AS CASE json_type(a) WHEN 'VARCHAR' THEN 'string' ELSE lower(json_type(a)) END;
CREATE MACRO dated(a) AS CASE WHEN epoch_us(a) BETWEEN -62135596800000000 AND 253402300799999999 THEN a END;
CREATE MACRO m_text(a) AS strftime(a, '%Y-%m-%dT%H:%M:%S.%fZ');
"""

_NUMBERS = count()


def literal(value: Any, kind: str) -> str:
    """Returns a value as a literal of DuckDB."""
    if kind == INTERVAL:
        kind = INT
    if value is None:
        return f"NULL::{kind}"
    if kind == TIME:
        return f"'{time_text(value)}'::TIMESTAMP"
    if kind == TEXT:
        return "'{}'".format(value.replace("'", "''"))
    if kind == BOOL:
        return "true" if value else "false"
    if kind == FLOAT:
        return f"'{value!r}'::DOUBLE"
    return f"'{value}'::BIGINT"


class Oracle:
    """A DuckDB in memory with the streams as tables."""

    def __init__(self, data: DataSet | None = None) -> None:
        self.connection = _with_macros().cursor()
        self._name = f"data{next(_NUMBERS)}"
        self.connection.execute(f"ATTACH ':memory:' AS {self._name}; SET search_path = '{self._name}.main,memory.main'")
        if data is not None:
            self.load(data.tables.values())

    def load(self, tables: Iterable[Table]) -> None:
        """Replaces the tables."""
        columns = ", ".join(f"{name} {INT if kind == INTERVAL else kind}" for name, kind in COLUMNS.items())
        for table in tables:
            self.connection.execute(f"CREATE OR REPLACE TABLE {table.name} ({columns})")
            rows = [f"({', '.join(literal(value, kind) for value, kind in zip(row, COLUMNS.values(), strict=True))})" for row in table.rows]
            if rows:
                self.connection.execute(f"INSERT INTO {table.name} VALUES {', '.join(rows)}")

    def rows(self, sql: str, kinds: Sequence[str]) -> list[Row]:
        """Returns the answer, with times as microseconds."""
        names = [f"c{place}" for place in range(len(kinds))]
        shown = [f"epoch_us(dated({name}))" if kind == TIME else name for name, kind in zip(names, kinds, strict=True)]
        found = self.connection.execute(f"SELECT {', '.join(shown)} FROM ({sql}) AS answer({', '.join(names)})").fetchall()
        spans = [place for place, kind in enumerate(kinds) if kind == INTERVAL]
        if not spans:
            return [tuple(row) for row in found]
        # Files have INTERVALs as numbers of seconds, which have at most 15 digits.
        return [tuple(_as_seconds(value) if place in spans else value for place, value in enumerate(row)) for row in found]

    def count(self, sql: str) -> int:
        """Returns the number of rows of an answer."""
        found = self.connection.execute(f"SELECT count(*) FROM ({sql.removeprefix('(').removesuffix(')') if sql.startswith('(') else sql})")
        return int(found.fetchall()[0][0])

    def close(self) -> None:
        """Drops the tables."""
        self.connection.execute(f"USE memory; DETACH {self._name}")
        self.connection.close()


@cache
def _with_macros() -> duckdb.DuckDBPyConnection:
    """Returns a database with the macros; cached, as they take longer to create than most queries to run."""
    connection = duckdb.connect(config={"threads": 1, "order_by_non_integer_literal": True})
    connection.execute(MACROS)
    return connection


def _as_seconds(us: int | None) -> int | None:
    return None if us is None else round(us / 1_000_000 * 1_000_000)
