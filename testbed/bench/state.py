"""`sbon bench state`: how many rows a second a store of keyed states processes when most states are on disk.

First every key is counted once, in random order, so that all keys have a state. Then come batches of rows whose keys follow Zipf's law with
exponent 1, and each row raises its key's count. A share of the states (a tenth by default) is in memory. The stores are sbon's sorted runs,
and the same store with LMDB or RocksDB on disk, if these packages are installed (`lmdb`, `rocksdict`). Each store runs in its own process.
Rates are by the processor time of all its threads; memory is the growth since before the first key. Files are in the page cache, so the
time of disk reads and writes is not included.
"""

import abc
import ctypes
import gc
import os
import resource
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from importlib.util import find_spec
from multiprocessing import get_context
from pathlib import Path
from time import perf_counter, process_time
from typing import Any

import numpy as np
import polars as pl

from sbon.cli import tables
from sbon.cli.output import count, number, print_table
from sbon.errors import UsageError
from sbon.state.ids import Places, Words, grouped, identities
from sbon.state.room import StateRoom
from sbon.state.runs import Run
from sbon.state.store import States
from sbon_agent.disk import FolderDisk
from sbon_testbed.leftovers import run_directory

STORES = {"runs": "", "lmdb": "lmdb", "rocksdb": "rocksdict", "memory": ""}
"""Stores, each with the package that it needs; empty: none."""
AIM_ROWS_PER_S = 500_000.0
LOAD_ROWS = 65_536


def measure(
    keys: int, share: float, rows: int, batch_rows: int, kind: str, stores: list[str], tell: Callable[[str], None], folder: str = ""
) -> dict[str, Any]:
    """Returns the figures of each store.

    Parameters
    ----------
    share : approximate share of the states that memory holds
    kind : type of the keys: int or text

    Raises
    ------
    UsageError
        The memory cannot hold the states of one batch.
    """
    _check_batch(keys, share, batch_rows, kind)
    result: dict[str, Any] = {
        "keys": keys,
        "share": share,
        "rows": rows,
        "batch_rows": batch_rows,
        "key": kind,
        "aim_rows_per_s": AIM_ROWS_PER_S,
    }
    result["stores"] = {}
    for store in stores:
        package = STORES[store]
        if package and find_spec(package) is None:
            tell(f"{store}: not measured, the package {package} is not installed")
            continue
        tell(f"{store}: {keys:,} keys, {rows:,} rows")
        with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
            result["stores"][store] = pool.submit(_timed, store, keys, share, rows, batch_rows, kind, folder).result()
    return result


def show(result: dict[str, Any]) -> None:
    """Prints a line for each store."""
    lines = [
        [
            name,
            count(one["load_rows_per_s"]),
            count(one["rows_per_s"]),
            number(one["missed"]),
            number(one["memory_mb"]),
            number(one["budget_mb"]),
            number(one["disk_mb"]),
            number(one["slowest_batch_ms"]),
        ]
        for name, one in result["stores"].items()
    ]
    titles = ("new keys/s", "rows/s", "missed", "MB", "budget", "disk MB", "slowest ms")
    columns = (tables.Column("store"), *(tables.Column(title, right=True) for title in titles))
    print_table(columns, lines, title=f"{result['keys']:,} keys, {result['share']:g} in memory; by a core second")


def _check_batch(keys: int, share: float, batch_rows: int, kind: str) -> None:
    columns: dict[str, pl.DataType] = {"key": pl.String() if kind == "text" else pl.Int64()}
    most = int(share * keys * _entry_bytes(kind) / States(columns, {"seen": pl.Int64()}).entry_bytes)
    if batch_rows > most:
        raise UsageError(
            f"--batch {batch_rows}: memory for {share:g} of {keys:,} states cannot hold a state for each row; "
            f"give --batch {most} or less, or more --keys or a larger --share"
        )


def _timed(store: str, keys: int, share: float, rows: int, batch_rows: int, kind: str, folder: str) -> dict[str, float]:
    """Measures one store."""
    rng = np.random.default_rng(1)
    order = rng.permutation(keys)
    weights = np.cumsum(1 / np.arange(1, keys + 1))
    drawn = order[np.searchsorted(weights, weights[-1] * rng.random(rows))].astype(np.int32)
    del weights
    order = rng.permutation(order).astype(np.int32)
    with run_directory(folder) as place:
        disk = FolderDisk(place)
        columns, state = {"key": pl.String() if kind == "text" else pl.Int64()}, {"seen": pl.Int64()}
        budget = round(share * keys * _entry_bytes(kind))
        room = None if store == "memory" else StateRoom(disk, budget, budget, 2**50, batch_rows)
        states: States = {"lmdb": _Lmdb, "rocksdb": _Rocks}.get(store, States)(columns, state, room)
        if isinstance(states, _Lmdb | _Rocks):
            states.open(str(place))
        give_back()
        before_mb, peak_mb, slowest_ms = memory_mb(), 0.0, 0.0
        began = process_time()
        for batch in _batches(order, min(LOAD_ROWS, max(batch_rows, 1)), kind):
            _count(states, batch)
            peak_mb = max(peak_mb, memory_mb())
        load_s, missed, began, wall = process_time() - began, 0, process_time(), perf_counter()
        for batch in _batches(drawn, batch_rows, kind):
            at = process_time()
            missed += _count(states, batch)
            slowest_ms = max(slowest_ms, 1e3 * (process_time() - at))
            peak_mb = max(peak_mb, memory_mb())
        took_s, wall_s = process_time() - began, perf_counter() - wall
        return {
            "load_rows_per_s": round(keys / load_s),
            "rows_per_s": round(rows / took_s),
            "rows_per_s_by_the_clock": round(rows / wall_s),
            "missed": round(missed / rows, 4),
            "in_memory": states.in_memory,
            "memory_mb": round(peak_mb - before_mb, 1),
            "budget_mb": round(budget / 1e6, 1),
            "disk_mb": round(sum(path.stat().st_size for path in place.rglob("*") if path.is_file()) / 1e6, 1),
            "slowest_batch_ms": round(slowest_ms, 1),
            "read_blocks": resource.getrusage(resource.RUSAGE_SELF).ru_inblock,
        }


def _entry_bytes(kind: str) -> float:
    """Returns the bytes that a state takes in memory."""
    columns = {"key": pl.String() if kind == "text" else pl.Int64()}
    states = States(columns, {"seen": pl.Int64()})
    for batch in _batches(np.arange(200_000, dtype=np.int32), 100_000, kind):
        _count(states, batch)
    return states.entry_bytes


def _batches(values: "np.typing.NDArray[np.integer[Any]]", rows: int, kind: str) -> Iterator[pl.Series]:
    for start in range(0, len(values), rows):
        yield key_column(values[start : start + rows], kind)


def key_column(values: "np.typing.NDArray[np.integer[Any]]", kind: str) -> pl.Series:
    """Returns keys of a kind, int or text, as the column `key`."""
    keys = pl.Series("key", values.astype(np.int64))
    return pl.select(pl.lit("user-") + keys.cast(pl.String).str.zfill(8)).to_series().alias("key") if kind == "text" else keys


def _count(states: States, keys: pl.Series) -> int:
    """Counts the rows of each key; returns the rows whose keys were not in memory."""
    found = grouped(identities([keys]))
    each = keys.to_frame()[found.first]
    held = states.held(found.ids)
    at = states.places(each, found.ids, found.rows)
    new = np.flatnonzero(at < 0)
    if new.size:
        at[new] = states.add(each[new], found.ids[new], pl.DataFrame({"seen": np.zeros(new.size, np.int64)}))
    states.put(at, pl.DataFrame({"seen": states.at(at)["seen"].to_numpy() + found.rows}))
    return int(found.rows[~held].sum())


def give_back() -> None:
    """Returns freed memory to the system; otherwise states that reuse it would not count."""
    gc.collect()
    with suppress(AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


def memory_mb() -> float:
    """Returns the memory of this process in MB, without mapped files."""
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024 / 1e6
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6


class _Foreign(States, abc.ABC):
    """States whose cold part is in a foreign store; its keys are the sixteen bytes of the identity."""

    _merge_rows = 0

    def open(self, folder: str) -> None:
        """Opens the store."""

    def _written(self, places: Places) -> Run:
        words = self._hot.words[places]
        ids = words[:, [1, 0]].byteswap()
        values = np.ascontiguousarray(words[:, 2:])
        size = values.shape[1] * 8
        keys, rest = ids.tobytes(), values.tobytes()
        order = np.lexsort((words[:, 0], words[:, 1]))
        texts = self._hot.rows(places)["key"].cast(pl.String).to_list()
        self._put([(keys[16 * at : 16 * at + 16], rest[size * at : size * at + size] + texts[at].encode()) for at in order.tolist()])
        assert self._room is not None
        return Run(self._room, "none", self._width, 1)

    def _read(self, ids: Words) -> tuple[Places, Words, pl.DataFrame | None] | None:
        order = np.lexsort((ids[:, 0], ids[:, 1]))
        keys = ids[order][:, [1, 0]].byteswap().tobytes()
        found = self._get([keys[at : at + 16] for at in range(0, len(keys), 16)])
        there = [at for at, value in enumerate(found) if value is not None]
        if not there:
            return None
        size = 8 * (self._width - 2)
        rest = np.frombuffer(b"".join([value[:size] for value in found if value is not None]), np.uint64).reshape(len(there), -1)
        place = order[there]
        return place, np.hstack([ids[place], rest]), None

    def _work(self) -> None:
        del self._runs[1:]

    @abc.abstractmethod
    def _put(self, items: list[tuple[bytes, bytes]]) -> None:
        """Writes states by their keys."""

    @abc.abstractmethod
    def _get(self, keys: list[bytes]) -> list[bytes | None]:
        """Returns the state of each key; None if the store does not have the key."""


class _Lmdb(_Foreign):
    def open(self, folder: str) -> None:
        """Opens the store."""
        import lmdb

        self._store = lmdb.open(folder, map_size=2**36, sync=False, metasync=False, readahead=False, lock=False)

    def _put(self, items: list[tuple[bytes, bytes]]) -> None:
        with self._store.begin(write=True) as transaction, transaction.cursor() as cursor:
            cursor.putmulti(items)

    def _get(self, keys: list[bytes]) -> list[bytes | None]:
        with self._store.begin() as transaction, transaction.cursor() as cursor:
            found = dict(cursor.getmulti(keys))
        return [found.get(key) for key in keys]


class _Rocks(_Foreign):
    def open(self, folder: str) -> None:
        """Opens the store."""
        import rocksdict

        options = rocksdict.Options(raw_mode=True)
        options.set_write_buffer_size(16 * 2**20)
        table = rocksdict.BlockBasedOptions()
        table.set_bloom_filter(12, False)
        table.set_block_cache(rocksdict.Cache(16 * 2**20))
        options.set_block_based_table_factory(table)
        with suppress(AttributeError):
            options.increase_parallelism(os.cpu_count() or 1)
        self._store, self._batch = rocksdict.Rdict(folder, options), rocksdict.WriteBatch

    def _put(self, items: list[tuple[bytes, bytes]]) -> None:
        batch = self._batch(raw_mode=True)
        for key, value in items:
            batch.put(key, value)
        self._store.write(batch)

    def _get(self, keys: list[bytes]) -> list[bytes | None]:
        found: list[bytes | None] = self._store.get(keys)
        return found
