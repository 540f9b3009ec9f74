"""Compares answers that an agent has written with those of a batch run."""

from pathlib import Path

import polars as pl


def written(path: Path, form: str, columns: pl.Schema) -> pl.DataFrame:
    """Returns the rows that a sink of connector `file` has written; none if it has written nothing.

    Parameters
    ----------
    form : `parquet`, `csv` or `ndjson`
    columns : names and types; times in text formats are parsed as the sink writes them
    """
    none = pl.DataFrame(schema=columns)
    if form == "parquet":
        parts = sorted(path.glob("part-*.parquet"))
        return pl.concat([pl.read_parquet(part) for part in parts]) if parts else none
    if not path.exists() or not path.stat().st_size:
        return none
    texts = pl.Schema({name: pl.String() if dtype.is_temporal() else dtype for name, dtype in columns.items()})
    found = pl.read_csv(path, schema=texts) if form == "csv" else pl.read_ndjson(path, schema=texts)
    times = [name for name, dtype in columns.items() if dtype.is_temporal()]
    return found.with_columns(pl.col(times).str.to_datetime(time_unit="us", time_zone="UTC").dt.replace_time_zone(None))


def equal(found: pl.DataFrame, expected: pl.DataFrame) -> bool:
    """Tells whether two answers have equal columns and the same rows equally often, in any order; floats may differ by 1e-9 (relative)."""
    if found.columns != expected.columns or found.height != expected.height:
        return False
    exact = [name for name, dtype in expected.schema.items() if not dtype.is_float()]
    if found.select(exact).schema != expected.select(exact).schema:
        return False
    order = [*exact, *(name for name in expected.columns if name not in exact)]
    one, other = found.sort(order, nulls_last=True), expected.sort(order, nulls_last=True)
    near = [((one[name] - other[name]).abs() <= 1e-9 * other[name].abs()).all() for name in order if name not in exact]
    return one.select(exact).equals(other.select(exact)) and all(near)
