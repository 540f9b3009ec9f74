"""Computes the rows, work and bytes that sources cause in a query graph: as series over intervals, or as polynomials of the sources' rates.

One walk serves all models. Operators that are linear in their input rows are multiplied out when the graph is compiled, so that a walk is
one product of matrices. Only joins and windows are computed one by one, upstream first. All series are by stimulus time (Mace, definition
5): an output belongs to the interval of the source row that caused it, wherever and whenever it is computed.
"""

import math
from collections.abc import Mapping, Sequence

import msgspec
import numpy as np

from sbon.cost.arrivals import Series
from sbon.cost.polynomial import Polynomial, constant, variable
from sbon.errors import ShapeError
from sbon.types import FloatArray, LinkId, OperatorId

NS_PER_S = 1e9


class PortFlow(msgspec.Struct, frozen=True, kw_only=True):
    """Cost and selectivity of one input port of an operator. A source has one port, for the rows from outside."""

    selectivity: float = 1.0
    """Rows out per row in; 0 where the operator's `join` or `window` gives its rows."""
    per_row_ns: float = 0.0
    """Reference ns per row, open windows included."""
    per_batch_ns: float = 0.0
    """Reference ns per batch."""


class JoinFlow(msgspec.Struct, frozen=True, kw_only=True):
    """Rows of port 0 meet rows of port 1 that are at most `before_s` older or `after_s` newer."""

    selectivity: float
    """Share of pairs that are rows out."""
    before_s: float
    after_s: float
    per_row_out_ns: float = 0.0
    """Reference ns of each row out, beside the cost of the rows in."""


class WindowFlow(msgspec.Struct, frozen=True, kw_only=True):
    """At each multiple of `slide_s`, a window over the rows of port 0 of the last `size_s` gives a row for each group that it has."""

    size_s: float
    slide_s: float
    groups: float


class OperatorFlow(msgspec.Struct, frozen=True, kw_only=True):
    """One operator as flow sees it. Its rows out are those of its ports, of its join and of its window together."""

    id: OperatorId
    ports: tuple[PortFlow, ...]
    join: JoinFlow | None = None
    window: WindowFlow | None = None
    row_bytes: float = 0.0
    """Bytes of a row out on a link."""
    batch_bytes: float = 0.0
    """Bytes of a batch out beside its rows."""


class FlowLink(msgspec.Struct, frozen=True):
    """A stream from one operator to a port of another."""

    id: LinkId
    source: OperatorId
    target: OperatorId
    port: int = 0
    share: float = 1.0
    """Share of the source's rows that the link carries. Batches are not divided: a part of each goes over each link."""


class Flow(msgspec.Struct, frozen=True):
    """Rows, work and link traffic of a graph in each interval. d is the number of intervals."""

    operators: tuple[OperatorId, ...]
    links: tuple[LinkId, ...]
    width_s: float
    rows_in: FloatArray
    """Rows into each operator over all ports, (operators, d)."""
    rows_out: FloatArray
    """(operators, d)"""
    load_ns: FloatArray
    """Work in reference ns, (operators, d): the DLTS of Mace, definition 5."""
    link_bytes: FloatArray
    """(links, d)"""
    batches: FloatArray
    """Batches into each operator, (operators, d)."""
    fixed_ns: FloatArray
    """Part of the work that batches cost beside their rows, (operators, d)."""


class FlowPolynomials(msgspec.Struct, frozen=True):
    """Rows, work and link traffic of a graph at constant rates, as polynomials of the sources' rows per second. Variables are the ids of
    the sources."""

    rows_in: dict[OperatorId, Polynomial]
    """Rows per second."""
    rows_out: dict[OperatorId, Polynomial]
    load_ns: dict[OperatorId, Polynomial]
    """Reference ns per second."""
    link_bytes: dict[LinkId, Polynomial]
    """Bytes per second."""


class FlowGraph:
    """A query graph, compiled for walks.

    Parameters
    ----------
    operators : in any order; those without incoming links are sources
    links : several may lead to one port, which takes all their rows

    Raises
    ------
    ShapeError
        An id occurs twice, a link ends at an operator or port that is not there, the links form a cycle, a source has other than one
        port, a join other than two, or a number is negative or not finite.
    """

    def __init__(self, operators: Sequence[OperatorFlow], links: Sequence[FlowLink]) -> None:
        self.index: dict[OperatorId, int] = {operator.id: row for row, operator in enumerate(operators)}
        """Row of each operator in series."""
        self.operators: dict[OperatorId, OperatorFlow] = {operator.id: operator for operator in operators}
        self._operators, self._links = tuple(operators), tuple(links)
        _check(self._operators, self._links, self.index)
        incoming: dict[OperatorId, list[FlowLink]] = {operator.id: [] for operator in operators}
        for link in links:
            incoming[link.target].append(link)
        self._incoming = incoming
        self._order = _upstream_first(self._operators, incoming)
        self.sources: tuple[OperatorId, ...] = tuple(operator.id for operator in operators if not incoming[operator.id])
        """Operators whose series a walk needs."""
        self._compile()

    def incoming(self, operator: OperatorId) -> tuple[FlowLink, ...]:
        """Returns the links that lead to an operator, in their order."""
        return tuple(self._incoming[operator])

    def _compile(self) -> None:
        """Multiplies out the linear part of the graph.

        The columns of the matrices stand for the rows of each source, the rows of each join or window, and the batches of each source, in
        this order.
        """
        bent = [operator for operator in self._order if operator.join is not None or operator.window is not None]
        sources, count = len(self.sources), len(self._operators)
        rows = sources + len(bent)
        width = rows + sources
        column = {operator.id: sources + number for number, operator in enumerate(bent)}
        out, batches = np.zeros((count, width)), np.zeros((count, width))
        taken, load, fixed = np.zeros((count, width)), np.zeros((count, width)), np.zeros((count, width))
        self._bent: list[tuple[OperatorFlow, FloatArray]] = []
        for operator in self._order:
            row = self.index[operator.id]
            ports, port_batches = np.zeros((len(operator.ports), width)), np.zeros((len(operator.ports), width))
            if not self._incoming[operator.id]:
                number = self.sources.index(operator.id)
                ports[0, number] = port_batches[0, rows + number] = 1.0
            for link in self._incoming[operator.id]:
                ports[link.port] += link.share * out[self.index[link.source]]
                port_batches[link.port] += batches[self.index[link.source]]
            for number, port in enumerate(operator.ports):
                out[row] += port.selectivity * ports[number]
                load[row] += port.per_row_ns * ports[number]
                fixed[row] += port.per_batch_ns * port_batches[number]
            batches[row], taken[row] = port_batches.sum(0), ports.sum(0)
            if operator.id in column:
                self._bent.append((operator, ports[:, : column[operator.id]]))
                out[row, column[operator.id]] = 1.0
                load[row, column[operator.id]] = 0.0 if operator.join is None else operator.join.per_row_out_ns
        sent = [
            self._operators[self.index[link.source]].row_bytes * link.share * out[self.index[link.source]]
            + self._operators[self.index[link.source]].batch_bytes * batches[self.index[link.source]]
            for link in self._links
        ]
        self._matrix = np.vstack([taken, out, load, fixed, batches, np.array(sent).reshape(len(self._links), width)])
        self._rows = rows

    def series(self, sources: Mapping[OperatorId, Series], *, warm: bool = True) -> Flow:
        """Returns the rows, work and traffic that the sources' rows cause in each interval.

        Parameters
        ----------
        sources : a series for each source, all of the same width and length; ends of windows are multiples of the slide on the clock of
            their `start_s`
        warm : True: before the first interval, joins and windows have seen the mean rate of the series. False: nothing.

        Raises
        ------
        ShapeError
            A source has no series, a series belongs to no source, or they differ in start, width or length.
        """
        if sources.keys() != set(self.sources):
            raise ShapeError(f"series of {sorted(sources)}, expected those of {sorted(self.sources)}")
        given = [sources[name] for name in self.sources]
        if not given:
            raise ShapeError("a graph without operators, expected a source at least")
        first = given[0]
        for series in given:
            if (series.start_s, series.width_s, len(series.rows)) != (first.start_s, first.width_s, len(first.rows)):
                raise ShapeError("series of sources differ in start, width or length")
        basis = np.empty((self._matrix.shape[1], len(first.rows)))
        for number, series in enumerate(given):
            basis[number] = series.rows
            basis[self._rows + number] = series.batches
        for place, (operator, matrix) in enumerate(self._bent, len(given)):
            ports = matrix @ basis[:place]
            rows: FloatArray | float = 0.0
            if operator.join is not None:
                rows = _joined(operator.join, ports[0], ports[1], first.width_s, warm)
            if operator.window is not None:
                rows = rows + _closed(operator.window, ports[0], first.start_s, first.width_s, warm)
            basis[place] = rows
        found = self._matrix @ basis
        count = len(self._operators)
        taken, out, load, fixed, batches = (found[place * count : (place + 1) * count] for place in range(5))
        links = tuple(link.id for link in self._links)
        return Flow(tuple(self.index), links, first.width_s, taken, out, load + fixed, found[5 * count :], batches, fixed)

    def polynomials(self, profile: Mapping[OperatorId, float], rows_per_batch: Mapping[OperatorId, float] | None = None) -> FlowPolynomials:
        """Returns the rows, work and traffic that constant rates of the sources cause.

        Parameters
        ----------
        profile : rows per second of each source. A window gives as many rows as it has groups or rows, whichever are fewer. The choice is
            made at these rates; at other rates it gives an upper bound.
        rows_per_batch : of each source, 1 if not given. Faster sources make larger batches, so this bounds the costs from above.

        Raises
        ------
        ShapeError
            A source has no rate.

        Source
        ------
        WhiteWater, section 4.1, table 3.
        """
        if not profile.keys() >= set(self.sources):
            raise ShapeError(f"rates of {sorted(profile)}, expected those of {sorted(self.sources)}")
        out: dict[OperatorId, Polynomial] = {}
        batches: dict[OperatorId, Polynomial] = {}
        found = FlowPolynomials({}, out, {}, {})
        for operator in self._order:
            ports, port_batches = [constant(0.0) for _ in operator.ports], [constant(0.0) for _ in operator.ports]
            if not self._incoming[operator.id]:
                ports[0] = variable(operator.id)
                port_batches[0] = ports[0].scaled(1 / (rows_per_batch or {}).get(operator.id, 1.0))
            for link in self._incoming[operator.id]:
                ports[link.port] = ports[link.port].plus(out[link.source].scaled(link.share))
                port_batches[link.port] = port_batches[link.port].plus(batches[link.source])
            rows, load, taken, count = constant(0.0), constant(0.0), constant(0.0), constant(0.0)
            for port, incoming, batch in zip(operator.ports, ports, port_batches, strict=True):
                rows = rows.plus(incoming.scaled(port.selectivity))
                load = load.plus(incoming.scaled(port.per_row_ns)).plus(batch.scaled(port.per_batch_ns))
                taken, count = taken.plus(incoming), count.plus(batch)
            if operator.join is not None:
                join = operator.join
                pairs = ports[0].times(ports[1]).scaled(join.selectivity * (join.before_s + join.after_s))
                rows, load = rows.plus(pairs), load.plus(pairs.scaled(join.per_row_out_ns))
            if operator.window is not None:
                window = operator.window
                held = ports[0].scaled(window.size_s)
                rows = rows.plus((held if held.at(profile) <= window.groups else constant(window.groups)).scaled(1 / window.slide_s))
            out[operator.id], batches[operator.id] = rows, count
            found.rows_in[operator.id], found.load_ns[operator.id] = taken, load
        for link in self._links:
            source = self._operators[self.index[link.source]]
            found.link_bytes[link.id] = (
                out[source.id].scaled(source.row_bytes * link.share).plus(batches[source.id].scaled(source.batch_bytes))
            )
        return found


class _Past:
    """Counts the rows before any instant. Rows come evenly within an interval, and before the first one at the mean rate (`warm`) or not at
    all."""

    def __init__(self, rows: FloatArray, width_s: float, warm: bool) -> None:
        self._new = rows
        self._width_s = width_s
        self._count = len(rows)
        self._rows = np.empty(self._count + 1)
        self._rows[0] = 0.0
        rows.cumsum(out=self._rows[1:])
        self._each_before = float(self._rows[-1]) / self._count if warm and self._count else 0.0
        """Rows of each interval before the first."""

    def grown(self, ends_s: FloatArray, span_s: float) -> FloatArray:
        """Returns the rows of the `span_s` before each of these times, which are not before the start: (n,)."""
        knots_s = np.arange(-1.0, self._count + 1)
        knots_s *= self._width_s
        knots_s[0] = -span_s - self._width_s
        rows = np.empty(self._count + 2)
        rows[0], rows[1:] = knots_s[0] / self._width_s * self._each_before, self._rows
        found: FloatArray = np.interp(ends_s, knots_s, rows)
        found -= np.interp(ends_s - span_s, knots_s, rows)
        return found

    def held(self, span_s: float) -> FloatArray:
        """Returns the mean number of rows of the last `span_s`, which is above 0, over each interval: (d,).

        It is the mean of R(t) - R(t - span) over the interval, where R counts rows so far. An interval that is moved back by the span
        covers a share of 1 - `into` of an interval and one of `into` of the next, and R is linear in each.
        """
        back = math.ceil(span_s / self._width_s - 1e-9)
        into = max(0.0, back - span_s / self._width_s)
        early = min(back, self._count)
        new, before = np.empty(self._count + 1), np.empty(self._count)
        new[:early] = self._each_before
        new[early:] = self._new[: self._count + 1 - early] if back <= self._count else self._each_before
        before[:early] = np.arange(-back, early - back)
        before[:early] *= self._each_before
        before[early:] = self._rows[: self._count - early]
        found: FloatArray = self._new * 0.5
        found += self._rows[:-1]
        found -= before
        found -= new[:-1] * (0.5 * (1 - into * into) + into)
        if into > 0:
            found -= new[1:] * (0.5 * into * into)
        return found


def _joined(join: JoinFlow, left: FloatArray, right: FloatArray, width_s: float, warm: bool) -> FloatArray:
    """Returns the rows of a join in each interval: each new row of one side meets the rows that the join holds of the other."""
    found = np.zeros(len(left))
    if join.before_s > 0:
        found += left * _Past(right, width_s, warm).held(join.before_s)
    if join.after_s > 0:
        found += right * _Past(left, width_s, warm).held(join.after_s)
    found *= join.selectivity
    return found


def _closed(window: WindowFlow, rows: FloatArray, start_s: float, width_s: float, warm: bool) -> FloatArray:
    """Returns the rows of the windows that end in each interval."""
    past = _Past(rows, width_s, warm)
    if window.slide_s < width_s:
        return np.minimum(window.groups, past.held(window.size_s)) * (width_s / window.slide_s)
    count = len(rows)
    first = math.ceil(start_s / window.slide_s - 1e-9)
    last = math.ceil((start_s + count * width_s) / window.slide_s - 1e-9)
    ends_s: FloatArray = np.arange(first, last, dtype=np.float64) * window.slide_s - start_s
    full = np.minimum(window.groups, past.grown(ends_s, window.size_s))
    places = np.minimum((ends_s / width_s + 1e-9).astype(np.int64), count - 1)
    found: FloatArray = np.bincount(places, full, count).astype(np.float64, copy=False)
    return found


def _check(operators: Sequence[OperatorFlow], links: Sequence[FlowLink], index: Mapping[OperatorId, int]) -> None:
    if len(index) != len(operators):
        raise ShapeError("an operator is named twice, expected each once")
    targets = {link.target for link in links}
    for link in links:
        if link.source not in index or link.target not in index:
            raise ShapeError(f"link {link.id!r} from {link.source!r} to {link.target!r}, expected operators of the graph")
        if not 0 <= link.port < len(operators[index[link.target]].ports):
            raise ShapeError(
                f"link {link.id!r} ends at port {link.port} of {link.target!r}, which has {len(operators[index[link.target]].ports)}"
            )
        if not 0 <= link.share <= 1:
            raise ShapeError(f"link {link.id!r} carries {link.share} of the rows, expected 0 to 1")
    for operator in operators:
        if operator.id not in targets and len(operator.ports) != 1:
            raise ShapeError(f"source {operator.id!r} has {len(operator.ports)} ports, expected one")
        if operator.join is not None and len(operator.ports) != 2:
            raise ShapeError(f"join {operator.id!r} has {len(operator.ports)} ports, expected two")
        numbers = [operator.row_bytes, operator.batch_bytes]
        for port in operator.ports:
            numbers += [port.selectivity, port.per_row_ns, port.per_batch_ns]
        if operator.join is not None:
            numbers += [operator.join.selectivity, operator.join.before_s, operator.join.after_s, operator.join.per_row_out_ns]
        if operator.window is not None:
            numbers += [operator.window.size_s, operator.window.groups]
            if not 0 < operator.window.slide_s < math.inf:
                raise ShapeError(f"window {operator.id!r} slides by {operator.window.slide_s} s, expected more than 0")
        if not all(0 <= number < math.inf for number in numbers):
            raise ShapeError(f"operator {operator.id!r} with a number that is negative or not finite")


def _upstream_first(operators: Sequence[OperatorFlow], incoming: Mapping[OperatorId, Sequence[FlowLink]]) -> list[OperatorFlow]:
    by_id = {operator.id: operator for operator in operators}
    waiting = {name: len(links) for name, links in incoming.items()}
    targets: dict[OperatorId, list[OperatorId]] = {}
    for links in incoming.values():
        for link in links:
            targets.setdefault(link.source, []).append(link.target)
    order = [name for name, count in waiting.items() if count == 0]
    for name in order:  # the list grows during the loop
        for target in targets.get(name, ()):
            waiting[target] -= 1
            if waiting[target] == 0:
                order.append(target)
    if len(order) < len(operators):
        circle = next(name for name, count in waiting.items() if count > 0)
        raise ShapeError(f"the links of operator {circle!r} form a cycle, expected a graph without one")
    return [by_id[name] for name in order]
