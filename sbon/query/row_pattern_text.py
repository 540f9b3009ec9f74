"""Reads PATTERN (...) of MATCH_RECOGNIZE from the words of the text. sqlglot has no tree for it."""

from collections.abc import Sequence as SequenceOf
from itertools import permutations
from typing import NamedTuple

from sbon.query.dialect import Text
from sbon.query.row_pattern import (
    PATTERN_DEPTH_MAX,
    PROGRAM_MAX,
    REPEATS_MAX,
    Choice,
    Excluded,
    Pattern,
    Repeat,
    Sequence,
    Variable,
    length,
)

PERMUTED_MAX = 5
"""Most parts of PERMUTE, as n parts have n! orders."""
_FORM = "write PATTERN (A B+ (C | D)?)"


class Word(NamedTuple):
    """One token of the clause."""

    text: str
    start: int
    """Offset in the submitted text."""
    is_name: bool
    """The token may name a variable."""
    is_quoted: bool

    @property
    def name(self) -> str:
        """Returns the name of the variable, in small letters unless quoted, as everywhere in SQL."""
        return self.text if self.is_quoted else self.text.lower()


class PatternReader:
    """Reads one pattern.

    Parameters
    ----------
    words : the words between the brackets of PATTERN
    end : offset of the closing bracket
    """

    def __init__(self, text: Text, words: SequenceOf[Word], end: int) -> None:
        self._text = text
        self._words = words
        self._end = end
        self._place = 0
        self.variables: dict[str, Word] = {}
        """Variables by name, in the order of their first word, which is the value."""

    def read(self) -> Pattern:
        """Returns the pattern.

        Raises
        ------
        QueryError
            The pattern cannot be read, or is too long; points at the place.
        """
        pattern = self._choice(PATTERN_DEPTH_MAX)
        if self._place < len(self._words):
            word = self._words[self._place]
            raise self._text.error(word.start, f"{word.text} is not expected here in PATTERN", _FORM)
        if length(pattern) > PROGRAM_MAX:
            hint = "write smaller numbers in braces, or fewer parts in PERMUTE"
            raise self._text.error(self._words[0].start, f"PATTERN has more than {PROGRAM_MAX} steps with its counts expanded", hint)
        return pattern

    def _peek(self, ahead: int = 0) -> str:
        place = self._place + ahead
        return self._words[place].text if place < len(self._words) else ""

    def _take(self, text: str) -> bool:
        """Takes the next word if it is this one."""
        found = self._peek().upper() == text
        self._place += found
        return found

    def _expect(self, text: str, opened: int) -> None:
        if not self._take(text):
            raise self._text.error(opened, f"a bracket is opened here in PATTERN and not closed by {text}", _FORM)

    def _choice(self, levels: int) -> Pattern:
        if levels <= 0:
            raise self._text.error(self._here(), f"PATTERN is nested more than {PATTERN_DEPTH_MAX} deep", "write it flatter")
        parts, missing = [], False
        while True:
            begin = self._place
            parts.append(self._sequence(levels))
            missing |= self._place == begin
            if not self._take("|"):
                break
        if len(parts) > 1 and missing:
            raise self._text.error(self._here(), "a part is missing beside | in PATTERN", "write () for a part without a row")
        return parts[0] if len(parts) == 1 else Choice(tuple(parts))

    def _sequence(self, levels: int) -> Pattern:
        parts: list[Pattern] = []
        while self._place < len(self._words) and self._peek() not in ("|", ")", ",") and not self._closes_exclusion():
            parts.append(self._repeated(levels))
        return parts[0] if len(parts) == 1 else Sequence(tuple(parts))

    def _closes_exclusion(self) -> bool:
        return self._peek() == "-" and self._peek(1) == "}"

    def _here(self) -> int:
        return self._words[self._place].start if self._place < len(self._words) else self._end

    def _repeated(self, levels: int) -> Pattern:
        part = self._primary(levels)
        counts = self._counts()
        if counts is None:
            return part
        repeat = Repeat(part, *counts, reluctant=self._take("?"))
        if self._peek() in ("*", "+", "?", "{") and self._peek(1) != "-":
            hint = "put brackets around the first: (A{2})*"
            raise self._text.error(self._here(), f"{self._peek()} after another quantifier in PATTERN", hint)
        return repeat

    def _counts(self) -> tuple[int, int | None] | None:
        """Reads a quantifier: `*`, `+`, `?`, `{n}`, `{n,}`, `{,m}` or `{n,m}`."""
        if self._take("*"):
            return 0, None
        if self._take("+"):
            return 1, None
        if self._take("?"):
            return 0, 1
        if self._peek() != "{" or self._peek(1) == "-":
            return None
        opened = self._here()
        self._take("{")
        least = self._number()
        most = least
        if self._take(","):
            most = self._number()
        elif least is None:
            raise self._text.error(opened, "a number is missing in braces in PATTERN", "write A{3}, A{2,}, A{,4} or A{2,4}")
        self._expect("}", opened)
        if most is not None and most < max(1, least or 0):
            what = f"{{{least or 0},{most}}} in PATTERN: the second number is the greater one, and at least 1"
            raise self._text.error(opened, what, "write A{2,4}")
        return least or 0, most

    def _number(self) -> int | None:
        word = self._peek()
        if not word.isdecimal():
            return None
        if len(word) > 6 or int(word) > REPEATS_MAX:
            raise self._text.error(self._here(), f"{word} repetitions in PATTERN, expected at most {REPEATS_MAX}", "write a smaller number")
        self._place += 1
        return int(word)

    def _primary(self, levels: int) -> Pattern:
        opened = self._here()
        if self._take("("):
            inner = self._choice(levels - 1)
            self._expect(")", opened)
            return inner
        if self._peek() == "{" and self._peek(1) == "-":
            self._place += 2
            inner = self._choice(levels - 1)
            if not (self._take("-") and self._take("}")):
                raise self._text.error(opened, "{- is opened here in PATTERN and not closed by -}", "write {- B+ -}")
            return Excluded(inner)
        word = self._words[self._place]
        if word.text in ("^", "$"):
            hint = "a stream has no first row and no last one: leave it out"
            raise self._text.error(word.start, f"{word.text} in PATTERN is not supported", hint)
        if not word.is_name:
            raise self._text.error(word.start, f"{word.text} is not expected here in PATTERN", _FORM)
        if word.text.upper() == "PERMUTE" and self._peek(1) == "(" and not word.is_quoted:
            return self._permuted(levels)
        self._place += 1
        self.variables.setdefault(word.name, word)
        return Variable(list(self.variables).index(word.name))

    def _permuted(self, levels: int) -> Pattern:
        """Reads PERMUTE(A, B, C): all orders of its parts; those that begin with earlier parts are preferred."""
        opened = self._here()
        self._place += 2
        parts = [self._choice(levels - 1)]
        while self._take(","):
            parts.append(self._choice(levels - 1))
        self._expect(")", opened)
        if len(parts) > PERMUTED_MAX:
            raise self._text.error(opened, f"PERMUTE of {len(parts)} parts, expected at most {PERMUTED_MAX}", "match fewer in any order")
        return Choice(tuple(Sequence(order) for order in permutations(parts))) if len(parts) > 1 else parts[0]
