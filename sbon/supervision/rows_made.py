"""Counts the rows that lost operators without state had made, by what their living neighbours have said. Pure functions."""

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from sbon.query.plan import (
    AssignParams,
    ExchangeParams,
    LinkSpec,
    MapParams,
    MissRule,
    OperatorSpec,
    UnionParams,
    UnnestParams,
    first_name,
)
from sbon.types import LinkId, OperatorId
from sbon.wire.deployment import Renewed
from sbon.wire.limits import ORIGINS_MAX

ROW_BY_ROW = (MapParams, AssignParams, UnnestParams, ExchangeParams)
"""Operators whose output follows from their input row by row, in order. Stateless functions do, too, and say so (`Renewed.passes`)."""


class Made(NamedTuple):
    """The rows that a lost operator without state had made of everything that is not given to it again."""

    rows: int
    behind: tuple[int, ...] = ()
    """Rows of each part, if the operator deals them; otherwise of the operators without state behind it."""

    def given(self, link: LinkSpec) -> int:
        """Returns the rows that it had given on one of its links."""
        if link.part is None:
            return self.rows
        return self.behind[link.part.index] if self.behind else 0


def rows_made(
    specs: Mapping[OperatorId, OperatorSpec], links: Sequence[LinkSpec], lost: Collection[OperatorId], feeders: Mapping[LinkId, Renewed]
) -> dict[OperatorId, Made]:
    """Returns the rows made by each lost operator whose output follows from its one input row by row, where they are known.

    What feeds the first of several such operators that are lost together knows it of those behind, too.
    """
    found: dict[OperatorId, Made] = {}
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
        if not isinstance(spec.params, ExchangeParams) or len(known.behind) == spec.params.instances or not known.rows:
            found[operator] = known
    return found


def made_up_to(answer: Renewed) -> Made | None:
    """Returns the rows that a lost operator without state with several inputs had made of one of them, by its feeder's answer; None if that
    is not known."""
    if answer.made is None or (answer.after and not answer.passes):
        return None
    return Made(answer.made, answer.behind)


def of_part(made: tuple[int, ...], link: LinkSpec) -> int:
    """Returns those of the rows made of one input that go by a link."""
    return sum(made) if link.part is None else made[link.part.index]


def several_inputs(
    spec: OperatorSpec,
    inputs: Sequence[LinkSpec],
    feeders: Mapping[LinkId, Renewed],
    counts: Mapping[OperatorId, Made],
    zero: Collection[OperatorId],
) -> dict[LinkId, tuple[int, ...] | None] | None:
    """Returns the rows that a lost operator without state had made of each of its inputs, by the first names of their links: of each part,
    if it deals them; None for an input where that is not known. None for an operator with one input, or with state.

    Parameters
    ----------
    counts : the rows made by lost operators with one input
    zero : operators that give all their rows once more, in the same order, or are away and say how far they are when they are back
    """
    answers = {first_name(link.id): feeders.get(first_name(link.id)) for link in inputs}
    told = any(answer is not None and answer.passes for answer in answers.values())
    if not (told or isinstance(spec.params, (*ROW_BY_ROW, UnionParams))) or not 1 < len(inputs) <= ORIGINS_MAX:
        return None
    if isinstance(spec.on_miss, MissRule):
        return None  # it would leave out other rows the second time
    parts = spec.params.instances if isinstance(spec.params, ExchangeParams) else 1
    found: dict[LinkId, tuple[int, ...] | None] = {}
    for link in inputs:
        name, before = first_name(link.id), counts.get(link.source)
        answer, made = answers[name], None
        if answer is not None:
            made = made_up_to(answer)
        elif link.source in zero:
            made = Made(0)
        elif before is not None and before.behind and link.part is None:
            made = Made(before.behind[0], before.behind[1:])
        found[name] = None
        if made is not None and not made.rows:
            found[name] = (0,) * parts
        elif made is not None and parts == 1:
            found[name] = (made.rows,)
        elif made is not None and len(made.behind) == parts:
            found[name] = made.behind
    return found
