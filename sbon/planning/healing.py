"""Tells what a crash of each host of a placed query would cost, and how soon its operators would run again (docs/recovery.md)."""

from collections.abc import Callable, Mapping
from typing import Any

from sbon.execution.settings import EngineConfig
from sbon.membership.config import MembershipConfig
from sbon.membership.suspicion import suspicion_timeout_s
from sbon.query.params.kinds import keeps_state
from sbon.query.params.source import SinkParams
from sbon.query.plan import Plan, after_crash
from sbon.types import NodeId, OperatorId

WAITS = 3
"""Number of waits for an answer to a probe before a member is suspected: directly, again, and through others."""
PLACING_TRIPS = 2
"""Round trips to find hosts: candidates are asked whether they have room, and measure how far they are."""
LOADING_S = 0.4
"""Longest time that a host takes to load its libraries for its first operator, in seconds."""

Latency = Callable[[NodeId], float | None]
"""Returns the one-way latency from the home to a node in ms, as measured or predicted; None if it is not known."""


def detection_s(config: MembershipConfig, members: int) -> tuple[float, float]:
    """Returns the time from a crash until a member has been declared failed, in seconds: the least, and one that is rarely exceeded.

    Parameters
    ----------
    members : number of living members, the crashed one included

    Examples
    --------
    >>> [round(seconds, 1) for seconds in detection_s(MembershipConfig(), 8)]
    [2.6, 5.9]
    """
    confirmations = min(config.suspicion_confirmations, max(0, members - 2))
    longest_s = config.suspicion_s * config.suspicion_ratio_max
    object_s = suspicion_timeout_s(config.suspicion_s, longest_s, max(0, confirmations - 1), confirmations)
    least_s = WAITS * config.timeout_s_min + config.suspicion_s
    return least_s, 2 * config.interval_s + WAITS * config.timeout_s_max + object_s + 2 * config.gossip_interval_s


def expected(
    plan: Plan,
    nodes: Mapping[OperatorId, NodeId],
    me: NodeId,
    membership: MembershipConfig,
    members: int,
    engine: EngineConfig,
    latency_ms: Latency,
) -> dict[str, Any]:
    """Returns the part of `sbon explain` about crashes.

    Parameters
    ----------
    nodes : hosts of the operators that are made for the query
    me : its home
    members : number of living members
    """
    noticed = detection_s(membership, members)
    hosts = [_host(plan, nodes, host, me, noticed, engine.heal_after_s, latency_ms) for host in sorted(set(nodes.values()))]
    return {
        "heals": engine.heal,
        "detection_s": list(noticed),
        "detection": (
            f"a probe every {membership.interval_s:g} s, {WAITS} waits for an answer of {membership.timeout_s_min:g} to "
            f"{membership.timeout_s_max:g} s by distance, {membership.suspicion_s:g} s to object"
        ),
        "after_s": engine.heal_after_s,
        "windows": after_crash(plan.operators),
        "hosts": hosts,
    }


def _host(
    plan: Plan,
    nodes: Mapping[OperatorId, NodeId],
    host: NodeId,
    me: NodeId,
    noticed: tuple[float, float],
    after_s: float,
    latency_ms: Latency,
) -> dict[str, Any]:
    specs = {spec.id: spec for spec in plan.operators}
    lost = [operator for operator, node in nodes.items() if node == host]
    pinned = _waiting(plan, lost)
    movable = [operator for operator in lost if operator not in pinned]
    others = sorted(set(nodes.values()) - {host})
    known = [ms for node in [*others, *([host] if pinned else [])] if node != me and (ms := latency_ms(node)) is not None]
    trip_s = 2 * max(known, default=0.0) / 1000

    def making_s(operators: list[OperatorId]) -> list[float]:
        links = [link for link in plan.links if (link.source in operators) != (link.target in operators)]
        fencing = sum(any(getattr(link, end) in operators for link in links) for end in ("source", "target"))
        begins = any(isinstance(specs[operator].params, SinkParams) for operator in operators)
        spread = any(operator in movable for operator in operators)  # else all are made on the host that is back, at once
        trips = (PLACING_TRIPS + _depth(plan, operators) if spread else 1) + fencing + begins
        return [trips * trip_s, trips * trip_s + LOADING_S]

    made = making_s(movable) if movable else None
    return {
        "node": host,
        "is_home": host == me,
        "trip_ms": trip_s * 1000,
        "moves": movable,
        "waits": pinned,
        "making_s": made,
        "elsewhere_s": None if made is None else [noticed[0] + after_s + made[0], noticed[1] + after_s + made[1]],
        "there_s": making_s(pinned) if pinned else None,
        "states_lost": [operator for operator in lost if keeps_state(specs[operator].params)],
    }


def _waiting(plan: Plan, lost: list[OperatorId]) -> list[OperatorId]:
    """Returns the lost operators that wait for their host: those pinned to it, those with a consumer that waits, and those whose inputs all
    wait. This is the rule of `sbon.supervision.recovery.makeable`."""
    waits = {spec.id for spec in plan.operators if spec.id in lost and spec.pinned is not None}
    changed = True
    while changed:
        changed = False
        for operator in set(lost) - waits:
            targets = {link.target for link in plan.links if link.source == operator}
            sources = {link.source for link in plan.links if link.target == operator}
            if targets & waits or (sources and sources <= waits):
                waits.add(operator)
                changed = True
    return [operator for operator in lost if operator in waits]


def _depth(plan: Plan, operators: list[OperatorId]) -> int:
    """Returns the length of the longest chain of these operators: on different hosts, they are made one after the other, consumers
    first."""
    depth: dict[OperatorId, int] = {}
    for spec in plan.operators:  # upstream first
        if spec.id in operators:
            feeders = [depth.get(link.source, 0) for link in plan.links if link.target == spec.id]
            depth[spec.id] = 1 + max(feeders, default=0)
    return max(depth.values(), default=0)
