"""Remembers answers by `Idempotency-Key`, so that a repeated request is answered as before and adds no rows.

A key is forgotten after a time, and earlier if there are too many keys or their answers take too many bytes; the oldest key is forgotten
first. Keys of requests that are not answered yet are known, too; the number of waiting requests limits them.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import NamedTuple

from sbon.formats.http_answers import Answer, refusal

KEY_CHARACTERS_MAX = 255
ANSWERS_BYTES_MAX = 8 << 20
_OVERHEAD_BYTES = 256
"""Bytes counted for each remembered answer in addition to its document."""


class _Known(NamedTuple):
    digest: bytes
    answer: Answer
    until: float


class Repeats:
    """Idempotency keys of one source.

    Parameters
    ----------
    clock : monotonic seconds
    """

    def __init__(self, keys_max: int, window_s: float, clock: Callable[[], float]) -> None:
        self._keys_max = keys_max
        self._window_s = window_s
        self._clock = clock
        self._known: OrderedDict[str, _Known] = OrderedDict()
        self._bytes = 0
        self._begun: dict[str, bytes] = {}

    def begin(self, key: str, digest: bytes) -> Answer | None:
        """Looks up a request. Returns its answer if it is not to be processed; otherwise notes that it has begun, and returns None.

        Parameters
        ----------
        digest : hash of the body and its format; a key stands for one body
        """
        self._forget_old()
        known = self._known.get(key)
        digest_before = self._begun.get(key) if known is None else known.digest
        if digest_before is not None and digest_before != digest:
            return refusal(422, "this Idempotency-Key came with another body before")
        if known is not None:
            return known.answer._replace(headers=(*known.answer.headers, ("Idempotency-Replayed", "true")))
        if digest_before is not None:
            return refusal(409, "a request with this Idempotency-Key is being worked on: try again later", Retry_After="1")
        self._begun[key] = digest
        return None

    def settle(self, key: str, answer: Answer) -> None:
        """Remembers the answer to a request that has begun."""
        digest = self._begun.pop(key)
        self._known[key] = _Known(digest, answer, self._clock() + self._window_s)
        self._bytes += _size(answer)
        self._forget_old()

    def forget(self, key: str) -> None:
        """Forgets a request that has begun and had no effect, so that it may come again."""
        self._begun.pop(key, None)

    def __len__(self) -> int:
        return len(self._known)

    def _forget_old(self) -> None:
        now = self._clock()
        while self._known:
            oldest = next(iter(self._known.values()))
            if len(self._known) <= self._keys_max and self._bytes <= ANSWERS_BYTES_MAX and oldest.until > now:
                return
            _, gone = self._known.popitem(last=False)
            self._bytes -= _size(gone.answer)


def _size(answer: Answer) -> int:
    return len(answer.document) + _OVERHEAD_BYTES
