"""Wraps sqlglot: tokens, trees, errors, and the place in the text that each tree came from.

The text is read in the dialect of RisingWave, which is PostgreSQL's with sources, sinks and watermarks.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, ClassVar

from sqlglot import exp
from sqlglot.dialects.risingwave import RisingWave
from sqlglot.errors import ErrorLevel, ParseError, SqlglotError
from sqlglot.parsers.risingwave import RisingWaveParser
from sqlglot.tokenizer_core import Token, TokenType

from sbon.errors import QueryError
from sbon.query.function_names import READ_BY_NAME
from sbon.query.match_clause import row_pattern_clause

TEXT_LENGTH_MAX = 100_000
TOKENS_MAX = 20_000
_VALUE_ENDS = (TokenType.VAR, TokenType.IDENTIFIER, TokenType.STRING, TokenType.NUMBER, TokenType.R_PAREN, TokenType.NOT)
WRITTEN_MAX = 60
"""Most characters of the user's text that a message quotes."""


class _Parser(RisingWaveParser):
    """Refuses statements that sqlglot would otherwise accept as an opaque command.

    Adds places in the text to intervals, negations and brackets, and to calls also the name as typed (`typed`).
    """

    FUNCTIONS: ClassVar[dict[str, Any]] = {name: made for name, made in RisingWaveParser.FUNCTIONS.items() if name not in READ_BY_NAME}
    FUNCTION_PARSERS: ClassVar[dict[str, Any]] = {
        name: read for name, read in RisingWaveParser.FUNCTION_PARSERS.items() if name not in READ_BY_NAME
    }

    # Inside brackets, too, `x -> 'name'` reads a member of JSON; it is not a lambda over x.
    LAMBDAS: ClassVar[dict[Any, Any]] = {token: read for token, read in RisingWaveParser.LAMBDAS.items() if token != TokenType.ARROW}
    # Keys stay as written: as JSON paths they would lose their places in the text.
    COLUMN_OPERATORS: ClassVar[dict[Any, Any]] = {
        **RisingWaveParser.COLUMN_OPERATORS,
        TokenType.ARROW: lambda self, this, key: self.expression(exp.JSONExtract(this=this, expression=key)),
        TokenType.DARROW: lambda self, this, key: self.expression(exp.JSONExtractScalar(this=this, expression=key)),
    }

    def __init__(self, *arguments: Any, **keywords: Any) -> None:
        super().__init__(*arguments, **keywords)
        self._called: list[Token | None] = []
        self.in_pattern = False
        """The parser is within the brackets of MATCH_RECOGNIZE."""

    def _parse_interval(self, *arguments: Any, **keywords: Any) -> exp.Add | exp.Interval | None:
        first = self._curr
        tree = super()._parse_interval(*arguments, **keywords)
        if isinstance(tree, exp.Interval) and first is not None:
            tree.meta["start"], tree.meta["end"] = first.start, self._prev.end
        return tree

    def _parse_paren(self) -> exp.Expr | None:
        first = self._curr
        tree: exp.Expr | None = super()._parse_paren()
        if isinstance(tree, exp.Paren) and first is not None:
            tree.meta["start"], tree.meta["end"] = first.start, self._prev.end
        return tree

    def _parse_function_call(self, *arguments: Any, **keywords: Any) -> exp.Expr | None:
        name = self._curr
        self._called.append(name)
        try:
            tree: exp.Expr | None = super()._parse_function_call(*arguments, **keywords)
        finally:
            self._called.pop()
        called = tree
        while isinstance(called, exp.Window | exp.Filter | exp.WithinGroup | exp.IgnoreNulls | exp.RespectNulls):
            called = called.this
        if called is not None and name is not None:
            called.meta.setdefault("typed", name.text)
            called.meta.setdefault("start", name.start)
            called.meta["end"] = self._prev.end
        return tree

    def _parse_lambda(self, *arguments: Any, **keywords: Any) -> exp.Expr | None:
        """Reads `PARTITION BY column` among the arguments of a function of a stream; further columns follow as arguments of their own."""
        if self._match(TokenType.PARTITION_BY):
            return self.expression(exp.PartitionedByProperty(this=self._parse_column()))
        tree: exp.Expr | None = super()._parse_lambda(*arguments, **keywords)
        return tree

    def _parse_match_recognize(self) -> exp.MatchRecognize | None:
        return row_pattern_clause(self)

    def _parse_unary(self) -> exp.Expr | None:
        first = self._curr
        if self.in_pattern and first is not None and first.text.upper() in ("RUNNING", "FINAL") and self._next.text != "(":
            self._advance()
            called: exp.Expr | None = self._parse_unary()
            if called is not None:
                called.meta["semantics"] = first.text.lower()
            return called
        tree: exp.Expr | None = super()._parse_unary()
        if isinstance(tree, exp.Neg | exp.Not) and first is not None:
            tree.meta.setdefault("start", first.start)
        return tree

    def _parse_bracket(self, this: exp.Expr | None = None) -> exp.Expr | None:
        tree: exp.Expr | None = super()._parse_bracket(this)
        if isinstance(tree, exp.Bracket):
            tree.meta["end"] = self._prev.end
        return tree

    def _parse_unnest(self, with_alias: bool = True) -> exp.Unnest | None:
        first = self._index
        tree: exp.Unnest | None = super()._parse_unnest(with_alias)
        if tree is not None and any(token.token_type == TokenType.OFFSET for token in self._tokens[first : self._index]):
            tree.meta["with_offset"] = True  # counts from 0, WITH ORDINALITY from 1; the parser's tree is the same
        return tree

    def _parse_column_reference(self) -> exp.Expr | None:
        # `x -> -1 ->> 'a'`: the parser would read everything after the minus as one value.
        minus, number = self._curr, self._next
        behind = self._prev and self._prev.token_type in (TokenType.ARROW, TokenType.DARROW)
        if behind and minus.token_type == TokenType.DASH and number and number.token_type == TokenType.NUMBER:
            self._advance()
            tree = exp.Neg(this=self._parse_primary())
            tree.meta["start"], tree.meta["end"] = minus.start, self._prev.end
            return tree
        found: exp.Expr | None = super()._parse_column_reference()
        return found

    def validate_expression(self, expression: Any, args: list[Any] | None = None) -> Any:
        name = self._called[-1] if self._called else None
        if args is not None and name is not None and isinstance(expression, exp.Func) and expression.error_messages(args):
            expected = f"{len(expression.required_args)} to {len(expression.arg_types)}"
            if len(expression.required_args) == len(expression.arg_types):
                expected = str(len(expression.arg_types))
            text = Text(self.sql)
            raise text.error(
                name, f"{name.text} has {counted(len(args), 'argument')}, expected {expected}", "look for a misplaced comma or bracket"
            )
        return super().validate_expression(expression, args)

    def _parse_as_command(self, start: Token) -> exp.Command:
        self.raise_error("Invalid expression / Unexpected token", self._curr or start)
        return super()._parse_as_command(start)


@dataclass(frozen=True)
class Text:
    """The submitted text, with methods that point into it."""

    whole: str

    def place(self, offset: int) -> tuple[int, int]:
        """Returns line and column, from 1, of a character offset, from 0."""
        offset = max(0, min(offset, len(self.whole)))
        before = self.whole[:offset]
        return before.count("\n") + 1, offset - (before.rfind("\n") + 1) + 1

    def error(self, where: exp.Expr | Token | int, message: str, hint: str = "") -> QueryError:
        """Returns an error that points at a tree, a token or an offset."""
        if isinstance(where, int):
            offset = where
        elif isinstance(where, Token):
            offset = where.start
        else:
            offset = start_of(where)
        line, column = self.place(offset)
        return QueryError(message, line=line, column=column, hint=hint)

    def keyword_error(self, tree: exp.Expr, keyword: str, message: str, hint: str = "") -> QueryError:
        """Returns an error that points at the last occurrence of a keyword before the end of a tree, or at the tree if there is none."""
        offset = start_of(tree)
        upper = self.whole.upper()
        # Some letters change length when capitalised, which would shift offsets.
        found = upper.rfind(keyword, 0, offset + len(keyword)) if keyword and len(upper) == len(self.whole) else -1
        return self.error(found if found >= 0 else offset, message, hint)

    def written(self, tree: exp.Expr) -> str:
        """Returns what was typed for a tree, on one line, shortened to `WRITTEN_MAX` characters."""
        start, end = start_of(tree), _end_of(tree)
        # The brackets of a list belong to no tree.
        while (inner := self.whole[start:end]).count("(") > inner.count(")") and (found := re.match(r"\s*\)", self.whole[end:])):
            end += found.end()
        words = " ".join(self.whole[start:end].split())
        return words if len(words) <= WRITTEN_MAX else words[: WRITTEN_MAX - 3] + "..."

    def operator(self, tree: exp.Binary) -> str:
        """Returns the operator as typed between the operands of a tree. Some right operands have no place in the text."""
        rest = self.whole[_end_of(tree.left) :].lstrip(") \t\r\n")
        found = re.match(r"[-+*/<>=~!@#%^&|?]+|(IS\s+|NOT\s+|SIMILAR\s+TO|AT\s+TIME\s+ZONE|\w+)+", rest, re.IGNORECASE)
        return " ".join(found[0].split()) if found is not None else ""

    def slice(self, tokens: Sequence[Token]) -> str:
        """Returns the part of the text that the tokens span."""
        return self.whole[tokens[0].start : tokens[-1].end + 1]


def counted(number: int, what: str) -> str:
    """Returns a number with its noun: `1 argument`, `2 arguments`."""
    return f"{number} {what}{'' if number == 1 else 's'}"


def start_of(tree: exp.Expr) -> int:
    """Returns the offset of the first character known to belong to a tree, else of its nearest parent with a place, else 0."""
    node: exp.Expr | None = tree
    while node is not None:
        starts = [start for part in node.walk() if isinstance(start := part.meta.get("start"), int)]
        if starts:
            return min(starts)
        node = node.parent
    return 0


def _end_of(tree: exp.Expr) -> int:
    """Returns the offset after the last character known to belong to a tree; its start if there is none."""
    ends = [end for part in tree.walk() if isinstance(end := part.meta.get("end"), int)]
    return max(ends) + 1 if ends else start_of(tree)


def tokenize(text: Text) -> list[Token]:
    """Splits a text into tokens.

    Raises
    ------
    QueryError
        A quote or comment is not closed, a name is in backquotes, or the text is too long.
    """
    if len(text.whole) > TEXT_LENGTH_MAX:
        raise QueryError(f"the text has {len(text.whole)} characters, expected at most {TEXT_LENGTH_MAX}", hint="submit it in parts")
    try:
        tokens = list(RisingWave().tokenize(text.whole))
    except (SqlglotError, ValueError, IndexError) as error:
        raise text.error(_open_quote(text.whole), "a quote is opened here and not closed", "close it; a quote inside is doubled") from error
    for place, (token, following) in enumerate(pairwise(tokens)):
        # sqlglot takes these words for keywords. Before a bracket they are functions here, except REGEXP between two values.
        if token.token_type == TokenType.SESSION and following.token_type == TokenType.L_PAREN:
            token.token_type = TokenType.VAR
        # ROW(...) and ROW<a BIGINT> are what Flink calls a struct; `row < n` compares a column.
        if token.token_type == TokenType.ROW and (
            following.token_type == TokenType.L_PAREN or _opens_fields(tokens[place + 1 : place + 4])
        ):
            token.token_type = TokenType.STRUCT
        infix = place > 0 and tokens[place - 1].token_type in _VALUE_ENDS
        if token.token_type == TokenType.RLIKE and following.token_type == TokenType.L_PAREN and token.text[:1].isalpha() and not infix:
            token.token_type = TokenType.VAR
        if token.text.upper() == "MATCH_RECOGNIZE" and token.token_type == TokenType.VAR and following.token_type == TokenType.L_PAREN:
            token.token_type = TokenType.MATCH_RECOGNIZE
        if token.text == "`" and token.token_type not in (TokenType.STRING, TokenType.IDENTIFIER):
            raise text.error(token, "` does not quote names here", 'write the name without quotes, or as "name"')
    if len(tokens) > TOKENS_MAX:
        raise QueryError(f"the text has {len(tokens)} words, expected at most {TOKENS_MAX}", hint="submit it in parts")
    return tokens


def _opens_fields(tokens: Sequence[Token]) -> bool:
    """Tells whether tokens are `<`, a name and a type, as the fields of a struct begin."""
    if len(tokens) < 3 or tokens[0].token_type != TokenType.LT:
        return False
    return tokens[2].token_type == TokenType.ROW or tokens[2].token_type in RisingWaveParser.TYPE_TOKENS


def _open_quote(text: str) -> int:
    """Returns the offset of the quote or comment that does not end; 0 if the scan finds none."""
    offset = 0
    while offset < len(text):
        if text.startswith("--", offset):
            offset = text.find("\n", offset)
        elif text.startswith("/*", offset):
            end = text.find("*/", offset + 2)
            if end < 0:
                return offset
            offset = end + 1
        elif text[offset] in "'\"":
            end = text.find(text[offset], offset + 1)
            if end < 0:
                return offset
            offset = end
        if offset < 0:
            return 0
        offset += 1
    return 0


def statements_of(tokens: Sequence[Token]) -> list[list[Token]]:
    """Splits tokens into statements, without the semicolons."""
    statements: list[list[Token]] = [[]]
    for token in tokens:
        if token.token_type == TokenType.SEMICOLON:
            statements.append([])
        else:
            statements[-1].append(token)
    return [statement for statement in statements if statement]


def parse_tree(text: Text, tokens: Sequence[Token]) -> exp.Expr:
    """Parses one statement.

    Raises
    ------
    QueryError
        The tokens are no statement; points at the first that does not fit.
    """
    dialect = RisingWave()
    dialect.INDEX_OFFSET = 0  # a[1] stays as written; the parser would count some places from 0, others from 1
    parser = _Parser(error_level=ErrorLevel.IMMEDIATE, dialect=dialect)
    try:
        trees = parser.parse(list(tokens), text.whole)
    except ParseError as error:
        raise _translate(text, tokens, error) from error
    except RecursionError as error:
        raise text.error(tokens[0], "the statement is nested too deeply", "split it with CREATE VIEW") from error
    except (SqlglotError, ValueError, TypeError, AttributeError, IndexError, KeyError) as error:
        # Text that makes sqlglot itself fail is a mistake of the user's and must not look like a failure of the agent.
        raise text.error(tokens[0], f"the statement cannot be read ({error})", "write it in the dialect of docs/sql.md") from error
    tree = trees[0] if len(trees) == 1 else None
    if tree is None or isinstance(tree, exp.Command):
        raise text.error(tokens[0], "the statement cannot be read", "write it in the dialect of docs/sql.md")
    return tree


def _translate(text: Text, tokens: Sequence[Token], error: ParseError) -> QueryError:
    details = error.errors[0] if error.errors else {}
    description = str(details.get("description") or "the statement cannot be read").rstrip(".")
    highlight = str(details.get("highlight") or "")
    line, column = int(details.get("line") or 0), int(details.get("col") or 0)
    # sqlglot counts the column of a token's last character.
    if line and column and "\n" not in highlight:
        column = max(1, column - max(0, len(highlight) - 1))
    if not line:
        line, column = text.place(tokens[-1].end + 1)
    at = f"at {highlight!r}" if highlight else "here"
    if description == "Expecting >" and highlight:  # in STRUCT<...>
        hint = "types of fields are BOOLEAN, BIGINT, DOUBLE, TEXT, TIMESTAMP, JSON, arrays such as BIGINT[], and STRUCT<a BIGINT>"
        return QueryError(f"{highlight!r} in a STRUCT where a type, a comma or > is expected", line=line, column=column, hint=hint)
    # sqlglot's message for a missing part helps only its authors.
    if "Unexpected token" in description or "<" in description:
        message = f"the statement cannot be read {at}"
    else:
        is_word = description[1:2].isupper()  # a keyword of the statement, which stays as written
        message = f"{description if is_word else description[:1].lower() + description[1:]} {at}"
    return QueryError(message, line=line, column=column, hint="look for a misspelt word or a missing comma or bracket just before it")
