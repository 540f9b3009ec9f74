"""The list of all messages between agents, with their encoding."""

from typing import Annotated, TypeAlias

import msgspec

from sbon.errors import RemoteProtocolError, UnsupportedError
from sbon.handshake import FULL_FRAMES, ORIGINS, ORIGINS_PASSED_ON
from sbon.query.params.ordered import OverParams
from sbon.wire.candidates import CandidateAnswer, CandidateAsk, Reserve, Rtts, RttsAsk, SampleAsk, Sampled
from sbon.wire.deployment import Begin, InputLost, Instantiate, LeaveOut, Refeed, Release, Renew, Renewed, Replaced, Use, Used
from sbon.wire.keys import KeyInstall, KeyRemove, KeysAsk, KeysHeld, KeyUse
from sbon.wire.links import Acknowledge, DeadEnd, Handed, Moved, NoSuchLink
from sbon.wire.migration import Abandon, Activate, Lock, Outcome, OutcomeAsk, Prepare, StateChunk, Unlock
from sbon.wire.ownership import Claims, ClaimsAsk, Forget, HolderSays, Keep, Own, PromiseAsk
from sbon.wire.replanning import Cross, Crossing, Cut, Retire, Retired, Uncut
from sbon.wire.replication import CatalogUpdate, Drop, EndOrphan, OrphanEnded, PushPull, Queries, QueriesAsk, Unwanted, WantedAsk
from sbon.wire.reports import DelaySlack, InstanceFigures, OperatorReports, OperatorsAsk, UpstreamDelay


class Done(msgspec.Struct, frozen=True, tag="done"):
    """The request has been carried out."""


Message: TypeAlias = (
    Acknowledge
    | NoSuchLink
    | Moved
    | DeadEnd
    | Handed
    | Instantiate
    | Use
    | Used
    | Begin
    | Release
    | DelaySlack
    | UpstreamDelay
    | InstanceFigures
    | OperatorsAsk
    | OperatorReports
    | InputLost
    | Refeed
    | Renew
    | LeaveOut
    | Renewed
    | Replaced
    | Cross
    | Cut
    | Uncut
    | Crossing
    | Retire
    | Retired
    | CandidateAsk
    | CandidateAnswer
    | SampleAsk
    | Sampled
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
    | Keep
    | Forget
    | PromiseAsk
    | HolderSays
    | Own
    | ClaimsAsk
    | Claims
    | KeysAsk
    | KeyInstall
    | KeyUse
    | KeyRemove
    | KeysHeld
    | Done
)


class _Header(msgspec.Struct):
    """The fields common to all messages of all releases."""

    type: Annotated[str, msgspec.Meta(min_length=1, max_length=64)]


_REASON_CHARACTERS_MAX = 200
_encoder = msgspec.msgpack.Encoder()
_header_decoder = msgspec.msgpack.Decoder(_Header)
_decoder: msgspec.msgpack.Decoder[Message] = msgspec.msgpack.Decoder(Message)


def encode(message: Message) -> bytes:
    """Encodes a message."""
    return _encoder.encode(message)


def protocol_of(message: Message) -> int:
    """Returns the least protocol version that an agent must speak to carry out a request; 0: any."""
    if isinstance(message, LeaveOut):
        return FULL_FRAMES  # it may be for `OVER`
    if not isinstance(message, Instantiate | Prepare):
        return 0
    if isinstance(message.spec.params, OverParams) and message.spec.begin is not msgspec.UNSET:
        return FULL_FRAMES
    if isinstance(message, Prepare):
        return 0
    if message.taken_up is not None and message.taken_up.fresh:
        return FULL_FRAMES
    if any(end.made_by_origin is not None for end in message.inputs):
        return ORIGINS_PASSED_ON
    return ORIGINS if any(end.skips for end in message.outputs) else 0


def decode(payload: bytes) -> Message:
    """Decodes a message.

    Raises
    ------
    UnsupportedError
        The message is not known to this release: it has another type, or a value that is not allowed here.
    RemoteProtocolError
        The bytes are not a message of any release.
    """
    try:
        return _decoder.decode(payload)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as problem:
        name = _type_of(payload)
        if name is None:
            raise RemoteProtocolError(f"undecodable message of {len(payload)} bytes: {problem}") from problem
        raise UnsupportedError(f"message {name!r} is not supported by this release: {str(problem)[:_REASON_CHARACTERS_MAX]}") from problem


def _type_of(payload: bytes) -> str | None:
    """Returns the type that a message names; None if the bytes are not a message."""
    try:
        name = _header_decoder.decode(payload).type
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    return name if name.isprintable() else None
