"""Decides which lost sources begin in the midst of their files, at a position that their hosts have kept. Pure functions.

A position says how many rows the source had given, and how many rows the operators without state behind it had made of exactly these. It is
used if it covers everything that is lost behind the source, down to living consumers, or to a sink that counts the rows in its own file.
Otherwise the file is read from the first row (`sbon.supervision.replayed_inputs`), which also restores the states of operators.
"""

from collections.abc import Collection, Mapping

from sbon.links.link_names import first_name
from sbon.query.params.source import SinkParams
from sbon.query.params.streams import DEALING
from sbon.query.plan import LinkSpec, MissRule
from sbon.supervision.recovery_picture import Picture
from sbon.supervision.replayed_inputs import reads_again
from sbon.supervision.rows_made import ROW_BY_ROW, Made
from sbon.types import LinkId, OperatorId
from sbon.wire.deployment import Renewed
from sbon.wire.reports import FilePosition


def may_begin(
    picture: Picture, made: Collection[OperatorId], consumers: Mapping[LinkId, Renewed], positions: Mapping[OperatorId, FilePosition]
) -> dict[OperatorId, Made]:
    """Returns the sources that begin in the midst of their files, with the rows that are not given again.

    Parameters
    ----------
    made : the operators that are made now
    consumers : the answers of living consumers, by the first names of their links
    positions : positions that hosts have kept of lost sources
    """
    found: dict[OperatorId, Made] = {}
    for operator, position in positions.items():
        spec, outputs = picture.specs.get(operator), [link for link in picture.links if link.source == operator]
        if operator not in made or spec is None or not reads_again(spec) or not position.rows or len(outputs) != 1:
            continue
        if first_name(outputs[0].id) == position.link and _covers(picture, made, consumers, operator, (position.rows, *position.made)):
            found[operator] = Made(position.rows, position.made)
    return found


def _covers(
    picture: Picture, made: Collection[OperatorId], consumers: Mapping[LinkId, Renewed], operator: OperatorId, rows: tuple[int, ...]
) -> bool:
    """Tells whether everything that is lost behind an operator can go on behind the rows that it had made.

    Parameters
    ----------
    rows : rows made by the operator, then by each operator behind it; or rows of each part
    """
    if picture.users.get(operator) or isinstance(picture.specs[operator].on_miss, MissRule):
        return False  # links of other queries are replaced; `on_miss` would leave out other rows the second time
    outputs = [link for link in picture.links if link.source == operator]
    deals = isinstance(picture.specs[operator].params, DEALING)
    for link in outputs:
        name = first_name(link.id)
        if name in picture.joined or name in picture.carriers or (deals and link.part is None):
            return False
        if link.target not in made:
            answer = consumers.get(name)
            given = rows[1 + link.part.index : 2 + link.part.index] if link.part is not None else rows[:1]
            if answer is None or not given or answer.rows < given[0]:
                return False  # rows that were made have not arrived, and only the file still has them
        elif picture.users.get(link.target) or len([one for one in picture.links if one.target == link.target]) != 1:
            return False
        elif isinstance(picture.specs[link.target].params, SinkParams):
            if not _counts_rows(picture, link):
                return False
        elif (
            deals
            or len(outputs) != 1
            or len(rows) < 2
            or not isinstance(picture.specs[link.target].params, ROW_BY_ROW)
            or not _covers(picture, made, consumers, link.target, rows[1:])
        ):
            return False
    return bool(outputs)


def _counts_rows(picture: Picture, link: LinkSpec) -> bool:
    """Tells whether a sink finds out how many rows of a link are in its file."""
    params = picture.specs[link.target].params
    return isinstance(params, SinkParams) and params.connector == "file" and link.part is None and link.target in picture.begun_at
