"""Refuses keywords of other dialects at their place, where the parser would fail later or with a vaguer message."""

from collections.abc import Callable, Sequence

from sqlglot import exp
from sqlglot.tokenizer_core import Token, TokenType

from sbon.errors import QueryError
from sbon.query.dialect import Text

_NO_CREATE = "leave it out: there is one name space, which needs no CREATE"
_CREATED = {
    "INDEX": ("INDEX", "leave it out: operators keep what they need by key"),
    "FUNCTION": ("FUNCTION", "write it in Python, as docs/sql.md says under 'Functions of your own'"),
    "AGGREGATE": ("AGGREGATE", "write it in Python, as docs/sql.md says under 'Functions of your own'"),
    "DATABASE": ("DATABASE", _NO_CREATE),
    "SCHEMA": ("SCHEMA", _NO_CREATE),
    "CATALOG": ("CATALOG", _NO_CREATE),
    "STREAM": ("STREAM", "write CREATE SOURCE name (column type, ...) WITH (...)"),
    "CONNECTION": ("CONNECTION", "leave it out, and give its options in WITH (...) of each source and sink"),
    "SECRET": ("SECRET", "leave it out, and give its options in WITH (...) of each source and sink"),
    "USER": ("USER", "leave it out: whoever can reach the control socket, or has the cluster key, may do everything"),
    "ROLE": ("ROLE", "leave it out: whoever can reach the control socket, or has the cluster key, may do everything"),
}
"""Objects of other dialects that CREATE does not make here."""
_COLUMN_TYPES = ("MAP", "MULTISET")


def refuse_query_words(text: Text, tokens: Sequence[Token]) -> None:
    """Refuses keywords that no SELECT has in this dialect.

    Raises
    ------
    QueryError
        Points at the word.
    """
    for place, token in enumerate(tokens):
        word, following = token.text.upper(), tokens[place + 1] if place + 1 < len(tokens) else None
        if token.token_type in (TokenType.STRING, TokenType.IDENTIFIER) or following is None:
            continue
        if word == "TOP" and following.token_type == TokenType.NUMBER and tokens[place - 1].token_type == TokenType.SELECT:
            hint = f"write ORDER BY x DESC LIMIT {following.text} over a window, for the first rows of each window"
            raise text.error(token, "TOP is not supported", hint)


def refuse_create_words(text: Text, tokens: Sequence[Token]) -> None:
    """Refuses keywords that no CREATE has in this dialect.

    Raises
    ------
    QueryError
        Points at the word.
    """
    words = [token.text.upper() for token in tokens]
    early = next((token for token in tokens[1:4] if token.text.upper() in ("TEMPORARY", "TEMP")), None)
    if early is not None:
        raise text.error(early, f"{early.text} is not supported", "leave it out, and DROP what is no longer needed")
    made = next((place for place in range(1, min(4, len(words))) if words[place] in _CREATED), 0)
    if made and not {"SOURCE", "SINK", "VIEW", "TABLE"}.intersection(words[1:made]):
        name, hint = _CREATED[words[made]]
        raise text.error(tokens[made], f"CREATE {name} is not supported", hint)
    kind = next((word for word in words[1:5] if word in ("SOURCE", "SINK", "VIEW", "TABLE")), "")
    if kind == "SINK" and "INTO" in words[2:7]:
        into = tokens[words.index("INTO")]
        raise text.error(into, "CREATE SINK INTO is not supported", "write CREATE VIEW name AS ... UNION ALL ..., and read from that")
    if kind in ("SOURCE", "TABLE"):
        _refuse_columns(text, tokens)
        _refuse_behind_columns(text, tokens)


def _refuse_columns(text: Text, tokens: Sequence[Token]) -> None:
    depth = 0
    for place, token in enumerate(tokens):
        depth += {TokenType.L_PAREN: 1, TokenType.R_PAREN: -1}.get(token.token_type, 0)
        word = token.text.upper()
        if depth != 1 or token.token_type in (TokenType.STRING, TokenType.IDENTIFIER):
            continue
        begins = tokens[place - 1].token_type in (TokenType.L_PAREN, TokenType.COMMA)
        second = place > 1 and tokens[place - 2].token_type in (TokenType.L_PAREN, TokenType.COMMA)
        if word == "METADATA" and not begins:
            raise text.error(token, "METADATA columns are not supported", "leave the column out: a source has only the columns of its rows")
        if second and word in _COLUMN_TYPES:
            hint = "declare it JSON, and take its members with -> and ->>: payload -> 'user' ->> 'name'"
            raise text.error(token, f"type {word} is not supported", hint)


def _refuse_behind_columns(text: Text, tokens: Sequence[Token]) -> None:
    """Refuses every clause after the column list except WITH (...)."""
    end = _closing(tokens, next((i for i, token in enumerate(tokens) if token.token_type == TokenType.L_PAREN), len(tokens)))
    if end + 1 < len(tokens) and tokens[end + 1].token_type == TokenType.WITH:
        end = _closing(tokens, end + 2)
    if end + 1 >= len(tokens):
        return
    stray = tokens[end + 1]
    word = stray.text.upper()
    hint = "end the statement with WITH (name = 'value', ...)"
    if word in ("FORMAT", "ENCODE", "ROW"):
        hint = "leave it out: `tcp` reads NDJSON; `file` goes by the end of the name, or by WITH (format = 'csv', 'ndjson' or 'parquet')"
    elif word in ("PARTITIONED", "DISTRIBUTED", "COMMENT", "INCLUDE"):
        hint = f"leave {word} out"
    raise text.error(stray, f"{stray.text} is not supported here", hint)


def _closing(tokens: Sequence[Token], opening: int) -> int:
    depth = 0
    for place in range(opening, len(tokens)):
        depth += {TokenType.L_PAREN: 1, TokenType.R_PAREN: -1}.get(tokens[place].token_type, 0)
        if depth == 0:
            return place
    return len(tokens)


def foreign_input(text: Text, tree: exp.Expr) -> QueryError | None:
    """Returns the error for an input of FROM that is neither a name, a function nor a SELECT in brackets; None if it may be valid."""
    match tree:
        case exp.Unnest():
            message, hint = "UNNEST goes with a stream before it", "write FROM s CROSS JOIN UNNEST(s.items) AS t(item)"
        case exp.Table(this=exp.Anonymous(this=str() as name)) if name.lower() in ("json_array_elements", "jsonb_array_elements"):
            message, hint = f"{name} is not supported", "write FROM s CROSS JOIN UNNEST(s.items) AS t(item), also of JSON"
        case exp.Lateral():
            message, hint = "LATERAL is not supported", "JOIN the other stream within an interval"
        case exp.Values():
            message = "VALUES is not supported: rows come from sources"
            hint = "write them into a file, and CREATE SOURCE name (...) WITH (connector = 'file', path = '...')"
        case _:
            return None
    # The parser gives these no place in the text; a tree inside may have one.
    word = message.partition(" ")[0]
    return text.keyword_error(tree, word, message, hint)


_WITHIN = "JOIN it within an interval"
_SUBQUERIES: dict[str, tuple[str, str]] = {
    "EXISTS": ("EXISTS is not supported", f"to keep rows with a partner in another stream, {_WITHIN}"),
    "NOT EXISTS": ("NOT EXISTS is not supported", "LEFT JOIN the other stream within an interval, and write WHERE other.key IS NULL"),
    "IN": ("IN takes a list of literals", f"to match against another stream, {_WITHIN}"),
    "NOT IN": ("NOT IN takes a list of literals", "LEFT JOIN the other stream within an interval, and write WHERE other.key IS NULL"),
    "ALL": ("ALL is not supported", "aggregate the other stream over a window in brackets, and JOIN that"),
    "ANY": ("ANY is not supported", f"to match against another stream, {_WITHIN}"),
}


def refuse_subqueries(text: Text, where: exp.Expr) -> None:
    """Refuses conditions on subqueries in WHERE, which other dialects allow.

    Raises
    ------
    QueryError
        Points at the word.
    """
    is_subquery: Callable[[object], bool] = lambda tree: isinstance(tree, exp.Query | exp.Subquery)  # noqa: E731
    for tree in where.walk(prune=is_subquery):
        word = ""
        if isinstance(tree, exp.Exists):
            word = "EXISTS"
        elif isinstance(tree, exp.In) and tree.args.get("query") is not None:
            word = "IN"
        elif isinstance(tree, exp.All | exp.Any) and isinstance(tree.this, exp.Expr) and tree.this.find(exp.Query) is not None:
            word = "ALL" if isinstance(tree, exp.All) else "ANY"
        if not word:
            continue
        if isinstance(tree.parent, exp.Not) and f"NOT {word}" in _SUBQUERIES:
            word = f"NOT {word}"
        if isinstance(tree, exp.In):  # IN has the place of the value before it
            raise text.error(tree, *_SUBQUERIES[word])
        raise text.keyword_error(tree, word, *_SUBQUERIES[word])
