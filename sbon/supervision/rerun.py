"""A rerun: all operators of a query are made again, the living ones too, and its files are read from their first rows.

After some crashes nobody can tell which rows of a query are lost, or have come twice. If all its sources read files, and its sink writes
one, all rows can come once more, and the sink leaves out those that are in its file (`sbon.connectors.rows_in_file`). Then the query lacks
nothing, whatever earlier crashes have cost it. docs/recovery.md, *A rerun*. Pure functions.
"""

from collections.abc import Mapping

import msgspec

from sbon.links.link_names import first_name
from sbon.query.params.source import SinkParams, SourceParams
from sbon.query.plan import INCOMPLETE, OperatorSpec, after_crash
from sbon.supervision.continuation import Continuation
from sbon.supervision.recovery_picture import Picture, makeable
from sbon.supervision.replayed_inputs import from_zero, gives_same_rows, in_another_order
from sbon.types import OperatorId


def may_rerun(picture: Picture) -> bool:
    """Tells whether a rerun gives a query all its rows: each operator but the sink gives the same rows once more, no other query uses
    living ones or feeds them, and the sink can compare the rows with its file."""
    specs = picture.specs
    sinks = [one for one, spec in specs.items() if isinstance(spec.params, SinkParams)]
    if len(sinks) != 1 or sinks[0] not in picture.first_begun_at or picture.is_replanned or picture.rerun_in_vain:
        return False
    if after_crash(specs.values()) == INCOMPLETE:
        return False
    if any(picture.users.get(one) for one in specs.keys() - picture.lost) or any(
        link.source not in specs or link.target not in specs for link in picture.links
    ):
        return False
    zero = from_zero(specs, picture.links, specs)
    same = gives_same_rows(specs, picture.links, zero, in_another_order(specs, picture.links, zero), picture.late)
    return same == specs.keys() - {*sinks} and rows_given(picture) <= picture.rules.rerun_rows_max


def can_rerun_now(picture: Picture) -> bool:
    """Tells whether a rerun is of use, and the hosts of all operators are there."""
    return may_rerun(picture) and makeable(picture, picture.specs)[0] == picture.specs.keys()


def rows_given(picture: Picture) -> int:
    """Returns how many rows the sources had given, by the latest reports of those that take them."""
    sources = {one for one, spec in picture.specs.items() if isinstance(spec.params, SourceParams)}
    return sum(picture.taken.get(first_name(link.id), 0) for link in picture.links if link.source in sources)


def as_at_first(picture: Picture) -> Picture:
    """Returns a picture without what crashes have changed: no rows are missing, and the query's rows begin where they did at first."""
    return msgspec.structs.replace(picture, begun_at=picture.first_begun_at, missing={})


def from_the_beginning(specs: Mapping[OperatorId, OperatorSpec]) -> dict[OperatorId, Continuation]:
    """Returns the continuations of a rerun: all operators begin as they did at first, and the sink compares."""
    sink = Continuation(by_word=True, matches=True)
    return {one: sink if isinstance(spec.params, SinkParams) else Continuation() for one, spec in specs.items()}
