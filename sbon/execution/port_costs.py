"""Fits the cost of batches at each input port of one operator on this host (its "law"), and the rows out for each row in.

The engine adds every step of a task; `sbon operators` shows the results.
"""

import msgspec

from sbon.cost.statistics import OperatorFit, tellable
from sbon.cost.store import as_told
from sbon.wire.costs import OperatorCosts

PORTS = 2
"""Most input ports of an operator."""
PAUSE_S = 30.0
"""Time without rows that counts as a pause, not as a low rate, in seconds."""


class PortCost(msgspec.Struct, frozen=True, kw_only=True):
    """The measured costs of one port. Times are in ns of this machine's processors; `low` and `high` are two standard errors off."""

    port: int
    source: str
    """Origin of the law: `measured`, or `rule` before the first batch."""
    batches: float
    """Number of batches that the law rests on, without forgotten ones."""
    age_s: float
    per_batch_ns: float
    per_row_ns: float
    per_row_beyond_ns: tuple[float, ...]
    """Cost of each row of a batch beyond 4,096 rows, and beyond 16,384 rows."""
    scatter: float
    """Relative deviation of a single batch from the law."""
    rows_per_batch: float
    batch_ns: float
    """Cost of a batch of `rows_per_batch` rows by the law."""
    batch_ns_low: float
    batch_ns_high: float
    selectivity: float
    """Rows out per row in."""
    selectivity_low: float
    selectivity_high: float


class PortCosts:
    """Fits the costs of one operator's ports while it runs here.

    Parameters
    ----------
    fit : the fit of all operators here with the same signature; its own fit if left out
    speed : reference ns per ns of this machine, in which the fit counts
    pairs : whether rows out are pairs of rows, each of which takes time

    Examples
    --------
    >>> costs = PortCosts()
    >>> for rows in (100, 1_000, 10_000) * 30:
    ...     costs.took(0, rows, rows // 2, 50_000 + 20 * rows)
    >>> known, = costs.known(now=0.0)
    >>> round(known.per_batch_ns), round(known.per_row_ns), round(known.selectivity, 2)
    (50000, 20, 0.5)
    """

    __slots__ = ("_fit", "_more_ns", "_more_rows", "_now", "_pairs", "_rows", "_seen", "_speed")

    def __init__(self, fit: OperatorFit | None = None, speed: float = 1.0, *, pairs: bool = False) -> None:
        self._fit = OperatorFit("", PORTS) if fit is None else fit
        self._speed, self._pairs = speed, pairs
        self._seen: dict[int, tuple[float, int]] = {}
        """Instant of the last sample with new rows at a port, and the rows until then."""
        self._rows: dict[int, tuple[int, int]] = {}
        """Batches and rows of each port."""
        self._more_ns = self._more_rows = 0
        self._now = 0.0

    def sample(self, now: float) -> None:
        """Sets the time and samples the rates, once a second; batches count from the second in which they came."""
        self._now = now
        for port, (_, rows) in self._rows.items():
            since, before = self._seen.setdefault(port, (now, rows))
            if rows > before:
                if 0 < now - since <= PAUSE_S:
                    self._fit.ports[port].rate((rows - before) / (now - since))
                self._seen[port] = (now, rows)

    def took(self, port: int, rows_in: int, rows_out: int, ns: int) -> None:
        """Records a batch at a port: its rows, the rows that came of it, and its processor time."""
        if self._more_ns or self._more_rows:
            ns, rows_out = ns + self._more_ns, rows_out + self._more_rows
            self._more_ns = self._more_rows = 0
        met = rows_out / rows_in if self._pairs and rows_in else 0.0
        self._fit.ports[port].took(rows_in, rows_out, ns, at_s=self._now, open_windows=met)
        batches, rows = self._rows.get(port, (0, 0))
        self._rows[port] = (batches + 1, rows + rows_in)

    def continued(self, rows_out: int, ns: int) -> None:
        """Records work on further answers to earlier batches; it counts with the next batch, so that the mean stays right."""
        self._more_ns += ns
        self._more_rows += rows_out

    def state(self, size_bytes: float, rows_per_s: float) -> None:
        """Records the size of the operator's state, and the rate of its input."""
        self._fit.state(size_bytes, rows_per_s, at_s=self._now)

    def sent(self, rows: int, size_bytes: int) -> None:
        """Records rows that left on a link."""
        self._fit.sent(rows, size_bytes)

    def told(self) -> OperatorCosts | None:
        """Returns the statistics for another host; None before the first batch."""
        return as_told(tellable(self._fit.statistics(self._now)), OperatorCosts) if self._rows else None

    def known(self, now: float) -> tuple[PortCost, ...]:
        """Returns the costs of each port that has had a batch, by port."""
        found = []
        for port, (batches, rows) in sorted(self._rows.items()):
            statistics = self._fit.ports[port].statistics(now)
            law, selectivity = statistics.law, statistics.selectivity
            cost, speed = law.cost_ns(rows / batches), self._speed
            found.append(
                PortCost(
                    port=port,
                    source=law.source.value,
                    batches=law.samples,
                    age_s=law.age_s,
                    per_batch_ns=law.per_batch_ns / speed,
                    per_row_ns=law.per_row_ns / speed,
                    per_row_beyond_ns=tuple(one / speed for one in law.per_row_beyond_ns),
                    scatter=law.scatter,
                    rows_per_batch=rows / batches,
                    batch_ns=cost.value / speed,
                    batch_ns_low=cost.low / speed,
                    batch_ns_high=cost.high / speed,
                    selectivity=selectivity.value,
                    selectivity_low=selectivity.low,
                    selectivity_high=selectivity.high,
                )
            )
        return tuple(found)
