"""Work of placed queries by the way on which it comes."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbon.cost.arrivals import Series
from sbon.cost.figure import Source as FigureSource
from sbon.cost.figure import around
from sbon.cost.flow import FlowGraph, FlowLink, JoinFlow, OperatorFlow, PortFlow, WindowFlow
from sbon.cost.flow_by_way import work_by_way
from sbon.cost.latency_prediction import predicted_latency
from sbon.cost.load import Input, OperatorCost, Polynomial, Source, Upstream, deterministic_load
from sbon.cost.node_excess import Nodes
from sbon.cost.resources import NodeResources, UseSeries
from sbon.cost.store import CostStore
from sbon.cost.ways import by_way
from sbon.planning.forecast import by_quarter
from sbon.planning.gathering import placed_query
from sbon.query.params.source import SinkParams, SourceParams
from sbon.query.params.windowed import WindowParams
from sbon.types import FloatArray
from sbon_testbed.mace.bounds import SOURCE, known_costs, plan_of
from sbon_testbed.mace.world import simulate
from tests.examples import examples

INTERVALS = 6


class Placed:
    """A random flow graph on nodes: as flow sees it, and as Mace does, with an operator for each stream between nodes."""

    def __init__(self, rng: np.random.Generator, *, linear: bool) -> None:
        count = int(rng.integers(2, 8))
        node_of = rng.integers(0, 3, count)
        self.flows: list[OperatorFlow] = []
        self.links: list[FlowLink] = []
        self.operators: list[OperatorCost] = []
        self.carriers: list[OperatorFlow | FlowLink] = []
        self.incoming: list[tuple[FlowLink, ...]] = []
        where: list[int] = []
        sources: list[int] = []
        place: list[int] = []
        for number in range(count):
            is_source = number == 0 or rng.random() < 0.2
            kind = "linear" if linear or is_source else str(rng.choice(["linear", "window", "join"]))
            ports = 1 if is_source or kind == "window" else 2
            costs = [
                PortFlow(
                    selectivity=float(rng.random()) if kind == "linear" else 0.0,
                    per_row_ns=float(rng.random()),
                    per_batch_ns=0.0 if linear else float(rng.random()),
                )
                for _ in range(ports)
            ]
            flow = OperatorFlow(
                id=f"o{number}",
                ports=tuple(costs),
                join=JoinFlow(selectivity=0.1, before_s=0.5, after_s=1.5, per_row_out_ns=0.3) if kind == "join" else None,
                window=WindowFlow(size_s=2.0, slide_s=1.0, groups=3.0) if kind == "window" else None,
                row_bytes=float(rng.integers(1, 4)),
            )
            inputs: list[Input] = []
            links = []
            for port in () if is_source else (*range(ports), *rng.integers(0, ports, int(rng.integers(2))).tolist()):
                sender = int(rng.integers(0, number))
                links.append(FlowLink(f"l{len(self.links)}", f"o{sender}", flow.id, port, float(rng.choice([0.5, 1.0]))))
                self.links.append(links[-1])
                if node_of[sender] == node_of[number]:
                    inputs.append(Upstream(place[sender]))
                    continue
                size = Polynomial((self.flows[sender].row_bytes * links[-1].share,))
                self._add(OperatorCost((Upstream(place[sender]),), Polynomial((1.0,)), size), links[-1], (links[-1],))
                where.append(3 + 3 * int(node_of[sender]) + int(node_of[number]))
                inputs.append(Upstream(len(self.operators) - 1, float(rng.choice([0.1, 0.2]))))
            if is_source:
                inputs, costs = [Source(len(sources))], costs[:1]
                sources.append(number)
            taken = [0] if is_source else [link.port for link in links]
            shares = [1.0] if is_source else [link.share for link in links]
            rows, work = (
                tuple(getattr(costs[port], name) * share for port, share in zip(taken, shares, strict=True))
                for name in ("selectivity", "per_row_ns")
            )
            place.append(len(self.operators))
            self._add(OperatorCost(tuple(inputs), Polynomial(rows), Polynomial(work)), flow, tuple(links))
            where.append(int(node_of[number]))
            self.flows.append(flow)
        self.node_of = np.array(where, dtype=np.int64)
        self.arrivals: FloatArray = rng.random((len(sources), INTERVALS)) * 5
        self.series = {f"o{one}": Series(0.0, 1.0, rows, np.ceil(rows), 0 * rows) for one, rows in zip(sources, self.arrivals, strict=True)}

    def _add(self, operator: OperatorCost, carrier: OperatorFlow | FlowLink, links: tuple[FlowLink, ...]) -> None:
        self.operators.append(operator)
        self.carriers.append(carrier)
        self.incoming.append(links)


@examples(100)
@given(seed=st.integers(0, 2**32))
def test_work_of_linear_operators_by_way_is_that_of_their_rows(seed: int) -> None:
    """The load of the ways as Mace computes it: interval by interval, operator by operator."""
    placed = Placed(np.random.default_rng(seed), linear=True)
    ways = by_way(placed.operators, placed.node_of)

    found = work_by_way(ways, placed.carriers, placed.incoming, placed.series)

    assert found == pytest.approx(deterministic_load(ways.operators, placed.arrivals).work)


@examples(100)
@given(seed=st.integers(0, 2**32))
def test_work_by_way_adds_up_to_that_of_the_operator_with_windows_and_joins(seed: int) -> None:
    placed = Placed(np.random.default_rng(seed), linear=False)
    late = [number for number, one in enumerate(placed.carriers) if isinstance(one, OperatorFlow) and (one.join or one.window)]
    ways = by_way(placed.operators, placed.node_of, answering_late=late)

    found = work_by_way(ways, placed.carriers, placed.incoming, placed.series)

    graph = FlowGraph(placed.flows, placed.links)
    flow = graph.series(placed.series)
    for number, carrier in enumerate(placed.carriers):
        whole = flow.link_bytes[flow.links.index(carrier.id)] if isinstance(carrier, FlowLink) else flow.load_ns[graph.index[carrier.id]]
        assert found[ways.of == number].sum(axis=0) == pytest.approx(whole)


ROW_NS = 0.75e6
FAR_S = 1.0
BURST_S = 4
RATE = 1000
WINDOW = "CREATE SINK o AS SELECT window_end, k, sum(v) AS t FROM TUMBLE(both, ts, INTERVAL '1 second') GROUP BY window_end, k "
ALL = "CREATE SINK o AS SELECT ts, k, v FROM both "


@pytest.mark.parametrize(("sql", "costly"), [(ALL, SinkParams), (WINDOW, WindowParams)])
def test_rows_of_a_near_source_are_worked_on_before_those_of_a_far_one_come(sql: str, costly: type) -> None:
    """Two sources give 0.75 s of work a second for 4 s. One is a second away, so that only 3 s of the work overlap.

    If all work of one time came at once, rows would be late by another 0.75 s: 3 s instead of 2.25.
    """
    text = SOURCE.format(number=0, node="a", rate=RATE) + SOURCE.format(number=1, node="b", rate=RATE)
    text += "CREATE VIEW both AS SELECT ts, k, v FROM s0 UNION ALL SELECT ts, k, v FROM s1;"
    plan = plan_of(text + sql + "WITH (connector = 'discard', node = 'c')", ("a", "b", "c"), "c")
    cost_store = CostStore("c")
    for name in ("a", "b", "c"):
        speed = around(1.0, 0.01, FigureSource.MEASURED, samples=9)
        cost_store.nodes.told(name, NodeResources(node=name, cores=1, speed=speed, others=UseSeries((0.0,) * 10)), 0.0)
    costs = [known_costs(spec, 1e3, ROW_NS if isinstance(spec.params, costly) else 0.0) for spec in plan.operators]
    cost_store.statistics.restore(costs, 0.0)
    bursts = by_quarter([0] * 40 + [RATE // 4] * 4 * BURST_S + [0] * 184)
    latency_ms = {"a": 0.0, "b": FAR_S * 1e3}
    query = placed_query(
        cost_store,
        plan,
        {spec.id: spec.pinned or "c" for spec in plan.operators},
        [(one, "c", ms, True) for one, ms in latency_ms.items()],
        now=0.0,
        arrivals={spec.id: bursts for spec in plan.operators if isinstance(spec.params, SourceParams)},
    )
    one = Polynomial((1.0,))
    step = 0.01
    union = OperatorCost((Upstream(0), Upstream(1, FAR_S)), Polynomial((1.0, 1.0)), Polynomial((ROW_NS / 1e9 * RATE * step,) * 2))
    free = Polynomial((0.0,))
    operators = [OperatorCost((Source(0),), one, free), OperatorCost((Source(1),), one, free), union]
    instants = step * np.arange(1, BURST_S / step + 1)
    measured = simulate(
        operators, np.array([0, 1, 2]), Nodes(np.ones(3), np.ones(3, dtype=np.int64)), [instants, instants], np.random.default_rng(0)
    )

    found = predicted_latency(query).worst_s

    assert measured.latency_s.max() == pytest.approx(2.25, abs=2 * step)
    assert found is not None
    assert found.value == pytest.approx(measured.latency_s.max(), abs=0.05)  # observed: 2.26
    assert found.high > measured.latency_s.max()
