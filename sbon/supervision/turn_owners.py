"""Says which owners of turns a lost splitter that asks a dealer, or a lost instance behind one, begins with. Pure functions.

Each instance knows the turns that were decided before its last rows, so the living instances together know all turns on which the rows that
they have taken depend. Other turns may be decided anew (docs/dealing.md, *A dealer that is asked*). If a lost instance had rows of such a
turn, the new owner lacks them, and so may its answers up to the time until which the lost instance says that answers lack rows.
"""

from collections.abc import Collection, Mapping, Sequence

import msgspec

from sbon.links.link_names import first_name
from sbon.query.params.matched import MatchParams
from sbon.query.params.streams import SplitParams
from sbon.query.plan import LinkSpec, OperatorSpec
from sbon.types import LinkId, OperatorId
from sbon.wire.deployment import DealtTurns, Renewed


def known_turns(
    operator: OperatorId, specs: Mapping[OperatorId, OperatorSpec], links: Sequence[LinkSpec], answers: Mapping[LinkId, Renewed]
) -> DealtTurns | msgspec.UnsetType:
    """Returns the turns that the living neighbours of a lost operator know; UNSET if one of them does not tell, or for other operators.

    Parameters
    ----------
    links : all links of the query
    answers : of the living neighbours of lost operators, by the link's first name
    """
    splitter = _splitter_of(operator, specs, links)
    if splitter is None:
        return msgspec.UNSET
    there = [answers[name] for link in links if link.source == splitter and (name := first_name(link.id)) in answers]
    told = [answer.dealt for answer in there if answer.dealt is not msgspec.UNSET]
    if len(told) < len(there):
        return msgspec.UNSET
    turns = {turn: owner for dealt in told for turn, owner in dealt.turns}
    return DealtTurns(tuple(turns.items()), bool(told) and all(dealt.is_whole for dealt in told))


def deals_otherwise(
    operator: OperatorId,
    dealt: DealtTurns | msgspec.UnsetType,
    specs: Mapping[OperatorId, OperatorSpec],
    links: Sequence[LinkSpec],
    lost: Collection[OperatorId],
    zero: Collection[OperatorId],
) -> bool:
    """Tells whether a lost splitter may deal rows otherwise than before although consumers have counted those rows, or answers to them.

    It works through all its rows once more, and nobody knows early turns any more, or the latest ones: a lost instance works through its
    rows once more, too, and may have given answers that depend on turns of which no living instance has heard.

    Parameters
    ----------
    dealt : the turns that it begins with
    zero : operators that work through their whole input once more
    """
    if not isinstance(specs[operator].params, SplitParams) or operator not in zero:
        return False
    instances = {link.target for link in links if link.source == operator}
    mergers = {link.target for link in links if link.source in instances}
    is_whole = dealt is not msgspec.UNSET and dealt.is_whole and instances.isdisjoint(lost)
    return not is_whole and not (instances | mergers).issubset(lost)


def _splitter_of(operator: OperatorId, specs: Mapping[OperatorId, OperatorSpec], links: Sequence[LinkSpec]) -> OperatorId | None:
    params = specs[operator].params
    if isinstance(params, SplitParams):
        return operator
    if isinstance(params, MatchParams) and params.dealt is not None and params.dealt.opens is not None:
        return next((link.source for link in links if link.target == operator), None)
    return None
