"""A picture of a query for its recovery: which operators are lost, and which of these can be made again now. Pure functions."""

from collections.abc import Iterable, Mapping

import msgspec

from sbon.execution.settings import EngineConfig
from sbon.links.link_names import first_name
from sbon.query.plan import LinkSpec, OperatorSpec
from sbon.schema import Schema
from sbon.supervision.replayed_inputs import files_away
from sbon.types import LinkId, NodeId, OperatorId
from sbon.watermarks import WATERMARK_END
from sbon.wire.deployment import Renewed, User
from sbon.wire.reports import FilePosition


class Rules(msgspec.Struct, frozen=True):
    """The settings of an owner's recoveries."""

    after_s: float = 0.0
    """Seconds that a host must have been declared failed before a movable operator is made elsewhere."""
    shared_after_s: float = 0.0
    """The same for an operator that other queries use, too."""
    rerun_rows_max: int = 0
    """Most rows that the sources of a query may have given for a rerun (`sbon.supervision.rerun`)."""
    rerun_wait_s: float = 0.0
    """Seconds that lost operators wait for hosts without which there can be no rerun."""

    @classmethod
    def of(cls, config: EngineConfig) -> "Rules":
        """Returns the rules that an agent's settings give."""
        return cls(config.heal_after_s, max(config.heal_after_s, config.shared_after_s), config.rerun_rows_max, config.lost_input_s)


class Picture(msgspec.Struct, frozen=True):
    """All that the home of a query knows about it at one moment, and that a recovery needs."""

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
    """The columns of a link's rows, by the link's first name."""
    away: frozenset[OperatorId] = frozenset()
    """Lost operators that may run on: their hosts cannot be reached, or have not reported since they were away."""
    carriers: Mapping[LinkId, OperatorId] = {}
    """The multicast that sends on a link instead of its source, by the link's first name; without those that are gone or away."""
    given_up: frozenset[LinkId] = frozenset()
    """First names of links that their living sources have given up, because a multicast that sent on them was lost; and of links whose
    sources are gone, and were made for a query that has finished."""
    taken: Mapping[LinkId, int] = {}
    """Rows that the target of a link had taken by its last report, by the link's first name."""
    missing: Mapping[LinkId, int] = {}
    """Rows that earlier recoveries have counted as lost, by the first name of a link, or by the sink that had taken them."""
    seconds: float = 0.0
    """Time since the query began."""
    begun_at: Mapping[OperatorId, int] = {}
    """Places in the files of sinks where the query's rows begin."""
    matching: frozenset[OperatorId] = frozenset()
    """Sinks that were still leaving out rows of their files, in another order, by their last reports (`Continuation.matches`)."""
    late: frozenset[OperatorId] = frozenset()
    """Operators that have left out late rows, by their last reports."""
    joined: Mapping[LinkId, int] = {}
    """Rows that sources had given before a link of a later plan began, by the link's first name."""
    users: Mapping[OperatorId, tuple[User, ...]] = {}
    """Other queries that use an operator, by its last report."""
    lacking: Mapping[OperatorId, int] = {}
    """Event times up to which operators that have begun empty lack rows."""
    positions: Mapping[OperatorId, FilePosition] = {}
    """Positions in their files at which sources that are missing on their hosts can begin."""
    attempted: int = 0
    """The highest epoch under which an operator of the query was made again or a link was replaced, under any owner."""
    is_exact: bool = True
    """True if it is known exactly what earlier crashes have cost the query."""
    first_begun_at: Mapping[OperatorId, int] = {}
    """Places in the files of sinks where the query's rows began before any crash."""
    is_replanned: bool = False
    """True if the query has had another plan."""
    rerun_in_vain: bool = False
    """True if a rerun has not told what the query lacks, because its sink cannot compare rows."""
    rules: Rules = Rules()


def may_be_elsewhere(picture: Picture, operator: OperatorId) -> bool:
    """Tells whether an operator that is away may be made elsewhere: it may move, and its host is not alive again."""
    return picture.specs[operator].pinned is None and picture.nodes[operator] not in picture.alive


def absent_files(picture: Picture, made: frozenset[OperatorId]) -> frozenset[OperatorId]:
    """Returns the operators that go on, or read their files again, when their hosts are back, and that have not given up a link.

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

    A pinned operator waits for its node. An operator waits for consumers that are away, and for its feeders if all of them are away.

    Parameters
    ----------
    spared : lost operators that may run on; they are not made again yet, because their hosts may still say so
    """
    lost = frozenset(lost)
    why: dict[OperatorId, str] = {}
    for operator in lost:
        spec = picture.specs[operator]
        if spec.pinned is not None and spec.pinned not in picture.alive:
            why[operator] = f"{operator} waits for {spec.pinned}"
        elif operator in spared:
            why[operator] = f"{operator} may still run: {picture.nodes[operator]} has not reported it missing"
    changed = True
    while changed:
        changed = False
        for operator in lost - why.keys():
            targets = {link.target for link in picture.links if link.source == operator}
            sources = {one.source for one in picture.links if one.target == operator and not _is_over(picture, one)}
            away = sorted(target for target in targets if _is_away(picture, target, lost, why))
            if away:
                why[operator] = f"{operator} waits for its consumers: {', '.join(away)}"
            elif sources and all(_is_away(picture, source, lost, why) for source in sources):
                why[operator] = f"{operator} waits for its feeders: {', '.join(sorted(sources))}"
            changed = changed or operator in why
    return lost - why.keys(), "; ".join(why[operator] for operator in sorted(why))


def ended(links: Iterable[LinkSpec], operators: frozenset[OperatorId], consumers: Mapping[LinkId, Renewed]) -> frozenset[OperatorId]:
    """Returns the operators whose consumers have had everything.

    Parameters
    ----------
    consumers : the answers of living consumers, by the first names of their links
    """
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
    """Tells whether a link comes from another query's operator that is gone for good."""
    is_gone = link.source not in picture.specs and picture.nodes.get(link.source) not in picture.alive
    return is_gone and first_name(link.id) in picture.given_up
