"""What an operator has cost on this host, and what has come of it: the figures that models of load are made of."""


class Accounts:
    """Of one operator since it came to this host; rates need rows and cost counted over the same time.

    Examples
    --------
    >>> accounts = Accounts()
    >>> accounts.quantum(rows=1000, cpu_ns=50_000, seconds=0.0001)
    >>> accounts.quantum(rows=1000, cpu_ns=30_000, seconds=0.0002)
    >>> accounts.cpu_ns_per_row, accounts.quanta, accounts.longest_s
    (40.0, 2, 0.0002)
    """

    __slots__ = ("_told", "cpu_ns", "longest_s", "quanta", "rows")

    def __init__(self) -> None:
        self.quanta = 0
        """Batches, or slices of batches, and questions to a source."""
        self.rows = 0
        """Taken; of a source: given."""
        self.cpu_ns = 0
        self.longest_s = 0.0
        """Time that its part of a quantum took at most."""
        self._told: tuple[tuple[int, int], tuple[int, int]] = ((0, 0), (0, 0))

    def quantum(self, rows: int, cpu_ns: int, seconds: float) -> None:
        """It has worked on so many rows."""
        self.quanta += 1
        self.rows += rows
        self.cpu_ns += cpu_ns
        self.longest_s = max(self.longest_s, seconds)

    def sample(self) -> None:
        """Every now and then: what is recent ends one or two samples with rows ago."""
        if self.rows > self._told[1][0]:
            self._told = (self._told[1], (self.rows, self.cpu_ns))

    @property
    def cpu_ns_per_row(self) -> float | None:
        """Processor nanoseconds for each row lately, what batches cost whatever their size included; None before the first row."""
        rows, cpu_ns = self._told[0]
        if self.rows == rows:
            return None
        return (self.cpu_ns - cpu_ns) / (self.rows - rows)
