"""Messages about who owns a query, and who keeps its record (docs/recovery.md, Ownership)."""

from typing import Annotated, TypeAlias

import msgspec

from sbon.message_limits import MANY, Count, Data, Node, OwnerEpoch, Query

RECORD_BYTES_MAX = 2**20
"""Most bytes of the content of a record: one that is larger is not kept."""
SETS_MAX = 8
"""Most sets of holders of one record that must agree at the same time."""

Boot: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=2**62)]


class Holder(msgspec.Struct, frozen=True, array_like=True, order=True):
    """One process of an agent: what an agent has promised is forgotten when it restarts."""

    name: Node
    boot: Boot


Holders: TypeAlias = Annotated[tuple[Holder, ...], msgspec.Meta(max_length=3)]


class Record(msgspec.Struct, frozen=True, array_like=True):
    """One version of the record of a query."""

    query: Query
    epoch: OwnerEpoch
    """The ownership epoch: how often another agent has taken the query over, at least."""
    version: Count
    owner: Holder
    sets: Annotated[tuple[Holders, ...], msgspec.Meta(min_length=1, max_length=SETS_MAX)]
    """The owner and its keepers; the last ones are the present ones. Of each of these sets a majority must hold a version before it
    counts, as long as it is not known whether the change from one to the next counts."""
    content: Data
    """`sbon.supervision.kept_record.Content`, in MessagePack."""

    @property
    def rank(self) -> tuple[int, int]:
        """Order of versions: the greater one is newer."""
        return self.epoch, self.version

    @property
    def holders(self) -> tuple[Holder, ...]:
        """All holders, sorted."""
        return tuple(sorted({holder for holders in self.sets for holder in holders}))


class Keep(msgspec.Struct, frozen=True, tag="keep"):
    """Keep this version of a record; sent by the owner, answered with HolderSays."""

    record: Record


class Forget(msgspec.Struct, frozen=True, tag="forget"):
    """The query has ended, or the receiver is not a keeper of it any more; sent by the owner."""

    query: Query
    epoch: OwnerEpoch
    is_over: bool = False
    """The query has ended."""


class PromiseAsk(msgspec.Struct, frozen=True, tag="promise?"):
    """A keeper, or an owner that has restarted, asks to own the query under this ownership epoch; answered with HolderSays."""

    query: Query
    epoch: OwnerEpoch
    holder: Holder
    """The process that asks."""
    of: Holder | None = None
    """The holder that is asked: another process of its agent may answer."""
    is_anew: bool = False
    """The asker has restarted and has no record: with the promises of a majority it runs the query anew."""


class HolderSays(msgspec.Struct, frozen=True, tag="holdersays"):
    """Answers Keep and PromiseAsk."""

    granted: bool
    epoch: OwnerEpoch
    """The highest ownership epoch that the holder has promised or heard of."""
    owner: Holder | None = None
    """With a refusal: the owner under that epoch; None if the epoch has only been promised."""
    record: Record | None = None
    """With a promise, and with its refusal to another holder: the version that the holder has."""
    promised_to: Holder | None = None
    """With the refusal of a version: another process, to which its epoch has been promised; None: the epoch is free or too low."""
    is_lost: bool = False
    """The process that answers does not know what former ones of its agent had promised: it does not speak for them."""


class Own(msgspec.Struct, frozen=True, tag="own"):
    """The sender owns the query from now on; answered with reports on the operators that the receiver runs for it (OperatorReports)."""

    query: Query
    epoch: OwnerEpoch
    owner: Holder


class ClaimsAsk(msgspec.Struct, frozen=True, tag="claims?"):
    """Asks an agent which of these queries it owns, or keeps the record of: one that restarts runs none of them anew. A host whose owner of
    a query is gone asks so, too: whoever has kept the record remembers that the query has ended."""

    queries: Annotated[tuple[Query, ...], MANY]


class Claims(msgspec.Struct, frozen=True, tag="claims"):
    """Answers ClaimsAsk with those that the agent owns, those that it keeps the record of, and those of which it remembers the end."""

    owned: Annotated[tuple[Query, ...], MANY]
    kept: Annotated[tuple[Query, ...], MANY]
    over: Annotated[tuple[Query, ...], MANY] = ()
