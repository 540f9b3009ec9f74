"""A second MATCH_RECOGNIZE, which uses none of the operator's code. It backtracks row by row.

A pattern is ("var", name), ("seq", [...]), ("alt", [...]), ("rep", part, least, most or None, reluctant), ("perm", [...]) or ("out", part).
A condition or a measure is a pair: its SQL text and a function of `Here`.
"""

from collections.abc import Callable, Iterator
from itertools import permutations
from typing import Any, NamedTuple

Pattern = tuple[Any, ...]
Taken = tuple[tuple[int, str, bool], ...]
"""Rows of a match, as (place, variable, whether the answer leaves the row out)."""


class Row(NamedTuple):
    ts: int
    k: str | None
    v: float | None
    n: int
    ok: bool | None


class Here(NamedTuple):
    """The rows and variables that a condition or a measure sees."""

    rows: list[Row]
    taken: Taken
    """The rows of the match up to the current one."""
    whole: Taken
    number: int | None
    subsets: dict[str, tuple[str, ...]]

    def places(self, name: str | None, *, final: bool = False) -> list[int]:
        names = None if name is None else self.subsets.get(name, (name,))
        return [place for place, variable, _ in (self.whole if final else self.taken) if names is None or variable in names]

    def value(self, name: str | None, *, first: bool = False, skip: int = 0, shift: int = 0, final: bool = False) -> float | None:
        places = self.places(name, final=final)
        if len(places) <= skip:
            return None
        at = (places[skip] if first else places[-1 - skip]) + shift
        return self.rows[at].v if 0 <= at < len(self.rows) else None

    def values(self, name: str | None, *, final: bool = False) -> list[float]:
        return [value for place in self.places(name, final=final) if (value := self.rows[place].v) is not None]

    def kept(self, name: str | None, *, final: bool = False) -> list[Row]:
        return [self.rows[place] for place in self.places(name, final=final)]

    def label(self, name: str | None, *, first: bool = False, skip: int = 0, shift: int = 0, final: bool = False) -> str | None:
        places = self.places(name, final=final)
        if len(places) <= skip:
            return None
        at = (places[skip] if first else places[-1 - skip]) + shift
        return next((variable for place, variable, _ in self.whole if place == at), None)


Truth = Callable[[Here], Any]


class Query(NamedTuple):
    pattern: Pattern
    define: dict[str, tuple[str, Truth]]
    measures: list[tuple[str, Truth]]
    mode: str
    skip: tuple[str, str]
    within: int | None
    subsets: dict[str, tuple[str, ...]]
    descending: bool = False
    """Rows with equal times are ordered by n, descending."""

    @property
    def sql(self) -> str:
        measures = ", ".join(f"{text} AS m{place}" for place, (text, _) in enumerate(self.measures))
        to = {"past": "PAST LAST ROW", "next": "TO NEXT ROW"}.get(self.skip[0], f"TO {self.skip[0].upper()} {self.skip[1]}")
        within = "" if self.within is None else f" WITHIN INTERVAL '{self.within} seconds'"
        subsets = ", ".join(f"{name} = ({', '.join(members)})" for name, members in self.subsets.items())
        define = ", ".join(f"{name} AS {text}" for name, (text, _) in self.define.items())
        order = "ts, n DESC" if self.descending else "ts, n"
        return (
            f"SELECT * FROM s MATCH_RECOGNIZE (PARTITION BY k ORDER BY {order} {f'MEASURES {measures}' if measures else ''} {self.mode}"
            f" AFTER MATCH SKIP {to} PATTERN ({text_of(self.pattern)}){within} {f'SUBSET {subsets}' if subsets else ''}"
            f" {f'DEFINE {define}' if define else ''}) AS m"
        )


def text_of(pattern: Pattern) -> str:
    match pattern:
        case ("var", name):
            return str(name)
        case ("seq", parts):
            return "(" + " ".join(map(text_of, parts)) + ")"
        case ("alt", parts):
            return "(" + " | ".join(map(text_of, parts)) + ")"
        case ("perm", parts):
            return "PERMUTE(" + ", ".join(map(text_of, parts)) + ")"
        case ("out", part):
            return "({- " + text_of(part) + " -})"
        case ("rep", part, least, most, reluctant):
            return f"({text_of(part)}){{{least},{'' if most is None else most}}}{'?' if reluctant else ''}"
    raise AssertionError(pattern)


def ways(query: Query, rows: list[Row], start: int, number: int, waiting: list[Taken]) -> Iterator[Taken]:
    """Yields all matches that start at a row, the preferred one first. Adds to `waiting` attempts that need a row after the last."""

    def run(pattern: Pattern, taken: Taken, out: bool, rest: Callable[[Taken], Iterator[Taken]]) -> Iterator[Taken]:
        match pattern:
            case ("var", name):
                at = start + len(taken)
                if at >= len(rows) or (query.within is not None and rows[at].ts - rows[start].ts >= query.within):
                    waiting.append(taken)
                    return
                more = (*taken, (at, name, out))
                if name not in query.define or query.define[name][1](Here(rows, more, more, number, query.subsets)) is True:
                    yield from rest(more)
            case ("seq", parts):
                yield from run(parts[0], taken, out, lambda more: run(("seq", parts[1:]), more, out, rest)) if parts else rest(taken)
            case ("alt", parts):
                for part in parts:
                    yield from run(part, taken, out, rest)
            case ("perm", parts):
                yield from run(("alt", [("seq", list(order)) for order in permutations(parts)]), taken, out, rest)
            case ("out", part):
                yield from run(part, taken, True, rest)
            case ("rep", part, least, most, reluctant):
                if least > 0:
                    fewer = ("rep", part, least - 1, None if most is None else most - 1, reluctant)
                    yield from run(part, taken, out, lambda more: run(fewer, more, out, rest))
                    return
                if most == 0:
                    yield from rest(taken)
                    return
                fewer = ("rep", part, 0, None if most is None else most - 1, reluctant)

                def again() -> Iterator[Taken]:
                    # A round that takes no row ends the repetition.
                    yield from run(part, taken, out, lambda more: rest(more) if more == taken else run(fewer, more, out, rest))

                yield from rest(taken) if reluctant else again()
                yield from again() if reluctant else rest(taken)

    return run(query.pattern, (), False, lambda taken: iter([taken]))


def answers(query: Query, rows: list[Row]) -> list[tuple[Any, ...]]:
    """Returns the answers of one partition. `rows` are in order."""
    found: list[tuple[Any, ...]] = []
    start, number, matched = 0, 0, 0
    words = query.mode.split()
    empty, unmatched, all_rows, timeouts = "OMIT" not in words, "UNMATCHED" in words, words[0] == "ALL", "TIMEOUT" in words
    nothing = (None,) * len(query.measures)

    def told(here: Here, row: Row) -> tuple[Any, ...]:
        return (*((row.k, row.ts, row.n, row.v, row.ok) if all_rows else (row.k,)), *(measure(here) for _, measure in query.measures))

    while start < len(rows):
        waiting: list[Taken] = []
        best = next(ways(query, rows, start, number + 1, waiting), None)
        if best is None and timeouts and waiting:
            for place, (at, _, out) in enumerate(waiting[0]):
                if (all_rows and not out) or (not all_rows and place == len(waiting[0]) - 1):
                    found.append(told(Here(rows, waiting[0][: place + 1], waiting[0], None, query.subsets), rows[at]))
        if best is None:
            if unmatched and start >= matched:
                found.append((*told(Here(rows, (), (), 0, {}), rows[start])[: -len(nothing) or None], *nothing))
            start += 1
            continue
        number += 1
        if not best:
            if empty:
                found.append(told(Here(rows, (), (), number, query.subsets), rows[start]))
                matched = max(matched, start + 1)
            start += 1
            continue
        matched = max(matched, start + len(best))
        for place, (at, _, out) in enumerate(best):
            if (all_rows and not out) or (not all_rows and place == len(best) - 1):
                found.append(told(Here(rows, best[: place + 1], best, number, query.subsets), rows[at]))
        match query.skip:
            case ("past", _):
                start += len(best)
            case ("next", _):
                start += 1
            case (edge, name):
                names = query.subsets.get(name, (name,))
                places = [at for at, variable, _ in best if variable in names]
                start = places[0] if edge == "first" else places[-1]
    return found
