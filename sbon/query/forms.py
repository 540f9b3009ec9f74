"""Written forms of functions and aggregates that are not simply the name of a function of the table with its arguments.

Data for `docs/reference/functions.md`; functions that are called by their own name have everything in `sbon.query.functions`.
"""

from typing import NamedTuple


class Form(NamedTuple):
    """A way to write a value, with its description."""

    call: str
    """The call as it is written, with names for its arguments."""
    result: str
    """Type of the value."""
    meaning: str
    arguments: str = ""
    """Types of the arguments."""


OPERATORS: dict[str, str] = {
    "add": "x + y",
    "sub": "x - y",
    "mul": "x * y",
    "div": "x / y",
    "mod": "x % y",
    "power": "x ^ y",
    "neg": "-x",
    "eq": "x = y",
    "ne": "x <> y",
    "lt": "x < y",
    "le": "x <= y",
    "gt": "x > y",
    "ge": "x >= y",
    "and": "a AND b",
    "or": "a OR b",
    "not": "NOT a",
    "is_null": "x IS NULL",
    "in": "x IN (y, z, ...)",
    "like": "text LIKE pattern",
    "ilike": "text ILIKE pattern",
    "regexp_like": "text ~ pattern",
    "concat": "text || text",
    "json": "CAST(text AS JSON)",
    "json_get": "x -> key",
    "json_text": "x ->> key",
}
"""Functions of the table that are written as operators."""

MADE_OF_OTHERS: tuple[Form, ...] = (
    Form("x BETWEEN low AND high", "BOOLEAN", "x >= low AND x <= high."),
    Form("x BETWEEN SYMMETRIC low AND high", "BOOLEAN", "As BETWEEN, with the bounds in either order."),
    Form("x IS NOT NULL", "BOOLEAN", "NOT x IS NULL."),
    Form(
        "a IS TRUE, a IS FALSE, a IS UNKNOWN", "BOOLEAN", "Whether a condition is true, false or NULL; never NULL itself. Also with IS NOT."
    ),
    Form(
        "x IS DISTINCT FROM y",
        "BOOLEAN",
        "Whether the values differ, where NULL equals NULL; never NULL itself. Also with IS NOT.",
    ),
    Form("text ~* pattern", "BOOLEAN", "As text ~ pattern, regardless of case. !~ and !~* tell whether there is no match."),
    Form(
        "CASE WHEN a THEN x ... ELSE y END",
        "that of the values",
        "The value of the first condition that is true; NULL if there is none and no ELSE.",
    ),
    Form(
        "CASE x WHEN y THEN z ... ELSE w END",
        "that of the values",
        "The value of the first y that equals x; NULL if there is none and no ELSE.",
    ),
    Form("a[1]", "that of the elements", "The element of an array at a place, from 1; NULL where there is none."),
    Form(
        "CAST(x AS BIGINT[])",
        "BIGINT[]",
        "JSON, or a TEXT that is JSON, as an array; NULL where it is no array of this type, or has more than 65,536 elements.",
    ),
    Form("(place).lat", "that of the field", "The field of a struct; NULL where the struct is NULL."),
    Form(
        "CAST(x AS STRUCT<a BIGINT>)",
        "STRUCT<a BIGINT>",
        "JSON, or a TEXT that is JSON, as a struct; NULL where it is no object with fields of these types.",
    ),
    Form("CAST(x AS type), x::type", "the named type", "The value converted; NULL where it does not convert. TRY_CAST is the same."),
)
"""Operators and expressions with a syntax of their own that are made of functions of the table."""

CALLS: dict[str, Form] = {
    "cardinality": Form("CARDINALITY(a)", "BIGINT", "Number of elements of an array, or of JSON that is one.", "array or JSON"),
    "concat": Form("CONCAT(x, ...)", "TEXT", "Values of any type, joined as texts; NULL counts as an empty text.", "any, ..."),
    "date_format": Form(
        "DATE_FORMAT(ts, format)",
        "TEXT",
        "The time in a format (a literal) of Flink's letters, such as 'yyyy-MM-dd HH:mm:ss'.",
        "TIMESTAMP, TEXT",
    ),
    "dayofweek": Form("DAYOFWEEK(ts)", "BIGINT", "Day of the week: Sunday 1 to Saturday 7.", "TIMESTAMP"),
    "if": Form(
        "IF(a, x, y)",
        "that of the values",
        "x where the condition is true, else y; NULL for a missing y.",
        "BOOLEAN, any [, any], the latter of one type",
    ),
    "json_array_length": Form("JSON_ARRAY_LENGTH(x)", "BIGINT", "Number of elements of an array; NULL of other JSON.", "TEXT or JSON"),
    "json_extract_path": Form(
        "JSON_EXTRACT_PATH(x, key, ...)", "JSON", "As x -> key, and so on for each further key.", "TEXT or JSON, BIGINT or TEXT, ..."
    ),
    "json_extract_path_text": Form(
        "JSON_EXTRACT_PATH_TEXT(x, key, ...)",
        "TEXT",
        "As JSON_EXTRACT_PATH, but as text, like x ->> key.",
        "TEXT or JSON, BIGINT or TEXT, ...",
    ),
    "left": Form("LEFT(text, n)", "TEXT", "The first n characters; of a negative n, all but the last -n.", "TEXT, BIGINT"),
    "locate": Form("LOCATE(part, text)", "BIGINT", "As STRPOS, with the arguments the other way round.", "TEXT, TEXT"),
    "log": Form(
        "LOG(x), LOG(base, x)",
        "DOUBLE",
        "Logarithm to base 10, or to the given base; NULL unless the arguments are positive.",
        "number [, number]",
    ),
    "log2": Form("LOG2(x)", "DOUBLE", "Logarithm to base 2; NULL unless the argument is positive.", "number"),
    "nullif": Form("NULLIF(x, y)", "that of x", "NULL where x equals y, else x.", "any but JSON and array, all of one type"),
    "overlay": Form(
        "OVERLAY(text PLACING new FROM start FOR length)",
        "TEXT",
        "The text with `new` in place of `length` characters from `start` (1 is the first); without FOR, as many as `new` has.",
        "TEXT, TEXT, BIGINT [, BIGINT]",
    ),
    "pi": Form("PI()", "DOUBLE", "The number pi.", "none"),
    "position": Form("POSITION(part IN text)", "BIGINT", "As STRPOS, with the arguments the other way round.", "TEXT, TEXT"),
    "right": Form("RIGHT(text, n)", "TEXT", "The last n characters; of a negative n, all but the first -n.", "TEXT, BIGINT"),
    "second": Form("SECOND(ts)", "BIGINT", "Whole seconds, 0 to 59; EXTRACT(second FROM ts) has the fraction.", "TIMESTAMP"),
    "timestampadd": Form(
        "TIMESTAMPADD(unit, n, ts)", "TIMESTAMP", "The time n units later; units from microsecond to week.", "unit, BIGINT, TIMESTAMP"
    ),
    "timestampdiff": Form(
        "TIMESTAMPDIFF(unit, from, to)",
        "BIGINT",
        "Whole units from the first time to the second, cut toward zero; units from microsecond to week.",
        "unit, TIMESTAMP, TIMESTAMP",
    ),
    "to_timestamp": Form(
        "TO_TIMESTAMP(text, format), TO_TIMESTAMP(text), TO_TIMESTAMP(seconds)",
        "TIMESTAMP",
        "The time that a text gives in a format of TO_CHAR or in ISO 8601, or that lies so many seconds after 1970; NULL if there is none.",
        "TEXT [, TEXT]; number",
    ),
    "to_timestamp_ltz": Form(
        "TO_TIMESTAMP_LTZ(n, precision)", "TIMESTAMP", "The time n seconds (precision 0) or milliseconds (3) after 1970.", "BIGINT, 0 or 3"
    ),
    "trim": Form(
        "TRIM(text, characters), TRIM(LEADING characters FROM text)",
        "TEXT",
        "The text without blanks (U+0020) at both ends, or without the characters of a literal. Also TRAILING and BOTH.",
        "TEXT [, TEXT]",
    ),
}
"""Functions that are made of others, or whose arguments are not those of the table, by name."""

PARSED_AS: dict[str, str] = {
    "btrim": "trim",
    "ceiling": "ceil",
    "char_length": "length",
    "character_length": "length",
    "ifnull": "coalesce",
    "jsonb_array_length": "json_array_length",
    "jsonb_extract_path": "json_extract_path",
    "jsonb_extract_path_text": "json_extract_path_text",
    "jsonb_typeof": "json_typeof",
    "lcase": "lower",
    "len": "length",
    "nvl": "coalesce",
    "pow": "power",
    "startswith": "starts_with",
    "substring": "substr",
    "to_jsonb": "to_json",
    "ucase": "upper",
}
"""Further names, beside `sbon.query.function_names.SYNONYMS`, that mean the same function."""

AGGREGATES: dict[str, Form] = {
    "array_agg": Form(
        "ARRAY_AGG(x)",
        "an array of the type of x",
        "The values as an array, NULLs included, by event time, then by their JSON; NULL where that has more than 65,536 characters.",
    ),
    "any_value": Form("ANY_VALUE(x)", "that of x", "The least value; for conditions as BOOL_AND."),
    "approx_count_distinct": Form(
        "APPROX_COUNT_DISTINCT(x)", "BIGINT", "Number of different values: exact below 2,048, with a standard error of 2.2 % from there."
    ),
    "approx_percentile": Form(
        "APPROX_PERCENTILE(x, share)", "DOUBLE", "The percentile, off by at most 0.8 % of the value. NaN is left out."
    ),
    "arg_max": Form(
        "ARG_MAX(x, y)",
        "that of x",
        "x of the row with the greatest y; if there are several, the greatest x. Rows with a NULL are left out.",
    ),
    "arg_min": Form(
        "ARG_MIN(x, y)", "that of x", "x of the row with the least y; if there are several, the least x. Rows with a NULL are left out."
    ),
    "avg": Form("AVG(x)", "DOUBLE", "Mean."),
    "bit_and": Form("BIT_AND(n)", "BIGINT", "Bits that are set in all numbers."),
    "bit_or": Form("BIT_OR(n)", "BIGINT", "Bits that are set in any number."),
    "bit_xor": Form("BIT_XOR(n)", "BIGINT", "Bits that are set in an odd count of the numbers."),
    "bool_and": Form("BOOL_AND(a)", "BOOLEAN", "Whether the condition is true in all rows."),
    "bool_or": Form("BOOL_OR(a)", "BOOLEAN", "Whether the condition is true in any row."),
    "corr": Form("CORR(y, x)", "DOUBLE", "Correlation coefficient of the pairs."),
    "count": Form("COUNT(*), COUNT(x), COUNT(DISTINCT x)", "BIGINT", "Number of rows, of values, or of different values."),
    "count_if": Form("COUNT_IF(a)", "BIGINT", "Number of rows in which the condition is true."),
    "covar_pop": Form("COVAR_POP(y, x)", "DOUBLE", "Covariance of the population."),
    "covar_samp": Form("COVAR_SAMP(y, x)", "DOUBLE", "Covariance of the sample."),
    "first": Form("FIRST(x)", "that of x", "The value with the least event time; among values of one instant the least."),
    "last": Form("LAST(x)", "that of x", "The value with the greatest event time; among values of one instant the greatest."),
    "max": Form("MAX(x)", "that of x", "The greatest value; NaN only if there is no other value."),
    "median": Form("MEDIAN(x)", "DOUBLE", "The median, exact. NaN is left out."),
    "min": Form("MIN(x)", "that of x", "The least value; NaN only if there is no other value."),
    "percentile_cont": Form(
        "PERCENTILE_CONT(share) WITHIN GROUP (ORDER BY x)",
        "DOUBLE",
        "The exact percentile, interpolated between two values where needed. NaN is left out.",
    ),
    "percentile_disc": Form(
        "PERCENTILE_DISC(share) WITHIN GROUP (ORDER BY x)", "that of x", "The exact percentile, always one of the values. NaN is left out."
    ),
    "regr_intercept": Form("REGR_INTERCEPT(y, x)", "DOUBLE", "y at x = 0 on the least-squares line through the pairs."),
    "regr_slope": Form("REGR_SLOPE(y, x)", "DOUBLE", "Slope of the least-squares line through the pairs."),
    "stddev": Form("STDDEV(x)", "DOUBLE", "Standard deviation of the sample."),
    "stddev_pop": Form("STDDEV_POP(x)", "DOUBLE", "Standard deviation of the population."),
    "string_agg": Form(
        "STRING_AGG(x, separator ORDER BY y), STRING_AGG(DISTINCT x, separator)",
        "TEXT",
        "Values joined as texts: in order of event time without ORDER BY, in order of the texts with DISTINCT. At most 65,536 characters.",
    ),
    "sum": Form("SUM(x)", "that of x", "Sum; NULL where a sum of whole numbers does not fit into a BIGINT."),
    "var_pop": Form("VAR_POP(x)", "DOUBLE", "Variance of the population."),
    "var_samp": Form("VAR_SAMP(x)", "DOUBLE", "Variance of the sample."),
}
"""Aggregates of `sbon.query.aggregate_names`, by name."""

AGGREGATES_ALSO: dict[str, str] = {
    "arg_max": "MAX_BY",
    "arg_min": "MIN_BY",
    "approx_count_distinct": "APPROX_DISTINCT",
    "bool_and": "EVERY, LOGICAL_AND",
    "bool_or": "LOGICAL_OR",
    "count_if": "COUNTIF",
    "first": "FIRST_VALUE",
    "last": "LAST_VALUE",
    "percentile_cont": "QUANTILE_CONT(x, share)",
    "percentile_disc": "QUANTILE_DISC(x, share), QUANTILE(x, share)",
    "stddev": "STDDEV_SAMP",
    "string_agg": "LISTAGG(x, separator) WITHIN GROUP (ORDER BY y), GROUP_CONCAT(x ORDER BY y)",
    "var_samp": "VARIANCE",
}
"""Further names of aggregates."""
