"""A walk of a query graph gives rows, work and bytes by interval, or as polynomials of the rates."""

import itertools

import numpy as np
import pytest

from sbon.cost.arrivals import Series, series_of
from sbon.cost.flow import FlowGraph, FlowLink, JoinFlow, OperatorFlow, PortFlow, WindowFlow
from sbon.cost.polynomial import constant, variable
from sbon.errors import ShapeError
from sbon_testbed.bench.costs import walk

STEPS = 8
"""Steps of an interval in the plain twin. Spans are multiples of a step, so the twin's midpoint rule is exact."""


class Twin:
    """The plain twin: the walk by loops, operator by operator and step by step."""

    def __init__(self, operators: list[OperatorFlow], links: list[FlowLink]) -> None:
        self.operators = {operator.id: operator for operator in operators}
        self.links = links

    def walk(self, sources: dict[str, Series], *, warm: bool) -> dict[str, tuple[list[float], list[float], list[float]]]:
        """Returns rows in, rows out and load of each operator."""
        any_series = next(iter(sources.values()))
        self.width_s, self.start_s, self.count = any_series.width_s, any_series.start_s, len(any_series.rows)
        self.warm, self.sources = warm, sources
        self.found: dict[str, tuple[list[float], list[float], list[float]]] = {}
        self.batches: dict[str, list[float]] = {}
        for name in self.operators:
            self.visit(name)
        return self.found

    def visit(self, name: str) -> None:
        if name in self.found:
            return
        operator = self.operators[name]
        ports = [[0.0] * self.count for _ in operator.ports]
        batches = [[0.0] * self.count for _ in operator.ports]
        if name in self.sources:
            ports[0] = [float(rows) for rows in self.sources[name].rows]
            batches[0] = [float(rows) for rows in self.sources[name].batches]
        for link in self.links:
            if link.target == name:
                self.visit(link.source)
                for p in range(self.count):
                    ports[link.port][p] += link.share * self.found[link.source][1][p]
                    batches[link.port][p] += self.batches[link.source][p]
        taken, out, load, count = [], [], [], []
        for p in range(self.count):
            taken.append(sum(port[p] for port in ports))
            count.append(sum(port[p] for port in batches))
            load.append(
                sum(
                    law.per_row_ns * port[p] + law.per_batch_ns * batch[p]
                    for law, port, batch in zip(operator.ports, ports, batches, strict=True)
                )
            )
            rows = sum(law.selectivity * port[p] for law, port in zip(operator.ports, ports, strict=True))
            if operator.join is not None:
                rows += operator.join.selectivity * ports[0][p] * self.held(ports[1], p, operator.join.before_s)
                rows += operator.join.selectivity * ports[1][p] * self.held(ports[0], p, operator.join.after_s)
            if operator.window is not None:
                rows += self.closed(operator.window, ports[0], p)
            out.append(rows)
        self.found[name], self.batches[name] = (taken, out, load), count

    def until(self, rows: list[float], at_s: float) -> float:
        """Returns the rows from the start to an instant; in a warm walk, minus the rows between them if the instant is before the start."""
        if at_s < 0:
            return at_s * sum(rows) / (self.count * self.width_s) if self.warm else 0.0
        total = 0.0
        for p in range(self.count):
            share = (at_s - p * self.width_s) / self.width_s
            total += rows[p] * min(1.0, max(0.0, share))
        return total

    def held(self, rows: list[float], p: int, span_s: float) -> float:
        middles = [(p + (step + 0.5) / STEPS) * self.width_s for step in range(STEPS)]
        return sum(self.until(rows, at_s) - self.until(rows, at_s - span_s) for at_s in middles) / STEPS

    def closed(self, window: WindowFlow, rows: list[float], p: int) -> float:
        begin, end = p * self.width_s, (p + 1) * self.width_s
        if window.slide_s < self.width_s:
            return min(window.groups, self.held(rows, p, window.size_s)) * self.width_s / window.slide_s
        total, number = 0.0, -1000
        while number * window.slide_s - self.start_s < end - 1e-9:
            at_s = number * window.slide_s - self.start_s
            if at_s >= begin - 1e-9:
                total += min(window.groups, self.until(rows, at_s) - self.until(rows, at_s - window.size_s))
            number += 1
        return total


def random_graph(rng: np.random.Generator, count: int, bent: float) -> tuple[list[OperatorFlow], list[FlowLink]]:
    """Returns a DAG of operators. Behind the sources, a share `bent` are joins or windows, with spans in steps of 0.5 s / `STEPS`."""
    operators: list[OperatorFlow] = []
    links: list[FlowLink] = []
    sources = int(rng.integers(1, 4))
    for number in range(count):
        kind = "map" if number < sources or rng.random() > bent else str(rng.choice(["join", "window"]))
        ports = 2 if kind == "join" else 1 if number < sources else int(rng.integers(1, 3))
        laws = tuple(
            PortFlow(
                selectivity=float(rng.uniform(0.1, 1.2)) if kind == "map" else 0.0,
                per_row_ns=float(rng.uniform(5, 500)),
                per_batch_ns=float(rng.uniform(1e3, 1e5)),
            )
            for _ in range(ports)
        )
        span = [float(step) * 0.5 / STEPS for step in rng.integers(0, 60, 2)]
        operators.append(
            OperatorFlow(
                id=f"o{number}",
                ports=laws,
                join=JoinFlow(selectivity=float(rng.uniform(0, 0.01)), before_s=span[0], after_s=span[1]) if kind == "join" else None,
                window=WindowFlow(size_s=span[0], slide_s=float(rng.choice([0.125, 0.5, 1.25])), groups=float(rng.integers(1, 30)))
                if kind == "window"
                else None,
                row_bytes=float(rng.integers(8, 100)),
                batch_bytes=float(rng.integers(0, 50)),
            )
        )
        for port in range(ports if number >= sources else 0):
            chosen = rng.choice(number, size=min(number, int(rng.integers(1, 3))), replace=False)
            shares = rng.choice([0.25, 1.0], len(chosen)).tolist()
            links += [
                FlowLink(f"o{source}>o{number}:{port}", f"o{source}", f"o{number}", port, share)
                for source, share in zip(chosen, shares, strict=True)
            ]
    mixed = rng.permutation(count)
    return [operators[number] for number in mixed], links


def arrivals(rng: np.random.Generator, names: tuple[str, ...], count: int, width_s: float = 0.5) -> dict[str, Series]:
    return {
        name: series_of(rng.poisson(rng.uniform(1, 60), count).astype(float), width_s, start_s=3.5, rows_per_batch=7, row_bytes=20)
        for name in names
    }


@pytest.mark.parametrize("warm", [True, False])
@pytest.mark.parametrize("seed", range(12))
def test_a_walk_gives_what_plain_loops_give(seed: int, warm: bool):
    rng = np.random.default_rng(seed)
    operators, links = random_graph(rng, int(rng.integers(4, 10)), bent=0.4)
    graph = FlowGraph(operators, links)
    sources = arrivals(rng, graph.sources, 9)

    flow = graph.series(sources, warm=warm)
    twin = Twin(operators, links)
    plain = twin.walk(sources, warm=warm)

    assert flow.operators == tuple(operator.id for operator in operators)
    for name, (taken, out, load) in plain.items():
        row = graph.index[name]
        np.testing.assert_allclose(flow.rows_in[row], taken, rtol=1e-9, atol=1e-6)
        np.testing.assert_allclose(flow.rows_out[row], out, rtol=1e-9, atol=1e-6)
        np.testing.assert_allclose(flow.load_ns[row], load, rtol=1e-9, atol=1e-3)
    by_id = {operator.id: operator for operator in operators}
    for number, link in enumerate(links):
        sender, (_, out, _) = by_id[link.source], plain[link.source]
        sent = np.array(out) * link.share * sender.row_bytes + np.array(twin.batches[link.source]) * sender.batch_bytes
        np.testing.assert_allclose(flow.link_bytes[number], sent, rtol=1e-9, atol=1e-6)


@pytest.mark.parametrize("seed", range(6))
def test_polynomials_give_what_a_walk_gives_at_constant_rates(seed: int):
    rng = np.random.default_rng(seed)
    operators, links = random_graph(rng, 7, bent=0.4)
    graph = FlowGraph(operators, links)
    rates = {name: float(rng.uniform(10, 100)) for name in graph.sources}
    # The longest slide is 1.25 s, so in intervals of 5 s windows give a steady stream, too.
    width_s = 5.0
    sources = {name: Series(0.0, width_s, *(np.full(40, rate * width_s * share) for share in (1, 0.5, 8))) for name, rate in rates.items()}

    flow = graph.series(sources)
    found = graph.polynomials(rates, dict.fromkeys(rates, 2.0))

    for name, row in graph.index.items():
        np.testing.assert_allclose(found.rows_out[name].at(rates) * width_s, flow.rows_out[row], rtol=1e-9)
        np.testing.assert_allclose(found.rows_in[name].at(rates) * width_s, flow.rows_in[row], rtol=1e-9)
        np.testing.assert_allclose(found.load_ns[name].at(rates) * width_s, flow.load_ns[row], rtol=1e-9)
        along = found.load_ns[name].along(rates)
        assert np.polynomial.Polynomial(along)(1.0) == pytest.approx(found.load_ns[name].at(rates))
        twice = {source: 2 * rate for source, rate in rates.items()}
        assert np.polynomial.Polynomial(along)(2.0) == pytest.approx(found.load_ns[name].at(twice))
    for number, link in enumerate(links):
        np.testing.assert_allclose(found.link_bytes[link.id].at(rates) * width_s, flow.link_bytes[number], rtol=1e-9)


def chain(*operators: OperatorFlow) -> FlowGraph:
    links = [FlowLink(f"{one.id}>{other.id}", one.id, other.id) for one, other in itertools.pairwise(operators)]
    return FlowGraph(operators, links)


SOURCE = OperatorFlow(id="s", ports=(PortFlow(),), row_bytes=10.0, batch_bytes=4.0)


def test_a_row_costs_at_its_port_and_a_batch_costs_once():
    graph = chain(SOURCE, OperatorFlow(id="m", ports=(PortFlow(selectivity=0.25, per_row_ns=3.0, per_batch_ns=100.0),)))

    flow = graph.series({"s": Series(0.0, 1.0, np.array([8.0, 0.0]), np.array([2.0, 0.0]), np.array([80.0, 0.0]))})

    assert flow.load_ns.tolist() == [[0.0, 0.0], [224.0, 0.0]]
    assert flow.rows_out.tolist() == [[8.0, 0.0], [2.0, 0.0]]
    assert flow.link_bytes.tolist() == [[88.0, 0.0]]


def test_a_join_gives_what_table_3_of_whitewater_says():
    """The output rate is 2 w r1 r2 s for a window of w on both sides."""
    left, right = OperatorFlow(id="l", ports=(PortFlow(),)), OperatorFlow(id="r", ports=(PortFlow(),))
    join = OperatorFlow(id="j", ports=(PortFlow(selectivity=0.0),) * 2, join=JoinFlow(selectivity=0.01, before_s=5.0, after_s=5.0))
    graph = FlowGraph([left, right, join], [FlowLink("a", "l", "j", 0), FlowLink("b", "r", "j", 1)])

    polynomial = graph.polynomials({"l": 3.0, "r": 7.0}).rows_out["j"]

    assert polynomial.terms == {(("l", 1), ("r", 1)): pytest.approx(2 * 5.0 * 0.01)}


def test_rows_out_of_a_join_cost_beside_those_that_come_in():
    left, right = OperatorFlow(id="l", ports=(PortFlow(),)), OperatorFlow(id="r", ports=(PortFlow(),))
    met = JoinFlow(selectivity=0.01, before_s=5.0, after_s=5.0, per_row_out_ns=70.0)
    join = OperatorFlow(id="j", ports=(PortFlow(selectivity=0.0, per_row_ns=100.0),) * 2, join=met)
    graph = FlowGraph([left, right, join], [FlowLink("a", "l", "j", 0), FlowLink("b", "r", "j", 1)])

    polynomial = graph.polynomials({"l": 3.0, "r": 7.0}).load_ns["j"]
    flow = graph.series({"l": series_of(np.full(4, 3.0), 1.0), "r": series_of(np.full(4, 7.0), 1.0)})

    expected = 100 * 10 + 70 * 2 * 5 * 0.01 * 21
    assert polynomial.at({"l": 3.0, "r": 7.0}) == pytest.approx(expected)
    assert flow.load_ns[graph.index["j"]].tolist() == pytest.approx([expected] * 4)


def test_windows_give_their_groups_at_the_end_of_each_slide():
    graph = chain(SOURCE, OperatorFlow(id="w", ports=(PortFlow(selectivity=0.0),), window=WindowFlow(size_s=4.0, slide_s=2.0, groups=5.0)))
    rows = np.array([1.0, 1.0, 1.0, 8.0, 8.0, 8.0])

    flow = graph.series({"s": series_of(rows, 1.0, start_s=9.0)}, warm=False)

    # The windows end at 10, 12 and 14 s: 1, 3 and 5 s after the start.
    assert flow.rows_out[1].tolist() == [0.0, 1.0, 0.0, 3.0, 0.0, 5.0]


def test_a_warm_walk_finds_the_rows_of_before_the_start():
    graph = chain(SOURCE, OperatorFlow(id="w", ports=(PortFlow(selectivity=0.0),), window=WindowFlow(size_s=4.0, slide_s=2.0, groups=99.0)))
    series = {"s": series_of(np.full(4, 3.0), 1.0)}

    assert graph.series(series).rows_out[1].tolist() == [12.0, 0.0, 12.0, 0.0]
    assert graph.series(series, warm=False).rows_out[1].tolist() == [0.0, 0.0, 6.0, 0.0]


@pytest.mark.parametrize(
    ("operators", "links", "message"),
    [
        ([SOURCE, SOURCE], [], "named twice"),
        ([SOURCE], [FlowLink("a", "s", "x")], "expected operators of the graph"),
        ([SOURCE, OperatorFlow(id="m", ports=(PortFlow(),))], [FlowLink("a", "s", "m", 1)], "ends at port 1"),
        ([OperatorFlow(id="m", ports=(PortFlow(),))], [FlowLink("a", "m", "m")], "form a cycle"),
        ([SOURCE, OperatorFlow(id="m", ports=(PortFlow(),))], [FlowLink("a", "s", "m", 0, 1.5)], "carries 1.5 of the rows"),
        ([OperatorFlow(id="m", ports=(PortFlow(), PortFlow()))], [], "expected one"),
        ([OperatorFlow(id="m", ports=(PortFlow(per_row_ns=float("nan")),))], [], "negative or not finite"),
        ([OperatorFlow(id="m", ports=(PortFlow(selectivity=-1.0),))], [], "negative or not finite"),
        ([OperatorFlow(id="m", ports=(PortFlow(),), window=WindowFlow(size_s=1.0, slide_s=0.0, groups=1.0))], [], "slides by"),
    ],
)
def test_a_graph_of_a_wrong_shape_is_refused(operators: list[OperatorFlow], links: list[FlowLink], message: str):
    with pytest.raises(ShapeError, match=message):
        FlowGraph(operators, links)


def test_series_that_do_not_fit_the_sources_are_refused():
    graph = FlowGraph([SOURCE, OperatorFlow(id="t", ports=(PortFlow(),))], [])
    one, longer = series_of(np.ones(3), 1.0), series_of(np.ones(4), 1.0)

    with pytest.raises(ShapeError, match="expected those of"):
        graph.series({"s": one})
    with pytest.raises(ShapeError, match="differ"):
        graph.series({"s": one, "t": longer})
    with pytest.raises(ShapeError, match="expected those of"):
        graph.polynomials({"s": 1.0})
    with pytest.raises(ShapeError, match="negative or not finite"):
        series_of(np.array([1.0, -1.0]), 1.0)


def test_a_polynomial_multiplies_adds_and_leaves_out_what_is_zero():
    a, b = variable("a"), variable("b")
    product = a.plus(b).times(a.plus(constant(2.0)))

    assert product.terms == {(("a", 2),): 1.0, (("a", 1),): 2.0, (("a", 1), ("b", 1)): 1.0, (("b", 1),): 2.0}
    assert product.at({"a": 3.0, "b": 5.0}) == 40.0
    assert product.along({"a": 3.0, "b": 5.0}).tolist() == [0.0, 16.0, 24.0]
    assert constant(0.0).terms == {}
    assert a.scaled(0.0).terms == {}


def test_a_product_of_too_many_terms_is_refused():
    many = constant(1.0)
    for number in range(70):
        many = many.plus(variable(f"v{number}"))

    with pytest.raises(ShapeError, match="4096"):
        many.times(many)


def test_a_walk_of_40_operators_over_100_intervals_is_quick():
    """Observed: 0.10 ms. The bound leaves room for a busy machine."""
    least_s, flow = walk(repeats=50)

    assert flow.load_ns.shape == (40, 100)
    assert least_s < 1e-3
