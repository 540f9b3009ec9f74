"""Computes the work of a placed query's operators and links by the way on which it comes (`sbon.cost.ways`).

Flow follows rows and batches from port to port. The ways of an operator become operators of a second flow graph, with the costs of the
ports at which their rows come. So their work adds up to that of the operator.
"""

from collections.abc import Mapping, Sequence
from typing import TypeAlias

import msgspec
import numpy as np

from sbon.cost.arrivals import Series
from sbon.cost.flow import FlowGraph, FlowLink, OperatorFlow
from sbon.cost.load import Upstream
from sbon.cost.ways import Role, Ways
from sbon.types import FloatArray, OperatorId

Carrier: TypeAlias = OperatorFlow | FlowLink | None
"""An operator of Mace's graph: an operator of the flow, a stream between nodes, or a delay without work."""


def work_by_way(
    ways: Ways, carriers: Sequence[Carrier], incoming: Sequence[Sequence[FlowLink]], sources: Mapping[OperatorId, Series]
) -> FloatArray:
    """Returns the work of each way in each interval: reference ns, or bytes for streams between nodes. (ways, intervals).

    Parameters
    ----------
    carriers : (operators,)
    incoming : (operators,): the flow's link of each input; none for sources
    sources : arrivals of the operators without inputs
    """
    flows: list[OperatorFlow] = []
    links: list[FlowLink] = []
    series: dict[OperatorId, Series] = {}
    stream: dict[int, int] = {}
    """Index in `links` by the way of a stream between nodes."""
    for way, operator in enumerate(ways.operators):
        carrier = carriers[ways.of[way]]
        if not isinstance(carrier, OperatorFlow):
            continue
        name = str(way)
        flows.append(_part_of(carrier, name, ways.roles[way]))
        if carrier.id in sources:
            series[name] = sources[carrier.id]
            continue
        for port, one in zip(ways.ports[way], operator.inputs, strict=False):  # the rest of the inputs are ways of the same operator
            assert isinstance(one, Upstream)
            sender = one.operator
            if isinstance(carriers[ways.of[sender]], FlowLink):
                stream[sender] = len(links)
                (before,) = ways.operators[sender].inputs
                assert isinstance(before, Upstream)
                sender = before.operator
            link = incoming[ways.of[way]][port]
            links.append(FlowLink(f"{len(links)}", str(sender), name, link.port, link.share))
    graph = FlowGraph(flows, links)
    found = graph.series(series)
    work = np.zeros((len(ways.operators), found.load_ns.shape[1]))
    for way in range(len(work)):
        if (row := graph.index.get(str(way))) is not None:
            work[way] = found.load_ns[row]
        elif way in stream:
            work[way] = found.link_bytes[stream[way]]
    return work


def _part_of(operator: OperatorFlow, name: str, role: Role) -> OperatorFlow:
    """Returns the operator of a way, with its part of the rows and the work."""
    if role is Role.ALL:
        return msgspec.structs.replace(operator, id=name)
    if role is Role.WORK:
        ports = tuple(msgspec.structs.replace(port, selectivity=0.0) for port in operator.ports)
        return msgspec.structs.replace(operator, id=name, ports=ports, join=None, window=None)
    ports = tuple(msgspec.structs.replace(port, per_row_ns=0.0, per_batch_ns=0.0) for port in operator.ports)
    return msgspec.structs.replace(operator, id=name, ports=ports)
