"""Authority: the form in which every message between agents may be sent, and who may send it.

A connection proves that the other end holds the cluster key and, where addresses tell agents apart, which member it is. That is not enough:
a member must not acknowledge batches, send rows or end operators that belong to others. `judge` compares the speaker with the receiving
agent's facts. The agent calls it once for each message, before it handles the message.

Messages have three forms::

    TOLD    one way, on a connection that either end opened
    ASKED   a request, answered once
    ANSWER  the reply to a request; never sent without one

Only `TABLE` decides this. A message type without an entry fails a test, and `judge` refuses it.
"""

import enum
from collections.abc import Callable, Iterable
from typing import Any, Protocol

import msgspec

from sbon.links.frames import Data
from sbon.links.link_names import link_id, target_of
from sbon.links.places import Standing, Whereabouts, standing_by_places
from sbon.query.multicast_ids import MULTICAST_MARK
from sbon.query.plan import LinkSpec
from sbon.types import LinkId, NodeId, OperatorId, QueryId
from sbon.wire import candidates, deployment, keys, links, messages, migration, ownership, replanning, replication, reports


class Way(enum.Flag):
    """The form of a message."""

    TOLD = enum.auto()
    ASKED = enum.auto()
    ANSWER = enum.auto()


class Facts(Protocol):
    """The receiving agent's facts about the operators, links and migrations that concern it."""

    def sending_end(self, link: LinkId) -> Whereabouts | None:
        """Returns the place of a link's source, if the link's receiving end is here; None if it is not."""

    def receiving_end(self, link: LinkId) -> Whereabouts | None:
        """Returns the place of a link's target, if the link's sending end is here; None if it is not."""

    def places(self, operator: OperatorId) -> Iterable[Whereabouts]:
        """Returns all known places of an operator that runs elsewhere."""

    def coordinator(self, operator: OperatorId) -> tuple[NodeId, int] | None:
        """Returns the host that is migrating an operator to this one, and the epoch; None if none is."""

    def owner_of(self, query: QueryId) -> NodeId:
        """Returns the owner of a query: of all known owners, the one with the highest ownership epoch."""

    def ownership_of(self, query: QueryId) -> int:
        """Returns the ownership epoch of the query's known owner; 0: the owner is the agent that the query's id names."""

    def holder(self, operator: OperatorId) -> NodeId | None:
        """Returns the host that has locked this operator's neighbours here for a migration; None if there is none."""


class Rule(msgspec.Struct, frozen=True):
    """The rule of one message type: its form, who may send it, and the check."""

    way: Way
    who: str
    """Description for people, also in the table of the documentation."""
    standing: Callable[[Any, NodeId, Facts], Standing]


class Judgement(msgspec.Struct, frozen=True):
    """The decision on a message."""

    standing: Standing
    who: str = ""
    """If the speaker may not send the message: who may."""


ALLOWED = Judgement(Standing.SPEAKS)


def query_of(operator: OperatorId) -> QueryId:
    """Returns the query that an operator was made for; for a multicast, the query of the operator whose stream it carries.

    Examples
    --------
    >>> query_of("ams.1t95lbp.01.2"), query_of("ams.1t95lbp.01.2~x")
    ('ams.1t95lbp.01', 'ams.1t95lbp.01')
    """
    return operator.partition(MULTICAST_MARK)[0].rpartition(".")[0]


def judge(message: Any, speaker: NodeId, facts: Facts) -> Judgement:
    """Decides whether a node may send a message.

    Parameters
    ----------
    message : one of `sbon.wire.messages.Message`, or a batch of a link
    speaker : verified name of the sender; empty if it could not be verified
    """
    rule = TABLE.get(type(message))
    if rule is None:
        return Judgement(Standing.STRANGER, "nobody")
    standing = rule.standing(message, speaker, facts)
    return ALLOWED if standing is Standing.SPEAKS else Judgement(standing, rule.who)


def ways(message_type: type) -> Way:
    """Returns the allowed forms of a message type."""
    rule = TABLE.get(message_type)
    return Way(0) if rule is None else rule.way


# ------------------------------------------------------------------------------------------------------------- whose word it is


def _if(condition: bool) -> Standing:
    return Standing.SPEAKS if condition else Standing.STRANGER


def _anybody(message: Any, speaker: NodeId, facts: Facts) -> Standing:
    return Standing.SPEAKS


def _nobody(message: Any, speaker: NodeId, facts: Facts) -> Standing:
    return Standing.STRANGER


def _by_end(end: Whereabouts | None, speaker: NodeId) -> Standing:
    """Returns the authority over a link's end. A message about a link without an end here changes nothing and is allowed."""
    return Standing.SPEAKS if end is None else end.standing(speaker)


def _sending_end(message: Any, speaker: NodeId, facts: Facts) -> Standing:
    return _by_end(facts.sending_end(message.link), speaker)


def _receiving_end(message: Any, speaker: NodeId, facts: Facts) -> Standing:
    return _by_end(facts.receiving_end(message.link), speaker)


def _home(message: Any, speaker: NodeId, facts: Facts) -> Standing:
    return _if(facts.owner_of(message.query) == speaker)


def _home_if_any(message: candidates.CandidateAsk, speaker: NodeId, facts: Facts) -> Standing:
    return _if(not message.query or facts.owner_of(message.query) == speaker)


def _made_by(user: deployment.User, speaker: NodeId, facts: Facts) -> bool:
    return user.owner == speaker == facts.owner_of(user.query)


def _is_named_for(link: LinkSpec) -> bool:
    """Tells whether the link's name consists of its own ends, so that it cannot be the name of other operators' link.

    A link that a multicast has taken over is named after the operator whose stream the multicast carries. A link that another query gets
    from the multicast is named after the multicast itself.
    """
    sources = {link.source, link.source.partition(MULTICAST_MARK)[0]}
    return link.id.startswith(tuple(link_id(one, link.target, link.port) for one in sources)) and target_of(link.id) == link.target


def _instantiate(message: deployment.Instantiate, speaker: NodeId, facts: Facts) -> Standing:
    name = message.spec.id
    own = query_of(name) == message.user.query and MULTICAST_MARK not in name
    inputs = all(end.link.target == name and _is_named_for(end.link) for end in message.inputs)
    outputs = all(end.link.source == name and _is_named_for(end.link) for end in message.outputs)
    return _if(_made_by(message.user, speaker, facts) and own and inputs and outputs)


def _use(message: deployment.Use, speaker: NodeId, facts: Facts) -> Standing:
    """Allows the query's home or, on its behalf, the host of an operator that the link `through` feeds."""
    if message.user.owner != facts.owner_of(message.user.query):
        return Standing.STRANGER
    if message.through is not None:
        return Standing.STRANGER if message.outputs else _by_end(facts.receiving_end(message.through), speaker)
    outputs = all(
        end.link.source == message.operator and _is_named_for(end.link) and query_of(end.link.target) == message.user.query
        for end in message.outputs
    )
    return _if(_made_by(message.user, speaker, facts) and outputs)


def _input_lost(message: deployment.InputLost, speaker: NodeId, facts: Facts) -> Standing:
    if facts.owner_of(query_of(message.operator)) == speaker:
        return Standing.SPEAKS
    return _sending_end(message, speaker, facts)


def _refeed(message: deployment.Refeed, speaker: NodeId, facts: Facts) -> Standing:
    """Allows the home of the target's query, because links are made and replaced for that query."""
    link = message.end.link
    own = query_of(link.target) == message.query and target_of(message.lost) == target_of(link.id) == link.target
    return _if(facts.owner_of(message.query) == speaker and own)


def _renew(message: deployment.Renew, speaker: NodeId, facts: Facts) -> Standing:
    """Allows the home of the query for which the lost or the living operator was made."""
    link = message.end.link
    ends = (query_of(link.source), query_of(link.target))
    return _if(facts.owner_of(message.query) == speaker and message.query in ends and _is_named_for(link))


def _leave_out(message: deployment.LeaveOut, speaker: NodeId, facts: Facts) -> Standing:
    return _if(facts.owner_of(message.query) == speaker and query_of(message.operator) == message.query)


def _cross(message: replanning.Cross, speaker: NodeId, facts: Facts) -> Standing:
    """Allows the owner of a query to add links to the query's own sink."""
    own = query_of(message.operator) == message.query
    inputs = all(end.link.target == message.operator and _is_named_for(end.link) for end in message.inputs)
    return _if(facts.owner_of(message.query) == speaker and own and inputs)


def _owns(query: QueryId, epoch: int, owner: NodeId, speaker: NodeId, facts: Facts) -> Standing:
    """Allows a member to claim a query for itself under a higher ownership epoch than any known one."""
    if owner != speaker:
        return Standing.STRANGER
    known = facts.ownership_of(query)
    if epoch == known:
        return _if(facts.owner_of(query) == speaker)
    return Standing.SPEAKS if epoch > known else Standing.LATE


def _keep(message: ownership.Keep, speaker: NodeId, facts: Facts) -> Standing:
    """Also allows late versions, and those under another owner's epoch, so that their sender learns the owner from the answer."""
    record = message.record
    if record.owner.name == speaker and facts.ownership_of(record.query) >= max(record.epoch, 1):
        return Standing.SPEAKS
    return _owns(record.query, record.epoch, record.owner.name, speaker, facts)


def _own(message: ownership.Own, speaker: NodeId, facts: Facts) -> Standing:
    return _owns(message.query, message.epoch, message.owner.name, speaker, facts)


def _forget(message: ownership.Forget, speaker: NodeId, facts: Facts) -> Standing:
    standing = _owns(message.query, message.epoch, speaker, speaker, facts)
    return Standing.STRANGER if message.epoch > facts.ownership_of(message.query) else standing


def _promise(message: ownership.PromiseAsk, speaker: NodeId, facts: Facts) -> Standing:
    return _if(message.holder.name == speaker)


def _moved(message: links.Moved, speaker: NodeId, facts: Facts) -> Standing:
    """Allows anybody to repeat a known or older place, because a former host repeats its message until all have answered."""
    places = list(facts.places(message.operator))
    is_known = any((place.node, place.epoch) == (message.node, message.epoch) for place in places)
    if is_known or all(place.epoch >= message.epoch for place in places):
        return Standing.SPEAKS
    return standing_by_places(places, speaker)


def _handed(message: links.Handed, speaker: NodeId, facts: Facts) -> Standing:
    if message.node != speaker:
        return Standing.STRANGER
    return _by_end(facts.sending_end(message.link.id), speaker)


def _lock(message: migration.Lock, speaker: NodeId, facts: Facts) -> Standing:
    """Judges a Lock. Allows it from anybody if no operator here has a link to the migrating one, because it then locks nothing."""
    if message.coordinator != speaker:
        return Standing.STRANGER
    known = list(facts.places(message.operator))
    return standing_by_places(known, speaker) if known else Standing.SPEAKS


def _unlock(message: migration.Unlock, speaker: NodeId, facts: Facts) -> Standing:
    """Judges an Unlock. An earlier coordinator may send it late, without effect."""
    holder = facts.holder(message.operator)
    if holder is None or holder == speaker:
        return Standing.SPEAKS
    return Standing.STRANGER if standing_by_places(facts.places(message.operator), speaker) is Standing.STRANGER else Standing.LATE


def _prepare(message: migration.Prepare, speaker: NodeId, facts: Facts) -> Standing:
    moving = facts.coordinator(message.spec.id)
    return _if(message.coordinator == speaker and (moving is None or moving[0] == speaker))


def _moves_it_here(message: Any, speaker: NodeId, facts: Facts) -> Standing:
    """Judges messages of a migration to this host. A message of an earlier epoch than the present migration's is late."""
    moving = facts.coordinator(message.operator)
    if moving is None or moving[0] == speaker:
        return Standing.SPEAKS
    return Standing.LATE if message.epoch < moving[1] else Standing.STRANGER


def _activate(message: migration.Activate, speaker: NodeId, facts: Facts) -> Standing:
    """Also allows the owner of the operator's query, in case the former host crashed after it had reported the move."""
    if facts.owner_of(query_of(message.operator)) == speaker:
        return Standing.SPEAKS
    return _moves_it_here(message, speaker, facts)


_SENDING = "the host of the link's sending end"
_RECEIVING = "the host of the link's receiving end"
_HOME = "the owner of the query"
_MEMBER = "any member"
_MOVER = "the host that moves the operator here"
_NEVER = "nobody, unasked"

TABLE: dict[type, Rule] = {
    # Links.
    Data: Rule(Way.TOLD, _SENDING, _sending_end),
    links.Acknowledge: Rule(Way.TOLD, _RECEIVING, _receiving_end),
    links.NoSuchLink: Rule(Way.TOLD, _RECEIVING, _receiving_end),
    links.DeadEnd: Rule(Way.TOLD, _RECEIVING, _receiving_end),
    links.Moved: Rule(Way.TOLD | Way.ASKED, "the operator's host, as known here; anybody where it is known already", _moved),
    links.Handed: Rule(Way.ASKED, _SENDING + ", of itself", _handed),
    reports.UpstreamDelay: Rule(Way.TOLD, _SENDING, _sending_end),
    reports.InstanceFigures: Rule(Way.TOLD, _RECEIVING, _receiving_end),
    # Operators of queries.
    deployment.Instantiate: Rule(Way.ASKED, _HOME + ", of its operators and links alone", _instantiate),
    deployment.Use: Rule(Way.ASKED, _HOME + "; without outputs, the host that the link `through` leads to", _use),
    deployment.Begin: Rule(Way.ASKED, _HOME, _home),
    deployment.Release: Rule(Way.ASKED, _HOME, _home),
    deployment.InputLost: Rule(Way.ASKED, "the owner of the operator's query; the host of the link's sending end", _input_lost),
    deployment.Refeed: Rule(Way.ASKED, "the owner of the query of the link's target", _refeed),
    deployment.Renew: Rule(Way.ASKED, "the owner of the query of one of the link's operators", _renew),
    deployment.LeaveOut: Rule(Way.ASKED, "the owner of the operator's query", _leave_out),
    deployment.Replaced: Rule(Way.ASKED, _RECEIVING, _receiving_end),
    reports.DelaySlack: Rule(Way.ASKED, _HOME, _home),
    reports.OperatorsAsk: Rule(Way.ASKED, _MEMBER, _anybody),
    # Places and reservations.
    candidates.CandidateAsk: Rule(Way.ASKED, _MEMBER + "; room is kept for the owner of the query", _home_if_any),
    candidates.SampleAsk: Rule(Way.ASKED, _MEMBER, _anybody),
    candidates.Reserve: Rule(Way.ASKED, _HOME, _home),
    candidates.RttsAsk: Rule(Way.ASKED, _MEMBER, _anybody),
    # Another plan for a running query.
    replanning.Cross: Rule(Way.ASKED, _HOME + " of the sink", _cross),
    replanning.Cut: Rule(Way.ASKED, _HOME, _home),
    replanning.Uncut: Rule(Way.ASKED, _HOME, _home),
    replanning.Retire: Rule(Way.ASKED, _HOME, _home),
    # Migration.
    migration.Lock: Rule(Way.ASKED, "the operator's host, as known here", _lock),
    migration.Unlock: Rule(Way.ASKED, "the host that asked for the lock", _unlock),
    migration.Prepare: Rule(Way.ASKED, "any member, of itself, unless another one moves the operator here", _prepare),
    migration.StateChunk: Rule(Way.ASKED, _MOVER, _moves_it_here),
    migration.Activate: Rule(Way.ASKED, _MOVER + "; the owner of the operator's query", _activate),
    migration.Abandon: Rule(Way.ASKED, _MOVER, _moves_it_here),
    migration.OutcomeAsk: Rule(Way.ASKED, _MEMBER, _anybody),
    # Tables that all keep alike, and queries as people see them. People drop queries from any agent: one overlay, one trust domain.
    replication.PushPull: Rule(Way.ASKED, _MEMBER, _anybody),
    replication.CatalogUpdate: Rule(Way.ASKED, _MEMBER, _anybody),
    replication.QueriesAsk: Rule(Way.ASKED, _MEMBER, _anybody),
    replication.Drop: Rule(Way.ASKED, _MEMBER + ", for a person there", _anybody),
    replication.EndOrphan: Rule(Way.ASKED, _MEMBER + ", for a person there; done unless the owner of the query answers for it", _anybody),
    replication.WantedAsk: Rule(Way.ASKED, _MEMBER, _anybody),
    # Owners of queries, and the records that they hand to others.
    ownership.Keep: Rule(Way.ASKED, "any member, of a query of its own, or that it has taken over from an owner that is gone", _keep),
    ownership.Forget: Rule(Way.ASKED, _HOME, _forget),
    ownership.PromiseAsk: Rule(
        Way.ASKED, _MEMBER + ", of itself; granted to a keeper of the query, and to its owner after a restart", _promise
    ),
    ownership.Own: Rule(
        Way.ASKED,
        "any member, of itself, under a higher epoch than the owner known here, unless that one is there and the owner still",
        _own,
    ),
    ownership.ClaimsAsk: Rule(Way.ASKED, _MEMBER, _anybody),
    # Cluster keys are changed from any agent, by a person there.
    keys.KeysAsk: Rule(Way.ASKED, _MEMBER, _anybody),
    keys.KeyInstall: Rule(Way.ASKED, _MEMBER + ", for a person there", _anybody),
    keys.KeyUse: Rule(Way.ASKED, _MEMBER + ", for a person there", _anybody),
    keys.KeyRemove: Rule(Way.ASKED, _MEMBER + ", for a person there", _anybody),
    # Answers.
    replanning.Crossing: Rule(Way.ANSWER, _NEVER, _nobody),
    replanning.Retired: Rule(Way.ANSWER, _NEVER, _nobody),
    deployment.Used: Rule(Way.ANSWER, _NEVER, _nobody),
    deployment.Renewed: Rule(Way.ANSWER, _NEVER, _nobody),
    reports.OperatorReports: Rule(Way.ANSWER, _NEVER, _nobody),
    candidates.CandidateAnswer: Rule(Way.ANSWER, _NEVER, _nobody),
    candidates.Sampled: Rule(Way.ANSWER, _NEVER, _nobody),
    candidates.Rtts: Rule(Way.ANSWER, _NEVER, _nobody),
    migration.Outcome: Rule(Way.ANSWER, _NEVER, _nobody),
    replication.Queries: Rule(Way.ANSWER, _NEVER, _nobody),
    replication.OrphanEnded: Rule(Way.ANSWER, _NEVER, _nobody),
    replication.Unwanted: Rule(Way.ANSWER, _NEVER, _nobody),
    ownership.HolderSays: Rule(Way.ANSWER, _NEVER, _nobody),
    ownership.Claims: Rule(Way.ANSWER, _NEVER, _nobody),
    keys.KeysHeld: Rule(Way.ANSWER, _NEVER, _nobody),
    messages.Done: Rule(Way.ANSWER, _NEVER, _nobody),
}
