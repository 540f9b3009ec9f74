"""Measurements of one operator on this host."""

from typing import TYPE_CHECKING

from sbon.batching import Cost
from sbon.digest import RecentDigest
from sbon.execution.accounts import Accounts
from sbon.execution.port_costs import PortCosts
from sbon.execution.rates import ByQuarter, Rate
from sbon.misfits import Misfits
from sbon.wire.costs import OperatorCosts
from sbon.wire.reports import LatencyTold

if TYPE_CHECKING:
    from sbon.types import IntArray


class Figures:
    """Counters of one operator; tasks add to them, reports and load models read them."""

    __slots__ = (
        "accounts",
        "answers",
        "arrived_at_s",
        "batches_in",
        "costs_brought",
        "deferred_rows",
        "late_rows",
        "migrations",
        "misfits",
        "now",
        "port_costs",
        "rate_in",
        "rate_out",
        "rows_in",
        "rows_out",
        "shed_rows",
        "state_bytes",
        "step_cost",
        "unmeasured",
        "upstream_delay_ms",
    )

    def __init__(self) -> None:
        self.rows_in = 0
        self.rows_out = 0
        self.batches_in = 0
        self.migrations = 0
        self.costs_brought: OperatorCosts | None = None
        """Cost of the operator on the host from which it has come."""
        self.arrived_at_s: float | None = None
        """When the operator came here by migration."""
        self.state_bytes = 0
        """Size of the operator's state when last measured."""
        self.unmeasured = (0, 0)
        """Batches and bytes taken since the state was last measured."""
        self.shed_rows: tuple[int, ...] = ()
        """Rows that were left out because they would be late, by cost class."""
        self.deferred_rows: tuple[int, ...] = ()
        """Rows that were put off because they would be late, by cost class, since the operator began."""
        self.late_rows = 0
        """Late rows of the operator object, once that has been dropped."""
        self.misfits: Misfits | None = None
        """Rows that the operator object could not use, once it has been dropped."""
        self.upstream_delay_ms: float | None = None
        """Latency of the longest path from a source to here, in ms; None until all hosts on it have sent theirs."""
        self.accounts = Accounts()
        self.answers: RecentDigest | None = None
        """Latencies of the rows that a sink has taken; None before the first."""
        self.now = 0.0
        """Instant of the last sample."""
        self.step_cost = Cost()
        """Processor time of this operator alone."""
        self.port_costs = PortCosts()
        """Fitted processor time of batches, by input port."""
        self.rate_in = Rate()
        self.rate_out = ByQuarter()

    def step(self, port: int | None, rows_in: int, rows_out: int, cpu_ns: int, spent_s: float) -> None:
        """Counts one step of a task: a batch, or a slice of one, at a port.

        Parameters
        ----------
        port : 0 for a source; None for further answers to earlier batches, whose input rows have been counted
        """
        if port is not None:
            self.rows_in += rows_in
        self.accounts.quantum(rows_in, cpu_ns, max(spent_s, cpu_ns / 1e9))
        self.step_cost.took(rows_in, cpu_ns / 1e9)
        if port is None:
            self.port_costs.continued(rows_out, cpu_ns)
        else:
            self.port_costs.took(port, rows_in, rows_out, cpu_ns)

    def late(self, rows: "IntArray", *, defers: bool) -> None:
        """Counts rows that came, and were left out or put off because they would be late, by cost class."""
        self.rows_in += int(rows.sum())
        before = self.deferred_rows if defers else self.shed_rows
        counts = tuple(rows.tolist()) if not before else tuple(one + more for one, more in zip(before, rows.tolist(), strict=True))
        if defers:
            self.deferred_rows = counts
        else:
            self.shed_rows = counts

    def delivered(self, now: float, latency_ms: float, rows: int) -> None:
        """Counts rows that a sink has taken."""
        if rows:
            self.answers = self.answers or RecentDigest()
            self.answers.add(now, max(0.0, latency_ms), rows)

    def latency(self) -> LatencyTold | None:
        """Returns the latency of the rows that a sink has taken lately; None if it has taken none."""
        recent = self.answers.recent(self.now) if self.answers is not None else None
        if recent is None or not recent.rows:
            return None
        return LatencyTold(
            rows=recent.rows,
            mean_ms=recent.mean_ms,
            p50_ms=recent.quantile(0.5),
            p99_ms=recent.quantile(0.99),
            max_ms=recent.max_ms,
        )

    def sample(self, now: float) -> None:
        """Samples all rates; called once a second."""
        self.now = now
        self.accounts.sample()
        self.port_costs.sample(now)
        self.rate_in.sample(now, self.rows_in)
        if self.state_bytes > 0:
            self.port_costs.state(self.state_bytes, self.rate_in.per_s)
        self.rate_out.sample(now, self.rows_out)
