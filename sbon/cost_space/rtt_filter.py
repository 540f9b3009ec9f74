"""The moving percentile filter of one peer (SBON, section 3.1.1), which drops its history when the level has shifted lastingly.

A low percentile of ten samples hides single spikes. It would also hide a doubled latency until eight of ten samples show it; two rules
shorten this. First, after a route change *every* sample lies on the new level: `shift_samples` in a row, all far on the same side of the
filtered value, restart the window with only themselves in it. Second, samples expire: otherwise a peer that is probed once a minute would
be judged by the last ten minutes. A few old samples stay as long as new ones agree with them, because in a large overlay, where each peer
is probed rarely, a single sample cannot be told from noise.
"""

from sbon.cost_space.config import CoordinateConfig


class RttFilter:
    """Filtered RTT to one peer."""

    __slots__ = ("_at", "_window", "rank", "value_ms")

    def __init__(self) -> None:
        self._window: list[float] = []
        self._at: list[float] = []
        self.value_ms = 0.0
        self.rank = 0
        """Rank of the filtered value among the window's samples in ascending order, from 0."""

    def add(self, rtt_ms: float, config: CoordinateConfig, now: float) -> float:
        """Takes a checked sample and returns the filtered RTT in ms."""
        window, at = self._window, self._at
        window.append(rtt_ms)
        at.append(now)
        stale = max(len(window) - config.filter_window, 0)
        keep = 1 if self._shifted([rtt_ms], config.shift_ratio) else config.filter_keep
        while stale < len(window) - keep and at[stale] < now - config.filter_span_s:
            stale += 1
        count = config.shift_samples
        if len(window) > count and self._shifted(window[-count:], config.shift_ratio):
            stale = max(stale, len(window) - count)
        if stale:
            del window[:stale], at[:stale]
        self.rank = int((len(window) - 1) * config.filter_percentile / 100.0)
        self.value_ms = sorted(window)[self.rank]
        return self.value_ms

    @property
    def samples(self) -> int:
        """Returns the number of samples in the window."""
        return len(self._window)

    @property
    def before_ms(self) -> float | None:
        """Returns the sample before the last; None if the window holds only one."""
        return self._window[-2] if len(self._window) > 1 else None

    @property
    def last_at_s(self) -> float:
        """Returns when the last sample was taken."""
        return self._at[-1]

    def _shifted(self, recent: list[float], ratio: float) -> bool:
        return min(recent) > self.value_ms * ratio or max(recent) * ratio < self.value_ms


def percentile(values: list[float], percent: float) -> float:
    """Returns the percentile of a few values: the value at that rank, rounded down, never interpolated with an outlier above it.

    Examples
    --------
    >>> percentile([4.0, 1.0, 3.0, 2.0, 900.0], 40.0)
    2.0
    """
    return sorted(values)[int((len(values) - 1) * percent / 100.0)]
