"""Reads answers back from the files that agents have written."""

import json
import math
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import polars as pl

from sbon_testbed.random_queries.data import BOOL, FLOAT, INT, INTERVAL, SECOND, TEXT, TIME, Row, microseconds

TIME_MIN_US, TIME_MAX_US = microseconds("0001-01-01"), microseconds("9999-12-31T23:59:59.999999")
_FIELD = re.compile(r'(?:"((?:[^"]|"")*)"|([^,\n]*))([,\n])')


def read(path: Path, kinds: Sequence[str]) -> list[Row]:
    """Returns the rows of a file, or of a folder of Parquet files, in order; times and intervals as microseconds."""
    return {".csv": _csv, ".ndjson": _ndjson, ".parquet": _parquet}[path.suffix](path, kinds)


def without_special(rows: Iterable[Row]) -> list[Row]:
    """Returns the rows with NULL for NaN and the infinities, which JSON cannot write."""
    return [tuple(None if isinstance(value, float) and not math.isfinite(value) else value for value in row) for row in rows]


def _csv(path: Path, kinds: Sequence[str]) -> list[Row]:
    text = path.read_text(encoding="utf-8")
    rows: list[Row] = []
    fields: list[Any] = []
    for quoted, plain, end in ((m[1], m[2], m[3]) for m in _FIELD.finditer(text)):
        kind = kinds[len(fields)] if len(fields) < len(kinds) else ""
        fields.append(_field(quoted, plain, kind) if rows else quoted or plain)
        if end == "\n":
            rows.append(tuple(fields))
            fields = []
    assert not fields, f"{path} ends within a line"
    assert all(len(row) == len(kinds) for row in rows), f"{path} has lines of other lengths: {text[:200]}"
    return rows[1:]


def _field(quoted: str | None, plain: str | None, kind: str) -> Any:
    if quoted is not None:
        return quoted.replace('""', '"')
    if not plain or kind == TEXT:
        return plain or None
    return _value({"true": True, "false": False}[plain] if kind == BOOL else int(plain) if kind == INT else plain, kind)


def _value(value: Any, kind: str) -> Any:
    """Converts a value of JSON, or the text of a number."""
    if value is None:
        return None
    if kind == TIME:
        return microseconds(value.removesuffix("Z"))
    if kind == INTERVAL:
        return round(float(value) * SECOND)
    return float(value) if kind == FLOAT else value


def _ndjson(path: Path, kinds: Sequence[str]) -> list[Row]:
    names = [f"c{place}" for place in range(len(kinds))]
    rows = []
    for line in path.read_text(encoding="utf-8").split("\n")[:-1]:
        members = json.loads(line)
        values = members.values() if list(members) != names else [members[name] for name in names]
        rows.append(tuple(_value(value, kind) for value, kind in zip(values, kinds, strict=True)))
    return rows


def _parquet(path: Path, kinds: Sequence[str]) -> list[Row]:
    frames = [pl.read_parquet(part) for part in sorted(path.glob("part-*.parquet"))]
    rows = pl.concat(frames).select(pl.all().to_physical()).rows() if frames else []
    return [tuple(map(_physical, row, kinds)) for row in rows]


def _physical(value: Any, kind: str) -> Any:
    if value is None or (kind == TIME and not TIME_MIN_US <= value <= TIME_MAX_US):
        return None
    return round(value / SECOND * SECOND) if kind == INTERVAL else value
