"""The load dimension: how far load moves a node away in the cost space (SBON, section 3.1.1)."""

import math
from typing import Literal

import msgspec

from sbon.cost_space.coordinate import VECTOR_MS_MAX


class LoadConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings for converting CPU load to milliseconds. TOML table [load]."""

    scaling: Literal["linear", "multiplicative", "nonlinear"] = "linear"
    """`linear` is the paper's; `nonlinear` (a power) spares lightly loaded nodes; `multiplicative` (an exponential) makes every
    further step of load cost a constant factor more. All three give 0 for an idle node and `full_ms` for a fully loaded one."""
    full_ms: float = 100.0
    """Load dimension of a node whose CPU is fully used. Higher: placements accept longer ways round a loaded node."""
    exponent: float = 3.0
    """Power of the `nonlinear` scaling. Higher: only nearly full nodes are avoided."""
    factor: float = 1000.0
    """Factor by which the cost of the `multiplicative` scaling rises more steeply at full load than at none."""
    smoothing_s: float = 15.0
    """Time constant of the average over load readings. Longer: placements flap less, but notice changes later."""
    hysteresis_ms: float = 5.0
    """A change smaller than this is not published. Higher: quieter gossip and placements, coarser avoidance."""

    def __post_init__(self) -> None:
        if not 0 <= self.full_ms <= 10_000:
            raise ValueError(f"full_ms = {self.full_ms}, expected 0 to 10000")
        if not 0 < self.exponent <= 100:
            raise ValueError(f"exponent = {self.exponent}, expected more than 0, at most 100")
        if not 1 < self.factor <= 1e9:
            raise ValueError(f"factor = {self.factor}, expected more than 1, at most 1e9")
        if not 0 <= self.smoothing_s <= 3600:
            raise ValueError(f"smoothing_s = {self.smoothing_s}, expected 0 to 3600")
        if not 0 <= self.hysteresis_ms <= 10_000:
            raise ValueError(f"hysteresis_ms = {self.hysteresis_ms}, expected 0 to 10000")


FRACTION_MAX = 10.0
"""Largest load, as a multiple of the CPU. Nodes at or above it are equally unsuitable; keeps the exponential scaling finite."""


def scaled_load_ms(fraction: float, config: LoadConfig) -> float:
    """Returns the load dimension for a CPU load, before smoothing.

    Parameters
    ----------
    fraction : share of the CPU that is demanded; above 1 if work waits

    Examples
    --------
    >>> scaled_load_ms(0.5, LoadConfig(full_ms=100.0))
    50.0
    >>> scaled_load_ms(0.5, LoadConfig(full_ms=100.0, scaling="nonlinear", exponent=2.0))
    25.0
    """
    fraction = min(max(fraction, 0.0), FRACTION_MAX)
    if config.scaling == "linear":
        scaled = config.full_ms * fraction
    elif config.scaling == "nonlinear":
        scaled = config.full_ms * float(fraction**config.exponent)
    else:
        scaled = config.full_ms * (float(config.factor**fraction) - 1.0) / (config.factor - 1.0)
    return min(scaled, VECTOR_MS_MAX)


class LoadDimension:
    """Smooths load readings and publishes them only when they have changed by the hysteresis or more."""

    def __init__(self, config: LoadConfig) -> None:
        self._config = config
        self._fraction = 0.0
        self._at: float | None = None
        self.load_ms = 0.0

    def update(self, fraction: float, now: float) -> float:
        """Takes a reading of the CPU load, 0 to 1 (more if work waits), and returns the load dimension to publish, in ms.

        Readings may come at any pace: each counts for the time since the one before. A reading that is not finite is ignored.
        """
        if not math.isfinite(fraction):
            return self.load_ms
        fraction = min(max(fraction, 0.0), FRACTION_MAX)
        if self._at is None or self._config.smoothing_s == 0:
            self._fraction = fraction
        else:
            weight = -math.expm1(-max(now - self._at, 0.0) / self._config.smoothing_s)
            self._fraction += weight * (fraction - self._fraction)
        self._at = now
        smooth_ms = scaled_load_ms(self._fraction, self._config)
        if abs(smooth_ms - self.load_ms) >= self._config.hysteresis_ms:
            self.load_ms = smooth_ms
        return self.load_ms
