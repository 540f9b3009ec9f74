"""Hints for functions and operators of other dialects that this one lacks, by the name that is typed."""

from sqlglot import exp

NOW_HINT = "queries depend only on their rows: use the event time, such as ts"
FUNCTIONS_HINT = "docs/reference/functions.md lists all functions"
_JSON = (
    "write x -> 'name' for a member and x -> 0 for an element as JSON, ->> for its text, and CAST that: "
    "CAST(payload -> 'user' ->> 'age' AS BIGINT)"
)
_ALIKE = "compare a value that ->> takes out of it: x ->> 'name' = 'value'"
_ARRAY = (
    "arrays have a[1], CARDINALITY(a), and UNNEST, which gives a row for each element: FROM s CROSS JOIN UNNEST(s.a) AS t(x); "
    "CAST(x AS BIGINT[]) reads JSON as an array"
)
_CONTAINS = "UNNEST it, FROM s CROSS JOIN UNNEST(s.a) AS t(x), and write WHERE x = 'value'"
_RANDOM = "queries depend only on their rows: let the source give each row its number"
_BITS = "compute with * / % and comparisons"
_DAYS = "write TIMESTAMPDIFF(DAY, a, b), or subtract the times: b - a is an INTERVAL"
_LATER = "add an INTERVAL: ts + INTERVAL '1 day'"
_DAY = "times are TIMESTAMPs: DATE_TRUNC('day', ts) is the start of the day"

INSTEAD: dict[str, str] = {
    **dict.fromkeys(("now", "proctime", "current_timestamp", "current_date", "current_time", "localtime", "localtimestamp"), NOW_HINT),
    **dict.fromkeys(("current_row_timestamp", "clock_timestamp", "statement_timestamp", "transaction_timestamp", "getdate"), NOW_HINT),
    **dict.fromkeys(("#>", "#>>", "#-"), _JSON),
    **dict.fromkeys(("@>", "<@", "?", "@?", "@@"), _ALIKE),
    **dict.fromkeys(("json_value", "json_query", "json_exists", "json_extract", "jsonb_path_query"), _JSON),
    **dict.fromkeys(("get_json_object", "json_object", "json_array", "jsonb_build_object", "json_build_object"), _JSON),
    "parse_json": "write CAST(text AS JSON)",
    "json_string": "write TO_JSON(x)",
    **dict.fromkeys(("unnest", "explode", "array", "array_length", "json_array_elements", "jsonb_array_elements"), _ARRAY),
    **dict.fromkeys(("array_contains", "array_position", "any", "&&"), _CONTAINS),
    **dict.fromkeys(("array_concat", "array_append", "array_cat", "array_to_string", "element"), _ARRAY),
    **dict.fromkeys(("string_to_array", "split", "regexp_split_to_array"), "SPLIT_PART(text, ',', 1) gives one part of a text"),
    **dict.fromkeys(("map", "row", "struct", "generate_series", "generate_subscripts"), _ARRAY),
    **dict.fromkeys(("random", "rand", "rand_integer", "uuid", "gen_random_uuid", "uuid_generate_v4"), _RANDOM),
    **dict.fromkeys(("&", "|", "#", "<<", ">>"), _BITS),
    **dict.fromkeys(("datediff", "date_diff", "age"), _DAYS),
    **dict.fromkeys(("date_add", "date_sub", "dateadd", "adddate", "subdate"), _LATER),
    **dict.fromkeys(("date", "to_date", "make_date"), _DAY),
    "isnull": "write x IS NULL to test for NULL, COALESCE(x, 0) to replace it",
    "decode": "write CASE x WHEN 1 THEN 'a' ELSE 'b' END",
    "iif": "write CASE WHEN condition THEN a ELSE b END",
    "translate": "use REPLACE(text, 'old', 'new'), once for each character",
    "format": "join texts: CONCAT(a, ' ', b)",
    "printf": "join texts: CONCAT(a, ' ', b)",
    "to_number": "write CAST(text AS DOUBLE)",
    "at time zone": "times are in UTC: add an INTERVAL, such as ts + INTERVAL '1 hour'",
    "convert_timezone": "times are in UTC: add an INTERVAL, such as ts + INTERVAL '1 hour'",
    "convert_tz": "times are in UTC: add an INTERVAL, such as ts + INTERVAL '1 hour'",
    "similar to": "write LIKE for % and _, or text ~ '^(a|b)$' for a regular expression",
    "glob": "write LIKE: % is any text, _ any character",
}
"""Hints by name in lower case. `NOW_HINT` marks names that ask for the current time."""

INSTEAD_OF_TREES: dict[type[exp.Expr], str] = {
    exp.Bracket: _ARRAY,
    exp.Array: _ARRAY,
    exp.Tuple: "compare one by one: a = 1 AND b = 2",
    exp.AtTimeZone: INSTEAD["at time zone"],
    exp.BitwiseNot: _BITS,
    exp.JSONValue: _JSON,
}
"""Hints by tree class, for expressions without a typed name."""
