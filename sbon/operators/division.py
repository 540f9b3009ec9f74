"""Correctly rounded quotients.

When polars divides a float column by a single number, it multiplies by the reciprocal instead. That is faster and rounds twice:
3.0 / 10 would be 0.30000000000000004, and 7 ms 0.006999999999999999 s.
"""

import polars as pl


def quotient(dividend: pl.Expr, divisor: pl.Expr | float) -> pl.Expr:
    """Returns the float nearest to the true quotient; NULL if either operand is NULL.

    Examples
    --------
    >>> pl.select(pl.lit(pl.Series("s", [3, 7])).pipe(quotient, 10)).to_series().to_list()
    [0.3, 0.7]
    """
    divisor = divisor if isinstance(divisor, pl.Expr) else pl.lit(float(divisor))
    if divisor.meta.root_names():
        return dividend / divisor
    return dividend / (divisor + dividend.is_null().cast(pl.Float64))  # makes the divisor a column with one value per row
