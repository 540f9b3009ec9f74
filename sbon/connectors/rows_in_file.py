"""Leaves out rows that a file has already, in whatever order they come again. The `file` sink uses it after a crash.

Rows are compared by hashes of 64 bits. A row that the file has twice is left out twice.
"""

from collections.abc import Iterable, Iterator

import numpy as np
import numpy.typing as npt

Hashes = npt.NDArray[np.int64]
"""A hash for each row."""

ROWS_MAX = 5_000_000
"""Most rows that are compared: 80 MB. A longer file is not compared."""


class RowsInFile:
    """The rows of a file that have not come again yet.

    Parameters
    ----------
    hashes : of its rows

    Examples
    --------
    >>> rows = RowsInFile([np.array([7, 8, 7], np.int64)])
    >>> rows.new(np.array([7, 7, 7, 9], np.int64)).tolist(), rows.left
    ([False, False, True, True], 1)
    """

    def __init__(self, hashes: Iterable[Hashes]) -> None:
        self._hashes, self._counts = np.unique(np.concatenate([np.empty(0, np.int64), *hashes]), return_counts=True)
        self.left = int(self._counts.sum())
        """Rows that have not come again."""

    def new(self, hashes: Hashes) -> npt.NDArray[np.bool_]:
        """Returns for each row whether it is new, and counts the others as come again."""
        if not self.left or not hashes.size:
            return np.ones(hashes.size, np.bool_)
        order = np.argsort(hashes, kind="stable")
        ordered = hashes[order]
        firsts = np.flatnonzero(np.concatenate([[True], ordered[1:] != ordered[:-1]]))
        sizes = np.diff(np.concatenate([firsts, [ordered.size]]))
        among = np.arange(ordered.size) - np.repeat(firsts, sizes)  # how many equal rows come before it
        places = np.searchsorted(self._hashes, ordered[firsts])
        inside = np.minimum(places, self._hashes.size - 1)
        left = np.where(self._hashes[inside] == ordered[firsts], self._counts[inside], 0)
        is_new = np.empty(hashes.size, np.bool_)
        is_new[order] = among >= np.repeat(left, sizes)
        here = np.minimum(left, sizes)
        self._counts[inside[here > 0]] -= here[here > 0]
        self.left -= int(here.sum())
        return is_new

    def put_back(self, hashes: Hashes) -> None:
        """Counts rows as not come again, because they will come once more: the write that they were part of has failed.

        Parameters
        ----------
        hashes : of rows that were not new
        """
        np.add.at(self._counts, np.searchsorted(self._hashes, hashes), 1)
        self.left += hashes.size


def lines_of(pieces: Iterable[bytes], *, quoted: bool) -> Iterator[list[bytes]]:
    """Splits a text into whole lines, piece by piece; what follows the last line break is left out.

    Parameters
    ----------
    quoted : a line break between quotation marks is part of a value (CSV)

    Examples
    --------
    >>> list(lines_of([b'a,"x', b'\\ny"\\nb\\n,', b'z'], quoted=True))
    [[], [b'a,"x\\ny"\\n', b'b\\n'], []]
    """
    rest = b""
    for piece in pieces:
        rest += piece
        octets = np.frombuffer(rest, np.uint8)
        ends = octets == ord("\n")
        if quoted:
            ends &= np.cumsum(octets == ord('"')) % 2 == 0
        found = (np.flatnonzero(ends) + 1).tolist()
        yield [rest[start:end] for start, end in zip([0, *found], found, strict=False)]
        rest = rest[found[-1] :] if found else rest


def hashes_of(lines: Iterable[bytes]) -> Hashes:
    """Returns a hash of each line. It is the same within one process only.

    Examples
    --------
    >>> first, second, third = hashes_of([b"a", b"b", b"a"])
    >>> bool(first == third), bool(first == second)
    (True, False)
    """
    return np.fromiter(map(hash, lines), np.int64)
