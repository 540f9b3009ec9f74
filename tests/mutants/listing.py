"""Reads the deliberate bugs: `*.toml` beside this file, one file per area."""

import fnmatch
import tomllib
from collections.abc import Sequence
from pathlib import Path

import msgspec

FOLDER = Path(__file__).parent


class Mutant(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One deliberate bug, and the tests that must notice it."""

    name: str
    """Unique; `area/` is put before it."""
    file: str
    """Path from the top of the checkout."""
    old: str
    """Text that occurs exactly once in the file."""
    new: str
    """Text that replaces it."""
    tests: tuple[str, ...]
    """Files or node ids for pytest; at least one of their tests must fail."""
    why: str
    """The consequence of this bug."""
    may_hang: bool = False
    """True: tests that take longer than `seconds` have noticed the bug."""
    seconds: float = 240.0
    """Longest time for its tests on an otherwise idle machine."""

    def apply(self, text: str) -> str | None:
        """Returns the file's text with the bug; None if the mutant is stale."""
        return text.replace(self.old, self.new) if self.old and self.old != self.new and text.count(self.old) == 1 else None


def read_mutants(folder: Path = FOLDER) -> list[Mutant]:
    """Returns all mutants, in order of their files.

    Raises
    ------
    ValueError
        A file is invalid, or two mutants have the same name.
    """
    found: list[Mutant] = []
    for path in sorted(folder.glob("*.toml")):
        try:
            listed = msgspec.convert(tomllib.loads(path.read_text(encoding="utf-8"))["mutant"], list[Mutant])
        except (tomllib.TOMLDecodeError, msgspec.ValidationError, KeyError) as problem:
            raise ValueError(f"{path}: {problem}") from problem
        found += [msgspec.structs.replace(mutant, name=f"{path.stem}/{mutant.name}") for mutant in listed]
    names = [mutant.name for mutant in found]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ValueError(f"two mutants are called {', '.join(twice)}; give each a name of its own")
    return found


def chosen(mutants: Sequence[Mutant], patterns: Sequence[str]) -> list[Mutant]:
    """Returns mutants whose area equals a pattern, or whose name matches one; all mutants without patterns.

    Raises
    ------
    ValueError
        A pattern matches none.
    """
    if not patterns:
        return list(mutants)
    for pattern in patterns:
        if not any(_matches(mutant, pattern) for mutant in mutants):
            raise ValueError(f"no mutant matches {pattern!r}; --list shows all")
    return [mutant for mutant in mutants if any(_matches(mutant, pattern) for pattern in patterns)]


def _matches(mutant: Mutant, pattern: str) -> bool:
    area, _, own = mutant.name.partition("/")
    return pattern == area or any(fnmatch.fnmatchcase(name, pattern) for name in (mutant.name, own))
