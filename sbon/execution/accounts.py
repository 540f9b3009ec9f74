"""Counts the cost of one operator on this host, and the rows that it has processed.

The engine adds to them after every task; reports and load models read them.
"""


class Accounts:
    """Cost counters of one operator since it came to this host.

    Rows and processor time cover the same period, so that their quotient is a cost per row.

    Examples
    --------
    >>> accounts = Accounts()
    >>> accounts.quantum(rows=1000, cpu_ns=50_000, seconds=0.0001)
    >>> accounts.quantum(rows=1000, cpu_ns=30_000, seconds=0.0002)
    >>> accounts.cpu_ns_per_row, accounts.quanta, accounts.longest_s
    (40.0, 2, 0.0002)
    """

    __slots__ = ("_quanta_told", "_told", "cpu_ns", "longest_s", "quanta", "rows")

    def __init__(self) -> None:
        self.quanta = 0
        """Batches or slices of batches processed; for a source, number of polls."""
        self.rows = 0
        """Rows taken in; for a source, rows given out."""
        self.cpu_ns = 0
        self.longest_s = 0.0
        """Longest time that one quantum of this operator took, in seconds."""
        self._told: tuple[tuple[int, int], tuple[int, int]] = ((0, 0), (0, 0))
        self._quanta_told = (0, 0)

    def quantum(self, rows: int, cpu_ns: int, seconds: float) -> None:
        """Adds one quantum: the rows worked on, its processor time and its duration."""
        self.quanta += 1
        self.rows += rows
        self.cpu_ns += cpu_ns
        self.longest_s = max(self.longest_s, seconds)

    def sample(self) -> None:
        """Takes a sample, periodically. `cpu_ns_per_row` covers the time since the last sample but one in which rows had arrived."""
        self._quanta_told = (self._quanta_told[1], self.quanta)
        if self.rows > self._told[1][0]:
            self._told = (self._told[1], (self.rows, self.cpu_ns))

    @property
    def recent_quanta(self) -> int:
        """Number of quanta since the last sample but one."""
        return self.quanta - self._quanta_told[0]

    @property
    def cpu_ns_per_row(self) -> float | None:
        """Recent processor time for each row in nanoseconds, fixed costs of batches included; None before the first row."""
        rows, cpu_ns = self._told[0]
        if self.rows == rows:
            return None
        return (self.cpu_ns - cpu_ns) / (self.rows - rows)
