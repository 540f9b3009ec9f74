"""Numbers the attempts to move an operator, and tells a new host what has become of an attempt."""

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

    def tried(self, operator: OperatorId) -> int:
        """Returns the epoch of the latest attempt that is remembered; 0 if there is none."""
        return self._tried.get(operator, 0)


def verdict(asker: NodeId, epoch: int, present: Migration | None, gone: tuple[NodeId, int] | None, tried: int) -> str:
    """Returns what has become of the migration to `asker` with this epoch: `committed`, `undecided`, `abandoned` or `forgotten`.

    A host that has restarted answers `forgotten`, not `abandoned`: its former process may have told others that the operator has moved.

    Parameters
    ----------
    present : the operator's migration that is under way here; None if there is none
    gone : the host to which the operator has gone from here, and its epoch there; None if it has not
    tried : epoch of the latest attempt that this process remembers; 0: none

    Examples
    --------
    >>> verdict("ams", 3, None, ("ams", 3), 3), verdict("ams", 4, None, ("ams", 3), 4), verdict("sin", 3, None, ("ams", 3), 3)
    ('committed', 'abandoned', 'abandoned')
    >>> verdict("ams", 3, None, None, 0)
    'forgotten'
    """
    if present is not None and present.epoch == epoch and present.there == asker:
        return "committed" if present.phase is Phase.COMMITTING else "undecided"
    if gone is not None and gone[0] == asker and gone[1] >= epoch:
        return "committed"
    return "abandoned" if tried >= epoch else "forgotten"
