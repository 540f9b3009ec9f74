"""What agents say to each other over their connections: acknowledgement of data, deployment, migration, replication.

Every message is a typed struct in MessagePack; decoding is the validation. Only the batches of links travel otherwise
(`sbon.link_frames`). Sealing, framing, request numbers and time-outs belong to the connection (`sbon.framing`, `agent.network.peers`)
and are not seen here. Datagrams have messages of their own (`sbon.membership.messages`).
"""

from typing import TypeAlias

import msgspec

from sbon.errors import RemoteProtocolError
from sbon.query.catalog import Entry
from sbon.query.plan import LinkSpec, OperatorSpec
from sbon.query.schema import Schema
from sbon.types import LinkId, NodeId, OperatorId, QueryId

# ------------------------------------------------------------------------------------------------------------ links


class Acknowledge(msgspec.Struct, frozen=True, tag="ack"):
    """All batches up to `processed` have been processed, and their effects are in the receiver's state or output."""

    link: LinkId
    processed: int
    credit: int
    """How many batches beyond `processed` the receiver will hold."""
    resume: bool
    """Batches are missing: send everything after `processed` again."""


class NoSuchLink(msgspec.Struct, frozen=True, tag="nolink"):
    """The receiver of some data does not host the link's target and does not know who does."""

    link: LinkId


class Moved(msgspec.Struct, frozen=True, tag="moved"):
    """An operator has a new host. Of two such words the one with the higher epoch is the later."""

    operator: OperatorId
    node: NodeId
    epoch: int


class Handed(msgspec.Struct, frozen=True, tag="handed"):
    """The sending end of a link belongs to another operator of the same host now: a multicast has taken it, or given it back."""

    link: LinkSpec
    node: NodeId


# ------------------------------------------------------------------------------------------------------- deployment


class End(msgspec.Struct, frozen=True, array_like=True):
    """The other end of a link, as a host of one end needs to know it."""

    link: LinkSpec
    node: NodeId
    schema: Schema
    """Of the rows on the link."""
    epoch: int = 0


class User(msgspec.Struct, frozen=True, array_like=True):
    """A query that uses an operator, and the agent that took the query."""

    query: QueryId
    owner: NodeId
    delay_slack_ms: float | None = None
    """By how much the query's longest way may still grow; None: it has no delay bound. Below 0 where the bound is exceeded."""


class Instantiate(msgspec.Struct, frozen=True, tag="instantiate"):
    """Run an operator here."""

    spec: OperatorSpec
    inputs: tuple[End, ...]
    outputs: tuple[End, ...]
    user: User


class Use(msgspec.Struct, frozen=True, tag="use"):
    """Let another query use a running operator, and all that feeds it. `outputs` are its links to the new query's operators."""

    operator: OperatorId
    user: User
    outputs: tuple[End, ...] = ()
    through: LinkId | None = None
    """The existing link by which the query uses the operator, when it does so through a later one."""


class Used(msgspec.Struct, frozen=True, tag="used"):
    """The operator and all that feeds it, with their hosts."""

    operators: tuple[tuple[OperatorId, NodeId], ...]


class Release(msgspec.Struct, frozen=True, tag="release"):
    """A query has ended: what only it used here is destroyed."""

    query: QueryId


class DelaySlack(msgspec.Struct, frozen=True, tag="slack"):
    """The slack of a query whose operators run here has changed; see `User.delay_slack_ms`."""

    query: QueryId
    slack_ms: float | None


class UpstreamDelay(msgspec.Struct, frozen=True, tag="delay"):
    """The longest way from a producer to the operator that feeds this link; one way, a later one replaces it."""

    link: LinkId
    delay_ms: float


class OperatorsAsk(msgspec.Struct, frozen=True, tag="operators?"):
    """How do these operators do?"""

    operators: tuple[OperatorId, ...]
    query: QueryId = ""
    """For which query: the multicasts on its links are told too."""


class OperatorReport(msgspec.Struct, frozen=True):
    """One operator's figures since it was made, across migrations; rates are of the last interval."""

    id: OperatorId
    state: str
    """running, paused, blocked, stalled, finished, failed, missing, or moved."""
    node: NodeId
    reason: str = ""
    epoch: int = 0
    rows_in: int = 0
    rows_out: int = 0
    batches_in: int = 0
    rows_per_s_in: float = 0.0
    rows_per_s_out: float = 0.0
    bytes_per_s_out: float = 0.0
    late_rows: int = 0
    dropped_rows: int = 0
    queue_batches: int = 0
    state_rows: int = 0
    migrations: int = 0
    links: tuple[tuple[LinkId, int, int, float, float], ...] = ()
    """Per output link: rows sent, rows acknowledged, rows/s, bytes/s."""
    packing: tuple[tuple[LinkId, str, float], ...] = ()
    """Per output link: how its batches are packed at present, and what that has left of each byte so far."""
    received: tuple[tuple[LinkId, int], ...] = ()
    """Per input link: rows processed."""
    multicasts: tuple[tuple[OperatorId, NodeId, int], ...] = ()
    """Those that carry its output for the query that asked: their hosts, and how many queries share each."""
    upstream_delay_ms: float | None = None
    """Latency of the longest way from a producer to here; None until it is known."""
    selectivity: float | None = None
    """Rows out for each row in; None without input or output."""
    queue_rows: int = 0
    """Rows of the batches that wait."""
    quanta: int = 0
    """Since it came to this host: batches, and slices of large ones."""
    cpu_ns: int = 0
    """Processor time, likewise."""
    cpu_ns_per_row: float | None = None
    """Lately; None before the first row."""
    longest_quantum_ms: float = 0.0
    """Longest time that its part of a quantum has kept a thread, since it came to this host."""


class OperatorReports(msgspec.Struct, frozen=True, tag="operators"):
    """Answer to OperatorsAsk."""

    reports: tuple[OperatorReport, ...]


class InputLost(msgspec.Struct, frozen=True, tag="inputlost"):
    """What feeds this link is no more: the operator at its end must not wait for it any longer. Or, `back`, it feeds it again."""

    operator: OperatorId
    link: LinkId
    back: bool = False


class Refeed(msgspec.Struct, frozen=True, tag="refeed"):
    """The link `lost` has broken for good, though both its ends live: from now on its rows go by a new one. Asked of either end's host."""

    query: QueryId
    """For which; it uses both operators."""
    lost: LinkId
    end: End
    """The new link, and the host of its other end; the rows are those of the old one."""
    gives: bool
    """Asked of the source, rather than of the target."""


class Replaced(msgspec.Struct, frozen=True, tag="replaced"):
    """The target of this link takes its rows by another one: whoever still has its sending end may forget it."""

    link: LinkId


class CandidateAsk(msgspec.Struct, frozen=True, tag="candidate?"):
    """Would you host these? Measure your RTT to these nodes and tell what you run and can take."""

    about: tuple[NodeId, ...]
    signatures: tuple[str, ...]
    query: QueryId = ""
    """For which; room is kept for it for a while."""
    slots: int = 0
    """How many operators of the query might come; 0: keep no room."""
    functions: tuple[tuple[str, str], ...] = ()
    """Users' functions, by name and version, without which there is no use in coming."""


class CandidateAnswer(msgspec.Struct, frozen=True, tag="candidate"):
    """What a candidate has to offer."""

    node: NodeId
    rtts_ms: dict[NodeId, float]
    free_slots: int
    """Room that others have not been promised."""
    load_ms: float
    running: dict[str, OperatorId]
    reserved: int = 0
    """Room promised to others, which may come free again."""
    upstream_delay_ms: dict[OperatorId, float] = {}
    """Of those running: latency of the longest way from a producer, where it is known."""


class Reserve(msgspec.Struct, frozen=True, tag="reserve"):
    """The query has been placed, and so many of its operators will come here; 0: none, what was promised it is free again."""

    query: QueryId
    slots: int


class RttsAsk(msgspec.Struct, frozen=True, tag="rtts?"):
    """Which RTTs do you remember from probing? Those of your `nearest` nodes, and to those of `about` that you know."""

    nearest: int
    about: tuple[NodeId, ...] = ()


class Rtts(msgspec.Struct, frozen=True, tag="rtts"):
    """Answer to RttsAsk."""

    remembered: tuple[tuple[NodeId, float, float], ...]
    """Node, filtered RTT in ms, and its age in s."""


# -------------------------------------------------------------------------------------------------------- migration


class Lock(msgspec.Struct, frozen=True, tag="lock"):
    """May `operator` migrate? Its neighbours here promise not to, until unlocked or `lease_s` has passed since they were asked last."""

    operator: OperatorId
    neighbours: tuple[OperatorId, ...]
    coordinator: NodeId
    lease_s: float
    there: NodeId = ""
    """Its new host, to which the neighbours here will send: they open a connection before they promise. Empty: they will not send."""


class Unlock(msgspec.Struct, frozen=True, tag="unlock"):
    """The migration of `operator` has ended, one way or the other."""

    operator: OperatorId


class Prepare(msgspec.Struct, frozen=True, tag="prepare"):
    """Make room for a migrating operator, and reach those that it feeds."""

    spec: OperatorSpec
    epoch: int
    coordinator: NodeId
    feeds: tuple[NodeId, ...] = ()


class StateChunk(msgspec.Struct, frozen=True, tag="state"):
    """A piece of the state of a prepared operator, answered when it has had its effect; the last one installs it."""

    operator: OperatorId
    epoch: int
    index: int
    last: bool
    data: bytes
    urgent: float = 0.0
    """From 0, it may wait for other work, to 1, it must not."""


class Activate(msgspec.Struct, frozen=True, tag="activate"):
    """The migration is decided: run."""

    operator: OperatorId
    epoch: int


class Abandon(msgspec.Struct, frozen=True, tag="abandon"):
    """The migration is off: forget what was prepared."""

    operator: OperatorId
    epoch: int


class OutcomeAsk(msgspec.Struct, frozen=True, tag="outcome?"):
    """Asked of the coordinator by a host that has prepared and heard nothing since."""

    operator: OperatorId
    epoch: int


class Outcome(msgspec.Struct, frozen=True, tag="outcome"):
    """`committed`, `abandoned` or `undecided`."""

    verdict: str


# ------------------------------------------------------------------------------------------------------ replication


class PushPull(msgspec.Struct, frozen=True, tag="pushpull"):
    """The sender's whole table of members and its catalogue; answered with the receiver's."""

    members: bytes
    catalog: tuple[Entry, ...]


class CatalogUpdate(msgspec.Struct, frozen=True, tag="catalog"):
    """Entries that have just changed."""

    entries: tuple[Entry, ...]


class QueriesAsk(msgspec.Struct, frozen=True, tag="queries?"):
    """Which queries have you taken?"""


class Queries(msgspec.Struct, frozen=True, tag="queries"):
    """Answer to QueriesAsk: rows as `sbon queries --json` shows them, in MessagePack."""

    rows: bytes


class Drop(msgspec.Struct, frozen=True, tag="drop"):
    """End a query that you have taken."""

    query: QueryId


class WantedAsk(msgspec.Struct, frozen=True, tag="wanted?"):
    """We run operators for these queries that you have taken. Are they still wanted?"""

    queries: tuple[QueryId, ...]


class Unwanted(msgspec.Struct, frozen=True, tag="unwanted"):
    """Answer to WantedAsk: those that are over, or not known (any more)."""

    queries: tuple[QueryId, ...]


# ---------------------------------------------------------------------------------------------------- cluster keys


class KeysAsk(msgspec.Struct, frozen=True, tag="keys?"):
    """Which cluster keys do you hold?"""


class KeyInstall(msgspec.Struct, frozen=True, tag="keyinstall"):
    """Hold this cluster key too."""

    key: bytes

    def __repr__(self) -> str:
        return f"KeyInstall({len(self.key)} bytes)"  # logs must not have it


class KeyUse(msgspec.Struct, frozen=True, tag="keyuse"):
    """Seal with the key of this id from now on."""

    id: str


class KeyRemove(msgspec.Struct, frozen=True, tag="keyremove"):
    """Forget the key of this id."""

    id: str


class KeysHeld(msgspec.Struct, frozen=True, tag="keys"):
    """Ids of the keys held now, the primary one's first. Answer to all of the above."""

    ids: tuple[str, ...]


class Done(msgspec.Struct, frozen=True, tag="done"):
    """The request has been carried out."""


Message: TypeAlias = (
    Acknowledge
    | NoSuchLink
    | Moved
    | Handed
    | Instantiate
    | Use
    | Used
    | Release
    | DelaySlack
    | UpstreamDelay
    | OperatorsAsk
    | OperatorReports
    | InputLost
    | Refeed
    | Replaced
    | CandidateAsk
    | CandidateAnswer
    | Reserve
    | RttsAsk
    | Rtts
    | Lock
    | Unlock
    | Prepare
    | StateChunk
    | Activate
    | Abandon
    | OutcomeAsk
    | Outcome
    | PushPull
    | CatalogUpdate
    | QueriesAsk
    | Queries
    | Drop
    | WantedAsk
    | Unwanted
    | KeysAsk
    | KeyInstall
    | KeyUse
    | KeyRemove
    | KeysHeld
    | Done
)

_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[Message] = msgspec.msgpack.Decoder(Message)


def encode(message: Message) -> bytes:
    """The bytes of a message."""
    return _encoder.encode(message)


def decode(payload: bytes) -> Message:
    """The message in the bytes.

    Raises
    ------
    RemoteProtocolError
        The bytes are not a message of this version.
    """
    try:
        return _decoder.decode(payload)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as problem:
        raise RemoteProtocolError(f"undecodable message of {len(payload)} bytes: {problem}") from problem
