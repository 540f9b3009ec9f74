"""Rows of one kind of event at full speed: a pool of events is generated once, and repeated with shifted ids and times."""

from functools import lru_cache

import polars as pl

from sbon.errors import ConfigError
from sbon_testbed.nexmark.events import AUCTIONS, CYCLE, IDS, TIMES, Events

POOL_EVENTS = 1_000_000
"""Events of the pool, all kinds together."""
_IDS_OF = {"person": 1, "auction": AUCTIONS}
"""Number of new ids in each cycle."""


class Stream:
    """Rows of one kind, by number. A number always gives the same row.

    Parameters
    ----------
    kind : one of KINDS
    events : the sequence whose beginning is the pool
    pool_events : number of events, in whole cycles, after which the sequence repeats
    columns : columns of the kind, in order; None: all

    Raises
    ------
    ConfigError
        `pool_events` is no multiple of a cycle.
    """

    def __init__(self, kind: str, events: Events, pool_events: int = POOL_EVENTS, columns: tuple[str, ...] | None = None) -> None:
        if pool_events < CYCLE or pool_events % CYCLE:
            raise ConfigError(f"a pool of {pool_events} events, expected a multiple of {CYCLE}")
        self.kind = kind
        self._events = events
        self._pool_events = pool_events
        pool = _pool(kind, events, pool_events)
        self._pool = pool if columns is None else pool.select(columns)
        lap_us = round(pool_events * 1_000_000 / events.events_per_s)
        cycles = pool_events // CYCLE
        self._steps = [(name, cycles * _IDS_OF[of]) for name, of in IDS[kind].items() if name in self._pool.columns]
        self._lap = pl.duration(microseconds=lap_us)
        self._times = [name for name in TIMES[kind] if name in self._pool.columns]

    def total(self, events: int) -> int:
        """Returns how many of the first `events` events are of this kind."""
        return len(self._events.numbers(self.kind, 0, events % CYCLE)) + events // CYCLE * self._per_cycle

    def rows(self, first: int, count: int) -> pl.DataFrame:
        """Returns rows from number `first` on, `count` or fewer, up to the end of the pool's lap."""
        lap, at = divmod(first, self._pool.height)
        frame = self._pool.slice(at, count)
        if lap == 0:
            return frame
        moved = [pl.col(name) + lap * step for name, step in self._steps]
        return frame.with_columns(*moved, *(pl.col(name) + lap * self._lap for name in self._times))

    def all_rows(self, events: int) -> pl.DataFrame:
        """Returns the rows of this kind among the first `events` events."""
        total, found = self.total(events), [self._pool.clear()]
        first = 0
        while first < total:
            found.append(self.rows(first, total - first))
            first += found[-1].height
        return pl.concat(found)

    @property
    def _per_cycle(self) -> int:
        return self._pool.height // (self._pool_events // CYCLE)


@lru_cache(maxsize=len(IDS))
def _pool(kind: str, events: Events, pool_events: int) -> pl.DataFrame:
    """Returns the pool; it is cached, so that a second query over the same events starts immediately."""
    return events.table(kind, 0, pool_events)
