"""Parses columns of uniformly written ISO 8601 times by arithmetic on their digits.

Texts of one length lie one after the other in memory. Eight characters at a time are one number of 64 bits, so that a few operations on
numbers test and read eight digits (Lemire, Quickly parsing eight digits, 2018; here on arrays instead of registers). Texts in another form,
and texts that are no times, are left to the general parser.
"""

import re

import numpy as np
import numpy.typing as npt
import polars as pl

_FORM = re.compile(
    r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:(?P<point>\.)(?P<fraction>\d{1,6}))?(?P<zone>Z|[+-](?:[01]\d|2[0-3]):[0-5]\d)?", re.ASCII
)
_Octets = npt.NDArray[np.uint8]
_Words = npt.NDArray[np.uint64]
_Numbers = npt.NDArray[np.int64]
_Flags = npt.NDArray[np.bool_]
_TIME = pl.Datetime("us")
_LENGTHS_MAX = 16
"""Most text lengths distinguished: with and without a fraction of each width, with and without a zone."""
_ROWS_AT_ONCE = 8192
"""Rows parsed at once, few enough for intermediate values to stay in the cache of a core."""
_FORMS_TRIED = 8
"""Texts examined to find one that is a time."""

_CLOCK = int.from_bytes(b"00:00:00", "little")
_CLOCK_MARGINS = int.from_bytes(bytes([0x7D, 0x76, 0x7F, 0x7A, 0x76, 0x7F, 0x7A, 0x76]), "little")
"""Numbers that, added to the digits of a time of day, set the highest bit of an octet if it is more than 2, 5 or 9, or no colon."""
_NO_SECONDS = int.from_bytes(b"\0\0\0\0\0:00", "little")
_MINUTE_END, _TAIL_END = 16, 24
"""Begin and end of the eight characters that hold the seconds and up to `_TAIL_DIGITS_MAX` digits of their fraction."""
_TAIL_DIGITS_MAX = 4
_HIGH_BITS = 0x8080808080808080
_DIGITS = int.from_bytes(b"0" * 8, "little")
_DIGIT_MARGINS = int.from_bytes(bytes([0x76] * 8), "little")
_DAYS_BEFORE_1970 = 719_468
"""Days from the first of March of the year 0 to 1970."""
_MONTH_DAYS = np.array([0, 31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31], np.int64)


def regular_times(texts: pl.Series) -> pl.Series:
    """Parses times such as `2018-01-31T01:49:59.650Z`; NULL for a text in another form than the others of its length.

    A fraction has up to six digits. NULL does not mean that the text is no time.

    Examples
    --------
    >>> regular_times(pl.Series(["2018-01-31T01:49:59Z", "2018-02-31T01:50:00Z", "soon"])).to_list()
    [datetime.datetime(2018, 1, 31, 1, 49, 59), None, None]
    """
    lengths = texts.str.len_bytes()
    if texts.null_count() == 0 and lengths.min() == lengths.max():
        return _times_of_one_length(texts)
    times = pl.Series([], dtype=_TIME).clear(len(texts))
    for length in lengths.drop_nulls().unique()[:_LENGTHS_MAX]:
        places = (lengths == length).arg_true()
        times = times.scatter(places, _times_of_one_length(texts.gather(places)))
    return times


def _times_of_one_length(texts: pl.Series) -> pl.Series:
    form = next(filter(None, map(_FORM.fullmatch, texts.head(_FORMS_TRIED))), None)
    if form is None:
        return pl.Series([], dtype=_TIME).clear(len(texts))
    data = texts.str.join("").cast(pl.Binary()).item()
    characters = np.frombuffer(data, np.uint8).reshape(len(texts), -1)
    times, good = _minutes_us(characters, form)
    for first in range(0, len(texts), _ROWS_AT_ONCE):
        part = slice(first, first + _ROWS_AT_ONCE)
        _add_rest(characters[part], form, times[part], good[part])
    made = pl.Series(times).cast(_TIME)
    return made if good.all() else made.to_frame("time").select_seq(pl.when(pl.Series(good)).then(pl.col("time"))).to_series()


def _add_rest(characters: _Octets, form: re.Match[str], times: _Numbers, good: _Flags) -> None:
    """Adds the seconds and their fraction to times, in microseconds; clears the flag of texts that are not of this form."""
    sample = form.group().encode()
    digits = len(form["fraction"] or "")
    rest, fits = _seconds_us(characters, sample, digits if digits <= _TAIL_DIGITS_MAX else 0)
    times += rest
    good &= fits
    for place in range(_TAIL_END, len(sample)):
        if not form.start("fraction") <= place < form.end("fraction"):
            good &= characters[:, place] == sample[place]
    if digits > _TAIL_DIGITS_MAX:
        times += _fraction_us(_words(characters, form.end("fraction") - 8), digits, good)


def _seconds_us(characters: _Octets, sample: bytes, fraction: int) -> tuple[_Numbers, _Flags]:
    """Returns the microseconds after the minute, from texts such as `:59.650Z`, and which texts are good up to `_TAIL_END`: they have
    digits where the sample has digits, and equal the sample elsewhere.

    Parameters
    ----------
    fraction : digits of the fraction to read, at most `_TAIL_DIGITS_MAX`; 0: only the seconds
    """
    place = min(_MINUTE_END, len(sample) - 8)
    tail = sample[_MINUTE_END:_TAIL_END]
    limits = {1: 5, 2: 9} | dict.fromkeys(range(4, 4 + fraction), 9)
    zeros, margins = bytearray(tail.ljust(8, b"\0")), bytearray([0x7F] * 8)
    for at, most in limits.items():
        zeros[at], margins[at] = ord("0"), 0x7F - most
    words = _words(characters, place)
    if place < _MINUTE_END:
        words >>= np.uint64(8 * (_MINUTE_END - place))
    if not fraction and len(tail) > 4:  # digits of a longer fraction are read elsewhere
        kept = np.uint64(2**32 - 1) if tail[3:4] == b"." else np.uint64(2**64 - 1)
        words &= kept
        zeros = bytearray((int.from_bytes(zeros, "little") & int(kept)).to_bytes(8, "little"))
    words ^= np.uint64(int.from_bytes(zeros, "little"))
    good = ((words + np.uint64(int.from_bytes(margins, "little"))) | words) & np.uint64(_HIGH_BITS) == 0
    pairs = words * np.uint64(10)
    words >>= np.uint64(8)
    pairs += words
    octet = np.uint64(0xFF)
    found = (pairs >> np.uint64(8) & octet) * np.uint64(1_000_000)
    if fraction:
        found += (pairs >> np.uint64(32) & octet) * np.uint64(10_000)
    if fraction > 2:
        found += (pairs >> np.uint64(48) & octet) * np.uint64(100)
    return found.view(np.int64), good


def _words(characters: _Octets, place: int) -> _Words:
    """Returns eight characters of each text."""
    rows, width = characters.shape
    return np.ndarray((rows,), "<u8", characters, place, (width,)).astype(np.uint64)


def _minutes_us(characters: _Octets, form: re.Match[str]) -> tuple[_Numbers, _Flags]:
    """Returns the microseconds since 1970 in UTC of date, hour and minute, and which are valid. Adjacent texts that begin alike are parsed
    once."""
    begun, ended = _words(characters, 0), _words(characters, 8)
    changes = np.flatnonzero((begun[1:] != begun[:-1]) | (ended[1:] != ended[:-1])) + 1
    starts = np.concatenate(([0], changes))
    first = characters[starts]
    minutes, good = _days(first, ord(form.group()[10]))
    minutes *= 86_400
    minutes += _clock_s(_words(first, 11) & np.uint64(2**40 - 1) | np.uint64(_NO_SECONDS), good)
    minutes -= _offset_s(form["zone"])
    minutes *= 1_000_000
    lengths = np.diff(starts, append=len(characters))
    return np.repeat(minutes, lengths), np.repeat(good, lengths)


def _days(characters: _Octets, behind: int) -> tuple[_Numbers, _Flags]:
    """Returns days since 1970 of the dates, and which are valid dates followed by the octet `behind`. Equal adjacent dates are parsed
    once."""
    begun, ended = _words(characters, 0), _words(characters, 3)
    changes = np.flatnonzero((begun[1:] != begun[:-1]) | (ended[1:] != ended[:-1])) + 1
    starts = np.concatenate(([0], changes))
    lengths = np.diff(starts, append=len(characters))
    days, good = _days_of(characters[starts, :11], behind)
    if len(starts) == 1:
        return np.full(len(characters), days[0]), np.full(len(characters), good[0])
    return np.repeat(days, lengths), np.repeat(good, lengths)


def _days_of(characters: _Octets, behind: int) -> tuple[_Numbers, _Flags]:
    # An octet below the digit 0 becomes a large one.
    digits = (characters[:, [0, 1, 2, 3, 5, 6, 8, 9]] - np.uint8(ord("0"))).astype(np.int64)
    good = (digits <= 9).all(axis=1) & (characters[:, 10] == behind)
    good &= (characters[:, 4] == ord("-")) & (characters[:, 7] == ord("-"))
    year = digits[:, :4] @ np.array([1000, 100, 10, 1])
    month, day = digits[:, 4] * 10 + digits[:, 5], digits[:, 6] * 10 + digits[:, 7]
    common = (year % 4 != 0) | ((year % 100 == 0) & (year % 400 != 0))
    longest = _MONTH_DAYS[np.where(month <= 12, month, 0)] - (common & (month == 2))
    good &= (year >= 1) & (day >= 1) & (day <= longest)
    # Years that begin in March have their leap day at the end.
    year = year - (month <= 2)
    day_of_year = (153 * ((month + 9) % 12) + 2) // 5 + day - 1
    return year * 365 + year // 4 - year // 100 + year // 400 + day_of_year - _DAYS_BEFORE_1970, good


def _clock_s(words: _Words, good: _Flags) -> _Numbers:
    """Returns the seconds of `HH:MM:SS`; clears the flag of texts that are no time of day."""
    digits = words ^ np.uint64(_CLOCK)
    pairs = digits * np.uint64(10) + (digits >> np.uint64(8))
    octet = np.uint64(0xFF)
    hours = pairs & octet
    good &= (((digits + np.uint64(_CLOCK_MARGINS)) | digits) & np.uint64(_HIGH_BITS) == 0) & (hours <= 23)
    seconds: _Words = hours * np.uint64(3600) + (pairs >> np.uint64(24) & octet) * np.uint64(60) + (pairs >> np.uint64(48) & octet)
    return seconds.view(np.int64)


def _fraction_us(words: _Words, count: int, good: _Flags) -> _Numbers:
    """Returns the microseconds of the last `count` characters; clears the flag of texts that have other characters than digits."""
    shift = np.uint64(8 * (8 - count))
    digits = words >> shift ^ np.uint64(_DIGITS) >> shift
    good &= ((digits + np.uint64(_DIGIT_MARGINS)) | digits) & np.uint64(_HIGH_BITS) == 0
    pairs = digits * np.uint64(10) + (digits >> np.uint64(8)) & np.uint64(0x00FF00FF00FF00FF)
    fours = pairs * np.uint64(100) + (pairs >> np.uint64(16)) & np.uint64(0x0000FFFF0000FFFF)
    eight: _Words = fours * np.uint64(10_000) + (fours >> np.uint64(32)) & np.uint64(0xFFFFFFFF)
    return (eight // np.uint64(100)).view(np.int64)  # characters after the digits count as zeros


def _offset_s(zone: str | None) -> int:
    """Returns the offset of a zone ahead of UTC, in seconds."""
    if zone is None or zone == "Z":
        return 0
    return int(zone[0] + "1") * (int(zone[1:3]) * 3600 + int(zone[4:]) * 60)
