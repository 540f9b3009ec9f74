"""Asks candidate hosts before operators are placed on them, and answers such questions (SBON, section 3.1.2: physical mapping, step 2).

The optimisers and the placement of new queries use it.

A candidate measures its RTTs to the nodes with which the operator would exchange data, and once the speed of its machine. It answers with
these, its free slots, its load, and which of the wanted operators it already runs.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial

import msgspec

from sbon.cost.store import CostStore
from sbon.errors import SbonError
from sbon.execution.host_reports import HostReports
from sbon.execution.operators import Operators
from sbon.extensions import Extensions
from sbon.membership.gossip import Gossip
from sbon.peers.directory import Directory, Done
from sbon.placement.candidates import CandidateReport
from sbon.ports import Executor
from sbon.query.params.kinds import NO_NEEDS, Needs
from sbon.supervision.sharing import Sharing
from sbon.types import NodeId, QueryId
from sbon.wire.candidates import CandidateAnswer, CandidateAsk, Reserve
from sbon.wire.messages import Message

ABOUT_MAX = 256
"""Most nodes that a question makes this host measure. Each costs a few datagrams, and no question may make this host flood the network."""


class CandidateQuestions:
    """Asks candidates, and answers as one."""

    def __init__(
        self,
        host: Executor,
        directory: Directory,
        gossip: Gossip,
        operators: Operators,
        reports: HostReports,
        sharing: Sharing,
        extensions: Callable[[], Extensions],
    ) -> None:
        self._host = host
        self._directory = directory
        self._gossip = gossip
        self._operators = operators
        self._room = operators.room
        self._reports = reports
        self._sharing = sharing
        self._extensions = extensions

    @property
    def cost_store(self) -> CostStore:
        """Returns the known costs of nodes and operators."""
        return self._reports.cost_store

    def ask(
        self,
        node: NodeId,
        about: Sequence[NodeId],
        signatures: Sequence[str],
        timeout_s: float,
        done: Callable[[NodeId, CandidateReport | None], None],
        query: QueryId = "",
        slots: int = 0,
        needs: Needs = NO_NEEDS,
    ) -> None:
        """Asks one candidate; one that meets the needs reserves `slots` for the query. `done` gets None if it does not answer."""

        def answered(result: Message | SbonError) -> None:
            if not isinstance(result, CandidateAnswer):
                done(node, None)
                return
            self._reports.cost_store.hear(node, result.host, result.costs, self._host.now())
            rtts = {peer: rtt for peer, rtt in result.rtts_ms.items() if 0 <= rtt < float("inf")}
            free, reserved = max(0, result.free_slots), max(0, result.reserved)
            load_ms, delays = max(0.0, result.load_ms), result.upstream_delay_ms
            done(node, CandidateReport(node, rtts, free, load_ms, result.running, reserved, delays, result.memory_short))

        ask = CandidateAsk(
            about=tuple(about),
            signatures=tuple(signatures),
            query=query,
            slots=slots,
            functions=needs.functions,
            stateful=needs.state,
        )
        self._directory.request(node, ask, answered, timeout_s)

    def decided(self, query: QueryId, slots: Mapping[NodeId, int]) -> None:
        """Tells candidates how many operators of the query will come, so that they release the other reservations."""
        for node in sorted(slots):
            self._directory.tell(node, Reserve(query=query, slots=slots[node]))

    def answer(self, question: CandidateAsk, respond: Done) -> None:
        """Reserves slots, measures the RTTs and answers.

        If this host lacks a function that the query needs, or memory for its state, it neither reserves nor offers slots.
        """
        if question.stateful and self._room.budget.is_nearly_full:
            self._measure(msgspec.structs.replace(question, query="", slots=0), respond, able=False)
            return
        if not question.functions:
            self._measure(question, respond)
            return

        def looked(able: object) -> None:
            self._measure(question if able is True else msgspec.structs.replace(question, query="", slots=0), respond, able is True)

        # The first question about a package loads it, which takes long.
        extensions = self._extensions
        self._host.execute(lambda: all(extensions().has_function(*function) for function in question.functions), looked, rows=0)

    def _measure(self, question: CandidateAsk, respond: Done, able: bool = True) -> None:
        self._reserve(question)
        about = sorted(set(question.about[:ABOUT_MAX]))
        waiting: set[NodeId | None] = {None, *about}  # None stands for the speed of this machine
        rtts: dict[NodeId, float] = {}
        started = self._host.now()

        def known(what: NodeId | None) -> None:
            waiting.discard(what)
            if not waiting:
                respond(self._answer(question, rtts, able))

        def measured(peer: NodeId, rtt_ms: float | None) -> None:
            if rtt_ms is None:
                rtt_ms = self._without_answer(peer, started)
            if rtt_ms is not None:
                rtts[peer] = rtt_ms
            known(peer)

        # A host that has not run operators yet would tell a speed by rule, and whoever asks would predict its rates from that.
        self._reports.time_kernel(partial(known, None))
        for peer in about:
            if peer == self._directory.me:
                measured(peer, 0.0)
            else:
                self._gossip.ping(peer, partial(measured, peer))

    def _without_answer(self, peer: NodeId, started: float) -> float | None:
        """Returns the RTT to a peer that has not answered, in ms: at least the time waited; None if nothing is known."""
        waited_ms = 1000 * (self._host.now() - started)
        remembered = self._gossip.localiser.measured_rtt_ms(peer)
        return waited_ms or None if remembered is None else max(remembered, waited_ms)

    def _answer(self, question: CandidateAsk, rtts: dict[NodeId, float], able: bool) -> CandidateAnswer:
        self._reserve(question)  # slots that became free during the measurement are offered, so they must be reserved, too
        promised = self._room.reservations.held(self._host.now(), besides=question.query)
        empty = self._room.empty_slots
        running = self._sharing.offered(question.signatures)
        delays = {operator: self._operators.instances[operator].figures.upstream_delay_ms for operator in running.values()}
        return CandidateAnswer(
            node=self._directory.me,
            rtts_ms=rtts,
            free_slots=max(0, empty - promised) if able else 0,
            load_ms=self._gossip.localiser.coordinate.load_ms,
            running=running,
            reserved=min(empty, promised) if able else 0,
            upstream_delay_ms={operator: delay for operator, delay in delays.items() if delay is not None},
            memory_short=question.stateful and self._room.budget.is_nearly_full,
            costs=self._reports.cost_store.costs(question.signatures, self._host.now()),
            host=self._reports.told(),
        )

    def _reserve(self, question: CandidateAsk) -> None:
        if question.query and question.slots > 0:
            self._room.reserve(question.query, question.slots, self._host.now())

    def reserve(self, message: Reserve) -> None:
        """Adjusts the reservation of a query that has been placed."""
        self._room.reservations.decided(message.query, max(0, message.slots), self._host.now())
