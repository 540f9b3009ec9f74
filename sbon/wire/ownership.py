"""Messages about the owner of a query and the keepers of its record (docs/recovery.md, Ownership)."""

from typing import Annotated, TypeAlias

import msgspec

from sbon.message_limits import MANY, Count, Data, Node, OwnerEpoch, Query

RECORD_BYTES_MAX = 2**20
"""Most bytes of the content of a record; a larger record is not kept."""
SETS_MAX = 8
"""Most sets of holders of one record that must agree at the same time."""

Boot: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=2**62)]


class Holder(msgspec.Struct, frozen=True, array_like=True, order=True):
    """One process of an agent. An agent that restarts forgets its promises, so a new process is another holder."""

    name: Node
    boot: Boot


Holders: TypeAlias = Annotated[tuple[Holder, ...], msgspec.Meta(max_length=3)]


class Record(msgspec.Struct, frozen=True, array_like=True):
    """One version of the record of a query."""

    query: Query
    epoch: OwnerEpoch
    """The ownership epoch: never less than the number of times that another agent has taken the query over."""
    version: Count
    owner: Holder
    sets: Annotated[tuple[Holders, ...], msgspec.Meta(min_length=1, max_length=SETS_MAX)]
    """Sets of the owner and its keepers; the last set is the present one. Earlier sets are there until the change to the next set counts. A
    version counts once a majority of each set holds it."""
    content: Data
    """`sbon.supervision.kept_record.Content`, in MessagePack."""

    @property
    def rank(self) -> tuple[int, int]:
        """Returns the order of versions: the greater is newer."""
        return self.epoch, self.version

    @property
    def holders(self) -> tuple[Holder, ...]:
        """Returns all holders, sorted."""
        return tuple(sorted({holder for holders in self.sets for holder in holders}))


class Keep(msgspec.Struct, frozen=True, tag="keep"):
    """Keep this version of a record. Sent by the owner, answered with HolderSays."""

    record: Record


class Forget(msgspec.Struct, frozen=True, tag="forget"):
    """Forget the record: the query has ended, or the receiver is no longer its keeper. Sent by the owner."""

    query: Query
    epoch: OwnerEpoch
    is_over: bool = False
    """The query has ended."""


class PromiseAsk(msgspec.Struct, frozen=True, tag="promise?"):
    """Asks to own the query under this ownership epoch. Sent by a keeper or a restarted owner, answered with HolderSays."""

    query: Query
    epoch: OwnerEpoch
    holder: Holder
    """The process that asks."""
    of: Holder | None = None
    """The holder that is asked, because another process of its agent may answer."""
    is_anew: bool = False
    """The asker has restarted and has no record. If a majority promises, it submits the query again."""


class HolderSays(msgspec.Struct, frozen=True, tag="holdersays"):
    """Answers Keep and PromiseAsk."""

    granted: bool
    epoch: OwnerEpoch
    """The highest ownership epoch that the holder has promised or heard of."""
    owner: Holder | None = None
    """With a refusal: the owner under that epoch; None if the epoch has only been promised."""
    record: Record | None = None
    """With a promise, or the refusal of a promise to another holder: the version that the answering holder has."""
    promised_to: Holder | None = None
    """With the refusal of a version: another process to which the version's epoch has been promised; None: the epoch is free or too low."""
    is_lost: bool = False
    """The answering process does not know the promises of its agent's former processes, and does not speak for them."""


class Own(msgspec.Struct, frozen=True, tag="own"):
    """The sender owns the query from now on. Answered with reports on the operators that the receiver runs for it (OperatorReports)."""

    query: Query
    epoch: OwnerEpoch
    owner: Holder


class ClaimsAsk(msgspec.Struct, frozen=True, tag="claims?"):
    """Asks an agent which of these queries it owns, or keeps the record of. Sent by a restarted home, which does not submit these again,
    and by a host that runs operators of a query whose owner is gone: a former keeper remembers that the query has ended."""

    queries: Annotated[tuple[Query, ...], MANY]


class Anew(msgspec.Struct, frozen=True, array_like=True, order=True):
    """A query that an agent runs, or may run, under another id than its first one: it has started again after a restart."""

    first: Query
    id: Query
    is_decided: bool
    """False as long as the agent, which has restarted, does not know whether another agent runs the query."""


class Claims(msgspec.Struct, frozen=True, tag="claims"):
    """Answers ClaimsAsk with the queries that the agent owns, those whose record it keeps, those whose end it remembers, and those that it
    runs under other ids."""

    owned: Annotated[tuple[Query, ...], MANY]
    kept: Annotated[tuple[Query, ...], MANY]
    over: Annotated[tuple[Query, ...], MANY] = ()
    anew: Annotated[tuple[Anew, ...], MANY] = ()
    undecided: Annotated[tuple[Query, ...], MANY] = ()
    """Queries among those kept that the agent had taken over before it restarted, and whose record it may have lost. Another agent in the
    same place does not wait for it."""
