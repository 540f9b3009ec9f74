"""A number with its bounds and its source. All models read costs as such figures."""

import enum
import math

import msgspec

from sbon.errors import ShapeError

HALF_AS_WIDE_AGAIN_S = 86_400.0
"""Age in seconds after which bounds are 1.5 times as wide: a day, because streams change with the time of day."""
RULE_FACTOR = 4.0
"""Bounds of a rule of thumb: value / 4 to value x 4."""
DECLARED_FACTOR = 2.0
"""Bounds of a declared number: people round, and declare means."""
SAMPLES_MIN = 30
"""Samples from which a measured or sampled figure replaces a declared one."""


class Source(enum.StrEnum):
    """The origin of a figure, best first."""

    MEASURED = "measured"
    SAMPLED = "sampled"
    DECLARED = "declared"
    RULE = "rule"


class Edge(enum.Enum):
    """One of the three numbers of a figure."""

    LOW = "low"
    EXPECTED = "expected"
    HIGH = "high"


class Figure(msgspec.Struct, frozen=True, kw_only=True):
    """One number: `low` <= `value` <= `high`, all finite and 0 or more.

    Raises
    ------
    ShapeError
        The three are not in this order, negative or not finite; the number of samples or the age is negative.
    """

    value: float
    low: float
    high: float
    source: Source
    samples: float = 0.0
    """Observations behind the value; 0 for rules and declared numbers."""
    age_s: float = 0.0
    """Seconds since the latest observation."""

    def __post_init__(self) -> None:
        if not 0 <= self.low <= self.value <= self.high < math.inf:
            raise ShapeError(f"figure {self.low} <= {self.value} <= {self.high}, expected this order, finite, from 0")
        if not (0 <= self.samples < math.inf and 0 <= self.age_s < math.inf):
            raise ShapeError(f"figure of {self.samples} samples, {self.age_s} s old, expected finite and 0 or more")

    @property
    def error(self) -> float:
        """Half the width of the bounds as a share of the value; infinite for a value of 0 that may be more."""
        width = (self.high - self.low) / 2
        if self.value > 0:
            return width / self.value
        return math.inf if width > 0 else 0.0

    def at(self, edge: Edge) -> float:
        """Returns the value or one of its bounds."""
        return self.low if edge is Edge.LOW else self.high if edge is Edge.HIGH else self.value

    def aged(self, seconds: float) -> "Figure":
        """Returns the figure that many seconds later, with wider bounds.

        Examples
        --------
        >>> figure = around(100.0, 10.0, Source.MEASURED, samples=50).aged(86_400.0)
        >>> figure.low < 80.0, figure.high, figure.age_s
        (True, 130.0, 86400.0)
        """
        wider = 1 + seconds / (2 * HALF_AS_WIDE_AGAIN_S)
        low = self.low / (1 + (self.value - self.low) / self.value * (wider - 1)) if self.value > 0 else self.low
        return msgspec.structs.replace(self, low=low, high=self.value + (self.high - self.value) * wider, age_s=self.age_s + seconds)


def around(value: float, deviation: float, source: Source, *, samples: float = 0.0, age_s: float = 0.0) -> Figure:
    """Returns a figure with bounds of two standard errors.

    The lower bound is value / (1 + 2 deviation / value), which is never 0 for a value above 0: a cost that is hardly known is not free.

    Examples
    --------
    >>> figure = around(100.0, 50.0, Source.MEASURED, samples=3)
    >>> figure.low, figure.high
    (50.0, 200.0)
    """
    low = value / (1 + 2 * deviation / value) if value > 0 else 0.0
    return Figure(value=value, low=low, high=value + 2 * deviation, source=source, samples=samples, age_s=age_s)


def within_factor(value: float, factor: float, source: Source) -> Figure:
    """Returns a figure between `value` / `factor` and `value` x `factor`."""
    return Figure(value=value, low=value / factor, high=value * factor, source=source)


def by_rule(value: float) -> Figure:
    """Returns a figure that rests on a rule of thumb.

    Raises
    ------
    ShapeError
        The value is 0 or less: a rule of 0 would hide that the figure is unknown.
    """
    if not value > 0:
        raise ShapeError(f"a rule says {value}, expected more than 0")
    return within_factor(value, RULE_FACTOR, Source.RULE)


def declared(value: float) -> Figure:
    """Returns a figure that the user has declared."""
    return within_factor(value, DECLARED_FACTOR, Source.DECLARED)


def better(one: Figure, other: Figure) -> Figure:
    """Returns the figure to believe: of the better source, else the one with narrower bounds.

    A measured or sampled figure counts as worse than a declared one while it has fewer than `SAMPLES_MIN` samples.
    """
    return one if _rank(one) <= _rank(other) else other


_ORDER = {source: number for number, source in enumerate(Source)}


def _rank(figure: Figure) -> tuple[float, float]:
    few = figure.source in (Source.MEASURED, Source.SAMPLED) and figure.samples < SAMPLES_MIN
    return (_ORDER[Source.DECLARED] + 0.5 if few else float(_ORDER[figure.source]), figure.error)
