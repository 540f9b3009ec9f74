"""Tells the receiver of a link which operator has its giving end now, until the receiver has answered. A machine without I/O.

passed      the giving end has passed: ask the receiver to note the new turn, or, if it is being asked already, wait for that answer
answered    the receiver has noted the turn that it was asked to note: done, or ask it at once to note a later turn
refused     the receiver is away or moving: ask it again after a pause (`sbon.links.ends.pause_s`)
gone        the giving end has left this host: do not ask again
"""

import msgspec

from sbon.errors import LocalProtocolError
from sbon.links.ends import pause_s
from sbon.types import LinkId


class Ask(msgspec.Struct, frozen=True):
    """Ask the receiver of a link to note who gives on it now; `answered`, `refused` or `gone` must follow."""

    link: LinkId


class Noted(msgspec.Struct, frozen=True):
    """The receiver of a link has noted who gives on it."""

    link: LinkId


Action = Ask | Noted


class _Word(msgspec.Struct):
    turn: int
    """Turn that the end has now."""
    asked: int
    """Turn that the receiver was last asked to note."""
    tries: int = 0
    """Number of successive requests without success."""
    due_s: float | None = None
    """When to ask again; None while an answer is awaited."""


class Passing:
    """The links of one host whose receivers do not know yet who gives on them."""

    def __init__(self) -> None:
        self._words: dict[LinkId, _Word] = {}

    def is_telling(self, link: LinkId) -> bool:
        """Tells whether the receiver of a link does not know yet who gives on it."""
        return link in self._words

    def passed(self, link: LinkId, turn: int) -> list[Action]:
        """Records that the giving end of a link has passed to another operator here, for the `turn`-th time."""
        word = self._words.get(link)
        if word is not None:
            word.turn = turn
            return []
        self._words[link] = _Word(turn, turn)
        return [Ask(link)]

    def answered(self, link: LinkId) -> list[Action]:
        """Records that the receiver has noted the turn that it was asked to note."""
        word = self._asked(link)
        if word.turn != word.asked:
            word.asked, word.tries = word.turn, 0
            return [Ask(link)]
        del self._words[link]
        return [Noted(link)]

    def refused(self, link: LinkId, now: float) -> list[Action]:
        """Records that the receiver has not answered, or has refused for now."""
        word = self._asked(link)
        word.tries += 1
        word.due_s = now + pause_s(word.tries)
        return []

    def gone(self, link: LinkId) -> list[Action]:
        """Records that the giving end of a link is not on this host any more."""
        self._asked(link)
        del self._words[link]
        return []

    def wake(self, now: float) -> list[Action]:
        """Asks the receivers again whose pause is over."""
        due = [link for link, word in self._words.items() if word.due_s is not None and word.due_s <= now]
        for link in due:
            word = self._words[link]
            word.asked, word.due_s = word.turn, None
        return [Ask(link) for link in due]

    def next_wake(self) -> float | None:
        """Returns when the first pause ends; None if there is none."""
        return min((word.due_s for word in self._words.values() if word.due_s is not None), default=None)

    def _asked(self, link: LinkId) -> _Word:
        word = self._words.get(link)
        if word is None or word.due_s is not None:
            raise LocalProtocolError(f"the receiver of {link} is not being asked who gives on it")
        return word
