"""Forms of scalar expressions of every type, each as sbon's SQL and as DuckDB's."""

from typing import NamedTuple

from sbon_testbed.random_queries.data import BOOL, FLOAT, INT, INTERVAL, TEXT, TIME


class Expr(NamedTuple):
    """An expression in both dialects."""

    ours: str
    duck: str
    type: str
    near: bool = False
    """True if its last bits may differ between the engines, as those of a logarithm do."""


class Form(NamedTuple):
    """The text of a call; `{0}` is its first argument."""

    function: str
    """Its name in `sbon.query.functions.FUNCTIONS`; another name if it is not there."""
    type: str
    arguments: str
    """Types of the arguments, one letter each, see `LETTERS`."""
    ours: str
    duck: str
    near: bool = False
    keeps_near: bool = False
    """True if arguments may be near as well, because a small error stays small."""


LETTERS = {"b": BOOL, "i": INT, "f": FLOAT, "t": TEXT, "m": TIME, "v": INTERVAL, "s": "small INT", "h": "small DOUBLE", "c": "TEXT column"}
ANY = "bifthmv".replace("h", "")


def _common() -> list[Form]:
    """Returns the forms that every type has."""
    forms = []
    for letter in ANY:
        kind, two, is_float = LETTERS[letter], letter * 2, letter == "f"
        forms += [
            Form("coalesce", kind, two, "COALESCE({0}, {1})", "COALESCE({0}, {1})", keeps_near=is_float),
            Form(
                "case", kind, "b" + two, "CASE WHEN {0} THEN {1} ELSE {2} END", "CASE WHEN {0} THEN {1} ELSE {2} END", keeps_near=is_float
            ),
            Form("case", kind, "b" + letter, "CASE WHEN {0} THEN {1} END", "CASE WHEN {0} THEN {1} END", keeps_near=is_float),
            Form("nullif", kind, two, "NULLIF({0}, {1})", "CASE WHEN {0} = {1} THEN NULL ELSE {0} END"),
            Form("is_null", BOOL, letter, "({0} IS NULL)", "({0} IS NULL)"),
            Form("is_null", BOOL, letter, "({0} IS NOT NULL)", "({0} IS NOT NULL)"),
        ]
        if letter != "b":
            forms += [
                Form("greatest", kind, two, "GREATEST({0}, {1})", "greatest({0}, {1})"),
                Form("least", kind, two + letter, "LEAST({0}, {1}, {2})", "least({0}, {1}, {2})"),
                Form("case", kind, two + two, "CASE {0} WHEN {1} THEN {2} ELSE {3} END", "CASE WHEN {0} = {1} THEN {2} ELSE {3} END"),
                Form("between", BOOL, two + letter, "({0} BETWEEN {1} AND {2})", "({0} BETWEEN {1} AND {2})"),
            ]
        for name, sign in (("eq", "="), ("ne", "<>"), ("lt", "<"), ("le", "<="), ("gt", ">"), ("ge", ">=")):
            if letter != "b" or name in ("eq", "ne"):
                forms.append(Form(name, BOOL, two, f"({{0}} {sign} {{1}})", f"({{0}} {sign} {{1}})"))
    return forms


_LIKES = ("a%", "%b", "_", "%", "a\\%b", "a\\_b", "%é%", "", "A_c", "%\\\\%", "ä%", "%\t%", "__", "%ss%")
_PATTERNS = ("a", "^$", "[a-c]+", "b|é", ".", "^[^x]*$", "(?i)AB", "[0-9]{{2,}}", "s+t")
"""Patterns with the same meaning in both engines, RE2 and Rust's; braces are doubled for `format`."""
_TO_CHAR = (
    ("YYYY-MM-DD HH24:MI:SS.US", "%Y-%m-%d %H:%M:%S.%f"),
    ("DDD HH12:MI PM, Dy", "%j %I:%M %p, %a"),
    ("FMMM/FMDD/YY MS", "%-m/%-d/%y %g"),
)
_TEXT_LITERALS = ("", "a", "é", "B", "abc", "日本", "%", "it''s")

_JSON = (
    "CAST('{{\"a\":' || COALESCE(CAST(TO_JSON({0}) AS TEXT), 'null') || "
    "',\"b\":[' || COALESCE(CAST(TO_JSON({1}) AS TEXT), 'null') || ',2]}}' AS JSON)"
)
_DUCK_JSON = "json_object('a', {0}, 'b', json_array({1}, 2))"

FORMS: tuple[Form, ...] = (
    *_common(),
    Form("null", INT, "ii", "COALESCE(NULL, {0}, NULL, {1})", "COALESCE({0}, {1})"),
    Form("null", BOOL, "i", "({0} = NULL)", "({0} = NULL)"),
    Form("null", BOOL, "b", "({0} OR NULL)", "({0} OR NULL)"),
    Form("null", TEXT, "t", "({0} || NULL)", "({0} || NULL)"),
    Form("null", TEXT, "bt", "CASE WHEN {0} THEN {1} ELSE NULL END", "CASE WHEN {0} THEN {1} ELSE NULL END"),
    Form("null", FLOAT, "f", "GREATEST({0}, NULL)", "greatest({0}, NULL)"),
    Form("null", INT, "i", "({0} + NULL)", "NULL::BIGINT"),
    Form("null", TIME, "m", "LEAST(NULL, {0})", "{0}"),
    Form("add", INT, "ii", "({0} + {1})", "i_add({0}, {1})"),
    Form("sub", INT, "ii", "({0} - {1})", "i_sub({0}, {1})"),
    Form("mul", INT, "ii", "({0} * {1})", "i_mul({0}, {1})"),
    Form("div", INT, "ii", "({0} / {1})", "i_div({0}, {1})"),
    Form("mod", INT, "ii", "({0} % {1})", "i_mod({0}, {1})"),
    Form("mod", BOOL, "i", "({0} % 4 = 0)", "(i_mod({0}, 4) = 0)"),
    Form("mod", INT, "i", "({0} % 8)", "i_mod({0}, 8)"),
    Form("mod", INT, "i", "({0} % -3)", "i_mod({0}, -3)"),
    Form("neg", INT, "i", "(- ({0}))", "i_neg({0})"),
    Form("abs", INT, "i", "ABS({0})", "i_abs({0})"),
    Form("sign", INT, "i", "SIGN({0})", "sign({0})::BIGINT"),
    Form("round", INT, "i", "ROUND({0})", "{0}"),
    Form("floor", INT, "i", "FLOOR({0})", "{0}"),
    Form("ceil", INT, "i", "CEIL({0})", "{0}"),
    Form("length", INT, "t", "LENGTH({0})", "length({0})::BIGINT"),
    Form("cast", INT, "f", "CAST({0} AS BIGINT)", "f_int({0})"),
    Form("cast", INT, "t", "CAST({0} AS BIGINT)", "t_int({0})"),
    Form("cast", INT, "b", "CAST({0} AS INT)", "{0}::BIGINT"),
    Form("cast", INT, "m", "CAST({0} AS BIGINT)", "m_seconds({0})"),
    Form("cast", INT, "v", "CAST({0} AS BIGINT)", "v_seconds({0})"),
    *(
        Form(f"extract_{part}", INT, "m", f"EXTRACT({part} FROM {{0}})", f"extract('{part}' FROM dated({{0}}))::BIGINT")
        for part in ("year", "quarter", "month", "week", "day", "dow", "doy", "hour", "minute")
    ),
    *(
        Form(f"extract_{part}", INT, "m", f"{part.upper()}({{0}})", f"extract('{part}' FROM dated({{0}}))::BIGINT")
        for part in ("year", "quarter", "month", "week", "day", "hour", "minute")
    ),
    Form("extract_doy", INT, "m", "DAYOFYEAR({0})", "extract('doy' FROM dated({0}))::BIGINT"),
    Form("extract_dow", INT, "m", "DAYOFWEEK({0})", "(extract('dow' FROM dated({0})) + 1)::BIGINT"),
    Form("extract_second", INT, "m", "SECOND({0})", "extract('second' FROM dated({0}))::BIGINT"),
    *(
        Form(
            "timestampdiff",
            INT,
            "mm",
            f"TIMESTAMPDIFF({unit}, {{0}}, {{1}})",
            f"i_div(i_sub(epoch_us({{1}}), epoch_us({{0}})), {us}::BIGINT)",
        )
        for unit, us in (("MICROSECOND", 1), ("SECOND", 1_000_000), ("DAY", 86_400_000_000))
    ),
    Form("trunc", INT, "i", "TRUNC({0}, 2)", "{0}"),
    Form("ascii", INT, "t", "ASCII({0})", "unicode(CASE WHEN {0} = '' THEN chr(0) ELSE {0} END)::BIGINT"),
    Form("strpos", INT, "tt", "STRPOS({0}, {1})", "t_strpos({0}, {1})"),
    Form("strpos", INT, "tt", "POSITION({1} IN {0})", "t_strpos({0}, {1})"),
    Form("strpos", INT, "tt", "LOCATE({1}, {0})", "t_strpos({0}, {1})"),
    Form("add", FLOAT, "ff", "({0} + {1})", "({0} + {1})"),
    Form("add", FLOAT, "if", "({0} + {1})", "({0}::DOUBLE + {1})"),
    Form("sub", FLOAT, "ff", "({0} - {1})", "({0} - {1})"),
    Form("mul", FLOAT, "ff", "({0} * {1})", "({0} * {1})", keeps_near=True),
    Form("div", FLOAT, "ff", "({0} / {1})", "f_div({0}, {1})", keeps_near=True),
    Form("div", FLOAT, "fi", "({0} / {1})", "f_div({0}, {1}::DOUBLE)", keeps_near=True),
    Form("mod", FLOAT, "ff", "({0} % {1})", "f_mod({0}, {1})"),
    Form("neg", FLOAT, "f", "(- ({0}))", "(- ({0}))", keeps_near=True),
    Form("abs", FLOAT, "f", "ABS({0})", "abs({0})", keeps_near=True),
    Form("sign", FLOAT, "f", "SIGN({0})", "f_sign({0})"),
    Form("round", FLOAT, "f", "ROUND({0})", "round({0})"),
    Form("round", FLOAT, "h", "ROUND({0}, 2)", "round({0}, 2)", near=True),
    Form("floor", FLOAT, "f", "FLOOR({0})", "floor({0})"),
    Form("ceil", FLOAT, "f", "CEIL({0})", "ceil({0})"),
    Form("sqrt", FLOAT, "f", "SQRT({0})", "f_sqrt({0})", keeps_near=True),
    Form("ln", FLOAT, "f", "LN({0})", "f_ln({0})", near=True),
    Form("log10", FLOAT, "f", "LOG10({0})", "f_log10({0})", near=True),
    Form("log10", FLOAT, "f", "LOG({0})", "f_log10({0})", near=True),
    Form("ln", FLOAT, "f", "LOG(2.0, {0})", "f_div(f_ln({0}), f_ln(2.0::DOUBLE))", near=True),
    Form("exp", FLOAT, "h", "EXP({0})", "exp({0})", near=True),
    Form("exp", FLOAT, "f", "EXP({0})", "exp({0})", near=True),
    Form("ln", FLOAT, "f", "LOG2({0})", "f_div(f_ln({0}), f_ln(2.0::DOUBLE))", near=True),
    Form("trunc", FLOAT, "f", "TRUNC({0})", "trunc({0})"),
    Form("trunc", FLOAT, "h", "TRUNC({0}, 1)", "f_trunc1({0})", near=True),
    Form("cbrt", FLOAT, "f", "CBRT({0})", "cbrt({0})", near=True),
    *(Form(name, FLOAT, "h", f"{name.upper()}({{0}})", f"f_{name}({{0}})", near=True) for name in ("sin", "cos", "tan")),
    *(Form(name, FLOAT, "f", f"{name.upper()}({{0}})", f"f_{name}({{0}})", near=True) for name in ("asin", "acos")),
    Form("atan", FLOAT, "f", "ATAN({0})", "atan({0})", near=True),
    Form("atan2", FLOAT, "ff", "ATAN2({0}, {1})", "atan2({0}, {1})", near=True),
    Form("degrees", FLOAT, "f", "DEGREES({0})", "degrees({0})", near=True),
    Form("radians", FLOAT, "f", "RADIANS({0})", "radians({0})", near=True),
    Form("power", FLOAT, "ff", "POWER({0}, {1})", "f_power({0}, {1})", near=True),
    Form("power", FLOAT, "fs", "POWER({0}, {1})", "f_power({0}, {1}::DOUBLE)", near=True),
    Form("cast", FLOAT, "i", "CAST({0} AS DOUBLE)", "{0}::DOUBLE"),
    Form("cast", FLOAT, "b", "CAST({0} AS DOUBLE)", "{0}::INT::DOUBLE"),
    Form("cast", FLOAT, "t", "CAST({0} AS DOUBLE)", "t_float({0})"),
    Form("cast", FLOAT, "f", "CAST(CAST({0} AS TEXT) AS DOUBLE)", "{0}"),
    Form("cast", FLOAT, "m", "CAST({0} AS DOUBLE)", "(epoch_us({0}) / 1000000)"),
    Form("cast", FLOAT, "v", "CAST({0} AS DOUBLE)", "({0} / 1000000)"),
    Form("extract_second", FLOAT, "m", "EXTRACT(second FROM {0})", "(extract('microsecond' FROM dated({0})) / 1000000)"),
    Form("extract_epoch", FLOAT, "m", "EXTRACT(EPOCH FROM {0})", "(epoch_us({0}) / 1000000)"),
    Form("extract_epoch", FLOAT, "v", "EXTRACT(EPOCH FROM {0})", "({0} / 1000000)"),
    Form("lower", TEXT, "t", "LOWER({0})", "t_lower({0})"),
    Form("upper", TEXT, "t", "UPPER({0})", "t_upper({0})"),
    Form("substr", TEXT, "tsi", "SUBSTR({0}, {1}, {2})", "t_substr({0}, {1}, {2})"),
    Form("substr", TEXT, "ti", "SUBSTRING({0}, {1})", "t_from({0}, {1})"),
    Form("substr", TEXT, "ts", "SUBSTRING({0} FROM {1} FOR 2)", "t_substr({0}, {1}, 2)"),
    Form("left", TEXT, "ts", "LEFT({0}, {1})", "t_left({0}, {1})"),
    Form("concat", TEXT, "tt", "({0} || {1})", "({0} || {1})"),
    Form("concat", TEXT, "ti", "CONCAT({0}, '-', {1})", "concat({0}, '-', {1})"),
    Form("concat", TEXT, "bt", "({0} || {1})", "({0}::TEXT || {1})"),
    Form("trim", TEXT, "t", "TRIM({0})", "trim({0}, ' ')"),
    Form("ltrim", TEXT, "t", "LTRIM({0})", "ltrim({0}, ' ')"),
    Form("rtrim", TEXT, "t", "TRIM(TRAILING FROM {0})", "rtrim({0}, ' ')"),
    Form("replace", TEXT, "t", "REPLACE({0}, 'a', 'é')", "replace({0}, 'a', 'é')"),
    Form("replace", TEXT, "t", "REPLACE({0}, '', 'x')", "{0}"),
    Form("replace", TEXT, "t", "REPLACE({0}, '.', '$1')", "replace({0}, '.', '$1')"),
    Form("trim", TEXT, "t", "BTRIM({0}, 'a 1')", "trim({0}, 'a 1')"),
    Form("ltrim", TEXT, "t", "TRIM(LEADING 'é' FROM {0})", "ltrim({0}, 'é')"),
    Form("rtrim", TEXT, "t", "RTRIM({0}, 'bc')", "rtrim({0}, 'bc')"),
    Form("lpad", TEXT, "ts", "LPAD({0}, {1} + 3, 'äb')", "t_lpad({0}, {1} + 3, 'äb')"),
    Form("rpad", TEXT, "ts", "RPAD({0}, {1} + 3)", "t_rpad({0}, {1} + 3, ' ')"),
    Form("repeat", TEXT, "ts", "REPEAT({0}, {1})", "repeat({0}, greatest({1}, CASE WHEN {1} IS NOT NULL THEN 0 END))"),
    Form("reverse", TEXT, "t", "REVERSE({0})", "reverse({0})"),
    Form("split_part", TEXT, "ts", "SPLIT_PART({0}, 'a', {1} + 0)", "t_part({0}, 'a', {1})"),
    Form("split_part", TEXT, "t", "SPLIT_PART({0}, '-', 2)", "split_part({0}, '-', 2)"),
    Form("split_index", TEXT, "ts", "SPLIT_INDEX({0}, 'a', {1})", "CASE WHEN {1} >= 0 THEN string_split({0}, 'a')[{1} + 1] END"),
    Form("right", TEXT, "ts", "RIGHT({0}, {1})", "right({0}, {1})"),
    Form("concat_ws", TEXT, "tt", "CONCAT_WS(', ', {0}, NULL, {1})", "concat_ws(', ', {0}, {1})"),
    Form("initcap", TEXT, "t", "INITCAP(REGEXP_REPLACE({0}, '[^a-zA-Z ]', '', 'g'))", "t_initcap({0})"),
    Form("chr", TEXT, "s", "CHR({0} + 100)", "chr(({0} + 100)::INT)"),
    Form("md5", TEXT, "t", "MD5({0})", "md5({0})"),
    Form("sha256", TEXT, "t", "SHA256({0})", "sha256({0})"),
    *(Form("regexp_extract", TEXT, "t", f"REGEXP_EXTRACT({{0}}, '{p}')", f"t_extract({{0}}, '{p}')") for p in _PATTERNS[::2]),
    Form("regexp_replace", TEXT, "t", "REGEXP_REPLACE({0}, '([a-z])(b)', '\\2-\\1$')", "regexp_replace({0}, '([a-z])(b)', '\\2-\\1$')"),
    Form("regexp_replace", TEXT, "t", "REGEXP_REPLACE({0}, '[^a-z]', '<\\&>', 'g')", "regexp_replace({0}, '[^a-z]', '<\\0>', 'g')"),
    *(Form("to_char", TEXT, "m", f"TO_CHAR({{0}}, '{ours}')", f"strftime(dated({{0}}), '{duck}')") for ours, duck in _TO_CHAR),
    Form("to_char", TEXT, "m", "DATE_FORMAT({0}, 'yyyy-MM-dd''T''HH:mm')", "strftime(dated({0}), '%Y-%m-%dT%H:%M')"),
    Form("overlay", TEXT, "t", "OVERLAY({0} PLACING 'ä' FROM 2 FOR 1)", "(left({0}, 1) || 'ä' || substring({0}, 3))"),
    Form("cast", TEXT, "i", "CAST({0} AS TEXT)", "{0}::TEXT"),
    Form("cast", TEXT, "b", "CAST({0} AS TEXT)", "{0}::TEXT"),
    Form("cast", TEXT, "m", "CAST({0} AS TEXT)", "m_text(dated({0}))"),
    Form("cast", TEXT, "h", "CAST({0} AS TEXT)", "{0}::TEXT"),
    Form("json", TEXT, "t", "({0} ->> 0)", "CASE WHEN json_valid({0}) THEN {0}::JSON ->> 0 END"),
    Form("json", INT, "t", "JSON_ARRAY_LENGTH({0})", "j_length(CASE WHEN json_valid({0}) THEN {0}::JSON END)"),
    Form("json_text", TEXT, "tt", f"({_JSON} ->> 'a')", f"({_DUCK_JSON} ->> 'a')"),
    Form("json_text", TEXT, "tt", f"({_JSON} -> 'b' ->> -2)", f"({_DUCK_JSON} -> 'b' ->> -2)"),
    Form("json_text", TEXT, "tts", f"({_JSON} -> 'b' ->> {{2}})", f"({_DUCK_JSON} -> 'b' ->> {{2}})"),
    Form("json_get", BOOL, "tt", f"(({_JSON} -> 'c') IS NULL)", f"(({_DUCK_JSON} -> 'c') IS NULL)"),
    Form("json_get", INT, "tt", f"CAST({_JSON} -> 'b' -> 1 AS BIGINT)", f"CAST({_DUCK_JSON} -> 'b' -> 1 AS BIGINT)"),
    Form("json_length", INT, "tt", f"JSONB_ARRAY_LENGTH({_JSON} -> 'b')", f"j_length({_DUCK_JSON} -> 'b')"),
    Form("json_typeof", TEXT, "tt", f"JSON_TYPEOF({_JSON} -> 'a')", f"j_type({_DUCK_JSON} -> 'a')"),
    Form(
        "int_array",
        INT,
        "iis",
        "CAST('[' || CAST({0} AS TEXT) || ',' || CAST({1} AS TEXT) || ',null]' AS BIGINT[])[{2}]",
        "CASE WHEN {0} IS NOT NULL AND {1} IS NOT NULL AND {2} > 0 THEN [{0}, {1}, NULL][{2}] END",
    ),
    Form("text_array", TEXT, "tt", f"CAST({_JSON} -> 'b' AS TEXT[])[1]", "{1}"),
    Form("json_array", INT, "tt", f"CARDINALITY(CAST({_JSON} -> 'b' AS JSON[]))", "2"),
    Form("bool_array", BOOL, "b", "CAST('[' || LOWER(CAST({0} AS TEXT)) || ']' AS BOOLEAN[])[1]", "[{0}][1]"),
    Form("float_array", FLOAT, "i", "CAST('[' || CAST({0} AS TEXT) || ']' AS DOUBLE[])[1]", "[{0}::DOUBLE][1]"),
    Form("time_array", TIME, "m", "CAST('[\"' || CAST({0} AS TEXT) || '\"]' AS TIMESTAMP[])[1]", "[dated({0})][1]"),
    Form(
        "struct_of",
        TEXT,
        "ti",
        "(CAST('{{\"a\":' || COALESCE(CAST(TO_JSON({0}) AS TEXT), 'null') || ',\"b\":[{{\"c\":' || COALESCE(CAST({1} AS TEXT), 'null') || "
        "'}}]}}' AS STRUCT<a TEXT, b STRUCT<c BIGINT>[]>)).a",
        "{{'a': {0}, 'b': [{{'c': {1}}}]}}.a",
    ),
    Form(
        "struct_of",
        INT,
        "ti",
        "(CAST('{{\"b\":[{{\"c\":' || COALESCE(CAST({1} AS TEXT), 'null') || '}}]}}' AS STRUCT<a TEXT, b STRUCT<c BIGINT>[]>)).b[1].c",
        "{{'a': {0}, 'b': [{{'c': {1}}}]}}.b[1].c",
    ),
    Form("to_json", TEXT, "b", "CAST(TO_JSON({0}) AS TEXT)", "to_json({0})::TEXT"),
    Form("to_json", TEXT, "t", "(TO_JSON({0}) ->> NULL)", "NULL::TEXT"),
    Form("to_json", FLOAT, "f", "CAST(TO_JSON({0}) AS DOUBLE)", "CASE WHEN isfinite({0}) THEN {0} END"),
    Form("and", BOOL, "bb", "({0} AND {1})", "({0} AND {1})"),
    Form("and", BOOL, "bbb", "({0} AND {1} AND {2})", "({0} AND {1} AND {2})"),
    Form("or", BOOL, "bb", "({0} OR {1})", "({0} OR {1})"),
    Form("not", BOOL, "b", "(NOT {0})", "(NOT {0})"),
    Form("is_true", BOOL, "b", "({0} IS TRUE)", "({0} IS TRUE)"),
    Form("is_true", BOOL, "b", "({0} IS NOT FALSE)", "({0} IS NOT FALSE)"),
    *(Form("like", BOOL, "t", f"({{0}} LIKE '{p}')", f"({{0}} LIKE '{p}' ESCAPE '\\')") for p in _LIKES),
    *(Form("ilike", BOOL, "t", f"({{0}} NOT ILIKE '{p}')", f"({{0}} NOT ILIKE '{p}' ESCAPE '\\')") for p in _LIKES[::3]),
    *(Form("regexp_like", BOOL, "t", f"({{0}} ~ '{p}')", f"regexp_matches({{0}}, '{p}')") for p in _PATTERNS),
    Form("regexp_like", BOOL, "t", "({0} !~* 'B')", "(NOT regexp_matches({0}, '(?i)B'))"),
    Form("ends_with", BOOL, "tt", "ENDS_WITH({0}, {1})", "ends_with({0}, {1})"),
    Form("distinct", BOOL, "ii", "({0} IS DISTINCT FROM {1})", "({0} IS DISTINCT FROM {1})"),
    Form("distinct", BOOL, "tt", "({0} IS NOT DISTINCT FROM {1})", "({0} IS NOT DISTINCT FROM {1})"),
    Form("between", BOOL, "fff", "({0} BETWEEN SYMMETRIC {1} AND {2})", "(({0} BETWEEN {1} AND {2}) OR ({0} BETWEEN {2} AND {1}))"),
    Form("starts_with", BOOL, "tt", "STARTS_WITH({0}, {1})", "starts_with({0}, {1})"),
    Form("in", BOOL, "t", "({0} IN ('a', 'é', ''))", "({0} IN ('a', 'é', ''))"),
    Form("in", BOOL, "i", "({0} IN (0, 7, NULL))", "({0} IN (0, 7, NULL))"),
    Form("in", BOOL, "f", "({0} NOT IN (0, 1.5))", "({0} NOT IN (0::DOUBLE, 1.5::DOUBLE))"),
    Form("cast", BOOL, "i", "CAST({0} AS BOOLEAN)", "({0} <> 0)"),
    Form("cast", BOOL, "f", "CAST({0} AS BOOLEAN)", "({0} <> 0)"),
    Form("cast", BOOL, "t", "CAST({0} AS BOOLEAN)", "t_bool({0})"),
    Form("lt", BOOL, "if", "({0} < {1})", "({0}::DOUBLE < {1})"),
    Form("eq", BOOL, "fi", "({0} = {1})", "({0} = {1}::DOUBLE)"),
    Form("ge", BOOL, "m", "({0} >= '1970-01-01 00:00:00')", "({0} >= '1970-01-01'::TIMESTAMP)"),
    Form("add", TIME, "mv", "({0} + {1})", "moved({0}, {1})"),
    Form("add", TIME, "mv", "({1} + {0})", "moved({0}, {1})"),
    Form("sub", TIME, "mv", "({0} - {1})", "moved({0}, i_neg({1}))"),
    *(
        Form("date_trunc", TIME, "m", f"DATE_TRUNC('{unit}', {{0}})", f"date_trunc('{unit}', dated({{0}}))")
        for unit in ("microsecond", "millisecond", "second", "minute", "hour", "day", "week", "month", "quarter", "year")
    ),
    Form("to_timestamp", TIME, "c", "TO_TIMESTAMP({0}, 'YYYY-MM-DD')", "t_day({0})"),
    Form("to_timestamp", TIME, "m", "TO_TIMESTAMP(TO_CHAR({0}, 'YYYYMMDD HH24MISS.US'), 'YYYYMMDD HH24MISS.US')", "dated({0})"),
    Form("cast", TIME, "s", "TO_TIMESTAMP({0})", "make_timestamp({0} * 1000000)"),
    Form("add", TIME, "sm", "TIMESTAMPADD(HOUR, {0}, {1})", "moved({1}, {0} * 3600000000)"),
    Form("cast", TIME, "c", "CAST({0} AS TIMESTAMP)", "t_time({0})"),
    Form("cast", TIME, "s", "CAST({0} * 100000 AS TIMESTAMP)", "make_timestamp({0} * 100000000000)"),
    Form("cast", TIME, "h", "CAST({0} AS TIMESTAMP)", "make_timestamp(f_int({0} * 1000000))"),
    Form("sub", INTERVAL, "mm", "({0} - {1})", "(epoch_us({0}) - epoch_us({1}))"),
    Form("add", INTERVAL, "vv", "({0} + {1})", "i_add({0}, {1})"),
    Form("sub", INTERVAL, "vv", "({0} - {1})", "i_sub({0}, {1})"),
    Form("mul", INTERVAL, "vs", "({0} * {1})", "i_mul({0}, {1})"),
    Form("mul", INTERVAL, "vh", "({1} * {0})", "v_scaled({0}, {1})"),
    Form("div", INTERVAL, "vs", "({0} / {1})", "i_div({0}, {1})"),
    Form("div", INTERVAL, "vh", "({0} / {1})", "v_shared({0}, {1})"),
    Form("neg", INTERVAL, "v", "(- ({0}))", "i_neg({0})"),
    Form("abs", INTERVAL, "v", "ABS({0})", "i_abs({0})"),
    Form("cast", INTERVAL, "s", "CAST({0} AS INTERVAL)", "({0} * 1000000)"),
    Form("cast", INTERVAL, "h", "CAST({0} AS INTERVAL)", "f_int({0} * 1000000)"),
)

_NULLS = {kind: (f"CAST(NULL AS {kind})", f"NULL::{kind}") for kind in (BOOL, INT, FLOAT, TEXT)}
LITERALS: dict[str, tuple[tuple[str, str], ...]] = {
    BOOL: (("TRUE", "true"), ("FALSE", "false"), _NULLS[BOOL]),
    INT: (*((str(n), f"{n}::BIGINT") for n in (0, 1, 2, 3, 10, 2**62, 2**63 - 1)), ("(-3)", "(-3)::BIGINT"), _NULLS[INT]),
    FLOAT: (
        *((text, f"'{text}'::DOUBLE") for text in ("0.0", "0.5", "1.5", "2.0", "0.1", "1e300", "3.0")),
        ("(-0.0)", "'-0.0'::DOUBLE"),
        ("(-2.5)", "'-2.5'::DOUBLE"),
        ("CAST('NaN' AS DOUBLE)", "'nan'::DOUBLE"),
        _NULLS[FLOAT],
    ),
    TEXT: (*((f"'{text}'", f"'{text}'") for text in _TEXT_LITERALS), _NULLS[TEXT]),
    TIME: tuple((f"TIMESTAMP '{text}'", f"'{text}'::TIMESTAMP") for text in ("1969-12-31 23:59:59.5", "2026-03-01 00:00:10", "2000-02-29")),
    INTERVAL: (
        ("INTERVAL '1 second'", "1000000::BIGINT"),
        ("INTERVAL '90 minutes'", "5400000000::BIGINT"),
        ("INTERVAL '-1 day'", "(-86400000000)::BIGINT"),
        ("INTERVAL '0.25 s'", "250000::BIGINT"),
        ("INTERVAL '1' HOUR", "3600000000::BIGINT"),
    ),
}
COMPUTED: dict[str, tuple[tuple[str, str], ...]] = {
    BOOL: (("(ABS(-3) = 3)", "true"), ("(SQRT(4.0) > 2)", "false"), ("(LN(1.0) = NULL)", "NULL::BOOLEAN")),
    INT: (
        ("ABS(-3)", "3::BIGINT"),
        ("LENGTH('ab')", "2::BIGINT"),
        ("CAST('1' AS BIGINT)", "1::BIGINT"),
        ("SIGN(-5)", "(-1)::BIGINT"),
        ("(7 % 4)", "3::BIGINT"),
        ("GREATEST(0, -1)", "0::BIGINT"),
    ),
    FLOAT: (
        ("ABS(-1.5)", "1.5::DOUBLE"),
        ("SQRT(0.25)", "0.5::DOUBLE"),
        ("ROUND(1.7)", "2.0::DOUBLE"),
        ("(3.0 / 2)", "1.5::DOUBLE"),
        ("LN(-1.0)", "NULL::DOUBLE"),
    ),
    TEXT: (("TRIM(' a ')", "'a'"), ("SUBSTR('abc', 2, 1)", "'b'"), ("CAST(12 AS TEXT)", "'12'"), ("REPLACE('axc', 'x', 'b')", "'abc'")),
    TIME: (
        ("DATE_TRUNC('day', TIMESTAMP '1969-12-31 23:59:59')", "'1969-12-31'::TIMESTAMP"),
        ("CAST(0 AS TIMESTAMP)", "'1970-01-01'::TIMESTAMP"),
    ),
    INTERVAL: (("ABS(INTERVAL '-1 second')", "1000000::BIGINT"), ("(INTERVAL '3 s' / 2)", "1500000::BIGINT")),
}
"""Constant expressions that an engine must compute."""
SMALL = {"small INT": (INT, "g", ("(-3)", "2", "0", "1", "5")), "small DOUBLE": (FLOAT, "y", ("0.5", "(-1.25)", "3.0", "10.0"))}
