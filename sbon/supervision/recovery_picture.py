"""The knowledge of a query of which operators are lost, and which of these can be made again now. Pure functions."""

from collections.abc import Iterable, Mapping

import msgspec

from sbon.links.link_names import first_name
from sbon.query.plan import LinkSpec, OperatorSpec
from sbon.schema import Schema
from sbon.supervision.once_more import files_away
from sbon.types import LinkId, NodeId, OperatorId
from sbon.watermarks import WATERMARK_END
from sbon.wire.deployment import Renewed, User
from sbon.wire.reports import FilePosition


class Picture(msgspec.Struct, frozen=True):
    """The knowledge of a query at its home, at one moment."""

    specs: Mapping[OperatorId, OperatorSpec]
    """The operators that were made for the query, upstream first."""
    links: tuple[LinkSpec, ...]
    nodes: Mapping[OperatorId, NodeId]
    """Last known hosts of these operators, and of others that the query uses."""
    epochs: Mapping[OperatorId, int]
    lost: frozenset[OperatorId]
    """Operators that are gone with their hosts."""
    alive: frozenset[NodeId]
    schemas: Mapping[LinkId, Schema]
    """The columns of the rows of a link, by its first name."""
    away: frozenset[OperatorId] = frozenset()
    """Lost operators that may run on: their hosts cannot be asked, or have not answered since they could not."""
    carriers: Mapping[LinkId, OperatorId] = {}
    """The operator that sends on a link, by its first name, where that is not its source: a multicast."""
    given_up: frozenset[LinkId] = frozenset()
    """First names of the links that their living sources have given up, as a multicast was lost that sent on them; and of those whose
    sources are gone, and were made for a query that has finished."""
    taken: Mapping[LinkId, int] = {}
    """Rows that the target of a link had taken by its last report, by the first name of the link."""
    missing: Mapping[LinkId, int] = {}
    """Rows that earlier recoveries have counted as lost, by the first name of a link, or by a sink that had taken them."""
    seconds: float = 0.0
    """Time since the query began."""
    begun_at: Mapping[OperatorId, int] = {}
    """Places in the files of sinks where the query's rows begin."""
    joined: Mapping[LinkId, int] = {}
    """Rows that sources had given before a link of a later plan began, by first names."""
    users: Mapping[OperatorId, tuple[User, ...]] = {}
    """Other queries that use an operator, by its last report."""
    lacking: Mapping[OperatorId, int] = {}
    """Event times up to which operators that have begun empty lack rows."""
    positions: Mapping[OperatorId, FilePosition] = {}
    """Positions at which sources that are missing on their hosts can begin."""
    attempted: int = 0
    """The highest epoch that anything of the query has begun anew with, of whichever owner."""


def may_be_elsewhere(picture: Picture, operator: OperatorId) -> bool:
    """Tells whether an operator whose host cannot be asked may be made elsewhere: it may move, and its host is not about to answer."""
    return picture.specs[operator].pinned is None and picture.nodes[operator] not in picture.alive


def absent_files(picture: Picture, made: frozenset[OperatorId]) -> frozenset[OperatorId]:
    """Returns what either goes on or reads its file again when its host is back, and has not given up a link meanwhile.

    Parameters
    ----------
    made : operators that are made now
    """
    gone = {one for one in picture.specs if one in picture.lost or picture.nodes.get(one) not in picture.alive}
    given_up = {link.source for link in picture.links if first_name(link.id) in picture.given_up and link.source not in picture.lost}
    return files_away(picture.specs, picture.links, gone - made, picture.nodes) - given_up


def makeable(
    picture: Picture, lost: Iterable[OperatorId], spared: frozenset[OperatorId] = frozenset()
) -> tuple[frozenset[OperatorId], str]:
    """Returns the lost operators that can be made again now, and why the others cannot.

    A pinned one waits for its node. One whose consumers are away waits for them; one that nothing feeds waits for what feeds it.

    Parameters
    ----------
    spared : those that may run on, and are not made again as long as their hosts may still say so
    """
    lost = frozenset(lost)
    why: dict[OperatorId, str] = {}
    for operator in lost:
        spec = picture.specs[operator]
        if spec.pinned is not None and spec.pinned not in picture.alive:
            why[operator] = f"{operator} waits for {spec.pinned}"
        elif operator in spared:
            why[operator] = f"{operator} may run on: {picture.nodes[operator]} has not said that it does not"
    changed = True
    while changed:
        changed = False
        for operator in lost - why.keys():
            targets = {link.target for link in picture.links if link.source == operator}
            sources = {one.source for one in picture.links if one.target == operator and not _is_over(picture, one)}
            away = sorted(target for target in targets if _is_away(picture, target, lost, why))
            if away:
                why[operator] = f"{operator} waits for what it feeds: {', '.join(away)}"
            elif sources and all(_is_away(picture, source, lost, why) for source in sources):
                why[operator] = f"{operator} waits for what feeds it: {', '.join(sorted(sources))}"
            changed = changed or operator in why
    return lost - why.keys(), "; ".join(why[operator] for operator in sorted(why))


def ended(links: Iterable[LinkSpec], operators: frozenset[OperatorId], consumers: Mapping[LinkId, Renewed]) -> frozenset[OperatorId]:
    """Returns the operators whose consumers have had everything, by the first names of the links that consumers have answered for."""
    found: set[OperatorId] = set()
    changed = True
    while changed:
        changed = False
        for operator in operators - found:
            given = [link for link in links if link.source == operator]
            had = [
                link.target in found
                or ((answer := consumers.get(first_name(link.id))) is not None and answer.watermark_us >= WATERMARK_END)
                for link in given
            ]
            if given and all(had):
                found.add(operator)
                changed = True
    return frozenset(found)


def _is_away(picture: Picture, operator: OperatorId, lost: frozenset[OperatorId], why: Mapping[OperatorId, str]) -> bool:
    return operator in why if operator in lost else picture.nodes.get(operator) not in picture.alive


def _is_over(picture: Picture, link: LinkSpec) -> bool:
    """Tells whether nothing comes any more by a link from another query's operator."""
    is_gone = link.source not in picture.specs and picture.nodes.get(link.source) not in picture.alive
    return is_gone and first_name(link.id) in picture.given_up
