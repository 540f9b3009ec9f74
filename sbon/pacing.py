"""How fast work that can wait may go beside work that must not wait for it: a share of the time, and no queue of its own on the way.

A `Pacer` keeps the work on one machine below a share of a core. A `Window` keeps what is under way to another machine below what its path
carries within a few milliseconds: the path's own round trip is the least that was seen, and what it takes longer is a queue, in which
everything else on that path stands too (as in LEDBAT, RFC 6817). Both give way, and both give up giving way as the work grows `urgent`
(0 to 1), so that it ends.
"""

import math

WAIT_S_MAX = 0.05
"""Longest wait after one piece of work, however long that took."""
WAIT_S_MIN = 1e-6
"""Shorter ones are none: a clock might not have moved behind them."""
TARGET_S = 0.02
"""So much longer than on an empty path may an answer take."""
PIECES = 8
"""Pieces in a full window, about: what stands before others at one place is an eighth of it."""
_GAIN = 0.5
"""Of the bytes answered: by so much the window grows while there is no queue at all. It doubles in two round trips, and halves in two."""


class Pacer:
    """Lets work begin so that it takes at most a share of the time of one core, measured over the last fraction of a second.

    Parameters
    ----------
    share : above 0; above 1 where what is counted is not work but the time in which it came up
    burst_s : so much work may follow without a wait after a rest

    Examples
    --------
    >>> pacer = Pacer(0.25, 0.0)
    >>> pacer.took(0.003, 10.0)
    >>> round(pacer.wait_s(10.0), 6)
    0.012
    >>> pacer.wait_s(10.0, urgent=1.0)
    0.0
    """

    def __init__(self, share: float, burst_s: float) -> None:
        self._share = share
        self._burst_s = burst_s
        self._credit_s = burst_s
        self._at = -math.inf

    def took(self, seconds: float, now: float) -> None:
        """Work that ended now took so long."""
        self._credit_s = self._credit_at(now) - max(0.0, seconds)
        self._credit_s = max(self._credit_s, -WAIT_S_MAX * self._share)
        self._at = now

    def wait_s(self, now: float, urgent: float = 0.0) -> float:
        """How long the next work must still wait: 0 to `WAIT_S_MAX`; the less, the more urgent it is."""
        wait_s = max(0.0, -self._credit_at(now)) / self._share
        wait_s = min(WAIT_S_MAX, wait_s) * (1.0 - min(1.0, max(0.0, urgent)))
        return wait_s if wait_s >= WAIT_S_MIN else 0.0

    def _credit_at(self, now: float) -> float:
        rest_s = max(0.0, now - self._at)
        return self._burst_s if math.isinf(rest_s) else min(self._burst_s, self._credit_s + self._share * rest_s)


class Window:
    """How many bytes may be under way, from how long their answers take.

    Parameters
    ----------
    least_bytes, most_bytes : it stays between these, and begins with the least

    Examples
    --------
    >>> window = Window(32_000, 2_000_000)
    >>> for _ in range(100):
    ...     window.answered(16_000, 0.1)
    >>> window.bytes
    832000
    >>> window.answered(16_000, 0.4)
    >>> window.bytes
    824000
    """

    def __init__(self, least_bytes: int, most_bytes: int) -> None:
        self._least_bytes = min(least_bytes, most_bytes)
        self._most_bytes = most_bytes
        self._bytes = float(self._least_bytes)
        self._path_s = math.inf

    @property
    def bytes(self) -> int:
        """As of now."""
        return int(self._bytes)

    def within(self, urgent: float = 0.0) -> int:
        """The same where the work is urgent, 0 to 1: then whatever is allowed at all."""
        return max(self.bytes, int(self._most_bytes * min(1.0, max(0.0, urgent))))

    def piece_bytes(self, most_bytes: int) -> int:
        """A good size for the next piece: one of several in the window."""
        return max(1, min(most_bytes, max(self._least_bytes // 4, self.bytes // PIECES)))

    def answered(self, size_bytes: int, seconds: float) -> None:
        """So many bytes have been answered, so long after they left."""
        self._path_s = min(self._path_s, max(0.0, seconds))
        short_of = (TARGET_S - (seconds - self._path_s)) / TARGET_S
        self._bytes += _GAIN * min(1.0, max(-1.0, short_of)) * size_bytes
        self._bytes = min(float(self._most_bytes), max(float(self._least_bytes), self._bytes))
