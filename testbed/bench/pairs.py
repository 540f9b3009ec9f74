"""Receives the answers of the join of `sbon bench migrate` at the far end of its sink, and checks that each comes once.

Every answer is (k, v, n). Answers of the two steady streams have k = v = n, counted from 0. Answers of held rows have negative keys: row n
of the stream that asks for held rows has key `Held.key(n)`, and the held row with this key has the key as its value.
"""

import json
import socket
import threading
import time
from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple, TypeAlias

import numpy as np

from sbon.types import FloatArray

Answer: TypeAlias = tuple[int, float, float]
"""Columns k, v, n."""

CYCLE_MAX = 200
"""Largest number of held rows that are asked for in turn, evenly spaced among all held rows."""


class Held(NamedTuple):
    """The held rows of a join, and the order in which they are asked for."""

    rows: int

    @property
    def cycle(self) -> int:
        """Returns the number of questions after which the first row is asked for again."""
        return min(self.rows, CYCLE_MAX)

    @property
    def step(self) -> int:
        """Returns the distance between two rows that are asked for one after the other."""
        return self.rows // self.cycle

    def key(self, number: int) -> int:
        """Returns the key of the held row that question `number` asks for."""
        return -1 - number % self.cycle * self.step


def problem_of(answers: Iterable[Answer], held: Held) -> str:
    """Returns the first problem of the answers so far; empty if each answer up to the last of each stream came once and is right."""
    steady: Counter[int] = Counter()
    asked: Counter[int] = Counter()
    for k, v, n in answers:
        number = round(n)
        if v != k or n != number or k != (number if k >= 0 else held.key(number)):
            return f"the row k = {k}, v = {v:g}, n = {n:g} is wrong"
        (steady if k >= 0 else asked)[number] += 1
    for name, found in (("of the two streams", steady), ("with a row that was held", asked)):
        if not found:
            return f"no row {name} has come"
        twice, missing = found.total() - len(found), max(found) + 1 - len(found)
        if twice or missing:
            return f"of {found.total()} rows {name} {twice} came twice, {missing} are missing"
    return ""


class Arrivals:
    """Receives bytes by TCP on a separate thread, and notes when they arrive."""

    def __init__(self) -> None:
        self._server = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._server.getsockname()[1]
        self._times: list[float] = []
        self._pieces: list[bytes] = []
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        try:
            accepted, _ = self._server.accept()
            with accepted:
                while data := accepted.recv(1 << 20):
                    self._times.append(time.monotonic())
                    self._pieces.append(data)
        except OSError:
            return  # the measurement is over

    def times(self, begin: float, end: float) -> FloatArray:
        """Returns the instants from `begin` to `end` at which bytes arrived."""
        all_times = np.array(self._times[:])
        return all_times[(all_times >= begin) & (all_times <= end)]

    def answers(self) -> list[Answer]:
        """Returns all rows received so far; the last line may be incomplete and is left out."""
        text = b"".join(self._pieces[:])
        lines = text[: text.rfind(b"\n") + 1].splitlines()
        return [(row["k"], row["v"], row["n"]) for row in map(json.loads, lines)]

    def close(self) -> None:
        """Stops reading."""
        self._server.close()
