"""Decides where a stream to several consumers should be split by a multicast operator (SBON, section 4.2.2).

`sbon.optimiser.reviewing` says how.

An operator sends one copy of its output to each consumer. A multicast at node X takes one copy and sends one on to each consumer that it is
nearer to. With lat the one-way latencies and S the consumers that X is nearer to,

    saving(X) = sum over c in S of rate_c (lat(here, c) - lat(X, c)) - rate lat(here, X)

in bytes in transit; another cost model has its cost of single links in the place of rate x latency. The thresholds and confirmations are
those of a migration. The saving counts as a share of the present cost of all outputs, and must also exceed `multicast_saving_min_fraction`.
A consumer whose queries do not allow the longer path (`sbon.optimiser.slack`) is left out of S.
"""

from collections.abc import Mapping

import numpy as np

from sbon.cost.space import CostSpace
from sbon.optimiser.knowledge import compared_ms, measured_rtt_ms, rtt_matrix_ms
from sbon.optimiser.reviewing import Optimiser
from sbon.optimiser.trials import Trials
from sbon.optimiser.views import BRANCHES_MIN, Insert, Site, SourceView
from sbon.placement.candidates import CandidateReport
from sbon.placement.remembered import NOTHING, Remembered, interleaved
from sbon.types import LinkId, NodeId


class MulticastOptimiser(Optimiser[SourceView, Site]):
    """Decides where the outputs of one node's operators are split."""

    ENDS_MIN = BRANCHES_MIN
    SUBJECT = "a multicast on {}"

    def _mark(self, view: SourceView, space: CostSpace) -> frozenset[tuple[LinkId, NodeId]]:
        """Returns links and consumers' nodes of the outputs."""
        return frozenset((branch.link, branch.node) for branch in view.ends)

    def _differs(self, mark: frozenset[tuple[LinkId, NodeId]], before: frozenset[tuple[LinkId, NodeId]]) -> bool:
        return mark != before

    def _candidates(
        self, view: SourceView, space: CostSpace, mark: frozenset[tuple[LinkId, NodeId]], remembered: Remembered
    ) -> tuple[NodeId, ...]:
        """Returns nodes of most saving, alternately by remembered RTTs and by coordinates; the best consumer's own node comes first, as
        one latency is 0 there."""
        ranked = self._ranked(view, space, remembered)
        if any(remembered.values()):
            ranked = list(interleaved(ranked, self._ranked(view, space, NOTHING)))
        own = {branch.node for branch in view.ends}
        first = next(name for name in ranked if name in own)
        return tuple(dict.fromkeys((first, *ranked[: self._config.candidates])))[: self._config.candidates]

    def _ranked(self, view: SourceView, space: CostSpace, remembered: Remembered) -> list[NodeId]:
        """Returns all other nodes, those with the most saving first."""
        leaving = view.ends
        rates = np.array([branch.rate_bytes_per_s for branch in leaving])
        consumers = [branch.node for branch in leaving]
        feed_ms = rtt_matrix_ms(space, space.names, [view.here], remembered)[:, 0] / 2
        there_ms = rtt_matrix_ms(space, space.names, consumers, remembered) / 2
        here_ms = there_ms[space.row[view.here]]
        slack_ms = np.maximum(np.array([branch.slack_ms for branch in leaving]), 0.0)
        served = (there_ms < here_ms) & (feed_ms[:, None] + there_ms - here_ms <= slack_ms)
        gains = np.where(served, self._model.of_links(rates, here_ms) - self._model.of_links(rates, there_ms), 0.0).sum(axis=1)
        fed = np.where(served, rates, 0.0)
        feeding = fed.max(axis=1)
        saving = gains - self._model.of_links(feeding, feed_ms) - self._model.of_hosts(fed.sum(axis=1) + feeding, space.loads_ms)
        return [space.names[row] for row in np.argsort(-saving, kind="stable").tolist() if space.names[row] != view.here]

    def _considered(
        self, view: SourceView, node: NodeId, reports: Mapping[NodeId, CandidateReport], space: CostSpace, trials: Trials
    ) -> Site:
        here, there = reports.get(view.here), reports[node]
        feed = measured_rtt_ms(node, view.here, there, here)
        detour_ms = (space.rtt_ms(view.here, node) if feed is None else feed) / 2
        usage_here = usage_there = predicted = rates = feeding = 0.0
        links = []
        for branch in view.ends:
            rate = branch.rate_bytes_per_s
            here_ms, there_ms, measured = compared_ms(view.here, node, branch.node, reports, space)
            from_here, from_there = self._model.of_links(rate, np.array([here_ms, there_ms])).tolist()
            usage_here += from_here
            if there_ms >= here_ms or detour_ms + there_ms - here_ms > max(branch.slack_ms, 0.0):
                usage_there += from_here
                continue
            links.append(branch.link)
            usage_there += from_there
            rates, feeding = rates + rate, max(feeding, rate)
            predicted += 0.0 if measured else from_here
        feed_cost = float(self._model.of_links(feeding, np.array(detour_ms)))
        predicted += feed_cost if feed is None else 0.0
        usage_there += feed_cost
        load = float(self._model.of_hosts(rates + feeding, np.array(there.load_ms)))
        saving = (usage_here - usage_there - load) / usage_here if usage_here > 0 else 0.0
        least_fraction = max(self._config.saving_min_fraction, self._config.multicast_saving_min_fraction)
        mean, seen = trials.see(node, saving)
        return Site(
            node=node,
            links=tuple(links),
            usage_bytes=usage_there,
            usage_here_bytes=usage_here,
            saving_fraction=mean,
            required_fraction=self._required(view, usage_here, predicted, least_fraction, self._config.saving_min_bytes),
            measured=predicted == 0,
            free_slots=there.free_slots,
            seen=seen,
        )

    def _hindrance(self, view: SourceView, considered: Site) -> str:
        if len(considered.links) < BRANCHES_MIN:
            return f"is nearer to {len(considered.links)} consumers, expected {BRANCHES_MIN}"
        return f"has room for {considered.free_slots} operators, expected 1" if considered.free_slots < 1 else ""

    def _change(self, view: SourceView, best: Site, reason: str, considered: tuple[Site, ...]) -> Insert:
        usages = best.usage_here_bytes, best.usage_bytes
        return Insert(view.id, best.links, best.node, *usages, best.saving_fraction, reason, considered)
