"""All messages between agents, and their bytes."""

from typing import TypeAlias

import msgspec

from sbon.errors import RemoteProtocolError
from sbon.wire.candidates import CandidateAnswer, CandidateAsk, Reserve, Rtts, RttsAsk
from sbon.wire.deployment import InputLost, Instantiate, Refeed, Release, Replaced, Use, Used
from sbon.wire.keys import KeyInstall, KeyRemove, KeysAsk, KeysHeld, KeyUse
from sbon.wire.links import Acknowledge, Handed, Moved, NoSuchLink
from sbon.wire.migration import Abandon, Activate, Lock, Outcome, OutcomeAsk, Prepare, StateChunk, Unlock
from sbon.wire.replication import CatalogUpdate, Drop, EndOrphan, OrphanEnded, PushPull, Queries, QueriesAsk, Unwanted, WantedAsk
from sbon.wire.reports import DelaySlack, OperatorReports, OperatorsAsk, UpstreamDelay


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
    | EndOrphan
    | OrphanEnded
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
