"""Counts the rows that lost operators without state had made, by the answers of their living neighbours. Pure functions."""

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from sbon.links.link_names import first_name
from sbon.links.origins import unfolded
from sbon.message_limits import ORIGINS_MAX
from sbon.query.params.rowwise import MapParams, UnnestParams
from sbon.query.params.streams import DEALING, UnionParams
from sbon.query.params.windowed import AssignParams
from sbon.query.plan import LinkSpec, MissRule, OperatorSpec
from sbon.types import LinkId, OperatorId
from sbon.wire.deployment import Renewed

ROW_BY_ROW = (MapParams, AssignParams, UnnestParams, *DEALING)
"""Operators whose output follows from their input row by row, in order. Stateless functions are such operators, too: `Renewed.passes`."""


class Made(NamedTuple):
    """The rows that a lost operator without state had made of the input that it does not get again."""

    rows: int
    behind: tuple[int, ...] = ()
    """Rows of each part, if the operator deals them; otherwise the rows made by the operators without state behind it."""

    def given(self, link: LinkSpec) -> int:
        """Returns the rows that it had given on one of its links."""
        if link.part is None:
            return self.rows
        return self.behind[link.part.index] if self.behind else 0


def rows_made(
    specs: Mapping[OperatorId, OperatorSpec],
    links: Sequence[LinkSpec],
    lost: Collection[OperatorId],
    feeders: Mapping[LinkId, Renewed],
    positions: Mapping[OperatorId, Made] = {},
) -> dict[OperatorId, Made]:
    """Returns the rows made by each lost operator whose output follows from its one input row by row, where they are known.

    If several such operators in a row are lost together, the feeder of the first knows the rows made by the others, too.

    Parameters
    ----------
    positions : lost sources that begin in the midst of their files, with the rows before that place
    """
    found = dict(positions)
    for operator, spec in specs.items():
        inputs = [link for link in links if link.target == operator]
        if operator not in lost or len(inputs) != 1:
            continue
        answer, before = feeders.get(first_name(inputs[0].id)), found.get(inputs[0].source)
        if answer is not None and answer.made is not None and (answer.passes or isinstance(spec.params, ROW_BY_ROW)):
            known = Made(answer.made, answer.behind)
        elif answer is None and before is not None and before.behind and inputs[0].part is None:
            known = Made(before.behind[0], before.behind[1:])
        else:
            continue
        if not isinstance(spec.params, DEALING) or len(known.behind) == spec.params.instances or not known.rows:
            found[operator] = known
    return found


class Cut(NamedTuple):
    """The progress of a lost operator without state in the rows of one origin: it had made `made` rows of the first `taken` ones."""

    taken: int = 0
    made: tuple[int, ...] = (0,)
    """Rows of each part, if the operator deals them."""
    behind: tuple[int, ...] = ()
    """The same numbers for the operators without state behind it (`sbon.links.origins.folded`)."""


def cuts_behind(
    specs: Mapping[OperatorId, OperatorSpec],
    links: Sequence[LinkSpec],
    lost: Collection[OperatorId],
    feeders: Mapping[LinkId, Renewed],
    several: Mapping[OperatorId, Mapping[LinkId, Made | None]],
) -> dict[OperatorId, tuple[Cut, ...]]:
    """Returns the cut for each origin of lost operators that have one input and pass origins on, where all of an operator's are known.

    Parameters
    ----------
    several : rows that lost operators with several inputs had made of each input, and the numbers of the operators behind them
    """
    known: dict[OperatorId, list[tuple[int, tuple[int, ...]] | None]] = {}
    """For a lost operator and each origin, the rows made, and the numbers of the operators behind it; None if unknown."""
    for operator, inputs_made in several.items():
        if not isinstance(specs[operator].params, DEALING):
            of_inputs = [inputs_made[name] for name in sorted(inputs_made)]
            known[operator] = [None if made is None else (made.rows, made.behind) for made in of_inputs]
    found: dict[OperatorId, tuple[Cut, ...]] = {}
    for operator, spec in specs.items():
        inputs = [link for link in links if link.target == operator]
        if operator not in lost or len(inputs) != 1 or inputs[0].part is not None or isinstance(spec.on_miss, MissRule):
            continue
        answer, name = feeders.get(first_name(inputs[0].id)), inputs[0].id
        if answer is not None and answer.by_origin is not None and answer.made is not None and (answer.passes or not answer.after):
            cuts = [_cut_of(spec, numbers) for numbers in answer.by_origin]
        elif answer is None and inputs[0].source in known:
            cuts = [_cut_behind(spec, name, before) for before in known[inputs[0].source]]
        else:
            continue
        complete = tuple([cut for cut in cuts if cut is not None])
        if len(complete) == len(cuts):
            found[operator] = complete
            if not isinstance(spec.params, DEALING):
                known[operator] = [(sum(cut.made), cut.behind) for cut in complete]
    return found


def _cut_behind(spec: OperatorSpec, link: LinkId, before: tuple[int, tuple[int, ...]] | None) -> Cut | None:
    """Returns the cut of an operator from the rows that its feeder had made, and the numbers that the feeder knew of operators behind it.
    An operator of which the feeder knew no numbers may keep state."""
    if before is None:
        return None
    made, behind = before
    numbers = unfolded(behind, link)
    if numbers is None:
        return None if made or not isinstance(spec.params, ROW_BY_ROW) else _cut_of(spec, ())
    return _cut_of(spec, numbers)


def _cut_of(spec: OperatorSpec, numbers: tuple[int, ...]) -> Cut | None:
    """Returns the cut of an operator from the rows taken, the rows made, and the numbers of the operators behind it; None if these do not
    fit."""
    parts = spec.params.instances if isinstance(spec.params, DEALING) else 1
    if not numbers or (len(numbers) > 1 and not any(numbers[1 : parts + 1])):
        return Cut(numbers[0] if numbers else 0, (0,) * parts)
    if len(numbers) <= parts or (parts > 1 and len(numbers) > parts + 1):
        return None
    return Cut(numbers[0], numbers[1 : parts + 1], numbers[parts + 1 :])


def made_up_to(answer: Renewed) -> Made | None:
    """Returns the rows that a lost operator without state had made of one of its several inputs, by the feeder's answer; None if
    unknown."""
    if answer.made is None or (answer.after and not answer.passes):
        return None
    return Made(answer.made, answer.behind)


def parts_of(spec: OperatorSpec, made: Made | None) -> tuple[int, ...] | None:
    """Returns the rows that an operator with several inputs had made of one input, of each part if it deals them; None if unknown."""
    return None if made is None else made.behind if isinstance(spec.params, DEALING) else (made.rows,)


def several_inputs(
    spec: OperatorSpec,
    inputs: Sequence[LinkSpec],
    feeders: Mapping[LinkId, Renewed],
    counts: Mapping[OperatorId, Made],
    zero: Collection[OperatorId],
) -> dict[LinkId, Made | None] | None:
    """Returns the rows that a lost operator without state had made of each of its inputs, by the input link's first name; None for an
    input where unknown. Returns None for an operator with one input, or with state.

    Parameters
    ----------
    counts : the rows made by lost operators with one input
    zero : operators that give all their rows once more, in the same order, or are away and will say how far they are
    """
    answers = {first_name(link.id): feeders.get(first_name(link.id)) for link in inputs}
    told = any(answer is not None and answer.passes for answer in answers.values())
    if not (told or isinstance(spec.params, (*ROW_BY_ROW, UnionParams))) or not 1 < len(inputs) <= ORIGINS_MAX:
        return None
    if isinstance(spec.on_miss, MissRule):
        return None  # it would leave out other rows the second time
    parts = spec.params.instances if isinstance(spec.params, DEALING) else 0
    found: dict[LinkId, Made | None] = {}
    for link in inputs:
        name, before = first_name(link.id), counts.get(link.source)
        answer, made = answers[name], None
        if answer is not None:
            made = made_up_to(answer)
        elif link.source in zero:
            made = Made(0)
        elif before is not None and before.behind and link.part is None:
            made = Made(before.behind[0], before.behind[1:])
        found[name] = made
        if made is not None and parts and len(made.behind) != parts:
            found[name] = None if made.rows else Made(0, (0,) * parts)
    return found
