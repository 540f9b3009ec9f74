"""Paces background work so that it does not delay urgent work: limits its share of the time, and its queue on the network.

A `Pacer` keeps the work on one machine below a share of a core. A `Window` keeps the bytes in flight to another machine below what its
path carries within a few milliseconds: the least round trip seen is the path's own, and any excess is a queue, which delays everything
else on that path, too (as in LEDBAT, RFC 6817). Both yield to other work, and yield less as the work becomes `urgent` (0 to 1), so that it
ends.
"""

import math

WAIT_S_MAX = 0.05
"""Longest wait after one piece of work, however long that took."""
WAIT_S_MIN = 1e-6
"""Shorter waits are skipped: a clock might not have advanced after them."""
BURST_S = 0.005
"""Processor time for the pieces of a state that needs no pacing, in seconds: small states are sent, and taken in, at once."""
TARGET_S = 0.02
"""Allowed delay of an answer beyond that on an empty path, in seconds."""
PIECES = 8
"""Approximate number of pieces in a full window, so that one piece delays others by at most an eighth of it."""
_GAIN = 0.5
"""Growth of the window per byte answered without a queue. It doubles in two round trips, and halves in two."""


class Pacer:
    """Delays work so that it takes at most a share of the time of one core, measured over the last fraction of a second.

    Parameters
    ----------
    share : above 0; above 1 if the time counted is not work but the time in which it arose
    burst_s : work that is allowed without a wait after a rest

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
        """Records work that has ended now and took `seconds`."""
        self._credit_s = self._credit_at(now) - max(0.0, seconds)
        self._credit_s = max(self._credit_s, -WAIT_S_MAX * self._share)
        self._at = now

    def wait_s(self, now: float, urgent: float = 0.0) -> float:
        """Returns how long the next work must still wait: 0 to `WAIT_S_MAX`; less for urgent work."""
        wait_s = max(0.0, -self._credit_at(now)) / self._share
        wait_s = min(WAIT_S_MAX, wait_s) * (1.0 - min(1.0, max(0.0, urgent)))
        return wait_s if wait_s >= WAIT_S_MIN else 0.0

    def _credit_at(self, now: float) -> float:
        rest_s = max(0.0, now - self._at)
        return self._burst_s if math.isinf(rest_s) else min(self._burst_s, self._credit_s + self._share * rest_s)


class Window:
    """Computes how many bytes may be in flight, from how long their answers take.

    Parameters
    ----------
    least_bytes, most_bytes : bounds of the window, which begins with the least

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
        """Returns the present size."""
        return int(self._bytes)

    def within(self, urgent: float = 0.0) -> int:
        """Returns the size for urgent work (0 to 1); at 1, the largest size."""
        return max(self.bytes, int(self._most_bytes * min(1.0, max(0.0, urgent))))

    def piece_bytes(self, most_bytes: int) -> int:
        """Returns a good size for the next piece, a fraction of the window."""
        return max(1, min(most_bytes, max(self._least_bytes // 4, self.bytes // PIECES)))

    def answered(self, size_bytes: int, seconds: float) -> None:
        """Records that so many bytes were answered, `seconds` after they were sent."""
        self._path_s = min(self._path_s, max(0.0, seconds))
        short_of = (TARGET_S - (seconds - self._path_s)) / TARGET_S
        self._bytes += _GAIN * min(1.0, max(-1.0, short_of)) * size_bytes
        self._bytes = min(float(self._most_bytes), max(float(self._least_bytes), self._bytes))
