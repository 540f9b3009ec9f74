"""The dealer that deals like `turns` or like `last`, whichever is better in a replay of the past."""

from collections.abc import Callable

from sbon.dealing.forecast import Course, Steady
from sbon.dealing.instance_records import InstanceRecords, Setting
from sbon.dealing.last import Last
from sbon.dealing.replay import Candidate, Replaying
from sbon.dealing.turns import INTERVALS, Turns

OUTLASTS = 0.5
"""Ratio of bound to scope from which `last` deals first, before any replay; below, `turns` does."""
TINY = 0.1
"""Ratio of bound to scope below which `last` is no candidate. Its windows stay open for longer than its forecast reaches, and a replay of
an hour has too few rises of the rate to show the consequences.
"""
BEYOND = 1.0
"""Ratio of bound to scope from which `turns` is no candidate. An instance then catches up after its windows have closed, which a tail over
one scope does not include. Also, a review takes twenty times as long as a decision of `last`.
"""
CHANCES_OF_TURNS = (10.0, 1.0)
CHANCES_OF_LAST = (1e-3, 1e-5)
"""Risks that dealers may take. The second one is tried if a replay with the first one has late rows."""


def turns(chance: float, bolder: str = "") -> Candidate:
    """Returns the candidate that deals in turn."""

    def make(setting: Setting, records: InstanceRecords) -> Turns:
        return Turns(setting, records, Course(setting, intervals=INTERVALS), chance=chance)

    return Candidate(f"turns {chance:g}", make, bolder)


def last(chance: float, bolder: str = "") -> Candidate:
    """Returns the candidate that deals to the instance that closes last."""
    return Candidate(f"last {chance:g}", lambda setting, records: Last(setting, records, Steady(setting), chance=chance), bolder)


def best_by_replay(setting: Setting, records: InstanceRecords) -> Replaying:
    """Returns the dealer that chooses between these candidates by replay."""
    share = setting.bound_s / setting.scope_s
    in_turn = _by_risk(turns, CHANCES_OF_TURNS) if share < BEYOND else ()
    to_last = _by_risk(last, CHANCES_OF_LAST) if share >= TINY else ()
    return Replaying(setting, records, to_last + in_turn if share >= OUTLASTS else in_turn + to_last)


def _by_risk(make: Callable[[float, str], Candidate], chances: tuple[float, float]) -> tuple[Candidate, ...]:
    bold = make(chances[0], "")
    return bold, make(chances[1], bold.name)
