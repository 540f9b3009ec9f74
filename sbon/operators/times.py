"""Parses and formats times.

Accepted: ISO 8601 with `T` or a blank between date and time, seconds and their fraction optional, time optional, and a zone (`Z` or an
offset) optional; no zone means UTC. Everything else is NULL.
"""

import polars as pl

from sbon.operators.time_digits import regular_times

TIME_MIN_US = -62_135_596_800_000_000
"""The year 1 in microseconds since 1970. Most programs have no earlier dates, and polars panics at them."""
TIME_MAX_US = 253_402_300_799_999_999
"""The end of the year 9999."""

_FORMATS = ("%Y-%m-%d %H:%M:%S%.f", "%Y-%m-%d %H:%M")
_ZONED = ("%Y-%m-%d %H:%M:%S%.f%z", "%Y-%m-%d %H:%M%z")
_PLAIN = r"^[0-9]{4}-[0-9]{1,2}-[0-9]{1,2}([Tt ] *[0-9:.]+)? *([Zz]|[+-][0-9]{2}:?[0-9]{2})?$"
BLANKS = " \t\n\v\f\r"
"""Characters allowed around a value in a text; other Unicode white space is not."""
_ZONE = r"[+-]\d{2}:?\d{2}$"


def parse_time(text: pl.Expr, time_format: str | None = None) -> pl.Expr:
    """Parses times from a TEXT expression; NULL if a text is no time.

    Parameters
    ----------
    time_format : a strftime format of the Rust library chrono; None: ISO 8601 as above
    """
    text = text.str.strip_chars(BLANKS)
    if time_format is not None:
        time = text.str.to_datetime(time_format, time_unit="us", strict=False)
        return _within(time.dt.replace_time_zone(None))  # a format with a zone gives times in UTC
    # polars' formats also accept signs and blanks before numbers.
    text = pl.when(text.str.contains(_PLAIN)).then(text)
    plain = text.str.replace(r"^(\d{4}-\d{2}-\d{2})[Tt]", "$1 ").str.replace(r"[Zz]$", "")
    date = plain.str.to_date("%Y-%m-%d", strict=False).cast(pl.Datetime("us"))
    local = pl.coalesce([plain.str.to_datetime(f, time_unit="us", strict=False) for f in _FORMATS] + [date])
    # Zones are rare, and their formats are expensive to try: only texts that end like a zone are tried.
    zoned_text = pl.when(plain.str.contains(_ZONE)).then(plain)
    zoned = [zoned_text.str.to_datetime(f, time_unit="us", strict=False, time_zone="UTC").dt.replace_time_zone(None) for f in _ZONED]
    return _within(pl.coalesce([local, *zoned]))


def parse_times(texts: pl.Series, time_format: str | None = None) -> pl.Series:
    """Parses a whole column at once; several times faster if ISO 8601 is written uniformly.

    Examples
    --------
    >>> parse_times(pl.Series(["2018-01-31T01:49:59Z", None])).to_list()
    [datetime.datetime(2018, 1, 31, 1, 49, 59), None]
    """
    if time_format is not None:
        return _parsed(texts, time_format)
    times = regular_times(texts)
    instants = times.to_physical()
    if not instants.is_between(TIME_MIN_US, TIME_MAX_US).all():  # a zone may lead outside the range
        times = pl.select(_within(times)).to_series()
    if times.null_count() == texts.null_count():
        return times
    odd = (times.is_null() & texts.is_not_null()).arg_true()
    return times.scatter(odd, _parsed(texts.gather(odd), None))


def _parsed(texts: pl.Series, time_format: str | None) -> pl.Series:
    # Lazily, so that work common to the formats is done once.
    return texts.to_frame("text").lazy().select(parse_time(pl.col("text"), time_format)).collect().to_series()


def parse_whole_timestamps(number: pl.Series, unit_us: int) -> pl.Series:
    """Converts integers that count units of `unit_us` microseconds since 1970 to times; NULL outside the years 1 to 9999."""
    column = pl.col("number")
    inside = column.is_between(TIME_MIN_US // unit_us, TIME_MAX_US // unit_us)
    return number.to_frame("number").select_seq(pl.when(inside).then(column * unit_us).cast(pl.Datetime("us"))).to_series()


def parse_timestamps(number: pl.Expr, unit_us: float) -> pl.Expr:
    """Converts numbers that count units of `unit_us` microseconds since 1970 to times; NULL outside the years 1 to 9999."""
    return (number * unit_us).round(0, mode="half_away_from_zero").pipe(microseconds_to_time)


def microseconds_to_time(number: pl.Expr) -> pl.Expr:
    """Converts microseconds since 1970 to times; NULL outside the years 1 to 9999."""
    return _within(number.cast(pl.Int64, strict=False).cast(pl.Datetime("us")))


def calendar(time: pl.Expr) -> pl.Expr:
    """Returns the same times, with NULL outside the calendar's range, so that calendar functions cannot fail on them."""
    return _within(time)


def format_time(time: pl.Expr) -> pl.Expr:
    """Formats times as ISO 8601 in UTC to the microsecond, as `2018-01-31T01:49:59.650000Z`."""
    return calendar(time).dt.strftime("%Y-%m-%dT%H:%M:%S%.6fZ")


def _within(time: pl.Expr | pl.Series) -> pl.Expr:
    time = pl.lit(time) if isinstance(time, pl.Series) else time
    number = time.cast(pl.Int64)
    return pl.when((number >= TIME_MIN_US) & (number <= TIME_MAX_US)).then(time)
