"""Parameters of operators that pass rows on unchanged: unions, multicasts, and exchanges and merges around several instances."""

import msgspec

from sbon.query.expression import Expression
from sbon.query.limits import INSTANCES_MAX, LimitError, check_count, check_expressions, check_span
from sbon.types import OperatorId


class WindowPart(msgspec.Struct, frozen=True):
    """The windows of one instance of a pattern whose windows are dealt by turns (`Turns`): those that open in its turns.

    The instance gives the match of each start, regardless of matches before it; a merge chooses among them (`WindowChoice`).
    """

    turn_us: int
    index: int
    of: int
    """Number of instances."""
    columns: tuple[str, ...]
    """Four further output columns: event time of a match's first row; number of that row among rows of its time; event time of the row
    where the next match may begin; least number of that row among rows of its time."""
    opens: str | None = None
    """Column of the input that tells which rows open windows of this instance, if a splitter asks a dealer (`SplitParams`); None: those of
    its turns."""

    def __post_init__(self) -> None:
        check_span("turn of an instance", self.turn_us)
        check_count("instances", self.of, 2, INSTANCES_MAX)
        check_count("instances before an instance", self.index, 0, self.of - 1)
        check_count("columns that tell where a match and the next one begin", len(self.columns), 4, 4)


class UnionParams(msgspec.Struct, frozen=True, tag="union"):
    """Rows of all inputs, whose schemas are equal, unchanged."""


class MulticastParams(msgspec.Struct, frozen=True, tag="multicast"):
    """The stream of a shared operator, unchanged, nearer to several of its consumers (SBON, section 4.2.2). Plans have none; they
    are added to operators that run already."""

    of: OperatorId
    """The operator whose stream the multicast carries."""


class Turns(msgspec.Struct, frozen=True):
    """Windows dealt to instances by turns: those that open in one span of event time go to one instance, the next span's to the next."""

    time_column: str
    turn_us: int
    within_us: int
    """The last row of a window is less than this time after its first one."""

    def __post_init__(self) -> None:
        check_span("turn of an instance", self.turn_us)
        check_span("windows within", self.within_us)

    def copies(self, instances: int) -> float:
        """Returns the number of instances that a row goes to, on average.

        Examples
        --------
        >>> Turns("ts", 10, 11).copies(4), Turns("ts", 20, 11).copies(4), Turns("ts", 1, 11).copies(4)
        (2.0, 1.5, 4.0)
        """
        return min(float(instances), 1.0 + (self.within_us - 1) / self.turn_us)


class ExchangeParams(msgspec.Struct, frozen=True, tag="exchange"):
    """Parameters of an exchange: rows dealt to the instances of the next operator by ranges of a hash of their keys, or by windows.

    The rows are unchanged. Each link from an exchange has a `Part` and carries the rows of that part; their order stays.
    """

    keys: tuple[Expression, ...]
    """Rows with equal keys go to one instance; NULL is a value like any other."""
    instances: int
    turns: Turns | None = None
    """Set if windows are dealt; there are no keys then. A row in windows of several instances goes to all of these."""

    def __post_init__(self) -> None:
        check_count("keys to deal rows by", len(self.keys), 1 if self.turns is None else 0)
        check_count("instances", self.instances, 2, INSTANCES_MAX)
        check_expressions(self.keys)


def told_column(opens: str) -> str:
    """Returns the name of the column in which a splitter tells instances the owners of turns (`sbon.dealing.owners`), next to `opens`."""
    return f"{opens}, told"


DEALERS = ("auto", "round-robin", "reactive", "model", "turns", "last")
"""Dealers that a splitter may ask; `auto` is `turns`, or `last` if the bound is at least half a window."""
PIECES_MAX = 4096
"""Most turns in a window, if a dealer is asked."""


class SplitParams(msgspec.Struct, frozen=True, tag="split"):
    """Parameters of a splitter that asks a dealer, at the beginning of each turn, which instance gets the windows that open in the turn.

    Its output has two more columns. `opens` is True for the rows that may open a window of the instance that gets this copy of the row. The
    other one (`told_column`) has a text in the first row of each batch that tells the instance which turns have been decided since.
    """

    turns: Turns
    """The spans of event time for which the dealer is asked once."""
    instances: int
    opens: str
    dealer: str
    bound_s: float
    """Longest time that a row may take at an instance, waiting and being processed."""

    def __post_init__(self) -> None:
        check_count("instances", self.instances, 2, INSTANCES_MAX)
        check_count("turns in a window", self.turns.within_us // self.turns.turn_us, 0, PIECES_MAX)
        if self.dealer not in DEALERS:
            raise LimitError(f"dealer {self.dealer!r}, expected one of {', '.join(DEALERS)}")
        if not 0 < self.bound_s <= 1e9:
            raise LimitError(f"a bound of {self.bound_s} s for rows at an instance, expected above 0")


class WindowChoice(msgspec.Struct, frozen=True):
    """Columns by which a merge chooses among the matches of all starts, as one instance would: `WindowPart.columns` without the first."""

    row: str
    """Number of the first row among those of its event time; rows of one match have the same one."""
    resumes: str
    """Event time of the row where the next match may begin."""
    resumes_row: str
    """Least number of that row among those of its event time."""
    numbers: tuple[str, ...] = ()
    """Columns that get the number of the match."""


class MergeParams(msgspec.Struct, frozen=True, tag="merge"):
    """Parameters of a merge: the answers of several instances in the order in which one instance would give them.

    Rows wait until the watermark of all instances has passed their event time. They leave ordered by it and by the columns `order`; rows
    that are equal in these leave as they came. Columns in `hidden` are only there for the order and do not leave.
    """

    time_column: str
    order: tuple[str, ...]
    """Columns to order rows of one event time by, ascending, NULLs first."""
    hidden: tuple[str, ...] = ()
    delay_us: int = 0
    """Greatest time by which an event time of the output lies before that in `time_column`."""
    choice: WindowChoice | None = None
    """Set if the rows are the matches of all starts, among which the merge chooses; None: all rows leave."""

    def __post_init__(self) -> None:
        check_span("delay of a merge", self.delay_us, 0)
        check_count("columns", len(self.order) + len(self.hidden))


DEALING = (ExchangeParams, SplitParams)
"""Operators that deal rows to instances: each output carries a part."""
