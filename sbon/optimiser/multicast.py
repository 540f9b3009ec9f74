"""Decides where a stream to several consumers should be split by a multicast operator (SBON, section 4.2.2). A machine without I/O.

    review -> None                 nothing to do
           -> Ask -> decide -> Stay       no saving, or not sure of it yet
                            -> Insert

An operator sends one copy of its output to each consumer. A multicast at node X takes one copy and sends one on to each consumer that it is
nearer to. With lat the one-way latencies and S the consumers that X is nearer to,

    saving(X) = sum over c in S of rate_c (lat(here, c) - lat(X, c)) - rate lat(here, X)

in bytes in transit; another cost model has what it says of single links in the place of rate x latency. The thresholds and confirmations
are those of a migration (`sbon.optimiser.local`), the saving counted as a share of the present cost of all outputs, and no less than the
configured worth of one more operator. A consumer whose queries do not allow the longer path (`sbon.optimiser.slack`) is left out of S.
"""

import math
from collections.abc import Container, Mapping

import numpy as np

from sbon.cost.model import CostModel
from sbon.cost.space import CostSpace
from sbon.cost_space.coordinate import Coordinate
from sbon.optimiser.config import OptimiserConfig
from sbon.optimiser.knowledge import compared_ms, measured_rtt_ms, rtt_matrix_ms
from sbon.optimiser.multicast_views import BRANCHES_MIN, Decision, Insert, NoInsert, Site, SourceView
from sbon.optimiser.trials import REMEMBERED_MAX, REQUIRED_FRACTION_MAX, Certainty, Trials, noise_of_a_node, raised
from sbon.optimiser.views import Ask
from sbon.placement.candidates import CandidateReport
from sbon.placement.config import PlacementConfig
from sbon.placement.models import model_of
from sbon.placement.remembered import NOTHING, Remembered, interleaved
from sbon.types import LinkId, NodeId, OperatorId


class _Memory:
    """The optimiser's memory of one operator."""

    def __init__(self, trials: Trials) -> None:
        self.trials = trials
        self.looked_at_s = -math.inf
        self.ends: frozenset[tuple[LinkId, NodeId]] = frozenset()
        """Links and consumers' nodes of the outputs when candidates were last looked for."""


class MulticastOptimiser:
    """Decides where the outputs of one node's operators are split.

    Parameters
    ----------
    config : settings of the thresholds
    model : what to minimise; the default one if left out
    """

    def __init__(self, config: OptimiserConfig, model: CostModel | None = None) -> None:
        self._config = config
        self._model = model if model is not None else model_of(PlacementConfig())
        self._noise = noise_of_a_node(config)
        self._memory: dict[OperatorId, _Memory] = {}

    def review(
        self, view: SourceView, coordinates: Mapping[NodeId, Coordinate] | CostSpace, now: float, remembered: Remembered = NOTHING
    ) -> Ask | None:
        """Returns the nodes to ask about a multicast of the operator; None if there is no reason to look.

        `remembered` holds RTTs that this node and the consumers' nodes know from their probing.
        """
        space = coordinates if isinstance(coordinates, CostSpace) else CostSpace(coordinates)
        leaving, memory = view.leaving, self._remember(view.id)
        known = view.here in space and all(branch.node in space for branch in leaving)
        flowing = sum(branch.rate_bytes_per_s for branch in leaving) > 0
        cooling = view.since_folded_s is not None and view.since_folded_s < self._config.cooldown_s
        if len(leaving) < BRANCHES_MIN or not known or not flowing or cooling:
            memory.trials.end()
            return None
        about = (view.here, *dict.fromkeys(branch.node for branch in leaving))
        watched = tuple(node for node in memory.trials.watched if node in space)
        if watched:
            return Ask(view.id, (view.here, *watched), about)
        ends = frozenset((branch.link, branch.node) for branch in leaving)
        if ends == memory.ends and now - memory.looked_at_s < self._config.lookup_interval_s:
            return None
        memory.looked_at_s, memory.ends = now, ends
        return Ask(view.id, (view.here, *self._candidates(view, space, remembered)), about)

    def decide(
        self,
        view: SourceView,
        reports: Mapping[NodeId, CandidateReport],
        coordinates: Mapping[NodeId, Coordinate] | CostSpace,
        now: float,
    ) -> Decision:
        """Decides from the answers to an Ask. `reports` holds the answers by node, this node's own included."""
        space = coordinates if isinstance(coordinates, CostSpace) else CostSpace(coordinates)
        memory = self._remember(view.id)
        leaving = view.leaving
        if len(leaving) < BRANCHES_MIN or any(node not in space for node in (view.here, *(branch.node for branch in leaving))):
            memory.trials.end()
            return NoInsert(view.id, "fewer than two consumers on known nodes are left")
        candidates = memory.trials.begin(node for node in reports if node != view.here and node in space)
        sites = [self._site(view, node, reports, space, memory.trials) for node in candidates]
        memory.trials.learn()
        sites.sort(key=lambda site: (-site.saving_fraction, site.node))
        return self._decision(view, memory.trials, tuple(sites))

    def is_unsure(self, operator: OperatorId) -> bool:
        """Tells whether a saving has been seen and is being measured again."""
        memory = self._memory.get(operator)
        return memory is not None and bool(memory.trials.watched)

    def keep(self, here: Container[OperatorId]) -> None:
        """Drops all operators that are not in `here`, since most end without notice."""
        self._memory = {operator: memory for operator, memory in self._memory.items() if operator in here}

    def _decision(self, view: SourceView, trials: Trials, sites: tuple[Site, ...]) -> Decision:
        hopeful = [s for s in sites if s.saving_fraction > s.required_fraction and s.free_slots >= 1 and len(s.links) >= BRANCHES_MIN]
        if not hopeful:
            trials.end()
            return NoInsert(view.id, _why_not(sites), sites)
        certainty, best = trials.judge(hopeful)
        if certainty is Certainty.SURE:
            reason = (
                f"a multicast on {best.node} to {len(best.links)} consumers saves {best.saving_fraction:z.0%} of "
                f"{best.usage_here_bytes:.4g} bytes in transit, seen in {best.seen} reviews; {best.required_fraction:.0%} required"
            )
            usages = best.usage_here_bytes, best.usage_bytes
            return Insert(view.id, best.links, best.node, *usages, best.saving_fraction, reason, sites)
        if certainty is Certainty.NOISE:
            return NoInsert(view.id, f"the saving of {best.saving_fraction:z.0%} by {best.node} stays within the noise", sites)
        reason = f"a multicast on {best.node} may save {best.saving_fraction:z.0%}, seen in {best.seen} reviews; asking again"
        return NoInsert(view.id, reason, sites, pending=True)

    def _site(self, view: SourceView, node: NodeId, reports: Mapping[NodeId, CandidateReport], space: CostSpace, trials: Trials) -> Site:
        """Evaluates one candidate, link by link: measured on both sides, or else predicted on both."""
        here, there = reports.get(view.here), reports[node]
        feed = measured_rtt_ms(node, view.here, there, here)
        detour_ms = (space.rtt_ms(view.here, node) if feed is None else feed) / 2
        usage_here = usage_there = predicted = rates = feeding = 0.0
        links = []
        for branch in view.leaving:
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
        mean, seen = trials.see(node, saving)
        return Site(
            node=node,
            links=tuple(links),
            usage_bytes=usage_there,
            usage_here_bytes=usage_here,
            saving_fraction=mean,
            required_fraction=self._required(view, usage_here, predicted),
            measured=predicted == 0,
            free_slots=there.free_slots,
            seen=seen,
        )

    def _required(self, view: SourceView, usage_here: float, predicted: float) -> float:
        """Returns the saving that a multicast must exceed, as a share of the usage without it."""
        config = self._config
        if usage_here <= 0:
            return REQUIRED_FRACTION_MAX
        least = max(config.saving_min_fraction, config.multicast_saving_min_fraction)
        least = min(least * raised(config, view.folded, view.since_folded_s), REQUIRED_FRACTION_MAX)
        return max(least, config.saving_min_bytes / usage_here) + config.prediction_margin * predicted / usage_here

    def _candidates(self, view: SourceView, space: CostSpace, remembered: Remembered) -> tuple[NodeId, ...]:
        """Returns nodes of most saving, alternately by remembered RTTs and by coordinates; the best consumer's own node comes first, as
        one latency is 0 there."""
        ranked = self._ranked(view, space, remembered)
        if any(remembered.values()):
            ranked = list(interleaved(ranked, self._ranked(view, space, NOTHING)))
        own = {branch.node for branch in view.leaving}
        first = next(name for name in ranked if name in own)
        return tuple(dict.fromkeys((first, *ranked[: self._config.candidates])))[: self._config.candidates]

    def _ranked(self, view: SourceView, space: CostSpace, remembered: Remembered) -> list[NodeId]:
        """Returns all other nodes, those with the most saving first."""
        leaving = view.leaving
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

    def _remember(self, operator: OperatorId) -> _Memory:
        memory = self._memory.pop(operator, None) or _Memory(Trials(self._config, self._noise))
        self._memory[operator] = memory
        while len(self._memory) > REMEMBERED_MAX:
            del self._memory[next(iter(self._memory))]
        return memory


def _why_not(sites: tuple[Site, ...]) -> str:
    if not sites:
        return "no candidate has answered"
    best = sites[0]
    if best.saving_fraction > best.required_fraction:
        return f"{best.node} would save {best.saving_fraction:z.0%}, but has room for {best.free_slots} operators, expected 1"
    return f"the best site, {best.node}, saves {best.saving_fraction:z.1%}; {best.required_fraction:.0%} required"
