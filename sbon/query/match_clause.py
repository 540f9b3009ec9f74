"""Parses the brackets of MATCH_RECOGNIZE into a tree of sqlglot, with the parts that sqlglot does not know in the tree's `meta`.

`meta` has `pattern`, the words of PATTERN; `pattern_end`, the offset of its closing bracket; `after`, the words of AFTER MATCH SKIP;
`rows`, the words of the row mode; `subsets`, as (word, words); and `start`. Measures and definitions are aliases.
"""

from typing import Any

from sqlglot import exp
from sqlglot.tokenizer_core import Token, TokenType

_NAMES = (TokenType.VAR, TokenType.IDENTIFIER)
_NO_NAMES = frozenset("()|*+?{},-^$;.=<>!/")


def row_pattern_clause(parser: Any) -> exp.MatchRecognize | None:
    """Returns the clause at the parser's place, or None if there is none.

    Parameters
    ----------
    parser : a parser of sqlglot, whose `raise_error` raises errors
    """
    opened = parser._curr
    parser._advance()
    parser._match_l_paren()
    parser.in_pattern = True
    tree = exp.MatchRecognize()
    tree.meta["start"] = opened.start
    if parser._match(TokenType.PARTITION_BY):
        tree.set("partition_by", parser._parse_csv(lambda: _partition(parser)))
    tree.set("order", parser._parse_order())
    if parser._match_text_seq("MEASURES"):
        tree.set("measures", parser._parse_csv(lambda: _measure(parser)))
    tree.meta["rows"] = _words_until(parser, ("AFTER", "PATTERN"))
    tree.meta["after"] = _words_until(parser, ("PATTERN",))
    if not parser._match_text_seq("PATTERN"):
        parser.raise_error("PATTERN (...) is expected in MATCH_RECOGNIZE", parser._curr or parser._prev)
    parser._match_l_paren()
    tree.meta["pattern"] = _bracketed(parser)
    tree.meta["pattern_end"] = parser._prev.start
    if parser._match_text_seq("WITHIN"):
        tree.set("within", parser._parse_interval())
    tree.meta["subsets"] = _subsets(parser)
    if parser._match_text_seq("DEFINE"):
        tree.set("define", parser._parse_csv(lambda: _definition(parser)))
    parser._match_r_paren()
    parser.in_pattern = False
    tree.set("alias", parser._parse_table_alias())
    return tree


def _word(token: Token) -> tuple[str, int, bool, bool]:
    """Returns a token as the fields of `sbon.query.row_pattern_text.Word`. Tokens themselves cannot be copied with the tree."""
    quoted = token.token_type == TokenType.IDENTIFIER
    is_name = quoted or (not _NO_NAMES.intersection(token.text) and not token.text[:1].isdigit() and token.token_type != TokenType.STRING)
    return token.text, token.start, is_name, quoted


def _words_until(parser: Any, words: tuple[str, ...]) -> list[tuple[str, int, bool, bool]]:
    """Takes all words before one of these, or before a bracket."""
    found = []
    while parser._curr and parser._curr.text.upper() not in words and parser._curr.token_type != TokenType.R_PAREN:
        found.append(_word(parser._curr))
        parser._advance()
    return found


def _bracketed(parser: Any) -> list[tuple[str, int, bool, bool]]:
    """Takes all words up to the closing bracket, and the bracket."""
    found: list[tuple[str, int, bool, bool]] = []
    level = 1
    while parser._curr:
        level += {TokenType.L_PAREN: 1, TokenType.R_PAREN: -1}.get(parser._curr.token_type, 0)
        if level == 0:
            parser._advance()
            return found
        found.extend(_split(parser._curr))
        parser._advance()
    parser.raise_error("PATTERN has no closing bracket", parser._prev)
    return found


def _split(token: Token) -> list[tuple[str, int, bool, bool]]:
    """Returns a token as words; the tokenizer joins some signs that are two in a pattern, such as `||` and `*?`."""
    if token.token_type in (*_NAMES, TokenType.STRING, TokenType.NUMBER) or len(token.text) == 1 or token.text[0].isalnum():
        return [_word(token)]
    return [(sign, token.start + place, False, False) for place, sign in enumerate(token.text)]


def _subsets(parser: Any) -> list[tuple[Any, list[Any]]]:
    """Takes SUBSET u = (a, b), ..."""
    found: list[tuple[Any, list[Any]]] = []
    if parser._match_text_seq("SUBSET"):
        while True:
            name = _word(parser._curr)
            parser._advance()
            if not parser._match(TokenType.EQ):
                parser.raise_error("SUBSET u = (a, b) is expected", parser._curr or parser._prev)
            parser._match_l_paren()
            found.append((name, [word for word in _bracketed(parser) if word[0] != ","]))
            if not parser._match(TokenType.COMMA):
                break
    return found


def _partition(parser: Any) -> exp.Expr:
    first = parser._curr
    value: exp.Expr | None = parser._parse_disjunction()
    if value is None:
        parser.raise_error("a column is expected after PARTITION BY", parser._curr or first)
        raise AssertionError
    if parser._match(TokenType.ALIAS):
        value = exp.Alias(this=value, alias=parser._parse_id_var(any_token=True))
        value.meta["start"] = first.start
    return value


def _measure(parser: Any) -> exp.Expr:
    first = parser._curr
    value = parser._parse_disjunction()
    if value is None or not parser._match(TokenType.ALIAS):
        parser.raise_error("a measure needs a name: write LAST(a.x) AS last_x", parser._curr or first)
    name = parser._parse_id_var(any_token=True)
    tree = exp.Alias(this=value, alias=name)
    tree.meta["start"] = first.start
    return tree


def _definition(parser: Any) -> exp.Expr:
    first = parser._curr
    name = parser._parse_id_var(any_token=True)
    if name is None or not parser._match(TokenType.ALIAS):
        parser.raise_error("DEFINE a AS condition is expected", parser._curr or first)
    tree = exp.Alias(this=parser._parse_disjunction(), alias=name)
    tree.meta["start"] = first.start
    return tree
