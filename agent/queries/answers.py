"""Dispatches requests of other agents, and of this one to itself, to the component that carries them out.

The node calls `handle` for each request that may be answered.
"""

from collections.abc import Callable
from functools import partial
from typing import Protocol

from sbon.errors import RemoteProtocolError, SbonError
from sbon.types import NodeId, OperatorId, QueryId
from sbon.wire.candidates import CandidateAsk, Reserve, RttsAsk
from sbon.wire.deployment import Begin, InputLost, Instantiate, Refeed, Release, Replaced, Use, Used
from sbon.wire.keys import KeyInstall, KeyRemove, KeysAsk, KeysHeld, KeyUse
from sbon.wire.links import Handed, Moved
from sbon.wire.messages import Done as DoneMessage
from sbon.wire.messages import Message
from sbon.wire.replication import CatalogUpdate, Drop, EndOrphan, Orphan, PushPull, QueriesAsk, Unwanted, WantedAsk
from sbon.wire.replication import Queries as QueriesAnswer
from sbon.wire.reports import DelaySlack, OperatorReports, OperatorsAsk
from sbon_agent.directory import Directory, Done
from sbon_agent.engine.engine import Engine
from sbon_agent.engine.handing import Handing
from sbon_agent.engine.refeeding import refeed, replaced
from sbon_agent.migration.migrations import Migrations
from sbon_agent.optimising.remembering import Remembering
from sbon_agent.optimising.sharing import Sharing
from sbon_agent.optimising.surveying import Surveying


class Owned(Protocol):
    """Queries of which this agent is the home, as far as other agents ask about them."""

    def moved(self, operator: OperatorId, node: NodeId, epoch: int) -> None:
        """Notes that an operator has a new host."""

    def unwanted(self, queries: tuple[QueryId, ...]) -> tuple[QueryId, ...]:
        """Returns those of these queries that have ended or are unknown."""

    def encoded_rows(self) -> bytes:
        """Returns all queries, encoded for `sbon queries` at another agent."""

    def drop(self, query: QueryId, done: Callable[[SbonError | None], None]) -> None:
        """Ends a query."""


class Orphaned(Protocol):
    """Queries with operators here whose homes are gone."""

    def hosted(self) -> tuple[Orphan, ...]:
        """Returns all of them."""

    def end_hosted(self, query: QueryId, respond: Done) -> None:
        """Releases one, unless its home is present."""


class Replicas(Protocol):
    """Tables that all agents replicate: members and catalogue."""

    def pulled(self, message: PushPull) -> PushPull:
        """Takes another agent's tables and returns this agent's."""

    def updated(self, message: CatalogUpdate) -> None:
        """Takes changed entries of the catalogue."""


class Keys(Protocol):
    """Cluster keys of this agent."""

    def apply(self, message: KeysAsk | KeyInstall | KeyUse | KeyRemove) -> KeysHeld:
        """Changes the keys, or only reports their ids."""


class Answers:
    """Handles the requests of other agents, by message type."""

    def __init__(
        self,
        directory: Directory,
        engine: Engine,
        migrations: Migrations,
        surveying: Surveying,
        sharing: Sharing,
        handing: Handing,
        remembering: Remembering,
        owned: Owned,
        orphaned: Orphaned,
        replicas: Replicas,
        keys: Keys,
    ) -> None:
        self._directory = directory
        self._engine = engine
        self._migrations = migrations
        self._surveying = surveying
        self._sharing = sharing
        self._handing = handing
        self._remembering = remembering
        self._owned = owned
        self._orphaned = orphaned
        self._replicas = replicas
        self._keys = keys

    def handle(self, sender: NodeId, message: Message, respond: Done) -> None:
        """Answers a request, now or later, exactly once.

        Raises
        ------
        SbonError
            The request is refused; the error is the answer.
        """
        if self._migrations.handle(sender, message, respond):
            return
        match message:
            case OperatorsAsk(operators, query):
                respond(OperatorReports(reports=tuple(self._engine.reports(operators, query))))
            case CandidateAsk():
                self._surveying.answer(message, respond)
            case Reserve():
                self._surveying.reserve(message)
                respond(DoneMessage())
            case Instantiate():
                # No other agent can use this agent's name: the handshake refuses it (`sbon_agent.network.connection`).
                self._engine.instantiate(message, lambda problem: respond(problem or DoneMessage()), asked_by=sender)
            case Use():
                self._use(message, respond)
            case Begin(query):
                self._engine.begin(query)
                respond(DoneMessage())
            case Release(query):
                self._engine.release(query)
                respond(DoneMessage())
            case DelaySlack(query, slack_ms):
                self._engine.slack_told(query, slack_ms)
                respond(DoneMessage())
            case InputLost(operator, link, back):
                self._engine.input_lost(operator, link, back)
                respond(DoneMessage())
            case Refeed():
                left = refeed(self._engine, self._migrations.is_leaving, message)
                if left is not None:
                    self._directory.tell(left, Replaced(link=message.lost))
                respond(DoneMessage())
            case Replaced(link):
                replaced(self._engine, link)
                respond(DoneMessage())
            case Handed():
                self._handing.handle(message, respond)
            case Moved(operator, node, epoch):
                self.moved(operator, node, epoch)
                respond(DoneMessage())
            case RttsAsk():
                self._remembering.answer(message, respond)
            case PushPull():
                respond(self._replicas.pulled(message))
            case CatalogUpdate():
                self._replicas.updated(message)
                respond(DoneMessage())
            case WantedAsk(queries):
                respond(Unwanted(queries=self._owned.unwanted(queries)))
            case KeysAsk() | KeyInstall() | KeyUse() | KeyRemove():
                respond(self._keys.apply(message))
            case QueriesAsk():
                respond(QueriesAnswer(rows=self._owned.encoded_rows(), orphans=self._orphaned.hosted()))
            case EndOrphan(query):
                self._orphaned.end_hosted(query, respond)
            case Drop(query):
                self._owned.drop(query, lambda problem: respond(problem or DoneMessage()))
            case _:
                raise RemoteProtocolError(f"{type(message).__name__} is not a request")

    def moved(self, operator: OperatorId, node: NodeId, epoch: int) -> None:
        """Passes on that another host runs the operator now."""
        self._engine.flow.moved(operator, node, epoch)
        self._owned.moved(operator, node, epoch)

    def _use(self, message: Use, respond: Done) -> None:
        """Makes a query use an operator and, by asking on, all operators upstream of it."""
        self._sharing.check(message)
        instance = self._engine.use(message.operator, message.user, message.outputs, message.through)
        found: dict[OperatorId, NodeId] = {instance.id: self._directory.me}
        waiting = {incoming.link.id for incoming in instance.inputs.values()}
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
            respond(Used(operators=tuple(found.items())))
        for incoming in list(instance.inputs.values()):
            ask = Use(operator=incoming.link.source, user=message.user, through=incoming.link.id)
            self._directory.request(incoming.node, ask, partial(used, incoming.link.id))
