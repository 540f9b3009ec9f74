import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbon.optimiser.config import OptimiserConfig
from sbon.optimiser.trials import Trials, noise_of_a_node

SAVINGS = st.lists(st.floats(-1.0, 1.0), min_size=1, max_size=20)


def trials(**config):
    settings = OptimiserConfig(**config)
    return Trials(settings, noise_of_a_node(settings))


def test_a_single_late_reply_is_no_saving():
    """A neighbour of one candidate answers once after three times the RTT, although the candidate saves nothing."""
    subject = trials(confirmations=4, noise_fraction=0.02)

    assert subject.mean([0.0, 0.6, 0.0, 0.0]) == pytest.approx(0.01)
    assert not subject.is_sure(subject.mean([0.0, 0.6, 0.0, 0.0]), 0.01, 4)


def test_a_lasting_saving_counts_in_full():
    subject = trials(confirmations=4, noise_fraction=0.02)

    assert subject.mean([0.0, 0.6, 0.6, 0.6]) == pytest.approx(0.45)
    assert subject.is_sure(subject.mean([0.0, 0.6, 0.6, 0.6]), 0.01, 4)


@given(SAVINGS)
def test_cutting_never_makes_a_saving_larger(samples):
    assert trials().mean(samples) <= np.mean(samples) + 1e-12


@given(st.floats(-1.0, 1.0), st.integers(1, 20))
def test_equal_savings_stay_as_they_are(saving, count):
    assert trials().mean([saving] * count) == pytest.approx(saving)
