"""Rewrites Flink's window functions into this dialect's form, token by token, so that errors keep their places in the text.

TABLE(TUMBLE(TABLE bids, DESCRIPTOR(ts), INTERVAL '10' MINUTES)) becomes
      TUMBLE(bids, ts, INTERVAL '10' MINUTES)
TABLE(HOP(DATA => TABLE bids, TIMECOL => DESCRIPTOR(ts), SIZE => INTERVAL '10' MINUTES, SLIDE => INTERVAL '5' MINUTES)) becomes
      HOP(bids, ts, INTERVAL '5' MINUTES, INTERVAL '10' MINUTES)
TABLE(SESSION(TABLE bids PARTITION BY item, DESCRIPTOR(ts), INTERVAL '5' MINUTES)) becomes
      SESSION(bids, ts, INTERVAL '5' MINUTES, partition_by => (item))

Flink keys sessions by PARTITION BY, this dialect by GROUP BY; the binder uses `partition_by` to check that both agree.
"""

from collections.abc import Sequence

from sqlglot import exp
from sqlglot.tokenizer_core import Token, TokenType

from sbon.query.dialect import Text

_ORDER = {"TUMBLE": ("DATA", "TIMECOL", "SIZE"), "HOP": ("DATA", "TIMECOL", "SLIDE", "SIZE"), "SESSION": ("DATA", "TIMECOL", "GAP")}
_OFFSET = "a window with an offset is not supported"
_NO_OFFSET = "leave the offset out: windows start at multiples of their size since 1970"

Tokens = list[Token]


def windows_as_ours(text: Text, tokens: Sequence[Token]) -> Tokens:
    """Returns the tokens with every Flink window function rewritten; all others unchanged.

    Raises
    ------
    QueryError
        A function uses an option that has no counterpart here.
    """
    made: Tokens = []
    index = 0
    while index < len(tokens):
        wrapped = _is_open(tokens, index, "TABLE")
        start = index + 2 if wrapped else index
        end = _closing(tokens, start + 1) if _is_open(tokens, start, *_ORDER, "CUMULATE") else 0
        if not end or (wrapped and not (end + 1 < len(tokens) and tokens[end + 1].token_type == TokenType.R_PAREN)):
            made.append(tokens[index])
            index += 1
            continue
        call = tokens[start], tokens[start + 1], tokens[end]
        made += _call(text, call, [windows_as_ours(text, part) for part in _parts(tokens[start + 2 : end])], wrapped)
        index = end + (2 if wrapped else 1)
    return made


def in_from(tree: exp.Select, window: exp.Anonymous) -> str:
    """Returns what to write instead of GROUP BY TUMBLE(ts, INTERVAL '10' SECOND), Flink's old form."""
    name = str(window.this).upper()
    table = tree.args["from_"].this
    alias = f" AS {table.alias}" if table.alias else ""
    stream = table.copy()
    stream.set("alias", None)
    read = stream.sql(dialect="risingwave") if isinstance(table, exp.Table) else "(SELECT ...)"
    # Inside its own FROM a stream is known by its own name, not by its alias.
    times = [exp.column(part.this) if isinstance(part, exp.Column) else part for part in window.expressions]
    arguments = ", ".join([read, *(part.sql(dialect="risingwave") for part in times)])
    return f"write FROM {name}({arguments}){alias} GROUP BY window_start, and window_start for {name}_START(...)"


def bound_hint(function: str) -> str:
    """Returns what to write instead of TUMBLE_START(...) and the like; empty for all other functions."""
    window, _, bound = function.upper().rpartition("_")
    return f"write window_{bound.lower()}, with {window} in FROM" if window in _ORDER and bound in ("START", "END") else ""


def _call(text: Text, call: tuple[Token, Token, Token], arguments: list[Tokens], wrapped: bool) -> Tokens:
    name, opening, closing = call
    of_flink = any(part[0].token_type == TokenType.TABLE or _is_column(part) for part in map(_value, arguments))
    word = name.text.upper()
    if word == "CUMULATE" and (wrapped or of_flink):
        raise text.error(name, "CUMULATE is not supported", "write HOP for windows of one size, or TUMBLE by the step and sum further on")
    if word == "CUMULATE" or not of_flink:
        return [name, opening, *_joined(arguments, opening), closing]
    named = _in_order(text, name, arguments)
    data, keys = _partition(named[0])
    if keys and word != "SESSION":
        raise text.error(keys[0], f"PARTITION BY does not belong to {word}", "leave it out, and GROUP BY window_start, keys")
    ours = [data[1:] if data[0].token_type == TokenType.TABLE else data, _column(named[1]), *named[2:]]
    if word == "SESSION":
        ours.append(_keyword(name, keys))
    return [name, opening, *_joined(ours, opening), closing]


def _in_order(text: Text, name: Token, arguments: list[Tokens]) -> list[Tokens]:
    """Returns the arguments in this dialect's order, found by their names or by their positions."""
    order = _ORDER[name.text.upper()]
    form = f"write {name.text.upper()}(TABLE input, DESCRIPTOR(ts), {', '.join(order[2:]).lower()})"
    while len(arguments) > 1 and _partition(arguments[0])[1] and not (_is_named(arguments[1]) or _is_column(arguments[1])):
        # PARTITION BY a, b without brackets.
        arguments = [_joined(arguments[:2], name), *arguments[2:]]
    names = [part[0].text.upper() if _is_named(part) else order[i] if i < len(order) else "OFFSET" for i, part in enumerate(arguments)]
    for label, part in zip(names, arguments, strict=True):
        if label == "OFFSET":
            raise text.error(part[0], _OFFSET, _NO_OFFSET)
        if label not in (*order, "LATENESS"):
            raise text.error(part[0], f"{name.text.upper()} has no argument {part[0].text}", form)
    found = dict(zip(names, arguments, strict=True))
    missing = [label.lower() for label in order if label not in found]
    if missing or len(found) < len(arguments):
        what = f"without its {missing[0]}" if missing else "with an argument given twice"
        raise text.error(name, f"{name.text.upper()} {what}", form)
    return [*(_value(found[label]) for label in order), *([found["LATENESS"]] if "LATENESS" in found else [])]


def _partition(data: Tokens) -> tuple[Tokens, Tokens]:
    """Splits an argument into the input and the columns of its PARTITION BY."""
    depth = 0
    for index, token in enumerate(data):
        depth += _nesting(token)
        if depth == 0 and token.token_type == TokenType.PARTITION_BY and index:
            keys = data[index + 1 :]
            bare = bool(keys) and keys[0].token_type == TokenType.L_PAREN and keys[-1].token_type == TokenType.R_PAREN
            return data[:index], keys[1:-1] if bare else keys
    return data, []


def _column(tokens: Tokens) -> Tokens:
    """Returns the tokens inside the brackets of DESCRIPTOR, or all tokens if there is no DESCRIPTOR."""
    return tokens[2:-1] if _is_column(tokens) and len(tokens) > 3 else tokens


def _is_column(part: Tokens) -> bool:
    return part[0].text.upper() == "DESCRIPTOR"


def _keyword(near: Token, keys: Tokens) -> Tokens:
    """Returns the tokens of `partition_by => (keys)`, placed at the function's name."""
    added = ((TokenType.VAR, "partition_by"), (TokenType.FARROW, "=>"), (TokenType.L_PAREN, "("), (TokenType.R_PAREN, ")"))
    name, arrow, opening, closing = (Token(kind, word, near.line, near.col, near.start, near.end) for kind, word in added)
    return [name, arrow, opening, *keys, closing]


def _joined(parts: Sequence[Tokens], near: Token) -> Tokens:
    joined: Tokens = []
    for part in parts:
        joined += [Token(TokenType.COMMA, ",", near.line, near.col, near.start, near.end), *part] if joined else part
    return joined


def _parts(tokens: Sequence[Token]) -> list[Tokens]:
    """Splits tokens at the commas outside all brackets. Parts may be empty; `_closing` then reports no call, and the parser refuses the
    text."""
    parts: list[Tokens] = [[]]
    depth = 0
    for token in tokens:
        depth += _nesting(token)
        if depth == 0 and token.token_type == TokenType.COMMA:
            parts.append([])
        else:
            parts[-1].append(token)
    return parts


def _value(part: Tokens) -> Tokens:
    return part[2:] if _is_named(part) else part


def _is_named(part: Tokens) -> bool:
    return len(part) > 2 and part[1].token_type == TokenType.FARROW


def _is_open(tokens: Sequence[Token], index: int, *names: str) -> bool:
    """Tells whether a function with one of these names begins at the index."""
    if index + 1 >= len(tokens) or tokens[index + 1].token_type != TokenType.L_PAREN:
        return False
    return tokens[index].token_type != TokenType.IDENTIFIER and tokens[index].text.upper() in names


def _closing(tokens: Sequence[Token], opening: int) -> int:
    """Returns the index of the bracket that closes this one; 0 if there is none, or if an argument is empty."""
    depth = 0
    for index in range(opening, len(tokens)):
        depth += _nesting(tokens[index])
        if depth == 0:
            return index if all(_parts(tokens[opening + 1 : index])) else 0
    return 0


def _nesting(token: Token) -> int:
    return {TokenType.L_PAREN: 1, TokenType.R_PAREN: -1}.get(token.token_type, 0)
