"""What a connector offers to the engine, and what it may ask of the agent.

A connector brings rows in from outside the overlay, or takes answers out. This module and `system` import no polars, so that an agent
without queries stays small.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, NamedTuple, Protocol

import msgspec

from sbon.errors import ConnectorError
from sbon.extensions import Extensions
from sbon.operators.values import Values
from sbon.query.plan import SinkParams, SourceParams
from sbon.query.schema import Schema
from sbon.reach import Reach
from sbon.types import NodeId
from sbon_agent.connectors.system import SystemStreams
from sbon_agent.host import Host

if TYPE_CHECKING:
    import polars as pl

BATCH_ROWS_MAX = 4096
"""Rows of one batch of a source, unless its option `batch_rows_max` says otherwise."""
BATCH_ROWS = 65_536
"""The same of sources that are told how many rows fit into a quantum of the engine (`batch_rows`)."""


class Polled(NamedTuple):
    """What a source gave."""

    frame: pl.DataFrame | None
    """Rows in the source's schema, at least one; None: nothing now."""
    watermark_us: int
    """After this frame: rows to come should have event times no lower. Never goes back."""
    next_poll: float | None
    """Monotonic instant at which to poll again (now or earlier: at once); None: wait for `ready`."""
    finished: bool = False
    """Nothing will follow; `watermark_us` is then WATERMARK_END."""
    values: Values | None = None
    """A few rows, at least one, in this form instead of a frame: one that goes straight to a link, or on to a sink, is never made then."""
    upto: int | None = None
    """How far the source has come with this poll, in a number of its own that never goes back; given to `acknowledged` once all rows up to
    here have been processed. None: the source does not want to know. Set it where a poll has no rows, too: those before may have been left
    out."""

    @property
    def rows(self) -> int:
        """How many rows it gave."""
        return self.frame.height if self.frame is not None else self.values.rows if self.values is not None else 0


class SourceConnector(Protocol):
    """A physical source. Everything is called on the agent's thread.

    Four methods and five attributes are optional. `open()`: takes hold of files; called once, before `start`, on a thread of its own, as
    it may wait for a file system that does not answer. It raises ConnectorError where that is refused, and `stop` may be called meanwhile.
    `remark`: a sentence for people who look at the running source, or nothing. `stalled`: why the far end gives nothing at present, or
    nothing; the source tries it again, and is shown as stalled meanwhile. `misfits`, an `sbon.misfits.Misfits` that the source makes and
    adds to: why it has left rows out, for `sbon queries`, `sbon operators`, the log and telemetry; its rows are among `dropped_rows`.
    `threaded = True`: `poll` is called on an executor thread (never two calls at once, and none during `start` or `stop`), so that a source
    whose rows take work to make does not hold up the event loop; it is looked at before each poll, and may change. `batch_rows`: the engine
    writes there, before each poll, how many rows fit into its quantum, and the source gives at most so many. `due_rows(now)`, beside the
    other two: how many rows are due at that instant, be they ever so many; with it goes the promise that `poll` never waits, for a file or
    for anybody. A few rows that have cost little lately are then asked for on the agent's own thread, which takes less than waking another.
    `prefetch(now, wall)`, of a source that is `threaded`: promises the next batch, as `poll` would give it, and returns the work that makes
    it. The engine calls that once, on any thread, maybe beside the work of other promises, a `poll` for later rows, or after `stop`; or
    never, if it stops the source. So it must depend on nothing that changes, and change nothing that is looked at. It gives at least one
    row, its own watermark (of all so far, the greatest counts) and, as `next_poll`, `now`; that nothing will follow, only `poll` tells.
    None: `poll` is to be asked. Batches are handed on in the order of promises and polls.
    `acknowledged(upto)`: every operator that the rows of all polls up to that `Polled.upto` went to has processed them: they are in its
    state, in what it has sent on, or in the sink. What an operator on another host holds is lost if that host crashes. Not called after
    `stop`.
    """

    @property
    def dropped_rows(self) -> int:
        """Rows that came in but could not be used (malformed, or more than the bounded queue holds)."""

    def start(self, ready: Callable[[], None]) -> None:
        """Begin. `ready` is called on the agent's thread when a poll would give something after one that gave `next_poll` None.

        Raises
        ------
        ConnectorError
            The source cannot be read.
        """

    def poll(self, now: float, wall: float) -> Polled:
        """The next rows, at most `batch_rows_max`. Called only when there is room for them downstream, maybe before the instant that was
        asked for; never blocks.

        Raises
        ------
        ConnectorError
            The source has broken for good; it must only be stopped now.
        """

    def stop(self) -> None:
        """Let go of files and sockets. May be called twice, and before `start`."""


class SinkConnector(Protocol):
    """A physical sink. `write` and `close` are called on an executor thread, never two at once.

    Three attributes and four methods are optional. `open()`: as of a source, before the first `write`. `finish()`: every row has been
    written, and the sink counts as finished when this returns; it may raise as `write` does. `abandon()`: instead of `close` where the
    sink has failed, or its query has not begun. `remains`: a text for the reason of a failed sink, on what is left of its rows. `brief =
    True`: `write` never waits, for a file or for anybody, so that it may also be called on the event loop's thread, with a few rows
    (still never two calls at once). `write_values(values)`: as `write`, for a few rows in the form of `sbon.operators.values`, their
    columns as in the schema that the sink was made for; such rows are then never made a frame. `quanta`: so many quanta of the rows that
    wait are written at once, because each `write` has a cost of its own; default 1.
    """

    dropped_rows: int
    """Rows taken that are known not to have arrived."""

    def write(self, frame: pl.DataFrame) -> None:
        """Take one batch; when this returns, the batch is the sink's concern.

        Raises
        ------
        Congested
            The far end takes nothing at present; no row of this frame was taken. Offer it again.
        ConnectorError
            The sink has broken for good.
        """

    def close(self) -> None:
        """Deliver what was taken (waiting a bounded time) and let go. May be called twice."""


class Connector(NamedTuple):
    """What a package offers under a name in the entry point group `sbon.connectors`: a source, a sink, or both."""

    source: Callable[[SourceParams, ConnectorContext], SourceConnector] | None = None
    """Makes a source, not yet started; raises ConnectorError for options that it does not take (`sbon_agent.connectors.options`). CREATE
    SOURCE makes one for the sake of its options, and stops it; so nothing is taken hold of before `start`."""
    sink: Callable[[SinkParams, Schema, ConnectorContext], SinkConnector] | None = None


class Congested(ConnectorError):  # noqa: N818 - a state, not a failure
    """A sink's far end takes nothing at present: offer the same frame again after `retry_after_s`."""

    def __init__(self, message: str, retry_after_s: float = 0.5) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class ConnectorContext(msgspec.Struct, frozen=True, kw_only=True):
    """What a connector may use of the agent that runs it."""

    host: Host
    node: NodeId
    labels: Mapping[str, str]
    data_dir: str
    """The agent's own folder."""
    reach: Reach
    """What this source or sink may touch outside the overlay. A connector that opens files or sockets must keep to it
    (`sbon_agent.connectors.opening` does it for files): its statement may come from any member of the overlay."""
    system: SystemStreams
    """Where the agent's own measurements come from."""
    extensions: Callable[[], Extensions] = Extensions
    """What is installed here, looked up when it is wanted."""
