"""`sbon bench outage` refuses bad options before it starts anything."""

import pytest

from sbon.errors import ConfigError
from sbon_testbed.bench.outage import measure


@pytest.mark.parametrize(
    ("seconds", "rate", "told"), [(1.0, 100, "--seconds 1"), (float("nan"), 100, "--seconds nan"), (5.0, 0, "--rate 0")]
)
def test_settings_out_of_range_are_refused(seconds: float, rate: int, told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        measure(seconds, rate)
