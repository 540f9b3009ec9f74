"""Draws scalar expressions of every type over given columns."""

from collections.abc import Sequence
from typing import TypeVar

import numpy as np

from sbon_testbed.random_queries.data import BOOL, FLOAT, INT, INTERVAL, TEXT, TIME
from sbon_testbed.random_queries.forms import COMPUTED, FORMS, LETTERS, LITERALS, SMALL, Expr, Form

T = TypeVar("T")


class Scalars:
    """Draws expressions over given columns."""

    def __init__(self, rng: np.random.Generator, columns: Sequence[Expr]) -> None:
        self._rng = rng
        self._columns = columns
        self.used: set[str] = set()
        """Functions drawn so far."""

    def draw(self, kind: str, depth: int = 2, *, near: bool = True) -> Expr:
        """Draws an expression of a type; with `near`, its last bits may be undefined."""
        if kind in SMALL:
            return self._small(kind)
        if kind == "TEXT column":  # a literal would be converted while the query is planned, and refused
            columns = [column for column in self._columns if column.ours.rpartition(".")[2] in ("t", "k")]
            return self._one(columns) if columns else Expr("CAST(g AS TEXT)", "g::TEXT", TEXT)
        if depth <= 0 or self._rng.random() < 0.2:
            return self._leaf(kind, near)
        forms = [form for form in FORMS if form.type == kind and (near or not form.near)]
        names = sorted({form.function for form in forms})
        name = names[int(self._rng.integers(len(names)))]
        return self.write(self._one([form for form in forms if form.function == name]), depth, near=near)

    def write(self, form: Form, depth: int = 2, *, near: bool = True) -> Expr:
        """Draws the arguments of a call."""
        self.used.add(form.function)
        arguments = [self.draw(LETTERS[letter], depth - 1, near=near and form.keeps_near) for letter in form.arguments]
        ours = form.ours.format(*(argument.ours for argument in arguments))
        duck = form.duck.format(*(f"({argument.duck})" for argument in arguments))
        return Expr(ours, duck, form.type, form.near or any(argument.near for argument in arguments))

    def condition(self) -> Expr:
        """Draws a condition; often it compares a value, which may be NULL, with a constant that must be computed."""
        if self._rng.random() < 0.6:
            return self.draw(BOOL, 2, near=False)
        kind = self._one((INT, FLOAT, TEXT, TIME, INTERVAL))
        value, sign, (ours, duck) = self.draw(kind, 2, near=False), self._one(("=", "<>", "<", "<=", ">", ">=")), self._one(COMPUTED[kind])
        return Expr(f"({value.ours} {sign} {ours})", f"({value.duck} {sign} {duck})", BOOL)

    def _leaf(self, kind: str, near: bool) -> Expr:
        columns = [column for column in self._columns if column.type == kind and (near or not column.near)]
        if columns and self._rng.random() < 0.75:
            return self._one(columns)
        ours, duck = self._one((LITERALS if self._rng.random() < 0.5 else COMPUTED)[kind])
        return Expr(ours, duck, kind)

    def _small(self, kind: str) -> Expr:
        """Draws a number that keeps times within the calendar."""
        of, name, literals = SMALL[kind]
        columns = [column for column in self._columns if column.ours.rpartition(".")[2] == name and column.type == of]
        if columns and self._rng.random() < 0.6:
            return self._one(columns)
        text = self._one(literals)
        return Expr(text, f"'{text.strip('()')}'::{of}", of)

    def _one(self, values: Sequence[T]) -> T:
        return values[int(self._rng.integers(len(values)))]
