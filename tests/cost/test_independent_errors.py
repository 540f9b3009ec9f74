"""Upper bounds of work whose figures err independently of each other."""

import math
from collections.abc import Sequence

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbon.cost.arrivals import Series
from sbon.cost.figure import Source
from sbon.cost.flow import Flow, FlowGraph, FlowLink, JoinFlow, OperatorFlow, PortFlow
from sbon.cost.independent_errors import at_high_edge
from sbon.types import LinkId, OperatorId
from tests.examples import examples

INTERVALS = 8
MEASURED, RULE = (Source.MEASURED,), (Source.RULE,)


def name(number: int) -> OperatorId:
    return OperatorId(f"o{number}")


class Figures(msgspec.Struct, frozen=True):
    """An operator: its shares of rows, costs of a row, and the relative errors of both."""

    share: float
    cost_ns: float
    share_error: float
    cost_error: float

    def flow(self, number: int, ports: int, share: bool, cost: bool) -> OperatorFlow:
        """Returns the operator with some figures at their high edge."""
        port = PortFlow(
            selectivity=self.share * (1 + share * self.share_error),
            per_row_ns=self.cost_ns * (1 + cost * self.cost_error),
            per_batch_ns=5.0,
        )
        return OperatorFlow(id=name(number), ports=(port,) * ports, row_bytes=10.0)


@st.composite
def graphs(draw: st.DrawFn) -> tuple[list[Figures], list[FlowLink]]:
    """Draws operators after a source, each with one to three of those before it as inputs."""
    count = draw(st.integers(1, 7))
    error = st.floats(0.0, 0.01)
    figures = [Figures(1.0, 3.0, 0.0, draw(error))]
    figures += [Figures(draw(st.floats(0.1, 1.0)), draw(st.floats(0.5, 9.0)), draw(error), draw(error)) for _ in range(count)]
    links = []
    for number in range(1, count + 1):
        for source in draw(st.sets(st.integers(0, number - 1), min_size=1, max_size=3)):
            links.append(FlowLink(LinkId(f"l{len(links)}"), name(source), name(number), share=draw(st.sampled_from([0.25, 1.0]))))
    return figures, links


def walked(figures: Sequence[Figures], links: Sequence[FlowLink], high: Sequence[tuple[bool, bool]]) -> tuple[FlowGraph, Flow]:
    """Returns the graph and its flow with some figures at their high edge: share and cost of each operator."""
    graph = FlowGraph([one.flow(number, 1, *edges) for number, (one, edges) in enumerate(zip(figures, high, strict=True))], links)
    rows = np.arange(1.0, INTERVALS + 1)
    return graph, graph.series({name(0): Series(0.0, 1.0, rows, np.minimum(rows, 4.0), 0.0 * rows)})


def bound(figures: Sequence[Figures], links: Sequence[FlowLink], sources: tuple[Source, ...], nodes: int = 1) -> Flow:
    """Returns the flow at the high edge, with operators on nodes in turn."""
    count = len(figures)
    node_of = np.arange(count) % nodes
    link_of = np.array([-1 if nodes == 1 else number for number in range(len(links))], dtype=np.int64)
    none, both = walked(figures, links, [(False, False)] * count), walked(figures, links, [(True, True)] * count)
    return at_high_edge(none, both, {name(number): sources for number in range(count)}, node_of, link_of, np.ones(nodes, dtype=np.int64))


@given(graphs(), st.integers(1, 3))
@examples(60)
def test_the_work_of_a_node_exceeds_the_expected_by_the_root_of_the_sum_of_squares(
    drawn: tuple[list[Figures], list[FlowLink]], nodes: int
) -> None:
    """The plain twin walks the graph once for each share of rows, with that one alone at its high edge, and once with all costs there."""
    figures, links = drawn
    count = len(figures)
    expected = walked(figures, links, [(False, False)] * count)[1].load_ns.sum(axis=1)
    alone = []
    for number in range(count):
        high = [(other == number, False) for other in range(count)]
        alone.append(walked(figures, links, high)[1].load_ns.sum(axis=1) - expected)
    alone.append(walked(figures, links, [(False, True)] * count)[1].load_ns.sum(axis=1) - expected)

    found = bound(figures, links, MEASURED, nodes).load_ns.sum(axis=1) - expected

    for node in range(nodes):
        together = math.sqrt(sum(float(one[node::nodes].sum()) ** 2 for one in alone))
        assert float(found[node::nodes].sum()) == pytest.approx(together, rel=0.05, abs=1e-9)  # errors of errors are a few per cent


@given(graphs())
@examples(30)
def test_rules_of_thumb_may_all_err_alike(drawn: tuple[list[Figures], list[FlowLink]]) -> None:
    figures, links = drawn
    _, most = walked(figures, links, [(True, True)] * len(figures))

    found = bound(figures, links, RULE, nodes=2)

    np.testing.assert_allclose(found.load_ns, most.load_ns)
    np.testing.assert_allclose(found.link_bytes, most.link_bytes)


def test_one_figure_alone_is_at_its_high_edge() -> None:
    figures = [Figures(1.0, 1.0, 0.0, 0.0), Figures(0.5, 2.0, 0.3, 0.0), Figures(1.0, 7.0, 0.0, 0.0)]
    links = [FlowLink(LinkId(f"l{number}"), name(number), name(number + 1)) for number in range(2)]
    _, most = walked(figures, links, [(True, True)] * 3)

    found = bound(figures, links, MEASURED, nodes=3)

    np.testing.assert_allclose(found.load_ns, most.load_ns)
    np.testing.assert_allclose(found.link_bytes, most.link_bytes)


def test_a_share_of_none_that_may_be_more_counts_behind_it() -> None:
    """No row of a thousand has passed, but up to three may: the operator behind has their work."""
    none, some = (PortFlow(selectivity=share, per_row_ns=1.0) for share in (0.0, 3e-3))
    rest = OperatorFlow(id=name(2), ports=(PortFlow(per_row_ns=1e4),))
    source = OperatorFlow(id=name(0), ports=(PortFlow(),))
    links = [FlowLink(LinkId(f"l{number}"), name(number), name(number + 1)) for number in range(2)]
    rows = np.full(INTERVALS, 1000.0)
    walks = []
    for port in (none, some):
        graph = FlowGraph([source, OperatorFlow(id=name(1), ports=(port,)), rest], links)
        walks.append((graph, graph.series({name(0): Series(0.0, 1.0, rows, rows, 0.0 * rows)})))
    sources = {name(number): MEASURED for number in range(3)}

    found = at_high_edge(walks[0], walks[1], sources, np.zeros(3, dtype=np.int64), np.full(2, -1), np.ones(1, dtype=np.int64))

    np.testing.assert_allclose(found.load_ns[2], 3 * 1e4)


def test_with_several_cores_each_operator_is_bounded_as_if_alone() -> None:
    """Two filters with equal errors: the work behind both has the root of 2 of one, but the core that works behind one may have all of
    it."""
    figures = [Figures(1.0, 0.0, 0.0, 0.0), *[Figures(0.5, 0.0, 0.01, 0.0)] * 2, *[Figures(1.0, 5.0, 0.0, 0.0)] * 2]
    links = [FlowLink(LinkId(f"l{number}"), name((0, 0, 1, 2)[number]), name(number + 1)) for number in range(4)]
    none, both = (walked(figures, links, [(edge, edge)] * 5) for edge in (False, True))
    sources = {name(number): MEASURED for number in range(5)}
    where = np.zeros(5, dtype=np.int64), np.full(4, -1)

    one, two = (at_high_edge(none, both, sources, *where, np.array([cores])).load_ns[3:].sum() for cores in (1, 2))

    least, most = (float(flow.load_ns[3:].sum()) for _, flow in (none, both))
    assert one - least == pytest.approx((most - least) / math.sqrt(2))
    assert two == pytest.approx(most)


def test_joins_have_the_errors_of_both_sides() -> None:
    """Each row out is a pair, so an error of 1 % of the source's filter is 2 % of the pairs."""
    links = [
        FlowLink(LinkId("l0"), name(0), name(1)),
        FlowLink(LinkId("l1"), name(1), name(2), 0),
        FlowLink(LinkId("l2"), name(1), name(2), 1),
    ]
    rows = np.full(INTERVALS, 100.0)
    walks = []
    for error in (0.0, 0.01):
        pairs = JoinFlow(selectivity=0.1 * (1 + error), before_s=0.5, after_s=0.5, per_row_out_ns=10.0)
        join = OperatorFlow(id=name(2), ports=(PortFlow(selectivity=0.0),) * 2, join=pairs)
        half = OperatorFlow(id=name(1), ports=(PortFlow(selectivity=0.5 * (1 + error)),))
        graph = FlowGraph([OperatorFlow(id=name(0), ports=(PortFlow(),)), half, join], links)
        walks.append((graph, graph.series({name(0): Series(0.0, 1.0, rows, rows, 0.0 * rows)})))
    sources = {name(number): MEASURED for number in range(3)}

    found = at_high_edge(walks[0], walks[1], sources, np.zeros(3, dtype=np.int64), np.full(3, -1), np.ones(1, dtype=np.int64))

    assert found.load_ns[2].sum() / walks[0][1].load_ns[2].sum() == pytest.approx(1 + math.hypot(0.02, 0.01), rel=1e-3)
