"""Functions that are recognised by the name as typed, because the parser has no tree class for them."""

SYNONYMS: dict[str, str] = {
    "truncate": "trunc",
    "instr": "strpos",
    "endswith": "ends_with",
    "rlike": "regexp_like",
    "regexp": "regexp_like",
    "regexp_matches": "regexp_like",
}
"""Alternative names of table functions with the same arguments in the same order."""
TABLE_NAMES = frozenset({
    "strpos", "lpad", "rpad", "repeat", "reverse", "split_part", "split_index", "concat_ws", "initcap", "ends_with", "chr", "ascii",
    "md5", "sha256", "regexp_like", "regexp_extract", "regexp_replace", "cbrt", "sin", "cos", "tan", "asin", "acos", "atan", "atan2",
    "degrees", "radians", "trunc", "to_char",
})  # fmt: skip
"""Table functions that are called by their own name."""
EXTRACTS: dict[str, str] = {
    "year": "year",
    "quarter": "quarter",
    "month": "month",
    "week": "week",
    "day": "day",
    "dayofmonth": "day",
    "dayofyear": "doy",
    "hour": "hour",
    "minute": "minute",
}
"""Functions that are EXTRACT of one field."""
OF_THEIR_OWN = frozenset({
    "locate", "right", "log2", "pi", "second", "dayofweek", "date_format", "to_timestamp", "to_timestamp_ltz",
    "timestampdiff", "timestampadd", "regexp_match", "regexp_count", "regexp_substr", "regexp_instr", "sha1", "sha224", "sha384",
    "sha512", "unix_timestamp", "from_unixtime", "json_extract_path", "jsonb_extract_path", "json_extract_path_text",
    "jsonb_extract_path_text", "json_array_length", "jsonb_array_length", "json_typeof", "jsonb_typeof", "to_json", "to_jsonb",
    "cardinality",
})  # fmt: skip
"""Functions whose calls `sbon.query.named_calls` rewrites or refuses one by one."""
READ_BY_NAME = frozenset(name.upper() for name in (*SYNONYMS, *TABLE_NAMES, *EXTRACTS, *OF_THEIR_OWN))
"""All names above in capitals, as the parser compares them."""
