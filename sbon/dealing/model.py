"""The model-based dealer of the paper (section 4): deals to the same instance until the predicted peak is above the bound.

Points that the paper leaves open are options here: whether the number of rows is predicted from biased gaps, which windows count as the
batch, and the compensation factor.
"""

import math
from enum import StrEnum

import msgspec
import numpy as np

from sbon.dealing.gains import Bins, binned, gains, mean_overlap, queueing_peak, t_count
from sbon.dealing.instance_records import InstanceRecords, Setting


class Batch(StrEnum):
    """The windows that count for the current overlap."""

    OPEN = "open"
    """All open windows of the instance."""
    TURN = "turn"
    """Windows dealt to the instance since it became the current one."""


class ModelOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of the model; defaults are those of the traffic scenario (section 5.2)."""

    bins: int = 8
    """Bins of gaps."""
    cost_bins: int = 1
    """Bins of costs of each kind."""
    monitored_s: float = 60.0
    """mtime: length of the tumbling window over which statistics are taken."""
    gap_bias: float = 0.75
    """delta_iat: number of standard deviations by which gaps are assumed to be shorter."""
    cost_bias: float = 2.0
    """delta_lambda_p: number of standard deviations by which costs are assumed to be higher."""
    biases_rows: bool = True
    """True: the number of rows of a window is predicted from the biased mean gap."""
    batch: Batch = Batch.OPEN
    alpha: float | None = None
    """Compensation factor; None: by T-COUNT."""
    gap_least_s: float = 1e-3
    """Least length of a biased gap, as a share of the mean gap. For the gap from which rows are counted, `rows_most` is the limit."""
    rows_most: float = 20.0
    """The biased mean gap is at least the measured one divided by this, because a bias of one deviation takes away all of an exponential
    gap.
    """


class _Statistics(msgspec.Struct):
    """Statistics monitored over one window of time."""

    gaps: Bins
    shares: tuple[float, ...]
    costs: list[tuple[list[float], list[float]]]
    """For each kind, (costs in one window, weights) by bin; biased."""
    plain_costs: tuple[float, ...]
    alpha: float
    shift_s: float


class Model:
    """Deals to the current instance while the predicted peak keeps the bound, else to the next one (figure 10)."""

    needs_queues = True

    def __init__(self, setting: Setting, records: InstanceRecords, options: ModelOptions | None = None) -> None:
        self.setting, self.records = setting, records
        self.options = options or ModelOptions()
        kinds = len(setting.opens)
        self._current = 0
        self._since_s = -math.inf
        self._ends_s = -math.inf
        self._latest_s = math.nan
        self._gaps: list[float] = []
        self._kinds: list[int] = []
        self._costs: list[tuple[float, float, float]] = [(0.0, 0.0, 0.0)] * kinds
        self._statistics: _Statistics | None = None
        self.predicted: tuple[float, float, float, float] | None = None
        """Negative gain, positive gain, initial wait and operational peak of the latest prediction."""

    def arrived(self, at_s: float, kind: int) -> None:
        """Monitors gaps and kinds; at the end of the monitoring window, makes statistics of them."""
        if self._latest_s == self._latest_s:
            self._gaps.append(at_s - self._latest_s)
        self._latest_s = at_s
        self._kinds.append(kind)
        if at_s >= self._ends_s:
            if self._ends_s > -math.inf and len(self._gaps) > 1:
                self._monitor(at_s)
                self._gaps, self._kinds = [], []
            self._ends_s = at_s + self.options.monitored_s

    def _monitor(self, now: float) -> None:
        """Makes statistics of the monitored gaps, kinds and costs."""
        options, kinds = self.options, len(self.setting.opens)
        self.records.settle(now)
        samples: list[list[tuple[float, int]]] = [[] for _ in range(kinds)]
        sums = [[0.0, 0.0, 0.0] for _ in range(kinds)]
        while self.records.finished:
            row = self.records.finished.popleft()
            each = row.cost_s / row.windows
            square = each * each
            if row.pairs > 0 and row.spread > 0:
                # The cost of the row in a window is proportional to the rows that the window has seen.
                square = (row.cost_s / row.pairs) ** 2 * row.spread / row.windows
            entry = sums[row.kind]
            entry[0] += row.windows
            entry[1] += row.cost_s
            entry[2] += square * row.windows
            samples[row.kind].append((each, row.windows))
        costs: list[tuple[list[float], list[float]]] = []
        plain: list[float] = []
        for kind, (windows, total, squares) in enumerate(sums):
            if not windows:
                before = self._statistics
                costs.append(before.costs[kind] if before else ([0.0], [1.0]))
                plain.append(before.plain_costs[kind] if before else 0.0)
                continue
            mean = total / windows
            bias = options.cost_bias * math.sqrt(max(0.0, squares / windows - mean * mean))
            if options.cost_bins > 1:
                found = binned(np.array([each for each, _ in samples[kind]]), options.cost_bins)
                costs.append(((found.means + bias).tolist(), found.weights.tolist()))
            else:
                costs.append(([mean + bias], [1.0]))
            plain.append(mean)
        kind_of = np.array(self._kinds)
        counts = np.bincount(kind_of, minlength=kinds)
        alpha = options.alpha
        if alpha is None:
            order = sorted(range(kinds), key=lambda kind: plain[kind])
            is_dear = np.isin(kind_of, order[(kinds + 1) // 2 :])
            alpha = t_count(int((is_dear[1:] != is_dear[:-1]).sum()), int(is_dear.sum()), int((~is_dear).sum()))
        openings = sum(int(counts[kind]) for kind, opens in enumerate(self.setting.opens) if opens)
        self._statistics = _Statistics(
            binned(np.array(self._gaps), options.bins),
            tuple((counts / counts.sum()).tolist()),
            costs,
            tuple(plain),
            alpha,
            float(sum(self._gaps)) / max(1, openings),
        )

    def deal(self, at_s: float, closes_s: float) -> int:
        """Returns the current instance, or the next one if the bound would not be kept."""
        if self._statistics is not None and self.predict(at_s, closes_s - at_s) > self.setting.bound_s:
            self._current = (self._current + 1) % self.setting.instances
            self._since_s = at_s
        return self._current

    def predict(self, now: float, scope_s: float) -> float:
        """Returns the operational peak in s if the window goes to the current instance."""
        seen, options, record = self._statistics, self.options, self.records.of[self._current]
        assert seen is not None
        self.records.settle(now)
        if options.batch is Batch.OPEN:
            windows = record.open + 1
        else:
            windows = 1 + sum(1 for one in record.windows if one.opened_s >= self._since_s)
        overlap = mean_overlap(windows, scope_s, seen.shift_s)
        bias = options.gap_bias * seen.gaps.deviation
        gap = max(seen.gaps.mean - bias, seen.gaps.mean / options.rows_most) if options.biases_rows else seen.gaps.mean
        rows = scope_s / gap
        costs: list[float] = []
        counts: list[float] = []
        for share, (means, weights) in zip(seen.shares, seen.costs, strict=True):
            costs += [overlap * one for one in means]
            counts += [rows * share * weight for weight in weights]
        gaps_s = [max(one - bias, options.gap_least_s * seen.gaps.mean) for one in seen.gaps.means.tolist()]
        negative, positive = gains(costs, counts, gaps_s, [rows * weight for weight in seen.gaps.weights.tolist()])
        begun = sum(row.windows * seen.plain_costs[row.kind] for row in record.waiting)
        dearest = max(max(means) for means, _ in seen.costs)
        peak = queueing_peak(begun, negative, positive, seen.alpha) + overlap * dearest
        self.predicted = (negative, positive, begun, peak)
        return peak
