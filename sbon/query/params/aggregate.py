"""Aggregates of windows, sessions, preceding rows and matches."""

import msgspec

from sbon.query.expression import Expression
from sbon.query.limits import SEPARATOR_MAX, LimitError, check_count, check_share

AGGREGATE_FUNCTIONS = (
    "count",
    "count_distinct",
    "sum",
    "min",
    "max",
    "avg",
    "first",
    "last",
    "stddev",
    "stddev_pop",
    "var_samp",
    "var_pop",
    "covar_samp",
    "covar_pop",
    "corr",
    "regr_slope",
    "regr_intercept",
    "arg_min",
    "arg_max",
    "bit_and",
    "bit_or",
    "bit_xor",
    "bool_and",
    "bool_or",
    "approx_count_distinct",
    "approx_percentile",
    "percentile_cont",
    "percentile_disc",
    "string_agg",
    "string_agg_distinct",
)
PERCENTILE_FUNCTIONS = frozenset({"approx_percentile", "percentile_cont", "percentile_disc"})
"""Aggregates with a `share`."""
PAIR_FUNCTIONS = frozenset({"covar_samp", "covar_pop", "corr", "regr_slope", "regr_intercept", "arg_min", "arg_max"})
"""Aggregates of two operands."""


class Aggregate(msgspec.Struct, frozen=True, array_like=True):
    """One aggregate of a window: `function` of `operand` (None for COUNT(*)), named `name` in the output."""

    name: str
    function: str
    """One of `AGGREGATE_FUNCTIONS`."""
    operand: Expression | None
    share: float = 0.5
    """For `PERCENTILE_FUNCTIONS`, the share of the values at or below the answer, 0 to 1. Other functions leave it at its default."""
    by: Expression | None = None
    """For `PAIR_FUNCTIONS`, the second operand; for `string_agg`, the order of its texts, None: by event time."""
    separator: str = ""
    """For `string_agg` and `string_agg_distinct`, the text between two texts."""
    descending: bool = False
    """For `string_agg` and `string_agg_distinct`: the greatest text, or the one with the greatest `by`, comes first."""

    def __post_init__(self) -> None:
        if self.function not in AGGREGATE_FUNCTIONS:
            raise LimitError(f"aggregate {self.function!r}, expected one of {', '.join(AGGREGATE_FUNCTIONS)}")
        is_free = self.function == "string_agg" and self.operand is not None
        if not is_free and ((self.by is not None) != (self.function in PAIR_FUNCTIONS) or (self.by is not None and self.operand is None)):
            wanted = "two operands" if self.function in PAIR_FUNCTIONS else "at most one operand"
            raise LimitError(f"aggregate {self.function} of other operands, expected {wanted}")
        check_share("percentile of share", self.share, 1.0)
        check_count("characters of a separator", len(self.separator), most=SEPARATOR_MAX)
