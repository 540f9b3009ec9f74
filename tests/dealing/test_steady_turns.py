"""The number of instances and the length of turns that are chosen for steady rates, against runs of the queue in virtual time."""

import numpy as np
import pytest

from sbon.cost.overlap import OverlapLaw, RowLaw
from sbon.dealing.dealer import Silent
from sbon.dealing.instance_records import InstanceRecords, Setting
from sbon.dealing.replay import Outcome, Trace, replay
from sbon.dealing.steady import Dealt, Load, cheapest, keeps, open_shares, to_try, use


class ByTurn(Silent):
    """Deals as a splitter does: windows that open in one turn go to one instance."""

    def __init__(self, setting: Setting, records: InstanceRecords, turn_s: float) -> None:
        super().__init__(setting, records)
        self._turn_s = turn_s

    def deal(self, at_s: float, closes_s: float) -> int:
        return int(at_s // self._turn_s) % self.setting.instances


def run(load: Load, dealt: Dealt, bound_s: float, rng: np.random.Generator, rows: int = 4000) -> Outcome:
    """Returns what happens to Poisson rows that each open a window."""
    at_s = np.cumsum(rng.exponential(1 / load.rows_per_s, rows))
    trace = Trace(at_s, np.zeros(rows, dtype=np.int64), at_s + load.within_s)
    window_s = load.windows_s / (load.rows_per_s * load.within_s)
    law = OverlapLaw((RowLaw(row_s=load.row_s, opening_s=window_s, window_s=window_s),), (False,))
    setting = Setting(
        instances=dealt.instances, bound_s=bound_s, scope_s=load.within_s, opens=(True,), closes=(False,), counted=(False,), law=law
    )
    return replay(trace, setting, law, lambda found, records: ByTurn(found, records, dealt.turn_s or 1.0))


def options(within_s: float, most: int = 6) -> list[Dealt]:
    return [one for number in range(1, most + 1) for one in to_try(number, within_s, within_s / (4 * number), is_bounded=True)]


def loads() -> list[tuple[Load, float]]:
    """Returns loads of 0.2 to 3.5 cores, with bounds of a tenth to eight times a window."""
    rng = np.random.default_rng(4)
    found = []
    for _ in range(24):
        within_s, rate = float(10 ** rng.uniform(0, 0.8)), float(10 ** rng.uniform(1.7, 2.2))
        row_s = float(rng.choice([0.0, 0.05, 0.15])) / rate
        found.append((Load(rate, row_s, float(rng.uniform(0.2, 3.5)) / rate, within_s), within_s * float(10 ** rng.uniform(-1, 0.9))))
    return found


@pytest.mark.parametrize("number", range(24))
def test_what_is_chosen_keeps_the_bound_and_nothing_much_cheaper_would(number: int) -> None:
    load, bound_s = loads()[number]
    rng = np.random.default_rng(number)
    tried = options(load.within_s)

    found = cheapest(load, tried, bound_s)

    if found is not None:
        outcome = run(load, found, bound_s, rng)
        assert outcome.over == 0, f"{load} under {bound_s} s: {found} has a peak of {outcome.peak_s} s"
        assert outcome.rows_sent <= 1.05 * found.copies(load.within_s) * outcome.rows
    most = len(tried) if found is None else found.copies(load.within_s) - 0.5
    for other in [one for one in tried if one.copies(load.within_s) <= most and use(load, one) < 0.8][::3]:
        assert run(load.times(1.3), other, bound_s, rng, 2500).peak_s > bound_s / 3, f"{other} was passed over for {found}"


def test_the_choice_of_all_three_kinds_is_made() -> None:
    found = [cheapest(load, options(load.within_s), bound_s) for load, bound_s in loads()]

    kinds = {"none" if one is None else "one" if one.instances == 1 else "short" if one.turn_s < load.within_s else "long"
             for one, (load, _) in zip(found, loads(), strict=True)}  # fmt: skip
    assert kinds >= {"one", "short", "long"}


def test_shares_are_those_of_windows_counted_one_by_one() -> None:
    rng = np.random.default_rng(7)
    for dealt, within_s in ((Dealt(2, 3.0), 5.0), (Dealt(3, 0.5), 4.0), (Dealt(4, 9.0), 2.0), (Dealt(1, 0.0), 2.0)):
        at_s = rng.uniform(0, 60, 20)
        opened = np.arange(-10.0, 60.0, 1e-3)
        owner = np.zeros(len(opened)) if dealt.instances == 1 else opened // dealt.turn_s % dealt.instances
        counted = [np.mean(owner[(opened > now - within_s) & (opened <= now)] == 0) for now in at_s]
        assert open_shares(dealt, at_s, within_s) == pytest.approx(np.array(counted), abs=2e-3)


def test_without_a_bound_only_the_load_counts_and_turns_are_short() -> None:
    load = Load(rows_per_s=100.0, row_s=0.001, windows_s=0.02, within_s=10.0)  # 2 cores in windows, a tenth of one for each copy

    assert [use(load, Dealt(number, 0.5)) for number in (1, 2, 4)] == pytest.approx([2.1, 1.1, 0.6])
    assert [keeps(load, Dealt(number, 0.5), None) for number in (1, 2, 3)] == [False, False, True]
    assert to_try(3, 10.0, 0.5, is_bounded=False) == [Dealt(3, 0.5)]
    assert cheapest(load, [Dealt(1, 0.0), Dealt(2, 0.5)], None) is None
    assert not keeps(load, Dealt(6, 0.5), 0.0)


def test_a_higher_rate_has_more_rows_in_more_windows() -> None:
    assert Load(10.0, 1.0, 2.0, 5.0).times(3.0) == Load(30.0, 1.0, 6.0, 5.0)
