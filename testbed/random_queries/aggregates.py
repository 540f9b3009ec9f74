"""Aggregates in both dialects; the DuckDB text emulates sbon where the dialects differ on purpose."""

from sbon_testbed.random_queries.data import BOOL, FLOAT, INT, TEXT
from sbon_testbed.random_queries.forms import Expr

AGGREGATES = (
    "rows",
    "count",
    "count",
    "sum",
    "sum",
    "min",
    "max",
    "avg",
    "stddev",
    "count_distinct",
    "first",
    "last",
    "approx_distinct",
    "percentile",
    "count_if",
    "bool_and",
    "bool_or",
    "any_value",
    "stddev_pop",
    "var_samp",
    "var_pop",
    "bit_and",
    "bit_or",
    "bit_xor",
    "arg_min",
    "arg_max",
    "corr",
    "covar_pop",
    "covar_samp",
    "regr_slope",
    "regr_intercept",
    "median",
    "percentile_cont",
    "percentile_disc",
    "string_agg",
    "string_agg_distinct",
    "array_agg",
)

PAIRED = ("corr", "covar_pop", "covar_samp", "regr_slope", "regr_intercept")
"""Aggregates of pairs of numbers."""


def paired(name: str, kind: str, operand: tuple[str, str], by: Expr, tail: str) -> Expr:
    """Returns an aggregate of two operands; pairs with a NULL are left out."""
    ours, duck = operand
    text = f"{name.upper()}({ours}, {by.ours}){tail}"
    if name in PAIRED:
        x, y = f"({duck})::DOUBLE", f"({by.duck})::DOUBLE"
        odd = f"NOT isfinite({x}) OR NOT isfinite({y})"
        there, least = f"{x} IS NOT NULL AND {y} IS NOT NULL", 1 if name == "covar_pop" else 2
        fine = f"{there} AND isfinite({x}) AND isfinite({y})"
        value = f"{name}({x}, {y}) FILTER (WHERE {fine})"
        if name not in ("covar_pop", "covar_samp"):  # no unique line through one point, or through points with equal x
            same = f"max({y}) FILTER (WHERE {fine}) = min({y}) FILTER (WHERE {fine})"
            same += f" OR max({x}) FILTER (WHERE {fine}) = min({x}) FILTER (WHERE {fine})" if name == "corr" else ""
            value = f"CASE WHEN NOT ({same}) THEN {value} END"
        many = f"count(*) FILTER (WHERE {there}) >= {least}"
        return Expr(text, f"CASE WHEN {many} THEN CASE WHEN bool_or({odd}) FILTER (WHERE {there}) THEN 'nan'::DOUBLE ELSE {value} END END",
                    FLOAT, near=True)  # fmt: skip
    zero = f"one_zero({duck})" if kind == FLOAT else duck
    key = f"one_zero({by.duck})" if by.type == FLOAT else by.duck
    nan = f"isnan({by.duck})" if by.type == FLOAT else "false"
    way = "" if name == "arg_min" else " DESC"
    there = f"FILTER (WHERE {duck} IS NOT NULL AND {by.duck} IS NOT NULL)"
    return Expr(text, f"(list({zero} ORDER BY {nan}, {key}{way}, {zero}{way}) {there})[1]", kind)


def aggregated(name: str, kind: str, ours: str, duck: str, tail: str) -> Expr:
    """Returns an aggregate; `duck` is the operand with its FILTER applied."""
    zero = f"one_zero({duck})" if kind == FLOAT else duck
    there = f"FILTER (WHERE {duck} IS NOT NULL)"
    match name:
        case "rows":
            return Expr(f"COUNT(*){tail}", "count(*)", INT)
        case "count":
            return Expr(f"COUNT({ours}){tail}", f"count({duck})", INT)
        case "count_distinct":
            return Expr(f"COUNT(DISTINCT {ours}){tail}", f"count(DISTINCT {zero})", INT)
        case "approx_distinct":
            return Expr(f"APPROX_COUNT_DISTINCT({ours}){tail}", f"count(DISTINCT {zero})", INT)
        case "sum" if kind == INT:
            return Expr(f"SUM({ours}){tail}", f"TRY_CAST(sum({duck}) AS BIGINT)", INT)
        case "sum":
            return Expr(f"SUM({ours}){tail}", f"sum({duck})", FLOAT)
        case "avg":
            return Expr(f"AVG({ours}){tail}", f"avg({duck})", FLOAT)
        case "stddev" | "stddev_pop" | "var_samp" | "var_pop":
            real = f"({duck})::DOUBLE"
            least = 1 if name.endswith("pop") else 2
            odd = f"CASE WHEN count({duck}) >= {least} AND bool_or(NOT isfinite({real})) THEN 'nan'::DOUBLE"
            there = "stddev_samp" if name == "stddev" else name
            return Expr(
                f"{name.upper()}({ours}){tail}", f"{odd} ELSE {there}(CASE WHEN isfinite({real}) THEN {real} END) END", FLOAT, near=True
            )
        case "median" | "percentile_cont":
            finite = f"CASE WHEN isfinite(({duck})::DOUBLE) THEN ({duck})::DOUBLE END"
            kept = f"CASE WHEN abs({ours}) < 1e300 THEN {ours} END"
            if name == "median":
                return Expr(f"MEDIAN({kept}){tail}", f"median({finite})", FLOAT, near=True)
            text = f"PERCENTILE_CONT(0.9) WITHIN GROUP (ORDER BY {kept}){tail}"
            return Expr(text, f"quantile_cont({finite}, 0.9)", FLOAT, near=True)
        case "percentile_disc":
            plain = f"CASE WHEN NOT isnan({zero}) THEN {zero} END" if kind == FLOAT else zero
            return Expr(f"QUANTILE_DISC({ours}, 0.3){tail}", f"quantile_disc({plain}, 0.3)", kind)
        case "string_agg":
            text = f"STRING_AGG({ours}, '; '){tail}"
            return Expr(text, f"string_agg({duck}, '; ' ORDER BY ts, {duck})", TEXT)
        case "array_agg":
            if tail:
                tail = f"{tail.replace('(WHERE ', '(WHERE (', 1)[:-1]}) AND ({ours}) IS NOT NULL)"
            elements = f"list({duck} ORDER BY ts, coalesce({duck}::TEXT, 'null')) {there if tail else ''}"
            return Expr(f"CAST(ARRAY_AGG({ours}){tail} AS TEXT)", f"to_json({elements})::TEXT", TEXT)
        case "string_agg_distinct":
            text = f"LISTAGG(DISTINCT {ours}, ','){tail}"
            return Expr(text, f"array_to_string(list_sort(list(DISTINCT {duck}) FILTER (WHERE {duck} IS NOT NULL)), ',')", TEXT)
        case "bit_and" | "bit_or" | "bit_xor":
            return Expr(f"{name.upper()}({ours}){tail}", f"{name}({duck})", INT)
        case "percentile":
            return Expr(
                f"APPROX_PERCENTILE({ours}, 0.5){tail}",
                f"quantile_disc(CASE WHEN NOT isnan(({duck})::DOUBLE) THEN ({duck})::DOUBLE END, 0.5)",
                FLOAT,
                near=True,
            )
        case "min" | "max" if kind == FLOAT:
            plain = f"CASE WHEN NOT isnan({zero}) THEN {zero} END"
            return Expr(f"{name.upper()}({ours}){tail}", f"coalesce({name}({plain}), {name}({zero}))", FLOAT)
        case "min" | "max":
            return Expr(f"{name.upper()}({ours}){tail}", f"{name}({duck})", kind)
        case "count_if":
            return Expr(f"COUNT_IF({ours}){tail}", f"count(*) FILTER (WHERE {duck})", INT)
        case "bool_and" | "bool_or":
            return Expr(f"{name.upper()}({ours}){tail}", f"{name}({duck})", BOOL)
        case "any_value":
            return aggregated("min", kind, ours, duck, tail)._replace(ours=f"ANY_VALUE({ours}){tail}")
        case "first":
            return Expr(f"FIRST({ours}){tail}", f"(list({zero} ORDER BY ts, {zero}) {there})[1]", kind)
        case _:
            return Expr(f"LAST({ours}){tail}", f"(list({zero} ORDER BY ts DESC, {zero} DESC) {there})[1]", kind)
