"""Row patterns: regular expressions whose letters are the variables of MATCH_RECOGNIZE, and properties of their form.

A pattern travels between agents as a tree. The matcher (`sbon.operators.match`) makes a program of it, whose length is limited here.
"""

from collections.abc import Iterable
from typing import TypeAlias

import msgspec

from sbon.query.limits import LimitError

PROGRAM_MAX = 4_000
"""Most instructions of a pattern: each variable is one, and A{3} is AAA."""
REPEATS_MAX = 1_000
"""Greatest number of repetitions in braces."""
PATTERN_DEPTH_MAX = 50
"""Most levels of a pattern."""


class Variable(msgspec.Struct, frozen=True, tag="variable", tag_field="form"):
    """One row that meets the condition of a variable."""

    index: int
    """Number of the variable among those of the clause."""


class Sequence(msgspec.Struct, frozen=True, tag="sequence", tag_field="form"):
    """Parts that follow each other; without parts, it matches no row."""

    parts: tuple["Pattern", ...]


class Choice(msgspec.Struct, frozen=True, tag="choice", tag_field="form"):
    """One of the parts; an earlier one is preferred."""

    parts: tuple["Pattern", ...]


class Repeat(msgspec.Struct, frozen=True, tag="repeat", tag_field="form"):
    """Repetitions of a part. More are preferred, or fewer if it is reluctant."""

    part: "Pattern"
    least: int
    most: int | None
    """Most repetitions; None: any number."""
    reluctant: bool = False


class Excluded(msgspec.Struct, frozen=True, tag="excluded", tag_field="form"):
    """A part whose rows ALL ROWS PER MATCH leaves out."""

    part: "Pattern"


Pattern: TypeAlias = Variable | Sequence | Choice | Repeat | Excluded


def parts_of(pattern: Pattern) -> tuple[Pattern, ...]:
    """Returns the direct parts of a pattern."""
    match pattern:
        case Sequence(parts=parts) | Choice(parts=parts):
            return parts
        case Repeat(part=part) | Excluded(part=part):
            return (part,)
        case Variable():
            return ()


def walk(pattern: Pattern) -> Iterable[Pattern]:
    """Yields a pattern and all patterns in it."""
    stack = [pattern]
    while stack:
        part = stack.pop()
        yield part
        stack.extend(parts_of(part))


def depth(pattern: Pattern) -> int:
    """Returns the levels of a pattern."""
    deepest, stack = 0, [(pattern, 1)]
    while stack:
        part, level = stack.pop()
        deepest = max(deepest, level)
        stack.extend((inner, level + 1) for inner in parts_of(part))
    return deepest


def check_pattern_depth(pattern: Pattern) -> None:
    """Refuses a pattern that would overflow the stack, or has invalid numbers in braces.

    Raises
    ------
    LimitError
        The pattern is nested too deep, or a number is out of range.
    """
    if depth(pattern) > 3 * PATTERN_DEPTH_MAX:
        raise LimitError(f"a pattern nested more than {3 * PATTERN_DEPTH_MAX} deep")
    for part in walk(pattern):
        if isinstance(part, Repeat):
            most = REPEATS_MAX if part.most is None else part.most
            if not 0 <= part.least <= most <= REPEATS_MAX or part.most == 0:
                raise LimitError(f"{part.least} to {part.most} repetitions in a pattern, expected 0 to {REPEATS_MAX}")


def length(pattern: Pattern) -> int:
    """Returns the greatest number of instructions of a pattern's program."""
    match pattern:
        case Variable():
            return 1
        case Sequence(parts=parts):
            return sum(length(part) for part in parts)
        case Choice(parts=parts):
            return sum(length(part) + 2 for part in parts)
        case Excluded(part=part):
            return length(part)
        case Repeat(part=part, least=least, most=most):
            copies = max(least, 1) + 1 if most is None else most
            return copies * (length(part) + 2)


def may_be_empty(pattern: Pattern) -> bool:
    """Tells whether a pattern can match without a row."""
    match pattern:
        case Variable():
            return False
        case Sequence(parts=parts):
            return all(may_be_empty(part) for part in parts)
        case Choice(parts=parts):
            return any(may_be_empty(part) for part in parts)
        case Excluded(part=part):
            return may_be_empty(part)
        case Repeat(part=part, least=least):
            return least == 0 or may_be_empty(part)


def first_variables(pattern: Pattern) -> frozenset[int]:
    """Returns the variables that the first row of a match can have."""
    match pattern:
        case Variable(index=index):
            return frozenset({index})
        case Sequence(parts=parts):
            found: frozenset[int] = frozenset()
            for part in parts:
                found |= first_variables(part)
                if not may_be_empty(part):
                    break
            return found
        case Choice(parts=parts):
            return frozenset().union(*(first_variables(part) for part in parts))
        case Excluded(part=part):
            return first_variables(part)
        case Repeat(part=part, most=most):
            return frozenset() if most == 0 else first_variables(part)


def fewest(pattern: Pattern, variables: frozenset[int]) -> int:
    """Returns the least number of rows of some variables in any match."""
    match pattern:
        case Variable(index=index):
            return int(index in variables)
        case Sequence(parts=parts):
            return sum(fewest(part, variables) for part in parts)
        case Choice(parts=parts):
            return min((fewest(part, variables) for part in parts), default=0)
        case Excluded(part=part):
            return fewest(part, variables)
        case Repeat(part=part, least=least):
            return least * fewest(part, variables)


def may_skip(pattern: Pattern, skip_to: str, variables: frozenset[int]) -> bool:
    """Tells whether every match has a first (or last) row of some variables that is not the match's first row."""
    at_first = bool(first_variables(pattern) & variables)
    least = fewest(pattern, variables)
    return least >= 1 and (not at_first or (skip_to == "last" and least >= 2))


def endless(pattern: Pattern) -> frozenset[int]:
    """Returns the variables within repetitions without an upper bound."""
    found: set[int] = set()
    for part in walk(pattern):
        if isinstance(part, Repeat) and part.most is None:
            found.update(inner.index for inner in walk(part) if isinstance(inner, Variable))
    return frozenset(found)


def pattern_text(pattern: Pattern, names: tuple[str, ...]) -> str:
    """Returns a pattern as it is written in SQL.

    Examples
    --------
    >>> pattern_text(Sequence((Variable(0), Repeat(Variable(1), 1, None, True))), ("a", "b"))
    'a b+?'
    """
    match pattern:
        case Variable(index=index):
            return names[index]
        case Sequence(parts=parts):
            return " ".join(_bracketed(part, names, (Choice,)) for part in parts) or "()"
        case Choice(parts=parts):
            return " | ".join(pattern_text(part, names) for part in parts)
        case Excluded(part=part):
            return f"{{- {pattern_text(part, names)} -}}"
        case Repeat(part=part, least=least, most=most, reluctant=reluctant):
            marks = {(0, None): "*", (1, None): "+", (0, 1): "?"}
            count = marks.get((least, most)) or (f"{{{least}}}" if least == most else f"{{{least},{'' if most is None else most}}}")
            return f"{_bracketed(part, names, (Choice, Sequence, Repeat))}{count}{'?' if reluctant else ''}"


def _bracketed(pattern: Pattern, names: tuple[str, ...], kinds: tuple[type, ...]) -> str:
    text = pattern_text(pattern, names)
    return f"({text})" if isinstance(pattern, kinds) and text != "()" else text
