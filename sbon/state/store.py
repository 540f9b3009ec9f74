"""States of keys, one row each: the most used states in memory, the others in sorted runs on disk (`sbon.state.runs`).

A batch asks for the states of all its keys at once. States on disk are read into memory, because they are about to change. When the memory
is full, an eighth of its states, or as many as the batch needs, go to disk: those used least. Counts of uses are halved from time to time.
A state that comes back keeps its count, so that only a key that is used often displaces others.

No state changes before everything that a batch needs has been written and read, so a failed batch can be repeated.
"""

import copy
from collections.abc import Iterator, Mapping
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import polars as pl

from sbon.errors import StateError, StateFullError
from sbon.state.hot import Hot
from sbon.state.ids import Places, Words, grouped, identities, sorted_by_id
from sbon.state.room import StateRoom, check_batch, to_merge
from sbon.state.runs import ID_WORDS, USES, Entries, Merge, Run, Writing, joined, ranges

EVICTED_SHARE = 8
"""1/8 of the states in memory go to disk at once. Smaller parts: more and smaller runs. Larger parts: fewer states stay in memory."""
COPIES_SHARE = 8
"""1/8 of the memory is for blocks that are read, rows that are merged, and freed memory that the process keeps."""
MERGE_SHARE = 12
"""Rows merged for each state that goes to disk, while there are runs to merge."""
USES_REMEMBERED = 8
"""All counts of uses are halved after this many uses for each state in memory. Fewer: new hot keys come in sooner. More: rare keys are
distinguished better."""
WRITTEN_ROWS = 8192
"""States written in one step when some leave. More: fewer writes, more memory for copies."""
_NEVER = -(2**63)
_PIECE_ROWS = 65_536
_USES_MAX = 2**32 - 1
_USES_TOLD = 1023
"""Higher counts of uses count as equal when the least used states are chosen."""

Values = npt.NDArray[Any]


class States:
    """States of keys.

    Parameters
    ----------
    keys, states : columns and their polars types
    room : memory and disk; None: everything is in memory
    time : column of the key, or number of the state, that gives the time when a state ends; empty: states do not end. A number may grow.

    Raises
    ------
    StateError
        The memory cannot hold the states of one batch.
    """

    def __init__(
        self, keys: Mapping[str, pl.DataType], states: Mapping[str, pl.DataType], room: StateRoom | None = None, time: str = ""
    ) -> None:
        self._keys, self._schema, self._room, self._time = dict(keys), dict(states), room, time
        self._ended_us = _NEVER
        self._over = False
        """True if the memory holds too many states, because they could not be written to disk."""
        self._numbers = [name for name, dtype in states.items() if dtype != pl.String]
        self._texts = [name for name, dtype in states.items() if dtype == pl.String]
        self._width = ID_WORDS + 1 + len(self._numbers)
        self._word_of = {name: word for word, name in enumerate(self._numbers, USES + 1)}
        self._runs: list[Run] = []
        self._merge: Merge | None = None
        self._merge_rows = 0
        self._uses = 0
        """Uses since the counts were last halved."""
        self._count = 0
        self._hot = Hot(keys, self._texts, self._width)
        if room is not None:
            room.users.add(self)
            check_batch(room, room.batch_rows, self._hot.entry_bytes)

    def __len__(self) -> int:
        """Returns the number of states; after `forget`, possibly more than there are."""
        return self._count

    @property
    def uses_disk(self) -> bool:
        """Tells whether some states are on disk."""
        return bool(self._runs)

    @property
    def entry_bytes(self) -> float:
        """Returns the average bytes of a state in memory, with its share of all arrays."""
        return self._hot.entry_bytes

    @property
    def in_memory(self) -> int:
        """Returns the number of states in memory."""
        return self._hot.held

    def held(self, ids: Words) -> npt.NDArray[np.bool_]:
        """Tells which states are in memory, (n,)."""
        return self._hot.places(ids) >= 0

    def on_disk(self, ids: Words) -> npt.NDArray[np.bool_]:
        """Tells which states must be read from disk, (n,), without reading. True also for a few keys without a state."""
        found = np.zeros(len(ids), np.bool_)
        if self._runs:
            away = np.flatnonzero(self._hot.places(ids) < 0)
            for run in self._runs:
                found[away] |= run.may_have(ids[away])
        return found

    def places(self, keys: pl.DataFrame, ids: Words, uses: Places | None = None, *, may_exceed: bool = False) -> Places:
        """Returns the place of the state of each key, (n,); -1 if it has none. Places are valid until the next call.

        Parameters
        ----------
        keys : (n,)
            Distinct keys.
        ids : (n, 2)
            Identities of the keys.
        uses : (n,)
            Number of uses of each key in this batch; None: one.
        may_exceed
            If the disk takes no more states, exceed the memory limit until `make_room`.

        Raises
        ------
        StateFullError
            The disk takes no more states, and `may_exceed` is False. Nothing has changed.
        StateError
            States cannot be read back.
        """
        found = self._hot.places(ids)
        missing = np.flatnonzero(found < 0)
        if missing.size and not (may_exceed and self._over) and self._make_room(ids, found, missing.size, may_exceed=may_exceed):
            found = self._hot.places(ids)
            missing = np.flatnonzero(found < 0)
        if missing.size and self._runs:
            read = self._read(ids[missing])
            if read is not None:
                there, words, texts = read
                place = missing[there]
                own = keys[place].select_seq(list(self._keys))
                found[place] = self._hot.append(words, own if texts is None else own.hstack(texts.select_seq(self._texts).get_columns()))
            self._work()
        at = found[found >= 0]
        more = np.ones(at.size, np.uint64) if uses is None else uses[found >= 0].astype(np.uint64)
        words = self._hot.words
        words[at, USES] = np.minimum(words[at, USES] + more, np.uint64(_USES_MAX))
        self._uses += int(more.sum())
        return found

    def add(self, keys: pl.DataFrame, ids: Words, states: pl.DataFrame) -> Places:
        """Adds states of keys for which the last call of `places` found none; returns their places."""
        words = np.empty((keys.height, self._width), np.uint64)
        words[:, :ID_WORDS], words[:, USES] = ids, 1
        for number, name in enumerate(self._numbers, USES + 1):
            words[:, number] = _as_words(states[name])
        self._count += keys.height
        own = keys.select_seq(list(self._keys))
        return self._hot.append(words, own.hstack(states.select_seq(self._texts).get_columns()) if self._texts else own)

    def put(self, places: Places, states: pl.DataFrame) -> None:
        """Replaces the states at these places."""
        for number, name in enumerate(self._numbers, USES + 1):
            self._hot.words[places, number] = _as_words(states[name])
        for name in self._texts:
            self._hot.columns[name][places] = np.array(states[name].to_list(), dtype=object)

    def at(self, places: Places) -> pl.DataFrame:
        """Returns the states at these places."""
        words = self._hot.words[places]
        texts = {name: self._hot.columns[name][places] for name in self._texts}
        return pl.DataFrame([self._column(name, words, texts) for name in self._schema])

    def pieces(self) -> Iterator[pl.DataFrame]:
        """Yields all keys with their states, in pieces, in the order of their identities.

        Raises
        ------
        StateError
            States on disk cannot be read.
        """
        held = self._hot.entries().in_order()
        firsts = np.ascontiguousarray(held.words[:, 0])
        if not self._runs:
            for start in range(0, len(firsts), _PIECE_ROWS):
                yield self._frame(held.taken(np.arange(start, min(len(firsts), start + _PIECE_ROWS))))
            return
        for low, high in ranges(self._runs, _PIECE_ROWS):
            begin = int(np.searchsorted(firsts, np.uint64(low), "left"))
            end = len(firsts) if high is None else int(np.searchsorted(firsts, np.uint64(high), "left"))
            parts = [held.taken(np.arange(begin, end)), *(run.between(low, high) for run in self._runs)]
            whole = joined(parts).in_order()
            alive = self._alive(whole)
            if alive.size:
                yield self._frame(whole if alive.size == len(whole.words) else whole.taken(alive))

    def all(self) -> pl.DataFrame:
        """Returns all keys with their states, in the order of their identities."""
        pieces = list(self.pieces())
        return pl.concat(pieces) if pieces else pl.DataFrame(schema={**self._keys, **self._schema})

    def take(self, rows: pl.DataFrame) -> None:
        """Adds new keys with their states.

        Raises
        ------
        StateError, StateFullError
            A key is there already, or as for `places`.
        """
        step = self._room.batch_rows if self._room is not None else max(1, rows.height)
        for start in range(0, rows.height, step):
            part = rows[start : start + step]
            ids = identities([part[name] for name in self._keys])
            if len(grouped(ids).first) < part.height or (self.places(part, ids) >= 0).any():
                raise StateError("cannot add states: a key is there twice")
            self.add(part, ids, part)

    def ended(self, until_us: int) -> pl.DataFrame:
        """Returns the states whose time is `until_us` or earlier, with their keys, and forgets them. Writes nothing to disk.

        Raises
        ------
        StateError
            States on disk cannot be read.
        """
        pieces = [piece.filter(piece[self._time].to_physical() <= until_us) for piece in self.pieces()]
        gone = pl.concat(pieces) if pieces else self.all()
        self._count -= gone.height
        self.forget(until_us)
        return gone

    def forget(self, until_us: int) -> None:
        """Forgets states whose time is `until_us` or earlier, without reading them. Some stay on disk for a while."""
        self._ended_us = max(self._ended_us, until_us)
        hot = self._hot
        keys = hot.rows(np.arange(0 if self._time in self._word_of else hot.held))
        staying = _times(Entries(hot.words[: hot.held], keys), self._time, self._word_of) > self._ended_us
        if not staying.all():
            hot.retain(staying)
        over = [run for run in self._runs if run.last_us <= self._ended_us]
        if self._merge is not None and any(run in over for run in self._merge.runs):
            self._merge = None
        self._runs = [run for run in self._runs if run not in over]
        self._count = min(self._count, hot.held + sum(run.rows for run in self._runs))

    def make_room(self) -> None:
        """Moves states beyond the memory limit to disk, after `places` with `may_exceed`.

        Raises
        ------
        StateFullError
            The disk takes no more states.
        """
        if self._over:
            self._make_room(np.empty((0, ID_WORDS), np.uint64), np.empty(0, np.int64), 0)

    def fork(self) -> Self:
        """Returns a copy: states in memory are copied, those on disk are shared until they are merged."""
        forked = copy.copy(self)
        forked._hot, forked._runs, forked._merge = self._hot.copy(), list(self._runs), None
        return forked

    # -------------------------------------------------------------------------------------------------------- disk

    def _make_room(self, ids: Words, found: Places, more: int, *, may_exceed: bool = False) -> bool:
        """Moves states to disk if the memory cannot hold `more` states more. Returns True if it has moved some."""
        if self._room is None:
            return False
        free = self._room.memory_bytes * (1 - 1 / COPIES_SHARE) - sum(run.memory_bytes for run in self._runs)
        free -= self._merge.memory_bytes if self._merge is not None else 0
        most = max(int(max(free, self._room.memory_bytes / 2) / self._hot.entry_bytes), len(ids))
        hot = self._hot
        if hot.held + more <= most:
            self._over = False
            return False
        check_batch(self._room, len(ids), hot.entry_bytes)
        count = min(hot.held, max(hot.held + more - most, hot.held // EVICTED_SHARE))
        uses = np.minimum(hot.words[: hot.held, USES], _USES_TOLD, dtype=np.uint64, casting="unsafe", out=np.empty(hot.held, np.uint16))
        uses[found[found >= 0]] = _USES_TOLD + 1  # states of this batch leave last
        leaving = _least(uses, count)
        try:
            self._runs.insert(0, self._written(np.flatnonzero(leaving)))
        except StateFullError:
            self._over = True
            if may_exceed:
                return False
            raise
        self._over = False
        self._merge_rows += MERGE_SHARE * count
        if self._uses > USES_REMEMBERED * hot.held:
            hot.words[: hot.held, USES] >>= np.uint64(1)
            self._uses = 0
        hot.retain(~leaving)
        return True

    def _alive(self, entries: Entries) -> Places:
        """Returns the rows whose time has not ended."""
        if not self._time or self._ended_us == _NEVER:
            return np.arange(len(entries.words))
        return np.flatnonzero(_times(entries, self._time, self._word_of) > self._ended_us)

    def _written(self, places: Places) -> Run:
        """Writes states to disk in steps. `places` must ascend."""
        assert self._room is not None
        hot, why = self._hot, ""
        order, rows = sorted_by_id(hot.words[places, :ID_WORDS]), hot.rows(places)
        last_us = _NEVER
        try:
            writing = Writing(self._room, self._width, has_texts=bool(self._texts), rows=places.size)
            for start in range(0, places.size, WRITTEN_ROWS):
                part = order[start : start + WRITTEN_ROWS]
                leaving = Entries(hot.words[places[part]], rows[part])
                writing.add(leaving)
                last_us = max(last_us, int(_times(leaving, self._time, self._word_of).max())) if self._time else 0
            run = writing.finished()
            run.last_us = last_us
            return run
        except OSError as problem:
            why = f"states cannot be written to disk: {problem.strerror or problem}"
        raise StateFullError(why)  # outside the handler, so that no traceback keeps the written data alive

    def _read(self, ids: Words) -> tuple[Places, Words, pl.DataFrame | None] | None:
        """Reads states from disk, each from the newest run that has it."""
        order = np.argsort(ids[:, 0])
        found = []
        for run in self._runs:
            there, words, texts = run.find(ids[order])
            if there.size:
                found.append((order[there], words, texts))
                order = np.delete(order, there)
        if not found:
            return None
        texts = pl.concat([one[2] for one in found if one[2] is not None]) if self._texts else None
        return np.concatenate([one[0] for one in found]), np.concatenate([one[1] for one in found]), texts

    def _work(self) -> None:
        """Merges as many rows as are due. If the disk is full, merging is tried again after more states have gone to disk."""
        while self._merge_rows > 0:
            if self._merge is None:
                size = to_merge([run.rows for run in self._runs])
                if size < 2 or self._room is None:
                    self._merge_rows = 0
                    return
                self._merge = Merge(self._runs[:size], self._room, self._width, has_texts=bool(self._texts))
            try:
                done = self._merge.step(self._alive)
            except OSError:
                self._merge, self._merge_rows = None, 0
                return
            if isinstance(done, int):
                self._merge_rows -= done
                continue
            at = self._runs.index(self._merge.runs[0])
            self._runs[at : at + len(self._merge.runs)] = [done] if done.rows else []
            self._merge = None

    # ------------------------------------------------------------------------------------------------------ frames

    def _frame(self, entries: Entries) -> pl.DataFrame:
        columns = [entries.texts[name] for name in self._keys]
        texts = {name: entries.texts[name] for name in self._texts}
        return pl.DataFrame([*columns, *(self._column(name, entries.words, texts) for name in self._schema)])

    def _column(self, name: str, words: Words, texts: Mapping[str, Any]) -> pl.Series:
        if name in texts:
            found = texts[name]
            return found if isinstance(found, pl.Series) else pl.Series(name, found.tolist(), dtype=pl.String)
        return _as_series(name, np.ascontiguousarray(words[:, self._word_of[name]]), self._schema[name])


def _times(entries: Entries, time: str, word_of: Mapping[str, int]) -> Places:
    """Returns the times of states, (n,): a column of the key or a number of the state."""
    if time in word_of:
        return entries.words[:, word_of[time]].view(np.int64)
    return entries.texts[time].to_physical().to_numpy()


def _least(uses: npt.NDArray[np.uint16], count: int) -> npt.NDArray[np.bool_]:
    """Returns which `count` states leave: those used least and, among those with equal uses, the oldest."""
    upto = np.cumsum(np.bincount(uses, minlength=_USES_TOLD + 2))
    limit = int(np.searchsorted(upto, count))
    found = uses < limit
    equal = count - (int(upto[limit - 1]) if limit else 0)
    for start in range(0, len(uses), WRITTEN_ROWS):
        if not equal:
            break
        oldest = start + np.flatnonzero(uses[start : start + WRITTEN_ROWS] == limit)[:equal]
        found[oldest] = True
        equal -= oldest.size
    return found


def _as_words(column: pl.Series) -> Words:
    values = column.to_physical().to_numpy()
    return values.astype(np.uint64) if values.dtype == np.bool_ else np.ascontiguousarray(values).view(np.uint64)


def _as_series(name: str, words: Words, dtype: pl.DataType) -> pl.Series:
    if dtype == pl.Boolean:
        return pl.Series(name, words != 0)
    made = pl.Series(name, words.view(np.float64 if dtype == pl.Float64 else np.int64))
    return made if made.dtype == dtype else made.cast(dtype)
