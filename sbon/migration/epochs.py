"""Numbers the attempts to move an operator, and tells a new host what has become of one."""

from collections import OrderedDict

from sbon.migration.coordinator import Migration, Phase
from sbon.types import NodeId, OperatorId

TRIED_MAX = 1024
"""Number of operators whose last attempt is remembered; older ones are forgotten."""


class Epochs:
    """The epochs of one host's attempts to move operators away."""

    def __init__(self) -> None:
        self._tried: OrderedDict[OperatorId, int] = OrderedDict()

    def next(self, operator: OperatorId, present: int) -> int:
        """Returns an epoch above the present one and those of all earlier attempts, so that late messages of an abandoned attempt are
        recognised.

        Examples
        --------
        >>> epochs = Epochs()
        >>> epochs.next("q.1", 0), epochs.next("q.1", 0), epochs.next("q.1", 7)
        (1, 2, 8)
        """
        epoch = self._tried[operator] = max(present, self._tried.get(operator, 0)) + 1
        self._tried.move_to_end(operator)
        while len(self._tried) > TRIED_MAX:
            self._tried.popitem(last=False)
        return epoch


def verdict(asker: NodeId, epoch: int, present: Migration | None, gone: tuple[NodeId, int] | None) -> str:
    """Returns what has become of the migration to `asker` with this epoch: `committed`, `undecided` or `abandoned`.

    Parameters
    ----------
    present : the migration of the operator that is under way here
    gone : where the operator has gone from here, and in which epoch

    Examples
    --------
    >>> verdict("ams", 3, None, ("ams", 3)), verdict("ams", 4, None, ("ams", 3)), verdict("sin", 3, None, ("ams", 3))
    ('committed', 'abandoned', 'abandoned')
    """
    if present is not None and present.epoch == epoch and present.there == asker:
        return "committed" if present.phase is Phase.COMMITTING else "undecided"
    return "committed" if gone is not None and gone[0] == asker and gone[1] >= epoch else "abandoned"
