"""Aggregates by the names that people type, and hints for aggregates that this dialect lacks."""

import difflib
from collections.abc import Iterable

from sqlglot import exp

BY_TREE: dict[type[exp.Expr], str] = {
    exp.Count: "count",
    exp.CountIf: "count_if",
    exp.Sum: "sum",
    exp.Min: "min",
    exp.Max: "max",
    exp.Avg: "avg",
    exp.AnyValue: "any_value",
    exp.First: "first",
    exp.FirstValue: "first",
    exp.Last: "last",
    exp.LastValue: "last",
    exp.Stddev: "stddev",
    exp.StddevSamp: "stddev",
    exp.StddevPop: "stddev_pop",
    exp.Variance: "var_samp",
    exp.VariancePop: "var_pop",
    exp.CovarSamp: "covar_samp",
    exp.CovarPop: "covar_pop",
    exp.Corr: "corr",
    exp.RegrSlope: "regr_slope",
    exp.RegrIntercept: "regr_intercept",
    exp.ArgMin: "arg_min",
    exp.ArgMax: "arg_max",
    exp.LogicalAnd: "bool_and",
    exp.LogicalOr: "bool_or",
    exp.GroupConcat: "string_agg",
    exp.ArrayAgg: "array_agg",
    exp.Median: "median",
    exp.PercentileCont: "percentile_cont",
    exp.PercentileDisc: "percentile_disc",
    exp.Quantile: "percentile_disc",
    exp.BitwiseAndAgg: "bit_and",
    exp.BitwiseOrAgg: "bit_or",
    exp.BitwiseXorAgg: "bit_xor",
    exp.ApproxDistinct: "approx_count_distinct",
}
"""Aggregates for which sqlglot has a tree class of its own."""
BY_NAME = {
    "approx_percentile": "approx_percentile",
    "every": "bool_and",
    "listagg": "string_agg",
    "quantile_cont": "percentile_cont",
    "quantile_disc": "percentile_disc",
}
"""All other aggregates, by name."""
AGGREGATE_NAMES = tuple(dict.fromkeys([*BY_TREE.values(), *BY_NAME.values()]))

_ARRAY = "write ARRAY_AGG(x), or STRING_AGG(x, ',') for the values as one text"
_INSTEAD = {
    **dict.fromkeys(("array_concat_agg", "collect", "collect_list", "collect_set", "list", "group_array"), _ARRAY),
    **dict.fromkeys(("json_agg", "jsonb_agg", "json_object_agg", "jsonb_object_agg", "json_arrayagg", "json_objectagg"), _ARRAY),
    **dict.fromkeys(("xmlagg", "map_agg", "object_agg", "histogram"), _ARRAY),
    **dict.fromkeys(("mean", "average"), "write AVG(x)"),
    **dict.fromkeys(("std", "stdev", "stddevsamp"), "write STDDEV(x)"),
    **dict.fromkeys(("var", "varsamp"), "write VAR_SAMP(x)"),
    "mode": "count each value, GROUP BY window_start, x, and take the first: ORDER BY COUNT(*) DESC LIMIT 1",
    "product": "write EXP(SUM(LN(x))) for numbers above 0",
    **dict.fromkeys(("approx_quantile", "percentile_approx", "approx_median"), "write APPROX_PERCENTILE(x, 0.99)"),
    **dict.fromkeys(("uniq", "approx_unique", "hll", "ndv"), "write APPROX_COUNT_DISTINCT(x)"),
}


def no_aggregate(tree: exp.Expr, typed: str, functions: Iterable[str]) -> tuple[str, str] | None:
    """Returns the message and the hint for a call of an unknown aggregate, or None if the call does not look like one.

    Parameters
    ----------
    typed : the name as it was typed
    functions : names of scalar functions; if one of them is the closest match, the call is not taken for an aggregate
    """
    name = typed.lower()
    similar = difflib.get_close_matches(name, [*functions, *AGGREGATE_NAMES], n=1, cutoff=0.6)
    near = similar[0] if similar and similar[0] in AGGREGATE_NAMES else ""
    if not (isinstance(tree, exp.AggFunc | exp.WithinGroup) or name in _INSTEAD or (near and isinstance(tree, exp.Anonymous))):
        return None
    nearest = _INSTEAD.get(name) or (f"did you mean {near}?" if near else "")
    listed = f"the aggregates are {', '.join(AGGREGATE_NAMES)}"
    return f"there is no aggregate {typed}", f"{nearest}; {listed}" if nearest else listed
