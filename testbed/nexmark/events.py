"""Generates the events of an auction house: 1 person, then 3 auctions, then 46 bids, over and over. Event i depends only on the seed and i.

Events refer to recent ids: a bid goes to one of the last hundred auctions or, every second time, to the current hot auction; a seller or
bidder is one of the last thousand persons or, three times in four, the current hot person. A few events refer to ids that come shortly
after them. Event times rise by the same step from event to event.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl

from sbon.connectors.fields import Index
from sbon.schema import ColumnType, Field, Schema
from sbon.types import FloatArray
from sbon_testbed.nexmark import texts
from sbon_testbed.nexmark.chance import uniform

CYCLE = 50
"""Events of a cycle: one person, AUCTIONS auctions, and bids."""
AUCTIONS = 3
KINDS = ("person", "auction", "bid")
START_US = 1_767_225_600_000_000
"""Event time of the first event: 2026-01-01 00:00 UTC."""

_ID_FIRST = 1_000
_CATEGORY_FIRST, _CATEGORIES = 10, 5
_HOT_SPAN = 100
"""Number of auctions or persons after which the hot auction, seller and bidder change."""
_ACTIVE_PERSONS, _ACTIVE_AUCTIONS = 1_000, 100
_LEAD = 10
"""Number of ids that do not exist yet but may be referred to."""
_PERSON_EXTRA, _AUCTION_EXTRA, _BID_EXTRA = 90, 320, 68
"""Mean length of the padding, for about 200, 500 and 100 bytes an event (a bid's channel and address come on top)."""

_INT, _TEXT, _TIME = ColumnType.INT, ColumnType.TEXT, ColumnType.TIME


def _schema(**columns: ColumnType) -> Schema:
    return tuple(Field(name, type_) for name, type_ in columns.items())


SCHEMAS: dict[str, Schema] = {
    "person": _schema(id=_INT, name=_TEXT, email=_TEXT, credit_card=_TEXT, city=_TEXT, state=_TEXT, ts=_TIME, extra=_TEXT),
    "auction": _schema(
        id=_INT,
        item_name=_TEXT,
        description=_TEXT,
        initial_bid=_INT,
        reserve=_INT,
        ts=_TIME,
        expires=_TIME,
        seller=_INT,
        category=_INT,
        extra=_TEXT,
    ),
    "bid": _schema(auction=_INT, bidder=_INT, price=_INT, channel=_TEXT, url=_TEXT, ts=_TIME, extra=_TEXT),
}
"""Columns of each kind, in order."""
IDS = {"person": {"id": "person"}, "auction": {"id": "auction", "seller": "person"}, "bid": {"auction": "auction", "bidder": "person"}}
"""Columns that hold ids, and the kind of the ids."""
TIMES = {"person": ("ts",), "auction": ("ts", "expires"), "bid": ("ts",)}


@dataclass(frozen=True)
class Events:
    """The endless sequence of events of one seed."""

    seed: int = 0
    events_per_s: int = 100_000
    """Events per second of event time, all kinds together."""

    def numbers(self, kind: str, first: int, last: int) -> Index:
        """Returns the numbers of the events of a kind from `first` to below `last`."""
        every: Index = np.arange(first, last, dtype=np.int64)
        place = every % CYCLE
        chosen = {"person": place == 0, "auction": (place > 0) & (place <= AUCTIONS), "bid": place > AUCTIONS}[kind]
        numbers: Index = every[chosen]
        return numbers

    def table(self, kind: str, first: int, last: int) -> pl.DataFrame:
        """Returns the events of a kind from event `first` to below event `last`, in the columns of SCHEMAS."""
        make: Callable[[Index], dict[str, Any]] = {"person": self._persons, "auction": self._auctions, "bid": self._bids}[kind]
        columns = make(self.numbers(kind, first, last))
        frame = pl.DataFrame([pl.Series(field.name, columns[field.name]) for field in SCHEMAS[kind]])
        return frame.with_columns(pl.col(TIMES[kind]).cast(pl.Datetime("us")))

    def time_us(self, number: Index) -> Index:
        """Returns event times."""
        return START_US + number * 1_000_000 // self.events_per_s

    def _persons(self, number: Index) -> dict[str, Any]:
        who = self._chance("who", number)
        place = (self._chance("place", number) * len(texts.PLACES)).astype(np.int64)
        card = (self._chance("card", number) * 10**15).astype(np.int64)
        return {
            "id": _ID_FIRST + number // CYCLE,
            "name": texts.pick(texts.people(), who),
            "email": texts.pick(texts.emails(), who),
            "credit_card": pl.Series(card).cast(pl.String).str.zfill(16),
            "city": texts.places().cities.gather(place),
            "state": texts.places().states.gather(place),
            "ts": self.time_us(number),
            "extra": texts.pick(texts.paddings(_PERSON_EXTRA), self._chance("extra", number)),
        }

    def _auctions(self, number: Index) -> dict[str, Any]:
        initial = self._price("initial", number)
        at = self.time_us(number)
        open_us = CYCLE * _ACTIVE_AUCTIONS // AUCTIONS * 1_000_000 / self.events_per_s
        return {
            "id": _ID_FIRST + _last_auction(number),
            "item_name": texts.pick(texts.paddings(20), self._chance("item", number)),
            "description": texts.pick(texts.paddings(100), self._chance("description", number)),
            "initial_bid": initial,
            "reserve": initial + self._price("reserve", number),
            "ts": at,
            "expires": at + 1 + np.floor(2 * open_us * self._chance("length", number)).astype(np.int64),
            "seller": self._person("seller", number, 0),
            "category": _CATEGORY_FIRST + (self._chance("category", number) * _CATEGORIES).astype(np.int64),
            "extra": texts.pick(texts.paddings(_AUCTION_EXTRA), self._chance("extra", number)),
        }

    def _bids(self, number: Index) -> dict[str, Any]:
        last = _last_auction(number)
        oldest = np.maximum(last - _ACTIVE_AUCTIONS, 0)
        recent = oldest + np.floor(self._chance("auction", number) * (last - oldest + 1 + _LEAD)).astype(np.int64)
        hot = self._chance("hot auction", number) < 1 / 2
        hot_channel = self._chance("hot channel", number) < 1 / 2
        some = self._chance("channel", number)
        count = len(texts.HOT_CHANNELS)
        channel = np.where(hot_channel, some * count, count + some * texts.CHANNELS).astype(np.int64)
        return {
            "auction": _ID_FIRST + np.where(hot, last // _HOT_SPAN * _HOT_SPAN, recent),
            "bidder": self._person("bidder", number, 1),
            "price": self._price("price", number),
            "channel": texts.channels().names.gather(channel),
            "url": texts.channels().urls.gather(channel),
            "ts": self.time_us(number),
            "extra": texts.pick(texts.paddings(_BID_EXTRA), self._chance("extra", number)),
        }

    def _person(self, role: str, number: Index, hot_offset: int) -> Index:
        """Returns ids of persons: the hot one, or some other active one."""
        last = number // CYCLE
        active = np.minimum(last, _ACTIVE_PERSONS)
        recent = last - active + np.floor(self._chance(role, number) * (active + _LEAD)).astype(np.int64)
        hot = self._chance(f"hot {role}", number) < 3 / 4
        chosen: Index = _ID_FIRST + np.where(hot, last // _HOT_SPAN * _HOT_SPAN + hot_offset, recent)
        return chosen

    def _price(self, purpose: str, number: Index) -> Index:
        """Returns prices in cents, from 1 to a million units of the currency; each order of magnitude is equally frequent."""
        return np.round(10.0 ** (6 * self._chance(purpose, number)) * 100).astype(np.int64)

    def _chance(self, purpose: str, number: Index) -> FloatArray:
        return uniform(self.seed, purpose, number)


def _last_auction(number: Index) -> Index:
    """Returns the latest auction up to each event, counted from 0; 0 before the first."""
    place = number % CYCLE
    last: Index = number // CYCLE * AUCTIONS + np.clip(place, 0, AUCTIONS) - 1
    return np.maximum(last, 0)
