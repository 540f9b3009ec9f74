"""Transfers a state between two hosts in numbered pieces: the two ends, without I/O.

The sender has a bounded number of bytes in flight and keeps each piece until it is acknowledged, which happens when the receiver has
applied it. Lost pieces are sent again, in order; the receiver takes each piece once, in order, and acknowledges again what it has applied
already. So a broken connection delays the transfer but does not restart it.
"""

from collections import deque
from enum import Enum

import msgspec

from sbon.errors import LinkError, LocalProtocolError
from sbon.migration.pacing import Window
from sbon.types import OperatorId


class Piece(msgspec.Struct, frozen=True):
    """One numbered piece."""

    index: int
    last: bool
    data: bytes
    sent_at: float
    """When it was first sent."""


class PieceSender:
    """The sending end, on the old host.

    Parameters
    ----------
    window : limit of bytes in flight, which one piece may exceed
    """

    def __init__(self, window: Window) -> None:
        self.window = window
        self._held: deque[Piece] = deque()  # not acknowledged, by index
        self._next = 0
        self.held_bytes = 0
        self.sent_bytes = 0
        """Bytes of all pieces, each counted once."""
        self._again_below = 0

    def has_room(self, urgent: float = 0.0) -> bool:
        """Tells whether another piece may be sent; the more urgent (0 to 1), the more may be in flight."""
        return self.held_bytes < self.window.within(urgent)

    @property
    def next_index(self) -> int:
        """Returns the index of the next piece."""
        return self._next

    @property
    def answered_below(self) -> int:
        """Returns the index below which all pieces have been applied."""
        return self._held[0].index if self._held else self._next

    def again(self) -> tuple[Piece, ...]:
        """Returns the pieces to send again after the connection, or an answer, was lost. Their answers no longer measure the path."""
        self._again_below = self._next
        return tuple(self._held)

    def offer(self, data: bytes, *, last: bool, now: float = 0.0) -> Piece:
        """Numbers a piece and keeps it until it is acknowledged."""
        piece = Piece(self._next, last, data, now)
        self._next += 1
        self._held.append(piece)
        self.held_bytes += len(data)
        self.sent_bytes += len(data)
        return piece

    def answered(self, index: int, now: float = 0.0) -> bool:
        """Records that a piece, and all before it, has been applied. Returns False if that was known."""
        if not self._held or index < self._held[0].index:
            return False
        answered = [self._held.popleft() for _ in range(min(index + 1, self._next) - self._held[0].index)]
        size_bytes = sum(len(piece.data) for piece in answered)
        self.held_bytes -= size_bytes
        if answered[-1].index >= self._again_below:
            self.window.answered(size_bytes, now - answered[-1].sent_at)
        return True


class Turn(Enum):
    """The receiver's decision on an arriving piece."""

    TAKE = "take"
    WAIT = "wait"
    """It was received but not applied yet: acknowledge it once it is."""
    ANSWER = "answer"
    """It was applied already: acknowledge again, since the first answer was lost."""


class PieceReceiver:
    """The receiving end, on the new host.

    Parameters
    ----------
    bytes_max : a state larger than this is refused
    """

    def __init__(self, operator: OperatorId, bytes_max: int) -> None:
        self._operator = operator
        self._bytes_max = bytes_max
        self._taken = 0
        self._done = 0
        self._ended = False
        self._bytes = 0

    @property
    def next_index(self) -> int:
        """Returns the index of the next piece to take."""
        return self._taken

    def arrived(self, index: int, last: bool, size_bytes: int) -> Turn:
        """Judges a piece; those to TAKE must be applied in this order, with a call of `had_effect` for each.

        Raises
        ------
        LinkError
            A piece before it is missing: the sender sends all again, in order.
        LocalProtocolError
            The piece follows the last one, or the state is too large.
        """
        if index < self._done:
            return Turn.ANSWER
        if index < self._taken:
            return Turn.WAIT
        if self._ended:
            raise LocalProtocolError(f"state of {self._operator}: piece {index} after the last one, {self._taken - 1}")
        if index > self._taken:
            raise LinkError(f"state of {self._operator}: piece {index}, expected {self._taken}")
        if self._bytes + size_bytes > self._bytes_max:
            raise LocalProtocolError(
                f"state of {self._operator} is larger than {self._bytes_max} bytes (migration.state_bytes_max, or room in "
                "engine.memory_max)"
            )
        self._bytes += size_bytes
        self._taken, self._ended = index + 1, last
        return Turn.TAKE

    def had_effect(self) -> None:
        """Records that the next piece has been applied."""
        if self._done >= self._taken:
            raise LocalProtocolError(f"state of {self._operator}: piece {self._done} has not been taken")
        self._done += 1
