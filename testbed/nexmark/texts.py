"""Texts of the auction house: names, places, channels and padding, as tables indexed by number."""

from functools import cache
from itertools import product
from typing import NamedTuple

import numpy as np
import polars as pl

from sbon.connectors.fields import Index
from sbon_testbed.nexmark.chance import uniform

FIRST_NAMES = ("Ada", "Bela", "Chen", "Dora", "Emil", "Fatma", "Goran", "Hana", "Ines", "Jun", "Kofi")
LAST_NAMES = ("Adler", "Brook", "Castro", "Dahl", "Ember", "Frost", "Glass", "Hale", "Iris")
PLACES = (
    ("Phoenix", "AZ"),
    ("Los Angeles", "CA"),
    ("San Francisco", "CA"),
    ("Boise", "ID"),
    ("Portland", "OR"),
    ("Bend", "OR"),
    ("Redmond", "WA"),
    ("Seattle", "WA"),
    ("Kent", "WA"),
    ("Cheyenne", "WY"),
)
HOT_CHANNELS = ("Search", "Social", "Portal", "Store")
CHANNELS = 10_000
"""Number of channels besides the hot ones."""
PADDINGS = 4_096
"""Number of different texts of each kind of padding."""

_LETTERS = np.frombuffer(b"abcdefghijklmnopqrstuvwxyz ", dtype=np.uint8)


class Places(NamedTuple):
    """City and state by number."""

    cities: pl.Series
    states: pl.Series


class Channels(NamedTuple):
    """Name and address of each channel by number; hot channels come first."""

    names: pl.Series
    urls: pl.Series


@cache
def people() -> pl.Series:
    """Returns full names."""
    return pl.Series([f"{first} {last}" for first, last in product(FIRST_NAMES, LAST_NAMES)])


@cache
def emails() -> pl.Series:
    """Returns one address for each of `people`."""
    return pl.Series([f"{name.lower().replace(' ', '.')}@example.org" for name in people().to_list()])


@cache
def places() -> Places:
    """Returns the places where people live."""
    cities, states = zip(*PLACES, strict=True)
    return Places(pl.Series(cities), pl.Series(states))


@cache
def channels() -> Channels:
    """Returns the channels of bids."""
    hot = [f"https://www.example.org/{name.lower()}/item.htm?query=1" for name in HOT_CHANNELS]
    cold = [f"https://www.example.org/{number * 7919 % 104_729:06}/item.htm?query=1&channel_id={number}" for number in range(CHANNELS)]
    return Channels(pl.Series([*HOT_CHANNELS, *(f"channel-{number}" for number in range(CHANNELS))]), pl.Series([*hot, *cold]))


@cache
def paddings(mean: int) -> pl.Series:
    """Returns texts of random letters, with `mean` characters, plus or minus a fifth."""
    numbers = np.arange(PADDINGS, dtype=np.int64)
    lengths = (mean * (0.8 + 0.4 * uniform(mean, "length", numbers))).astype(np.int64)
    made = []
    for number, length in enumerate(lengths):
        positions: Index = np.arange(int(length), dtype=np.int64) + number * 4 * mean
        made.append(_LETTERS[(uniform(mean, "letters", positions) * len(_LETTERS)).astype(np.int64)].tobytes().decode())
    return pl.Series(made, dtype=pl.String)


def pick(texts: pl.Series, chance: "np.ndarray[tuple[int], np.dtype[np.float64]]") -> pl.Series:
    """Picks a text for each number x with 0 <= x < 1."""
    return texts.gather((chance * len(texts)).astype(np.int64))
