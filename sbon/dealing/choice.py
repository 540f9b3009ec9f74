"""Our dealer: in turn, or to the one that closes last, whichever a replay of the past shows to be better."""

from collections.abc import Callable

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
BEYOND = 1.0
"""Share of a scope from which `turns` is no candidate: an instance then makes up for what it is behind after its windows, which a tail
over one scope does not see; and a review takes twenty times as long as a decision of `last`."""
CHANCES_OF_TURNS = (10.0, 1.0)
CHANCES_OF_LAST = (1e-3, 1e-5)
"""Risks that dealers may take: the second where a replay with the first has late rows."""


def turns(chance: float, bolder: str = "") -> Candidate:
    """Returns the dealer in turn."""

    def make(setting: Setting, books: Books) -> Turns:
        return Turns(setting, books, Course(setting, intervals=INTERVALS), chance=chance)

    return Candidate(f"turns {chance:g}", make, bolder)


def last(chance: float, bolder: str = "") -> Candidate:
    """Returns the dealer to the instance that closes last."""
    return Candidate(f"last {chance:g}", lambda setting, books: Last(setting, books, Steady(setting), chance=chance), bolder)


def best_by_replay(setting: Setting, books: Books) -> Replaying:
    """Returns the dealer that chooses between them."""
    share = setting.bound_s / setting.scope_s
    in_turn = _by_risk(turns, CHANCES_OF_TURNS) if share < BEYOND else ()
    to_last = _by_risk(last, CHANCES_OF_LAST) if share >= TINY else ()
    return Replaying(setting, books, to_last + in_turn if share >= OUTLASTS else in_turn + to_last)


def _by_risk(make: Callable[[float, str], Candidate], chances: tuple[float, float]) -> tuple[Candidate, ...]:
    bold = make(chances[0], "")
    return bold, make(chances[1], bold.name)
