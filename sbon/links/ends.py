"""The table of links' ends of one host: which operator has the other end of each link, and on which node that operator runs.

One operator *gives* the batches of a link, another one *takes* them. A host has the ends of its own operators. For the other end of each
link it knows the *place*: operator, node, and a version of two numbers, compared in this order:

    turn     how often the end has passed between an operator and a multicast beside it (`LinkSpec.handed`); a taking end never passes
    epoch    how often the operator that has the end has moved to another host; 0 if that is not known

Two kinds of news give a place: an operator has moved (all of its ends, one epoch higher), or a giving end has passed (one end, one turn
higher). The table treats both alike. News of a higher version changes the place, and `RULES` says what else follows. Any other news is late
or repeated, and changes nothing. So news may be lost, delayed, repeated and reordered: the highest version heard counts.

A host repeats its news until the other host answers. A host that is told that an end is not there asks again. `pause_s` gives the pauses.

The table also keeps where the operators went that ran here, for senders that have missed the news. `sbon.links.places` and
`sbon.wire.authority` decide before whether a host may give news of a place.
"""

import enum
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Generic, NamedTuple, TypeVar

import msgspec

from sbon.errors import LocalProtocolError
from sbon.links.link_names import first_name, renewals
from sbon.links.places import Whereabouts
from sbon.types import LinkId, NodeId, OperatorId

if TYPE_CHECKING:
    from sbon.query.plan import LinkSpec

RETRY_S_MIN = 0.5
"""First pause in seconds before news or a question about an end is repeated. One or two pauses suffice for an end that is being made."""
RETRY_S_MAX = 15.0
"""Longest pause in seconds."""


def pause_s(tries: int) -> float:
    """Returns the pause after this many tries without success, in seconds; it doubles from `RETRY_S_MIN` to `RETRY_S_MAX`.

    Examples
    --------
    >>> [pause_s(tries) for tries in (1, 2, 3, 5, 6, 1000)]
    [0.5, 1.0, 2.0, 8.0, 15.0, 15.0]
    """
    return min(RETRY_S_MAX, RETRY_S_MIN * 2.0 ** min(tries - 1, 16))


class Side(enum.Enum):
    """One side of a link."""

    GIVES = "gives"
    TAKES = "takes"


class Age(enum.Enum):
    """The version of news, compared with the known version."""

    PASSED = "passed"
    """A higher turn: another operator of the same host has the end now."""
    MOVED = "moved"
    """The same turn and a higher epoch: the operator runs on another host now."""
    KNOWN = "known"
    LATE = "late"
    """A lower version."""


class Step(enum.Enum):
    """One consequence of news."""

    RENAME = "rename"
    """The link gets the name of the operator that has the end."""
    PLACE = "place"
    """Takes the node and the epoch from the news; the former node may no longer speak for the end."""
    UNNAME = "unname"
    """Forgets the next hosts that were named, because they were named for the previous operator."""
    SEND_AGAIN = "send again"
    """Sends unacknowledged batches to the new host."""
    FORGET_DELAY = "forget delay"
    """Drops the delay upstream, which was measured at another node. Does nothing if the node is the same."""


RULES: dict[tuple[Side, Age], tuple[Step, ...]] = {
    (Side.GIVES, Age.PASSED): (Step.RENAME, Step.PLACE, Step.UNNAME),
    (Side.GIVES, Age.MOVED): (Step.FORGET_DELAY, Step.PLACE),
    (Side.GIVES, Age.KNOWN): (),
    (Side.GIVES, Age.LATE): (),
    (Side.TAKES, Age.MOVED): (Step.PLACE, Step.SEND_AGAIN),
    (Side.TAKES, Age.KNOWN): (),
    (Side.TAKES, Age.LATE): (),
}
"""Consequences of news of the other end, by that end's side and the age of the news."""


class Version(NamedTuple):
    """The version of an end's place; the highest wins."""

    turn: int
    epoch: int


class Place(msgspec.Struct, frozen=True):
    """The operator and node at an end of a link."""

    operator: OperatorId
    node: NodeId
    version: Version


class SendAgain(msgspec.Struct, frozen=True):
    """Send the unacknowledged batches of a link to the place that its table entry has now."""

    link: LinkId


class ForgetDelay(msgspec.Struct, frozen=True):
    """Drop the reported delay upstream of a link."""

    link: LinkId


Action = SendAgain | ForgetDelay


class End(Whereabouts):
    """An end of a link here. `node` and `epoch` are those of the operator at the other end."""

    __slots__ = ("link",)

    def __init__(self, link: "LinkSpec", node: NodeId, epoch: int) -> None:
        super().__init__(node, epoch)
        self.link = link

    def place(self, other: Side) -> Place:
        """Returns the place of the other end, which is on the side `other`."""
        if other is Side.GIVES:
            return Place(self.link.source, self.node, Version(self.link.handed, self.epoch))
        return Place(self.link.target, self.node, Version(0, self.epoch))


def age(known: Version, heard: Version) -> Age:
    """Compares the version of news with the known version."""
    if heard == known:
        return Age.KNOWN
    if heard < known:
        return Age.LATE
    return Age.PASSED if heard.turn > known.turn else Age.MOVED


def hear(end: End, other: Side, place: Place) -> list[Action]:
    """Applies news of a link's other end. Repeated news changes nothing.

    Raises
    ------
    LocalProtocolError
        The taking side of a link cannot pass to another operator.
    """
    news = age(end.place(other).version, place.version)
    if (other, news) not in RULES:
        raise LocalProtocolError(f"the taking end of {end.link.id} cannot pass to another operator ({place.operator} on {place.node})")
    actions: list[Action] = []
    for step in RULES[other, news]:
        if step is Step.RENAME:
            end.link = msgspec.structs.replace(end.link, source=place.operator, handed=place.version.turn)
        elif step is Step.PLACE:
            end.moved(place.node, place.version.epoch)
        elif step is Step.UNNAME:
            end.named.clear()
        elif step is Step.SEND_AGAIN:
            actions.append(SendAgain(end.link.id))
        elif place.node != end.node:
            actions.append(ForgetDelay(end.link.id))
    return actions


Owner = TypeVar("Owner")
Taking = TypeVar("Taking", bound=End)
Giving = TypeVar("Giving", bound=End)
Found = TypeVar("Found")


class Ends(Generic[Owner, Taking, Giving]):
    """All ends of links on one host, and the new places of operators that have left it.

    Parameters
    ----------
    remembered : most new places that are kept; the oldest are forgotten first
    """

    def __init__(self, remembered: int) -> None:
        self._remembered = remembered
        self._taking: dict[LinkId, tuple[Owner, Taking]] = {}
        self._giving: dict[LinkId, tuple[Owner, Giving]] = {}
        self._gone: OrderedDict[OperatorId, tuple[NodeId, int]] = OrderedDict()

    # ---------------------------------------------------------------------------------------------------- ends that are here

    def add_taking(self, owner: Owner, end: Taking) -> None:
        """Adds the taking end of a link, or gives it to another operator here."""
        self._taking[end.link.id] = (owner, end)

    def add_giving(self, owner: Owner, end: Giving) -> None:
        """Adds the giving end of a link, or gives it to another operator here."""
        self._giving[end.link.id] = (owner, end)

    def drop_taking(self, link: LinkId) -> None:
        """Drops the taking end of a link, if it is here."""
        self._taking.pop(link, None)

    def drop_giving(self, link: LinkId) -> None:
        """Drops the giving end of a link, if it is here."""
        self._giving.pop(link, None)

    def takes(self, link: LinkId) -> tuple[Owner, Taking] | None:
        """Returns the operator here that takes the batches of a link, with its end; None if there is none."""
        return self._taking.get(link)

    def gives(self, link: LinkId) -> tuple[Owner, Giving] | None:
        """Returns the operator here that gives the batches of a link, with its end; None if there is none."""
        return self._giving.get(link)

    def takes_first(self, name: LinkId) -> tuple[Owner, Taking] | None:
        """Returns the taking end of a link by the id that the link had before it was renewed (`renewed`); None if there is none.

        If there are several, returns the one renewed last. The others belong to operators that fed, or were fed by, former copies.
        """
        return _latest(self._taking, name)

    def gives_first(self, name: LinkId) -> tuple[Owner, Giving] | None:
        """Returns the giving end of a link by the id before it was renewed; the one renewed last, None if there is none."""
        return _latest(self._giving, name)

    def giving(self) -> list[Giving]:
        """Returns all giving ends."""
        return [end for _, end in self._giving.values()]

    def claimed(self, owner: Owner, taking: Iterable[LinkId], giving: Iterable[LinkId]) -> LinkId | None:
        """Returns one of these links whose end here belongs to an operator other than `owner`; None if there is none."""
        for links, ends in ((taking, self._taking), (giving, self._giving)):
            for link in links:
                if link in ends and ends[link][0] is not owner:
                    return link
        return None

    def beside(self, operator: OperatorId) -> list[tuple[Owner, Taking | Giving]]:
        """Returns the ends here of all links to or from an operator, each with the operator that has it."""
        feeding: list[tuple[Owner, Taking | Giving]] = [(owner, end) for owner, end in self._taking.values() if end.link.source == operator]
        return feeding + [(owner, end) for owner, end in self._giving.values() if end.link.target == operator]

    # ------------------------------------------------------------------------------------------------ operators that have left

    def left(self, operator: OperatorId, node: NodeId, epoch: int) -> None:
        """Records where an operator has moved to, for senders that do not know yet."""
        self._gone[operator] = (node, epoch)
        self._gone.move_to_end(operator)
        while len(self._gone) > self._remembered:
            self._gone.popitem(last=False)

    def returned(self, operator: OperatorId) -> None:
        """Forgets where an operator went: it is here again."""
        self._gone.pop(operator, None)

    def place(self, operator: OperatorId) -> tuple[NodeId, int] | None:
        """Returns where an operator that was here has gone, with the epoch of the move; None if unknown."""
        return self._gone.get(operator)

    def places(self, operator: OperatorId) -> list[Whereabouts]:
        """Returns every entry about where an operator on another host runs."""
        ends: list[Whereabouts] = [end for _, end in self.beside(operator)]
        gone = self._gone.get(operator)
        return ends if gone is None else [*ends, Whereabouts(*gone)]

    # -------------------------------------------------------------------------------------------------------------- news

    def moved(self, operator: OperatorId, node: NodeId, epoch: int) -> list[Action]:
        """Applies the news that an operator has moved: to all links to and from it, and to its new place if it ran here."""
        if operator in self._gone and self._gone[operator][1] < epoch:
            self.left(operator, node, epoch)
        actions: list[Action] = []
        for _, giving in self._giving.values():
            if giving.link.target == operator:
                actions += hear(giving, Side.TAKES, Place(operator, node, Version(0, epoch)))
        for _, taking in self._taking.values():
            if taking.link.source == operator:
                actions += hear(taking, Side.GIVES, Place(operator, node, Version(taking.link.handed, epoch)))
        return actions

    def passed(self, link: "LinkSpec", node: NodeId) -> list[Action]:
        """Applies the news that the giving end of a link has passed to another operator of its host: to a multicast, or back.

        Parameters
        ----------
        link : the link with its new source and turn
        """
        found = self._taking.get(link.id)
        if found is None:
            return []
        return hear(found[1], Side.GIVES, Place(link.source, node, Version(link.handed, 0)))


def _latest(ends: Mapping[LinkId, Found], name: LinkId) -> Found | None:
    latest = max((link for link in ends if first_name(link) == name), key=renewals, default=None)
    return None if latest is None else ends[latest]
