"""Dispatches the messages of other agents, and of this one to itself, to the component that carries them out.

The connections and the directory call it (`sbon.peers.peers.PeerEvents`, `sbon.peers.directory.Requests`). It first asks
`sbon.wire.entitlement` whether the sender may send such a message.
"""

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from sbon.addresses import format_address
from sbon.errors import LinkError, RemoteProtocolError, SbonError, UnsupportedError
from sbon.execution.crossing import cross, cut, given_before, retire, uncut
from sbon.execution.life import State
from sbon.execution.link_replacement import begin_again, refeed, replaced
from sbon.execution.renewing import leave_out, renew
from sbon.links.frames import Data
from sbon.peers.connection import Connection
from sbon.peers.directory import Done
from sbon.supervision.wanted_questions import passed_on
from sbon.types import Address, NodeId, OperatorId
from sbon.wire.authority import Way
from sbon.wire.candidates import CandidateAsk, Reserve, RttsAsk, SampleAsk
from sbon.wire.deployment import Begin, InputLost, Instantiate, LeaveOut, Refeed, Release, Renew, Replaced, Use, Used
from sbon.wire.keys import KeyInstall, KeyRemove, KeysAsk, KeyUse
from sbon.wire.links import Acknowledge, DeadEnd, Handed, Moved, NoSuchLink
from sbon.wire.messages import Done as DoneMessage
from sbon.wire.messages import Message, decode, encode
from sbon.wire.ownership import ClaimsAsk, Forget, Keep, Own, PromiseAsk
from sbon.wire.replanning import Cross, Cut, Retire, Uncut
from sbon.wire.replication import CatalogUpdate, Drop, EndOrphan, PushPull, QueriesAsk, WantedAsk
from sbon.wire.replication import Queries as QueriesAnswer
from sbon.wire.reports import DelaySlack, InstanceFigures, OperatorsAsk, UpstreamDelay

if TYPE_CHECKING:
    from sbon_agent.node import Agent


class Dispatch:
    """Handles the messages of one agent's connections, by type."""

    def __init__(self, agent: "Agent") -> None:
        self._agent = agent

    def message(self, connection: Connection, payload: bytes) -> None:
        """Handles a one-way message."""
        try:
            message = decode(payload)
        except UnsupportedError as problem:
            self._agent.access.authority.unsupported(connection.node, problem)
            return
        if not self._may_tell(connection, message):
            return
        match message:
            case Acknowledge():
                self._agent.execution.flow.outgoing.acknowledged(message)
            case NoSuchLink():
                self._agent.execution.flow.outgoing.unknown_there(message)
            case DeadEnd():
                self._agent.execution.flow.outgoing.dead_end_told(message)
            case UpstreamDelay():
                self._agent.execution.delays.told(message)
            case InstanceFigures():
                self._agent.execution.dealings.told(message)
            case Moved(operator, node, epoch):
                self.moved(operator, node, epoch, connection.node)

    def data(self, connection: Connection, data: Data) -> None:
        """Handles a batch of a link.

        A sender without the right gets NoSuchLink: it may be the source's new host, whose announcement has not arrived yet.
        """
        if not self._may_tell(connection, data):
            connection.send(encode(NoSuchLink(link=data.link)))
            return
        self._agent.execution.flow.receive(data, connection.node, lambda answer: connection.send(encode(answer)))

    def _may_tell(self, connection: Connection, message: Message | Data) -> bool:
        """Tells whether the peer on a connection may send this message."""
        authority = self._agent.access.authority
        return authority.check(authority.speaker(connection), message, Way.TOLD, connection.node) is None

    def request(self, connection: Connection, payload: bytes, respond: Callable[[bytes | SbonError], None]) -> None:
        """Handles a request of another agent."""
        try:
            message = decode(payload)
        except UnsupportedError as problem:
            self._agent.access.authority.unsupported(connection.node, problem)
            raise
        answer: Done = lambda result: respond(result if isinstance(result, SbonError) else encode(result))  # noqa: E731
        self.handle(self._agent.access.authority.speaker(connection), message, answer, connection.node)

    def handle(self, sender: NodeId, message: Message, respond: Done, claimed: NodeId = "") -> None:
        """Handles a request of another agent, or of this one.

        Parameters
        ----------
        sender : the agent that asks; empty if it cannot be identified
        claimed : the name that it claims
        """
        if self._agent.stopped:
            raise LinkError(f"{self._agent.name} is stopping")
        if sender != self._agent.name and (problem := self._agent.access.authority.check(sender, message, Way.ASKED, claimed)) is not None:
            raise problem
        self.carry_out(sender, message, respond)

    def connected(self, address: Address, node: NodeId) -> None:
        """Resends unacknowledged batches on a wanted connection that is open again."""
        self._agent.execution.flow.outgoing.reconnected(node)

    def no_common_key(self, address: Address) -> None:
        """Reports that the agent at an address holds none of our cluster keys."""
        self._agent.access.keys.no_common_key(address)

    def lost(self, address: Address, reason: str) -> None:
        """Logs that a wanted connection is lost; it is dialled again."""
        self._agent.monitoring.log.info("connection.lost", address=format_address(address), reason=reason)

    def writable(self, address: Address) -> None:
        """Sends on a connection that has room again."""
        drained_bytes_per_s = self._agent.network.peers.drained_bytes_per_s(address)
        for node in self._agent.network.directory.node_at(address):
            if drained_bytes_per_s > 0:
                self._agent.execution.cost_store.bandwidths.measured(
                    self._agent.name, node, drained_bytes_per_s, at_s=self._agent.host.now()
                )
            self._agent.execution.flow.outgoing.writable(node, drained_bytes_per_s)

    def carry_out(self, sender: NodeId, message: Message, respond: Done) -> None:
        """Answers a permitted request, now or later, exactly once."""
        if self._agent.execution.migrations.handle(sender, message, respond):
            return
        if self._heard(sender, message):
            respond(DoneMessage())
        else:
            self._answer(sender, message, respond)

    def _heard(self, sender: NodeId, message: Message) -> bool:
        """Carries out a request whose answer only says that it is done; returns False for any other request."""
        agent, flow, operators = self._agent, self._agent.execution.flow, self._agent.execution.operators
        match message:
            case Reserve():
                agent.placement.candidate_questions.reserve(message)
            case Release(query):
                operators.release(query)
            case DelaySlack(query, slack_ms, busy_slack_ms):
                operators.slack_told(query, slack_ms, busy_slack_ms)
            case InputLost(operator, link, back):
                operators.input_lost(operator, link, back)
            case Refeed():
                left = refeed(operators, flow, agent.execution.migrations.is_leaving, message, agent.host.wall())
                if left is not None:
                    agent.network.directory.tell(left[0], Replaced(link=left[1]))
            case Cross():
                cross(operators, flow, agent.config.links, message)
            case Replaced(link):
                replaced(operators, flow, link)
            case Moved(operator, node, epoch):
                self.moved(operator, node, epoch, sender)
            case CatalogUpdate():
                agent.queries.replication.updated(message)
            case _:
                return False
        return True

    def _answer(self, sender: NodeId, message: Message, respond: Done) -> None:
        """Answers a request, now or later."""
        agent, execution, ownership = self._agent, self._agent.execution, self._agent.queries.owned.ownership
        engine, flow, operators = execution.engine, execution.flow, execution.operators
        match message:
            case OperatorsAsk(wanted, query):
                told = execution.reports.report(wanted, query)
                reports = tuple(agent.queries.owned.register.as_known(report) for report in told.reports)
                respond(msgspec.structs.replace(told, reports=reports))
            case CandidateAsk():
                agent.placement.candidate_questions.answer(message, respond)
            case SampleAsk():
                execution.sampling.answer(message, respond)
            case Instantiate():
                # No other agent can use this agent's name: the handshake refuses it (`sbon.peers.connection`).
                operators.instantiate(message, lambda problem: respond(problem or DoneMessage()), asked_by=sender)
            case Use():
                self._use(message, respond)
            case Begin(query):
                respond(execution.reports.report(operators.begin(query), query))
            case Renew():
                begin_again(operators, flow, execution.migrations.is_leaving, message)
                respond(renew(agent.name, flow, execution.migrations.gives_way, engine.advance, message))
            case LeaveOut():
                leave_out(agent.name, operators.instances, execution.migrations.gives_way, message)
                respond(DoneMessage())
            case Cut():
                respond(cut(operators, engine, message))
            case Uncut():
                respond(uncut(operators, engine, message))
            case Retire():
                respond(retire(operators, engine, flow, execution.migrations.is_leaving, message))
            case Handed():
                agent.optimisers.telling.handle(message, respond)
            case RttsAsk():
                agent.placement.remembering.answer(message, respond)
            case PushPull():
                respond(agent.queries.replication.pulled(message))
            case WantedAsk():
                respond(ownership.wanted_questions.answer(message))
            case Own(query, _, owner):
                instances = operators.instances.values()
                hosted = partial(passed_on, instances, query, owner.name)
                ownership.requests.heard(message, lambda problem: respond(problem or execution.reports.report(hosted(), query)))
            case Keep() | Forget() | PromiseAsk() | ClaimsAsk():
                ownership.requests.answer(message, respond)
            case KeysAsk() | KeyInstall() | KeyUse() | KeyRemove():
                respond(agent.access.keys.apply(message))
            case QueriesAsk(history):
                rows = msgspec.msgpack.encode(agent.queries.owned.rows(history=history))
                respond(QueriesAnswer(rows=rows, orphans=agent.queries.homes.hosted()))
            case EndOrphan(query):
                agent.queries.homes.end_hosted(query, respond)
            case Drop(query):
                agent.queries.owned.dropping.drop(query, lambda problem: respond(problem or DoneMessage()), is_asked=True)
            case _:
                raise RemoteProtocolError(f"{type(message).__name__} is not a request")

    def moved(self, operator: OperatorId, node: NodeId, epoch: int, told_by: NodeId = "") -> None:
        """Tells links and owned queries that another host now runs the operator."""
        self._agent.execution.flow.moved(operator, node, epoch, told_by)
        self._agent.queries.owned.moved(operator, node, epoch)

    def _use(self, message: Use, respond: Done) -> None:
        """Makes a query use an operator and all operators upstream of it, by asking their hosts."""
        self._agent.placement.sharing.check(message)
        instance = self._agent.execution.operators.use(message.operator, message.user, message.outputs, message.through)
        before_rows, before_us = given_before(instance, message.outputs)
        found: dict[OperatorId, NodeId] = {instance.id: self._agent.network.directory.me}
        # The feeders of a finished operator may be gone.
        feeding = [] if instance.state is State.FINISHED else list(instance.inputs.values())
        waiting = {incoming.link.id for incoming in feeding}
        problems: list[SbonError] = []

        def used(link: str, result: Message | SbonError) -> None:
            waiting.discard(link)
            if isinstance(result, Used):
                found.update(dict(result.operators))
            elif isinstance(result, SbonError):
                problems.append(result)
            if not waiting:
                respond(problems[0] if problems else Used(operators=tuple(sorted(found.items()))))

        if not waiting:
            respond(Used(operators=tuple(found.items()), before_rows=before_rows, before_us=before_us))
        for incoming in feeding:
            ask = Use(operator=incoming.link.source, user=message.user, through=incoming.link.id)
            self._agent.network.directory.request(incoming.node, ask, partial(used, incoming.link.id))
