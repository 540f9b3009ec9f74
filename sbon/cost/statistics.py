"""Statistics of operators by signature: cost, selectivity, service times, sizes. They are measured here, sent by peers, or kept over a
restart.

Models read `OperatorStatistics` from the book. This host's own measurements come first, then the median of the peers' figures, so that a
minority of peers cannot make an operator look free or unaffordable. Impossible figures are refused and counted.
"""

import math
from collections import Counter, OrderedDict
from collections.abc import Callable, Sequence

import msgspec
import numpy as np

from sbon.cost.cost_fit import BLOCK_LATER, CostFit
from sbon.cost.figure import SAMPLES_MIN, Edge, Figure, Source, around, by_rule
from sbon.cost.flow import PortFlow
from sbon.cost.law import Law, widened
from sbon.cost.moments import MomentCounter, Moments
from sbon.errors import ShapeError
from sbon.types import NodeId

SIGNATURES_MAX = 4096
"""Most signatures in a book; those that were not asked for or reported for the longest time are dropped."""
PER_PEER_MAX = 512
"""Most signatures that are remembered of one peer; beyond, the one that no peer has reported for the longest time is dropped."""
PEERS_MAX = 1024
"""Peers whose refused reports are counted separately; those of all others are counted together."""
OTHERS = "others"

BATCH_NS_MIN = 100.0
"""Least cost of a batch of one row: a call of a function takes longer."""
BATCH_NS_MAX = 1e12
ROW_NS_MAX = 1e11
SCATTER_MAX = 1e3
SELECTIVITY_MAX = 1e6
WINDOWS_MAX = 1e6
SIGNATURE_CHARACTERS_MAX = 1024
STATE_BYTES_MAX = 2.0**50
ROW_BYTES_MAX = 2.0**26
SAMPLES_MAX = 2.0**53
AGE_S_MAX = 10 * 365.25 * 86_400
PORTS_MAX = 1024
_RULE_OF_THREE = 3.0
"""With none of n rows, the share is at most 3 / n with 95 % confidence."""
RATES_MEMORY = 30.0
"""Seconds with rows after which the weight of one has fallen to 1 / e: about as long as batches count, at usual paces."""


class PortStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """Statistics of one input port of an operator, or of a source's rows."""

    law: Law
    """Cost of a batch in reference ns."""
    selectivity: Figure
    """Rows out per row in."""
    service: Moments | None = None
    """Cost of a batch, in reference ns; None if none was measured."""
    open_windows: float = 0.0
    """Mean open windows per row; for a join, rows out per row."""
    rows_per_s: float = 0.0
    """Mean rows per second into the port during the measurement; 0: unknown."""
    rows_per_batch: float = 0.0
    """Mean rows of a batch during the measurement; 0: unknown."""

    def flow(self, edge: Edge, rows_per_batch: float) -> PortFlow:
        """Returns selectivity and costs at an edge, for batches of so many rows."""
        per_batch_ns, per_row_ns = self.law.at(edge, rows_per_batch, self.open_windows)
        return PortFlow(selectivity=self.selectivity.at(edge), per_row_ns=per_row_ns, per_batch_ns=per_batch_ns)

    def flow_of_join(self, edge: Edge, rows_per_batch: float) -> tuple[PortFlow, float]:
        """Returns the costs of a join's port, and separately the ns of each row out, because at other rates a row meets more or fewer
        rows."""
        per_batch_ns, per_row_ns, per_row_out_ns = self.law.apart(edge, rows_per_batch, self.open_windows)
        flow = PortFlow(selectivity=0.0, per_row_ns=per_row_ns, per_batch_ns=per_batch_ns)
        return flow, per_row_out_ns if self.open_windows > 0 else 0.0  # no batch with a pair has been measured


class OperatorStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """Statistics of the operators with one signature."""

    signature: str
    ports: tuple[PortStatistics, ...]
    state_bytes: Figure | None = None
    """Size of the state, at the rate of `state_rows_per_s`; None if it was never measured."""
    state_rows_per_s: float = 0.0
    row_bytes: Figure | None = None
    """Bytes of a row out on a link; None if none has left."""

    @property
    def source(self) -> Source:
        """Returns the worst source among the laws of the ports."""
        order = list(Source)
        return max((port.law.source for port in self.ports), key=order.index)

    @property
    def samples(self) -> float:
        """Returns the number of batches behind the law of the port with the fewest."""
        return min(port.law.samples for port in self.ports)

    def state_at(self, rows_per_s: float) -> Figure | None:
        """Returns the size of the state at another input rate, in proportion: windows and joins hold the rows of a span of time."""
        if self.state_bytes is None or self.state_rows_per_s <= 0:
            return self.state_bytes
        factor = rows_per_s / self.state_rows_per_s
        figure = self.state_bytes
        return msgspec.structs.replace(figure, value=figure.value * factor, low=figure.low * factor, high=figure.high * factor)


class PortFit:
    """Measures one port while batches are processed. A batch costs two appends to lists; some hundred of them are folded at once."""

    __slots__ = ("_kept", "_rate", "_sums", "_waiting", "cost", "service", "speed")

    def __init__(self, prior: Law | None = None, speed: float = 1.0, source: Source = Source.MEASURED) -> None:
        self.cost = CostFit(prior, speed=speed, source=source)
        self.service = MomentCounter()
        self.speed = speed
        self._kept = self.service.kept
        self._waiting: list[tuple[int, int, float, float]] = []
        self._rate = MomentCounter(RATES_MEMORY)
        self._sums = np.zeros(6)
        """Sums of rows in, rows out, row-windows, rows in squared, rows out squared and their product; older batches count less."""

    def took(
        self, rows_in: int, rows_out: int, ns: float, *, at_s: float, open_windows: float = 0.0, by_class: Sequence[float] | None = None
    ) -> None:
        """Records a batch: its rows in, its rows out, and its processor time on this machine."""
        self.cost.took(rows_in, ns, at_s=at_s, open_windows=open_windows, by_class=by_class)
        self._waiting.append((rows_in, rows_out, ns, open_windows))
        if len(self._waiting) >= BLOCK_LATER:
            self._fold()

    def rate(self, rows_per_s: float) -> None:
        """Records the number of rows of a second that had any."""
        self._rate.add(rows_per_s)

    def _fold(self) -> None:
        if not self._waiting:
            return
        rows_in, rows_out, ns, windows = np.array(self._waiting, dtype=np.float64).T
        self._waiting.clear()
        self.service.add_all(ns * self.speed)
        weights = self._kept ** np.arange(len(ns) - 1, -1, -1.0)
        terms = np.array([rows_in, rows_out, rows_in * windows, rows_in**2, rows_out**2, rows_in * rows_out])
        self._sums = self._sums * self._kept ** len(ns) + terms @ weights

    def statistics(self, now: float, selectivity: Figure | None = None) -> PortStatistics:
        """Returns the statistics so far; before the first row, the selectivity is `selectivity`, else a rule of 1."""
        self._fold()
        law = self.cost.law(now)
        known = self._selectivity(law)
        if known is None:
            known = selectivity if selectivity is not None else by_rule(1.0)
        rows_in, _, row_windows, *_ = self._sums.tolist()
        windows = row_windows / rows_in if rows_in > 0 else 0.0
        return PortStatistics(
            law=law,
            selectivity=known,
            service=self.service.moments,
            open_windows=windows,
            rows_per_s=self._rate.first,
            rows_per_batch=rows_in / self.service.count if self.service.count else 0.0,
        )

    def _selectivity(self, law: Law) -> Figure | None:
        """Returns the ratio of rows out to rows in, with the error of a ratio estimator and at least that of counting rows.

        Of n rows, each of which passes or not, n x ratio x (1 - ratio) is the variance of those that pass; of any that are given, it is
        their number. Where all rows pass, the share of those that do not is at most 3 / n with 95 % confidence (rule of three).
        """
        rows_in, rows_out, _, in_squares, out_squares, product = self._sums.tolist()
        if rows_in <= 0:
            return None
        ratio = rows_out / rows_in
        samples, age_s, source = law.samples, law.age_s, law.source
        if ratio == 0:
            figure = Figure(value=0.0, low=0.0, high=_RULE_OF_THREE / rows_in, source=source, samples=samples)
        else:
            squares = max(0.0, out_squares - 2 * ratio * product + ratio**2 * in_squares)
            counted = max(rows_out * (1 - ratio), (_RULE_OF_THREE / 2) ** 2) if ratio <= 1 else rows_out
            figure = around(ratio, math.sqrt(max(squares, counted)) / rows_in, source, samples=samples)
        return figure.aged(age_s)


class OperatorFit:
    """Measures one operator of this host.

    Parameters
    ----------
    priors : law of each port before the first batch; empty: rules
    speed : reference ns per ns of this machine

    Raises
    ------
    ShapeError
        There is no port, too many, or another number of priors.
    """

    def __init__(
        self, signature: str, ports: int, *, priors: Sequence[Law] = (), speed: float = 1.0, source: Source = Source.MEASURED
    ) -> None:
        if not 1 <= ports <= PORTS_MAX or len(priors) not in (0, ports):
            raise ShapeError(
                f"an operator with {ports} ports and {len(priors)} priors, expected 1 to {PORTS_MAX}, and a prior for each or none"
            )
        self.signature = signature
        self.ports = tuple(PortFit(prior, speed, source) for prior in (priors or (None,) * ports))
        self._source = source
        self._state, self._state_rate = MomentCounter(60.0), MomentCounter(60.0)
        self._state_at_s = 0.0
        self._rows = self._bytes = 0

    def state(self, size_bytes: float, rows_per_s: float, *, at_s: float) -> None:
        """Records the size of the state and the rate of all rows in at that time."""
        self._state.add(size_bytes)
        self._state_rate.add(rows_per_s)
        self._state_at_s = at_s

    def sent(self, rows: int, size_bytes: int) -> None:
        """Records rows that left on a link, and their bytes there."""
        self._rows += rows
        self._bytes += size_bytes

    def statistics(self, now: float) -> OperatorStatistics:
        """Returns the statistics of the operator so far."""
        state, rate = self._state.moments, self._state_rate.moments
        size = None
        if state is not None:
            size = around(state.first, math.sqrt(state.variance), self._source, samples=state.count).aged(max(0.0, now - self._state_at_s))
        row = None
        if self._rows > 0:
            row = around(self._bytes / self._rows, self._bytes / self._rows**1.5, self._source, samples=self._rows)
        return OperatorStatistics(
            signature=self.signature,
            ports=tuple(port.statistics(now) for port in self.ports),
            state_bytes=size,
            state_rows_per_s=rate.first if rate is not None else 0.0,
            row_bytes=row,
        )


class StatisticsBook:
    """Statistics by signature.

    Parameters
    ----------
    speed : returns the reference ns per ns of this machine
    """

    def __init__(self, *, speed: Callable[[], float] = lambda: 1.0) -> None:
        self._speed = speed
        self._fits: OrderedDict[str, OperatorFit] = OrderedDict()
        self._told: OrderedDict[str, dict[NodeId, tuple[OperatorStatistics, float]]] = OrderedDict()
        self._kept: dict[str, tuple[OperatorStatistics, float]] = {}
        self._alike: OrderedDict[str, str] = OrderedDict()
        """Latest signature by the key `alike` of `fit`."""
        self._signatures_of: Counter[NodeId] = Counter()
        self._refused_peers: set[NodeId] = set()
        self.refused: Counter[tuple[NodeId, str]] = Counter()
        """Refused reports by peer and reason."""

    def fit(self, signature: str, ports: int, *, now: float, alike: str = "") -> OperatorFit:
        """Returns the fit to which operators of this host with a signature add measurements; makes one if there is none with so many ports.

        A new fit begins with the known statistics of the signature, else of a similar operator here, with wider bounds, so that the first
        batches correct it. If all batches have one size, only this prior separates their fixed cost from that of their rows.

        Parameters
        ----------
        alike : key of all operators that compute the same from different inputs; empty: none
        """
        found = self._fits.get(signature)
        if found is None or len(found.ports) != ports:
            known = self.of(signature, now) or self.of(self._alike.get(alike, ""), now)
            priors = [widened(port.law) for port in known.ports] if known is not None and len(known.ports) == ports else []
            found = self._fits[signature] = OperatorFit(signature, ports, priors=priors, speed=self._speed())
            while len(self._fits) > SIGNATURES_MAX:
                self._fits.popitem(last=False)
        self._fits.move_to_end(signature)
        if alike:
            self._alike[alike] = signature
            self._alike.move_to_end(alike)
            while len(self._alike) > SIGNATURES_MAX:
                self._alike.popitem(last=False)
        return found

    def own(self, signature: str, now: float) -> OperatorStatistics | None:
        """Returns this host's measurements of a signature; None before the first batch."""
        fit = self._fits.get(signature)
        found = fit.statistics(now) if fit is not None else None
        return found if found is not None and found.samples >= 1 else None

    def brought(self, peer: NodeId, report: object, now: float) -> bool:
        """Takes the statistics that come with an operator that has moved here, as if this host had kept them; returns False if they are
        refused."""
        statistics = self._checked(peer, report)
        if statistics is None:
            return False
        if (kept := self._kept.get(statistics.signature)) is None or kept[0].samples <= statistics.samples:
            self._kept[statistics.signature] = (statistics, now)
            while len(self._kept) > SIGNATURES_MAX:
                del self._kept[next(iter(self._kept))]
        return True

    def told(self, peer: NodeId, report: object, now: float) -> bool:
        """Takes a peer's report about a signature, decoded but not checked; returns False if it is refused.

        A later report of a peer replaces its earlier one.
        """
        statistics = self._checked(peer, report)
        if statistics is None:
            return False
        by_peer = self._told.get(statistics.signature)
        if by_peer is None or peer not in by_peer:
            if self._signatures_of[peer] >= PER_PEER_MAX:
                self._drop_oldest_of(peer)
            self._signatures_of[peer] += 1
        by_peer = self._told.setdefault(statistics.signature, {})
        by_peer[peer] = (statistics, now)
        self._told.move_to_end(statistics.signature)
        while len(self._told) > SIGNATURES_MAX:
            _, dropped = self._told.popitem(last=False)
            self._signatures_of.subtract(dropped.keys())
        return True

    def _drop_oldest_of(self, peer: NodeId) -> None:
        """Drops a peer's report about the signature that no peer has reported for the longest time."""
        signature = next(signature for signature, by_peer in self._told.items() if peer in by_peer)
        del self._told[signature][peer]
        if not self._told[signature]:
            del self._told[signature]
        self._signatures_of[peer] -= 1

    def forget(self, peer: NodeId) -> None:
        """Drops the reports of a peer that has left or is not trusted any more."""
        for by_peer in self._told.values():
            by_peer.pop(peer, None)
        del self._signatures_of[peer]

    def restore(self, kept: Sequence[OperatorStatistics], now: float) -> None:
        """Takes this host's measurements from before a restart; leaves out and counts impossible figures of a damaged file."""
        for statistics in kept:
            wrong = absurdity(statistics)
            if wrong is not None:
                self._refuse("kept", wrong)
            else:
                self._kept[statistics.signature] = (statistics, now)

    def kept(self, now: float) -> list[OperatorStatistics]:
        """Returns the statistics to keep over a restart: own measurements, with their age."""
        found = {signature: aged(statistics, now - since) for signature, (statistics, since) in self._kept.items()}
        for signature, fit in self._fits.items():
            statistics = fit.statistics(now)
            if statistics.samples >= 1:
                found[signature] = statistics
        return list(found.values())

    def of(self, signature: str, now: float) -> OperatorStatistics | None:
        """Returns the statistics of a signature from the best source: `SAMPLES_MIN` batches of this host, kept ones, peers' reports, fewer
        batches.

        None if nothing is known: rules apply (`sbon.query.estimate`).
        """
        fit = self._fits.get(signature)
        own = fit.statistics(now) if fit is not None else None
        if own is not None and own.samples >= SAMPLES_MIN:
            return own
        if signature in self._kept:
            statistics, since = self._kept[signature]
            return aged(statistics, now - since)
        told = [aged(statistics, now - since) for statistics, since in self._told.get(signature, {}).values()]
        if told:
            return middle(told)
        return own if own is not None and own.samples >= 1 else None

    def _checked(self, peer: NodeId, report: object) -> OperatorStatistics | None:
        """Returns a peer's report if an operator can have such statistics; else counts it as refused and returns None."""
        try:
            statistics = msgspec.convert(report, OperatorStatistics, from_attributes=True)
        except msgspec.ValidationError:
            self._refuse(peer, "malformed")
            return None
        except ShapeError:
            self._refuse(peer, "not finite or negative")
            return None
        wrong = absurdity(statistics)
        if wrong is not None:
            self._refuse(peer, wrong)
        return statistics if wrong is None else None

    def _refuse(self, peer: NodeId, reason: str) -> bool:
        if len(self._refused_peers) < PEERS_MAX:
            self._refused_peers.add(peer)
        self.refused[peer if peer in self._refused_peers else OTHERS, reason] += 1
        return False


def tellable(statistics: OperatorStatistics) -> OperatorStatistics:
    """Returns statistics that peers accept: where a batch of one row would cost less than `BATCH_NS_MIN`, adds that to the cost of a
    batch."""
    ports = []
    for port in statistics.ports:
        first, *others = port.law.coefficients
        law = port.law
        if law.cost_ns(1).value < BATCH_NS_MIN:
            law = msgspec.structs.replace(law, coefficients=(first + BATCH_NS_MIN, *others))
        ports.append(msgspec.structs.replace(port, law=law))
    return msgspec.structs.replace(statistics, ports=tuple(ports))


def aged(statistics: OperatorStatistics, seconds: float) -> OperatorStatistics:
    """Returns statistics that many seconds later."""
    seconds = max(0.0, seconds)
    ports = tuple(
        msgspec.structs.replace(
            port, law=msgspec.structs.replace(port.law, age_s=port.law.age_s + seconds), selectivity=port.selectivity.aged(seconds)
        )
        for port in statistics.ports
    )
    state, row = statistics.state_bytes, statistics.row_bytes
    return msgspec.structs.replace(
        statistics,
        ports=ports,
        state_bytes=state.aged(seconds) if state is not None else None,
        row_bytes=row.aged(seconds) if row is not None else None,
    )


def middle(told: Sequence[OperatorStatistics]) -> OperatorStatistics:
    """Returns the statistics whose cost for 1,000 rows at all ports, rows out included, is the median (upper of an even number).

    Only statistics with the most common number of ports are compared.

    Raises
    ------
    ShapeError
        There are no statistics.
    """
    if not told:
        raise ShapeError("the middle of no statistics, expected one at least")
    ports = Counter(len(statistics.ports) for statistics in told).most_common(1)[0][0]
    alike = sorted((one for one in told if len(one.ports) == ports), key=_price)
    return alike[len(alike) // 2]


def _price(statistics: OperatorStatistics) -> float:
    return sum(port.law.cost_ns(1_000, port.open_windows).value * (1 + port.selectivity.value) for port in statistics.ports)


def absurdity(statistics: OperatorStatistics) -> str | None:
    """Returns why no operator can have such statistics; None if one can."""
    if not 1 <= len(statistics.ports) <= PORTS_MAX or len(statistics.signature) > SIGNATURE_CHARACTERS_MAX:
        return "absurd shape"
    for port in statistics.ports:
        law = port.law
        if law.per_batch_ns > BATCH_NS_MAX or max(law.coefficients[1:]) > ROW_NS_MAX or law.scatter > SCATTER_MAX:
            return "absurd cost"
        if any(abs(entry) > BATCH_NS_MAX**2 for row in law.covariance for entry in row) or max(law.shares) > 1 + 1e-9:
            return "absurd cost"
        if law.cost_ns(1).value < BATCH_NS_MIN:
            return "absurd cost"
        if port.selectivity.high > SELECTIVITY_MAX:
            return "absurd selectivity"
        if not 0 <= port.open_windows <= WINDOWS_MAX:
            return "absurd windows"
        if not (0 <= port.rows_per_s < math.inf and 0 <= port.rows_per_batch < math.inf):
            return "absurd rate"
        if law.samples > SAMPLES_MAX or law.age_s > AGE_S_MAX or port.selectivity.age_s > AGE_S_MAX:
            return "absurd samples or age"
    if statistics.state_bytes is not None and statistics.state_bytes.high > STATE_BYTES_MAX:
        return "absurd state"
    if not 0 <= statistics.state_rows_per_s < math.inf:
        return "absurd state"
    if statistics.row_bytes is not None and statistics.row_bytes.high > ROW_BYTES_MAX:
        return "absurd row"
    return None
