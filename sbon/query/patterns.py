"""Checks regular expressions and their replacement texts, both when a query is planned and where it runs.

The engine is that of Rust. Its time is proportional to the length of the text whatever the pattern; it has no look-around and no
back-references.
"""

import re

from sbon.errors import QueryError

PATTERN_LENGTH_MAX = 1_000
PARTS_MAX = 5_000
"""Most parts of a pattern with its counts expanded: a{3} is aaa. The engine has a limit of its own for the compiled pattern, 10 MiB."""
FLAGS = {"regexp_like": "i", "regexp_replace": "gi"}

_TOKEN = re.compile(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|\{([0-9]{1,9})(?:,([0-9]{0,9}))?\}|.", re.DOTALL)
"""Matches an escaped character, a class, a count, or any other character."""


def check_pattern(pattern: str) -> None:
    """Refuses a pattern that is too large; the engine checks its syntax.

    Raises
    ------
    QueryError
        The pattern is too long, or repeats too much.
    """
    if len(pattern) > PATTERN_LENGTH_MAX:
        raise QueryError(
            f"the pattern has {len(pattern)} characters, expected at most {PATTERN_LENGTH_MAX}", hint="write a shorter pattern"
        )
    parts = parts_of(pattern)
    if parts > PARTS_MAX:
        hint = "write * or +, or smaller counts"
        raise QueryError(f"the pattern has {parts} parts with its counts expanded, expected at most {PARTS_MAX}", hint=hint)


def parts_of(pattern: str) -> int:
    """Counts the characters and classes of a pattern with its counts expanded.

    Examples
    --------
    >>> parts_of("(ab{3}){10}c")
    41
    """
    open_groups: list[int] = []
    total = last = 0
    for token in _TOKEN.finditer(pattern):
        if token[0] == "(":
            open_groups.append(total)
            total = last = 0
        elif token[0] == ")" and open_groups:
            last = total
            total += open_groups.pop()
        elif token[1] is not None:
            total += last * (max(1, int(token[2] or token[1])) - 1)
            last = 0 if last == 0 else total
        else:
            last = 1
            total += 1
    return total + sum(open_groups)


def with_flags(function: str, pattern: str, flags: str) -> str:
    """Returns the pattern with the flag `i` (ignore case) written into it, if it is given; other known flags do not change the pattern.

    Raises
    ------
    QueryError
        The flag is unknown.
    """
    unknown = [flag for flag in flags if flag not in FLAGS[function]]
    if unknown:
        hint = "i: regardless of case" + ("; g: all matches instead of the first one" if function == "regexp_replace" else "")
        raise QueryError(f"flag '{unknown[0]}' is unknown", hint=hint)
    return f"(?i){pattern}" if "i" in flags else pattern


def replacement_of(text: str) -> str:
    r"""Converts a replacement text to the engine's syntax: \1 to \9 are groups and \& is the whole match, as in PostgreSQL.

    Raises
    ------
    QueryError
        A backslash precedes anything else, or the text has $1, which other dialects use.

    Examples
    --------
    >>> replacement_of(r"\2: $, \\")
    '${2}: $$, \\'
    """
    wrong = re.search(r"\$[0-9{]", text)
    if wrong is not None:
        raise QueryError(f"the replacement has {text[wrong.start() : wrong.start() + 2]}", hint=r"write \1 for the first group")
    made, place = "", 0
    while place < len(text):
        character = text[place]
        if character != "\\":
            made += "$$" if character == "$" else character
            place += 1
            continue
        behind = text[place + 1 : place + 2]
        if not behind or behind not in "0123456789&\\":
            raise QueryError(f"the replacement has \\{behind}", hint=r"write \1 for the first group, \& for the match, \\ for a backslash")
        made += "\\" if behind == "\\" else "${0}" if behind == "&" else f"${{{behind}}}"
        place += 2
    return made


def references(text: str) -> int:
    """Counts the references to groups or the match in a converted replacement."""
    return text.count("${")
