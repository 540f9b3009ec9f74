"""Chooses the news to pass on: first the least told, among these the newest, each a bounded number of times.

Source: SWIM (DSN 2002), section 4.1: each member repeats a piece of news lambda log n times and prefers the news that it has told least.
"""

import msgspec

from sbon.membership.messages import News, encoded_bytes

MISFITS_MAX = 4
"""The search ends after this many pieces that do not fit, because the datagram is practically full."""


class _Entry(msgspec.Struct, frozen=True):
    item: News
    size: int


class Broadcasts:
    """News by subject. A later piece on the same subject replaces the earlier one."""

    def __init__(self) -> None:
        self._tellings: list[dict[str, _Entry]] = [{}]  # index: number of times told
        self._told: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._told)

    def add(self, subject: str, item: News) -> None:
        """Starts passing on a piece of news."""
        self.remove(subject)
        self._told[subject] = 0
        self._tellings[0][subject] = _Entry(item, encoded_bytes(item))

    def remove(self, subject: str) -> None:
        """Stops passing on the news about a subject."""
        told = self._told.pop(subject, None)
        if told is not None:
            del self._tellings[told][subject]

    def take(self, room_bytes: int, limit: int, repeat_max: int) -> tuple[list[News], int]:
        """Returns news for one message and its size in bytes; each piece counts as told once more, and is dropped at `repeat_max`."""
        if not self._told:
            return [], 0
        taken: list[News] = []
        used = 0
        moved: list[tuple[str, _Entry, int]] = []
        misfits: list[tuple[str, _Entry, int]] = []
        for told, bucket in enumerate(self._tellings):
            while bucket and len(taken) < limit and len(misfits) < MISFITS_MAX:
                subject, entry = bucket.popitem()
                if used + entry.size > room_bytes:
                    misfits.append((subject, entry, told))
                    continue
                used += entry.size
                taken.append(entry.item)
                moved.append((subject, entry, told + 1))
        for subject, entry, told in reversed(moved):
            if told >= repeat_max:
                del self._told[subject]
            else:
                self._place(subject, entry, told)
        for subject, entry, told in reversed(misfits):
            self._place(subject, entry, told)
        return taken, used

    def _place(self, subject: str, entry: _Entry, told: int) -> None:
        while len(self._tellings) <= told:
            self._tellings.append({})
        self._told[subject] = told
        self._tellings[told][subject] = entry
