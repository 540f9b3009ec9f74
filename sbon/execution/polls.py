"""The state of one source between two polls."""

from collections import deque
from typing import Generic, TypeVar

from sbon.batching import Cost
from sbon.links.sender import LinkSender

Fetch = TypeVar("Fetch")
"""A batch that the source has promised."""


class Polls(Generic[Fetch]):
    """Polls of one source: results of the last poll, batches that are promised, and batches that are not acknowledged."""

    __slots__ = ("answered_s", "batch_cost", "behind_cost", "due", "fetches", "has_more", "polled_at", "rows", "stretch_rows", "unanswered")

    def __init__(self) -> None:
        self.has_more = False
        """True if the source had more to give when it was last polled."""
        self.due = False
        """True if the source is due to be polled, but busy."""
        self.polled_at = float("-inf")
        self.rows = 0
        """Rows given since the last pause."""
        self.stretch_rows = 0
        """Rows given between the last two pauses."""
        self.fetches: deque[Fetch] = deque()
        """Batches that the source has promised, in order."""
        self.behind_cost = Cost()
        """Processor time of the operators behind the source in the task of a batch."""
        self.batch_cost = Cost()
        """Processor time of one batch of the source, including work on the event loop."""
        self.unanswered: list[tuple[LinkSender, int, float]] = []
        """Batches of the source whose acknowledgement is awaited: sender, number, and time of sending."""
        self.answered_s = 0.0
        """Smoothed time until a source's batches are acknowledged."""
