"""Measures the memory that an operator keeps between calls.

One walk over attributes serves all kinds of operators, including users' functions, so that a new operator needs no code to be checked
against a limit.
"""

import sys
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Set
from functools import partial
from itertools import islice
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any

import msgspec
import numpy as np
import polars as pl

SAMPLED = 256
"""Most elements of a large container that are examined; they are taken as representative."""
OBJECTS_MAX = 20_000
"""Most objects of one operator that are examined, so that measuring takes milliseconds at most."""
_CONTAINERS = (list, tuple, set, frozenset, deque, dict)
_PLAIN = (str, bytes, bytearray, int, float, complex)
_UNCOUNTED = (bool, type, msgspec.Struct, pl.Expr, FunctionType, BuiltinFunctionType, MethodType, ModuleType, partial)


def held_bytes(operator: object) -> int:
    """Returns the bytes of all frames, columns, arrays, texts and numbers that an object refers to, directly or through others.

    An object that several attributes share counts once; columns that share the memory of one frame count by their own rows. Parameters,
    expressions, functions and types do not count.

    Examples
    --------
    >>> class Sum:
    ...     def __init__(self) -> None:
    ...         self.totals = np.zeros(1000)
    >>> held_bytes(Sum())
    8000
    """
    return round(_bytes_of(operator, set(), [OBJECTS_MAX]))


def _bytes_of(item: object, seen: set[int], left: list[int]) -> float:
    if item is None or isinstance(item, _UNCOUNTED) or id(item) in seen or left[0] <= 0:
        return 0.0
    left[0] -= 1
    seen.add(id(item))
    if isinstance(item, (pl.DataFrame, pl.Series)):
        return float(item.estimated_size())
    if isinstance(item, np.ndarray):
        return float(item.nbytes) if item.dtype != object else item.nbytes + _sampled(item.flat, item.size, seen, left)
    if isinstance(item, _PLAIN):
        return float(sys.getsizeof(item))
    if isinstance(item, Mapping):
        pairs: Iterable[Any] = (part for pair in item.items() for part in pair)
        return sys.getsizeof(item) + _sampled(pairs, 2 * len(item), seen, left)
    if isinstance(item, tuple) and item and isinstance(item[0], tuple):
        return _chain(item, seen, left)
    if isinstance(item, (*_CONTAINERS, Set)):
        return sys.getsizeof(item) + _sampled(item, len(item), seen, left)
    return sum(_bytes_of(value, seen, left) for value in _attributes(item))


def _chain(item: tuple[Any, ...], seen: set[int], left: list[int]) -> float:
    """Returns the bytes of tuples that begin with tuples: the rows of an attempt to match a pattern are as deep as they are many."""
    found: float = sys.getsizeof(item) + _sampled(item[1:], len(item) - 1, seen, left)
    inner = item[0]
    while isinstance(inner, tuple) and inner and isinstance(inner[0], tuple) and id(inner) not in seen and left[0] > 0:
        left[0] -= 1
        seen.add(id(inner))
        found += sys.getsizeof(inner) + _sampled(inner[1:], len(inner) - 1, seen, left)
        inner = inner[0]
    return found + _bytes_of(inner, seen, left)


def _sampled(items: Iterable[Any], count: int, seen: set[int], left: list[int]) -> float:
    """Returns the bytes of the elements: of all if they are few, otherwise estimated from the first ones."""
    if count <= SAMPLED:
        return sum(_bytes_of(item, seen, left) for item in items)
    return sum(_bytes_of(item, seen, left) for item in islice(items, SAMPLED)) * count / SAMPLED


def _attributes(item: object) -> Iterator[object]:
    yield from getattr(item, "__dict__", {}).values()
    for kind in type(item).__mro__:
        slots = kind.__dict__.get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            yield getattr(item, name, None)
