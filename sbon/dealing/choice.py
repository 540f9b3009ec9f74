"""Our dealer: in turn, or to the one that closes last, whichever a replay of the past shows to be better."""

from sbon.dealing.books import Books, Setting
from sbon.dealing.forecast import Course, Steady
from sbon.dealing.last import Last
from sbon.dealing.replay import Candidate, Replaying
from sbon.dealing.turns import INTERVALS, Turns

OUTLASTS = 0.5
"""Share of a scope that the bound must have for `last` to be the one that begins."""
TINY = 0.1
"""Share of a scope below which `last` is no candidate: what it deals is there for longer than any forecast of its own reaches, and a replay
of an hour has too few rises of the rate to show it."""
CHANCES_OF_TURNS = (10.0, 1.0)
CHANCES_OF_LAST = (1e-3, 1e-5)
"""Risks that dealers may take: the second where a replay with the first has late rows."""


def turns(chance: float) -> Candidate:
    """Returns the dealer in turn."""
    return Candidate(f"turns {chance:g}", lambda setting, books: Turns(setting, books, Course(setting, intervals=INTERVALS), chance=chance))


def last(chance: float) -> Candidate:
    """Returns the dealer to the instance that closes last."""
    return Candidate(f"last {chance:g}", lambda setting, books: Last(setting, books, Steady(setting), chance=chance))


def best_by_replay(setting: Setting, books: Books) -> Replaying:
    """Returns the dealer that chooses between them."""
    candidates = [*map(turns, CHANCES_OF_TURNS)]
    if setting.bound_s >= TINY * setting.scope_s:
        candidates += map(last, CHANCES_OF_LAST)
    if setting.bound_s >= OUTLASTS * setting.scope_s:
        candidates = candidates[2:] + candidates[:2]
    return Replaying(setting, books, tuple(candidates))
