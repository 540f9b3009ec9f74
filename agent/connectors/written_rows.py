"""Base of the two kinds of file sink: they find their rows again after a crash, and wait for a full disk."""

from __future__ import annotations

import errno
import threading
from collections.abc import Collection
from pathlib import Path

from sbon.connectors.interface import Congested
from sbon.connectors.rows_in_file import RowsInFile
from sbon.errors import ConnectorError
from sbon.reach import Reach
from sbon_agent.connectors.opening import Folder
from sbon_agent.connectors.origin_log import Key, OriginLog

FULL = (errno.ENOSPC, errno.EDQUOT)
"""Errors of a disk that may have room again later."""
FULL_RETRY_S = 1.0
"""Seconds until the next attempt at a full disk."""
QUANTA = 4
"""Quanta of waiting rows that are written at once, some MiB: each write has a fixed cost of about half a millisecond."""


class WrittenRows:
    """Base of the file sinks: knows where the query's rows begin, and which of them its former copies have written.

    Parameters
    ----------
    log : name of the log of inputs and origins, in the sink's folder
    """

    quanta = QUANTA

    def __init__(self, what: str, path: Path, reach: Reach, log: str) -> None:
        self.dropped_rows = 0
        self._what, self._path, self._reach = what, path, reach
        self._lock = threading.Lock()
        """Held by `open`, `write`, `finish` and `close`, one at a time."""
        self._folder: Folder | None = None
        self._closed = False
        self._origins = OriginLog(log)
        self._next_of: Key | None = None
        """Input and origin of the next rows; None if the sink has one input, whose rows have no origin."""
        self._begun_at: int | None = None
        """Place of the query's first row; None until the sink is open."""
        self._found = RowsInFile([])
        """Rows written by former copies that are left out when they come again."""
        self.rows_by_origin: dict[Key, int] | None = None
        """After `rows_since`: these rows by input and origin; None if that is not known."""

    @property
    def begun_at(self) -> int | None:
        """The place where the query's rows begin, a byte of the file or the number of a part; None until the sink is open, and while rows
        that `match_rows` has found may come again."""
        return None if self._found.left else self._begun_at

    def begin_inputs(self, links: Collection[int]) -> None:
        """Counts no more the rows of these inputs that have been written."""
        with self._lock:
            if self._folder is not None and links:
                self.rows_by_origin = self._origins.set_aside(self._folder, links)

    def keep(self) -> None:
        """Makes `close` keep the log of origins, because the sink continues after its agent's restart."""
        self._origins.is_kept = True

    def next_of(self, link: int, origin: int) -> None:
        """Sets the input and the origin of the next rows."""
        self._next_of = link, origin

    def _broken(self, error: OSError) -> ConnectorError:
        """Returns the error for a failed write: Congested if the disk may have room later."""
        message = f"{self._what}: {self._path} cannot be written: {error.strerror or error}"
        return Congested(message, FULL_RETRY_S) if error.errno in FULL else ConnectorError(message, option="path")


def unfinished(name: str) -> str:
    """Returns the name of the file that will replace `name`."""
    return f".{name}.unfinished"
