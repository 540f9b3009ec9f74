"""The interface of dealers, and dealers that predict nothing."""

from typing import Protocol

from sbon.dealing.instance_records import InstanceRecords, Setting


class Dealer(Protocol):
    """Chooses the instance of each window when it opens."""

    needs_queues: bool
    """True if the dealer reads all rows that wait at instances; otherwise the costs of a sample of rows are enough."""

    def arrived(self, at_s: float, kind: int) -> None:
        """Takes a row of the stream. Times never go back."""

    def deal(self, at_s: float, closes_s: float) -> int:
        """Returns the instance for a window that opens at `at_s` and should close at `closes_s`."""


class Silent:
    """Base of dealers; ignores the rows of the stream."""

    needs_queues = False

    def __init__(self, setting: Setting, records: InstanceRecords) -> None:
        self.setting, self.records = setting, records

    def arrived(self, at_s: float, kind: int) -> None:
        """Ignores the row."""


class OneCopy(Silent):
    """Deals all windows to one instance: no dealer sends fewer copies, but it keeps no bound."""

    def deal(self, at_s: float, closes_s: float) -> int:
        """Returns the first instance."""
        return 0


class RoundRobin(Silent):
    """Deals each window to the next instance."""

    _next = -1

    def deal(self, at_s: float, closes_s: float) -> int:
        """Returns the next instance."""
        self._next = (self._next + 1) % self.setting.instances
        return self._next


class Reactive(Silent):
    """Deals to one instance until it reports a latency above a threshold, then to the next (section 3.2 of the paper).

    Parameters
    ----------
    threshold_s : latency above which the next instance gets windows (TH)
    """

    needs_queues = True

    def __init__(self, setting: Setting, records: InstanceRecords, threshold_s: float) -> None:
        super().__init__(setting, records)
        self.threshold_s = threshold_s
        self._current = 0

    def deal(self, at_s: float, closes_s: float) -> int:
        """Returns the current instance, or the next one if the current is late."""
        self.records.settle(at_s)
        if self.records.of[self._current].latency_s > self.threshold_s:
            self._current = (self._current + 1) % self.setting.instances
        return self._current
