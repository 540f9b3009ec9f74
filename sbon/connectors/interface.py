"""The interfaces of sources and sinks: what they offer to the engine.

A connector brings rows in from outside the overlay, or delivers answers. This module imports no polars, so that an agent without queries
stays small.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from sbon.errors import ConnectorError
from sbon.operators.values import Values

if TYPE_CHECKING:
    import polars as pl

BATCH_ROWS_MAX = 4096
"""Rows of one batch of a source, unless its option `batch_rows_max` says otherwise."""
BATCH_ROWS = 65_536
"""Rows of one batch of a source that is told how many rows fit into a quantum of the engine (`batch_rows`)."""


class Polled(NamedTuple):
    """Result of one poll of a source."""

    frame: pl.DataFrame | None
    """Rows in the source's schema, at least one; None if there is nothing now."""
    watermark_us: int
    """Watermark after these rows, in microseconds: later rows should have no lower event times. It never goes back."""
    next_poll: float | None
    """Monotonic time at which to poll again (now or earlier: at once); None: wait for `ready`."""
    finished: bool = False
    """True if nothing will follow; `watermark_us` is then WATERMARK_END."""
    values: Values | None = None
    """A few rows, at least one, as plain values instead of a frame. No frame is made then if they go straight to a link or a sink."""
    upto: int | None = None
    """Number that the source gives to its progress up to this poll; it never goes back. `acknowledged` gets it once all rows up to here
    have been processed. None if the source needs no acknowledgements. Set it also for a poll without rows, because earlier rows may have
    been left out.
    """
    place: Any = None
    """Position of the source after these rows, for `places.keep`; None if a copy of the source could not begin there."""

    @property
    def rows(self) -> int:
        """Returns the number of rows in this result."""
        return self.frame.height if self.frame is not None else self.values.rows if self.values is not None else 0


class SourceConnector(Protocol):
    """A physical source. Everything is called on the agent's thread, unless stated otherwise.

    Five methods and six attributes are optional:

    - `open()` opens files. It is called once, before `start`, on a thread of its own, because a file system may not answer. It raises
      ConnectorError if opening is refused. `stop` may be called while it runs.
    - `remark` is a sentence for people who look at the running source; empty if there is nothing to say.
    - `stalled` says why the far end gives nothing at present; empty if it gives rows. The source retries, and is shown as stalled until it
      succeeds.
    - `misfits`, an `sbon.misfits.Misfits` made by the source, counts why rows were left out, for `sbon queries`, `sbon operators`, the log
      and telemetry. Its rows are included in `dropped_rows`.
    - `threaded = True` lets `poll` run on an executor thread, so that a source with costly rows does not hold up the event loop. There are
      never two calls at once, and none during `start` or `stop`. The attribute is read before each poll, and may change.
    - `batch_rows` is set by the engine before each poll to the number of rows that fit into its quantum; the source gives at most that
      many.
    - `due_rows(now)`, for a source with the two attributes above, returns how many rows are due at that instant, without a limit. It also
      promises that `poll` never blocks. If few rows are due that have cost little lately, `poll` then runs on the agent's own thread, which
      costs less than waking another one.
    - `prefetch(now, wall)`, for a `threaded` source, promises the next batch, as `poll` would give it, and returns the work that makes it;
      None means that `poll` must be called. The engine calls the work once, on any thread, perhaps at the same time as other promised work
      or a `poll` for later rows, or after `stop`; or never, if it stops the source. So the work must not depend on anything that changes,
      and must not change anything that is read elsewhere. Its result has at least one row, its own watermark (the greatest so far counts),
      and `now` as `next_poll`; only `poll` reports that nothing will follow. Batches are passed on in the order of promises and polls.
    - `sample(rows)` returns about `rows` of the first rows of a source that was never opened or started, on a thread of its own. It has no
      effect outside: no position moves, no session begins. A source that cannot avoid effects has no such method.
    - `acknowledged(upto)` says that every operator has processed the rows of all polls up to that `Polled.upto`: they are in its state, in
      what it has sent on, or in the sink. What an operator on another host holds is lost if that host crashes. Not called after `stop`.
    - `places`, of a source that sets `Polled.place`, has two methods. `keep(place, link, rows, made)` keeps a position on disk: everything
      up to that place is safe; it must not block. `begin_behind(rows)` is called before `open` on a copy of the source that is made after a
      crash, and makes it begin at the position that was kept with that number of rows. It raises ConnectorError if there is none
      (`sbon.engine.source_positions`).
    """

    @property
    def dropped_rows(self) -> int:
        """Returns the number of rows that came in but could not be used (malformed, or more than the bounded queue holds)."""

    def start(self, ready: Callable[[], None]) -> None:
        """Starts the source.

        `ready` is called on the agent's thread when a poll would give something after one that returned `next_poll` None.

        Raises
        ------
        ConnectorError
            The source cannot be read.
        """

    def poll(self, now: float, wall: float) -> Polled:
        """Returns the next rows, at most `batch_rows_max`.

        It is called only when there is room downstream, perhaps before the requested time, and must not block.

        Raises
        ------
        ConnectorError
            The source has broken for good; it can only be stopped now.
        """

    def stop(self) -> None:
        """Closes files and sockets. May be called twice, and before `start`."""


class SinkConnector(Protocol):
    """A physical sink. `write` and `close` are called on an executor thread, never two at once.

    Five attributes and six methods are optional:

    - `open()` is as for a source, and called before the first `write`.
    - `finish()` is called when every row has been written; the sink counts as finished when it returns. It may raise as `write` does.
    - `abandon()` is called instead of `close` if the sink has failed, or its query has not begun.
    - `remains` is a text that says what is left of the rows of a failed sink; it is added to the reason that is shown.
    - `brief = True` promises that `write` never blocks, so that it may also be called on the event loop's thread, with a few rows (still
      never two calls at once).
    - `write_values(values)` is like `write`, for a few rows in the form of `sbon.operators.values`, with columns as in the schema that the
      sink was made for. Such rows are then never converted to a frame.
    - `begun_at` is a number from which the sink finds, after a crash, where its query began; `rows_since(begun_at)` returns the number of
      rows that are there since then, and is called after `open`. `begin_here()`, called after that, sets `begun_at` to the end.
      Instead, `match_rows()` makes the sink leave out the rows that are there when they come again, in any order. It returns False if it
      cannot. `begun_at` is None until all have come; `unmatched_rows` is the number of the others once the sink has ended.
    - `next_of(link, origin)` is called before each `write` of a sink that can find its rows again. It gives the input and the origin of the
      rows, as numbers (`sbon.links.origins`); the input is 0 if there is only one. After `rows_since`, `rows_by_origin` has the number of
      rows that are there by input and origin, or None. `begin_inputs(links)`, called after that, makes `rows_by_origin` leave out the rows
      of some inputs for good. `keep()` is called before `close` if the sink is to continue when its agent is back.
    - `quanta` is the number of quanta of waiting rows that are written at once, because each `write` has a cost of its own; default 1.
    """

    dropped_rows: int
    """Rows taken that are known not to have arrived."""

    def write(self, frame: pl.DataFrame) -> None:
        """Takes one batch; once this returns, the sink is responsible for it.

        Raises
        ------
        Congested
            The receiver accepts nothing at present; no row of this frame was taken. Offer it again.
        ConnectorError
            The sink has broken for good.
        """

    def close(self) -> None:
        """Delivers what was taken (for a limited time) and closes. May be called twice."""


class Congested(ConnectorError):  # noqa: N818 - a state, not a failure
    """A sink's receiver accepts nothing at present: offer the same frame again after `retry_after_s`."""

    def __init__(self, message: str, retry_after_s: float = 0.5) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s
