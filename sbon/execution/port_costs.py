"""Laws of what batches cost at each input port of one operator on this host, and how many rows come of a row.

The engine adds every step of a task; `sbon operators` reads them.
"""

import msgspec

from sbon.cost.statistics import PortFit


class PortCost(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of one port. Times are in ns of this machine's processors; `low` and `high` are two standard errors away."""

    port: int
    source: str
    """Where the law comes from: measured, or rule before the first batch."""
    batches: float
    """Batches behind it, forgotten ones left out."""
    age_s: float
    per_batch_ns: float
    per_row_ns: float
    per_row_beyond_ns: float
    """Per row of a batch beyond 16,384."""
    scatter: float
    """Relative deviation of a single batch from the law."""
    rows_per_batch: float
    batch_ns: float
    """Cost of a batch of `rows_per_batch` by the law."""
    batch_ns_low: float
    batch_ns_high: float
    selectivity: float
    """Rows out per row in."""
    selectivity_low: float
    selectivity_high: float


class PortCosts:
    """Fits the costs of one operator's ports while it runs here.

    Examples
    --------
    >>> costs = PortCosts()
    >>> for rows in (100, 1_000, 10_000) * 30:
    ...     costs.took(0, rows, rows // 2, 50_000 + 20 * rows)
    >>> known, = costs.known(now=0.0)
    >>> round(known.per_batch_ns), round(known.per_row_ns), round(known.selectivity, 2)
    (50000, 20, 0.5)
    """

    __slots__ = ("_fits", "_more_ns", "_more_rows", "_now", "_rows")

    def __init__(self) -> None:
        self._fits: dict[int, PortFit] = {}
        self._rows: dict[int, tuple[int, int]] = {}
        """Batches and rows of each port."""
        self._more_ns = self._more_rows = 0
        self._now = 0.0

    def sample(self, now: float) -> None:
        """Tells the time, once a second: batches count as of the second that they came in."""
        self._now = now

    def took(self, port: int, rows_in: int, rows_out: int, ns: int) -> None:
        """Records a batch at a port: its rows, the rows that came of it, and its processor time."""
        if port not in self._fits:
            self._fits[port] = PortFit()
        if self._more_ns or self._more_rows:
            ns, rows_out = ns + self._more_ns, rows_out + self._more_rows
            self._more_ns = self._more_rows = 0
        self._fits[port].took(rows_in, rows_out, ns, at_s=self._now)
        batches, rows = self._rows.get(port, (0, 0))
        self._rows[port] = (batches + 1, rows + rows_in)

    def continued(self, rows_out: int, ns: int) -> None:
        """Records work on answers for earlier batches; it counts with the next batch, so that the mean stays right."""
        self._more_ns += ns
        self._more_rows += rows_out

    def known(self, now: float) -> tuple[PortCost, ...]:
        """Returns what is known of each port that has had a batch, by port."""
        found = []
        for port, fit in sorted(self._fits.items()):
            statistics = fit.statistics(now)
            law, selectivity = statistics.law, statistics.selectivity
            batches, rows = self._rows[port]
            cost = law.cost_ns(rows / batches)
            found.append(
                PortCost(
                    port=port,
                    source=law.source.value,
                    batches=law.samples,
                    age_s=law.age_s,
                    per_batch_ns=law.per_batch_ns,
                    per_row_ns=law.per_row_ns,
                    per_row_beyond_ns=law.per_row_beyond_ns,
                    scatter=law.scatter,
                    rows_per_batch=rows / batches,
                    batch_ns=cost.value,
                    batch_ns_low=cost.low,
                    batch_ns_high=cost.high,
                    selectivity=selectivity.value,
                    selectivity_low=selectivity.low,
                    selectivity_high=selectivity.high,
                )
            )
        return tuple(found)
