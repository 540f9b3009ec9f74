"""The owners of turns that operators of this host know, if a splitter asks a dealer: told to the home of a query after a crash of the
splitter or of an instance, and learnt from it.

A lost splitter's turns survive at its instances, because it tells each of them with the next rows what it has decided
(`sbon.dealing.owners`).
"""

from typing import Any

import msgspec

from sbon.dealing.owners import read_note
from sbon.execution.instance import Instance
from sbon.execution.rows import Rows
from sbon.query.params.matched import MatchParams
from sbon.query.params.streams import told_column
from sbon.wire.deployment import DealtTurns, TakenUp


def dealt_turns(instance: Instance) -> DealtTurns | msgspec.UnsetType:
    """Returns the owners of turns that an operator knows, including what rows tell that wait before it; UNSET for other operators."""
    operator: Any = instance.operator
    found = getattr(operator, "known", lambda: None)()
    if found is None:
        return msgspec.UNSET
    turns, is_whole = found
    params = instance.spec.params
    if isinstance(params, MatchParams) and params.dealt is not None and params.dealt.opens is not None:
        from sbon.operators.match.operator import notes_of

        column = told_column(params.dealt.opens)
        for incoming in instance.inputs.values():
            for batch in incoming.queue:
                if isinstance(batch.payload, Rows):
                    for note in notes_of(batch.payload.frame(), column):
                        told, has_all = read_note(note)
                        turns.update(told)
                        is_whole = is_whole and has_all
    return DealtTurns(tuple(turns.items()), is_whole)


def take_up(instance: Instance, taken_up: TakenUp) -> None:
    """Tells a new copy of an operator what its living neighbours know of the owners of turns; does nothing for other operators."""
    takes_up = getattr(instance.operator, "takes_up", None)
    if takes_up is None or taken_up.dealt is msgspec.UNSET:
        return

    def skips(index: int) -> bool:
        """Tells whether the next rows of a part may be left out. Called on the operator's thread."""
        outputs = list(instance.outputs.values())
        return any(one.giving.is_due for one in outputs if one.link.part is not None and one.link.part.index == index)

    takes_up(taken_up.dealt.turns, skips, is_whole=taken_up.dealt.is_whole)
